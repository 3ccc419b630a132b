"""What a task is, and a run of it: cells of one recipe, a learner, a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor

from softq.errors import RunError
from softq.lab.loop import Evaluation, Learner, Watcher, train
from softq.lab.processes import Interrupts, Workers, find_workers
from softq.lab.recipe import Objective, Training, flag_names, recipe_hash, to_toml
from softq.lab.run import BEST, CELLS, OUTPUTS, RECIPE, RESULT, RunFolder, as_json
from softq.metrics import Metric


class Recipe(Protocol):
    """The sections that every recipe has."""

    @property
    def objective(self) -> Objective:
        """What to train toward."""
        ...

    @property
    def training(self) -> Training:
        """How long and where."""
        ...


class Task(Protocol):
    """Data, model, objective and metric of one of the paper's experiments.

    Its class is made without arguments: that is how `softq sweep --jobs` has it in other processes.
    """

    name: ClassVar[str]
    recipe_type: ClassVar[type[Any]]
    metric: ClassVar[str]  # how people call the metric that models are chosen by; higher is better
    metrics: ClassVar[
        Mapping[str, Metric]
    ]  # by name, functions of sums of the statistics of examples
    chosen_by: ClassVar[str]  # the name of `metric` among them
    together: ClassVar[bool]  # whether cells that differ in objective and seed are trained as one

    def learner(self, cells: Sequence[Any], workers: Workers) -> Learner:
        """What trains these cells; more than one only if ``together``."""
        ...

    def signature(self, recipe: Any) -> str:
        """The reward that the numbers are measured in."""
        ...


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
    def from_row(cls, row: Mapping[str, Any]) -> Cell:
        """The cell of a row of ``result.json``, which holds measures beside the rest.

        >>> row = {"hash": "abc", "objective": "ml", "tau": None, "temperature_scaled": False, "settings": {}, "seed": 0}
        >>> Cell.from_row(row | {"epoch": 3, "dev": 0.5, "test": 0.25, "recall": 0.75}).measures
        {'recall': 0.75}
        """
        names = {field.name for field in dataclasses.fields(cls)}
        measures = {name: value for name, value in row.items() if name not in names}
        return cls(
            **{name: value for name, value in row.items() if name in names}, measures=measures
        )


def describe_cell(
    task: Task, recipe: Recipe, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What tells a cell from others of its run or sweep, and the hash of its recipe; ``settings`` are from `settings_of`."""
    objective = recipe.objective
    return {
        "hash": recipe_hash(recipe, task=task.name),
        "objective": objective.name,
        "tau": objective.tau,
        "temperature_scaled": objective.temperature_scaled,
        "settings": dict(settings or {}),
        "seed": recipe.training.seed,
    }


def cell_recipe(base: Any, described: Mapping[str, Any]) -> Any:
    """The recipe of a cell from that of its run or sweep and `describe_cell`."""
    sections: dict[str, dict[str, Any]] = {"training": {"seed": described["seed"]}}
    changed: dict[str, Any] = {
        "objective": Objective(
            described["objective"], described["tau"], described["temperature_scaled"]
        )
    }
    for flag, value in described.get("settings", {}).items():
        section, name = _places(base.__class__)[flag]
        (sections.setdefault(section, {}) if section else changed)[name] = (
            tuple(value) if isinstance(value, list) else value
        )
    # all at once: a recipe may check that its sections fit together
    changed |= {
        name: dataclasses.replace(getattr(base, name), **keys) for name, keys in sections.items()
    }
    return dataclasses.replace(base, **changed)


def settings_of(recipe: Any, flags: Iterable[str]) -> dict[str, Any]:
    """The values of these keys in a recipe, as JSON has them; keys are named by their flags."""
    found = {}
    for flag in flags:
        section, name = _places(recipe.__class__)[flag]
        value = getattr(getattr(recipe, section) if section else recipe, name)
        found[flag] = list(value) if isinstance(value, tuple) else value
    return found


@lru_cache
def _places(recipe_type: type[Any]) -> dict[str, tuple[str, str]]:
    """Section and key of each flag."""
    return {flag: (section, name) for flag, (section, name, _) in flag_names(recipe_type).items()}


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
) -> dict[str, Any]:
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
    described = [describe_cell(task, cell, settings) for cell in cells]
    run = RunFolder(out)
    fresh, learner = not (resume and run.exists()), None
    with Interrupts(workers, also_stop) as interrupts, contextlib.ExitStack() as stack:
        if fresh:
            run.refuse_existing()
            learner = task.learner(cells, workers)  # reports bad data before anything is written
        if workers.is_main:
            stack.enter_context(run.locked())
            if fresh:
                several = f"{workers.size} × " if workers.size > 1 else ""
                device = several + workers.device.type
                run.begin(to_toml(cells[0], task=task.name), described, device)
            elif [row["hash"] for row in run.lines(CELLS)] != [row["hash"] for row in described]:
                raise RunError(
                    f"{out} was started with another recipe (see {RECIPE} there): resume it with the same one, or choose "
                    "another --out"
                )
        workers.any(False)  # wait for the folder
        if (result := run.result()) is not None:
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
        columns = (
            run.lines(CELLS),
            outcome.epochs,
            outcome.dev,
            measures(task, outcome.evaluation),
        )
        result = {
            "task": task.name,
            "metric": task.metric,
            "signature": task.signature(cells[0]),
            "cells": [
                row | {"epoch": epoch, "dev": dev} | final
                for row, epoch, dev, final in zip(*columns, strict=True)
            ],
        }
        if hasattr(task, "facts"):  # what a report says of the data; see softq.lab.tasks.facts
            result["facts"] = task.facts(cells[0], outcome.evaluation.outputs)
        if workers.is_main:
            run.save_counts(outcome.evaluation.counts)
            outputs = [{"output": output} for output in outcome.evaluation.outputs]
            run.rewrite_lines(OUTPUTS, outputs)
            run.write(RESULT, as_json(result))  # last: a run that has it is finished
        return result


def measures(task: Task, evaluation: Evaluation) -> list[dict[str, float]]:
    """All that is known of each model of a run: ``test``, every metric of both splits, what the learner measured beside them.

    A metric that has no value, such as a score over content words where there are none, is left out.
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


def read_cells(run: RunFolder) -> list[Cell]:
    """The cells of a finished run, [] of one that is not."""
    result = run.result()
    return [] if result is None else [Cell.from_row(row) for row in result["cells"]]


def best_models(run: RunFolder) -> Mapping[str, Tensor]:
    """The best models of a run."""
    best = run.load(BEST)
    if best is None:
        raise RunError(f"{run.path} has no best model yet; finish its training with --resume")
    return best.tensors
