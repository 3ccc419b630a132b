"""Runs of any task as a section of a report: one table, and learning curves for each metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softq.lab.report.figures import Canvas, Look, Series, describe, plain
from softq.lab.report.page import Column, Figure, Section, Table, Value

LOOKS = (
    Look("blue", "o"),
    Look("orange", "s", "--"),
    Look("green", "^", "-."),
    Look("purple", "D", ":"),
    Look("brown", "v"),
    Look("ink", "P", "--"),
)


@dataclass(frozen=True)
class RunSummary:
    """One run. ``curve`` holds (epoch, training cross-entropy, development value of the metric); None where it was not measured."""

    name: str
    task: str
    objective: str  # "raml", or "raml, scaled" with scores divided by τ
    tau: float | None
    seed: int
    metric: str
    best_dev: float | None
    best_epoch: float | None
    test: float | None
    curve: Sequence[tuple[int, float | None, float | None]]
    recipe_hash: str
    signature: str  # of the reward
    settings: str = ""  # what else its sweep varied, "c2=0.3"


def runs_section(runs: Sequence[RunSummary], *, command: str = "", recipe: str = "") -> Section:
    """A table of all runs, and for each task and metric the learning curves of its runs."""
    columns = {
        "name": Column("Run"),
        "task": Column("Task"),
        "objective": Column("Objective"),
        "tau": Column("τ", ",g"),
        "settings": Column("Settings"),
        "seed": Column("Seed", "d"),
        "metric": Column("Metric"),
        "best_dev": Column("Development", ".4f"),
        "best_epoch": Column("Epoch", "g"),
        "test": Column("Test", ".4f"),
        "recipe_hash": Column("Recipe"),
        "signature": Column("Reward"),
    }
    if not any(run.settings for run in runs):
        del columns["settings"]
    rows: list[Sequence[Value]] = [tuple(getattr(run, field) for field in columns) for run in runs]
    table = Table(
        name="runs",
        caption="Runs at their best epoch on the development set",
        columns=list(columns.values()),
        rows=rows,
    )
    groups: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        groups.setdefault((run.task, run.metric), []).append(run)
    figures = [learning_curves(task, metric, members) for (task, metric), members in groups.items()]
    return Section(
        title="Runs",
        intro=[
            f"{len(runs)} {'run' if len(runs) == 1 else 'runs'}, each with the recipe and the reward its numbers belong to."
        ],
        parts=[table, *(figure for figure in figures if figure is not None)],
        command=command,
        recipe=recipe,
    )


def learning_curves(task: str, metric: str, runs: Sequence[RunSummary]) -> Figure | None:
    """Both panels by epoch; with more runs than looks, runs of one objective share theirs, and a label."""
    names = _labels(runs)
    crowded = len(runs) > len(LOOKS)
    labels = [run.objective for run in runs] if crowded else names
    order = list(dict.fromkeys(labels))
    curves = [
        (
            "Training cross-entropy",
            [
                [(float(epoch), loss) for epoch, loss, _ in run.curve if loss is not None]
                for run in runs
            ],
        ),
        (
            f"Development {metric}",
            [
                [(float(epoch), value) for epoch, _, value in run.curve if value is not None]
                for run in runs
            ],
        ),
    ]
    panels: list[tuple[str, list[Series]]] = []
    for title, lines in curves:
        drawn = [(label, points) for label, points in zip(labels, lines, strict=True) if points]
        if drawn:
            panels.append(
                (
                    title,
                    [
                        Series(label, LOOKS[order.index(label) % len(LOOKS)], points)
                        for label, points in drawn
                    ],
                )
            )
    if not panels:
        return None

    def draw(canvas: Canvas) -> None:
        axes = canvas.panels(
            len(panels), height=2.5 if canvas.style.phone else 3.2, columns=2, head=0.5
        )
        for panel, (title, series) in zip(axes, panels, strict=True):
            canvas.lines(panel, series)
            panel.set_title(plain(title))
            panel.set_xlabel("epoch")
            panel.locator_params(axis="x", integer=True)
        is_long = max(map(len, labels)) > 18
        canvas.legend(axes[0], columns=2 if is_long else 4, phone_columns=1 if is_long else 2)

    told = [
        describe(name, points, "epoch")
        for name, points in zip(names, curves[1][1], strict=True)
        if points
    ]
    name, title = f"learning-curves-{task}-{metric}", f"Learning curves of {task}"
    return Figure(
        name=name,
        title=title,
        caption=f"By epoch: the training cross-entropy, and {metric} on the development set."
        + (" Runs of one objective look alike." if crowded else ""),
        alt=f"{title}, by epoch. Runs: {len(runs)}. Development {metric}: {'; '.join(told[: len(LOOKS)]) or 'not measured'}.",
        draw=draw,
        numbers=Table(
            name=name,
            caption=title,
            columns=[
                Column("Run"),
                Column("Epoch", "g"),
                Column("Training cross-entropy", ".4f"),
                Column(f"Development {metric}", ".4f"),
            ],
            rows=[
                (name, *point) for name, run in zip(names, runs, strict=True) for point in run.curve
            ],
        ),
    )


def _labels(runs: Sequence[RunSummary]) -> list[str]:
    """Names, with what tells them apart where one folder holds several runs."""
    names = [run.name for run in runs]
    return [
        run.name
        if names.count(run.name) == 1
        else f"{run.name} {run.objective}{'' if run.tau is None else f' τ = {run.tau:g}'} seed {run.seed}"
        for run in runs
    ]
