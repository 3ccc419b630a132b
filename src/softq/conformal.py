"""Sets of classes, labels or heads that hold the right one as often as asked for.

Split conformal prediction: probabilities of any model, and data with right outputs that it was not
trained on, give a threshold. The guarantee rests on one assumption: that the new sentence and those
of the calibration data are exchangeable, as they are when all are sampled alike. It does not need a
good model; a better one has smaller sets.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from softq.calibration import UNKNOWN, Choices, Floats
from softq.errors import DataError, EstimatorError, ShapeError
from softq.metrics import Interval
from softq.numerics import wilson_interval

Score = Literal["lac", "adaptive"]
Unit = Literal["token", "sentence"]


def conformal_rank(count: int, alpha: float, new: int = 1) -> int:
    """Which of ``count`` scores in ascending order, from 1, is the threshold of new ones.

    ⌈(count + new) (1 - alpha)⌉: the usual finite-sample quantile where one new choice (``new``) is
    to be made. It is more than ``count`` where there are too few scores for any threshold.

    >>> conformal_rank(9, 0.1), conformal_rank(8, 0.1)
    (9, 9)
    """
    level = 1 - Fraction(alpha).limit_denominator(1_000_000)  # 0.9 is not 9/10 in binary
    return math.ceil(level * (count + new))


class ConformalSets(NamedTuple):
    """A rule that turns probabilities into sets of outputs with a guaranteed coverage.

    Attributes:
        scores: Scores of the calibration data in ascending order: of each choice, or with
            ``unit="sentence"`` the largest of each sentence.
        alpha: Largest share of misses.
        score: ``"lac"``: 1 - p of an output; sets are the smallest on average (least ambiguous
            classifier), and one may be empty. ``"adaptive"``: the mass of all outputs that are more
            probable; sets grow with the doubt of an input and hold the most probable output always.
        unit: What is guaranteed. ``"token"``: of the choices in a new sentence, or of one class,
            the expected number that is covered is at least 1 - alpha of the expected number of
            choices. ``"sentence"``: all choices of a new sentence are covered at once with
            probability at least 1 - alpha, so the product of its sets holds the whole sequence.

    Tokens of a sentence depend on each other, so the n tokens of the calibration data do not count
    as n observations. A threshold for a sentence of m tokens is the ⌈(n + m) (1 - alpha)⌉-th score:
    as if all m had been missed in the calibration data. With m = 1, as for classes, that is split
    conformal prediction (Vovk et al. 2005); with longer sentences, conformal risk control
    (Angelopoulos et al. 2022) of the number of missed less alpha times the number of tokens.

    >>> random = np.random.default_rng(0)
    >>> probabilities = random.dirichlet([0.5, 0.5, 0.5], 1000)
    >>> right = (random.random((1000, 1)) > probabilities.cumsum(1)).sum(1)
    >>> sets = ConformalSets.calibrate(probabilities[:500], right[:500], alpha=0.1)
    >>> found = sets.predict(probabilities[500:])
    >>> found[0], probabilities[500].round(2)
    (array([ True, False,  True]), array([0.26, 0.13, 0.61]))
    >>> coverage(found, right[500:]).value, round(mean_set_size(found), 2)
    (0.904, 1.59)

    """

    scores: Floats
    alpha: float
    score: Score = "lac"
    unit: Unit = "token"

    @classmethod
    def calibrate(
        cls,
        probabilities: Any,
        outputs: Any,
        alpha: float = 0.1,
        *,
        score: Score = "lac",
        unit: Unit = "token",
    ) -> Self:
        """Learn the thresholds from data that the model was not trained on.

        Args:
            probabilities: ``[n, K]`` of classes; or for each sentence a table ``[n, K]``, of the
                labels of its tokens or the heads of its words.
            outputs: the right ones, ``[n]``; or for each sentence an array ``[n]``. -1 is an output
                that the model does not know, and no set will hold.
            alpha: largest share of misses, above 0 and below 1.
            score: see the class.
            unit: see the class.

        """
        if not 0.0 < alpha < 1.0:
            raise EstimatorError(f"alpha must lie above 0 and below 1, got {alpha}")
        if score not in ("lac", "adaptive") or unit not in ("token", "sentence"):
            raise EstimatorError(
                "expected score 'lac' or 'adaptive' and unit 'token' or 'sentence', got"
                f" {score!r} and {unit!r}"
            )
        choices = Choices.read(probabilities)
        right = choices.outputs(outputs)
        found = _scores(choices.probabilities, score)
        own = np.take_along_axis(found, right.clip(min=0)[:, None], 1)[:, 0]
        own = np.where(right == UNKNOWN, np.inf, own)
        if unit == "sentence":
            ends = np.cumsum(choices.lengths)
            own = np.array(
                [
                    own[end - n : end].max()
                    for end, n in zip(ends, choices.lengths, strict=True)
                    if n
                ]
            )
        sets = cls(np.sort(own), float(alpha), score, unit)
        if conformal_rank(len(own), alpha) > len(own):
            least = next(n for n in range(len(own), 10**9) if conformal_rank(n, alpha) <= n)
            raise DataError(
                f"alpha = {alpha:g} needs at least {least} {unit}s with right outputs, got"
                f" {len(own)}: give more, or a larger alpha"
            )
        return sets

    def threshold(self, tokens: int = 1) -> float:
        """The largest score of outputs in the sets of a sentence with so many tokens.

        Infinite where the calibration data are too few for such a sentence, or where more of their
        outputs are unknown than may be missed: then sets hold every output.
        """
        rank = conformal_rank(len(self.scores), self.alpha, tokens if self.unit == "token" else 1)
        return float(self.scores[rank - 1]) if rank <= len(self.scores) else math.inf

    def predict(self, probabilities: Any) -> Any:
        """Which outputs are in each set: booleans shaped like ``probabilities``.

        An array ``[n, K]`` for a table of classes; for sentences a list of such arrays.
        """
        if getattr(probabilities, "ndim", 0) == 2:
            table = Choices.read(probabilities).probabilities
            return _scores(table, self.score) <= self.threshold()
        return [
            _scores(table, self.score) <= self.threshold(len(table))
            for table in (Choices.read([one]).probabilities for one in probabilities)
        ]


def _scores(table: Floats, score: Score) -> Floats:
    """How unusual each output is, ``[n, K]``, the less probable the more."""
    if score == "lac":
        return 1.0 - table
    order = np.argsort(-table, 1, kind="stable")
    ordered = np.take_along_axis(table, order, 1)
    before = np.cumsum(ordered, 1) - ordered
    found = np.empty_like(table)
    np.put_along_axis(found, order, before, 1)
    return found


def _as_list(sets: Any) -> list[Any]:
    """The sets of each sentence; a table is one."""
    return [sets] if getattr(sets, "ndim", 0) == 2 else list(sets)


def coverage(sets: Any, outputs: Any, *, unit: Unit = "token", level: float = 0.95) -> Interval:
    """Share of outputs that their sets hold, with Wilson's interval.

    The interval takes choices for independent. Tokens of one sentence are not, so that with
    ``unit="token"`` it is rather too narrow for them; with ``unit="sentence"``, the share of
    sentences with all of their outputs covered, it is right.

    Args:
        sets: of `ConformalSets.predict`.
        outputs: as in `ConformalSets.calibrate`.
        unit: what is counted.
        level: of confidence.

    >>> coverage([np.array([[True, False], [True, True]])], [[0, 1]]).value
    1.0

    """
    sentences = _as_list(sets)
    rights = [outputs] if getattr(sets, "ndim", 0) == 2 else list(outputs)
    if len(sentences) != len(rights):
        raise ShapeError(
            f"outputs must have an entry for each of the {len(sentences)} sentences, got"
            f" {len(rights)}"
        )
    held = []
    for number, (one, right) in enumerate(zip(sentences, rights, strict=True)):
        chosen = np.asarray(right)
        if chosen.shape != one.shape[:1]:
            raise ShapeError(
                f"outputs must have a choice for each set: entry {number} must be"
                f" [{len(one)}], got {list(chosen.shape)}"
            )
        chosen = chosen.astype(np.int64)
        held.append(one[np.arange(len(one)), chosen.clip(min=0)] & (chosen != UNKNOWN))
    if unit == "sentence" and getattr(sets, "ndim", 0) != 2:  # a row of classes is one itself
        hits = np.array([part.all() for part in held if len(part)], bool)
    else:
        hits = np.concatenate(held or [np.zeros(0, bool)])
    if not len(hits):
        raise DataError(f"expected at least one {unit}, got none")
    part, whole = np.array(float(hits.sum())), np.array(float(len(hits)))
    low, high = wilson_interval(part, whole, level)
    return Interval(float(hits.mean()), float(low), float(high))


def mean_set_size(sets: Any) -> float:
    """Mean number of outputs in a set.

    >>> mean_set_size(np.array([[True, False], [True, True]]))
    1.5
    """
    sentences = _as_list(sets)
    count = sum(len(one) for one in sentences)
    return sum(float(one.sum()) for one in sentences) / max(count, 1)
