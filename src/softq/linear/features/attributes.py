"""Features that the caller made: the inputs of python-crfsuite, as they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from softq.errors import DataError
from softq.formats.file_checks import Tensors
from softq.kernels.features.words import columns_of, feature_keys, hash_texts
from softq.linear.features.matrix import Array, FeatureMatrix
from softq.linear.features.strings import encode, number_strings
from softq.linear.features.table import ColumnTable, check_min_freq

Attributes: TypeAlias = Mapping[str, Any] | Iterable[str]
"""Features of a token: a dict, or a list, tuple or set of strings."""

_KIND = "attributes"
_LARGEST = float(np.finfo(np.float32).max)
_LISTS = (list, tuple, set, frozenset)


class AttributeIndex:
    """Columns of features that the caller made, given as to python-crfsuite.

    A token is a list, tuple or set of strings, which are its features, with the value 1; or a dict,
    where

    - ``{"key": number}`` is the feature ``key`` with this value; True is 1 and False 0,
    - ``{"key": "text"}`` is the feature ``key:text``,
    - ``{"key": [...]}``, also with a dict, tuple or set, is what stands inside, with ``key:``
      before each name.

    A feature that a token has twice counts twice. Sets are read in sorted order, so that the order
    of columns is always the same. As in `TemplateIndex`, columns are numbered in order of first
    occurrence, and features are told apart by 64-bit keys.

    >>> index, matrix = AttributeIndex.fit([[{"word": "Paris", "capital": True}, {"word": "is", "length": 2.0}]])
    >>> index.names()
    ['word:Paris', 'capital', 'word:is', 'length']
    >>> matrix.values
    array([1., 1., 1., 2.], dtype=float32)
    """

    def __init__(self, table: ColumnTable) -> None:
        self._table = table

    @classmethod
    def fit(
        cls,
        sentences: Sequence[Sequence[Attributes]],
        *,
        min_freq: int = 1,
        hash_bits: int | None = None,
    ) -> tuple[AttributeIndex, FeatureMatrix]:
        """Number the features of sentences; the index, and the features as a matrix.

        Args:
            sentences: Tokens with their features.
            min_freq: Features on fewer tokens are dropped.
            hash_bits: Keep no table: the column is the lowest bits of the key, and features may
                share it.

        """
        check_min_freq(min_freq, hash_bits)
        read = _read(sentences)
        if hash_bits is not None:
            table = ColumnTable.hashed(hash_bits)
        else:
            kept = np.arange(len(read.distinct))
            if min_freq > 1:
                rows = np.repeat(np.arange(len(read.counts)), read.counts)
                once = np.unique(rows * len(read.distinct) + read.ids) % max(
                    len(read.distinct), 1
                )  # each feature once per token
                kept = np.flatnonzero(np.bincount(once, minlength=len(read.distinct)) >= min_freq)
            names = [read.distinct[number].encode() for number in kept]
            offsets = np.concatenate(
                [[0], np.cumsum([len(name) for name in names], dtype=np.int64)]
            )
            table = ColumnTable.make(
                read.keys[kept], np.frombuffer(b"".join(names), np.uint8), offsets
            )
        return cls(table), read.matrix(table)

    def transform(self, sentences: Sequence[Sequence[Attributes]]) -> FeatureMatrix:
        """Features of sentences; those that `fit` has not met (or not kept) are left out."""
        return _read(sentences).matrix(self._table)

    @property
    def size(self) -> int:
        """F, number of columns."""
        return self._table.size

    def names(self) -> list[str]:
        """A name for each column."""
        return self._table.names()

    def tensors(self) -> dict[str, Array]:
        """Arrays to save; with `notes`, all there is."""
        return self._table.tensors()

    def notes(self) -> dict[str, Any]:
        """What else to save: it can stand in JSON."""
        return {"kind": _KIND, **self._table.notes()}

    @classmethod
    def from_tensors(cls, tensors: Tensors, notes: Mapping[str, Any]) -> AttributeIndex:
        """The index that was saved. The arrays are used as they are, read-only ones too."""
        if notes.get("kind") != _KIND:
            raise DataError(
                f"expected the notes of an AttributeIndex (kind {_KIND!r}), got kind"
                f" {notes.get('kind')!r}"
            )
        return cls(ColumnTable.from_tensors(tensors, notes))


class _Read(NamedTuple):
    """Features of all tokens, one after the other, as numbers into the distinct ones."""

    distinct: list[str]
    keys: Array  # of the distinct ones
    ids: Array  # [nnz]
    values: Array | None  # [nnz]
    counts: Array  # [T] features of each token
    lengths: Array  # [N]

    def matrix(self, table: ColumnTable) -> FeatureMatrix:
        columns = columns_of(table.known, self.keys)[self.ids]
        known = columns >= 0
        before = np.concatenate([[0], np.cumsum(known)])  # known features before each
        offsets = before[np.concatenate([[0], np.cumsum(self.counts)])]
        values = None if self.values is None else self.values[known]
        if values is not None and bool((values == 1.0).all()):
            values = None
        return FeatureMatrix(offsets, columns[known], values, self.lengths, table.size)


def _read(sentences: Sequence[Sequence[Attributes]]) -> _Read:
    names: list[str] = []
    weights: dict[int, float] = {}  # those that are not 1, by their place in names
    ends: list[int] = []  # of each token in names
    lengths: list[int] = []
    for s, sentence in enumerate(sentences):
        if isinstance(sentence, (str, bytes, Mapping)) or not isinstance(sentence, Iterable):
            raise DataError(
                f"sentence {s} must be a sequence of tokens, each a dict or a list of strings, got"
                f" {sentence!r}"
            )
        before = len(ends)
        for t, token in enumerate(sentence):
            if not _read_plain(token, names, weights):
                for name, value in _features(token, f"sentence {s}, token {t}", ""):
                    if value != 1:
                        weights[len(names)] = value
                    names.append(name)
            ends.append(len(names))
        lengths.append(len(ends) - before)
    stream = number_strings(names)
    try:
        texts = encode(stream.distinct)
    except UnicodeEncodeError:
        place = next(
            place
            for place, name in enumerate(names)
            if any("\ud800" <= character <= "\udfff" for character in name)
        )
        where = _where(place, ends, lengths)
        raise DataError(
            f"{where}: expected text, got {names[place]!r}, which holds half of a character (a lone"
            " surrogate)"
        ) from None
    values = None
    if weights:
        bad = next(
            (place for place, value in weights.items() if not -_LARGEST <= value <= _LARGEST), None
        )
        if bad is not None:
            where = f"{_where(bad, ends, lengths)}, key {names[bad]!r}"
            raise DataError(
                f"{where}: expected a finite number that a 32-bit float can hold, got"
                f" {weights[bad]!r}"
            )
        values = np.ones(len(names), np.float32)
        values[np.fromiter(weights, np.int64, len(weights))] = np.fromiter(
            weights.values(), np.float64, len(weights)
        )
    counts = np.diff(np.array([0, *ends], np.int64))
    return _Read(
        stream.distinct,
        feature_keys(np.uint64(0), hash_texts(*texts)),
        stream.ids,
        values,
        counts,
        np.array(lengths, np.int64),
    )


def _where(place: int, ends: Sequence[int], lengths: Sequence[int]) -> str:
    """Sentence and token of the feature at this place."""
    token = bisect_right(ends, place)
    starts = [0, *accumulate(lengths)]
    sentence = bisect_right(starts, token) - 1
    return f"sentence {sentence}, token {token - starts[sentence]}"


def _read_plain(token: Any, names: list[str], weights: dict[int, float]) -> bool:
    """Read the common tokens fast: strings in a list or set, strings and numbers in a dict.

    For others False, and nothing done.
    """
    kind = type(token)
    if kind is not dict:
        if kind not in _LISTS:
            return False
        for name in token:
            if type(name) is not str:
                return False
        names += sorted(token) if kind is set or kind is frozenset else token
        return True
    start = len(names)
    for key, value in token.items():
        if type(key) is str:
            kind = type(value)
            if kind is str:
                names.append(f"{key}:{value}")
                continue
            if kind is bool or kind is float or kind is int:
                if value != 1:
                    weights[len(names)] = value
                names.append(key)
                continue
        del names[
            start:
        ]  # weights may stay: whoever reads the token again puts the same ones there
        return False
    return True


def _features(token: Any, where: str, prefix: str) -> Iterator[tuple[str, float]]:
    """Names and values of a token's features, or of what stands inside of one, with a prefix.

    ``where`` is for errors.
    """
    if isinstance(token, dict):
        for key, value in token.items():
            name = prefix + _text(key, where, "a key")
            if isinstance(value, (dict, *_LISTS)):
                yield from _features(value, where, f"{name}:")
            elif isinstance(value, (str, bytes)):
                yield f"{name}:{_text(value, f'{where}, key {name!r}', 'a value')}", 1.0
            elif isinstance(value, (Real, np.bool_)):
                yield name, value.item() if isinstance(value, np.generic) else value  # type: ignore[misc]
            else:
                wanted = "expected a string, a number, a dict or a list of strings"
                raise DataError(
                    f"{where}, key {name!r}: {wanted}, got {value!r} ({type(value).__name__})"
                )
    elif isinstance(token, _LISTS):
        at = f"{where}, key {prefix[:-1]!r}" if prefix else where
        texts = [_text(name, at, "a feature") for name in token]
        for text in sorted(texts) if isinstance(token, (set, frozenset)) else texts:
            yield prefix + text, 1.0
    else:
        raise DataError(
            f"{where}: expected a dict or a list, tuple or set of strings, got {token!r}"
            f" ({type(token).__name__})"
        )


def _text(text: Any, where: str, what: str) -> str:
    if isinstance(text, str):
        return text
    if isinstance(text, bytes):
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise DataError(f"{where}: expected {what} in UTF-8, got {text!r}") from None
    raise DataError(
        f"{where}: expected {what} that is a string, got {text!r} ({type(text).__name__})"
    )
