"""Fields of the page. What cannot be read gets its message beside the field."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from nicegui import ui

from softq.errors import DataError, SoftqError

Number = TypeVar("Number", int, float)

# Beyond, a reward divided by the temperature overflows, or all rewards are the same.
COLDEST, HOTTEST = 1e-9, 1e8
_WAIT = 300  # milliseconds without a keystroke before a field is read


def number(expected: str, low: Number, high: Number, *, note: str = "") -> Callable[[str], Number]:
    """A parser of numbers from ``low`` to ``high``, whole ones if ``low`` is an integer.

    >>> number("a whole number from 1 to 9", 1, 9)(" 7 ")
    7
    """

    def parse(text: str) -> Number:
        try:
            found = type(low)(text)
        except ValueError:
            found = None
        if found is None or not low <= found <= high:
            raise DataError(f"expected {expected}, got {text!r}{note}")
        return found

    return parse


def whole(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers."""
    return number(f"a whole number from {low} to {high}", low, high)


temperature = number(
    f"a positive number from {COLDEST:g} to {HOTTEST:g}",
    COLDEST,
    HOTTEST,
    note="; as τ goes to 0, RAML becomes ML",
)
"""Parses a temperature."""


class Form:
    """Fields that are read together, each by a function that raises SoftqError.

    Args:
        on_change: called when a field has changed.

    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.fields: dict[str, Any] = {}
        self._parsers: dict[str, Callable[[Any], Any]] = {}
        self._on_change = on_change

    def add(self, name: str, field: Any, parse: Callable[[Any], Any] = lambda value: value) -> Any:
        """A NiceGUI element with a value as a field of the form."""
        self.fields[name], self._parsers[name] = field, parse
        return field.on_value_change(lambda: self._on_change())

    def text(
        self,
        name: str,
        label: str,
        value: str,
        parse: Callable[[str], Any],
        *,
        hint: str = "",
        rows: int = 1,
    ) -> Any:
        """A field of one or several lines, read when typing pauses."""
        field = (ui.input if rows == 1 else ui.textarea)(label, value=value)
        height = f'spellcheck=false input-style="min-height: {1.6 * rows}em; line-height: 1.6"'
        field.without_auto_validation().props(
            f"outlined hide-bottom-space debounce={_WAIT} {'dense' if rows == 1 else height} "
            + f'hint="{hint}"' * bool(hint)
        )
        return self.add(name, field, lambda typed: parse(str(typed or "")))

    def choice(self, name: str, label: str, options: dict[Any, str], **settings: Any) -> Any:
        """One of several options, the first at the start; with ``multiple=True`` some of them."""
        value = [] if settings else next(iter(options))
        field = ui.select(options, label=label, value=value, **settings).without_auto_validation()
        return self.add(name, field.props("outlined dense hide-bottom-space"))

    def read(self, name: str) -> Any:
        """The value of a field, or None and a message beside it."""
        field = self.fields[name]
        field.error = None
        try:
            return self._parsers[name](field.value)
        except SoftqError as error:
            field.error = str(error)
            return None

    def build(self, make: Callable[..., Any]) -> Any:
        """What ``make`` builds of the values of all fields, or None and messages beside them.

        An error of ``make`` is shown beside the field that its ``setting`` names.
        """
        values = {name: self.read(name) for name in self.fields}
        if any(value is None for value in values.values()):
            return None
        try:
            return make(**values)
        except SoftqError as error:
            self.fields[getattr(error, "setting", next(iter(values)))].error = str(error)
            return None


class _Slider(ui.slider):
    """Moves at once: an answer to an earlier move must not take back a later one."""

    LOOPBACK = False


class Temperature:
    """A slider on a logarithmic scale and a field for the same number; each moves the other.

    Args:
        value: to begin with; what cannot be read leaves it as it is.
        on_change: called after every move that leaves a temperature.

    """

    def __init__(self, value: float, on_change: Callable[[], None]) -> None:
        self.value, self._on_change, self._form = value, on_change, Form(self._read)
        with ui.element("div").classes("temperature"):
            self.slider = _Slider(min=-2.0, max=2.0, step=0.01, value=math.log10(value))
            self.slider.props('aria-label="temperature τ, logarithmic" dense')
            self.field = self._form.text("tau", "temperature τ", f"{value:.4g}", temperature)
        self.slider.on_value_change(self._slide)

    def _slide(self) -> None:
        if self.slider.value != math.log10(self.value):  # moved by hand
            self.field.value = f"{10 ** (self.slider.value or 0.0):.3g}"

    def _read(self) -> None:
        typed = self._form.read("tau")
        if typed is not None:
            self.value, self.slider.value = (
                typed,
                math.log10(typed),
            )  # beyond its ends, it shows the end
            self._on_change()
