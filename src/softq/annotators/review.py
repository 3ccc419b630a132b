"""What people who run an annotation project look at again: sentences, labels, and annotators.

All of it is judged by an estimate of the truth, a `softq.annotators.reliability.Reliability`, of
the same sentences in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import NormalDist, median
from typing import Literal, NamedTuple

import numpy as np

from softq.annotators.crowd import Crowd, Floats
from softq.annotators.reliability import Reliability
from softq.errors import DataError
from softq.formats.conll import MISSING, Sentence
from softq.formats.tags import OUTSIDE

_ENOUGH = 20  # tokens of entities, before anything is said against anybody
_SILENT = 0.5  # less than this share of the median recall, though no less precise than the median
_COPIED = 0.9  # share of equal labels where one of two is probably wrong


class Confusion(NamedTuple):
    """How often an annotator gives a label where another is right.

    Attributes:
        annotator: Their name.
        right: The right label.
        given: The label given.
        tokens: Expected number of tokens of the right label that they labelled.
        share: Expected share of these that were given the label.
        low: Lower end of the share's 95 % interval (Wilson's).
        high: Upper end.

    """

    annotator: str
    right: str
    given: str
    tokens: float
    share: float
    low: float
    high: float


class Dispute(NamedTuple):
    """A sentence on which annotators disagree.

    Attributes:
        sentence: Its place in the file, from 0.
        differing: Number of tokens that two of its annotators label differently, in expectation
            over all pairs of them.
        tokens: How many tokens have different labels.

    """

    sentence: int
    differing: float
    tokens: int


class Doubt(NamedTuple):
    """A label that is probably wrong.

    Attributes:
        sentence: Its place in the file, from 0.
        token: Its place in the sentence, from 0.
        annotator: Who gave it.
        given: The label.
        probability: That it is right.
        likely: The most probable label.

    """

    sentence: int
    token: int
    annotator: str
    given: str
    probability: float
    likely: str


class Suspicion(NamedTuple):
    """An annotator to ask.

    Attributes:
        annotator: Their name.
        kind: ``"one label"``: gave the same label to all tokens, entities among them.
            ``"silent"``: found less than half as much of the entities as the median annotator, but
            is right as often where they mark something. ``"copy"``: makes the same errors as
            another, who is named in ``evidence``.
        evidence: In words.

    """

    annotator: str
    kind: Literal["one label", "silent", "copy"]
    evidence: str


def confusions(sentences: Sequence[Sentence], found: Reliability) -> list[Confusion]:
    """A row for each annotator, right label and label given, in this order.

    >>> from softq.annotators.reliability import estimate
    >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
    >>> crowd = [Sentence(("Ann", "ran"), rows, ("ann", "bob", "cy"))] * 20
    >>> row = confusions(crowd, estimate(crowd))[-2]
    >>> row.annotator, row.right, row.given, round(row.share, 2), round(row.low, 2)
    ('cy', 'B-PER', 'O', 1.0, 0.84)

    """
    crowd = Crowd.read(sentences, found.labels)
    counts = crowd.counts(_posterior(sentences, found)).sum(1)  # [A, K, K]
    totals = counts.sum(-1, keepdims=True)
    low, high = wilson_interval(counts, totals)
    share = counts / np.maximum(totals, 1e-300)
    return [
        Confusion(
            crowd.annotators[a],
            found.labels[i],
            found.labels[j],
            float(totals[a, i, 0]),
            float(share[a, i, j]),
            float(low[a, i, j]),
            float(high[a, i, j]),
        )
        for a, i, j in np.ndindex(*counts.shape)
    ]


def wilson_interval(part: Floats, whole: Floats, level: float = 0.95) -> tuple[Floats, Floats]:
    """Ends of Wilson's interval of a share; 0 and 1 where nothing was counted.

    >>> [ends.round(3).item() for ends in wilson_interval(np.array(9.0), np.array(10.0))]
    [0.596, 0.982]
    """
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    middle = (part + z2 / 2) / (whole + z2)
    spread = np.sqrt(z2 * (part * (whole - part) / np.maximum(whole, 1e-300) + z2 / 4))
    spread = spread / (whole + z2)
    return np.clip(middle - spread, 0.0, 1.0), np.clip(middle + spread, 0.0, 1.0)


def disputes(sentences: Sequence[Sentence]) -> list[Dispute]:
    """Sentences on which annotators disagree, the most disputed first.

    >>> rows = (("B-PER", "O"), ("O", "O"), ("O", "O"))
    >>> disputes([Sentence(("Ann", "ran"), rows, ("1", "2", "3"))])
    [Dispute(sentence=0, differing=0.66..., tokens=1)]
    """
    found = []
    for number, sentence in enumerate(sentences):
        differing, tokens = 0.0, 0
        for given in zip(*sentence.labels, strict=True):
            votes = Counter(label for label in given if label != MISSING)
            n = votes.total()
            if len(votes) > 1:
                tokens += 1
                differing += 1 - sum(c * (c - 1) for c in votes.values()) / (n * (n - 1))
        if tokens:
            found.append(Dispute(number, differing, tokens))
    return sorted(found, key=lambda row: -row.differing)


def doubts(sentences: Sequence[Sentence], found: Reliability, *, below: float = 0.1) -> list[Doubt]:
    """Labels whose probability is less than ``below``, the most doubtful first.

    >>> from softq.annotators.reliability import estimate
    >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
    >>> crowd = [Sentence(("Ann", "ran"), rows, ("ann", "bob", "cy"))] * 20
    >>> row = doubts(crowd, estimate(crowd))[0]
    >>> row.annotator, row.token, row.given, row.likely
    ('cy', 0, 'O', 'B-PER')

    """
    rows = []
    for number, sentence, posterior in _together(sentences, found):
        for name, row in zip(sentence.annotators, sentence.labels, strict=True):
            for token, label in enumerate(row):
                if label == MISSING:
                    continue
                probability = float(posterior[token, found.labels.index(label)])
                if probability < below:
                    likely = found.labels[int(posterior[token].argmax())]
                    rows.append(Doubt(number, token, name, label, probability, likely))
    return sorted(rows, key=lambda row: row.probability)


def suspicions(sentences: Sequence[Sentence], found: Reliability) -> list[Suspicion]:
    """Annotators who gave one label only, who are seldom wrong but mostly silent, or who copy.

    Each has labelled enough to tell: 20 tokens of entities, as far as the truth is known, or 20
    tokens on which one of two is probably wrong.

    >>> from softq.annotators.reliability import estimate
    >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
    >>> crowd = [Sentence(("Ann", "ran"), rows, ("ann", "bob", "cy"))] * 30
    >>> suspicions(crowd, estimate(crowd))
    [Suspicion(annotator='cy', kind='one label', evidence='O on all 60 tokens, 30 of them of entities')]

    """
    rows: list[Suspicion] = []
    crowd = Crowd.read(sentences, found.labels)
    counts = crowd.counts(_posterior(sentences, found)).sum(1)  # [A, K, K]: right, given
    entity = np.array([label != OUTSIDE for label in found.labels])
    there = counts[:, entity].sum((1, 2))
    recall = median([row.recall for row in found.annotators])
    precision = median([row.precision for row in found.annotators])
    for row, table, tokens in zip(found.annotators, counts, there, strict=True):
        (used,) = np.nonzero(table.sum(0) > 0.5)
        if tokens < _ENOUGH:
            continue
        if len(used) == 1:
            what = f"{found.labels[used[0]]} on all {row.tokens:,} tokens, {tokens:,.0f} of them of entities"
            rows.append(Suspicion(row.name, "one label", what))
        elif row.recall < _SILENT * recall and row.precision >= precision:
            what = (
                f"recall {row.recall:.0%} where the median is {recall:.0%}, but precision"
                f" {row.precision:.0%} where it is {precision:.0%}"
            )
            rows.append(Suspicion(row.name, "silent", what))
    return rows + _copies(sentences, found)


def _copies(sentences: Sequence[Sentence], found: Reliability) -> list[Suspicion]:
    """Two people err on the same tokens by chance, but seldom in the same way, and never always."""
    errors: Counter[tuple[str, str]] = Counter()
    shared: Counter[tuple[str, str]] = Counter()
    for number, sentence, _ in _together(sentences, found):
        best = found.best[number]
        named = sorted(zip(sentence.annotators, sentence.labels, strict=True))
        for (first, left), (second, right) in combinations(named, 2):
            if first == second:
                continue
            for truth, a, b in zip(best, left, right, strict=True):
                if MISSING not in (a, b) and not truth == a == b:
                    errors[first, second] += 1
                    shared[first, second] += a == b
    return [
        Suspicion(
            second,
            "copy",
            f"of {count:,} tokens on which {first} or {second} is probably wrong, both gave"
            f" {shared[first, second]:,} the same label",
        )
        for (first, second), count in sorted(errors.items())
        if count >= _ENOUGH and shared[first, second] > _COPIED * count
    ]


def _posterior(sentences: Sequence[Sentence], found: Reliability) -> Floats:
    """Probabilities of the true labels of all tokens, ``[T, K]``."""
    return np.concatenate([posterior for _, _, posterior in _together(sentences, found)])


def _together(
    sentences: Sequence[Sentence], found: Reliability
) -> Iterator[tuple[int, Sentence, Floats]]:
    """Sentences with their numbers and the probabilities of their labels."""
    if [len(one.tokens) for one in sentences] != [len(one) for one in found.posteriors]:
        raise DataError(
            f"expected the {len(found.posteriors)} sentences that the truth was estimated of, got"
            f" {len(sentences)} of other lengths or number"
        )
    for number, (sentence, posterior) in enumerate(zip(sentences, found.posteriors, strict=True)):
        yield number, sentence, posterior
