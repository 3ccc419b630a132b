"""Sets of classes, labels, heads or whole outputs that hold the right one as often as asked for.

Split conformal prediction: probabilities of any model, and data with right outputs that it was not
trained on, give a threshold. The guarantee rests on one assumption: that the new sentence and those
of the calibration data are exchangeable, as they are when all are sampled alike. It does not need a
good model; a better one has smaller sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from torch import Tensor

from softq.calibration import UNKNOWN, Choices, Floats
from softq.checks import check_count
from softq.errors import DataError, EstimatorError, ShapeError
from softq.metrics import Interval
from softq.numerics import wilson_interval
from softq.spaces import Distribution

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
        _check_options(alpha, score, unit)
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
        _check_enough(len(own), alpha, unit)
        return cls(np.sort(own), float(alpha), score, unit)

    def threshold(self, tokens: int = 1) -> float:
        """The largest score of outputs in the sets of a sentence with so many tokens.

        Infinite where the calibration data are too few for such a sentence, or where more of their
        outputs are unknown than may be missed: then sets hold every output.
        """
        return _threshold(self.scores, self.alpha, tokens if self.unit == "token" else 1)

    def predict(self, probabilities: Any) -> Any:
        """Which outputs are in each set: booleans shaped like ``probabilities``.

        An array ``[n, K]`` for a table of classes; for sentences a list of such arrays.
        """
        if getattr(probabilities, "ndim", 0) == 2:
            table = Choices.read(probabilities).probabilities
            return _scores(table, self.score) <= self.threshold()
        tables = list(probabilities)
        flat, lengths = Choices.read(tables)
        limits = {length: self.threshold(length) for length in set(lengths.tolist())}
        by_token = np.repeat([limits[length] for length in lengths.tolist()], lengths)
        held = np.split(_scores(flat, self.score) <= by_token[:, None], np.cumsum(lengths)[:-1])
        return [one[:, : np.shape(table)[1]] for one, table in zip(held, tables, strict=False)]


def _check_options(alpha: float, score: str, unit: str) -> None:
    if not 0.0 < alpha < 1.0:
        raise EstimatorError(f"alpha must lie above 0 and below 1, got {alpha}")
    if score not in ("lac", "adaptive") or unit not in ("token", "sentence"):
        raise EstimatorError(
            "expected score 'lac' or 'adaptive' and unit 'token' or 'sentence', got"
            f" {score!r} and {unit!r}"
        )


def _check_enough(count: int, alpha: float, unit: str) -> None:
    if conformal_rank(count, alpha) > count:
        least = next(n for n in range(count, 10**9) if conformal_rank(n, alpha) <= n)
        raise DataError(
            f"alpha = {alpha:g} needs at least {least} {unit}s with right outputs, got"
            f" {count}: give more, or a larger alpha"
        )


def _threshold(scores: Floats, alpha: float, new: int = 1) -> float:
    """The score of the conformal rank; infinite where there are too few for ``new`` choices."""
    rank = conformal_rank(len(scores), alpha, new)
    return float(scores[rank - 1]) if rank <= len(scores) else math.inf


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


# --- whole outputs -------------------------------------------------------------------------------


class OutputSet(NamedTuple):
    """A set of whole outputs of one sentence: label sequences or trees.

    Attributes:
        outputs: Those in the set, the most probable first.
        probabilities: Of each.
        bounded: Whether these are all. Where it is False, the set holds *every* output, of which
            these are the most probable ones: the bound on their number was reached.

    """

    outputs: Sequence[Sequence[Any]]
    probabilities: Sequence[float]
    bounded: bool

    def holds(self, right: Sequence[Any]) -> bool:
        """Whether an output is in it."""
        return not self.bounded or list(right) in self.outputs


class SequenceSets(NamedTuple):
    """A rule that gives sets of whole label sequences or trees with a guaranteed coverage.

    The outputs of a sentence enter its set from the most probable one on, until their score exceeds
    a threshold. At most ``most`` are looked at (`Distribution.topk`). If the next one would belong
    to the set as well, the set is unbounded: it claims nothing, and holds every output.

    Attributes:
        scores: Scores of the right outputs of the calibration data in ascending order.
        alpha: Largest share of misses: a new sentence's set holds its right output with
            probability at least 1 - alpha.
        score: ``"adaptive"``: the mass of all outputs that are more probable; every set holds the
            most probable output. ``"lac"``: -log p of an output; sets may be empty.
        most: Most outputs in a bounded set.

    The guarantee is that of split conformal prediction for the score s(x, y) in use, which is that
    of y where y is among the ``most`` best outputs, and else that of the best output beyond them:
    all of those are tied, and enter a set together. So outputs beyond the bound, and such as the
    model cannot give, are covered by unbounded sets alone.

    >>> import torch
    >>> from softq import Chain
    >>> random = torch.Generator().manual_seed(0)
    >>> p = Chain(2 * torch.randn(200, 4, 3, generator=random), torch.zeros(3, 3))
    >>> right = p.sample(generator=random)
    >>> sets = SequenceSets.calibrate([p], [right], alpha=0.2, most=20)
    >>> found = sets.predict([p])
    >>> min(found, key=lambda one: len(one.outputs)).outputs
    [[1, 2, 1, 1]]
    >>> coverage(found, right.tolist()).value, round(mean_set_size(found), 2)
    (0.805, 7.5)
    >>> unbounded_share(found)
    0.015

    """

    scores: Floats
    alpha: float
    score: Score = "adaptive"
    most: int = 64

    @classmethod
    def calibrate(
        cls,
        models: Iterable[Distribution],
        outputs: Iterable[Tensor],
        alpha: float = 0.1,
        *,
        score: Score = "adaptive",
        most: int = 64,
    ) -> Self:
        """Learn the threshold from data that the model was not trained on.

        Args:
            models: distributions, each of a batch ``[B]`` of sentences.
            outputs: the right outputs of each batch, ``[B, n]`` labels or heads; what the model
                cannot give, such as -1 for an unknown label, is never among its best outputs.
            alpha: largest share of misses, above 0 and below 1.
            score: see the class.
            most: most outputs in a bounded set; more take longer, and leave fewer sets unbounded.

        """
        _check_options(alpha, score, "sentence")
        check_count("most", most, EstimatorError)
        own = [
            _own_score(best, right)
            for model, rights in zip(models, outputs, strict=True)
            for best, right in zip(_best(model, score, most), rights.tolist(), strict=True)
        ]
        _check_enough(len(own), alpha, "sentence")
        return cls(np.sort(np.array(own)), float(alpha), score, most)

    def threshold(self) -> float:
        """The largest score of outputs in a set; infinite where every set is unbounded."""
        return _threshold(self.scores, self.alpha)

    def predict(self, models: Iterable[Distribution]) -> list[OutputSet]:
        """The set of each sentence of the batches, in their order; padding is cut off."""
        found, limit = [], self.threshold()
        limit += _ROUNDING * (1.0 + abs(limit))
        for model in models:
            for best in _best(model, self.score, self.most):
                bounded = not best.beyond <= limit
                size = int((best.scores <= limit).sum()) if bounded else len(best.outputs)
                found.append(
                    OutputSet(best.outputs[:size], best.probabilities[:size].tolist(), bounded)
                )
        return found


_ROUNDING = 1e-6  # by which the score of one output may differ from one batch to another


class _Best(NamedTuple):
    """The most probable outputs of a sentence, how unusual they are, and those beyond them."""

    outputs: list[list[int]]
    probabilities: Floats
    scores: Floats
    beyond: float  # inf where there are no others


def _best(model: Distribution, score: Score, most: int) -> Iterator[_Best]:
    """Of each sentence of a batch."""
    if len(model.batch_shape) != 1 or len(model.event_shape) != 1:
        raise ShapeError(
            "sets of whole outputs need one batch dimension and outputs of several tokens, got"
            f" {model!r}; for classes take ConformalSets"
        )
    found = model.topk(most + 1)
    log_p = found.log_probs.double().cpu().numpy()
    outputs, lengths = found.outputs.cpu(), model.all_lengths().tolist()
    p = np.exp(log_p)
    scores = np.where(
        log_p > -np.inf, np.cumsum(p, 1) - p if score == "adaptive" else -log_p, np.inf
    )
    for row, length in enumerate(lengths):
        there = int((log_p[row, :most] > -np.inf).sum())
        yield _Best(
            outputs[row, :there, :length].tolist(),
            p[row, :there],
            scores[row, :there],
            float(scores[row, most]),
        )


def _own_score(best: _Best, right: list[int]) -> float:
    """The score of the right output: that of its place, or of all that are beyond the best."""
    own = right[: len(best.outputs[0])]
    return best.scores[best.outputs.index(own)] if own in best.outputs else best.beyond


# --- what sets hold ------------------------------------------------------------------------------


def _as_list(sets: Any) -> list[Any]:
    """The sets of each sentence; a table is one."""
    return [sets] if getattr(sets, "ndim", 0) == 2 else list(sets)


def coverage(sets: Any, outputs: Any, *, unit: Unit = "token", level: float = 0.95) -> Interval:
    """Share of outputs that their sets hold, with Wilson's interval.

    The interval takes choices for independent. Tokens of one sentence are not, so that with
    ``unit="token"`` it is rather too narrow for them; with ``unit="sentence"``, the share of
    sentences with all of their outputs covered, it is right.

    Args:
        sets: of `ConformalSets.predict` or `SequenceSets.predict`.
        outputs: as in `ConformalSets.calibrate`: for each sentence an array or list ``[n]``.
        unit: what is counted; sets of whole outputs count sentences.
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
    if sentences and isinstance(sentences[0], OutputSet):
        held = [np.array([one.holds(right)]) for one, right in zip(sentences, rights, strict=True)]
        return _share_of(np.concatenate(held), level)
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
    return _share_of(hits, level)


def _share_of(hits: Any, level: float) -> Interval:
    part, whole = np.array(float(hits.sum())), np.array(float(len(hits)))
    low, high = wilson_interval(part, whole, level)
    return Interval(float(hits.mean()), float(low), float(high))


def mean_set_size(sets: Any) -> float:
    """Mean number of outputs in a set; of `OutputSet`, in those that are bounded (NaN if none is).

    >>> mean_set_size(np.array([[True, False], [True, True]]))
    1.5
    """
    sentences = _as_list(sets)
    if sentences and isinstance(sentences[0], OutputSet):
        sizes = [len(one.outputs) for one in sentences if one.bounded]
        return float(np.mean(sizes)) if sizes else math.nan
    count = sum(len(one) for one in sentences)
    return sum(float(one.sum()) for one in sentences) / max(count, 1)


def unbounded_share(sets: Sequence[OutputSet]) -> float:
    """Share of sets of whole outputs that hold every output, because their bound was reached.

    >>> unbounded_share([OutputSet([[0, 1]], [0.9], True), OutputSet([[1, 1]], [0.2], False)])
    0.5
    """
    return sum(not one.bounded for one in sets) / max(len(sets), 1)
