"""Sentences, labels and options as users of taggers have them.

Read, checked, and turned into what taggers are made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from softq.annotators.reliability import AnnotatorRow, Model, estimate, reference_weights
from softq.errors import (
    DataError,
    DtypeError,
    EstimatorError,
    OutputError,
    RewardError,
    ShapeError,
)
from softq.formats.conll import MISSING, Sentence, find_scheme
from softq.formats.partial_labels import alternatives, certain, spelled
from softq.formats.tags import Scheme, faults, spans
from softq.linear.estimator_inputs import (
    check_sequence,
    common_kind,
    held_out_data,
    may_be_annotator,
    not_negative,
    read_annotations,
    read_sequences,
    shown,
)
from softq.linear.features import AttributeIndex, FeatureMatrix, TemplateIndex
from softq.linear.segment_tags import SegmentTags
from softq.linear.tagging import UNLABELLED, References, entity_reward
from softq.rewards import PartReward, SegmentAccuracy, TokenReward

Index = TemplateIndex | AttributeIndex
Kind = Literal["words", "pairs", "features"]
"""What tokens are: strings; (word, part of speech); features that the caller made."""

_NAMES: dict[Kind, str] = {
    "words": "a word (a string)",
    "pairs": "a (word, part of speech) tuple",
    "features": "a dict, list or set of features",
}


class TokenSentences(NamedTuple):
    """Tokens of N sentences, all of one kind; None where there is no token to tell by."""

    sentences: list[Any]
    kind: Kind | None

    @classmethod
    def read(cls, given: Any) -> TokenSentences:
        """Check that ``given`` is a sequence of sequences of tokens."""
        sentences = read_sequences(given, "a sequence of tokens")
        for number, sentence in enumerate(sentences):
            check_sequence(sentence, number, "token")
        kinds = {_kind(token_type) for token_type in set(map(type, chain.from_iterable(sentences)))}
        if len(kinds) > 1 or None in kinds:  # this finds the token
            common_kind(sentences, lambda token: _kind(type(token)), _NAMES, "token")
        kind = next(iter(kinds), None)
        if kind == "pairs":
            _check_pairs(sentences)
        return cls(sentences, kind)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sentence."""
        return [len(sentence) for sentence in self.sentences]

    def _columns(self, kind: Kind) -> tuple[Any, ...]:
        """Words, or features; and the columns beside words, where there are any."""
        if kind != "pairs":
            return (self.sentences,)
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
        words, *columns = self._columns(self.kind)
        return *TemplateIndex.fit(
            words, templates, columns=columns[0] if columns else None, hash_bits=hash_bits
        ), self.kind

    def features(self, index: Index, kind: Kind) -> FeatureMatrix:
        """Features of these sentences by an index that was made of tokens of this kind."""
        if self.kind not in (kind, None):
            raise DataError(
                f"each token of X must be {_NAMES[kind]}, as in fit, got {_NAMES[self.kind]}"
            )
        return index.transform(*self._columns(kind))


def _kind(token_type: type) -> Kind | None:
    if issubclass(token_type, str):
        return "words"
    if issubclass(token_type, tuple):
        return "pairs"
    return "features" if issubclass(token_type, (dict, list, set, frozenset)) else None


def _check_pairs(sentences: list[Any]) -> None:
    for s, sentence in enumerate(sentences):
        for t, token in enumerate(sentence):
            if len(token) != 2 or not (isinstance(token[0], str) and isinstance(token[1], str)):
                raise DataError(
                    f"sentence {s}, token {t}: a tuple must be (word, part of speech), two strings,"
                    f" got {shown(token)}; features are given as a list, a set or a dict"
                )


