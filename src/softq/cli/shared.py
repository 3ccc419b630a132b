"""What commands share: temperatures on the command line, and errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from softq.checks import check_tau
from softq.errors import SoftqError, TemperatureError

MOST_TAUS = 10_000  # of one range; more is a slip of the pen


def parse_taus(text: str) -> list[float]:
    """Temperatures of one ``--tau``: ``"2"``, ``"0.5,1"`` or the range ``"0.5:3:0.5"``, whose end is included.

    >>> parse_taus("0.5:2:0.5")
    [0.5, 1.0, 1.5, 2.0]
    """
    found = []
    for item in text.split(","):
        try:
            numbers = [float(number) for number in item.split(":")]
        except ValueError:
            raise TemperatureError(
                f"--tau must be a positive number, several as 0.5,1,2, or a range like 0.5:3:0.5, got {text!r}"
            ) from None
        if len(numbers) == 1:
            found.append(check_tau(numbers[0]))
        elif len(numbers) == 3:
            found.extend(_range(numbers[0], numbers[1], numbers[2], text))
        else:
            raise TemperatureError(f"a range of --tau must have three numbers, FROM:TO:STEP, got {len(numbers)} in {text!r}")
    return found


def _range(first: float, last: float, step: float, text: str) -> list[float]:
    for end in (first, last):
        check_tau(end)
    if not 0.0 < step < float("inf") or last < first:
        raise TemperatureError(f"a range of --tau must climb, FROM <= TO by a positive STEP, got {text!r}")
    steps = (last - first) / step + 1e-9  # a hair more, so that rounding does not lose the end
    if steps > MOST_TAUS:
        raise TemperatureError(f"a range of --tau must have at most {MOST_TAUS} steps, got {steps:.0f} in {text!r}")
    return [round(first + i * step, 12) for i in range(int(steps) + 1)]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a SoftqError into one line on stderr and exit code 2."""
    try:
        yield
    except SoftqError as error:
        typer.echo(f"softq: {error}", err=True)
        raise typer.Exit(2) from None
