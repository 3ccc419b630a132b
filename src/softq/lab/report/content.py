"""What a report is made of: sections of text, tables, figures and galleries."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from softq.errors import DataError
from softq.lab.report.drawing import Canvas
from softq.lab.report.pictures import Picture
from softq.metrics import Interval

MISSING = "–"

Value = str | float | int | Interval | None


@dataclass(frozen=True)
class Column:
    """A column's title and, if it holds numbers, their format (``".4f"``), which also aligns them.

    CSV files keep every digit.
    """

    title: str
    format: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values under columns. The first column names its row.

    None and NaN are shown as a dash.

    ``name`` becomes the name of the CSV file; ``folded`` hides the rows until someone asks for
    them.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    note: str = ""
    folded: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise DataError(
                    f"table {self.name!r} has {len(self.columns)} columns, got a row of {len(row)}"
                    " values"
                )

    @classmethod
    def of(
        cls,
        name: str,
        caption: str,
        rows: Sequence[Mapping[Column, Value]],
        note: str = "",
        *,
        folded: bool = False,
    ) -> Table:
        """A table of rows that know their columns.

        Columns, but the first, that hold nothing are left out.

        >>> Table.of("t", "T", [{Column("a"): "x", Column("b"): 1, Column("c"): None}, {Column("a"): "y"}]).rows
        [['x', 1], ['y', None]]
        """
        columns = list(dict.fromkeys(column for row in rows for column in row))
        kept = columns[:1] + [
            column for column in columns[1:] if any(row.get(column) is not None for row in rows)
        ]
        cells = [[row.get(column) for column in kept] for row in rows]
        return cls(name, caption, kept, cells, note, folded)


@dataclass(frozen=True)
class Figure:
    """A picture.

    ``draw`` paints it on a canvas, ``alt`` says in words what it shows, ``numbers`` are what was
    drawn.
    """

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[Canvas], None]
    numbers: Table


@dataclass(frozen=True)
class Example:
    """One input, the outputs of several systems, and their scores against each reference.

    Attributes:
        name: of the input.
        alt: the picture in words.
        picture: None where there is none.
        outputs: the output of each system, by the system's name.
        scores: references in the first column, then a column for each system; the last two rows are
            averages and maxima.

    """

    name: str
    alt: str
    picture: Picture | None
    outputs: Mapping[str, str]
    scores: Table


@dataclass(frozen=True)
class Gallery:
    """Examples under a title; ``numbers`` are all that they show."""

    name: str
    title: str
    caption: str
    examples: Sequence[Example]
    numbers: Table


Part = Table | Figure | Gallery


@dataclass(frozen=True)
class Section:
    """One experiment.

    What was run, its results in reading order, and where the numbers come from.
    """

    title: str
    intro: Sequence[str]  # paragraphs
    parts: Sequence[Part]
    warnings: Sequence[str] = ()
    commands: Sequence[str] = ()  # that run it again, or resume it
    recipe: str = ""  # TOML
    differences: Table | None = None  # from the paper
    provenance: Mapping[str, str] = field(default_factory=dict)


def show(value: Value, format_: str = "") -> str:
    """A value as the page shows it: formatted, with a true minus sign, a dash where it is missing.

    >>> show(-0.5, ".2f"), show(None), show(float("nan"), ".1f"), show("ML"), show(float("inf"))
    ('−0.50', '–', '–', 'ML', '∞')
    """
    if isinstance(value, Interval):
        value = value.value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, str):
        return value
    return format(value, format_).replace("-", "−").replace("inf", "∞")


def bare(value: float | Interval | None) -> Value:
    """An interval without ends, such as the mean of one seed, is a plain number, which takes one column of a CSV file."""
    return value.value if isinstance(value, Interval) and math.isnan(value.low) else value


def to_csv(table: Table) -> str:
    """The table with every digit, missing values empty.

    A column of intervals becomes three, value, low and high.
    """
    wide = [
        any(isinstance(row[i], Interval) for row in table.rows) for i in range(len(table.columns))
    ]

    def spread(cells: Sequence[Any], split: Callable[[Any], Sequence[Any]]) -> Iterator[Any]:
        for cell, is_wide in zip(cells, wide, strict=True):
            yield from split(cell) if is_wide else [cell]

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    titles = [column.title for column in table.columns]
    writer.writerow(spread(titles, lambda title: (title, f"{title} low", f"{title} high")))
    for row in table.rows:
        values = spread(
            row, lambda value: value if isinstance(value, Interval) else (value, None, None)
        )
        writer.writerow(
            "" if isinstance(value, float) and math.isnan(value) else value for value in values
        )
    return buffer.getvalue()