class Annotations(NamedTuple):
    """Label sequences of N sentences, one or several of each, with their weights and their annotators' places in y.

    ``?`` stands for a token that one of several annotators left out. Labels that are ``partial`` are
    those of `softq.annotators.known`.
    """

    sequences: list[list[Sequence[str]]]
    weights: list[np.ndarray[Any, Any]]
    annotators: list[list[int]]
    places: list[int]  # of annotators in y, missing ones too
    partial: bool = False

    @classmethod
    def read(
        cls, given: Any, lengths: Sequence[int], ref_weights: Any = None, *, partial: bool = False
    ) -> Annotations:
        """Check y against the lengths of the sentences.

        Annotators that are missing, or have the weight 0, are left out.
        """
        if partial:
            given = [None if row is None else [*map(spelled, row)] for row in given]
        read = read_annotations(given, lengths, ref_weights, _sequences, _check_length, "labels")
        sequences, weights, annotators, places = map(
            list, list(zip(*read, strict=True)) or [()] * 4
        )
        return cls(sequences, weights, annotators, places, partial)

    @property
    def several(self) -> bool:
        """Whether there are several annotators."""
        return any(places > 1 for places in self.places)

    def sentences(self) -> list[Sentence]:
        """The same with annotators, named by their places in y."""
        return [
            Sentence(("",) * len(found[0]), tuple(map(tuple, found)), tuple(map(str, places)))
            for found, places in zip(self.sequences, self.annotators, strict=True)
        ]

    def weighed(self, model: Model) -> tuple[Annotations, tuple[AnnotatorRow, ...]]:
        """The same with annotators, who are told apart by their places in y, weighed by how reliable they seem (EM); and their rows."""
        self.check_places()
        sentences = self.sentences()
        reliability = estimate([sentence for sentence in sentences if sentence.tokens], model)
        weights = [
            np.array(reference_weights(sentence, reliability)) if sentence.tokens else before
            for sentence, before in zip(sentences, self.weights, strict=True)
        ]
        return self._replace(weights=weights), by_place(reliability.annotators)

    def check_places(self) -> None:
        """Raise an error unless annotators can be told apart by their places in y."""
        counts = sorted(set(self.places))
        if len(counts) > 1 or counts[0] < 2:
            raise DataError(
                "annotators are weighed by where they agree and told apart by their places in y:"
                " expected the same two places or more in every sentence, None where an annotator"
                f" is missing, got {', '.join(map(str, counts))}"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels, sorted."""
        found = {str(label) for found in self.sequences for labels in found for label in labels}
        if self.partial:
            found = set().union(*map(alternatives, found))
        return tuple(sorted(found - ({MISSING} if self.several else set())))

    def scheme(self) -> Scheme | None:
        """The tag scheme that the labels follow, None where some of them are no tags of entities."""
        found = find_scheme(self.certain())
        try:
            if found is not None:
                spans(self.labels, found)
        except OutputError:
            return None
        return found

    def certain(self) -> Iterable[Sentence]:
        """Sentences for checks of tags, which pass over missing and uncertain labels."""
        if self.partial:
            return map(certain, self.sentences())
        if self.several:
            return self.sentences()
        return (Sentence((), tuple(map(tuple, found))) for found in self.sequences)

    def references(self, labels: Sequence[str]) -> References:
        """By the numbers of these labels."""
        number = {label: k for k, label in enumerate(labels)}
        if self.several:
            number[MISSING] = UNLABELLED
        arrays = [
            np.array([[number[label] for label in sequence] for sequence in found], np.int64)
            for found in self.sequences
        ]
        for place, found in enumerate(arrays):
            if (found < 0).all(0).any():
                token = int((found < 0).all(0).argmax())
                raise DataError(
                    f"sentence {place}, token {token}: expected a label of one annotator or more,"
                    " got none; a model of annotators, such as annotators='sequential', can do"
                    " without"
                )
        return References(arrays, self.weights)

    def accuracy(self, predicted: Sequence[Sequence[str]]) -> float:
        """Share of right labels over all tokens.

        A token with several annotators counts by the share that agrees.
        """
        right, tokens = 0.0, 0
        for guess, found, weights in zip(predicted, self.sequences, self.weights, strict=True):
            given = np.array([[str(label) for label in sequence] for sequence in found])
            known = (given != MISSING) | (not self.several)
            total = weights @ known
            agreeing = weights @ ((given == np.array(guess)) & known)
            right += float((agreeing[total > 0] / total[total > 0]).sum())
            tokens += int((total > 0).sum())
        return right / max(tokens, 1)


def by_place(rows: Sequence[AnnotatorRow]) -> tuple[AnnotatorRow, ...]:
    """Rows of annotators who are named by their places in y, in this order."""
    return tuple(sorted(rows, key=lambda row: int(row.name)))


def check_held_out(sentences: Any, labels: Any, kind: Kind | None) -> None:
    """Tell what is wrong with sentences to be scored before training, not after it."""
    if (sentences is None) != (labels is None):
        raise DataError(
            "X_dev and y_dev go together: expected both or neither, got"
            f" {'y_dev' if sentences is None else 'X_dev'} alone"
        )
    if sentences is None:
        return
    with held_out_data():
        held_out = TokenSentences.read(sentences)
        Annotations.read(labels, held_out.lengths)
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
    given = {number: [*entry] for number, entry in enumerate(entries) if entry is not None}
    for annotator, row in given.items():
        for label in row:
            if not isinstance(label, str):
                raise DtypeError(
                    f"every label must be a string, annotator {annotator} of sentence {number} has"
                    f" {shown(label)}; an annotator who left out a token is None for the whole"
                    " sentence"
                )
    return [given.get(annotator) for annotator in range(len(entries))]


Array = np.ndarray[Any, Any]
SchemeOption = Literal["auto", "iob1", "bio", "bioes"]


def scheme_for(option: SchemeOption, annotations: Annotations, what: str) -> Scheme:
    """The tag scheme of an option, where it says "auto" the one that the labels follow."""
    found = annotations.scheme()
    if option == "auto":
        if found is None:
            labels = ", ".join(annotations.labels[:5])
            raise DataError(
                f"{what} are for tags of entities such as B-PER, and the labels of y are"
                f" {labels}: "
                + ("leave constraints at 'none'" if what == "constraints" else "take space='chain'")
            )
        return found
    if found in (option, None):
        return option
    # Labels of another scheme would all be forbidden, and a tagger that keeps to this one would
    # predict nothing but O.
    for number, sentence in enumerate(annotations.certain()):
        for _, start, piece in sentence.pieces():
            for place, message in faults(piece, option):
                raise DataError(
                    f"scheme={option!r} does not fit: sentence {number}, token {start + place}:"
                    f" {message}; the labels of y follow {found}"
                )
    return option


def reward_for(
    option: Any, entity_weight: float, labels: Sequence[str], segments: SegmentTags | None = None
) -> PartReward:
    """The reward over these labels, or over the types of segments."""
    if option is None:
        return segments.reward(entity_weight) if segments else entity_reward(labels, entity_weight)
    if entity_weight != 1.0:
        raise EstimatorError(
            f"reward and entity_weight={entity_weight:g} do not go together: put the weight into the"
            " reward"
        )
    if segments is not None:
        if not isinstance(option, Mapping):
            raise RewardError(
                "a reward of segments is a dict from types, such as PER and O, to numbers, got"
                f" {type(option).__name__}"
            )
        labels = segments.kinds
    if isinstance(option, Mapping):
        unknown = [label for label in option if label not in labels]
        if unknown:
            raise OutputError(
                f"reward must name labels that occur in y, {', '.join(labels)}; got {unknown[0]!r}"
            )
        weights = [not_negative(f"reward of {label}", option.get(label, 1.0)) for label in labels]
        if segments is not None:
            return SegmentAccuracy(weights)
        return TokenReward.weighted(torch.tensor(weights, dtype=torch.float64))
    table = _reward_table(option)
    if table.shape != (len(labels), len(labels)):
        wanted = (
            f"[{len(labels)}, {len(labels)}] (predicted, right) for the labels of y,"
            f" {', '.join(labels)}"
        )
        raise ShapeError(f"reward must be {wanted}; got {list(table.shape)}")
    return TokenReward(torch.from_numpy(table))


def _reward_table(option: Any) -> Array:
    """A reward that is given as a table, as float64."""
    try:
        return np.array(
            option.table.cpu().numpy() if isinstance(option, TokenReward) else option,
            dtype=np.float64,
        )
    except (TypeError, ValueError):
        wanted = (
            "a table [K, K] of numbers, a softq.rewards.TokenReward, or a dict from labels to"
            " numbers"
        )
        raise RewardError(f"reward must be {wanted}, got {type(option).__name__}") from None


def reward_as_json(option: Any) -> Any:
    """A reward as JSON can hold it; a tagger that gets the result has the same one."""
    if isinstance(option, Mapping):
        return {label: float(weight) for label, weight in option.items()}
    return None if option is None else _reward_table(option).tolist()
