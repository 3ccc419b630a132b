"""What learners of one model do alike, whatever the model: judge it by counts of sentences, keep the best, give it away."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor

from softq.errors import RecipeError
from softq.train import Workers


class Kept(Protocol):
    """A model that fits into a file."""

    def tensors(self, notes: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
        """All of it, and notes beside it."""
        ...


M = TypeVar("M", bound=Kept)
M_contra = TypeVar("M_contra", bound=Kept, contravariant=True)


class Judge(Protocol[M_contra]):
    """A recipe with its data, by which models are judged."""

    def notes(self) -> dict[str, Any]:
        """What a model's file remembers beside the model."""
        ...

    def dev(self, model: M_contra, /) -> Tensor:
        """Counts for each development sentence ``[N, D]``."""
        ...

    def test(self, model: M_contra, /) -> Tensor:
        """Counts for each test sentence ``[N, D]``."""
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
        return [float(self.metrics[self.metric](self._judge.dev(self._model()).sum(0)))]

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

    def _final(self) -> dict[str, float]:
        """Every metric of the best model on both parts."""
        model = self._kept()
        parts = {"dev": self._judge.dev(model).sum(0), "test": self._judge.test(model).sum(0)}
        measures = {f"{part}_{name}": float(of(sums)) for part, sums in parts.items() for name, of in self.metrics.items()}
        return {"test": measures[f"test_{self.metric}"], **measures}


def refuse_processes(task: str, workers: Workers) -> None:
    """A task whose models are trained by threads has no use for several processes."""
    if workers.size > 1:
        raise RecipeError(
            f"{task} trains in one process with several threads, got {workers.size} processes; several models: softq sweep --jobs"
        )
