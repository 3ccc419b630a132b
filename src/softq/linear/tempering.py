"""The temperature of a trained tagger or parser, by which `calibrate` divides its scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from softq.errors import DataError
from softq.spaces import Distribution

Model = TypeVar("Model", bound=Distribution)


def at_temperature(model: Model, temperature: float) -> Model:
    """The distribution with its scores divided by a temperature; itself at 1, to the last bit."""
    return model if temperature == 1.0 else model.tempered(temperature)  # type: ignore[return-value]


def read_temperature(notes: Mapping[str, Any]) -> float:
    """The temperature of a saved model; 1 in files of before there was one.

    >>> read_temperature({"temperature": 1.5}), read_temperature({})
    (1.5, 1.0)
    """
    value = notes.get("temperature", 1.0)
    if isinstance(value, bool) or not isinstance(value, float) or not 0.0 < value < math.inf:
        raise DataError(f"temperature must be a positive number, got {value!r}")
    return value
