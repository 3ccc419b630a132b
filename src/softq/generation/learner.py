"""A learner for models of sentences: candidates made ahead, steps on them, a rate that falls, the best model kept."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from softq.decode import sample
from softq.errors import RunError
from softq.generation.candidates import TargetMaker
from softq.generation.examples import Examples
from softq.generation.perplexity import perplexity
from softq.generation.recipe import Candidates, Optimizer, SequenceTraining
from softq.generation.steps import Batch, Steps, matrix_precision
from softq.generation.translator import load_parameters
from softq.models.sequence import SequenceModel
from softq.recipe import Objective
from softq.samplers import CandidateStream
from softq.sentences import Sentences
from softq.train import NonFiniteLossError, Workers
from softq.train.torch_learner import below, generator_for

_AHEAD = 8  # batches made before they are needed
_TOGETHER = 128  # examples whose candidates are made at once, where batches are smaller


class Judge(Protocol):
    """How a task tells models from each other."""

    def score(self, model: SequenceModel) -> float:
        """Of the development part; higher is better."""
        ...

    def measures(self, model: SequenceModel) -> dict[str, float]:
        """Final measures of the best model, ``test`` among them."""
        ...

    def notes(self) -> dict[str, Tensor]:
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
        workers: Workers,
    ) -> None:
        self._model, self._train, self._dev, self._judge, self._workers = model, train, dev, judge, workers
        self._training, self._decay, self._least_rate = training, optimizer.decay, optimizer.min_learning_rate
        self._target = TargetMaker(objective, candidates, model.vocab, frequencies)
        self._steps = Steps(model, optimizer, workers, precision=training.precision, graphs=training.graphs)
        self.examples = len(train)
        self.steps = math.ceil(len(train) / training.batch_size)
        self._loss = torch.zeros((), dtype=torch.float64)  # sum over the epoch so far
        self._lowest = torch.tensor(math.inf, dtype=torch.float64)  # perplexity
        self._best: dict[str, Tensor] = {}
        self._stream: _Stream | None = None
        self._known: Tensor | None = None  # the fingerprint

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch."""
        self._model.train()
        if self._stream is None or (self._stream.epoch, self._stream.step) != (epoch, first):
            self._close()
            self._stream = _Stream(self, epoch, first)
        device = [self._workers.device] if self._workers.device.type == "cuda" else []
        losses = []
        try:
            with torch.random.fork_rng(device):  # dropout draws from torch's own generators
                for step in range(first, last):
                    numbers, batch = next(self._stream)
                    seed = generator_for(self._training.seed, epoch, step, self._workers.rank).initial_seed()
                    losses.append(self._steps(self._drawn(batch, seed), len(numbers), seed))
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
            raise NonFiniteLossError(f"the loss of epoch {epoch + 1}, step {step}, or its gradient, is not finite", {"examples": batch})
        self._loss += losses.sum()

    def _batches(self, epoch: int) -> list[Tensor]:
        return self._train.batches(self._training.batch_size, self._training.seed, epoch)

    def _prepare(self, group: Sequence[Tensor], seed: int) -> list[Batch]:
        """What steps need of these batches, this process's share of it; the references alone where the model draws candidates.

        Candidates of several batches are made at once: of few inputs it would be more calls than work.
        """
        source, references = self._train.take(torch.cat(tuple(group)))
        if self._target.from_model:
            made = Batch(*source, references.tokens, references.lengths, references.present.float())
        else:
            made = Batch.of(source, self._target(references, torch.Generator().manual_seed(seed)))
        # references are as many as the batch has at most; candidates are always the same number, which keeps shapes few
        only_references = self._target.from_model or self._target.objective.name == "ml"
        shares, begin = [], 0
        for numbers in group:
            batch = Batch(*(part[begin : begin + len(numbers)] for part in made))
            copies = int(self._train.counts[numbers.numpy()].max()) if only_references else None
            shares.append(batch.trimmed(copies=copies).share(self._workers.rank, self._workers.size))
            begin += len(numbers)
        return shares if self._target.from_model else [self._ready(share) for share in shares]

    def _ready(self, batch: Batch) -> Batch:
        if self._workers.device.type != "cuda":
            return batch
        # recorded or not, so that dropout is the same: what it draws depends on shapes
        return (batch.rounded(self._training.batch_size) if self._workers.size == 1 else batch).pinned()

    def _drawn(self, batch: Batch, seed: int) -> Batch:
        """The batch, with candidates that the model says, where it is to say them."""
        if not self._target.from_model:
            return batch
        source, device = Sentences(batch.source, batch.source_lengths), self._workers.device
        references = Sentences(batch.tokens, batch.lengths)
        generator = torch.Generator(device).manual_seed(seed)
        self._model.eval()
        with torch.no_grad():
            memory = self._model.encode(*(part.to(device) for part in source))
            longest = int(references.lengths.max()) + 5
            drawn = sample(self._model, memory, size=self._target.settings.size, max_length=longest, generator=generator).to("cpu")
        self._model.train()
        return self._ready(Batch.of(source, self._target(references, torch.Generator().manual_seed(seed), drawn)))

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Mean loss over the epoch's examples, perplexity of the development part; the rate falls if that has risen."""
        loss = float(self._loss) / self.examples
        self._loss.zero_()
        with matrix_precision(self._training.precision):
            reached, rate = perplexity(self._model, self._dev), self._steps.learning_rate
        if reached > float(self._lowest):
            self._steps.learning_rate = max(rate * self._decay, min(rate, self._least_rate))
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
            self._best = {name: value.detach().clone() for name, value in self._model.named_parameters()}

    @torch.no_grad()
    def test(self) -> list[dict[str, float]]:
        """Final measures of the best model, which is the present one from here on."""
        load_parameters(self._model, self._best)
        self._model.eval()
        with matrix_precision(self._training.precision):
            return [self._judge.measures(self._model) | {"dev_perplexity": perplexity(self._model, self._dev)}]

    def state(self) -> dict[str, Tensor]:
        """Parameters, the optimizer's tensors, the rate, the loss so far and the lowest perplexity."""
        parameters = {f"model.{name}": value.detach() for name, value in self._model.named_parameters()}
        counters = {"loss": self._loss, "lowest_perplexity": self._lowest, "fingerprint": self._fingerprint()}
        return parameters | self._steps.state() | counters

    def _fingerprint(self) -> Tensor:
        """What tells the words and sentences that this run is trained on from others."""
        if self._known is not None:
            return self._known
        digest = hashlib.sha256()
        for part in (self._train.sources, self._train.references):
            digest.update(part.lengths.tobytes() + part.words.tobytes())
        for name, value in sorted(self._judge.notes().items()):
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
        self._loss, self._lowest = state["loss"].clone(), state["lowest_perplexity"].clone()

    def best(self) -> dict[str, Tensor]:
        """The best model's parameters, and what its file holds beside them."""
        return {f"model.{name}": value for name, value in self._best.items()} | self._judge.notes()

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take these for the best ones."""
        self._best = {name: value.to(self._workers.device) for name, value in below("model.", best).items()}


class _Stream(Iterator[tuple[Tensor, Batch]]):
    """Batches of one epoch from a step on, each with its example numbers, made ahead."""

    def __init__(self, learner: SequenceLearner, epoch: int, step: int) -> None:
        self.epoch, self.step = epoch, step
        seed, batch_size = learner._training.seed, learner._training.batch_size
        size = max(1, _TOGETHER // batch_size)  # batches of a group
        batches = learner._batches(epoch)
        groups = [batches[begin : begin + size] for begin in range(0, len(batches), size)]
        first, self._behind = divmod(step, size)  # of the first group, as many have been taken before

        def prepare(job: tuple[int, list[Tensor]], _: torch.Generator) -> list[tuple[Tensor, Batch]]:
            place, group = job
            made = learner._prepare(group, generator_for(seed, epoch, place, _CANDIDATES).initial_seed())
            return list(zip(group, made, strict=True))

        jobs = list(enumerate(groups))[first:]
        self._stream = CandidateStream(jobs, prepare, seed=0, workers=2, ahead=max(2, _AHEAD // size))
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


_CANDIDATES = 1 << 20  # a place of its own among the seeds of a step, beside those of processes
