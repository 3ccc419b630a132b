"""Files of tab-separated rows, which parallel text and captions have in common.

A line is a key (a source, the name of an image), a tab and one value or more. One key may stand on
several lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from softq.formats.text import Fault, file_type, opened, read_parts

Row = tuple[int, str, list[str]]
"""A line's number, or a record's, its key and its values."""


class Keyed:
    """What `Bitext` and `Captions` have in common.

    N keys and the values of each, the first two fields.

    Attributes:
        lines: Where each key first stands in its file, from 1: a line, or a record of JSON; empty
            where no file was read.
        name: What errors call the file; empty where no file was read.

    """

    __slots__ = ()
    noun: ClassVar[str]  # what messages call a key
    lines: list[int]
    name: str

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__match_args__)  # type: ignore[attr-defined]

    def __len__(self) -> int:
        """How many keys there are."""
        return len(self._fields()[0])

    def take(self, numbers: Sequence[int]) -> Self:
        """Some of the keys with their values, in the order of these numbers."""
        keys, values, lines, name = self._fields()
        chosen = (
            [column[number] for number in numbers] if column else []
            for column in (keys, values, lines)
        )
        return type(self)(*chosen, name)  # type: ignore[call-arg]

    def place(self, number: int) -> str:
        """Where a key stands, for messages."""
        if not self.lines:
            return f"{self.noun} {number + 1}"
        unit = "record" if file_type(Path(self.name)) == ".json" else "line"
        return f"{self.name}, {unit} {self.lines[number]}"


def read_rows(
    path: Path,
    kinds: tuple[str, str],
    faults: list[Fault],
    clean: Callable[[str], str] = str,
) -> Iterator[Row]:
    """Rows of a file without those that are wrong, of which ``faults`` gets a message.

    White space around keys and values is dropped. ``kinds`` are what messages call a key and a
    value; ``clean`` takes from a key what does not belong to it.
    """
    with opened(path) as file:
        for part in read_parts(file, str(path), sentences=False, strict=False):
            faults += part.faults
            wrong = {fault.line for fault in part.faults}
            for number, line in enumerate(part.lines, start=part.first):
                name, *values = map(str.strip, line.split("\t"))
                name = clean(name)
                if number in wrong:
                    continue
                if name and values and all(values):
                    yield number, name, values
                else:
                    expected = "{}, a tab and one or more {}s separated by tabs".format(*kinds)
                    got = _instead(name, values, *kinds)
                    faults.append(Fault(number, f"expected {expected}, got {got}"))


def _instead(name: str, values: list[str], key: str, value: str) -> str:
    """What came in place of a key and its values."""
    if not name and not any(values):
        return "an empty line"
    if not values:
        return "no tab"
    if not name:
        return f"{value}s without {key}"
    if not any(values):
        return f"{name!r} without a {value}"
    return f"an empty {value} in column {values.index('') + 2}"


def gather(
    rows: Iterable[Row], *, merge: bool = True
) -> tuple[list[str], list[list[str]], list[int]]:
    """Keys in order of first appearance, all values of each, and the line that each first stands on.

    Without ``merge``, each row stays by itself.
    """
    keys: list[str] = []
    values: list[list[str]] = []
    lines: list[int] = []
    number_of: dict[str, int] = {}
    for line, key, more in rows:
        number = number_of.setdefault(key, len(keys)) if merge else len(keys)
        if number < len(keys):
            values[number].extend(more)
        else:
            keys.append(key)
            values.append(more)
            lines.append(line)
    return keys, values, lines
