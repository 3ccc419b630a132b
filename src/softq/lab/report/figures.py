"""Figures of a sweep, whatever its task, each with its numbers and its words.

None where it would show single points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import NamedTuple

from softq.lab.report.content import Column, Figure, Table, Value, bare
from softq.lab.report.drawing import Canvas, Look, Series, describe, number_axis, plain
from softq.lab.report.experiment import Score, mean_and_range
from softq.lab.report.results import ModelResult, Results, System, Variant
from softq.lab.report.tables import BAYES, method_names
from softq.lab.tasks.lm_recipe import TASK as LM
from softq.metrics import Interval

LOOKS = {
    "RAML": Look("orange", "s", weight=2.2),
    "SQDML": Look("blue", "o", "--"),
    "ML": Look("green", "", "-."),
    BAYES: Look("ink", "", ":"),
}
PAPER = {"RAML": Look("muted", "D", "--"), "SQDML": Look("muted", "v", ":")}
RUN_LOOKS = (
    Look("blue", "o"),
    Look("orange", "s", "--"),
    Look("green", "^", "-."),
    Look("purple", "D", ":"),
    Look("brown", "v"),
    Look("ink", "P", "--"),
)
MOST_EPOCHS, MOST_CURVES = 50, 24  # points of a learning curve, and curves before they are averaged
WIDE = 100.0  # an axis that spans more than so many times its smallest value is logarithmic


class Panel(NamedTuple):
    """Curves under a title; ``unit`` is the vertical axis' label."""

    title: str
    series: Sequence[Series]
    unit: str = ""
    digits: int = 2


def panels_figure(
    name: str, title: str, caption: str, panels: Sequence[Panel], axis: str
) -> Figure | None:
    """Panels over one axis; None where no curve has two points."""
    panels = [panel for panel in panels if any(len(one.points) > 1 for one in panel.series)]
    if not panels:
        return None
    told = " ".join(f"{panel.title}: {_words(panel, axis)}." for panel in panels)
    draw = partial(_draw_panels, panels, axis)
    return Figure(name, title, caption, f"{title}. {told}", draw, _numbers(name, panels, axis))


def _draw_panels(panels: Sequence[Panel], axis: str, canvas: Canvas) -> None:
    every = [one for panel in panels for one in panel.series]
    measured = [x for one in every if not one.exact for x, _ in one.points]
    is_long = max(len(one.label) for one in every) > 18
    axes = canvas.panels(
        len(panels),
        height=2.3 if canvas.phone else 2.8,
        columns=2,
        head=0.55 if canvas.phone else 0.35,
    )
    for one, panel in zip(axes, panels, strict=True):
        logarithmic = min(measured) > 0 and max(measured) > WIDE * min(measured)
        number_axis(one, axis, logarithmic=logarithmic)
        if axis == "epoch":
            one.locator_params(axis="x", integer=True)
        canvas.lines(one, panel.series)
        one.set_title(plain(panel.title))
        one.set_ylabel(panel.unit)
    canvas.legend(*axes, columns=2 if is_long else 5, phone_columns=1 if is_long else 2)


def _words(panel: Panel, axis: str) -> str:
    told = []
    for one in [one for one in panel.series if not one.exact][:8]:
        points = [(x, y.value if isinstance(y, Interval) else y) for x, y in one.points]
        moves = len({y for _, y in points}) > 1
        value = f"{one.label} {points[0][1]:.{panel.digits}f}"
        told.append(describe(one.label, points, axis, panel.digits) if moves else value)
    return "; ".join(told)


def _numbers(name: str, panels: Sequence[Panel], axis: str) -> Table:
    """What the panels show, a column for each curve.

    Exact curves only where something was measured.
    """
    curves = {
        Column(f"{panel.title}: {one.name or one.label}", f".{panel.digits}f"): dict(one.points)
        for panel in panels
        for one in panel.series
    }
    places = {x for panel in panels for one in panel.series if not one.exact for x, _ in one.points}
    rows: list[dict[Column, Value]] = [
        {Column(axis, ",g"): x, **{title: bare(curves[title].get(x)) for title in curves}}
        for x in sorted(places)
    ]
    return Table.of(name, "The curves of this figure", rows, folded=True)


