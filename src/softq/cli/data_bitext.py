"""What `softq data` says of sentences with translations: files of tab-separated columns, and files whose lines belong together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softq.errors import DataError
from softq.formats.bitext import read_bitext
from softq.formats.text import Fault, file_type, opened, read_lines, read_parts
from softq.formats.tokens import tokenize, without_marks

_ENOUGH = 100  # lines that tell what a file is
_ONE_IN = 4  # sources of a bitext, or more often, is more than a word


def is_bitext(path: Path) -> bool:
    """Whether a file is sources and references by its name (.tsv) and its first lines: what stands before a tab is often several words.

    Tokens of column files may hold a space, but few do. Blank lines say nothing: where columns end a sentence so, here they are faults.
    """
    if not _has_columns(path):
        return False
    sources: list[str] = []
    with suppress(DataError):  # whoever reads it will say so
        sources.extend(
            line.partition("\t")[0].strip()
            for line in islice(read_lines(path), _ENOUGH)
            if "\t" in line
        )
    several = sum(" " in source for source in sources)
    return several > 0 and several * _ONE_IN >= sum(map(bool, sources))


def group_bitext(paths: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Each file of columns by itself, all others together: a file of sources and files of references."""
    columns = [path for path in paths if _has_columns(path)]
    together = tuple(path for path in paths if path not in columns)
    return [*((path,) for path in columns), *([together] if together else [])]


def _has_columns(path: Path) -> bool:
    return file_type(path) == ".tsv"


def count_bitext(paths: tuple[Path, ...]) -> dict[str, Any]:
    """All numbers of sources and references, as they go to JSON."""
    text = read_bitext(*paths)
    sides = {
        "source": [without_marks(tokenize(sentence)) for sentence in text.sources],
        "target": [
            without_marks(tokenize(sentence))
            for references in text.references
            for sentence in references
        ],
    }
    facts: dict[str, Any] = {
        "path": ", ".join(map(str, paths)),
        "format": "bitext",
        "sentences": len(text),
        "references": len(sides["target"]),
        "distinct_references": sum(len(set(references)) for references in text.references),
        "references_per_source": {
            str(count): times for count, times in sorted(Counter(map(len, text.references)).items())
        },
    }
    for side, sentences in sides.items():
        words = Counter(word for sentence in sentences for word in sentence)
        facts[side] = {
            "words": words.total(),
            "distinct_words": len(words),
            "words_that_occur_once": sum(count == 1 for count in words.values()),
            "mean_length": words.total() / len(sentences),
            "longest": max(map(len, sentences)),
        }
    return facts


def show_bitext(file: dict[str, Any], console: Console) -> None:
    """The same as a table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    for side in ("source", "target"):
        table.add_column(side, justify="right")
    table.add_row("sentences", f"{file['sentences']:,}", f"{file['references']:,}")
    for name in ("words", "distinct_words", "words_that_occur_once"):
        table.add_row(
            name.replace("_", " "), *(f"{file[side][name]:,}" for side in ("source", "target"))
        )
    table.add_row(
        "words per sentence, mean",
        *(f"{file[side]['mean_length']:.2f}" for side in ("source", "target")),
    )
    table.add_row(
        "words of the longest sentence",
        *(f"{file[side]['longest']:,}" for side in ("source", "target")),
    )
    table.add_section()
    for count, times in file["references_per_source"].items():
        table.add_row(
            f"sources with {count} reference{'s' if count != '1' else ''}", f"{times:,}", ""
        )
    if file["distinct_references"] < file["references"]:
        table.add_row(
            "references that repeat another",
            "",
            f"{file['references'] - file['distinct_references']:,}",
        )
    console.print(escape(file["path"]), highlight=False, soft_wrap=True)
    console.print(table)


def check_bitext(paths: tuple[Path, ...]) -> dict[Path, list[Fault]]:
    """Every fault of each file, in the order of its lines."""
    found: dict[Path, list[Fault]] = {path: [] for path in paths}
    lines: dict[Path, list[str]] = {}
    for path in paths:
        try:
            with opened(path) as file:
                parts = list(read_parts(file, str(path), sentences=False, strict=False))
        except DataError as error:
            found[path].append(Fault(0, str(error)))
            continue
        lines[path] = [line for part in parts for line in part.lines]
        found[path] += [fault for part in parts for fault in part.faults]
        if not lines[path]:
            found[path].append(Fault(0, "no sentences: expected one per line"))
        found[path] += _column_faults(lines[path]) if len(paths) == 1 else _line_faults(lines[path])
    if len(lines) > 1:
        counts = {path: len(of_path) for path, of_path in lines.items()}
        for path, count in counts.items():
            if count != counts[paths[0]]:
                found[path].append(
                    Fault(0, f"expected {counts[paths[0]]} lines, as in {paths[0]}, got {count}")
                )
    return {
        path: sorted(faults, key=lambda fault: fault.line or math.inf)
        for path, faults in found.items()
    }


def _column_faults(lines: Sequence[str]) -> Iterator[Fault]:
    for number, line in enumerate(lines, start=1):
        row = [part.strip() for part in line.split("\t")]
        if not any(row):
            yield Fault(number, "expected a source, a tab and references, got an empty line")
        elif len(row) == 1:
            yield Fault(number, "expected a tab between source and reference, got none")
        else:
            for column, text in enumerate(row, start=1):
                if not text:
                    yield Fault(
                        number,
                        f"the {'source' if column == 1 else 'reference'} in column {column} is empty",
                    )


def _line_faults(lines: Sequence[str]) -> Iterator[Fault]:
    return (
        Fault(number, "the line is empty")
        for number, line in enumerate(lines, start=1)
        if not line.strip()
    )
