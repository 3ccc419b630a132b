"""Sentences and labels as users have them.

Read, checked, and turned into what taggers are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np

from softq.annotators.reliability import AnnotatorRow, Model, estimate, reference_weights
from softq.errors import DataError, DtypeError, OutputError, ShapeError, SoftqError
from softq.formats.conll import MISSING, Sentence, find_scheme
from softq.formats.tags import Scheme, spans
from softq.linear.estimator_inputs import may_be_annotator, read_annotations, shown
from softq.linear.features import AttributeIndex, FeatureMatrix, TemplateIndex
from softq.linear.tagging import References

Index = TemplateIndex | AttributeIndex
Kind = Literal["words", "pairs", "features"]
"""What tokens are: strings; (word, part of speech); features that the caller made."""

_NAMES: dict[Kind, str] = {
    "words": "a word (a string)",
    "pairs": "a (word, part of speech) tuple",
    "features": "a dict, list or set of features",
}


class Sentences(NamedTuple):
    """Tokens of N sentences, all of one kind; None where there is no token to tell by."""

    sentences: list[Any]
    kind: Kind | None

    @classmethod
    def read(cls, given: Any) -> Sentences:
        """Check that ``given`` is a sequence of sequences of tokens."""
        if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
            raise DataError(
                f"X must be a sequence of sentences, each a sequence of tokens, got {shown(given)}"
            )
        sentences = list(given)
        for number, sentence in enumerate(sentences):
            if isinstance(sentence, (str, bytes, Mapping)) or not hasattr(sentence, "__len__"):
                raise DataError(
                    f"sentence {number} of X must be a sequence of tokens, got {shown(sentence)};"
                    " split it into tokens first"
                )
        kinds = {_kind(token_type) for token_type in set(map(type, chain.from_iterable(sentences)))}
        if len(kinds) > 1 or None in kinds:
            raise _mixed(sentences)
        kind = next(iter(kinds), None)
        if kind == "pairs":
            _check_pairs(sentences)
        return cls(sentences, kind)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sentence."""
        return [len(sentence) for sentence in self.sentences]

    def _columns(self, kind: Kind) -> tuple[list[Any], dict[str, list[list[str]]] | None]:
        if kind != "pairs":
            return self.sentences, None
        words, pos = (
            [[token[part] for token in sentence] for sentence in self.sentences] for part in (0, 1)
        )
        return words, {"pos": pos}

    def number(
        self, templates: Sequence[str] | None, hash_bits: int | None
    ) -> tuple[Index, FeatureMatrix, Kind]:
        """Number the features of these sentences; also returns their kind."""
        if self.kind is None:
            raise DataError(
                f"X must hold at least one token to learn from, got {len(self.sentences)} sentences"
                " without any"
            )
        if self.kind == "features":
            if templates is not None:
                raise DataError(
                    "templates make features of words, and the tokens of X are features already:"
                    " leave out one of them"
                )
            return *AttributeIndex.fit(self.sentences, hash_bits=hash_bits), self.kind
        words, columns = self._columns(self.kind)
        return *TemplateIndex.fit(words, templates, columns=columns, hash_bits=hash_bits), self.kind

    def features(self, index: Index, kind: Kind) -> FeatureMatrix:
        """Features of these sentences by an index that was made of tokens of this kind."""
        if self.kind not in (kind, None):
            raise DataError(
                f"each token of X must be {_NAMES[kind]}, as in fit, got {_NAMES[self.kind]}"
            )
        words, columns = self._columns(kind)
        return (
            index.transform(words)
            if isinstance(index, AttributeIndex)
            else index.transform(words, columns)
        )


def _kind(token_type: type) -> Kind | None:
    if issubclass(token_type, str):
        return "words"
    if issubclass(token_type, tuple):
        return "pairs"
    return "features" if issubclass(token_type, (dict, list, set, frozenset)) else None


def _mixed(sentences: list[Any]) -> DataError:
    """The error for the first token that is nothing known, or not what the first one is."""
    first: Kind | None = None
    for s, sentence in enumerate(sentences):
        for t, token in enumerate(sentence):
            kind = _kind(type(token))
            if kind is None:
                expected = f"{_NAMES['words']}, {_NAMES['pairs']}, or {_NAMES['features']}"
                return DataError(
                    f"sentence {s}, token {t}: expected {expected}, got {shown(token)}"
                )
            first = first or kind
            if kind != first:
                return DataError(
                    f"sentence {s}, token {t}: expected {_NAMES[first]} like the tokens before, got"
                    f" {shown(token)}"
                )
    raise RuntimeError("all tokens are alike")


def _check_pairs(sentences: list[Any]) -> None:
    for s, sentence in enumerate(sentences):
        for t, token in enumerate(sentence):
            if len(token) != 2 or not (isinstance(token[0], str) and isinstance(token[1], str)):
                raise DataError(
                    f"sentence {s}, token {t}: a tuple must be (word, part of speech), two strings,"
                    f" got {shown(token)}; features are given as a list, a set or a dict"
                )