# --- scores against temperature and other settings ----------------------------------------------------


def temperatures(results: Results, variant: Variant) -> Figure | None:
    """Scores against τ, and the gain over ML beside the paper's.

    None where no objective has two temperatures.
    """
    if max(Counter(one.objective for one in variant.tuned).values(), default=0) < 2:
        return None
    experiment = results.experiment
    panels = [
        _score_panel(results, variant, split, score)
        for score in experiment.scores
        if score.plotted
        for split in ("dev", "test")
        if split == "test" or score.dev
    ]
    papers = _papers_gains(results, variant)
    if papers:
        panels.append(_gain_panel(results, variant, papers))
    several = any(len(system.models) > 1 for system in variant.systems)
    bands = (
        experiment.spread_note if several else "95 % intervals of a bootstrap over test examples"
    )
    told = {
        "Each point at the other settings that are best on the development set; flat lines are ML": True,
        " and the Bayes rule": bool(results.bayes),
        f". Bands are {bands}.": True,
        " In grey, the paper’s gain over its own ML.": bool(papers),
        " Thin dashed lines are exact, for the whole population.": any(
            one.exact for panel in panels for one in panel.series
        ),
    }
    return panels_figure(
        "by-temperature",
        f"Scores against temperature{variant.which}",
        "".join(sentence for sentence, is_so in told.items() if is_so),
        panels,
        "τ",
    )


def _score_panel(results: Results, variant: Variant, split: str, score: Score) -> Panel:
    """A score of each objective, with ML and the Bayes rule as flat lines.

    A single seed has its bootstrap interval.
    """
    key = f"{split}_{score.name}"

    def value(system: System) -> Interval | None:
        if len(system.models) == 1 and split == "test" and system.name in results.resampled:
            return results.score(system, score)
        return score.shown(system.scores.get(key))

    series = _curves(variant, value)
    flat = {"ML": variant.ml.scores.get(key) if variant.ml else None}
    flat[BAYES] = Interval(results.bayes[key]) if key in results.bayes else None
    levels = {label: score.shown(level) for label, level in flat.items()}
    lines = [_flat_line(label, one.value, series) for label, one in levels.items() if one]
    exact = results.experiment.exact(results, variant, key)
    title, unit = f"{split.capitalize()} {score.title}", "%" if score.percent else ""
    return Panel(title, [*series, *lines, *exact] if series else [], unit, score.digits)


def _gain_panel(results: Results, variant: Variant, papers: Sequence[Series]) -> Panel:
    gain, other = results.experiment.gain_score, results.against(variant)
    series = _curves(variant, lambda system: results.gain(system, other, gain))
    shown = [*series, _flat_line("ML", 0.0, [*series, *papers]), *papers]
    title = f"Gain over {results.against_name} in test {gain.title}"
    return Panel(title, shown if series else [], "points" if gain.percent else "", gain.digits)


def _curves(variant: Variant, value: Callable[[System], Interval | None]) -> list[Series]:
    """A series for each objective that has values."""
    found = [
        Series(
            name,
            LOOKS[name],
            [
                (one.tau or 0.0, shown)
                for one in variant.tuned
                if one.objective == name and (shown := value(one)) is not None
            ],
        )
        for name in variant.objectives
    ]
    return [series for series in found if series.points]


def _flat_line(label: str, level: float, others: Sequence[Series]) -> Series:
    """What no temperature moves, drawn as far as other curves go."""
    places = sorted({x for one in others for x, _ in one.points})
    return Series(label, LOOKS[label], [(x, level) for x in places])


def _papers_gains(results: Results, variant: Variant) -> list[Series]:
    table, key = results.paper_table(variant.tuned[0].recipe), results.experiment.gain_score.name
    gains = [
        (name, tau, table.gain(name, tau, f"test_{key}"))
        for name, tau in table.rows
        if tau is not None
    ]
    found = [
        Series(
            f"{objective}, {results.paper_name}",
            look,
            [(tau, gain) for name, tau, gain in gains if name == objective and gain is not None],
        )
        for objective, look in PAPER.items()
    ]
    return [series for series in found if series.points]


