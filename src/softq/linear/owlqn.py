"""OWL-QN.

L-BFGS for a smooth convex objective with a penalty on absolute values (Andrew and Gao 2007).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from softq.linear.lbfgs import LBFGS, Evaluate

_SUFFICIENT_DECREASE, _FLATTER = 1e-4, 0.9
_MOST_TRIALS = 40  # of one line search, each half as long as the one before
_ROUNDING = 1e-7  # relative noise of a value: below it two values count as equal


class OWLQN(LBFGS):
    """One minimisation of f(x) + c1 ‖x‖₁: `iterate` until its status is no longer "going".

    ``value`` is f + c1 ‖x‖₁, ``gradient`` its pseudo-gradient: of all subgradients the one nearest
    to 0, whose negative is the direction of steepest descent, and which is 0 at the minimum and
    nowhere else. The memory is that of `LBFGS` and knows f alone, for the penalty has no curvature.
    A step keeps to the orthant of its start: weights that would change their sign become 0,
    exactly.

    >>> def bowl(x, gradient):
    ...     gradient.copy_(2 * (x - torch.tensor([3.0, 0.1])))
    ...     return float(((x - torch.tensor([3.0, 0.1])) ** 2).sum())
    >>> search = OWLQN(torch.zeros(2), bowl, c1=1.0, tolerance=1e-6)
    >>> while search.status == "going":
    ...     search.iterate()
    >>> search.status, search.point.round(decimals=4)
    ('converged', tensor([2.5000, 0.0000]))
    """

    def __init__(
        self,
        point: Tensor,
        evaluate: Evaluate,
        *,
        c1: float,
        tolerance: float,
        memory: int = 8,
    ) -> None:
        """Begin at ``point [N]`` (it is copied).

        Args:
            point: where to begin.
            evaluate: f.
            c1: penalty, positive.
            tolerance: converged is a pseudo-gradient whose norm is at most this part of the first
                one's.
            memory: steps to remember.

        """
        self._smooth = torch.empty_like(point)  # the gradient of f at the point evaluated last

        def penalised(x: Tensor, gradient: Tensor) -> float:
            value = evaluate(x, self._smooth)
            torch.where(
                x == 0,
                torch.nn.functional.softshrink(self._smooth, c1),
                self._smooth + c1 * x.sign(),
                out=gradient,
            )
            return value + c1 * float(torch.linalg.vector_norm(x, 1, dtype=torch.float64))

        super().__init__(point, penalised, tolerance=tolerance, memory=memory)

    def iterate(self) -> None:
        """One step: choose a direction and an orthant, search along it, remember.

        Of a search that is over, none.
        """
        if self.status != "going":
            return
        direction = self._direction()
        direction.masked_fill_(
            direction * self.gradient >= 0, 0.0
        )  # downhill in every coordinate, or not at all
        if self._slope(direction) >= 0:
            self._kept = 0
            direction = -self.gradient
        before = self.point, self.gradient, self.value, self._smooth
        self.point, self.gradient, self._smooth = (torch.empty_like(self.point) for _ in range(3))
        moved = self._descend(before[0], before[1], direction)
        if moved is None:
            self.point, self.gradient, self.value, self._smooth = before
            if not self._kept:
                self.status = "stuck"
            self._kept = 0  # try once more without memory
            return
        self.norm = float(torch.linalg.vector_norm(self.gradient, dtype=torch.float64))
        self.iterations += 1
        self._judge()
        if self.status == "going":
            self._remember(moved, before[3].neg_().add_(self._smooth))

    def _descend(self, origin: Tensor, gradient: Tensor, direction: Tensor) -> Tensor | None:
        """A step that makes the value smaller by enough, with point, gradient and value set to its end; None if none is found."""
        start = self.value
        orthant = torch.where(origin == 0, -gradient.sign(), origin.sign())
        step = 1.0 if self._kept else min(1.0, 1.0 / self.norm)
        for _ in range(_MOST_TRIALS):
            torch.add(origin, direction, alpha=step, out=self.point)
            self.point.masked_fill_(self.point * orthant <= 0, 0.0)
            moved = self.point - origin
            promised = float(torch.dot(gradient, moved))
            if promised >= 0:  # too short to move at all
                return None
            self.value = self._evaluate(self.point, self.gradient)
            self.evaluations += 1
            # Close to the minimum values differ by less than their rounding, and slopes say more.
            flat = (
                abs(self.value - start) <= _ROUNDING * abs(start)
                and abs(self._slope(moved)) <= -_FLATTER * promised
            )
            if flat or self.value <= start + _SUFFICIENT_DECREASE * promised:
                return moved
            step /= 2
        return None

    def state(self) -> dict[str, Tensor]:
        """Everything `iterate` continues from."""
        return super().state() | {"smooth": self._smooth}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state."""
        super().load_state(state)
        self._smooth = state["smooth"].clone()
