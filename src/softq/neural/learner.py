"""A learner for models of sentences.

Candidates made ahead, training steps on them, a learning-rate schedule, the best model.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.decode import sample
from softq.errors import RunError
from softq.formats.file_checks import starting_with
from softq.lab.loop import Evaluation, NonFiniteLossError
from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.lab.torch_learner import generator_for
from softq.neural.examples import Examples
from softq.neural.generation import evaluating, on_device
from softq.neural.modules.sequence import Inputs, SequenceModel
from softq.neural.neighbours import NeighbourReferences
from softq.neural.perplexity import perplexity
from softq.neural.recipe import CandidateSettings, Optimizer, SequenceTraining
from softq.neural.recorded_steps import matrix_precision
from softq.neural.target_maker import recipe_targets
from softq.neural.text_generator import load_parameters
from softq.neural.training_steps import Batch, TrainingSteps
from softq.samplers import CandidateStream
from softq.sentences import Sentences
from softq.spaces import Candidates

_THREADS = max(2, min(4, (os.cpu_count() or 2) // 2))  # that make candidates, each on one core
_AHEAD = 8  # batches made before they are needed
_MORE_WORDS = 5  # that a sample may have beyond the longest reference
_SAMPLES_TOGETHER = 1 << 13  # of the model, before an epoch
_TOGETHER = 128  # examples or more, of whole batches, whose candidates are made at once
# places of their own among the seeds of a step and of an epoch, beside those of processes
_CANDIDATES, _SAMPLES = 1 << 20, 1 << 21


class Judge(Protocol):
    """How a task compares models."""

    def score(self, model: SequenceModel) -> float:
        """The development score; higher is better."""

    def judge(self, model: SequenceModel) -> Evaluation:
        """The scores of the best model on both splits."""

    def notes(self, model: SequenceModel) -> dict[str, Tensor]:
        """What the model's file holds beside its parameters."""