def setting_curve(results: Results, flag: str) -> Figure | None:
    """Scores against a numeric setting, of the best system among those that differ in it alone."""

    def alike(system: System) -> list[System]:
        return [
            one
            for one in results.systems
            if (one.objective, one.tau) == (system.objective, system.tau)
            and {**system.settings, flag: one.settings.get(flag)} == one.settings
        ]

    chosen = [one for _, one in results.chosen if flag in one.settings and len(alike(one)) > 1]
    if not chosen:
        return None
    best = max(chosen, key=lambda one: one.dev)
    systems = sorted(alike(best), key=lambda one: float(one.settings[flag]))
    series = [
        Series(
            score.title,
            look,
            [
                (float(one.settings[flag]), value)
                for one in systems
                if (value := score.shown(one.scores.get(f"test_{score.name}"))) is not None
            ],
        )
        for score, look in zip(results.experiment.scores, RUN_LOOKS, strict=False)
    ]
    how = results.experiment.label(best.recipe)
    name = f"{best.label} on {how}" if how else best.label
    caption = f"Scores on the test set of {name}, by {flag}."
    unit = "%" if results.experiment.scores[0].percent else ""
    panel = Panel("Test", [one for one in series if one.points], unit)
    return panels_figure(f"by-{flag}", f"Scores against {flag}", caption, [panel], flag)


class _Dots(NamedTuple):
    """A point for each method in one column of numbers, and a line across where there is one."""

    column: Column
    points: Sequence[Interval | None]
    line: Interval | None


def methods(results: Results) -> Figure | None:
    """The test scores of every kind of model with their intervals, and its gain."""
    if len(results.variants) < 2 or len(results.chosen) < 3:
        return None
    labels, gain, bayes = method_names(results), results.experiment.gain_score, results.bayes
    panels = [
        _Dots(
            one.column("test"),
            [results.score(system, one) for _, system in results.chosen],
            one.shown(Interval(bayes[key])) if key in bayes else None,
        )
        for one in results.experiment.scores
        if one.plotted
        for key in [f"test_{one.name}"]
    ]
    gains = [results.gain(one, results.against(of), gain) for of, one in results.chosen]
    title = f"Gain over {results.against_name} in {gain.title}"
    panels.append(_Dots(Column(title, f"+{gain.format}"), gains, Interval(0.0)))
    panels = [panel for panel in panels if any(panel.points)]
    first = panels[0]
    told = "; ".join(
        f"{label} {point.value:{first.column.format}}"
        for label, point in zip(labels, first.points, strict=True)
        if point is not None
    )
    return Figure(
        "by-method",
        "Every kind of model",
        "Scores on the test set with 95 % intervals of a bootstrap over test examples, and gains,"
        " resampled in pairs: an interval that does not hold 0 is a gain that another test set"
        " would likely show too."
        + (" The line beside scores is the Bayes rule." if first.line is not None else ""),
        f"{first.column.title}: {told}.",
        partial(_draw_dots, labels, panels),
        Table(
            "by-method",
            "The points of this figure",
            [Column("Method"), *(panel.column for panel in panels)],
            list(zip(labels, *(map(bare, panel.points) for panel in panels), strict=True)),
            folded=True,
        ),
    )


def _draw_dots(labels: Sequence[str], panels: Sequence[_Dots], canvas: Canvas) -> None:
    axes = canvas.panels(len(panels), height=0.46 * len(labels) + 0.75, columns=2, head=0.1)
    for number, (one, panel) in enumerate(zip(axes, panels, strict=True)):
        canvas.dots(one, labels, panel.points, named=canvas.phone or number % 2 == 0)
        if panel.line is not None:
            colour = canvas.colour("orange")
            one.axvline(panel.line.value, color=colour, linewidth=1.2, linestyle="--")
        one.set_title(plain(panel.column.title))


# --- learning curves ----------------------------------------------------------------------------------


def learning_of_results(results: Results) -> Figure | None:
    """Learning curves of the systems that tables show; of many models, of those that are best."""
    shown = [system for variant in results.variants for system in variant.systems]
    if sum(len(system.models) for system in shown) > MOST_CURVES:
        shown = [system for _, system in results.chosen]
    pairs = {
        model.hash: (
            model,
            f"{results.name_of(system)}{f', seed {model.seed}' if len(system.models) > 1 else ''}",
        )
        for system in shown
        for model in system.models
    }
    return learning(*zip(*pairs.values(), strict=True))


