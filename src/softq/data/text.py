"""Text files: one example per line, its references separated by tabs, words by white space; plain, .gz or .xz."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from softq.errors import DataError


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 text file without their ends, whatever it is packed with."""
    try:
        with _open(path) as file:
            for line in file:
                yield line.rstrip("\r\n")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def read_references(path: Path, limit: int | None = None) -> list[list[list[str]]]:
    """References of each example as words, ``[example][reference][word]``; at most ``limit`` examples."""
    examples: list[list[list[str]]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if limit is not None and len(examples) >= limit:
            break
        references = [part.split() for part in line.split("\t")]
        if not all(references):
            raise DataError(f"{path}, line {number}: expected one or more sentences separated by tabs, got an empty one")
        examples.append(references)
    if not examples:
        raise DataError(f"{path} is empty: expected one example per line")
    return examples


def number_words(examples: Sequence[Sequence[Sequence[str]]]) -> tuple[list[list[list[int]]], list[str]]:
    """Words as numbers in order of appearance, and the words by number.

    >>> number_words([[["a", "b", "a"]]])
    ([[[0, 1, 0]]], ['a', 'b'])
    """
    vocab: dict[str, int] = {}
    numbers = [[[vocab.setdefault(word, len(vocab)) for word in sentence] for sentence in example] for example in examples]
    return numbers, list(vocab)
