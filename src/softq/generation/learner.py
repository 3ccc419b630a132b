"""A learner for models of sentences: candidates made ahead, steps on them, a rate that falls, the best model kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from softq.decode import sample
from softq.generation.candidates import TargetMaker
from softq.generation.examples import Examples
from softq.generation.recipe import Candidates, Optimizer, SequenceTraining
from softq.generation.steps import Batch, Steps, matrix_precision
from softq.models.sequence import SequenceModel
from softq.recipe import Objective
from softq.samplers import CandidateStream
from softq.sentences import Sentences
from softq.train import NonFiniteLossError, Workers
from softq.train.torch_learner import below, generator_for

_DEV_WORDS = 1 << 14  # of a batch whose perplexity is taken
_AHEAD = 8  # batches made before they are needed


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

    Batches, candidates and dropout follow from the seed, the epoch and the step alone, so there is nothing of them to save. Candidates of the
    next batches are made and scored in threads while this one is trained on; those that the model says itself are drawn when their turn
    comes. Each process takes its share of every batch.

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
        self._training, self._decay = training, optimizer.decay
        self._target = TargetMaker(objective, candidates, model.vocab, frequencies)
        self._steps = Steps(model, optimizer, workers, precision=training.precision, graphs=training.graphs)
        self.examples = len(train)
        self.steps = math.ceil(len(train) / training.batch_size)
        self._loss = torch.zeros((), dtype=torch.float64)  # sum over the epoch so far
        self._lowest = torch.tensor(math.inf, dtype=torch.float64)  # perplexity
        self._best: dict[str, Tensor] = {}
        self._stream: _Stream | None = None

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
                    losses.append(self._steps(self._drawn(batch, numbers, seed), len(numbers), seed))
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
            raise NonFiniteLossError(f"the loss of epoch {epoch + 1}, step {step} is {float(losses[bad[0]])}", {"examples": batch})
        self._loss += losses.sum()

    def _batches(self, epoch: int) -> list[Tensor]:
        return self._train.batches(self._training.batch_size, self._training.seed, epoch)

    def _prepare(self, numbers: Tensor, seed: int) -> Batch:
        """What a step needs of these examples, this process's share of it; the references alone where the model draws candidates."""
        source, references = self._train.take(numbers)
        if self._target.from_model:
            weights = references.present.float()
            batch = Batch(*source, references.tokens, references.lengths, weights)
            return batch.rows(self._workers.rank, self._workers.size)
        batch = Batch.of(source, self._target(references, torch.Generator().manual_seed(seed)))
        return self._ready(batch.rows(self._workers.rank, self._workers.size))

    def _ready(self, batch: Batch) -> Batch:
        if self._workers.device.type != "cuda":
            return batch
        # recorded or not, so that dropout is the same: what it draws depends on shapes
        return (batch.rounded(self._training.batch_size) if self._workers.size == 1 else batch).pinned()

    def _drawn(self, batch: Batch, numbers: Tensor, seed: int) -> Batch:
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
        reached, rate = self.perplexity(self._dev), self._steps.learning_rate
        if reached > float(self._lowest):
            self._steps.learning_rate = rate * self._decay
        self._lowest = torch.minimum(self._lowest, torch.tensor(reached, dtype=torch.float64))
        return {"loss": [loss], "dev_perplexity": [reached], "learning_rate": [rate]}

    @torch.no_grad()
    def perplexity(self, examples: Examples) -> float:
        """exp of the mean over words, ends of sentences included, of - log P under the model as it is."""
        self._model.eval()
        device, total = self._workers.device, 0.0
        order = torch.from_numpy(examples.sources.lengths).argsort(stable=True)
        width = int(examples.references.lengths.max(initial=0)) + 1
        with matrix_precision(self._training.precision):
            for numbers in order.split(max(1, _DEV_WORDS // (width * int(examples.counts.max(initial=1))))):
                source, references = (Sentences(*(part.to(device) for part in sentences)) for sentences in examples.take(numbers))
                total += float(self._model.log_prob(source, references).double().sum())
        return math.exp(min(-total / examples.words, 700.0))

    @torch.no_grad()
    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """The task's development score."""
        self._model.eval()
        with matrix_precision(self._training.precision):
            return [self._judge.score(self._model)]

    def keep_best(self, improved: Sequence[bool]) -> None:
        """Remember the parameters."""
        if improved[0]:
            self._best = {name: value.detach().clone() for name, value in self._model.state_dict().items()}

    @torch.no_grad()
    def test(self) -> list[dict[str, float]]:
        """Final measures of the best model, which is the present one from here on."""
        self._model.load_state_dict(self._best)
        self._model.eval()
        with matrix_precision(self._training.precision):
            return [self._judge.measures(self._model) | {"dev_perplexity": self.perplexity(self._dev)}]

    def state(self) -> dict[str, Tensor]:
        """Parameters, the optimizer's tensors, the rate, the loss so far and the lowest perplexity."""
        parameters = {f"model.{name}": value for name, value in self._model.state_dict().items()}
        return parameters | self._steps.state() | {"loss": self._loss, "lowest_perplexity": self._lowest}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self._model.load_state_dict(below("model.", state))
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

    def __init__(self, learner: Any, epoch: int, step: int) -> None:
        self.epoch, self.step = epoch, step
        self._numbers = learner._batches(epoch)[step:]
        seeds = iter(range(step, step + len(self._numbers)))

        def prepare(job: tuple[int, Tensor], generator: torch.Generator) -> tuple[Tensor, Batch]:
            place, numbers = job
            return numbers, learner._prepare(numbers, generator_for(learner._training.seed, epoch, place, _CANDIDATES).initial_seed())

        self._stream = CandidateStream(zip(seeds, self._numbers, strict=True), prepare, seed=0, workers=2, ahead=_AHEAD)

    def __next__(self) -> tuple[Tensor, Batch]:
        made = next(self._stream)
        self.step += 1
        return made

    def close(self) -> None:
        self._stream.close()


_CANDIDATES = 1 << 20  # a place of its own among the seeds of a step, beside those of processes
