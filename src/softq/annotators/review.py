"""What people who run an annotation project look at again: sentences, labels, and annotators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from softq.annotators.crowd import Crowd
from softq.annotators.reliability import Reliability
from softq.errors import DataError
from softq.formats.conll import MISSING, Sentence
from softq.formats.tags import OUTSIDE
from softq.numerics import wilson_interval

_ENOUGH = 20  # tokens of entities, before an annotator is suspected of anything
_SILENT = 0.5  # less than this share of the median recall, though no less precise than the median
_COPIED = 0.9  # share of equal labels where one of two is probably wrong


class Confusion(NamedTuple):
    """How often an annotator gives a label where another is right.

    Attributes:
        annotator: The annotator's name.
        right: The right label.
        given: The label given.
        tokens: Expected number of tokens of the right label that the annotator labelled.
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
        differing: Expected number of tokens that two of its annotators label differently.
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
        annotator: The annotator who gave it.
        given: The label.
        likely: The most probable label.
        probability: The probability that the label given is right.

    """

    sentence: int
    token: int
    annotator: str
    given: str
    likely: str
    probability: float


class Suspicion(NamedTuple):
    """An annotator to ask.

    Attributes:
        annotator: The annotator's name.
        kind: ``"one label"``: gave the same label to all tokens, entities among them.
            ``"silent"``: found less than half as much of the entities as the median annotator, but
            is right as often with the labels given. ``"copy"``: makes the same errors as another,
            who is named in ``evidence``.
        evidence: In words.

    """

    annotator: str
    kind: Literal["one label", "silent", "copy"]
    evidence: str


class Review:
    """Sentences of annotators beside an estimate of the truth.

    >>> from softq.annotators.reliability import estimate
    >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
    >>> crowd = [Sentence(("Ann", "ran"), rows, ("ann", "bob", "cy"))] * 30
    >>> review = Review(crowd, estimate(crowd))
    >>> row = review.confusions()[-2]
    >>> row.annotator, row.right, row.given, round(row.share, 2), round(row.low, 2)
    ('cy', 'B-PER', 'O', 1.0, 0.89)
    >>> review.disputes()[0]
    Dispute(sentence=0, differing=0.66..., tokens=1)
    >>> review.doubts()[0][:5]
    (0, 0, 'cy', 'O', 'B-PER')
    >>> review.suspicions()
    [Suspicion(annotator='cy', kind='one label', evidence='O on all 60 tokens, 30 of them of entities')]

    """

    def __init__(self, sentences: Sequence[Sentence], found: Reliability) -> None:
        """Compare them.

        Args:
            sentences: with annotators.
            found: the estimate, of the same sentences in the same order.

        """
        if [len(one.tokens) for one in sentences] != [len(one) for one in found.posteriors]:
            raise DataError(
                f"expected the {len(found.posteriors)} sentences that the truth was estimated of,"
                f" got {len(sentences)} of other lengths or number"
            )
        self.sentences, self.found = sentences, found
        crowd = Crowd.read(sentences, found.labels)
        self._counts = crowd.counts(np.concatenate(found.posteriors))[:, 0]  # [A, right, given]

    def confusions(self) -> list[Confusion]:
        """A row for each annotator, right label and label given, in this order."""
        counts, labels = self._counts, self.found.labels
        totals = counts.sum(-1, keepdims=True)
        shares = counts / np.maximum(totals, 1e-300)
        columns = (np.broadcast_to(totals, counts.shape), shares, *wilson_interval(counts, totals))
        return [
            Confusion(
                self.found.annotators[place[0]].name,
                labels[place[1]],
                labels[place[2]],
                *(float(column[place]) for column in columns),
            )
            for place in np.ndindex(*counts.shape)
        ]

    def disputes(self) -> list[Dispute]:
        """Sentences on which annotators disagree, the most disputed first."""
        rows = []
        for number, sentence in enumerate(self.sentences):
            differing = []
            for given in zip(*sentence.labels, strict=True):
                votes = Counter(label for label in given if label != MISSING)
                if len(votes) > 1:
                    equal = sum(count * (count - 1) for count in votes.values())
                    differing.append(1 - equal / (votes.total() * (votes.total() - 1)))
            if differing:
                rows.append(Dispute(number, sum(differing), len(differing)))
        return sorted(rows, key=lambda row: -row.differing)

    def doubts(self, *, below: float = 0.1) -> list[Doubt]:
        """Labels with a probability less than ``below``, the most doubtful first."""
        index = {label: k for k, label in enumerate(self.found.labels)}
        rows = []
        for number, posterior in enumerate(self.found.posteriors):
            for name, labels in self._named(number):
                for token, label in enumerate(labels):
                    if label != MISSING and posterior[token, index[label]] < below:
                        probability = float(posterior[token, index[label]])
                        likely = self.found.labels[posterior[token].argmax()]
                        rows.append(Doubt(number, token, name, label, likely, probability))
        return sorted(rows, key=lambda row: row.probability)

    def suspicions(self) -> list[Suspicion]:
        """Annotators who gave one label only, who are seldom wrong but mostly silent, or who copy.

        Each has labelled enough to tell: 20 tokens of entities, as far as the truth is known, or 20
        tokens on which one of two is probably wrong.
        """
        found = self.found
        entity = np.array([label != OUTSIDE for label in found.labels])
        recall = median(row.recall for row in found.annotators)
        precision = median(row.precision for row in found.annotators)
        rows = []
        for row, table in zip(found.annotators, self._counts, strict=True):
            (used,) = np.nonzero(table.sum(0) > 0.5)
            entities = table[entity].sum()
            if entities < _ENOUGH:
                continue
            if len(used) == 1:
                told = f"{found.labels[used[0]]} on all {row.tokens:,} tokens,"
                told += f" {entities:,.0f} of them of entities"
                rows.append(Suspicion(row.name, "one label", told))
            elif row.recall < _SILENT * recall and row.precision >= precision:
                told = (
                    f"recall {row.recall:.0%} where the median is {recall:.0%}, but precision"
                    f" {row.precision:.0%} where it is {precision:.0%}"
                )
                rows.append(Suspicion(row.name, "silent", told))
        return rows + self._copies()

    def _copies(self) -> list[Suspicion]:
        """Two people err on the same tokens by chance, but seldom in the same way, and never always."""
        errors, shared = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        for number, best in enumerate(self.found.best):
            for (first, left), (second, right) in combinations(sorted(self._named(number)), 2):
                wrong = [
                    a == b
                    for truth, a, b in zip(best, left, right, strict=True)
                    if MISSING not in (a, b) and not truth == a == b
                ]
                errors[first, second] += len(wrong)
                shared[first, second] += sum(wrong)
        return [
            Suspicion(
                second,
                "copy",
                f"of {count:,} tokens on which {first} or {second} is probably wrong, both gave"
                f" {shared[first, second]:,} the same label",
            )
            for (first, second), count in sorted(errors.items())
            if first != second and count >= _ENOUGH and shared[first, second] > _COPIED * count
        ]

    def _named(self, sentence: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The annotators of a sentence with their labels."""
        one = self.sentences[sentence]
        return zip(one.annotators, one.labels, strict=True)
