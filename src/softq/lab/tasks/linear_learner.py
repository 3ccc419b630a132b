"""Taggers and parsers in `softq.lab.loop`: the estimator's own training, step by step."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from torch import Tensor

from softq.errors import RecipeError
from softq.lab.loop import Evaluation, NonFiniteLossError
from softq.lab.processes import Workers
from softq.lab.run import Curves
from softq.linear.saved_model import SavedEstimator
from softq.linear.training import Fit, NotFiniteError
from softq.metrics import Metric
from softq.metrics.counts import ExampleCounts

E = TypeVar("E", bound=SavedEstimator)
F = TypeVar("F", bound=Fit[Any])


class ScoredSplit(NamedTuple):
    """Counts ``[N, D]`` of the sentences of a split, and predictions for each of them, as JSON can hold them."""

    counts: Tensor
    outputs: list[Any]


class LinearLearner(Generic[E, F]):
    """A learner of one estimator.

    Subclasses bring the data, and say what their model is and how it is measured.

    Args:
        fit: the training of the estimator.
        sentences: how many it learns from.
        per: what measures of an epoch are divided by, by their names.

    """

    cells = 1
    estimator: ClassVar[type[Any]]

    def __init__(self, fit: F, sentences: int, per: Mapping[str, float], metric: Metric) -> None:
        self._fit, self._per, self._metric = fit, per, metric
        self.steps, self.examples = fit.steps, sentences
        self._best: E | None = None

    def make(self, recipe: Any, **others: Any) -> E:
        """The estimator with the keys of a recipe that are options of the same name, and others."""
        sections = (
            recipe.features,
            recipe.model,
            recipe.optimizer,
            recipe.objective,
            recipe.training,
        )
        keys = {name: value for section in sections for name, value in vars(section).items()}
        known = inspect.signature(self.estimator).parameters
        shared = {name: value for name, value in keys.items() if name in known}
        renamed = {
            "objective": recipe.objective.name,
            "max_iterations": recipe.optimizer.iterations,
            "num_memories": recipe.optimizer.memory,
            "random_state": recipe.training.seed,
        }
        return cast(E, self.estimator(**(shared | renamed | others)))

    def _model(self) -> E:
        """The fitted estimator as it is."""
        raise NotImplementedError

    def _evaluate_split(self, model: E, split: str) -> ScoredSplit | None:
        """A model on ``dev``, or on the training sentences where there is none, or on ``test`` if there is one."""
        raise NotImplementedError

    def _measures(self, model: E) -> dict[str, float]:
        """What else is known of the best model."""
        raise NotImplementedError

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch."""
        for step in range(first, last):
            try:
                self._step(epoch, step)
            except NotFiniteError as error:
                raise NonFiniteLossError(str(error), error.batch) from None

    def _step(self, epoch: int, step: int) -> None:
        self._fit.step(epoch, step)

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """What was measured in this epoch, per sentence or word."""
        return {name: [value] for name, value in self._scaled(self._fit.end_epoch()).items()}

    def _scaled(self, measured: Mapping[str, float]) -> dict[str, float]:
        return {name: value / self._per.get(name, 1.0) for name, value in measured.items()}

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """The metric on the development set."""
        scored = cast(ScoredSplit, self._evaluate_split(self._model(), "dev"))
        return [float(self._metric(scored.counts.sum(0)))]

    def keep_best(self, improved: Sequence[bool]) -> None:
        """Keep the current model."""
        self._best = self._model()

    def best(self) -> dict[str, Tensor]:
        """The best model, as its file holds it."""
        return (self._best or self._model()).tensors()

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take this for the best model."""
        self._best = self.estimator.from_tensors(best)

    def evaluate_best(self) -> Evaluation:
        """The best model on both splits."""
        model = self._best or self._model()
        found = {split: self._evaluate_split(model, split) for split in ("dev", "test")}
        splits = {split: scored for split, scored in found.items() if scored is not None}
        counts = {name: ExampleCounts.of(one.counts[None]) for name, one in splits.items()}
        outputs = splits.get("test", splits["dev"]).outputs
        return Evaluation(counts, [self._measures(model)], outputs, self._curves(model))

    def _curves(self, model: E) -> Curves | None:
        """Small tables for figures of the report."""
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Everything that training resumes from."""
        return self._fit.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        self._fit.load_state(state)


def refuse_processes(task: str, workers: Workers) -> None:
    """A task whose models are trained by threads has no use for several processes."""
    if workers.size > 1:
        raise RecipeError(
            f"{task} trains in one process with several threads, got {workers.size} processes;"
            " several models: softq sweep --jobs"
        )
