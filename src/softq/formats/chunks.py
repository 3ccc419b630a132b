"""Column files of any size, part by part.

What reads them needs no more memory than for one part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import IO, NamedTuple

from softq.formats.conll import Block, clean_lines, has_tabs, split_blocks
from softq.formats.text import Fault, read_parts, refuse


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


def read_chunks(file: IO[bytes], where: str, *, size: int = 1 << 20) -> Iterator[Chunk]:
    r"""Sentences of a column file, whatever the columns after the token are: a label need not be among them.

    The format is that of `softq.formats.conll`, except that sentences may differ in the number of their columns (the lines of one sentence
    may not), and that the first chunk decides whether tabs or spaces separate them: what does not fit that later is an error.

    Args:
        file: The bytes, unpacked.
        where: What errors call it.
        size: Bytes of a chunk; there are more, until a sentence ends.

    >>> import io
    >>> [chunk] = read_chunks(io.BytesIO(b"Ann\nran\n\nHi\n"), "a file")
    >>> [block.columns for block in chunk.blocks]
    [[('Ann', 'ran')], [('Hi',)]]

    """
    tabs, separator = False, ""
    for first, read, found in read_parts(file, where, size):
        lines = clean_lines(read)
        if not separator:
            tabs = has_tabs(lines)
        elif not tabs and has_tabs(lines):
            found += [
                Fault(first + k, "expected no tab, as in the lines before, got one")
                for k, line in enumerate(lines)
                if "\t" in line
            ]
        blocks = list(split_blocks(lines, tabs, found, first))
        found += _ragged(blocks, tabs)
        if not separator and blocks:
            separator = " " if not tabs and max(blocks[0].widths) > 1 else "\t"
        if separator == "\t" and not tabs:  # one column, to which a tab adds another
            found += [
                Fault(block.line, "expected one column, as before, got several")
                for block in blocks
                if max(block.widths) > 1
            ]
        refuse(where, sorted(found))
        yield Chunk(first, lines, blocks, separator)


def read_plain_chunks(
    file: IO[bytes],
    where: str,
    *,
    split: Callable[[str], list[str]] = str.split,
    size: int = 1 << 17,
) -> Iterator[Chunk]:
    r"""Running text, a sentence per line: chunks as of a file with a token per line. Empty lines are skipped.

    Args:
        file: The bytes, unpacked.
        where: What errors call it.
        split: The tokens of a line; by white space unless given.
        size: Bytes of a chunk, about.

    >>> import io
    >>> [chunk] = read_plain_chunks(io.BytesIO(b"Ann ran\n\nHi\n"), "a file")
    >>> chunk.lines
    ['Ann', 'ran', '', 'Hi', '']

    """
    for first, sentences, found in read_parts(file, where, size, sentences=False):
        refuse(where, sorted(found))
        lines: list[str] = []
        blocks = []
        for tokens in filter(None, map(split, sentences)):
            blocks.append(
                Block(first + len(lines), (), None, 0, [1] * len(tokens), [tuple(tokens)])
            )
            lines += [*tokens, ""]
        yield Chunk(first, lines, blocks, "\t")


def _ragged(blocks: Iterable[Block], tabs: bool) -> Iterator[Fault]:
    """Lines with more or fewer columns than the rest of their sentence."""
    for block in blocks:
        if not block.columns:
            usual = Counter(block.widths).most_common(1)[0][0]
            for place, width in enumerate(block.widths):
                if width != usual:
                    message = (
                        f"expected {usual} columns separated by {'tabs' if tabs else 'spaces'}, as in"
                        f" the rest of the sentence, got {width}"
                    )
                    yield Fault(block.line + place, message)
