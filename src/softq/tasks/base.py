"""What a task is, and a run of it: cells of one recipe, a learner, a run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor

from softq.errors import RunError
from softq.recipe import Objective, Training, recipe_hash, to_toml
from softq.run import BEST, CELLS, RunFolder
from softq.train import Learner, Outcome, Watcher, Workers, find_workers, train


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
    """Data, model, objective and metric of one of the paper's experiments."""

    name: ClassVar[str]
    recipe_type: ClassVar[type[Any]]
    metric: ClassVar[str]  # of development and test sets; higher is better
    together: ClassVar[bool]  # whether cells that differ in objective and seed are trained as one

    def learner(self, cells: Sequence[Any], workers: Workers) -> Learner:
        """What trains these cells; more than one only if ``together``."""
        ...

    def signature(self, recipe: Any) -> str:
        """The reward that the numbers are measured in."""
        ...

    def test_statistics(self, cells: Sequence[Any], best: Mapping[str, Tensor], chosen: Sequence[int]) -> Tensor:
        """Statistics of each test example, ``[chosen, examples, D]``, for some of a run's cells; see `softq.evaluate`."""
        ...

    def metric_of(self, sums: Tensor) -> Tensor:
        """The metric as a function of sums of those statistics."""
        ...


class Cell(NamedTuple):
    """One trained model of a run or sweep, with all that a table needs to say of it."""

    hash: str
    objective: str
    tau: float | None
    temperature_scaled: bool
    seed: int
    epoch: int
    dev: float
    test: float


def describe_cell(task: Task, recipe: Recipe) -> dict[str, Any]:
    """What tells a cell from others of its run, and the hash of its recipe."""
    objective = recipe.objective
    return {
        "hash": recipe_hash(recipe, task=task.name),
        "objective": objective.name,
        "tau": objective.tau,
        "temperature_scaled": objective.temperature_scaled,
        "seed": recipe.training.seed,
    }


def cell_recipe(base: Any, described: Mapping[str, Any]) -> Any:
    """The recipe of a cell from that of its run and `describe_cell`."""
    objective = Objective(described["objective"], described["tau"], described["temperature_scaled"])
    return dataclasses.replace(base, objective=objective, training=dataclasses.replace(base.training, seed=described["seed"]))


def train_cells(
    task: Task, cells: Sequence[Any], out: Path, *, resume: bool = False, watcher: Watcher | None = None, workers: Workers | None = None
) -> dict[str, Any]:
    """Train cells (recipes that differ in objective and seed) into one run folder and return its result."""
    workers = workers or find_workers(cells[0].training.device)
    described = [describe_cell(task, cell) for cell in cells]
    run = RunFolder(out)
    if workers.is_main:
        if not (resume and run.exists()):
            device = f"{workers.size} × {workers.device.type}" if workers.size > 1 else workers.device.type
            run = RunFolder.create(out, to_toml(cells[0], task=task.name), described, device)
        _check_same_cells(run, described)
    workers.any(False)  # wait for the folder

    def finish(outcome: Outcome) -> dict[str, Any]:
        rows = [
            row | {"epoch": epoch, "dev": dev} | tests
            for row, epoch, dev, tests in zip(described, outcome.epochs, outcome.dev, outcome.test, strict=True)
        ]
        return {"task": task.name, "metric": task.metric, "signature": task.signature(cells[0]), "cells": rows}

    if not workers.is_main:
        return _train(task, cells, run, workers, finish, watcher)
    with run.locked():
        return _train(task, cells, run, workers, finish, watcher)


def _train(task: Task, cells: Sequence[Any], run: RunFolder, workers: Workers, finish: Any, watcher: Watcher | None) -> dict[str, Any]:
    if (result := run.result()) is not None:
        return result
    names = [f"{cell.objective} seed={cell.training.seed}" for cell in cells]
    return train(task.learner(cells, workers), run, cells[0].training, workers=workers, cell_names=names, finish=finish, watcher=watcher)


def _check_same_cells(run: RunFolder, described: Sequence[Mapping[str, Any]]) -> None:
    """A run goes on with the recipe it began with."""
    before = [row["hash"] for row in run.lines(CELLS)]
    if before != [row["hash"] for row in described]:
        raise RunError(
            f"{run.path} was begun with another recipe (see recipe.toml there): resume it with the same one, or choose another --out"
        )


def read_cells(run: RunFolder) -> list[Cell]:
    """The cells of a finished run, [] of one that is not."""
    result = run.result()
    return [] if result is None else [Cell(**{name: row[name] for name in Cell._fields}) for row in result["cells"]]


def best_models(run: RunFolder) -> Mapping[str, Tensor]:
    """The best models of a run."""
    best = run.load(BEST)
    if best is None:
        raise RunError(f"{run.path} has no best model yet; finish its training with --resume")
    return best.tensors
