"""How `CRFTagger` trains: over all sentences by L-BFGS or OWL-QN, or over batches of them by AdaGrad."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from softq.errors import ScoreError
from softq.linear.features import FeatureMatrix
from softq.linear.lbfgs import LBFGS
from softq.linear.owlqn import OWLQN
from softq.linear.tagging import AdaGrad, CRFObjective, CRFSettings, Layout, References

Array = np.ndarray[Any, Any]

_ROUNDED_AWAY = (
    1e-3  # part of the first gradient: a search that can go no further from there is at the minimum
)
_NOISE = 1e-7  # relative, of a loss: what is left of it below this is nothing
_EXACT = 1e-9  # part of the first gradient: the search's own rule, which hardly ever ends one


class Stopping(NamedTuple):
    """When a search is over: CRFsuite's rules, but progress is part of the loss less the target's entropy, which nothing can lower.

    With ML and one annotator that entropy is 0, and the rules are CRFsuite's. With RAML at a large τ it is nearly all of the loss, and
    progress measured by the whole would end the search far from the minimum.

    Attributes:
        max_iterations: after so many.
        epsilon: converged is a gradient whose norm is at most this part of max(1, norm of the weights).
        delta: so are ``period`` iterations that lowered the loss by at most this part of what of it is above ``entropy``.
        period: of ``delta``.
        entropy: of the target.

    """

    max_iterations: int
    epsilon: float
    delta: float
    period: int
    entropy: float = 0.0

    def converged(self, search: LBFGS, losses: list[float]) -> bool:
        """Whether one of the two rules is met after these losses, or float32 allows no further step from a gradient this small."""
        small = self.epsilon * max(1.0, float(torch.linalg.vector_norm(search.point)))
        flat = len(losses) > self.period and self._progress(losses) <= self.delta
        exhausted = search.status != "going" and search.relative_norm <= _ROUNDED_AWAY
        return search.norm <= small or flat or exhausted

    def _progress(self, losses: list[float]) -> float:
        """What the last iterations brought, as part of the loss less the target's entropy."""
        before, now = losses[max(len(losses) - 1 - self.period, 0)], losses[-1]
        left = now - self.entropy
        return (before - now) / left if left > _NOISE * abs(now) else 0.0

    def shortfall(self, search: LBFGS, losses: list[float]) -> str:
        """What to tell of a search that is over but has not converged."""
        stopped = f"training stopped after {search.iterations} iterations"
        if search.status == "stuck":
            return f"{stopped}, where no step makes the loss smaller: rescale features with large values"
        what = "the loss less the target's entropy" if self.entropy else "the loss"
        last = f"the last {min(self.period, search.iterations)} lowered {what} by {self._progress(losses):.1e} of it"
        return f"{stopped}, before it converged: {last}, and delta={self.delta:.0e} was wanted; raise max_iterations, or the penalties"


class Schedule(NamedTuple):
    """Options of AdaGrad."""

    learning_rate: float
    batch_size: int
    max_epochs: int


class Trained(NamedTuple):
    """Weights as `softq.linear.tagging.Tagger` has them, and how they were found.

    Attributes:
        weights: of features and labels.
        transitions: of neighbouring labels.
        losses: the loss at the start and after each iteration, or of each epoch.
        kl: KL(target ‖ model), summed over sentences.
        converged: None where nothing is tested.
        problem: what to warn of.

    """

    weights: Array
    transitions: Array
    losses: list[float]
    kl: float
    converged: bool | None
    problem: str | None


def by_search(
    settings: CRFSettings,
    matrix: FeatureMatrix,
    references: References,
    *,
    c1: float,
    memory: int,
    stopping: Stopping,
    verbose: bool,
) -> Trained:
    """L-BFGS, or with ``c1`` OWL-QN, from weights of 0."""
    objective = settings.whole(matrix, references)
    stopping = stopping._replace(entropy=objective.target.entropy)
    start = torch.zeros(objective.layout.size)
    try:
        search = (
            OWLQN(start, objective, c1=c1, tolerance=_EXACT, memory=memory)
            if c1
            else LBFGS(start, objective, tolerance=_EXACT, memory=memory)
        )
        losses = [search.value]
        converged = stopping.converged(search, losses)
        while (
            not converged
            and search.status == "going"
            and search.iterations < stopping.max_iterations
        ):
            search.iterate()
            if search.iterations == len(losses):  # else it begins again without memory
                losses.append(search.value)
                _tell(
                    verbose,
                    f"iteration {search.iterations}: loss {search.value:.6g}, norm of the gradient {search.norm:.2g}",
                )
            converged = stopping.converged(search, losses)
        objective(search.point, torch.empty_like(search.point))
    except FloatingPointError as error:
        raise ScoreError(
            f"training diverged: {error}; rescale features with large values, or raise c2 ({settings.c2:g})"
        ) from None
    problem = None if converged else stopping.shortfall(search, losses)
    return Trained(*objective.layout.unpack(search.point), losses, objective.kl, converged, problem)


def by_batches(
    settings: CRFSettings,
    matrix: FeatureMatrix,
    references: References,
    *,
    schedule: Schedule,
    random: np.random.RandomState | np.random.Generator,
    verbose: bool,
) -> Trained:
    """AdaGrad, from weights of 0."""
    sentences = len(matrix.lengths)
    count = -(-sentences // schedule.batch_size)
    batches = np.array_split(random.permutation(sentences), count)
    descent = AdaGrad(settings, matrix.size, schedule.learning_rate)
    for batch in batches:
        descent.count(matrix.take(batch))
    losses = []
    for epoch in range(1, schedule.max_epochs + 1):
        losses.append(
            sum(
                descent.step(matrix.take(batches[i]), references.take(batches[i]))
                for i in random.permutation(count)
            )
        )
        if not np.isfinite(losses[-1]):
            raise ScoreError(
                f"training diverged in epoch {epoch}: the loss is {losses[-1]}; lower learning_rate ({schedule.learning_rate:g})"
            )
        _tell(verbose, f"epoch {epoch}: cross-entropy {losses[-1]:.6g}")
    weights, transitions = descent.unpack()
    layout = Layout(matrix.size, len(settings.labels), None, None)
    objective = CRFObjective(
        matrix, settings.target(references), layout, c2=0.0, forbidden=settings.forbidden
    )
    parameters = torch.empty(layout.size)
    layout.pack(weights, transitions, parameters)
    objective(parameters, torch.empty_like(parameters))
    return Trained(weights, transitions, losses, objective.kl, None, None)


def _tell(verbose: bool, text: str) -> None:
    if verbose:
        print(text, flush=True)  # noqa: T201 -- what verbose asks for
