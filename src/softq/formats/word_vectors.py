"""Pretrained word vectors: text of a word and its numbers on each line, or an array of numpy beside a list of words."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softq.errors import DataError
from softq.formats.file_checks import ARRAY_FAULTS, in_one_line
from softq.formats.text import read_lines

Array = np.ndarray[Any, Any]
_DIGITS = 18  # of a count of words, at most


class WordVectors(NamedTuple):
    """Vectors of V words.

    Attributes:
        words: each once.
        table: float32 ``[V, D]``.

    """

    words: tuple[str, ...]
    table: Array


def read_vectors(path: Path | str, words: Collection[str] | None = None) -> WordVectors:
    r"""Word vectors of a file, those of ``words`` alone if they are given.

    A word that the file has twice keeps its first vector.

    Args:
        path: ``x.npy``, an array ``[V, D]`` with its words in ``x.words.txt``, one a line; else
            text (plain, .gz or .xz), ``word v1 v2 …`` on each line, as GloVe and fastText have it.
            Word2vec's first line, with the number of words and of their dimensions, may be there.
        words: those that are wanted; None: all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "vectors.txt"
    ...     _ = path.write_text("the 0.5 1\ncat 2 -1\n")
    ...     read_vectors(path, {"cat", "dog"})
    WordVectors(words=('cat',), table=array([[ 2., -1.]], dtype=float32))

    """
    path = Path(path)
    wanted = None if words is None else frozenset(words)
    return _from_array(path, wanted) if path.suffix == ".npy" else _from_text(path, wanted)


def words_beside(path: Path) -> Path:
    """The file of the words of an array of vectors.

    >>> words_beside(Path("glove.6B.100d.npy")).name
    'glove.6B.100d.words.txt'
    """
    return path.with_name(f"{path.stem}.words.txt")


def _from_array(path: Path, wanted: frozenset[str] | None) -> WordVectors:
    try:
        table = np.lib.format.open_memmap(path, mode="r")
    except ARRAY_FAULTS as error:
        raise DataError(f"cannot read the word vectors {path}: {in_one_line(error)}") from None
    if table.ndim != 2 or table.dtype.kind != "f" or not table.shape[1]:
        raise DataError(
            f"{path}: expected word vectors, floats of shape [words, dimensions], got"
            f" {table.dtype} {list(table.shape)}"
        )
    beside = words_beside(path)
    known = list(read_lines(beside))
    if len(known) != len(table):
        raise DataError(
            f"{beside}: expected {len(table)} words, one for each vector of {path.name}, got"
            f" {len(known)} lines"
        )
    rows: dict[str, int] = {}
    for row, word in enumerate(known):
        if not word or word.split() != [word]:
            raise DataError(f"{beside}, line {row + 1}: expected one word, got {word!r:.100}")
        if wanted is None or word in wanted:
            rows.setdefault(word, row)
    chosen = np.fromiter(rows.values(), np.int64, len(rows))
    found = np.asarray(table[chosen], np.float32)
    bad = np.flatnonzero(~np.isfinite(found).all(1))
    if len(bad):
        row = int(chosen[bad[0]])
        raise DataError(
            f"{path}, row {row} ({known[row]!r}): expected finite numbers, got NaN or inf"
        )
    return WordVectors(tuple(rows), found)


def _from_text(path: Path, wanted: frozenset[str] | None) -> WordVectors:
    rows: dict[str, Array] = {}
    count, size, expected = 0, 0, None
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split()
        if number == 1 and len(fields) == 2 and all(map(_is_count, fields)):
            expected, size = map(int, fields)
            continue
        if not size:
            size = len(fields) - 1
        count += 1
        word, numbers = _parts(fields, size, f"{path}, line {number}")
        if word not in rows and (wanted is None or word in wanted):
            rows[word] = _vector(numbers, f"{path}, line {number} ({word!r:.100})")
    if expected is not None and count != expected:
        raise DataError(
            f"{path}: expected the {expected} words that its first line says, got {count}: is the"
            " file complete?"
        )
    if not count:
        raise DataError(f"{path}: expected word vectors, got none")
    table = np.stack([*rows.values()]) if rows else np.zeros((0, size), np.float32)
    return WordVectors(tuple(rows), table)


def _parts(fields: list[str], size: int, where: str) -> tuple[str, list[str]]:
    """A word and its numbers; a word with spaces in it, of which GloVe has some, is all before the numbers."""
    if size < 1 or len(fields) <= size or any(map(_is_number, fields[1:-size])):
        wanted = f"{size} numbers" if size > 0 else "numbers"
        raise DataError(
            f"{where}: expected a word and {wanted} after it, as on the first line, got"
            f" {len(fields)} columns"
        )
    return " ".join(fields[:-size]), fields[-size:]


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _vector(numbers: list[str], where: str) -> Array:
    try:
        vector = np.array(numbers, np.float32)
    except ValueError:
        wrong = next((text for text in numbers if not _is_number(text)), " ".join(numbers))
        raise DataError(f"{where}: expected numbers, got {wrong!r:.60}") from None
    if not np.isfinite(vector).all():
        raise DataError(f"{where}: expected finite numbers, got NaN or inf")
    return vector


def spellings(words: Collection[str]) -> Iterator[str]:
    """Under which spellings words are looked up: as they are, and in lower case.

    >>> sorted(set(spellings(["Rome", "is"])))
    ['Rome', 'is', 'rome']
    """
    for word in words:
        yield word
        yield word.lower()
