"""Text files: one example per line, its references separated by tabs, words by white space; plain, .gz or .xz.

Lines end at LF or CR LF and nowhere else: a CR elsewhere, a form feed or U+2028 is white space inside a line.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, cast

from softq.errors import DataError


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 text file without their ends, whatever it is packed with."""
    for number, line in enumerate(read_undecoded_lines(path), start=1):
        try:
            text = decode_line(line, number)
        except DataError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        yield text


def read_undecoded_lines(path: Path) -> Iterator[bytes]:
    """Lines of a file as bytes with their ends, whatever it is packed with."""
    try:
        with _open(path) as file:
            yield from file
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


def decode_line(line: bytes, number: int) -> str:
    """The text of a file's line, from 1, without its end; the first one may begin with a byte-order mark.

    >>> decode_line(bytes([0xEF, 0xBB, 0xBF, 0x61, 0x0D, 0x0A]), 1)
    'a'
    """
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"the byte 0x{error.object[error.start]:02x} is not UTF-8 text: convert the file, for example with iconv") from None


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")


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
