"""A learner for models of sentences: candidates made ahead, steps on them, a rate that falls, the best model kept."""

from __future__ import annotations

import hashlib
import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

import softq.spaces as distributions
from softq.decode import sample
from softq.errors import RunError
from softq.lab.loop import Evaluation, NonFiniteLossError
from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.lab.torch_learner import below, generator_for
from softq.neural.candidates import TargetMaker
from softq.neural.examples import Examples
from softq.neural.modules.sequence import Inputs, SequenceModel
from softq.neural.perplexity import perplexity
from softq.neural.recipe import Candidates, Optimizer, SequenceTraining
from softq.neural.saved_model import load_parameters
from softq.neural.search import on_device
from softq.neural.steps import Batch, Steps, matrix_precision
from softq.samplers import CandidateStream
from softq.sentences import Sentences

_THREADS = max(2, min(4, (os.cpu_count() or 2) // 2))  # that make candidates, each on one core
_AHEAD = 8  # batches made before they are needed
_MORE_WORDS = 5  # that a draw may have beyond the longest reference
_SAID_TOGETHER = 1 << 13  # draws at once, before an epoch
_TOGETHER = 128  # examples or more, of whole batches, whose candidates are made at once


class NearCandidates(Protocol):
    """How a task finds candidates for inputs among the references of others that are alike."""

    def __call__(
        self, numbers: Tensor, size: int, generator: torch.Generator
    ) -> distributions.Candidates:
        """``size`` of them for each of the training examples with these ``numbers [B]``."""
        ...


class Judge(Protocol):
    """How a task tells models from each other."""

    def score(self, model: SequenceModel) -> float:
        """Of the development part; higher is better."""
        ...

    def judge(self, model: SequenceModel) -> Evaluation:
        """What the best model is worth on both splits."""
        ...

    def notes(self, model: SequenceModel) -> dict[str, Tensor]:
        """What the model's file holds beside its parameters."""
        ...


class SequenceLearner:
    """Trains one model of sentences by ML, RAML or SQDML.

    Batches, candidates and dropout follow from the seed, the epoch and the step alone, so there is nothing of them to save. Candidates of
    the next batches are made and scored in threads while this one is trained on; those that the model says itself are drawn when their turn
    comes, and otherwise with another number of processes. Each process takes its share of every batch.

    Args:
        model: to train.
        train: examples to learn from.
        dev: examples whose perplexity the learning rate follows.
        judge: the task's measures.
        objective: ml, raml or sqdml.
        candidates: of the last two.
        optimizer: settings of Adam.
        training: length, batch size, seed.
        frequencies: of words in the training text ``[V]``, where candidates are drawn by them.
        near: makes candidates of the references of inputs that are alike, where they are asked for.
        workers: processes and device.

    """

    cells = 1

    def __init__(
        self,
        model: SequenceModel,
        train: Examples,
        dev: Examples,
        judge: Judge,
        *,
        objective: Objective,
        candidates: Candidates,
        optimizer: Optimizer,
        training: SequenceTraining,
        frequencies: Tensor | None = None,
        near: NearCandidates | None = None,
        workers: Workers,
    ) -> None:
        self._model, self._train, self._dev, self._judge, self._workers = (
            model,
            train,
            dev,
            judge,
            workers,
        )
        self._training, self._optimizer = training, optimizer
        self._target = TargetMaker(objective, candidates, model.vocab, frequencies)
        self._near = near
        self._said: Sentences | None = (
            None  # what the model said of every example before this epoch, where it does
        )
        self._steps = Steps(
            model, optimizer, workers, precision=training.precision, graphs=training.graphs
        )
        self.examples = len(train)
        self.steps = math.ceil(len(train) / training.batch_size)
        self._loss = torch.zeros((), dtype=torch.float64)  # sum over the epoch so far
        self._lowest = torch.tensor(math.inf, dtype=torch.float64)  # perplexity
        self._epochs = torch.zeros((), dtype=torch.int64)  # that are over
        self._best: dict[str, Tensor] = {}
        self._stream: _Stream | None = None
        self._known: Tensor | None = None  # the fingerprint

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch."""
        self._model.train()
        if self._stream is None or (self._stream.epoch, self._stream.step) != (epoch, first):
            self._close()
            if first == 0 and self._target.wants("model") and not self._drawn_in_steps:
                self._say_all(epoch)
                self._model.train()
            self._stream = _Stream(self, epoch, first)
        device = [self._workers.device] if self._workers.device.type == "cuda" else []
        losses = []
        try:
            with torch.random.fork_rng(device):  # dropout draws from torch's own generators
                for step in range(first, last):
                    numbers, batch = next(self._stream)
                    seed = generator_for(
                        self._training.seed, epoch, step, self._workers.rank
                    ).initial_seed()
                    losses.append(
                        self._steps(self._with_draws(numbers, batch, seed), len(numbers), seed)
                    )
            self._add(epoch, first, torch.stack(losses).double())
        except BaseException:  # Ctrl-C among them: threads must not outlive it
            self._close()
            raise
        if last == self.steps:
            self._close()

    def _add(self, epoch: int, first: int, losses: Tensor) -> None:
        """Note losses of steps ``[S]``; from here on everything on the device is done."""
        losses = self._workers.total(losses).cpu()
        bad = (~losses.isfinite()).nonzero()
        if len(bad):
            step = first + int(bad[0])
            batch = self._batches(epoch)[step]
            raise NonFiniteLossError(
                f"the loss of epoch {epoch + 1}, step {step}, or its gradient, is not finite",
                {"examples": batch},
            )
        self._loss += losses.sum()

    def _batches(self, epoch: int) -> list[Tensor]:
        return self._train.batches(self._training.batch_size, self._training.seed, epoch)

    def _prepare(self, group: Sequence[Tensor], seed: int) -> list[Batch]:
        """What steps need of these batches, this process's share of it; the references alone where the model draws candidates in each.

        Candidates of several batches are made at once: of few inputs it would be more calls than work.
        """
        numbers = torch.cat(tuple(group))
        references = self._train.take_references(numbers)
        if self._drawn_in_steps:
            tokens, lengths, weights = *references, references.present.float()
        else:
            generator = torch.Generator().manual_seed(seed)
            target = self._target(references, generator, *self._given(numbers, generator))
            _, tokens, lengths, weights = Batch.of((), target)
        # references are as many as the batch has at most, alone or beside draws; candidates of one sampler are always the same number
        only_references = self._drawn_in_steps or self._target.objective.name == "ml"
        shares, begin = [], 0
        for some in group:
            here = slice(begin, begin := begin + len(some))
            copies = (
                int(self._train.counts[some.numpy()].max()) if only_references else tokens.shape[1]
            )
            width = int(lengths[here].max().clamp(min=0))
            inputs = self._train.take_inputs(some, rounded=self._rounds)
            batch = Batch(
                inputs,
                tokens[here, :copies, :width],
                lengths[here, :copies],
                weights[here, :copies],
            )
            shares.append(batch.share(self._workers.rank, self._workers.size))
        return shares if self._drawn_in_steps else [self._ready(share) for share in shares]

    def _given(self, numbers: Tensor, generator: torch.Generator) -> list[distributions.Candidates]:
        """Candidates of some examples that are neither drawn in a step nor made of references alone."""
        given, size = [], self._target.settings.share
        if self._said is not None:
            given.append(
                distributions.Candidates(
                    self._said.tokens[numbers].long(), self._said.lengths[numbers]
                )
            )
        if self._near is not None and self._target.wants("near"):
            given.append(self._near(numbers, size, generator))
        return given

    @property
    def _drawn_in_steps(self) -> bool:
        return self._target.wants("model") and self._target.settings.refresh == "step"

    @property
    def _rounds(self) -> bool:
        # recorded or not, so that dropout is the same: what it draws depends on shapes
        return self._workers.device.type == "cuda" and self._workers.size == 1

    def _ready(self, batch: Batch) -> Batch:
        if self._workers.device.type != "cuda":
            return batch
        return (batch.rounded(self._training.batch_size) if self._rounds else batch).pinned()

    def _with_draws(self, numbers: Tensor, batch: Batch, seed: int) -> Batch:
        """The batch of these examples, with candidates that the model says, where it is to say them in this step."""
        if not self._drawn_in_steps:
            return batch
        references = Sentences(batch.tokens, batch.lengths)
        own = (
            numbers[self._workers.rank :: self._workers.size]
            if self._workers.rank < len(numbers)
            else numbers[:1]
        )
        drawn = self._say(
            batch.inputs,
            int(references.lengths.max()) + _MORE_WORDS,
            torch.Generator(self._workers.device).manual_seed(seed),
        )
        self._model.train()
        generator = torch.Generator().manual_seed(seed)
        target = self._target(references, generator, drawn, *self._given(own, generator))
        weights = target.weights * batch.weights.any(
            1, keepdim=True
        )  # an example that counts nothing goes on counting nothing
        return self._ready(Batch.of(batch.inputs, target)._replace(weights=weights.float()))

    @torch.no_grad()
    def _say(
        self, inputs: Inputs, longest: int, generator: torch.Generator
    ) -> distributions.Candidates:
        """Draws from the model, on the CPU."""
        self._model.eval()
        memory = self._model.encode(on_device(inputs, self._model))
        return sample(
            self._model,
            memory,
            size=self._target.settings.share,
            max_length=longest,
            generator=generator,
        ).to("cpu")

    def _say_all(self, epoch: int) -> None:
        """Draws from the model for every example, to be taken in this epoch."""
        generator = torch.Generator(self._workers.device).manual_seed(
            generator_for(self._training.seed, epoch, _SAID).initial_seed()
        )
        longest = int(self._train.references.lengths.max(initial=0)) + _MORE_WORDS
        groups = torch.split(
            torch.arange(len(self._train)), max(1, _SAID_TOGETHER // self._target.settings.share)
        )
        with matrix_precision(self._training.precision):
            parts = [
                self._say(self._train.take_inputs(numbers), longest, generator).sentences
                for numbers in groups
            ]
        width = max(part.tokens.shape[2] for part in parts)
        tokens = torch.cat(
            [pad(part.tokens, (0, width - part.tokens.shape[2])).int() for part in parts]
        )
        self._said = Sentences(tokens, torch.cat([part.lengths for part in parts]))

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Mean loss over the epoch's examples, perplexity of the development part; the rate falls as the recipe has it."""
        loss = float(self._loss) / self.examples
        self._loss.zero_()
        with matrix_precision(self._training.precision):
            reached, rate = perplexity(self._model, self._dev), self._steps.learning_rate
        self._epochs += 1
        self._said = None  # the next epoch begins with others
        if self._optimizer.schedule == "linear":
            self._steps.learning_rate = self._optimizer.learning_rate * max(
                0.0, 1 - float(self._epochs) / self._training.epochs
            )
        elif reached > float(self._lowest):
            self._steps.learning_rate = max(
                rate * self._optimizer.decay, min(rate, self._optimizer.min_learning_rate)
            )
        self._lowest = torch.minimum(self._lowest, torch.tensor(reached, dtype=torch.float64))
        return {"loss": [loss], "dev_perplexity": [reached], "learning_rate": [rate]}

    @torch.no_grad()
    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """The task's development score."""
        self._model.eval()
        with matrix_precision(self._training.precision):
            return [self._judge.score(self._model)]

    def keep_best(self, improved: Sequence[bool]) -> None:
        """Remember the parameters."""
        if improved[0]:
            self._best = {
                name: value.detach().clone() for name, value in self._model.named_parameters()
            }

    @torch.no_grad()
    def evaluate_best(self) -> Evaluation:
        """What the best model is worth, which is the present one from here on."""
        load_parameters(self._model, self._best)
        self._model.eval()
        with matrix_precision(self._training.precision):
            found = self._judge.judge(self._model)
            return found._replace(
                measures=[
                    {**found.measures[0], "dev_perplexity": perplexity(self._model, self._dev)}
                ]
            )

    def state(self) -> dict[str, Tensor]:
        """Parameters, the optimizer's tensors, the rate, the loss so far and the lowest perplexity."""
        parameters = {
            f"model.{name}": value.detach() for name, value in self._model.named_parameters()
        }
        counters = {
            "loss": self._loss,
            "lowest_perplexity": self._lowest,
            "epochs": self._epochs,
            "fingerprint": self._fingerprint(),
        }
        said = (
            {}
            if self._said is None
            else {"said_tokens": self._said.tokens, "said_lengths": self._said.lengths}
        )
        return parameters | self._steps.state() | counters | said

    def _fingerprint(self) -> Tensor:
        """What tells the words and sentences that this run is trained on from others."""
        if self._known is not None:
            return self._known
        digest = hashlib.sha256()
        for part in self._train.contents():
            digest.update(part)
        for name, value in sorted(self._judge.notes(self._model).items()):
            digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
        self._known = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
        return self._known

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        if not torch.equal(state["fingerprint"], self._fingerprint()):
            raise RunError(
                "the training data or the words of this run are not those that it began with, and its parameters mean other words; put the "
                "files back, or begin a new run"
            )
        load_parameters(self._model, below("model.", state))
        self._steps.load_state(state)
        self._loss, self._lowest, self._epochs = (
            state[name].clone() for name in ("loss", "lowest_perplexity", "epochs")
        )
        if "said_tokens" in state:
            self._said = Sentences(state["said_tokens"], state["said_lengths"])

    def best(self) -> dict[str, Tensor]:
        """The best model's parameters, and what its file holds beside them."""
        return {f"model.{name}": value for name, value in self._best.items()} | self._judge.notes(
            self._model
        )

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take these for the best ones."""
        self._best = {
            name: value.to(self._workers.device) for name, value in below("model.", best).items()
        }


class _Stream(Iterator[tuple[Tensor, Batch]]):
    """Batches of one epoch from a step on, each with its example numbers, made ahead."""

    def __init__(self, learner: SequenceLearner, epoch: int, step: int) -> None:
        self.epoch, self.step = epoch, step
        seed, batch_size = learner._training.seed, learner._training.batch_size
        size = -(-_TOGETHER // batch_size)  # batches of a group
        batches = learner._batches(epoch)
        groups = [batches[begin : begin + size] for begin in range(0, len(batches), size)]
        first, self._behind = divmod(
            step, size
        )  # of the first group, as many have been taken before

        def prepare(
            job: tuple[int, list[Tensor]], _: torch.Generator
        ) -> list[tuple[Tensor, Batch]]:
            place, group = job
            made = learner._prepare(
                group, generator_for(seed, epoch, place, _CANDIDATES).initial_seed()
            )
            return list(zip(group, made, strict=True))

        jobs = list(enumerate(groups))[first:]
        self._stream = CandidateStream(
            jobs, prepare, seed=0, workers=_THREADS, ahead=max(_THREADS, _AHEAD // size)
        )
        self._made: deque[tuple[Tensor, Batch]] = deque()

    def __next__(self) -> tuple[Tensor, Batch]:
        while len(self._made) <= self._behind:
            self._made.extend(next(self._stream))
        for _ in range(self._behind):
            self._made.popleft()
        self._behind = 0
        self.step += 1
        return self._made.popleft()

    def close(self) -> None:
        self._stream.close()


_CANDIDATES, _SAID = (
    1 << 20,
    1 << 21,
)  # places of their own among the seeds of a step and of an epoch, beside those of processes