def learning(models: Sequence[ModelResult], labels: Sequence[str]) -> Figure | None:
    """Training loss and development score by epoch.

    Of many models, averages of each objective with their range.
    """
    pairs = [(one, label) for one, label in zip(models, labels, strict=True) if len(one.curve) > 1]
    if not pairs:
        return None
    averaged, alike = len(pairs) > MOST_CURVES, len(pairs) > len(RUN_LOOKS)
    groups: dict[tuple[str, str], list[ModelResult]] = {}
    for model, label in pairs:
        name = model.objective.upper() if alike else label
        groups.setdefault((name, name if averaged else label), []).append(model)
    looks = dict(zip(dict.fromkeys(name for name, _ in groups), cycle(RUN_LOOKS), strict=False))
    task, metric = pairs[0][0].task, pairs[0][0].metric
    split = "Development" if task == LM else "Training"  # text models have the other by step
    panels = [
        Panel(
            title,
            [
                Series(name, looks[name], points, label)
                for (name, label), members in groups.items()
                if (points := _mean_curve(members, column))
            ],
            "",
            4,
        )
        for title, column in ((f"{split} cross-entropy", 1), (f"Development {metric}", 2))
    ]
    how = (
        " Lines are averages over the runs of an objective, bands their range." if averaged else ""
    )
    return panels_figure(
        f"learning-curves-{task}-{metric}",
        f"Learning curves of {task}",
        f"By epoch: the {split.lower()} cross-entropy, and {metric} on the development set."
        + (how or (" Runs of one objective look alike." if alike else "")),
        panels,
        "epoch",
    )


_TOWARD_A_REWARD = {  # panels, and what runs call their curves
    "Reward of the model’s samples in training": ("reward",),
    "Reward on the development set": ("dev_reward",),
    "Held-out score on the development set": ("dev_chrf", "dev_bleu"),
    "KL to the model it started from": ("kl_base",),
    "Tokens of a completion": ("completion_length",),
    "Share of different samples": ("distinct",),
    "Entropy": ("entropy",),
    "Effective share of samples": ("ess", "ess_reused"),
}


def toward_a_reward(models: Sequence[ModelResult], labels: Sequence[str]) -> Figure | None:
    """The reward of text models by step, and beside it what a model that exploits it would lose.

    A held-out score, the distance from the model that training started from, length and diversity.
    """
    pairs = [(one, label) for one, label in zip(models, labels, strict=True) if one.steps]
    looks = dict(zip([label for _, label in pairs], cycle(RUN_LOOKS), strict=False))
    panels = [
        Panel(
            title,
            [
                Series(label, looks[label], points, f"{label}, {name}")
                for model, label in pairs
                for name in names
                if (points := _thinned(model.steps.get(name, ())))
            ],
            "",
            4,
        )
        for title, names in _TOWARD_A_REWARD.items()
    ]
    if not any(panel.series for panel in panels if "development" not in panel.title):
        return None
    return panels_figure(
        "toward-a-reward",
        "Training toward a reward",
        "By step. Where the reward rises while the held-out score falls, KL runs away, texts grow"
        " longer or fewer of them differ, the model exploits the reward. Held-out scores are"
        " sacreBLEU’s, 0 to 100, of greedy texts; training values are means over the steps since"
        " the point before.",
        panels,
        "step",
    )


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float | Interval]]:
    """At most so many points as a learning curve has, the last one among them."""
    return list(points[::-1][:: -(-len(points) // MOST_EPOCHS) or 1][::-1])


def _mean_curve(models: Sequence[ModelResult], column: int) -> list[tuple[float, Interval]]:
    """The mean of a column of curves by epoch, at equal distances that end with the last."""
    found: dict[int, list[float]] = {}
    for model in models:
        step = -(-len(model.curve) // MOST_EPOCHS)
        for point in model.curve[::-1][::step]:
            if (value := point[column]) is not None:
                found.setdefault(point[0], []).append(value)
    return [(float(epoch), mean_and_range(values)) for epoch, values in sorted(found.items())]
