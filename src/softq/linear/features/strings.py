"""From Python's strings to code points in one buffer: what kernels can read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from softq.errors import DataError
from softq.linear.features.matrix import Array


class Texts(NamedTuple):
    """Strings as code points: text i is ``codes[begins[i] : begins[i] + sizes[i]]``."""

    codes: Array  # [C] uint32
    begins: Array  # [W] int64
    sizes: Array  # [W] int64


def encode(texts: Sequence[str]) -> Texts:
    """Code points of strings, each between the marks ``<`` and ``>``, which belong to none of them.

    >>> encode(["ab", "c"]).codes.tobytes().decode("utf-32-le"), encode(["ab", "c"]).begins
    ('<ab><c>', array([1, 5]))
    """
    joined = "<" + "><".join(texts) + ">" if texts else ""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    begins = 1 + np.cumsum(sizes + 2) - (sizes + 2)
    return Texts(np.frombuffer(joined.encode("utf-32-le"), np.dtype("<u4")), begins, sizes)


def shape_symbols(texts: Iterable[str]) -> Array:
    """What stands in a shape for each code point, as an array over all code points up to the largest of the texts."""
    characters = set("".join(texts))
    symbols = np.arange(max(map(ord, characters), default=0) + 1, dtype=np.uint32)
    for character in characters:
        if character.isupper() or character.istitle():
            symbols[ord(character)] = ord("X")
        elif character.isdigit():
            symbols[ord(character)] = ord("d")
        elif character.isalpha():
            symbols[ord(character)] = ord("x")
    return symbols


class Stream(NamedTuple):
    """A sequence of strings along all tokens.

    Numbers into its distinct strings, which stand in order of first occurrence.
    """

    ids: Array  # [T] int32
    distinct: list[str]


def number_strings(strings: Sequence[str]) -> Stream:
    """Number the distinct strings.

    >>> number_strings(["to", "be", "or", "not", "to", "be"])
    Stream(ids=array([0, 1, 2, 3, 0, 1], dtype=int32), distinct=['to', 'be', 'or', 'not'])
    """
    numbers = {text: number for number, text in enumerate(dict.fromkeys(strings))}
    return Stream(
        np.fromiter(map(numbers.__getitem__, strings), np.int32, len(strings)), list(numbers)
    )


def read_stream(name: str, sentences: Sequence[Sequence[str]]) -> tuple[Stream, Array]:
    """Distinct strings of sentences, and the sentences' lengths ``[N]``.

    ``name`` is what an error calls a string.
    """
    if not hasattr(sentences, "__len__"):
        raise DataError(
            f"sentences must be a sequence of sequences of strings, one {name} per token, got"
            f" {type(sentences).__name__}"
        )
    for number, sentence in enumerate(sentences):
        if isinstance(sentence, (str, bytes)):
            raise DataError(
                f"sentence {number} must be a sequence of strings, one {name} per token, got"
                f" {sentence!r}; split it into tokens first"
            )
    try:
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        stream = number_strings(list(chain.from_iterable(sentences)))
        "".join(stream.distinct).encode()
    except (TypeError, UnicodeEncodeError):
        raise DataError(next(_faults(name, sentences))) from None
    return stream, lengths


def _faults(name: str, sentences: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, sentence in enumerate(sentences):
        if not hasattr(sentence, "__len__"):
            yield (
                f"sentence {number} must be a sequence of strings, one {name} per token, got"
                f" {type(sentence).__name__}"
            )
        for place, text in enumerate(sentence):
            where = f"{name} of token {place} in sentence {number}"
            if not isinstance(text, str):
                yield f"{where}: expected a string, got {text!r} ({type(text).__name__})"
            elif any("\ud800" <= character <= "\udfff" for character in text):
                yield (
                    f"{where}: expected text, got {text!r}, which holds half of a character (a lone"
                    " surrogate)"
                )
