"""Scores against temperature, in percent: the panels of such a figure, its words and its numbers; and learning curves of systems."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from softq.lab.report.figures import Canvas, Look, Series, describe, temperature_axis
from softq.lab.report.page import Column, Figure, Table
from softq.lab.report.runs import RunSummary, learning_curves
from softq.lab.report.systems import R, System, Variant, bare, percent
from softq.metrics import Interval

GREY = "grey"  # the hue of the paper's curves
LOOKS = {
    "RAML": Look("orange", "s", weight=2.2),
    "SQDML": Look("blue", "o", "--"),
    "ML": Look("green", "", "-."),
}
BOUND = Look("ink", "", ":")  # of the best that is known


class Panel(NamedTuple):
    """Curves under a title; ``unit`` is the vertical axis' label."""

    title: str
    series: Sequence[Series]
    unit: str = "%"


def figure_of_temperatures(
    name: str, title: str, caption: str, subject: str, panels: Sequence[Panel]
) -> Figure:
    """A figure of panels over τ; ``subject`` is what its words begin with."""
    told = " ".join(
        f"{panel.title}: {words(panel.series, 'τ', 1 if panel.unit == '%' else 2)}."
        for panel in panels
    )
    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{subject}, in percent. {told}",
        draw=_drawer(panels),
        numbers=numbers(name, panels, "τ"),
    )


def learning_of(
    task: str,
    metric: str,
    runs: Sequence[RunSummary],
    systems: Sequence[System[Any]],
    name_of: Callable[[System[Any]], str],
) -> Figure | None:
    """Training loss and development score by epoch of the runs of some systems, under the names that these have in tables."""
    shown = {system.name: system for system in systems}
    named = [
        dataclasses.replace(run, name=name_of(system), objective=system.objective)
        for run in runs
        if (system := shown.get(run.recipe_hash)) is not None and len(run.curve) > 1
    ]
    return learning_curves(task, metric, named) if named else None


def _drawer(panels: Sequence[Panel]) -> Callable[[Canvas], None]:
    def draw(canvas: Canvas) -> None:
        grey = Canvas(
            canvas.figure,
            dataclasses.replace(canvas.style, hues={**canvas.style.hues, GREY: canvas.style.muted}),
        )
        axes = canvas.panels(
            len(panels),
            height=2.3 if canvas.style.phone else 2.7,
            columns=2,
            head=0.55 if canvas.style.phone else 0.3,
        )
        for axis, panel in zip(axes, panels, strict=True):
            temperature_axis(axis, logarithmic=False)
            grey.lines(axis, panel.series)
            axis.set_title(panel.title)
            axis.set_ylabel(panel.unit)
        canvas.legend(*axes, columns=5)

    return draw


def flat(
    label: str,
    look: Look,
    value: float | Interval,
    places: Sequence[tuple[float, float | Interval]],
) -> Series:
    """What no temperature moves, drawn as far as another curve goes."""
    return Series(label, look, [(tau, value) for tau, _ in places])


def curves_of(variant: Variant[R]) -> dict[str, list[System[R]]]:
    """The temperatures of each objective, where there are several of all together; an objective with one is a point beside the others."""
    found = {
        objective: [system for system in variant.tuned if system.objective == objective]
        for objective in variant.objectives
    }
    several = len({system.tau for systems in found.values() for system in systems}) > 1
    return (
        {objective: systems for objective, systems in found.items() if systems} if several else {}
    )


def scores_of(
    variant: Variant[R],
    curves: Mapping[str, Sequence[System[R]]],
    score: str,
    lines: Mapping[str, tuple[Look, float]] | None = None,
) -> list[Series]:
    """Curves of a measure in percent, with ML and others, whose values are shares, as flat lines."""
    found = []
    for objective, systems in curves.items():
        points = [
            (system.tau or 0.0, percent(system.scores[score]))
            for system in systems
            if score in system.scores
        ]
        if points:
            found.append(Series(objective, LOOKS[objective], points))
    ml, at = None if variant.ml is None else variant.ml.value(score), places(found)
    flats = ({} if ml is None else {"ML": (LOOKS["ML"], ml)}) | dict(lines or {})
    return (
        [*found, *(flat(label, look, 100 * value, at) for label, (look, value) in flats.items())]
        if found
        else []
    )


def gains_of(
    variant: Variant[R], curves: Mapping[str, Sequence[System[R]]], score: str
) -> list[Series]:
    """Gains over ML in a measure, in points."""
    ml = None if variant.ml is None else variant.ml.value(score)
    found = []
    for objective, systems in curves.items():
        values = [(system.tau or 0.0, system.value(score)) for system in systems]
        points = [
            (tau, 100 * (value - ml))
            for tau, value in values
            if value is not None and ml is not None
        ]
        if points:
            found.append(Series(objective, LOOKS[objective], points))
    return found


def places(series: Sequence[Series]) -> list[tuple[float, float | Interval]]:
    """The points of all curves from left to right, for lines that go as far as all of them."""
    return sorted((point for one in series for point in one.points), key=lambda point: point[0])


def words(series: Sequence[Series], at: str, digits: int = 1) -> str:
    """Curves in words; of one that does not move, its value."""
    told = []
    for one in series:
        points = [(x, y.value if isinstance(y, Interval) else y) for x, y in one.points]
        moves = len({y for _, y in points}) > 1
        told.append(
            describe(one.label, points, at, digits)
            if moves
            else f"{one.label} {points[0][1]:.{digits}f}"
        )
    return "; ".join(told)


def numbers(name: str, panels: Sequence[Panel], axis: str) -> Table:
    """What the panels show, a column for each curve."""
    curves = [
        (f"{panel.title}: {one.label}" if panel.title else one.label, dict(one.points))
        for panel in panels
        for one in panel.series
    ]
    places = sorted({x for _, points in curves for x in points})
    return Table(
        name=name,
        caption="The curves of this figure, in percent",
        columns=[Column(axis, ",g"), *(Column(label, ".2f") for label, _ in curves)],
        rows=[(x, *(bare(points.get(x)) for _, points in curves)) for x in places],
    )
