"""Scores of named entities.

Precision, recall and F1 of spans as conlleval counts them, token accuracy, whole sentences.

A predicted entity is right if the gold labels hold one of the same type, start and end. Every score
is a ratio of sums over sentences, so one row of counts per sentence is all that is kept, and
`softq.metrics.paired_bootstrap` takes the rows with any of the metrics here. A ratio of nothing to
nothing is 0, as conlleval has it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from softq.formats.tags import Scheme, spans
from softq.metrics.counts import Metric, Ratio, check_pairs

SPAN_STATISTICS = (
    "true_positives",
    "predicted",
    "gold",
    "right_tokens",
    "tokens",
    "exact",
    "sentences",
)


class SpanStatistics(NamedTuple):
    """Counts for each of N sentences.

    Attributes:
        rows: ``[N, 7]``, float64, columns as in `SPAN_STATISTICS`: entities that are both predicted
            and gold, that are predicted, that are gold; words with the right label, words; 1 if
            every label is right; 1.
        kinds: the T types of entities that occur, gold or predicted, sorted.
        by_kind: ``[N, T, 3]``, the first three columns for each type; they sum to ``rows[:, :3]``.

    """

    rows: Tensor
    kinds: tuple[str, ...]
    by_kind: Tensor


def span_statistics(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme | None
) -> SpanStatistics:
    """Counts for each sentence, from its gold and its predicted labels.

    Both are read as by `softq.formats.tags.spans`.

    Labels that follow no scheme, None, have no entities: only words and sentences are counted.

    >>> span_statistics([["B-PER", "I-PER", "O"]], [["B-PER", "O", "B-LOC"]], "bio").rows.tolist()
    [[0.0, 2.0, 1.0, 1.0, 3.0, 0.0, 1.0]]
    """
    check_pairs(gold, predicted, "predicted labels", len)
    pairs = [
        (set(spans(right, scheme)), set(spans(guess, scheme))) if scheme else (set(), set())
        for right, guess in zip(gold, predicted, strict=True)
    ]
    kinds = tuple(sorted({span.kind for pair in pairs for side in pair for span in side}))
    number = {kind: index for index, kind in enumerate(kinds)}
    by_kind = torch.zeros(len(pairs), len(kinds), 3, dtype=torch.float64)
    counts = by_kind.numpy()  # the same memory: single numbers of a tensor are slow to write
    for sentence, (right_spans, guessed_spans) in enumerate(pairs):
        for column, members in enumerate((right_spans & guessed_spans, guessed_spans, right_spans)):
            for span in members:
                counts[sentence, number[span.kind], column] += 1
    right = [sum(map(operator.eq, *labels)) for labels in zip(gold, predicted, strict=True)]
    words = [len(labels) for labels in gold]
    tokens = torch.tensor([right, words], dtype=torch.float64).T  # [N, 2]
    exact = (tokens[:, :1] == tokens[:, 1:]).double()
    return SpanStatistics(
        torch.cat([by_kind.sum(1), tokens, exact, torch.ones_like(exact)], 1), kinds, by_kind
    )


span_precision = Ratio(SPAN_STATISTICS, "true_positives", "predicted")
"""Share of predicted entities that are gold, from sums of rows or of counts by type."""
span_recall = Ratio(SPAN_STATISTICS, "true_positives", "gold")
"""Share of gold entities that are predicted, from sums of rows or of counts by type."""
span_f1 = Ratio(SPAN_STATISTICS, "true_positives", ("predicted", "gold"), factor=2)
"""Harmonic mean of precision and recall, from sums of rows or of counts by type."""
token_accuracy = Ratio(SPAN_STATISTICS, "right_tokens", "tokens")
"""Share of words with the right label."""
exact_match = Ratio(SPAN_STATISTICS, "exact", "sentences")
"""Share of sentences with every label right."""

SPAN_METRICS: dict[str, Metric] = {
    "precision": span_precision,
    "recall": span_recall,
    "f1": span_f1,
    "token_accuracy": token_accuracy,
    "exact_match": exact_match,
}
"""All of them, by the names that `SpanScores` has for them."""


class KindScores(NamedTuple):
    """Scores of one class of entities, arcs or words, and how many were predicted and are gold."""

    precision: float
    recall: float
    f1: float
    predicted: int
    gold: int

    @classmethod
    def of(cls, both: int, predicted: int, gold: int) -> KindScores:
        """The scores where ``both`` of those that were predicted are gold.

        >>> KindScores.of(1, 2, 4)
        KindScores(precision=0.5, recall=0.25, f1=0.3333333333333333, predicted=2, gold=4)
        """
        shares = (
            both / max(1, predicted),
            both / max(1, gold),
            2 * both / max(1, predicted + gold),
        )
        return cls(*shares, predicted, gold)


@dataclass(frozen=True)
class SpanScores:
    """Scores of a corpus in 0..1.

    Of all entities, of words, of whole sentences, and of each type of entity by its name.

    >>> scores = SpanScores.of(span_statistics([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]], "bio"))
    >>> scores.precision, scores.recall, scores.exact_match
    (1.0, 0.5, 0.0)
    >>> scores.kinds["LOC"]
    KindScores(precision=0.0, recall=0.0, f1=0.0, predicted=0, gold=1)
    """

    precision: float
    recall: float
    f1: float
    token_accuracy: float
    exact_match: float
    kinds: dict[str, KindScores]

    @classmethod
    def of(cls, statistics: SpanStatistics) -> SpanScores:
        """Scores of all the sentences together."""
        sums = statistics.rows.sum(0)
        kinds = {
            kind: KindScores.of(*map(int, counts))
            for kind, counts in zip(statistics.kinds, statistics.by_kind.sum(0), strict=True)
        }
        return cls(
            **{name: float(metric(sums)) for name, metric in SPAN_METRICS.items()}, kinds=kinds
        )
