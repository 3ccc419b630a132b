"""A report as one self-contained HTML page, with its numbers and figures as files beside it."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from softq.errors import DataError
from softq.lab.report.content import Figure, Gallery, Part, Section, Table, Value, show, to_csv
from softq.lab.report.drawing import COLOURS, PHONE_WIDTH, coloured, draw_png, draw_svg
from softq.lab.run import write_atomically
from softq.metrics import Interval

MOST_ROWS = 200  # of a table; the CSV file has all of them


def write_report(
    sections: Sequence[Section], out: Path, *, title: str = "softq report"
) -> list[Path]:
    """Write the page ``out``, and pictures and CSV files into the folder ``<stem>_files`` beside it; returns all paths, the page first.

    The page holds everything it shows and opens without a network. Each file is written whole or not at all, the page last.
    Raises DataError where a file cannot be written, DependencyError if there is a figure and no matplotlib.
    """
    out = Path(out)
    files: dict[str, bytes] = {}
    names = _Names()
    views = [
        {
            "id": names.new(f"section {section.title}"),
            "section": section,
            "parts": [_part_view(part, names, files) for part in section.parts],
            "differences": (
                section.differences
                and _table_view(section.differences, names.new("differences"), files)
            ),
        }
        for section in sections
    ]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("softq.lab.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    page = environment.get_template("page.html.j2").render(
        title=title, sections=views, colours=COLOURS, phone_width=PHONE_WIDTH
    )
    folder = out.with_name(out.stem + "_files")
    contents = {folder / name: content for name, content in files.items()} | {out: page.encode()}
    try:
        for path, content in contents.items():
            write_atomically(path, content)
    except OSError as error:
        raise DataError(
            f"cannot write the report to {out}: {error.strerror or error}"
            f" ({error.filename or out}); choose a folder that you may write to"
        ) from error
    return [out, *(path for path in contents if path != out)]


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


def _part_view(part: Part, names: _Names, files: dict[str, bytes]) -> dict[str, Any]:
    identity = names.new(part.name)
    if isinstance(part, Table):
        return _table_view(part, identity, files)
    view = {"id": identity, "part": part, "numbers": _table_view(part.numbers, identity, files)}
    if isinstance(part, Figure):
        return view | {"kind": "figure", "drawings": _drawings(part, identity, files)}
    return view | {"kind": "gallery", "examples": _examples(part, identity, files)}


def _table_view(table: Table, identity: str, files: dict[str, bytes]) -> dict[str, Any]:
    text = to_csv(table)
    files[f"{identity}.csv"] = text.encode()
    return {
        "kind": "table",
        "id": identity,
        "table": table,
        "rows": _cells(table)[:MOST_ROWS],
        "hidden": max(0, len(table.rows) - MOST_ROWS),
        "csv": "data:text/csv;charset=utf-8," + quote(text, safe=" ,;:=()[]{}%/'+*!?|"),
    }


def _cells(table: Table) -> list[list[tuple[str, str]]]:
    """Each cell as its text and the ends of its interval."""
    return [
        [
            (show(value, column.format), _ends(value, column.format))
            for value, column in zip(row, table.columns, strict=True)
        ]
        for row in table.rows
    ]


def _ends(value: Value, format_: str) -> str:
    if not isinstance(value, Interval) or not math.isfinite(value.low):
        return ""
    return f"{show(value.low, format_)} to {show(value.high, format_)}"


def _drawings(figure: Figure, identity: str, files: dict[str, bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for size, phone in {"wide": False, "phone": True}.items():
        svg, width, height = draw_svg(figure.draw, identity, phone=phone)
        found.append({"size": size, "svg": svg, "width": width, "height": height})
    for scheme, dark in {"": False, "-dark": True}.items():
        files[f"{identity}{scheme}.svg"] = coloured(found[0]["svg"], dark=dark).encode()
    files[f"{identity}.png"] = draw_png(figure.draw)
    return found


def _examples(gallery: Gallery, identity: str, files: dict[str, bytes]) -> list[dict[str, Any]]:
    found = []
    for number, example in enumerate(gallery.examples, 1):
        uri = ""
        if (picture := example.picture) is not None:
            files[f"{identity}-{number}.{picture.kind}"] = picture.content
            encoded = base64.b64encode(picture.content).decode()
            uri = f"data:image/{picture.kind};base64,{encoded}"
        found.append({"example": example, "uri": uri, "rows": _cells(example.scores)})
    return found
