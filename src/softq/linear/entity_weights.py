"""Precision against recall of one trained tagger, by what an entity label earns in decoding.

Decoding by `mbr` under `softq.linear.tagging.entity_reward` with weight w takes an entity label
where w · P(label | x) is more than P(O | x). Against O alone that is a threshold, P(label | x) >
1 / (1 + w): a larger weight finds more entities, of which fewer are right.

Of decisions that are independent, those of the highest expected F_β are the ones above a threshold
F*/(1 + β²), where F* is the F_β that they reach (Lipton et al. 2014; F*/2 for F1). So the best
weight is about (1 + β²)/F* - 1. Entities are not labels, and labels not independent; hence the
weight is chosen by the F_β of entities that it reaches on development data.
"""

# ruff: noqa: N803 -- scikit-learn calls the inputs X

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from softq.errors import EstimatorError
from softq.formats.tags import Scheme
from softq.linear.estimator_inputs import positive
from softq.linear.tagger import CRFTagger, single_labels
from softq.metrics import span_precision, span_recall, span_statistics

WEIGHTS = tuple(round(2 ** (step / 2), 3) for step in range(-6, 13))
"""Entity weights that are tried: 1/8 to 64, each √2 times the one before."""


class WeightRow(NamedTuple):
    """What decoding with an entity weight reaches on development data."""

    weight: float
    precision: float
    recall: float
    f: float
    """F_β."""


class WeightChoice(NamedTuple):
    """The entity weight of the best F_β, and all that were tried."""

    best: WeightRow
    rows: tuple[WeightRow, ...]


def tune_entity_weight(
    tagger: CRFTagger,
    X: Any,
    y: Any,
    beta: float = 1.0,
    weights: Sequence[float] = WEIGHTS,
) -> WeightChoice:
    """The entity weight with which a fitted tagger reaches the best F_β of entities.

    Args:
        tagger: as `CRFTagger.fit` left it; it is not changed.
        X: development sentences, not those that it was trained on.
        y: for each of them its labels, tags of entities such as ``B-PER``.
        beta: how much recall counts against precision; 1: as much.
        weights: to try. Of several that are as good, the one nearest to 1 is chosen.

    >>> X = [["Ann", "ran"], ["Bob", "met", "Ann"], ["May", "came"]]
    >>> y = [["B-PER", "O"], ["B-PER", "O", "B-PER"], ["B-PER", "O"]]
    >>> tagger = CRFTagger(c2=3.0).fit(X, y)
    >>> choice = tune_entity_weight(tagger, [["Eve", "slept"]], [["B-PER", "O"]])
    >>> choice.best.f, tagger.predict([["Eve", "slept"]], entity_weight=choice.best.weight)
    (1.0, [['B-PER', 'O']])

    """
    true, scheme = single_labels(tagger, X, y)
    features = tagger.features(X)
    return choose_weight(
        lambda weight: tagger.decode(features, entity_weight=weight), true, scheme, beta, weights
    )


def choose_weight(
    decode: Callable[[float], Sequence[Sequence[str]]],
    true: Sequence[Sequence[str]],
    scheme: Scheme,
    beta: float,
    weights: Sequence[float] = WEIGHTS,
) -> WeightChoice:
    """The same for the labels that ``decode`` finds with a weight."""
    beta = positive("beta", beta)
    if not len(weights):
        raise EstimatorError("expected at least one entity weight to try, got none")
    rows = tuple(
        weight_row(decode(positive("weights", weight)), true, scheme, beta, weight)
        for weight in weights
    )
    return WeightChoice(max(rows, key=lambda row: (row.f, -abs(math.log(row.weight)))), rows)


def weight_row(
    found: Sequence[Sequence[str]],
    true: Sequence[Sequence[str]],
    scheme: Scheme,
    beta: float,
    weight: float = math.nan,
) -> WeightRow:
    """Precision, recall and F_β of the entities of predicted labels."""
    sums = span_statistics(true, found, scheme).rows.sum(0)
    right, predicted, gold = sums[:3].tolist()
    below = beta**2 * gold + predicted
    f = (1 + beta**2) * right / below if below else 0.0
    return WeightRow(weight, float(span_precision(sums)), float(span_recall(sums)), f)