class Annotations(NamedTuple):
    """Label sequences of N sentences, one or several of each, with their weights and their annotators' places in y."""

    sequences: list[list[Sequence[str]]]
    weights: list[np.ndarray[Any, Any]]
    annotators: list[list[int]]
    places: list[int]  # of annotators in y, missing ones too

    @classmethod
    def read(cls, given: Any, lengths: Sequence[int], ref_weights: Any = None) -> Annotations:
        """Check y against the lengths of the sentences.

        Annotators that are missing, or have the weight 0, are left out.
        """
        read = list(
            read_annotations(given, lengths, ref_weights, _sequences, _check_length, "labels")
        )
        return cls(
            [[one.annotation for one in found.kept] for found in read],
            [np.array([one.weight for one in found.kept]) for found in read],
            [[one.place for one in found.kept] for found in read],
            [found.places for found in read],
        )

    def weighed(self, model: Model) -> tuple[Annotations, tuple[AnnotatorRow, ...]]:
        """The same with annotators, who are told apart by their places in y, weighed by how reliable they seem (EM); and their rows."""
        if MISSING in self.labels:
            raise DataError(
                f"annotators are weighed by their labels, among which {MISSING!r} stands for one"
                " that is missing: expected y without it, got it as a label; rename it, or put"
                " None in place of an annotator who did not label the whole sentence"
            )
        counts = sorted(set(self.places))
        if len(counts) > 1 or counts[0] < 2:
            raise DataError(
                "annotators are weighed by where they agree and told apart by their places in y:"
                " expected the same two places or more in every sentence, None where an annotator"
                f" is missing, got {', '.join(map(str, counts))}"
            )
        sentences = [
            Sentence(("",) * len(found[0]), tuple(map(tuple, found)), tuple(map(str, places)))
            for found, places in zip(self.sequences, self.annotators, strict=True)
        ]
        reliability = estimate([sentence for sentence in sentences if sentence.tokens], model)
        weights = [
            np.array(reference_weights(sentence, reliability)) if sentence.tokens else before
            for sentence, before in zip(sentences, self.weights, strict=True)
        ]
        return self._replace(weights=weights), tuple(
            sorted(reliability.annotators, key=lambda row: int(row.name))
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, sorted."""
        return tuple(
            sorted(
                {str(label) for found in self.sequences for sequence in found for label in sequence}
            )
        )

    def scheme(self) -> Scheme | None:
        """The tag scheme that the labels follow, None where some of them are no tags of entities."""
        found = find_scheme(
            Sentence((), tuple(map(tuple, sequences))) for sequences in self.sequences
        )
        try:
            if found is not None:
                spans(self.labels, found)
        except OutputError:
            return None
        return found

    def references(self, labels: Sequence[str]) -> References:
        """By the numbers of these labels."""
        number = {label: k for k, label in enumerate(labels)}
        arrays = [
            np.array([[number[label] for label in sequence] for sequence in found], np.int64)
            for found in self.sequences
        ]
        return References(arrays, self.weights)

    def accuracy(self, predicted: Sequence[Sequence[str]]) -> float:
        """Share of right labels over all tokens.

        A token with several annotators counts by the share that agrees.
        """
        right = 0.0
        for guess, found, weights in zip(predicted, self.sequences, self.weights, strict=True):
            agreeing = [sum(map(str.__eq__, guess, map(str, sequence))) for sequence in found]
            right += float(np.dot(agreeing, weights) / weights.sum())
        return right / max(sum(map(len, predicted)), 1)


def check_held_out(sentences: Any, labels: Any, kind: Kind | None) -> None:
    """Tell what is wrong with sentences to be scored before training, not after it."""
    if (sentences is None) != (labels is None):
        raise DataError(
            "X_dev and y_dev go together: expected both or neither, got"
            f" {'y_dev' if sentences is None else 'X_dev'} alone"
        )
    if sentences is None:
        return
    try:
        held_out = Sentences.read(sentences)
        Annotations.read(labels, held_out.lengths)
    except SoftqError as error:
        raise type(error)(f"X_dev and y_dev: {error}") from None
    if kind is not None and held_out.kind not in (kind, None):
        raise DataError(
            f"each token of X_dev must be {_NAMES[kind]}, as in X, got {_NAMES[held_out.kind]}"
        )


def _check_length(labels: Sequence[str], length: int, who: str) -> None:
    if len(labels) != length:
        raise ShapeError(
            f"y must have a label for each token: {who} has {len(labels)} labels for {length}"
            " tokens"
        )


def _sequences(labels: Any, number: int) -> list[Sequence[str] | None]:
    """One label sequence, or those of several annotators.

    Labels are strings, so the two cannot be confused.
    """
    if labels is None:
        return [None]
    wanted = (
        f"the labels of sentence {number} must be a list of strings, or one such list (or None) per"
        " annotator"
    )
    if isinstance(labels, (str, bytes, Mapping)) or not hasattr(labels, "__len__"):
        raise DataError(f"{wanted}, got {shown(labels)}")
    entries = list(labels)
    if all(isinstance(label, str) for label in entries):
        return [entries]
    if not all(map(may_be_annotator, entries)):
        odd = next(entry for entry in entries if not isinstance(entry, str))
        raise DtypeError(f"{wanted}, got {shown(odd)} among them")
    return [
        None if entry is None else _sequence(entry, annotator, number)
        for annotator, entry in enumerate(entries)
    ]


def _sequence(entry: Any, annotator: int, number: int) -> list[str]:
    for label in entry:
        if not isinstance(label, str):
            raise DtypeError(
                f"every label must be a string, annotator {annotator} of sentence {number} has"
                f" {shown(label)}; an annotator who left out a token is None for the whole sentence"
            )
    return list(entry)
