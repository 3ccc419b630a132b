"""Figures of the named-entity experiment, each with its numbers and its words; None where the results hold nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from softq.lab.report.curves import GREY, Panel, figure_of_temperatures, flat, numbers, words
from softq.lab.report.figures import Canvas, Look, Series, plain
from softq.lab.report.ner_results import NerResults, NerSystem, method_of
from softq.lab.report.page import Column, Figure, Table, Value
from softq.lab.report.paper import NER_ML, NER_RAML
from softq.lab.report.systems import Variant, percent
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.metrics import Interval

_DEV, _TEST = Look("blue", "o"), Look("orange", "s")
_PAPER_DEV, _PAPER_TEST = Look(GREY, "o"), Look(GREY, "s", "--")
_ROW = 0.46  # inches of a method
_LARGEST_MARK = 90.0  # square points
_NAMED = 30  # annotators, at most, whose dots have names
_CROWDED = 0.08  # annotators whose recall and precision differ by less


def temperatures(variant: Variant[NerRecipe]) -> Figure | None:
    """F1 and token accuracy against τ, as Table 2 of the paper has them, and the paper's own beside them."""
    objective = "RAML" if any(system.objective == "RAML" for system in variant.tuned) else "SQDML"
    tuned = [system for system in variant.tuned if system.objective == objective]
    if len(tuned) < 2:
        return None
    panels = [
        Panel("F1", _against_tau(tuned, variant.ml, "f1")),
        Panel("Token accuracy", _against_tau(tuned, variant.ml, "token_accuracy")),
        Panel("F1 in the paper", _papers("f1")),
        Panel("Token accuracy in the paper", _papers("accuracy")),
    ]
    panels = [panel for panel in panels if panel.series]
    return figure_of_temperatures(
        "scores-by-temperature",
        f"{objective} against temperature{variant.which}, the paper’s Table 2",
        "F1 of entities and token accuracy on the development and test parts, each point at the c2 that was best on the "
        "development part; flat lines are ML. In grey, the paper’s numbers for CoNLL-2003, on an axis of their own: compare the shapes, "
        "not the heights.",
        f"{objective} against temperature{variant.which}",
        panels,
    )


def methods(results: NerResults) -> Figure | None:
    """Test F1 of each method, and its gain over the best vote."""
    chosen = [one for one in results.chosen() if one.system.name in results.judged]
    if not chosen:
        return None
    judged = [results.judged[one.system.name] for one in chosen]
    labels = [one.label for one in chosen]
    panels = [_Dots("Test F1, %", [percent(one.f1) for one in judged])]
    baseline = results.baseline
    if any(one.f1_gain is not None for one in judged):
        panels.append(
            _Dots(
                f"Gain over {results.baseline_name}",
                [None if one.f1_gain is None else percent(one.f1_gain) for one in judged],
                line=0.0,
            )
        )
    return _dot_figure(
        "f1-by-method",
        "F1 by method",
        "Test F1 of what each method got from the development part, with 95 % intervals of a bootstrap over test sentences"
        + (
            f", and the gain over {method_of(baseline)}, resampled in pairs: an interval to the right of the line is a gain that "
            "another test set would likely show too."
            if len(panels) > 1 and baseline is not None
            else "."
        ),
        labels,
        panels,
    )


def accuracy(results: NerResults) -> Figure | None:
    """Token accuracy of each method in the built-in world, and the Bayes rule's."""
    chosen = [one for one in results.chosen() if one.system.name in results.judged]
    if not chosen or not results.bayes:
        return None
    bayes = 100 * next(iter(results.bayes.values()))["token_accuracy"]
    panels = [
        _Dots(
            "Test token accuracy, %",
            [percent(results.judged[one.system.name].accuracy) for one in chosen],
            line=bayes,
        )
    ]
    return _dot_figure(
        "accuracy-by-method",
        "Token accuracy and the Bayes rule",
        "Test token accuracy with 95 % intervals of a bootstrap over test sentences. The line is the Bayes rule, which knows the "
        "world: no tagger can be expected to have more labels right.",
        [one.label for one in chosen],
        panels,
        line_label="Bayes rule",
    )


