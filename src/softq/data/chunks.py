"""Column files of any size, part by part: what reads them needs no more memory than for one part."""

from __future__ import annotations

import lzma
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from softq.data.conll import Block, Fault, clean_lines, decode, refuse, split_blocks
from softq.errors import DataError


class Chunk(NamedTuple):
    """A part of a column file: whole sentences, with the lines around them.

    Attributes:
        first: Number of the first line in the file, from 1.
        lines: All lines, the blank ones too, without their ends and the spaces there.
        blocks: The sentences.
        separator: What to add a column with: a space where spaces separate columns, else a tab.

    """

    first: int
    lines: list[str]
    blocks: list[Block]
    separator: str


def read_chunks(file: IO[bytes], where: str, *, size: int = 1 << 17) -> Iterator[Chunk]:
    r"""Sentences of a column file, whatever the columns after the token are: a label need not be among them.

    The format is that of `softq.data.conll`, except that sentences may differ in the number of their columns (the lines of one sentence
    may not), and that the first chunk decides whether tabs or spaces separate them: what does not fit that later is an error.

    Args:
        file: The bytes, unpacked.
        where: What errors call it.
        size: Lines of a chunk; there are more, until a sentence ends.

    >>> import io
    >>> [chunk] = read_chunks(io.BytesIO(b"Ann\nran\n\nHi\n"), "a file")
    >>> [block.columns for block in chunk.blocks]
    [[('Ann', 'ran')], [('Hi',)]]

    """
    tabs, separator = False, ""
    for first, lines, found in _read_lines(file, where, size, sentences=True):
        if not separator:
            tabs = any("\t" in line for line in lines)
        elif not tabs:
            found += [Fault(first + k, "expected no tab, as in the lines before, got one") for k, line in enumerate(lines) if "\t" in line]
        blocks = list(split_blocks(lines, tabs, found, first))
        found += _ragged(blocks, "tabs" if tabs else "spaces")
        if not separator and blocks:
            separator = " " if not tabs and max(blocks[0].widths) > 1 else "\t"
        if separator == "\t" and not tabs:  # one column, to which a tab adds another
            found += [Fault(block.line, "expected one column, as before, got several") for block in blocks if max(block.widths) > 1]
        refuse(where, found)
        yield Chunk(first, lines, blocks, separator)


def read_plain_chunks(file: IO[bytes], where: str, *, size: int = 1 << 13) -> Iterator[Chunk]:
    r"""Running text, a sentence per line, its tokens separated by white space: chunks as of a file with a token per line.

    Empty lines are skipped.

    >>> import io
    >>> [chunk] = read_plain_chunks(io.BytesIO(b"Ann ran\n\nHi\n"), "a file")
    >>> chunk.lines
    ['Ann', 'ran', '', 'Hi', '']

    """
    for first, sentences, found in _read_lines(file, where, size, sentences=False):
        refuse(where, found)
        lines: list[str] = []
        blocks = []
        for tokens in filter(None, map(str.split, sentences)):
            blocks.append(Block(first + len(lines), None, [1] * len(tokens), [tuple(tokens)]))
            lines += [*tokens, ""]
        yield Chunk(first, lines, blocks, "\t")


def _read_lines(file: IO[bytes], where: str, size: int, *, sentences: bool) -> Iterator[tuple[int, list[str], list[Fault]]]:
    """Parts of at least ``size`` lines, up to a blank one where they are to hold whole ``sentences``: first line, lines, faults."""
    first, offset = 1, 0
    for gathered in _cut(file, where, size, sentences=sentences):
        data = b"".join(gathered)
        text, found = decode(data, first, offset)
        yield first, clean_lines(text.removesuffix("\n")), found
        first += len(gathered)
        offset += len(data)


def _cut(file: IO[bytes], where: str, size: int, *, sentences: bool) -> Iterator[Sequence[bytes]]:
    lines: list[bytes] = []
    try:
        for line in file:
            lines.append(line)
            if len(lines) >= size and not (sentences and line.strip(b" \t\r\n")):
                yield lines
                lines = []
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"cannot read {where}: {error}") from error
    if lines:
        yield lines


def _ragged(blocks: Iterable[Block], separator: str) -> Iterator[Fault]:
    """Lines with more or fewer columns than the rest of their sentence."""
    for block in blocks:
        if not block.columns:
            usual = Counter(block.widths).most_common(1)[0][0]
            for place, width in enumerate(block.widths):
                if width != usual:
                    message = f"expected {usual} columns separated by {separator}, as in the rest of the sentence, got {width}"
                    yield Fault(block.line + place, message)
