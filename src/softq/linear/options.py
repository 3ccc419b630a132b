"""Checks on the options of estimators, which by scikit-learn's convention are made in ``fit``."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from softq.checks import check_tau
from softq.errors import EstimatorError, TemperatureError
from softq.options import FEWEST_BITS, MOST_BITS, ObjectiveName

Choice = TypeVar("Choice", bound=str)
Random = np.random.RandomState | np.random.Generator


def device(name: str) -> torch.device:
    """A device that torch can use here."""
    try:
        torch.empty(0, device=name)  # a name may be known, and the device not there
        return torch.device(name)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise EstimatorError(
            f"device must be one that torch can use here, such as 'cpu', got {name!r} ({error})"
        ) from None


def count(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral) or value < 1:
        raise EstimatorError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def bits(name: str, value: Any) -> int:
    """A power of two that is the size of a table of hashed features."""
    if count(name, value) not in range(FEWEST_BITS, MOST_BITS + 1):
        raise EstimatorError(
            f"{name} must be a whole number in {FEWEST_BITS}..{MOST_BITS}, got {value!r}"
        )
    return int(value)


def number(name: str, value: Any, wanted: str, accept: Callable[[float], bool]) -> float:
    """A number that is accepted, else an error that says what is ``wanted``."""
    if (
        isinstance(value, (bool, np.bool_))
        or not isinstance(value, numbers.Real)
        or not accept(float(value))
    ):
        raise EstimatorError(f"{name} must be {wanted}, got {value!r}")
    return float(value)


def positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    return number(name, value, "a positive number", lambda number: 0.0 < number < math.inf)


def not_negative(name: str, value: Any) -> float:
    """A finite number from 0."""
    return number(name, value, "a number from 0", lambda number: 0.0 <= number < math.inf)


def choice(name: str, value: Any, known: tuple[Choice, ...]) -> Choice:
    """One of the known names."""
    if value not in known:
        near = difflib.get_close_matches(str(value).lower(), known, 1, cutoff=0.0)
        raise EstimatorError(
            f"{name} must be one of {', '.join(known)}, got {value!r}; did you mean {near[0]!r}?"
        )
    return known[known.index(value)]


def temperature(objective: ObjectiveName, tau: Any) -> float | None:
    """The temperature of an objective, which all but ML need; None where none is set."""
    if objective != "ml" and tau is None:
        raise TemperatureError(f"objective={objective!r} needs a temperature: set tau, such as 0.1")
    return None if tau is None else check_tau(plain(tau))


def generator(random_state: Any) -> Random:
    """What draws random numbers.

    Numpy's generators themselves, or a fresh one from a seed, or from None.
    """
    if isinstance(random_state, (np.random.RandomState, np.random.Generator)):
        return random_state
    try:
        return np.random.default_rng(random_state)
    except (TypeError, ValueError):
        raise EstimatorError(
            "random_state must be None, a seed from 0, or a generator of numpy, got"
            f" {random_state!r}"
        ) from None


def plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value
