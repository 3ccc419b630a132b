"""Annotations as arrays of indices, and the two sums that every model of annotators needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from softq.errors import DataError
from softq.formats.conll import MISSING, Sentence
from softq.formats.tags import OUTSIDE

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Crowd:
    """Labels that A annotators gave T tokens in N sentences, of K kinds.

    Tokens of one sentence on which every annotator gave the same label (after the same one, where
    the previous label counts) are one pattern: most tokens are O for everybody. The M labels that
    annotators gave to patterns are parallel arrays.

    Attributes:
        annotators: names of the annotators, sorted.
        labels: names of the labels, ``O`` first if it occurs, the others sorted.
        lengths: tokens of each sentence, ``[N]``.
        patterns: pattern of each token, ``[T]``.
        sentence: sentence of each pattern, ``[P]``.
        pattern: what the label was given to, ``[M]``.
        annotator: who gave it, ``[M]``.
        previous: the label that the annotator gave to the token before; K at the start of a
            sentence and after a token without a label of theirs. All 0 where it does not count.
        label: the label, ``[M]``.
        contexts: number of different values of ``previous``: K + 1, or 1 where it does not count.

    """

    annotators: tuple[str, ...]
    labels: tuple[str, ...]
    lengths: Integers
    patterns: Integers
    sentence: Integers
    pattern: Integers
    annotator: Integers
    previous: Integers
    label: Integers
    contexts: int

    @classmethod
    def read(
        cls,
        sentences: Sequence[Sentence],
        labels: Sequence[str] | None = None,
        *,
        previous: bool = False,
    ) -> Crowd:
        """Encode sentences with annotators.

        Args:
            sentences: with the labels of annotators, `MISSING` where one gave none.
            labels: names of the labels in an order of their own.
            previous: whether an annotator's previous label counts.

        >>> crowd = Crowd.read([Sentence(("a", "b", "c"), (("X", "O", "O"), ("X", "?", "O")), ("1", "2"))])
        >>> crowd.patterns.tolist(), crowd.label.tolist()
        ([0, 1, 2], [1, 1, 0, 0, 0])

        """
        for sentence in sentences:
            check_named(sentence)
        annotators = tuple(sorted(set[str]().union(*(one.annotators for one in sentences))))
        labels = _label_names(sentences, labels)
        who = {name: index for index, name in enumerate(annotators)}
        index = {label: k for k, label in enumerate(labels)} | {MISSING: -1}
        patterns: list[int] = []
        owners: list[int] = []
        entries: list[tuple[int, int, int, int]] = []
        for number, sentence in enumerate(sentences):
            known: dict[tuple[tuple[int, int], ...], int] = {}
            people = [who[name] for name in sentence.annotators]
            rows = [_with_previous(row, index, previous) for row in sentence.labels]
            for given in zip(*rows, strict=True) if rows else [()] * len(sentence.tokens):
                if given not in known:
                    known[given] = len(owners)
                    entries += [
                        (len(owners), person, before, label)
                        for person, (before, label) in zip(people, given, strict=True)
                        if label >= 0
                    ]
                    owners.append(number)
                patterns.append(known[given])
        lengths = np.array([len(sentence.tokens) for sentence in sentences], np.int64)
        pattern, annotator, before, label = np.asarray(entries, np.int64).reshape(-1, 4).T
        return cls(
            annotators,
            labels,
            lengths,
            np.asarray(patterns, np.int64),
            np.asarray(owners, np.int64),
            pattern,
            annotator,
            before,
            label,
            contexts=1 + previous * len(labels),
        )

    @property
    def label_count(self) -> int:
        """How many labels annotators gave to tokens."""
        return int(np.bincount(self.patterns, minlength=len(self.sentence))[self.pattern].sum())

    def per_pattern(self, values: Floats) -> Floats:
        """Sums ``[P, K]`` over the tokens of each pattern of values ``[T, K]``."""
        size = len(self.sentence)
        return np.stack([np.bincount(self.patterns, column, size) for column in values.T], 1)

    def counts(self, posterior: Floats) -> Floats:
        """Expected counts ``[A, C, K, K]``: annotator, context, true label, given label."""
        size, people = len(self.labels), len(self.annotators)
        cell = (self.annotator * self.contexts + self.previous) * size + self.label
        weights = self.per_pattern(posterior)[self.pattern]
        cells = people * self.contexts * size
        by_truth = np.stack([np.bincount(cell, column, cells) for column in weights.T])
        shape = (size, people, self.contexts, size)
        return np.ascontiguousarray(by_truth.reshape(shape).transpose(1, 2, 0, 3))

    def evidence(self, tables: Floats) -> Floats:
        """What the labels say of the truth, ``[P, K]``: Σ_a table_a[context, y, label given].

        ``tables [A, C, K, K]`` are log-probabilities, as `counts` orders them; so this is the
        reward Σ_a log π_a(l_a | y) of each true label y, for each pattern.
        """
        rows = tables[self.annotator, self.previous, :, self.label]  # [M, K]
        size = len(self.sentence)
        return np.stack([np.bincount(self.pattern, column, size) for column in rows.T], 1)

    def hide(self, share: float, seed: int) -> tuple[Crowd, Crowd]:
        """The crowd without a share of its (annotator, sentence) pairs, and with these alone.

        A sentence keeps one annotator at least.
        """
        pairs, pair = np.unique(
            np.stack([self.sentence[self.pattern], self.annotator]), axis=1, return_inverse=True
        )
        chances = np.random.default_rng(seed).random(pairs.shape[1])
        last = np.full(len(self.lengths), 0.0)
        np.maximum.at(last, pairs[0], chances)
        hidden = ((chances < share) & (chances < last[pairs[0]]))[pair.reshape(-1)]
        return self._only(~hidden), self._only(hidden)

    def _only(self, which: NDArray[np.bool_]) -> Crowd:
        return replace(
            self,
            pattern=self.pattern[which],
            annotator=self.annotator[which],
            previous=self.previous[which],
            label=self.label[which],
        )


def _label_names(sentences: Sequence[Sentence], names: Sequence[str] | None) -> tuple[str, ...]:
    """The labels that annotators gave, in their order or that of the names."""
    found = {label for one in sentences for row in one.labels for label in row} - {MISSING}
    labels = tuple(names or sorted(found, key=lambda label: (label != OUTSIDE, label)))
    if len(labels) < 2:
        raise DataError(
            "expected two different labels or more among those of the annotators, got"
            f" {list(labels)}"
        )
    for unknown in sorted(found - set(labels)):
        raise DataError(f"expected labels among {', '.join(labels)}, got {unknown!r}")
    return labels


def _with_previous(
    row: Sequence[str], index: dict[str, int], previous: bool
) -> list[tuple[int, int]]:
    """Each label with the one before it, as indices; -1 for a missing label."""
    given = [index[label] for label in row]
    if not previous:
        return [(0, label) for label in given]
    start = len(index) - 1  # one past the labels
    return [
        (start if before < 0 else before, label)
        for before, label in zip([-1, *given], given, strict=False)
    ]


def check_named(sentence: Sentence) -> None:
    """Raise an error unless the sentence's labels are those of named annotators, if it has any."""
    if sentence.labels and not sentence.annotators:
        raise DataError(
            f"{sentence.where()}: expected labels of annotators with names, got a sentence"
            " without annotators"
        )
