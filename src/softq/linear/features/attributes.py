"""Features that the caller made: the inputs of python-crfsuite, as they are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from softq.errors import DataError
from softq.kernels.features.words import columns_of, feature_keys, hash_texts
from softq.linear.features.matrix import (
    Array,
    FeatureIndex,
    FeatureMatrix,
    check_min_freq,
    encode,
    half_character,
    named_columns,
    number_strings,
)

Attributes: TypeAlias = Mapping[str, Any] | Iterable[str]
"""Features of a token: a dict, or a list, tuple or set of strings."""

_LARGEST = float(np.finfo(np.float32).max)
_LISTS = (list, tuple, set, frozenset)
_NUMBERS = (Real, np.bool_)


class AttributeIndex(FeatureIndex):
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

    _kind = "attributes"

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
            index = cls({}, hash_bits)
            return index, read.matrix(index)
        kept = np.arange(len(read.distinct))
        if min_freq > 1:
            rows = np.repeat(np.arange(len(read.counts)), read.counts)
            # each feature once per token
            once = np.unique(rows * len(read.distinct) + read.ids) % max(len(read.distinct), 1)
            kept = np.flatnonzero(np.bincount(once, minlength=len(read.distinct)) >= min_freq)
        names = [read.distinct[number].encode() for number in kept]
        offsets = np.concatenate([[0], np.cumsum([len(name) for name in names], dtype=np.int64)])
        text = np.frombuffer(b"".join(names), np.uint8)
        index = cls(named_columns(read.keys[kept], text, offsets))
        return index, read.matrix(index)

    def transform(self, sentences: Sequence[Sequence[Attributes]]) -> FeatureMatrix:
        """Features of sentences; those that `fit` has not met (or not kept) are left out."""
        return _read(sentences).matrix(self)


class _Read(NamedTuple):
    """Features of all tokens, one after the other, as numbers into the distinct ones."""

    distinct: list[str]
    keys: Array  # of the distinct ones
    ids: Array  # [nnz]
    values: Array | None  # [nnz]
    counts: Array  # [T] features of each token
    lengths: Array  # [N]

    def matrix(self, index: AttributeIndex) -> FeatureMatrix:
        columns = columns_of(index.known, self.keys)[self.ids]
        known = columns >= 0
        before = np.concatenate([[0], np.cumsum(known)])  # known features before each
        offsets = before[np.concatenate([[0], np.cumsum(self.counts)])]
        values = None if self.values is None else self.values[known]
        if values is not None and bool((values == 1.0).all()):
            values = None
        return FeatureMatrix(offsets, columns[known], values, self.lengths, index.size)


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
            _read_token(token, "", (s, t), names, weights)
            ends.append(len(names))
        lengths.append(len(ends) - before)
    stream = number_strings(names)
    try:
        texts = encode(stream.distinct)
    except UnicodeEncodeError:
        place = next(place for place, name in enumerate(names) if half_character(name))
        raise DataError(
            f"{_where(*_token_of(place, ends, lengths))}: expected text, got {names[place]!r},"
            " which holds half of a character (a lone surrogate)"
        ) from None
    values = None
    if weights:
        bad = next(
            (place for place, value in weights.items() if not -_LARGEST <= value <= _LARGEST), None
        )
        if bad is not None:
            where = _where(*_token_of(bad, ends, lengths), names[bad])
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


def _token_of(place: int, ends: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """Sentence and token of the feature at this place."""
    token = bisect_right(ends, place)
    starts = [0, *accumulate(lengths)]
    sentence = bisect_right(starts, token) - 1
    return sentence, token - starts[sentence]


def _where(sentence: int, token: int, key: str = "") -> str:
    return f"sentence {sentence}, token {token}{f', key {key!r}' if key else ''}"


def _read_token(
    token: Any,
    prefix: str,
    place: tuple[int, int],
    names: list[str],
    weights: dict[int, float],
) -> None:
    """Append the names of a token's features, or of what stands inside of one, with a prefix.

    Values that are not 1 become ``weights``. The common types come first, and are told by `type`,
    for speed; ``place`` is for errors.
    """
    if isinstance(token, dict):
        for key, value in token.items():
            name = prefix + (key if type(key) is str else _text(key, _where(*place), "a key"))
            kind = type(value)
            if kind is str:
                names.append(f"{name}:{value}")
            elif kind is bool or kind is float or kind is int or isinstance(value, _NUMBERS):
                if value != 1:
                    weights[len(names)] = value.item() if isinstance(value, np.generic) else value
                names.append(name)
            elif isinstance(value, (dict, *_LISTS)):
                _read_token(value, f"{name}:", place, names, weights)
            elif isinstance(value, (str, bytes)):
                names.append(f"{name}:{_text(value, _where(*place, name), 'a value')}")
            else:
                raise DataError(
                    f"{_where(*place, name)}: expected a string, a number, a dict or a list of"
                    f" strings, got {value!r} ({type(value).__name__})"
                )
    elif isinstance(token, _LISTS):
        names += _texts_in(token, prefix, place)
    else:
        raise DataError(
            f"{_where(*place)}: expected a dict or a list, tuple or set of strings, got {token!r}"
            f" ({type(token).__name__})"
        )


def _texts_in(token: Any, prefix: str, place: tuple[int, int]) -> list[str]:
    """The strings of a list with a prefix, sorted if it has no order."""
    texts = list(token)
    if set(map(type, texts)) - {str}:
        where = _where(*place, prefix.removesuffix(":"))
        texts = [_text(name, where, "a feature") for name in texts]
    if isinstance(token, (set, frozenset)):
        texts.sort()
    return [prefix + text for text in texts] if prefix else texts


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
