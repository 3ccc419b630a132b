"""Pictures of the page: HTML and SVG by templates, and the options of charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jinja2

from softq.explorer.classes import RULES
from softq.lab.report.content import show

_LOWEST = 1e-6  # of a logarithmic chart; less is not shown
_MUTED = {"color": "var(--muted)", "fontSize": 11}
_RULE = {"lineStyle": {"color": "var(--rule)"}}
_AXIS = {
    "axisLabel": _MUTED | {"hideOverlap": True},
    "axisLine": _RULE,
    "splitLine": _RULE,
    "axisTick": {"show": False},
}
_POWERS = {
    "type": "log",
    "min": _LOWEST,
    "axisLabel": {
        **_MUTED,
        ":formatter": "value => value < 0.01 || value > 100 ? value.toExponential(0) : value",
    },
}
_STYLE = {
    "animation": False,
    "grid": {"left": 6, "right": 18, "top": 46, "bottom": 6, "containLabel": True},
    "tooltip": {
        "trigger": "axis",
        "confine": True,
        ":valueFormatter": "value => value == null ? '' : Number(value).toPrecision(4)",
        "backgroundColor": "var(--panel)",
        "borderColor": "var(--rule)",
        "textStyle": {"color": "var(--ink)", "fontSize": 12},
    },
}

BOUNDS = {
    "kl": "KL(Q‖Q′), exact",
    "mean_kl": "mean of KL(Q‖q(·|Y))",
    "hoeffding": "min(R/τ, R²/8τ²)",
    "closed_form": "min(R/τ, R²/2τ²)",
    "theorem1": "Theorem 1, 2R/τ",
}
"""The gap between the targets and its bounds, by the fields of `softq.theory.TheoryRow`."""


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("softq.explorer"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["show"] = show
    environment.globals |= {"bounds": BOUNDS, "rules": RULES}
    return environment


def render(template: str, **values: Any) -> str:
    """HTML of a template of ``templates/``; all text in ``values`` is escaped."""
    return _environment().get_template(f"{template}.html.j2").render(values)


class Line(NamedTuple):
    """A curve over temperatures."""

    name: str
    colour: str
    """A variable of the style sheet."""
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    mark: float | None = None
    """A temperature to mark by a vertical line, such as the suggested one."""


def chart(
    title: str, lines: Sequence[Line], tau: float, *, logarithmic: bool = False
) -> dict[str, Any]:
    """Options of a chart of curves over temperatures, with a vertical line at the present one."""
    taus = [point[0] for point in lines[0].points]
    series = [_series(line, logarithmic) for line in lines]
    series[0]["markLine"]["data"].append(_vertical(tau, "var(--ink)", "solid", "τ"))
    heading = {"color": "var(--ink)", "fontSize": 13, "fontWeight": 600}
    return {
        **_STYLE,
        "title": {"text": title, "textStyle": heading, "left": 0, "top": 0},
        "xAxis": {"type": "log", "min": taus[0], "max": taus[-1], **_AXIS},
        "yAxis": {"type": "value", "scale": True, **_AXIS} | (_POWERS if logarithmic else {}),
        "series": series,
    }


def _series(line: Line, logarithmic: bool) -> dict[str, Any]:
    colour = f"var({line.colour})"
    marks = [] if line.mark is None else [_vertical(line.mark, colour, "dashed", "")]
    return {
        "type": "line",
        "name": line.name,
        "data": [
            [tau, value]
            for tau, value in line.points
            if math.isfinite(value) and (value >= _LOWEST or not logarithmic)
        ],
        "showSymbol": False,
        "itemStyle": {"color": colour},
        "lineStyle": {"color": colour, "width": 2, "type": "dashed" if line.dashed else "solid"},
        "emphasis": {"disabled": True},
        "markLine": {"symbol": "none", "silent": True, "animation": False, "data": marks},
    }


def _vertical(tau: float, colour: str, kind: str, label: str) -> dict[str, Any]:
    return {
        "xAxis": tau,
        "lineStyle": {"color": colour, "type": kind, "width": 1},
        "label": {"formatter": label, "color": colour, "fontSize": 11, "distance": 4},
    }