class SequenceLearner:
    """Trains one model of sentences by ML, RAML or SQDML.

    Batches, candidates and dropout follow from the seed, the epoch and the step alone, so there is
    nothing of them to save. Candidates of the next batches are made and scored in threads while
    this one is trained on; the model's own samples are drawn when their turn comes, and differ with
    the number of processes. Each process takes its share of every batch.

    Args:
        model: to train.
        train: examples to learn from.
        dev: examples whose perplexity the learning rate follows.
        judge: the task's scores.
        objective: ml, raml or sqdml.
        candidates: of the last two.
        optimizer: settings of Adam.
        training: length, batch size, seed.
        frequencies: of tokens in the training text ``[V]``, where candidates are sampled by them.
        near: samples candidates from the references of similar inputs, where they are asked for.
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
        candidates: CandidateSettings,
        optimizer: Optimizer,
        training: SequenceTraining,
        frequencies: Tensor | None = None,
        near: NeighbourReferences | None = None,
        workers: Workers,
    ) -> None:
        self._model, self._train, self._dev, self._judge = model, train, dev, judge
        self._workers, self._training, self._optimizer = workers, training, optimizer
        self._targets = recipe_targets(objective, candidates, model.vocab, frequencies)
        self._likelihood, self._candidates = objective.name == "ml", candidates
        samplers = () if self._likelihood else candidates.samplers
        self._near = near if "near" in samplers else None
        self._sampled_in_steps = "model" in samplers and candidates.refresh == "step"
        self._sampled_in_epochs = "model" in samplers and candidates.refresh == "epoch"
        self._samples: Sentences | None = None  # of the model, for every example of this epoch
        self._steps = TrainingSteps(
            model, optimizer, workers, precision=training.precision, graphs=training.graphs
        )
        self.examples = len(train)
        self.steps = math.ceil(len(train) / training.batch_size)
        self._loss = torch.zeros((), dtype=torch.float64)  # sum over the epoch so far
        self._lowest = torch.tensor(math.inf, dtype=torch.float64)  # perplexity
        self._epochs = torch.zeros((), dtype=torch.int64)  # that are over
        self._best: dict[str, Tensor] = {}
        self._stream: Generator[tuple[Tensor, Batch], None, None] | None = None
        self._next = (0, 0)  # epoch and step of the stream's next batch

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch."""
        self._model.train()
        if self._stream is None or self._next != (epoch, first):
            self._close()
            if first == 0 and self._sampled_in_epochs:
                self._sample_all(epoch)
            self._stream = self._batches_ahead(epoch, first)
        device = [self._workers.device] if self._workers.device.type == "cuda" else []
        losses = []
        try:
            with torch.random.fork_rng(device):  # dropout draws from torch's own generators
                for step in range(first, last):
                    index, batch = next(self._stream)
                    seed = generator_for(
                        self._training.seed, epoch, step, self._workers.rank
                    ).initial_seed()
                    if self._sampled_in_steps:
                        batch = self._with_samples(index, batch, seed)
                    losses.append(self._steps(batch, len(index), seed))
            self._next = (epoch, last)
            self._add_losses(epoch, first, torch.stack(losses).double())
        except BaseException:  # Ctrl-C among them: threads must not outlive it
            self._close()
            raise
        if last == self.steps:
            self._close()

    def _add_losses(self, epoch: int, first: int, losses: Tensor) -> None:
        """Add losses of steps ``[S]``; from here on everything on the device is done."""
        losses = self._workers.total(losses).cpu()
        bad = (~losses.isfinite()).nonzero()
        if len(bad):
            step = first + int(bad[0])
            raise NonFiniteLossError(
                f"the loss of epoch {epoch + 1}, step {step}, or its gradient, is not finite",
                {"examples": self._batches(epoch)[step]},
            )
        self._loss += losses.sum()

    def _batches(self, epoch: int) -> list[Tensor]:
        return self._train.batches(self._training.batch_size, self._training.seed, epoch)

    def _batches_ahead(self, epoch: int, first: int) -> Generator[tuple[Tensor, Batch], None, None]:
        """Batches of one epoch from a step on, each with the indices of its examples, made ahead in threads."""
        batches, size = self._batches(epoch), -(-_TOGETHER // self._training.batch_size)
        groups = [batches[begin : begin + size] for begin in range(0, len(batches), size)]
        group, skipped = divmod(first, size)

        def prepare(
            job: tuple[int, list[Tensor]], _: torch.Generator
        ) -> list[tuple[Tensor, Batch]]:
            place, several = job
            seed = generator_for(self._training.seed, epoch, place, _CANDIDATES).initial_seed()
            return list(zip(several, self._prepare(several, seed), strict=True))

        jobs, ahead = list(enumerate(groups))[group:], max(_THREADS, _AHEAD // size)
        with CandidateStream(jobs, prepare, seed=0, workers=_THREADS, ahead=ahead) as stream:
            for made in stream:
                yield from made[skipped:]
                skipped = 0

    def _prepare(self, group: Sequence[Tensor], seed: int) -> list[Batch]:
        """The share of this process of these batches.

        With the references alone where the model samples candidates in each step.

        Candidates of several batches are made at once: of few inputs it would be more calls than
        work.
        """
        index = torch.cat(tuple(group))
        references = self._train.take_references(index)
        if self._sampled_in_steps:
            whole = Batch((), *references, references.present.float())
        else:
            generator = torch.Generator().manual_seed(seed)
            given = self._given(index, generator)
            if self._samples is not None:
                tokens, lengths = self._samples
                given.insert(0, Candidates(tokens[index].long(), lengths[index]))
            target = self._targets(references, generator, *given)
            whole = Batch.of((), target)
        # references are as many as the batch has at most, alone or beside samples; candidates of
        # one sampler are always the same number
        only_references = self._sampled_in_steps or self._likelihood
        shares, parts = [], (torch.split(part, list(map(len, group))) for part in whole.tensors)
        for some, tokens, lengths, weights in zip(group, *parts, strict=True):
            copies = (
                int(self._train.counts[some.numpy()].max()) if only_references else tokens.shape[1]
            )
            width = int(lengths.max().clamp(min=0))
            inputs = self._train.take_inputs(some, rounded=self._rounds)
            batch = Batch(
                inputs, tokens[:, :copies, :width], lengths[:, :copies], weights[:, :copies]
            )
            shares.append(batch.share(self._workers.rank, self._workers.size))
        return shares if self._sampled_in_steps else [self._ready(share) for share in shares]

    def _given(self, index: Tensor, generator: torch.Generator) -> list[Candidates]:
        """Candidates from the references of similar inputs, where they are asked for."""
        near, share = self._near, self._candidates.share
        return [] if near is None else [near(index, share, generator)]

    @property
    def _rounds(self) -> bool:
        # recorded or not, so that dropout is the same: what it draws depends on shapes
        return self._workers.device.type == "cuda" and self._workers.size == 1

    def _ready(self, batch: Batch) -> Batch:
        if self._workers.device.type != "cuda":
            return batch
        return (batch.rounded(self._training.batch_size) if self._rounds else batch).pinned()

    def _with_samples(self, index: Tensor, batch: Batch, seed: int) -> Batch:
        """The batch of these examples with candidates sampled from the model as it is now."""
        references = Sentences(batch.tokens, batch.lengths)
        rank, size = self._workers.rank, self._workers.size
        own = index[rank::size] if rank < len(index) else index[:1]
        generator = torch.Generator(self._workers.device).manual_seed(seed)
        longest = int(references.lengths.max()) + _MORE_WORDS
        sampled = self._sample(batch.inputs, longest, generator)
        generator = torch.Generator().manual_seed(seed)
        target = self._targets(references, generator, sampled, *self._given(own, generator))
        # an example without weight stays without
        weights = target.weights * batch.weights.any(1, keepdim=True)
        return self._ready(Batch.of(batch.inputs, target)._replace(weights=weights.float()))

    def _sample(self, inputs: Inputs, longest: int, generator: torch.Generator) -> Candidates:
        """Samples from the model, on the CPU."""
        with evaluating(self._model):
            memory = self._model.encode(on_device(inputs, self._model))
            size = self._candidates.share
            options = {"size": size, "max_length": longest, "generator": generator}
            return sample(self._model, memory, **options).to("cpu")  # type: ignore[arg-type]

    def _sample_all(self, epoch: int) -> None:
        """Samples from the model for every example of this epoch."""
        generator = torch.Generator(self._workers.device).manual_seed(
            generator_for(self._training.seed, epoch, _SAMPLES).initial_seed()
        )
        longest = int(self._train.references.lengths.max(initial=0)) + _MORE_WORDS
        groups = torch.split(
            torch.arange(len(self._train)), max(1, _SAMPLES_TOGETHER // self._candidates.share)
        )
        with matrix_precision(self._training.precision):
            parts = [
                self._sample(self._train.take_inputs(index), longest, generator).sentences
                for index in groups
            ]
        width = max(part.tokens.shape[2] for part in parts)
        tokens = [pad(part.tokens, (0, width - part.tokens.shape[2])).int() for part in parts]
        self._samples = Sentences(torch.cat(tokens), torch.cat([part.lengths for part in parts]))

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Mean loss over the epoch's examples, perplexity of the development split.

        The learning rate follows its schedule.
        """
        loss = float(self._loss) / self.examples
        self._loss.zero_()
        with matrix_precision(self._training.precision):
            reached, rate = perplexity(self._model, self._dev), self._steps.learning_rate
        self._epochs += 1
        self._samples = None  # the next epoch begins with others
        if self._optimizer.schedule == "linear":
            left = max(0.0, 1 - float(self._epochs) / self._training.epochs)
            self._steps.learning_rate = self._optimizer.learning_rate * left
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
            parameters = self._model.named_parameters()
            self._best = {name: value.detach().clone() for name, value in parameters}

    @torch.no_grad()
    def evaluate_best(self) -> Evaluation:
        """The scores of the best model, which is the present one from here on."""
        load_parameters(self._model, self._best)
        self._model.eval()
        with matrix_precision(self._training.precision):
            found = self._judge.judge(self._model)
            reached = {"dev_perplexity": perplexity(self._model, self._dev)}
        return found._replace(measures=[{**found.measures[0], **reached}])

    def state(self) -> dict[str, Tensor]:
        """Parameters, the optimizer's tensors, the learning rate, the loss so far and the lowest perplexity."""
        found = {f"model.{name}": value.detach() for name, value in self._model.named_parameters()}
        found |= self._steps.state() | {
            "loss": self._loss,
            "lowest_perplexity": self._lowest,
            "epochs": self._epochs,
            "fingerprint": self._fingerprint,
        }
        if self._samples is not None:
            found |= {f"samples.{name}": value for name, value in self._samples._asdict().items()}
        return found

    @cached_property
    def _fingerprint(self) -> Tensor:
        """A digest of the training data and the vocabularies."""
        digest = hashlib.sha256()
        for array in self._train.arrays():
            digest.update(np.ascontiguousarray(array).reshape(-1).data)
        for name, value in sorted(self._judge.notes(self._model).items()):
            digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
        return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        if not torch.equal(state["fingerprint"], self._fingerprint):
            raise RunError(
                "the training data or the vocabulary of this run differs from that with which it"
                " began; restore the files, or begin a new run"
            )
        load_parameters(self._model, starting_with("model.", state))
        self._steps.load_state(state)
        self._loss, self._lowest, self._epochs = (
            state[name].clone() for name in ("loss", "lowest_perplexity", "epochs")
        )
        if samples := starting_with("samples.", state):
            self._samples = Sentences(**samples)

    def best(self) -> dict[str, Tensor]:
        """The best model's parameters, and what its file holds beside them."""
        parameters = {f"model.{name}": value for name, value in self._best.items()}
        return parameters | self._judge.notes(self._model)

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take these for the best ones."""
        parameters = starting_with("model.", best).items()
        self._best = {name: value.to(self._workers.device) for name, value in parameters}
