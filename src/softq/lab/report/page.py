"""A report: sections of prose, tables and figures, written as one self-contained HTML page with its numbers and pictures beside it."""

from __future__ import annotations

import base64
import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from softq.errors import DataError
from softq.lab.report.figures import (
    DARK,
    DARK_PHONE,
    LIGHT,
    LIGHT_PHONE,
    PHONE_WIDTH,
    Canvas,
    Picture,
    render,
)
from softq.lab.run import write_atomically
from softq.metrics import Interval

MISSING = "–"

Value = str | float | int | Interval | None


@dataclass(frozen=True)
class Column:
    """A column's title and, if it holds numbers, their format (``".4f"``), which also aligns them; CSV files keep every digit."""

    title: str
    format: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of values under columns. The first column names its row; None and NaN are shown as a dash.

    ``name`` becomes the name of the CSV file.
    """

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise DataError(
                    f"table {self.name!r} has {len(self.columns)} columns, got a row of {len(row)} values"
                )


@dataclass(frozen=True)
class Figure:
    """A picture: ``draw`` paints it on a canvas, ``alt`` says in words what it shows, ``numbers`` are what was drawn."""

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[Canvas], None]
    numbers: Table | None = None


@dataclass(frozen=True)
class Example:
    """One input, what systems made of it, and how each of these fares against each reference.

    Attributes:
        name: of the input.
        alt: the picture in words.
        picture: a PNG file; None where there is none.
        outputs: what each system wrote, by the system's name.
        scores: a column for each system behind the references, which stand in the first one; the last rows sum up.

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
    """One experiment: what was run, its tables, figures and examples in reading order, and where the numbers come from."""

    title: str
    intro: Sequence[str]  # paragraphs
    parts: Sequence[Part]
    command: str = ""  # runs the experiment again
    recipe: str = ""  # what it ran, as TOML
    differences: Sequence[str] = ()  # from the paper
    provenance: Mapping[str, str] = field(default_factory=dict)


def write_report(
    sections: Sequence[Section], out: Path, *, title: str = "softq report"
) -> list[Path]:
    """Write the page ``out``, and pictures and CSV files into the folder ``<stem>_files`` beside it; returns all paths, the page first.

    The page holds everything it shows and opens without a network. Each file is written whole or not at all, the page last.
    Raises DataError where a file cannot be written, DependencyError if there is a figure and no matplotlib.
    """
    out = Path(out)
    names = _Names()
    files: dict[str, bytes] = {}
    views = [_section_view(section, names, files) for section in sections]
    page = (
        _environment()
        .get_template("page.html.j2")
        .render(title=title, sections=views, light=LIGHT, dark=DARK, phone_width=PHONE_WIDTH)
    )
    folder = out.with_name(out.stem + "_files")
    contents = {folder / name: content for name, content in files.items()} | {out: page.encode()}
    try:
        for path, content in contents.items():
            write_atomically(path, content)
    except OSError as error:
        raise DataError(
            f"cannot write the report to {out}: {error.strerror or error} ({error.filename or out}); choose a folder that you may write to"
        ) from error
    return [out, *(path for path in contents if path != out)]


def show(value: Value, format_: str = "") -> str:
    """A value as the page shows it: formatted, with a true minus sign, a dash where it is missing.

    >>> show(-0.5, ".2f"), show(None), show(float("nan"), ".1f"), show("ML")
    ('−0.50', '–', '–', 'ML')
    """
    if isinstance(value, Interval):
        value = value.value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return value if isinstance(value, str) else format(value, format_).replace("-", "−")


def to_csv(table: Table) -> str:
    """The table with every digit, missing values empty; a column of intervals becomes three, value, low and high."""
    wide = [
        any(isinstance(row[i], Interval) for row in table.rows) for i in range(len(table.columns))
    ]

    def spread(cells: Sequence[Any], split: Callable[[Any], Sequence[Any]]) -> Iterator[Any]:
        for cell, is_wide in zip(cells, wide, strict=True):
            yield from split(cell) if is_wide else [cell]

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        spread(
            [column.title for column in table.columns],
            lambda title: (title, f"{title} low", f"{title} high"),
        )
    )
    for row in table.rows:
        values = spread(
            row, lambda value: value if isinstance(value, Interval) else (value, None, None)
        )
        writer.writerow(
            "" if isinstance(value, float) and math.isnan(value) else value for value in values
        )
    return buffer.getvalue()


# --- what the template sees -----------------------------------------------------------------------------


class _Names:
    """Names for files and anchors: plain letters, and never the same twice."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def new(self, text: str) -> str:
        plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "item"
        name, count = plain, 1
        while name in self.taken:
            count += 1
            name = f"{plain}-{count}"
        self.taken.add(name)
        return name


def _section_view(section: Section, names: _Names, files: dict[str, bytes]) -> dict[str, Any]:
    identity = names.new(f"section {section.title}")
    return {
        "id": identity,
        "section": section,
        "parts": [_part_view(part, names.new(part.name), files) for part in section.parts],
    }


def _part_view(part: Part, identity: str, files: dict[str, bytes]) -> dict[str, Any]:
    if isinstance(part, Table):
        return _table_view(part, identity, files)
    return (
        _figure_view(part, identity, files)
        if isinstance(part, Figure)
        else _gallery_view(part, identity, files)
    )


def _table_view(table: Table, identity: str, files: dict[str, bytes]) -> dict[str, Any]:
    content = to_csv(table).encode()
    files[f"{identity}.csv"] = content
    return {
        "kind": "table",
        "id": identity,
        "table": table,
        "rows": _rows_view(table),
        "csv": _data_uri(content, "text/csv;charset=utf-8"),
    }


def _rows_view(table: Table) -> list[list[dict[str, str]]]:
    return [
        [_cell_view(value, column.format) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]


def _cell_view(value: Value, format_: str) -> dict[str, str]:
    ends = ""
    if isinstance(value, Interval) and math.isfinite(value.low):
        ends = f"{show(value.low, format_)} to {show(value.high, format_)}"
    return {"text": show(value, format_), "ends": ends}


def _figure_view(figure: Figure, identity: str, files: dict[str, bytes]) -> dict[str, Any]:
    pictures = {}
    for key, style in {
        "light": LIGHT,
        "light_phone": LIGHT_PHONE,
        "dark": DARK,
        "dark_phone": DARK_PHONE,
    }.items():
        picture = render(figure.draw, style, "svg")
        pictures[key] = {
            "uri": _data_uri(picture.content, "image/svg+xml"),
            "width": picture.width,
            "height": picture.height,
        }
        if not style.phone:
            files[identity + ("-dark.svg" if key == "dark" else ".svg")] = picture.content
    files[f"{identity}.png"] = render(figure.draw, LIGHT, "png").content
    numbers = None if figure.numbers is None else _table_view(figure.numbers, identity, files)
    return {
        "kind": "figure",
        "id": identity,
        "figure": figure,
        "pictures": pictures,
        "numbers": numbers,
    }


def _gallery_view(gallery: Gallery, identity: str, files: dict[str, bytes]) -> dict[str, Any]:
    examples = []
    for number, example in enumerate(gallery.examples, 1):
        uri = ""
        if example.picture is not None:
            files[f"{identity}-{number}.png"] = example.picture.content
            uri = _data_uri(example.picture.content, "image/png")
        examples.append({"example": example, "uri": uri, "rows": _rows_view(example.scores)})
    numbers = _table_view(gallery.numbers, identity, files)
    return {
        "kind": "gallery",
        "id": identity,
        "gallery": gallery,
        "examples": examples,
        "numbers": numbers,
    }


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("softq.lab.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
