"""A learner of neural taggers and parsers: batches that are made once, Adam, a rate that falls to 0."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from softq.formats.file_checks import starting_with
from softq.formats.word_vectors import WordVectors, read_vectors, spellings
from softq.lab.loop import Evaluation, NonFiniteLossError, tell
from softq.lab.processes import Workers
from softq.lab.recipe import Training
from softq.lab.run import Curves
from softq.lab.tasks.linear_learner import ScoredSplit
from softq.lab.torch_learner import TorchLearner, generator_for
from softq.metrics import Metric
from softq.metrics.counts import ExampleCounts
from softq.neural.recorded_steps import RecordedSteps, matrix_precision
from softq.neural.saved_module import SavedModule

_PARAMETERS = "model."  # names of parameters in the file of a model begin so
_LARGEST_NORM = 5.0  # of a gradient, as in Ma and Hovy (2016)
_MOST_GRAPHS = 2000  # each of which takes memory of the GPU


class BatchLosses(Protocol):
    """The losses of batches, which stay the same in all epochs."""

    @property
    def model(self) -> SavedModule:
        """What is trained."""

    @property
    def sentences(self) -> Sequence[Tensor]:
        """Numbers of the sentences of each batch."""

    def __call__(self, batch: int) -> Tensor:
        """The summed loss of the sentences of a batch."""


class NeuralLearner(TorchLearner):
    """Trains a model on batches that are the same in every epoch, in another order.

    Their order and the dropout of a step follow from the seed, the epoch and the step; so do the
    learning rates, which fall linearly to 0 at the end of the last epoch, and may rise before. A
    GPU is waited for when `train` ends: after a loss that is not finite no parameter has changed.
    Subclasses score splits.

    Args:
        losses: of batches.
        training: how long, and the seed.
        optimizer: Adam or AdamW of the model's parameters, fused; its rates are the highest ones.
        warmup: part of training in which the rates rise to them.
        counts: by which the summed loss of each batch is divided; None: its sentences.
        graphs: on a GPU, record the step of each batch and replay it.
        eager: numbers of batches that are not recorded.
        entropy: of the targets of all sentences, which no model can lower.
        metric: that models are chosen by.
        workers: the device.

    """

    splits: Sequence[str]  # ``dev``, and ``test`` if there is one

    def __init__(
        self,
        losses: BatchLosses,
        training: Training,
        *,
        optimizer: torch.optim.Optimizer,
        warmup: float = 0.0,
        counts: Sequence[int] | None = None,
        graphs: bool = True,
        eager: Container[int] = (),
        entropy: float,
        metric: Metric,
        workers: Workers,
    ) -> None:
        model, batches = losses.model.to(workers.device), len(losses.sentences)
        self._descent = RecordedSteps(
            optimizer,
            workers.device,
            clip=_LARGEST_NORM,
            graphs=graphs and batches <= _MOST_GRAPHS,
        )
        self._highest = self._descent.rates
        super().__init__(
            model,
            optimizer,
            examples=batches,
            batch_size=1,
            order=lambda epoch: torch.randperm(
                batches, generator=generator_for(training.seed, epoch)
            ),
            seed=training.seed,
            evaluate=lambda: float(metric(self._evaluate_split("dev").counts.sum(0))),
            evaluate_best=self._scores,
            workers=workers,
        )
        self._losses, self._warmup = losses, warmup
        self._counts = list(map(len, losses.sentences)) if counts is None else counts
        self._eager = eager
        self._total_steps = training.epochs * batches
        self._entropy = entropy
        self._ahead = workers.device.type != "cpu"  # steps are taken before losses are looked at
        self._unseen: list[tuple[int, int, Tensor]] = []  # steps whose losses were not looked at
        self.examples = sum(map(len, losses.sentences))

    def _evaluate_split(self, split: str) -> ScoredSplit:
        """The model on a split."""
        raise NotImplementedError

    def _measures(self) -> dict[str, float]:
        """What else is known of the best model."""
        parameters = sum(parameter.numel() for parameter in self._module.parameters())
        return {"parameters": float(parameters)}

    def _curves(self) -> Curves | None:
        """Small tables for figures of the report."""
        raise NotImplementedError

    def _scores(self) -> Evaluation:
        splits = {split: self._evaluate_split(split) for split in self.splits}
        counts = {split: ExampleCounts.of(one.counts[None]) for split, one in splits.items()}
        outputs = splits.get("test", splits["dev"]).outputs
        return Evaluation(counts, [self._measures()], outputs, self._curves())

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch."""
        with _repeatable(self._workers.device):
            super().train(epoch, first, last, active)
        self._look(epoch)

    def _step(self, batch: Tensor, epoch: int, step: int) -> None:
        number = int(batch)
        factor = self._factor_at((epoch * self.steps + step) / self._total_steps)
        self._descent.rates = [rate * factor for rate in self._highest]
        seed = generator_for(self._seed, epoch, step, self._workers.rank).initial_seed()
        found = self._descent.take(
            partial(self._sweep, number), seed, number, record=number not in self._eager
        )
        self._unseen.append((step, number, found))
        if not self._ahead:
            self._look(epoch)

    def _sweep(self, number: int) -> Tensor:
        """Forward and back on one batch; the sum of its losses."""
        loss = self._losses(number)
        self._workers.backward(loss / self._counts[number])
        return loss.detach()

    def _look(self, epoch: int) -> None:
        """Wait for the losses of the last steps, and add them up."""
        unseen, self._unseen = self._unseen, []
        found = torch.stack([pair for *_, pair in unseen]).tolist() if unseen else []
        for (step, number, _), (total, norm) in zip(unseen, found, strict=True):
            sentences = self._losses.sentences[number]
            if not math.isfinite(total + norm):
                raise NonFiniteLossError(
                    f"in epoch {epoch + 1}, step {step} the loss is {total} and its gradient's norm"
                    f" {norm}",
                    {"sentences": sentences},
                )
            self._loss += torch.tensor([total, len(sentences)], dtype=torch.float64)

    def _factor_at(self, done: float) -> float:
        """What learning rates are multiplied by when this part of training is done."""
        if done < self._warmup:  # not 0 at first, where nothing would be learnt
            return max(done, 0.5 / self._total_steps) / self._warmup
        return (1 - done) / (1 - self._warmup)

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Cross-entropy and KL to the target per sentence, both with dropout and before each step."""
        (loss,) = super().end_epoch(active)["loss"]
        return {"loss": [loss], "kl": [loss - self._entropy / self.examples]}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        super().load_state(state)
        self._descent.optimizer_was_loaded()

    def best(self) -> dict[str, Tensor]:
        """The best model, as its file holds it."""
        named = {f"{_PARAMETERS}{name}": value for name, value in self._best.items()}
        return named | {"about": self._losses.model.notes()}

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take this for the best model."""
        super().load_best(starting_with(_PARAMETERS, best))


@contextmanager
def _repeatable(device: torch.device) -> Iterator[None]:
    """On a GPU matrix products in tf32, and the same bits whenever a step is repeated.

    But for encoders of Transformers, whose attention may sum in any order.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        with matrix_precision("tf32"):
            yield
    finally:
        torch.backends.cudnn.deterministic = before


def known_vectors(path: str, splits: Sequence[Sequence[Sequence[str]]]) -> WordVectors | None:
    """The vectors of the words of splits; None where no file is named."""
    if not path:
        return None
    words = {word for split in splits for sentence in split for word in sentence}
    found = read_vectors(Path(path), set(spellings(words)))
    known = {*found.words}
    covered = sum(word in known or word.lower() in known for word in words)
    tell(f"{path}: vectors of {covered:,} of {len(words):,} words")
    return found
