"""What training taggers and parsers has in common: searches over all data, and the loop of ``fit``.

A model is trained by a `Fit`: steps in epochs, after any of which its state can be saved, and from
which it is resumed to the same bits. ``fit`` of the estimators drives one with `run_fit`; the
training loop of the command line drives the same one, with checkpoints between its steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from softq.errors import ConvergenceWarning, ScoreError
from softq.linear.lbfgs import LBFGS, OWLQN, Evaluate

Array = np.ndarray[Any, Any]
Model_co = TypeVar("Model_co", covariant=True)
Batches = Callable[[int], Sequence[Array]]
"""The batches of an epoch, each the numbers of its sentences."""

# A search that can go no further from this part of the first gradient is at the minimum.
_ROUNDED_AWAY = 1e-3
_NOISE = 1e-7  # relative, of a loss: what is left of it below this is nothing
_EXACT = 1e-9  # part of the first gradient: hardly ever reached
# What is kept of a search that is over; its memory is of no use any more.
_FOUND = ("point", "gradient", "numbers", "counts", "losses")


class NotFiniteError(FloatingPointError):
    """A loss became NaN or infinite; carries the batch it happened on."""

    def __init__(self, message: str, batch: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.batch = {name: torch.as_tensor(array) for name, array in batch.items()}


class Stopping(NamedTuple):
    """When a search is over.

    With ``tolerance``, when the gradient is small beside the first one. Without it by CRFsuite's
    rules, ``epsilon`` and ``delta``, except that progress is measured by the loss less the target's
    entropy, which nothing can lower: with ML and one annotator it is 0, and the rules are
    CRFsuite's; with RAML at a large τ it is nearly all of the loss, and progress measured by the
    whole would end the search far from the minimum.

    Attributes:
        max_iterations: it is over after so many.
        tolerance: it has converged when the gradient's norm is at most this part of the first one;
            None: by the other rules.
        epsilon: it has converged when the gradient's norm is at most this part of max(1, ‖w‖),
        delta: or when ``period`` iterations have lowered the loss less the entropy by at most this
            part of it, or when float32 allows no further step.
        period: of ``delta``.

    """

    max_iterations: int
    tolerance: float | None
    epsilon: float = 0.0
    delta: float = 0.0
    period: int = 10


class Search:
    """A minimisation over all data: L-BFGS, or OWL-QN with a penalty ``c1``, from weights of 0.

    Attributes:
        losses: at the start and after each iteration.
        converged: whether it has met its rule.

    """

    def __init__(
        self,
        size: int,
        evaluate: Evaluate,
        stopping: Stopping,
        *,
        memory: int = 8,
        c1: float = 0.0,
        entropy: float = 0.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._stopping, self._entropy, self._tell = stopping, entropy, tell
        tolerance = _EXACT if stopping.tolerance is None else stopping.tolerance
        start = torch.zeros(size)
        try:
            self._search = (
                OWLQN(start, evaluate, c1=c1, tolerance=tolerance, memory=memory)
                if c1
                else LBFGS(start, evaluate, tolerance=tolerance, memory=memory)
            )
        except FloatingPointError as error:
            raise NotFiniteError(f"iteration 0: {error}", {}) from None
        self.losses = [self._search.value]
        self.converged = self._has_converged()

    @property
    def point(self) -> Tensor:
        """The parameters found so far."""
        return self._search.point

    @property
    def iterations(self) -> int:
        """Number of iterations so far."""
        return self._search.iterations

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        most = self._search.iterations >= self._stopping.max_iterations
        return self.converged or self._search.status != "going" or most

    def iterate(self) -> None:
        """One iteration; of a search that is over, none."""
        if self.over:
            return
        try:
            self._search.iterate()
        except FloatingPointError as error:
            place = f"iteration {self.iterations}: {error}"
            raise NotFiniteError(place, {"point": self.point}) from None
        if self.iterations == len(self.losses):  # else it starts again without memory
            self.losses.append(self._search.value)
            if self._tell is not None:
                self._tell(
                    f"iteration {self.iterations}: loss {self._search.value:.6g}, "
                    f"norm of the gradient {self._search.norm:.2g}"
                )
        self.converged = self._has_converged()

    def _has_converged(self) -> bool:
        rule, search = self._stopping, self._search
        if rule.tolerance is not None:
            return search.status == "converged"
        small = rule.epsilon * max(1.0, float(torch.linalg.vector_norm(search.point)))
        flat = len(self.losses) > rule.period and self._progress() <= rule.delta
        exhausted = search.status != "going" and search.relative_norm <= _ROUNDED_AWAY
        return search.norm <= small or flat or exhausted

    def _progress(self) -> float:
        """By which part of the loss less the target's entropy the last iterations lowered it."""
        before = self.losses[max(len(self.losses) - 1 - self._stopping.period, 0)]
        now = self.losses[-1]
        left = now - self._entropy
        return (before - now) / left if left > _NOISE * abs(now) else 0.0

    def warn(self, where: str = "") -> None:
        """A `ConvergenceWarning` of a search that is over and has not converged."""
        if self.converged:
            return
        rule, search = self._stopping, self._search
        if rule.tolerance is not None:
            reached = (
                f"the gradient's norm is {search.relative_norm:.1e} of the first one, and "
                f"{rule.tolerance:.0e} was wanted"
            )
            advice = "allow more iterations, or take a larger c2"
        else:
            what = "the loss less the target's entropy" if self._entropy else "the loss"
            reached = (
                f"the last {min(rule.period, self.iterations)} lowered {what} by "
                f"{self._progress():.1e} of it, and delta={rule.delta:.0e} was wanted"
            )
            advice = "raise max_iterations, or the penalties"
        problem = f"before it converged: {reached}; {advice}"
        if search.status == "stuck":
            problem = f"where rounding allows no step that makes the loss smaller: {reached}"
            if rule.tolerance is None:
                problem += "; rescale features with large values"
        warnings.warn(
            f"{where}training stopped after {self.iterations} iterations, {problem}",
            ConvergenceWarning,
            stacklevel=3,
        )

    def measures(self) -> dict[str, float]:
        """How far it got."""
        return {
            "penalised_loss": self._search.value,
            "gradient_norm": self._search.relative_norm,
            "iterations": float(self.iterations),
            "converged": float(self.converged),
        }

    def state(self) -> dict[str, Tensor]:
        """Everything that `iterate` resumes from; of a search that is over, only what it found."""
        state = self._search.state() | {"losses": torch.tensor(self.losses, dtype=torch.float64)}
        return {
            f"search.{name}": tensor
            for name, tensor in state.items()
            if not self.over or name in _FOUND
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        own = self._search.state()  # of a search that is over, the rest is as good as any
        self._search.load_state({name: state.get(f"search.{name}", own[name]) for name in own})
        self.losses = state["search.losses"].tolist()
        self.converged = self._has_converged()


class Fit(Protocol[Model_co]):
    """Training of one model, in steps that can be interrupted."""

    steps: int  # of an epoch

    @property
    def over(self) -> bool:
        """Whether further steps change nothing."""

    def step(self, epoch: int, step: int) -> None:
        """Take a step of an epoch; raise `NotFiniteError` rather than continue from one."""

    def end_epoch(self) -> dict[str, float]:
        """What was measured in the epoch that ends here, such as ``loss``."""

    def model(self) -> Model_co:
        """The model as it is."""

    def state(self) -> dict[str, Tensor]:
        """Everything that training resumes from."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""


def epochs_of(fit: Fit[Any], count: int) -> Iterator[tuple[int, dict[str, float]]]:
    """Train epoch by epoch: its number, from 1, and what was measured in it."""
    for epoch in range(count):
        for step in range(fit.steps):
            if fit.over:
                break
            fit.step(epoch, step)
        yield epoch + 1, fit.end_epoch()


@contextmanager
def diverging(advice: str) -> Iterator[None]:
    """Turn what is not finite into an error that says what to do about it."""
    try:
        yield
    except FloatingPointError as error:
        raise ScoreError(f"training diverged: {error}; {advice}") from None
