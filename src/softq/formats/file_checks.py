"""Checks on what model files and run folders hold: they may be a stranger's, or damaged.

What does not hold is a `DataError` of one line. Kernels trust the indices that they are given, so
an index of a file is looked at once, when the file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from tokenize import TokenError
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from safetensors import SafetensorError, safe_open
from torch import Tensor

from softq.errors import DataError, DependencyError, SoftqError

Array = np.ndarray[Any, Any]
Tensors: TypeAlias = Mapping[str, Array | Tensor]
"""What a file holds, by name, as numpy's arrays or torch's tensors."""

_LONGEST_MESSAGE = 300
# Slots that follow each other without a free one, and are looked through one by one. A table that
# is half empty has some hundred of them at most, whatever its size.
_LONGEST_RUN = 1 << 12
FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # RecursionError is one
    SoftqError,
    TypeError,
    ValueError,
)
"""What Python, numpy and torch raise where values are not what the reader expects."""

ARRAY_FAULTS = (OSError, EOFError, TokenError, SyntaxError, *FAULTS)
"""What numpy raises on a damaged ``.npy`` file, whose header it reads as Python."""


class Stored(NamedTuple):
    """Tensors of a safetensors file by name, and its metadata."""

    tensors: dict[str, Any]
    metadata: dict[str, str]


def in_one_line(error: object) -> str:
    """What an error says, without line breaks and not at any length."""
    text = f"no {error}" if isinstance(error, KeyError) else str(error)
    line = " ".join(text.split()) or type(error).__name__
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…"


@contextmanager
def undamaged(what: str) -> Iterator[None]:
    """Turn what goes wrong while valid JSON or TOML is used, a missing key say, into a `DataError`.

    Errors of softq itself stay as they are.

    >>> with undamaged("runs/x"):
    ...     {"labels": 1}["scheme"]
    Traceback (most recent call last):
    softq.errors.DataError: runs/x is damaged, or another version of softq wrote it: no 'scheme'
    """
    try:
        yield
    except SoftqError:
        raise
    except FAULTS as error:
        message = f"{what} is damaged, or another version of softq wrote it: {in_one_line(error)}"
        raise DataError(message) from error


@contextmanager
def refusing(message: str) -> Iterator[None]:
    """Turn what goes wrong while a file's contents are read into a `DataError` of one line.

    It says the message, and then what went wrong.

    >>> with refusing("expected the notes of a tagger, got others"):
    ...     {"labels": 1}["scheme"]
    Traceback (most recent call last):
    softq.errors.DataError: expected the notes of a tagger, got others: no 'scheme'
    """
    try:
        yield
    except DependencyError:  # it says what to install
        raise
    except FAULTS as error:
        raise DataError(f"{message}: {in_one_line(error)}") from None


def read_tensors(path: str | PathLike[str], framework: Literal["pt", "numpy"] = "pt") -> Stored:
    """All of a safetensors file; those of torch stay on the disk until they are used."""
    try:
        with safe_open(path, framework) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
            return Stored(tensors, file.metadata() or {})
    except (OSError, SafetensorError, *FAULTS) as error:  # some are of types that numpy has not
        raise DataError(in_one_line(error)) from None


def parse_json(content: bytes | str, where: str) -> Any:
    """What JSON says; what it cannot is a `DataError`, and so is half of a character."""
    try:
        text = content if isinstance(content, str) else content.decode()
        found = json.loads(text, parse_constant=_no_number)
        if "\\ud" in text or "\\uD" in text:  # two such escapes are a character, one is none
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataError(f"expected JSON in {where}, got {in_one_line(error)}") from error
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name}, which JSON has not")


def notes_in(tensors: Tensors, name: str, kind: str) -> dict[str, Any]:
    """The JSON object in the bytes of a tensor; ``kind`` is what an error calls the whole."""
    if name not in tensors:
        raise DataError(f"expected the tensors of a {kind}, got none of the name {name!r}")
    where = f"the tensor {name!r} of a {kind}"
    return read_object(as_array(where, tensors[name], np.uint8, 1).tobytes(), where)


def check_format(notes: Mapping[str, Any], wanted: str) -> None:
    """A file says what it is."""
    if notes.get("format") != wanted:
        got = in_one_line(repr(notes.get("format")))
        raise DataError(f"expected the format {wanted!r}, got {got}")


def as_array(name: str, tensor: Tensor | Array, dtype: Any, dimensions: int) -> Array:
    """A tensor as an array of this type and number of dimensions, without copying it."""
    kind = np.dtype(dtype).name
    found = str(tensor.dtype).removeprefix("torch.")
    if found != kind or tensor.ndim != dimensions:
        shape = f"[{', '.join('?' * dimensions)}]"
        raise DataError(f"expected {name} of {kind} {shape}, got {found} {list(tensor.shape)}")
    return np.asarray(tensor)


def starting_with(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those tensors whose names begin with a prefix, without it."""
    chosen = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in chosen.items()}


def read_object(content: bytes | str, where: str) -> dict[str, Any]:
    """A JSON object from its text."""
    return mapping(where, parse_json(content, where))


def mapping(name: str, value: Any) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise DataError(f"expected an object of JSON in {name}, got {in_one_line(repr(value))}")
    return value


def string_list(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"{name} must be a list of strings, got {in_one_line(repr(value))}")
    return tuple(value)


def one_of(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    """One of a few values."""
    if isinstance(value, (list, dict)) or value not in known:
        told = ", ".join(map(repr, known))
        raise DataError(f"{name} must be one of {told}, got {in_one_line(repr(value))}")
    return value


def check_slots(slots: Array, size: int) -> None:
    """A table of keys and columns ``[S, 2]`` holds the columns 0 .. size - 1, each once.

    It must have a free slot not far behind every other, for a search to come to an end.
    """
    keys, columns = slots[:, 0], slots[:, 1]
    free = np.flatnonzero(keys == 0)
    if len(slots) - len(free) != size:
        raise DataError(f"expected a table of {size} keys, got {len(slots) - len(free)}")
    if not len(free) or np.diff(free, append=free[0] + len(slots)).max() > _LONGEST_RUN:
        raise DataError(f"expected free slots all over a table, got {_LONGEST_RUN} without one")
    columns = columns[keys != 0]
    if size and (columns.min() < 0 or columns.max() >= size):
        raise DataError(f"expected columns below {size}, got {columns.min()} to {columns.max()}")
    seen = np.zeros(size, np.bool_)
    seen[columns] = True
    if not seen.all():
        raise DataError(f"expected each of {size} columns once, got none of {int(seen.argmin())}")


def check_offsets(name: str, offsets: Array, rows: int, total: int) -> None:
    """Offsets ``[rows + 1]`` begin at 0, never fall, and end at ``total``."""
    whole = len(offsets) == rows + 1 and offsets[0] == 0 and offsets[-1] == total
    if not whole or (rows and (offsets[1:] < offsets[:-1]).any()):
        raise DataError(
            f"expected {rows + 1} {name} that rise from 0 to {total}, got {len(offsets)} others"
        )
