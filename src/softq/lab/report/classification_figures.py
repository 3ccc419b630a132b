"""Figures of the four-class experiment, each with its numbers and its words; None where the results hold nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from softq.lab.report.classification_results import ClassificationResults, Split, Sweep, at
from softq.lab.report.figures import Canvas, Look, Series, describe, temperature_axis
from softq.lab.report.page import Column, Figure, Table, Value
from softq.metrics import Interval

ML, BAYES = Look("green", "", "-."), Look("ink", "", ":")
RAML, SQDML = (
    Look("orange", "s", weight=2.6),
    Look("blue", "o", weight=1.2),
)  # at large τ they coincide

SMALLEST_GAP = 1e-12  # below it, KL(Q‖Q') is rounding error of float64


def short_range(results: ClassificationResults) -> Figure | None:
    """Figure 1 of the paper: validation and test reward against τ from 0.1 to 3."""
    return _two_splits(
        results,
        "short",
        name="reward-by-temperature",
        title="Reward against temperature, the paper’s Figure 1",
        caption="By the theory, RAML climbs from ML towards SQDML as τ grows, and SQDML decides like the Bayes rule at every τ. ",
    )


def wide_range(results: ClassificationResults) -> Figure | None:
    """Figure 2 of the paper: the same, up to τ = 10,000."""
    return _two_splits(
        results,
        "wide",
        name="reward-by-wide-temperature",
        title="Reward over a wide range of temperatures, the paper’s Figure 2",
        caption="Trained with plain logits. Where a curve leaves the exact one, the network has not learned what its target says. ",
    )


def scaled(results: ClassificationResults, span: Literal["short", "wide"]) -> Figure | None:
    """A range of temperatures with plain logits beside logits scaled by τ."""
    wide = span == "wide"
    plain, divided = (
        _series(results, span, "test"),
        _series(results, "wide-scaled" if wide else "short-scaled", "test"),
    )
    if not divided:
        return None
    panels = (
        [("Plain logits", plain), ("Logits scaled by τ", divided)]
        if plain
        else [("Logits scaled by τ", divided)]
    )
    return Figure(
        name="reward-with-scaled-logits" if wide else "reward-with-scaled-logits-short",
        title=f"{'Large temperatures' if wide else 'Temperatures'} with plain and with scaled logits",
        caption="Test reward with plain logits, and with the logits divided by τ and the loss multiplied by τ². The targets are the "
        f"same{'; the axis of τ is logarithmic' if wide else ''}. " + _BANDS,
        alt="Test reward against temperature, with plain logits and with logits scaled by the temperature. "
        + " ".join(f"{title}: {_words(series)}." for title, series in panels),
        draw=lambda canvas: _draw_panels(canvas, panels, logarithmic=wide),
        numbers=_numbers("scaled", [(title, series) for title, series in panels]),
    )


def regions(results: ClassificationResults) -> Figure | None:
    """Figure 4 of the paper: which class is decided where."""
    if not results.regions:
        return None
    bayes = results.regions.get("Bayes rule")
    agreement = {
        title: None if bayes is None else 100 * float(np.mean(found == bayes))
        for title, found in results.regions.items()
    }
    classes = range(int(max(found.max() for found in results.regions.values())) + 1)

    def draw(canvas: Canvas) -> None:
        axes = canvas.panels(
            len(results.regions),
            height=2.05 if canvas.style.phone else 2.55,
            columns=4,
            phone_columns=2,
            head=0.1,
        )
        for panel, (title, found) in zip(axes, results.regions.items(), strict=True):
            percent = agreement[title]
            second = (
                ""
                if percent is None
                else "\nthe best there is"
                if found is bayes
                else f"\n{percent:.1f} % as Bayes"
            )
            canvas.region_map(panel, found, title + second)

    rows: list[Sequence[Value]] = [
        (title, agreement[title], *(100 * float(np.mean(found == label)) for label in classes))
        for title, found in results.regions.items()
    ]
    told = "; ".join(
        f"{title} {percent:.1f} %"
        for title, percent in agreement.items()
        if percent is not None and title != "Bayes rule"
    )
    return Figure(
        name="decision-regions",
        title="Decision regions, the paper’s Figure 4",
        caption="The class decided at each point of the square, x₀ to the right and x₁ upwards. Each map is of one "
        "network, that of the first seed; percentages say how much of the square it decides as the Bayes rule does.",
        alt="Maps of the square, one network per model, coloured by the class decided at each point. "
        f"Share decided as by the Bayes rule: {told}."
        if told
        else f"Maps of the square, coloured by the class decided at each point: {', '.join(results.regions)}.",
        draw=draw,
        numbers=Table(
            name="decision-regions",
            caption="Share of the square, in percent, of one network each",
            columns=[
                Column("Model"),
                Column("As the Bayes rule", ".2f"),
                *(Column(f"Class {label}", ".2f") for label in classes),
            ],
            rows=rows,
        ),
    )


def gap(results: ClassificationResults) -> Figure | None:
    """KL(Q‖Q') against τ, exact, with Theorem 1's bound and the sharper ones."""
    rows = sorted({row.tau: row for row in results.population.rows}.values())
    if sum(row.kl > SMALLEST_GAP for row in rows) < 2:
        return None
    lines = [
        ("Theorem 1, 2R/τ", "theorem1", Look("green", "", "-.")),
        ("min(R/τ, R²/2τ²)", "closed_form", Look("brown", "", ":")),
        ("min(R/τ, R²/8τ²)", "hoeffding", Look("purple", "", (0, (5, 1.5, 1, 1.5, 1, 1.5)))),
        ("mean KL", "mean_kl", Look("blue", "", "--")),
        ("KL(Q‖Q′), exact", "kl", Look("orange", weight=2.2)),
    ]
    curves = [
        [
            (row.tau, float(getattr(row, field)))
            for row in rows
            if getattr(row, field) > SMALLEST_GAP
        ]
        for _, field, _ in lines
    ]
    series = [
        Series(label, look, points) for (label, _, look), points in zip(lines, curves, strict=True)
    ]
    exact = curves[-1]

    def draw(canvas: Canvas) -> None:
        (panel,) = canvas.panels(1, height=3.3 if canvas.style.phone else 3.6, columns=1, head=0.6)
        temperature_axis(panel, logarithmic=True)
        panel.set_yscale("log")
        canvas.lines(panel, series)
        panel.set_ylabel("nats")
        canvas.legend(panel, columns=5)

    return Figure(
        name="gap-and-bounds",
        title="The gap between RAML and SQDML, and its bounds",
        caption="KL(Q‖Q′) of the population, exact, below four upper bounds: the mean over Y of KL(Q‖q(·|Y)), its two closed forms, and "
        "Theorem 1. R is the range of the rewards. The sharper bounds close like 1/τ², Theorem 1 like 1/τ. Values below 10⁻¹² are "
        "left out.",
        alt=f"KL divergence of Q and Q′ against temperature, both logarithmic. It falls from {exact[0][1]:.2g} at τ {exact[0][0]:,g} "
        f"to {exact[-1][1]:.1e} at τ {exact[-1][0]:,g}, at last with slope {_slope(exact):.1f}. "
        f"All bounds lie above it: at τ {rows[-1].tau:,g} "
        + ", ".join(
            f"{label} is {points[-1][1]:.1e}"
            for (label, _, _), points in zip(lines[:-1], curves[:-1], strict=True)
        )
        + ".",
        draw=draw,
        numbers=Table(
            name="gap",
            caption="KL(Q‖Q′) and its bounds",
            columns=[Column("τ", ",g"), *(Column(label, ".4g") for label, _, _ in reversed(lines))],
            rows=[
                (row.tau, *(getattr(row, field) for _, field, _ in reversed(lines))) for row in rows
            ],
        ),
    )


# --- shared ---------------------------------------------------------------------------------------------

_BANDS = (
    "Points are means over seeds, bands their 95 % confidence intervals (Student’s t). "
    "Thin dashed lines are exact, for the whole population."
)


def _two_splits(
    results: ClassificationResults,
    sweep: Literal["short", "wide"],
    *,
    name: str,
    title: str,
    caption: str,
) -> Figure | None:
    panels = [
        ("Validation", _series(results, sweep, "dev")),
        ("Test", _series(results, sweep, "test")),
    ]
    if not panels[0][1]:
        return None
    return Figure(
        name=name,
        title=title,
        caption=caption + _BANDS,
        alt=f"{title.split(',')[0]}. "
        + " ".join(f"{label}: {_words(series)}." for label, series in panels),
        draw=lambda canvas: _draw_panels(canvas, panels, logarithmic=False),
        numbers=_numbers(name, panels),
    )


def _series(results: ClassificationResults, sweep: Sweep, split: Split) -> list[Series]:
    """What one panel shows: the trained curves, the exact ones, and the two lines that no temperature moves."""
    trained = [results.rewards(sweep, "raml", split), results.rewards(sweep, "sqdml", split)]
    taus = sorted({tau for points in trained for tau, _ in points})
    if not taus:
        return []
    series = [
        Series(*named, points)
        for named, points in zip((("RAML", RAML), ("SQDML", SQDML)), trained, strict=True)
        if points
    ]
    ml = results.ml(split)
    if ml is not None:
        series.append(Series("ML", ML, [(tau, ml) for tau in taus]))
    bayes = results.bayes_dev if split == "dev" else results.bayes_test
    series.append(Series("Bayes rule", BAYES, [(tau, bayes) for tau in taus]))
    # every row within the range, also those between two points of a coarse sweep
    rows = [row for row in sorted(results.population.rows) if taus[0] <= row.tau <= taus[-1]]
    if len(rows) > 1:
        series.append(
            Series(
                "SQDML, exact",
                Look("blue"),
                [(row.tau, row.reward_sqdml) for row in rows],
                exact=True,
            )
        )
        series.append(
            Series(
                "RAML, exact",
                Look("orange"),
                [(row.tau, row.reward_raml) for row in rows],
                exact=True,
            )
        )
        exact_ml = results.population.reward_ml
        series.append(
            Series("ML, exact", Look("green"), [(row.tau, exact_ml) for row in rows], exact=True)
        )
    return series


def _draw_panels(
    canvas: Canvas, panels: Sequence[tuple[str, Sequence[Series]]], *, logarithmic: bool
) -> None:
    axes = canvas.panels(
        len(panels),
        height=2.6 if canvas.style.phone else 3.4,
        columns=2,
        head=0.55 if canvas.style.phone else 0.3,
    )
    for panel, (title, series) in zip(axes, panels, strict=True):
        temperature_axis(panel, logarithmic=logarithmic)
        canvas.lines(panel, series)
        panel.set_title(title)
        if canvas.style.phone or panel is axes[0]:
            panel.set_ylabel("reward")
    # one scale for all panels, so that heights can be compared across them
    limits = [panel.get_ylim() for panel in axes]
    for panel in axes:
        panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    canvas.legend(axes[0], columns=5, phone_columns=3)


def _words(series: Sequence[Series]) -> str:
    told = []
    for one in series:
        if not one.exact:
            points = [(x, y.value if isinstance(y, Interval) else y) for x, y in one.points]
            moves = len({y for _, y in points}) > 1
            told.append(
                describe(one.label, points, "τ") if moves else f"{one.label} {points[0][1]:.3f}"
            )
    return "; ".join(told)


def _numbers(name: str, panels: Sequence[tuple[str, Sequence[Series]]]) -> Table:
    """What the panels show by τ: a column for each measured curve, and once the exact ones."""
    curves = [
        (f"{one.label}, {title.lower()}", one.points)
        for title, series in panels
        for one in series
        if not one.exact
    ]
    curves += [(one.label, one.points) for one in panels[-1][1] if one.exact]
    taus = sorted(
        {tau for _, series in panels for one in series if not one.exact for tau, _ in one.points}
    )
    return Table(
        name=name,
        caption="The curves of this figure",
        columns=[Column("τ", ",g"), *(Column(label, ".4f") for label, _ in curves)],
        rows=[(tau, *(at(points, tau) for _, points in curves)) for tau in taus],
    )


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Slope of the last step on logarithmic axes."""
    (before, high), (after, low) = points[-2:]
    return math.log(low / high) / math.log(after / before)
