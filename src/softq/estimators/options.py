"""Checks on the options of estimators, which by scikit-learn's convention are made in ``fit``."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from softq.errors import EstimatorError


def device(name: str) -> torch.device:
    """A device that torch can use here."""
    try:
        torch.empty(0, device=name)  # a name may be known, and the device not there
        return torch.device(name)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise EstimatorError(f"device must be one that torch can use here, such as 'cpu', got {name!r} ({error})") from None


def count(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral) or value < 1:
        raise EstimatorError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def number(name: str, value: Any, wanted: str, accept: Callable[[float], bool]) -> float:
    """A number that is accepted, else an error that says what is ``wanted``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real) or not accept(float(value)):
        raise EstimatorError(f"{name} must be {wanted}, got {value!r}")
    return float(value)


def plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value
