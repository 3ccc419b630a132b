"""Numbers as people write them in recipes and flags: ``2``, ``0.5,1``, ``0.5:3:0.5``."""

from __future__ import annotations

from softq.errors import RecipeError, TemperatureError
from softq.options import check_tau

MOST_VALUES = 10_000  # of one range; more is a slip of the pen


def parse_taus(text: str) -> list[float]:
    """Temperatures: ``"2"``, ``"0.5,1"`` or the range ``"0.5:3:0.5"``, whose end is included.

    >>> parse_taus("0.5:2:0.5")
    [0.5, 1.0, 1.5, 2.0]
    """
    found = []
    for item in text.split(","):
        try:
            numbers = [float(number) for number in item.split(":")]
        except ValueError:
            raise TemperatureError(
                "tau must be a positive number, several as 0.5,1,2, or a range like 0.5:3:0.5, got"
                f" {text!r}"
            ) from None
        if len(numbers) == 1:
            found.append(check_tau(numbers[0]))
        elif len(numbers) == 3:
            found.extend(_tau_range(numbers[0], numbers[1], numbers[2], text))
        else:
            raise TemperatureError(
                f"a range of tau must have three numbers, FROM:TO:STEP, got {len(numbers)} in"
                f" {text!r}"
            )
    return found


def _tau_range(first: float, last: float, step: float, text: str) -> list[float]:
    for end in (first, last):
        check_tau(end)
    if not 0.0 < step < float("inf") or last < first:
        raise TemperatureError(
            f"a range of tau must climb, FROM <= TO by a positive STEP, got {text!r}"
        )
    steps = (last - first) / step + 1e-9  # a hair more, so that rounding does not lose the end
    if steps > MOST_VALUES:
        raise TemperatureError(
            f"a range of tau must have at most {MOST_VALUES} steps, got {steps:.0f} in {text!r}"
        )
    return [round(first + i * step, 12) for i in range(int(steps) + 1)]


def parse_seeds(text: str) -> list[int]:
    """Seeds: ``"2"``, ``"0,1"`` or the range ``"0:4"``, whose end is included.

    >>> parse_seeds("0:3,7")
    [0, 1, 2, 3, 7]
    """
    found: list[int] = []
    for item in text.split(","):
        try:
            ends = [int(number) for number in item.split(":")]
        except ValueError:
            ends = []
        if not 1 <= len(ends) <= 2 or ends[-1] < ends[0] or ends[-1] - ends[0] >= MOST_VALUES:
            raise RecipeError(
                f"seed must be a whole number, several as 0,1,2, or a range like 0:4, got {text!r}"
            )
        found.extend(range(ends[0], ends[-1] + 1))
    return found
