"""Fields of the page: what people typed, read by a function that refuses in words; the words stand beside the field."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from nicegui import ui

from softq.errors import DataError, SoftqError, TemperatureError

T = TypeVar("T")

_COLDEST, _HOTTEST = (
    1e-9,
    1e8,
)  # beyond, a reward divided by the temperature is no number, or all rewards are the same
_WAIT = 300  # milliseconds of silence before what is typed is read


def text_field(
    label: str, value: str, on_change: Callable[[], None], *, hint: str = ""
) -> ui.input:
    """A line of text that is read when typing pauses."""
    field = ui.input(label, value=value, on_change=on_change).without_auto_validation()
    field.props(f"outlined dense hide-bottom-space debounce={_WAIT}")
    return field.props(f'hint="{hint}"') if hint else field


def text_area(
    label: str, value: str, on_change: Callable[[], None], *, rows: int, hint: str
) -> ui.textarea:
    """Lines of text that are read when typing pauses."""
    field = ui.textarea(label, value=value, on_change=on_change).without_auto_validation()
    field.props(f'outlined hide-bottom-space debounce={_WAIT} hint="{hint}"')
    return field.props(
        f'spellcheck=false input-style="min-height: {1.6 * rows}em; line-height: 1.6"'
    )


def choice(
    label: str, options: dict[Any, str], on_change: Callable[[], None], *, multiple: bool = False
) -> ui.select:
    """One of several, or some of them; at first the first one, or none."""
    value = [] if multiple else next(iter(options))
    field = ui.select(
        options, label=label, value=value, multiple=multiple, on_change=on_change
    ).without_auto_validation()
    return field.props("outlined dense hide-bottom-space")


def read(field: Any, parse: Callable[[str], T]) -> T | None:
    """What a field holds, or None and a message beside it."""
    try:
        found = parse(str(field.value or ""))
    except SoftqError as error:
        field.error = str(error)
        return None
    field.error = None
    return found


def grey(results: ui.element, stale: bool) -> None:
    """Results in grey while they are not of what the fields hold."""
    results.classes(add="stale") if stale else results.classes(remove="stale")


def parse_whole(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number between two others.

    >>> parse_whole(1, 9)(" 7 ")
    7
    """

    def parse(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            raise DataError(f"expected a whole number, got {text!r}") from None
        if not low <= found <= high:
            raise DataError(f"expected a whole number from {low} to {high}, got {found}")
        return found

    return parse


def parse_tau(text: str) -> float:
    """A temperature that people typed.

    >>> parse_tau("0.5")
    0.5
    """
    try:
        found = float(text)
    except ValueError:
        raise TemperatureError(f"expected a positive number, got {text!r}") from None
    if not found > 0.0:
        raise TemperatureError(
            f"expected a positive number, got {text}; as τ goes to 0, RAML becomes ML"
        )
    if not _COLDEST <= found <= _HOTTEST:
        raise TemperatureError(f"expected a number from {_COLDEST:g} to {_HOTTEST:g}, got {text}")
    return found


def parse_mass(text: str) -> float:
    """A share of probability, neither none nor all."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.0 < found < 1.0:
        raise DataError(f"expected a number between 0 and 1, got {text!r}")
    return found


class _Slider(ui.slider):
    """Moves at once: an answer to an earlier move must not take back a later one."""

    LOOPBACK = False


class Temperature:
    """A slider on a logarithmic scale and a field for the same number; either moves the other.

    Args:
        value: to begin with.
        low: the slider's cold end, as a power of ten.
        high: its hot end.
        on_change: called after every move that leaves a temperature.

    """

    def __init__(
        self, value: float, low: float, high: float, on_change: Callable[[], None]
    ) -> None:
        self.value = value
        self._low, self._high = low, high
        self._on_change = on_change
        self._moving = False  # the one by the other
        with ui.element("div").classes("temperature"):
            self._slider = _Slider(
                min=low, max=high, step=0.01, value=math.log10(value), on_change=self._slide
            )
            self._slider.props('aria-label="temperature τ, logarithmic" dense')
            self.field = text_field("temperature τ", f"{value:.4g}", self._type)

    def scale(self, low: float, high: float) -> None:
        """Another range of the slider, in powers of ten; the number stays."""
        self._low, self._high = low, high
        self._slider.props(f"min={low} max={high}")
        self._move(self.value, told=False)

    def set(self, value: float) -> None:
        """Go there, to the four digits that the field shows."""
        self._move(float(f"{value:.4g}"))

    def _slide(self) -> None:
        if not self._moving and self._slider.value is not None:
            self._move(float(f"{10**self._slider.value:.3g}"), slider=False)

    def _type(self) -> None:
        found = None if self._moving else read(self.field, parse_tau)
        if found is not None:
            self._move(found, field=False)

    def _move(
        self, value: float, *, slider: bool = True, field: bool = True, told: bool = True
    ) -> None:
        self.value = value
        self._moving = True
        if slider:
            self._slider.value = min(max(math.log10(value), self._low), self._high)
        if field:
            self.field.value, self.field.error = f"{value:.4g}", None
        self._moving = False
        if told:
            self._on_change()
