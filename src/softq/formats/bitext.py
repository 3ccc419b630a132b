"""Sentences with their translations.

One file of tab-separated columns, or files that belong together line by line; plain, .gz or .xz.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import ClassVar

from softq.errors import DataError
from softq.formats.rows import Keyed, Row, gather, read_rows
from softq.formats.text import Fault, read_lines, refuse


@dataclass(frozen=True, slots=True)
class Bitext(Keyed):
    """Sources, each with one or more references.

    Attributes:
        sources: N sentences.
        references: The translations of each, one or more.
        lines: Where each source first stands in its file, from 1; empty for text that was made, not
            read.
        name: What errors call the file; empty for text that was made.

    >>> text = Bitext(["Ja.", "Nein."], [["Yes."], ["No."]], [1, 4], "a.tsv")
    >>> text.place(1), text.take([1]).references
    ('a.tsv, line 4', [['No.']])
    >>> Bitext(["Ja.", "Nein."], [["Yes."], ["No."]]).place(1)
    'sentence 2'

    """

    noun: ClassVar[str] = "sentence"
    sources: list[str]
    references: list[list[str]]
    lines: list[int] = field(default_factory=list)
    name: str = ""


def read_bitext(*paths: Path, merge: bool = True) -> Bitext:
    """Sources and references of files; white space around a sentence is dropped.

    Args:
        paths: One file, with a source, a tab and a reference on each line, and further tabs and
            references where there are more. Or a file of sources and one or more files of
            references, whose lines belong together.
        merge: A source that stands on several lines is one example with all their references, in
            the place of the first. A reference that is there twice counts twice. Without it, each
            line is an example.

    Raises DataError, with file and line, for a line that is empty or lacks something, and for files
    of different lengths.

    """
    if not paths:
        raise DataError("expected a file of sources and references, got no file")
    faults: list[Fault] = []
    rows = (
        read_rows(paths[0], ("a source", "reference"), faults)
        if len(paths) == 1
        else _side_by_side(paths)
    )
    found = Bitext(*gather(rows, merge=merge), str(paths[0]))
    refuse(str(paths[0]), sorted(faults))
    if not found:
        raise DataError(f"{paths[0]} is empty: expected one sentence per line")
    return found


def _side_by_side(paths: tuple[Path, ...]) -> Iterator[Row]:
    for number, row in enumerate(zip_longest(*map(read_lines, paths)), start=1):
        for path, text in zip(paths, row, strict=True):
            if text is None:
                longer = next(
                    other for other, line in zip(paths, row, strict=True) if line is not None
                )
                raise DataError(
                    f"expected files whose lines belong together, got {path} with {number - 1}"
                    f" lines and {longer} with more"
                )
            if not text.strip():
                hint = (
                    ""
                    if path == paths[0]
                    else (
                        "; sources that differ in their number of references go into one file,"
                        " separated by tabs"
                    )
                )
                raise DataError(
                    f"{path}, line {number}: expected a sentence, got an empty line{hint}"
                )
        source, *references = (text.strip() for text in row)
        yield number, source, references
