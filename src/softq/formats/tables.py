"""Tables of numbers with a label on each row, and tables of costs, as CSV with a header.

Columns are separated by commas, and may be quoted; ``.csv.gz`` and ``.csv.xz`` are decompressed.
"""

from __future__ import annotations

import csv
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from softq.errors import DataError
from softq.formats.text import file_type, name_of, read_lines, read_whole

Array = np.ndarray[Any, Any]


class Table(NamedTuple):
    """The cells of a file as text.

    Attributes:
        name: of the file, for errors.
        header: Names of the columns.
        rows: The cells of each row.
        lines: The line on which each row ends, from 1.

    """

    name: str
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    @classmethod
    def read(cls, source: Path | str) -> Table:
        r"""Read a file, or a string that is the text itself.

        >>> Table.read("size,kind\n1.5,a\n").rows
        [['1.5', 'a']]
        """
        name = name_of(source)
        reader = csv.reader(line + "\n" for line in read_lines(source))
        found = [(reader.line_num, row) for row in _rows(reader, name) if row]
        if len(found) < 2:
            raise DataError(
                f"{name}: expected a header and at least one row, got {len(found)} rows"
            )
        header = [title.strip() for title in found[0][1]]
        twice = {title for title in header if header.count(title) > 1 or not title}
        if twice:
            raise DataError(f"{name}, line 1: expected names of columns that differ, got {header}")
        for line, row in found:
            if len(row) != len(header):
                raise DataError(
                    f"{name}, line {line}: expected {len(header)} columns as in the header, got"
                    f" {len(row)}"
                )
        lines, rows = zip(*found[1:], strict=True)
        return cls(name, header, list(rows), list(lines))

    def column(self, title: str) -> list[str]:
        """The cells of a column, without the spaces around them."""
        place = self._place(title)
        return [row[place].strip() for row in self.rows]

    def numbers(self, titles: Sequence[str]) -> Array:
        """Columns of finite numbers, ``[n, D]`` float64."""
        places = [self._place(title) for title in titles]
        found = np.empty((len(self.rows), len(places)))
        for number, (row, line) in enumerate(zip(self.rows, self.lines, strict=True)):
            for column, place in enumerate(places):
                found[number, column] = self._number(row[place], line, titles[column])
        return found

    def _number(self, cell: str, line: int, title: str) -> float:
        try:
            value = float(cell)
        except ValueError:
            value = np.nan
        if not np.isfinite(value):
            raise DataError(
                f"{self.name}, line {line}, column {title!r}: expected a number, got"
                f" {cell.strip()!r}; give categories a column of 0 and 1 each, and fill in what is"
                " missing"
            )
        return value

    def _place(self, title: str) -> int:
        if title not in self.header:
            raise DataError(
                f"{self.name}: expected a column {title!r}, got {', '.join(self.header)}"
            )
        return self.header.index(title)


def _rows(reader: Any, name: str) -> Iterator[list[str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{name}, line {reader.line_num}: {error}") from None


def read_costs(path: Path, classes: Sequence[str]) -> Array:
    """What decisions cost, ``[decided, right]`` in the order of ``classes``.

    CSV has a row for each decision, its name first, and a column for each right class. TOML has a
    table for each decision: ``[benign]`` and below it ``malignant = 10``.
    """
    if file_type(path) == ".toml":
        try:
            table: dict[str, Any] = tomllib.loads(read_whole(path).decode())
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: expected TOML, got {error}") from None
    else:
        given = Table.read(path)
        numbers = given.numbers(given.header[1:])
        table = {
            row[0].strip(): dict(zip(given.header[1:], costs.tolist(), strict=True))
            for row, costs in zip(given.rows, numbers, strict=True)
        }
    found = np.empty((len(classes), len(classes)))
    for i, decided in enumerate(classes):
        row = table.get(decided)
        for j, right in enumerate(classes):
            cost = row.get(right) if isinstance(row, dict) else None
            number = isinstance(cost, (int, float)) and not isinstance(cost, bool)
            if not number or not abs(cost) <= sys.float_info.max:  # type: ignore[arg-type]
                raise DataError(
                    f"{path}: expected what it costs to decide {decided!r} where {right!r} is right,"
                    f" got {'nothing' if cost is None else f'{cost!r:.100}'}"
                )
            found[i, j] = cost
    return found
