"""What a task is, and a run of it: cells of one recipe, a learner, a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from torch import Tensor

from softq.errors import RecipeError, RunError
from softq.lab.loop import Evaluation, Learner, Watcher, telling, train
from softq.lab.processes import Interrupts, Workers, find_workers
from softq.lab.recipe import build, flag_names, merge, recipe_hash, to_toml
from softq.lab.run import (
    BEST,
    CURVES,
    RESULT,
    CellRow,
    ResultTable,
    RunFolder,
    as_json,
    damaged,
)
from softq.metrics import Metric

R = TypeVar("R")


class Task:
    """An experiment, declared once for all commands.

    Train, sweep, reproduce and report are written over this class.

    A subclass sets the class attributes, defines `learner` and `signature`, and overrides `facts`
    and `notes` if it likes. It is made without arguments: that is how ``softq sweep --jobs`` makes it in other
    processes.

    Attributes:
        name: in commands and recipes.
        recipe_type: a frozen dataclass of sections, two of which are ``objective`` and
            ``training``.
        metrics: functions of sums of the statistics of examples, by name; higher is better.
        titles: the metrics that commands print, by name; models are chosen by the first.
        together: whether cells that differ in objective and seed are trained as one.

    """

    name: ClassVar[str]
    recipe_type: ClassVar[type[Any]]
    metrics: ClassVar[Mapping[str, Metric]]
    titles: ClassVar[Mapping[str, str]]
    together: ClassVar[bool] = False

    @property
    def chosen_by(self) -> str:
        """The name of the metric that models are chosen by."""
        return next(iter(self.titles))

    @property
    def metric(self) -> str:
        """Its title."""
        return self.titles[self.chosen_by]

    def learner(self, cells: Sequence[Any], workers: Workers) -> Learner:
        """What trains these cells; more than one only if ``together``."""
        raise NotImplementedError

    def signature(self, recipe: Any) -> str:
        """The reward that the scores are measured in."""
        raise NotImplementedError

    def facts(self, recipe: Any, outputs: Sequence[Any]) -> dict[str, Any]:
        """Facts about the data that a run stores in ``result.json``, so that a report needs the run folder alone.

        ``outputs`` are the predictions for the test set. The report knows these keys:

        =====================  ===================================================================
        ``examples``           number of examples by split, where counts do not tell it (``train``)
        ``bayes``              scores of the Bayes rule of a built-in world, by the names of measures
        ``types``              span scores of the test set by type of entity
        ``annotators``         how reliable each annotator seems
        ``annotator_model``    the model that estimated it
        ``annotator_scores``   UAS of each annotator against the true trees of a built-in world
        =====================  ===================================================================
        """
        return {}

    def notes(self, measures: Mapping[str, Any]) -> Sequence[str]:
        """What to tell of a trained model beside its scores; ``measures`` are all that is known of it."""
        return ()


@dataclass(frozen=True)
class Cell:
    """One trained model of a run or sweep, with all that a table needs to say of it."""

    hash: str
    objective: str
    tau: float | None
    temperature_scaled: bool
    seed: int
    epoch: int
    dev: float
    test: float
    settings: dict[str, Any]  # keys that its sweep varies, by their flags; JSON values
    measures: dict[str, float]  # what else was measured on the test set

    @classmethod
    def from_row(cls, row: Mapping[str, Any], where: str) -> Cell:
        """The cell of a row of ``result.json``, which holds measures beside the rest.

        >>> row = {"hash": "abc", "objective": "ml", "tau": None, "temperature_scaled": False, "settings": {}, "seed": 0}
        >>> Cell.from_row(row | {"epoch": 3, "dev": 0.5, "test": 0.25, "recall": 0.75}, "result.json").measures
        {'recall': 0.75}
        """
        names = {field.name for field in dataclasses.fields(cls)}
        known = {name: value for name, value in row.items() if name in names}
        measures = {name: value for name, value in row.items() if name not in names}
        with damaged(where):
            return build(cls, {"measures": measures} | known, "it")


def describe_cell(task: str, recipe: Any, settings: Mapping[str, Any] | None = None) -> CellRow:
    """What tells a cell of a task from others of its run or sweep, and the hash of its recipe.

    ``settings`` are from `settings_of`.
    """
    objective = recipe.objective
    return {
        "hash": recipe_hash(recipe, task=task),
        "objective": objective.name,
        "tau": objective.tau,
        "temperature_scaled": objective.temperature_scaled,
        "settings": dict(settings or {}),
        "seed": recipe.training.seed,
    }


def cell_recipe(base: R, described: Mapping[str, Any], where: str = "recipe") -> R:
    """The recipe of a cell from that of its run or sweep and `describe_cell`."""
    objective = {"name": described["objective"]}
    objective |= {name: described[name] for name in ("tau", "temperature_scaled")}
    table: dict[str, Any] = {"objective": objective, "training": {"seed": described["seed"]}}
    flags = flag_names(base.__class__)
    for flag, value in described.get("settings", {}).items():
        if flag not in flags:
            raise RecipeError(
                f"{where}: there is no key {flag!r}, which the settings of a cell name"
            )
        section, name, _ = flags[flag]
        table = merge(table, {section: {name: value}} if section else {name: value})
    return build(base.__class__, table, where, base)


def settings_of(recipe: Any, flags: Iterable[str]) -> dict[str, Any]:
    """The values of these keys in a recipe, as JSON has them; keys are named by their flags."""
    places, found = flag_names(recipe.__class__), {}
    for flag in flags:
        section, name, _ = places[flag]
        value = getattr(getattr(recipe, section) if section else recipe, name)
        found[flag] = list(value) if isinstance(value, tuple) else value
    return found


def show_settings(settings: Mapping[str, Any]) -> str:
    """Settings as people write them, "" of none.

    >>> show_settings({"c2": 0.3, "hidden": [8, 8], "average": True})
    'c2=0.3 hidden=8,8 average=true'
    """

    def show(value: Any) -> str:
        if isinstance(value, list):
            return ",".join(map(show, value))
        if isinstance(value, bool) or value is None:
            return str(value).lower()
        return f"{value:.12g}" if isinstance(value, float) else str(value)

    return " ".join(f"{flag}={show(value)}" for flag, value in settings.items())


def train_cells(
    task: Task,
    cells: Sequence[Any],
    out: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    watcher: Watcher | None = None,
    workers: Workers | None = None,
    also_stop: Callable[[], bool] = lambda: False,
) -> ResultTable:
    """Train cells (recipes that differ in objective and seed) into one run folder and return its result.

    Args:
        task: of the recipes.
        cells: one recipe for each model; several only if the task trains them together.
        out: the run folder.
        settings: what the sweep they belong to varies (`settings_of`); a resumed run keeps those it was started with.
        resume: continue a run that is in the folder already.
        watcher: of progress.
        workers: the processes and their device; by default those of the recipe.
        also_stop: whether to stop as after Ctrl-C; asked between steps.

    """
    workers = workers or find_workers(cells[0].training.device)
    described = [describe_cell(task.name, cell, settings) for cell in cells]
    run = RunFolder(out)
    fresh = run.is_fresh(described, resume=resume)
    with Interrupts(workers, also_stop) as interrupts, contextlib.ExitStack() as stack:
        stack.enter_context(telling(watcher))
        # what is wrong with the data is told before anything is written
        learner = task.learner(cells, workers) if fresh else None
        if workers.is_main:
            stack.enter_context(run.locked())
            if fresh:
                run.begin(to_toml(cells[0], task=task.name), described, str(workers))
        workers.any(False)  # wait for the folder
        if (result := run.result()) is not None:
            read_cells(run)  # refuses what is damaged
            return result
        outcome = train(
            learner or task.learner(cells, workers),
            run,
            cells[0].training,
            workers=workers,
            interrupts=interrupts,
            cell_names=[f"{cell.objective} seed={cell.training.seed}" for cell in cells],
            watcher=watcher,
        )
        evaluation = outcome.evaluation
        columns = (run.cells(), outcome.epochs, outcome.dev, measures(task, evaluation))
        facts = task.facts(cells[0], evaluation.outputs)
        table = {
            "task": task.name,
            "metric": task.metric,
            "signature": task.signature(cells[0]),
            "cells": [
                row | {"epoch": epoch, "dev": dev} | final
                for row, epoch, dev, final in zip(*columns, strict=True)
            ],
        } | ({"facts": facts} if facts else {})
        if workers.is_main:
            run.save_counts(evaluation.counts)
            run.save_outputs(evaluation.outputs)
            if evaluation.curves:
                run.write(CURVES, as_json(evaluation.curves))
            run.write(RESULT, as_json(table))  # last: a run that has it is finished
        return cast(ResultTable, table)


def measures(task: Task, evaluation: Evaluation) -> list[dict[str, float]]:
    """All that is known of each model of a run.

    ``test``, every metric of both splits, what the learner measured beside them.

    A metric that has no value, such as a score over content words where there are none, is left
    out.
    """
    sums = {split: counts.sums() for split, counts in evaluation.counts.items()}
    if "test" not in sums:
        sums["test"] = sums["dev"]
    found = []
    for number, others in enumerate(evaluation.measures):
        values = {
            f"{split}_{name}": float(metric(of[number]))
            for split, of in sorted(sums.items())
            for name, metric in task.metrics.items()
        }
        known = {name: value for name, value in values.items() if not math.isnan(value)}
        found.append({"test": values[f"test_{task.chosen_by}"], **known, **others})
    return found


def named_scores(metrics: Mapping[str, Metric], counts: Tensor) -> dict[str, float]:
    """Metrics of counts ``[N, C]`` by the names of measures of the test set."""
    sums = counts.sum(0)
    found = {f"test_{name}": float(metric(sums)) for name, metric in metrics.items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}  # as in JSON


def read_cells(run: RunFolder) -> list[Cell]:
    """The cells of a finished run, [] of one that is not."""
    result = run.result()
    rows = result["cells"] if result else []
    return [Cell.from_row(row, str(run.path / RESULT)) for row in rows]


def best_models(run: RunFolder) -> Mapping[str, Tensor]:
    """The best models of a run."""
    best = run.load(BEST)
    if best is None:
        raise RunError(f"{run.path} has no best model yet; finish its training with --resume")
    return best.tensors