def entity_weight(results: NerResults) -> Figure | None:
    """F1, precision and recall of SQDML against the reward of a right entity label."""
    systems = results.entity_weights()
    if not systems:
        return None
    looks = {
        "F1": Look("ink", "o", weight=2.2),
        "precision": Look("blue", "^", "--"),
        "recall": Look("orange", "s", "-."),
    }
    series = [
        Series(
            name,
            look,
            [
                (
                    system.recipe.annotations.entity_weight,
                    system.percent(f"test_{name.lower()}") or math.nan,
                )
                for system in systems
            ],
        )
        for name, look in looks.items()
    ]
    weights = [x for x, _ in series[0].points]
    logarithmic = weights[-1] >= 8 * weights[0]

    def draw(canvas: Canvas) -> None:
        (panel,) = canvas.panels(1, height=2.6 if canvas.style.phone else 3.2, columns=1)
        if logarithmic:
            panel.set_xscale("log")
            panel.xaxis.set_minor_formatter(lambda _value, _position: "")
        panel.set_xticks(weights)
        panel.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        canvas.lines(panel, series)
        panel.set_xlabel("reward of a right entity label")
        panel.set_ylabel("%")
        canvas.legend(panel, columns=3, phone_columns=3)

    first = systems[0]
    return Figure(
        name="scores-by-entity-weight",
        title="What a right entity label is worth",
        caption=f"Test F1, precision and recall of {method_of(first)} at τ = {first.tau:g}, by the reward of a right entity label; a right "
        "O earns 1. The more it is worth, the sooner the tagger marks what only some annotators have marked.",
        alt=f"{method_of(first)} at τ = {first.tau:g} on the test part, in percent. {words(series, 'weight')}.",
        draw=draw,
        numbers=numbers("scores-by-entity-weight", [Panel("", series)], "Entity weight"),
    )


def annotators(results: NerResults) -> Figure | None:
    """Every annotator by estimated precision and recall; the numbers are of all of them."""
    rows = sorted(results.annotators, key=lambda row: (-row.weight, row.name))
    if not rows:
        return None

    def draw(canvas: Canvas) -> None:
        (panel,) = canvas.panels(1, height=3.1 if canvas.style.phone else 3.6, columns=1, head=0.1)
        sizes = [_LARGEST_MARK * row.weight / rows[0].weight for row in rows]
        panel.scatter(
            [100 * row.recall for row in rows],
            [100 * row.precision for row in rows],
            s=sizes,
            color=canvas.style.hues["blue"],
            alpha=0.75,
            linewidth=0,
        )
        panel.set_xlabel("recall, %")
        panel.set_ylabel("precision, %")
        named: list[tuple[float, float]] = []
        for row in rows if len(rows) <= _NAMED else []:
            # where dots crowd, only the heaviest has its name beside it
            if all(
                abs(row.recall - x) > _CROWDED or abs(row.precision - y) > _CROWDED / 2
                for x, y in named
            ):
                named.append((row.recall, row.precision))
                panel.annotate(
                    plain(row.name),
                    (100 * row.recall, 100 * row.precision),
                    xytext=(5, 3),
                    textcoords="offset points",
                    size=7.5,
                )

    best, worst = rows[0], rows[-1]
    return Figure(
        name="all-annotators",
        title="Annotators, as estimated without the truth",
        caption="Share of an annotator’s entity labels that are right, against the share of the entities’ tokens that got the right label, "
        "both in expectation over the estimated truth. Larger dots weigh more.",
        alt=f"{len(rows)} annotators by estimated recall and precision. {best.name} weighs most ({best.weight:.2f}), with recall "
        f"{100 * best.recall:.1f} % and precision {100 * best.precision:.1f} %; {worst.name} weighs least ({worst.weight:.2f}), with "
        f"recall {100 * worst.recall:.1f} % and precision {100 * worst.precision:.1f} %.",
        draw=draw,
        numbers=Table(
            name="all-annotators",
            caption="All annotators",
            columns=[
                Column("Annotator"),
                Column("Tokens", ",d"),
                Column("Accuracy, %", ".2f"),
                Column("Precision, %", ".2f"),
                Column("Recall, %", ".2f"),
                Column("Weight", ".3f"),
            ],
            rows=[
                (
                    row.name,
                    row.tokens,
                    100 * row.accuracy,
                    100 * row.precision,
                    100 * row.recall,
                    row.weight,
                )
                for row in rows
            ],
        ),
    )


# --- curves ---------------------------------------------------------------------------------------------


