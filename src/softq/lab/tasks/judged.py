"""What learners of one model do alike, whatever the model: judge it by counts of sentences, keep the best, give it away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from softq.errors import RecipeError
from softq.lab.loop import Evaluation
from softq.lab.processes import Workers
from softq.metrics.counts import ExampleCounts


class Kept(Protocol):
    """A model that fits into a file."""

    def tensors(self, notes: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
        """All of it, and notes beside it."""
        ...


M = TypeVar("M", bound=Kept)
M_contra = TypeVar("M_contra", bound=Kept, contravariant=True)


class Scored(NamedTuple):
    """Counts ``[N, D]`` of the sentences of a split, and what was predicted for each of them, as JSON can hold it."""

    counts: Tensor
    outputs: list[Any]


class Judge(Protocol[M_contra]):
    """A recipe with its data, by which models are judged."""

    def notes(self) -> dict[str, Any]:
        """What a model's file remembers beside the model."""
        ...

    def dev(self, model: M_contra, /) -> Scored:
        """The model on the development split."""
        ...

    def test(self, model: M_contra, /) -> Scored | None:
        """The model on the test set; None where it is the development split again."""
        ...


class Judged(Generic[M]):
    """The half of a learner that does not depend on how its model is trained.

    Subclasses say what they measure by, and what their model is at the moment (`_model`) and in its file (`_read`).
    """

    cells = 1
    metrics: ClassVar[Mapping[str, Callable[[Tensor], Tensor]]]  # functions of sums of counts
    metric: ClassVar[str]  # of them, the one that models are chosen by

    def __init__(self, judge: Judge[M]) -> None:
        self._judge = judge
        self._best: M | None = None

    def _model(self) -> M:
        raise NotImplementedError

    def _read(self, tensors: Mapping[str, Tensor]) -> M:
        raise NotImplementedError

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """The metric on the development part."""
        return [float(self.metrics[self.metric](self._judge.dev(self._model()).counts.sum(0)))]

    def keep_best(self, improved: Sequence[bool]) -> None:
        """The model as it is now."""
        self._best = self._model()

    def best(self) -> dict[str, Tensor]:
        """The best model, as its file holds it."""
        return self._kept().tensors(self._judge.notes())

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take this for the best one."""
        self._best = self._read(best)

    def _kept(self) -> M:
        return self._best or self._model()

    def evaluate_best(self) -> Evaluation:
        """The best model on both splits."""
        return self._judged(self._judge.dev(self._kept()), self._judge.test(self._kept()))

    def _judged(self, dev: Scored, test: Scored | None) -> Evaluation:
        counts = {"dev": dev} if test is None else {"dev": dev, "test": test}
        outputs = (test or dev).outputs
        return Evaluation(
            {split: ExampleCounts.of(one.counts[None]) for split, one in counts.items()},
            [self._measures()],
            outputs,
        )

    def _measures(self) -> dict[str, float]:
        """What else is known of the best model."""
        return {}


def refuse_processes(task: str, workers: Workers) -> None:
    """A task whose models are trained by threads has no use for several processes."""
    if workers.size > 1:
        raise RecipeError(
            f"{task} trains in one process with several threads, got {workers.size} processes; several models: softq sweep --jobs"
        )