def _against_tau(tuned: Sequence[NerSystem], ml: NerSystem | None, score: str) -> list[Series]:
    found = []
    for part, look in (("dev", _DEV), ("test", _TEST)):
        points = [
            (system.tau or 0.0, shown)
            for system in tuned
            if (shown := system.percent(f"{part}_{score}")) is not None
        ]
        if points:
            found.append(Series(f"{tuned[0].objective}, {part}", look, points))
        ml_score = None if ml is None else ml.percent(f"{part}_{score}")
        if points and ml_score is not None:
            found.append(
                flat(
                    f"ML, {part}",
                    Look(look.hue, "", ":" if part == "dev" else "-."),
                    ml_score,
                    points,
                )
            )
    return found


def _papers(score: str) -> list[Series]:
    found = []
    for part, look in (("dev", _PAPER_DEV), ("test", _PAPER_TEST)):
        points = [(tau, getattr(row, f"{part}_{score}")) for tau, row in NER_RAML.items()]
        found.append(Series(f"RAML, {part}", look, points))
        found.append(
            flat(
                f"ML, {part}",
                Look(GREY, "", ":" if part == "dev" else "-."),
                getattr(NER_ML, f"{part}_{score}"),
                points,
            )
        )
    return found


# --- dots with intervals --------------------------------------------------------------------------------


class _Dots(NamedTuple):
    """A panel of points with intervals, one to a method."""

    title: str
    points: Sequence[Interval | None]
    line: float | None = None  # to hold them against


def _dot_figure(
    name: str,
    title: str,
    caption: str,
    labels: Sequence[str],
    panels: Sequence[_Dots],
    *,
    line_label: str = "",
) -> Figure:
    told = []
    for panel in panels:
        shown = [
            f"{label} {_spoken(point)}"
            for label, point in zip(labels, panel.points, strict=True)
            if point is not None
        ]
        line = [f"{line_label} {panel.line:.2f}"] if line_label and panel.line is not None else []
        told.append(f"{panel.title}: {'; '.join([*shown, *line])}.")
    rows: list[Sequence[Value]] = [
        (label, *(panel.points[i] for panel in panels)) for i, label in enumerate(labels)
    ]
    if line_label:
        rows.append((line_label, *(panel.line for panel in panels)))
    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}. {' '.join(told)}",
        draw=_dot_drawer(labels, panels, line_label),
        numbers=Table(
            name=name,
            caption="The points of this figure, in percent",
            columns=[
                Column("Method"),
                *(Column(panel.title, "+.2f" if panel.line == 0.0 else ".2f") for panel in panels),
            ],
            rows=rows,
        ),
    )


def _dot_drawer(
    labels: Sequence[str], panels: Sequence[_Dots], line_label: str
) -> Callable[[Canvas], None]:
    def draw(canvas: Canvas) -> None:
        style = canvas.style
        # names stand above their points, and only once where panels are side by side
        axes = canvas.panels(len(panels), height=_ROW * len(labels) + 0.75, columns=2, head=0.1)
        for number, (axis, panel) in enumerate(zip(axes, panels, strict=True)):
            named = style.phone or number == 0
            for row, (label, point) in enumerate(zip(labels, panel.points, strict=True)):
                if point is not None:
                    axis.plot(
                        [point.low, point.high],
                        [row, row],
                        color=style.hues["blue"],
                        linewidth=1.8,
                        solid_capstyle="butt",
                    )
                    axis.plot(
                        [point.value],
                        [row],
                        color=style.hues["blue"],
                        marker="o",
                        markersize=5,
                        markeredgewidth=0,
                    )
                if named:
                    axis.text(
                        0.01,
                        row - 0.28,
                        plain(label),
                        transform=axis.get_yaxis_transform(),
                        va="bottom",
                        size=8.0,
                    )
            if panel.line is not None:
                axis.axvline(panel.line, color=style.hues["orange"], linewidth=1.2, linestyle="--")
                if line_label:
                    axis.text(
                        panel.line,
                        len(labels) - 0.45,
                        f"{line_label} ",
                        ha="right",
                        va="bottom",
                        size=8.0,
                        color=style.hues["orange"],
                    )
            axis.set_ylim(len(labels) - 0.4, -0.95)
            axis.set_yticks([])
            axis.set_title(panel.title)

    return draw


def _spoken(point: Interval) -> str:
    return (
        f"{point.value:.2f} ({point.low:.2f} to {point.high:.2f})"
        if math.isfinite(point.low)
        else f"{point.value:.2f}"
    )
