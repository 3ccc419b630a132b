"""A sweep: one recipe over grids of objectives, temperatures and seeds, and what to conclude from it.

A sweep folder holds ``sweep.toml`` (the recipe with its grids), ``runs/`` (run folders: one for all cells where a task trains them
together, else one each), ``cells.jsonl`` (a line per finished cell) and ``summary.json``. Started again, it skips what is finished, goes on
with what was broken off, and trains what is new. The temperature is chosen on the development set, and what it earns on the test
set is compared with ML by a paired bootstrap over test examples.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softq.errors import RecipeError, RunError
from softq.evaluate import Interval, mean_interval, paired_bootstrap
from softq.ranges import parse_seeds, parse_taus
from softq.recipe import Objective, build, key, read_toml, recipe_hash, to_toml, toml_value
from softq.run import CELLS, RECIPE, RunFolder, as_json, read_json, telling_how_to_go_on
from softq.targets import ObjectiveName
from softq.tasks.base import Cell, Task, best_models, cell_recipe, describe_cell, read_cells, train_cells
from softq.train import Watcher, find_workers

SWEEP, SUMMARY, RUNS = "sweep.toml", "summary.json", "runs"
RESAMPLES = 1000
_INTERVALS = ("dev", "test", "gain")  # of a choice


@dataclass(frozen=True)
class Grid:
    """One grid of a sweep: a table ``[[sweep]]`` of a recipe."""

    name: str = key("sweep", "what to call it in tables and figures")
    objective: tuple[ObjectiveName, ...] = key(("ml", "raml", "sqdml"), "objectives")
    tau: str = key("0.5,1,2", "temperatures of raml and sqdml: numbers, or a range FROM:TO:STEP with its end")
    seed: str = key("0", "seeds: numbers, or a range FROM:TO")
    temperature_scaled: bool = key(False, "divide the scores by tau and multiply the loss by tau squared")

    def __post_init__(self) -> None:
        """A grid has cells, and they can be written down."""
        if not self.objective:
            raise RecipeError("objective must name at least one of ml, raml and sqdml, got an empty list")
        parse_taus(self.tau)
        parse_seeds(self.seed)

    def objectives(self) -> list[Objective]:
        """Every objective at every temperature; ML once.

        >>> [str(objective) for objective in Grid(objective=("ml", "raml"), tau="1,2").objectives()]
        ['ml', 'raml τ=1', 'raml τ=2']
        """
        found = []
        for name in self.objective:
            found += [Objective("ml")] if name == "ml" else [Objective(name, tau, self.temperature_scaled) for tau in parse_taus(self.tau)]
        return found


class SweepCell(NamedTuple):
    """A finished cell and the grids it belongs to."""

    grids: tuple[str, ...]
    cell: Cell
    run: Path


@dataclass(frozen=True)
class Choice:
    """The temperature that an objective of a grid gets from the development set, and what it is worth."""

    grid: str
    objective: str
    temperature_scaled: bool
    tau: float | None
    seeds: int
    dev: Interval
    test: Interval
    gain: Interval | None  # over ML on the test set; None for ML, and where there is no ML

    def as_json(self) -> dict[str, Any]:
        """Plain values; JSON has no NaN, so null stands for an interval's end that a single seed does not give."""
        plain = dataclasses.asdict(self)
        for name in _INTERVALS:
            interval = getattr(self, name)
            plain[name] = interval and {end: x if math.isfinite(x) else None for end, x in interval._asdict().items()}
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Choice:
        """The choice that `as_json` wrote."""
        intervals = {name: plain[name] and Interval(*(math.nan if x is None else x for x in plain[name].values())) for name in _INTERVALS}
        return cls(**{**plain, **intervals})


class Sweep(NamedTuple):
    """A sweep, or what is finished of it."""

    task: str
    metric: str
    signature: str
    cells: list[SweepCell]
    choices: list[Choice]
    wanted: int  # cells, finished or not


def expand(task: Task, base: Any, grids: Sequence[Grid]) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """Every cell's recipe and the grids it belongs to, by the hash of the recipe: a cell of two grids is trained once."""
    found: dict[str, tuple[Any, tuple[str, ...]]] = {}
    for grid in grids:
        for seed in parse_seeds(grid.seed):
            for objective in grid.objectives():
                recipe = dataclasses.replace(base, objective=objective, training=dataclasses.replace(base.training, seed=seed))
                name = describe_cell(task, recipe)["hash"]
                _, names = found.get(name, (None, ()))
                found[name] = (recipe, names if grid.name in names else (*names, grid.name))
    return found


def run_sweep(
    task: Task,
    base: Any,
    grids: Sequence[Grid],
    out: Path,
    *,
    resume: bool = False,
    watch: Callable[[str], Watcher] | None = None,
) -> Sweep:
    """Train every cell that is not finished yet, choose temperatures, compare with ML, and write it all down.

    Args:
        task: what to train.
        base: the recipe; objective and seed are the grids'.
        grids: at least one.
        out: the sweep folder.
        resume: go on with a folder that exists already.
        watch: makes a watcher for a run, by its name.

    """
    workers = find_workers(base.training.device)
    if workers.size > 1:
        raise RunError(f"a sweep runs in one process, got {workers.size}; train single models with several processes: softq train")
    folder = RunFolder(out)
    wanted = expand(task, base, grids)  # before anything is written: a cell's recipe may be refused
    if (out / SWEEP).is_file():
        if not resume:
            raise RunError(f"{out} already holds a sweep: add --resume to go on with it, or choose another --out")
        _check_same_recipe(task, base, out)
    with telling_how_to_go_on(out):
        out.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        folder.write(SWEEP, sweep_toml(task, base, grids))
        (out / SUMMARY).unlink(missing_ok=True)  # it may not fit what follows
        jobs = _jobs(task, out / RUNS, wanted)
        for number, (path, cells, old) in enumerate(jobs):
            label = f"{len(cells)} models" if len(cells) > 1 else f"{cells[0].objective} seed {cells[0].training.seed}"
            if len(jobs) > 1:
                label += f" ({number + 1} of {len(jobs)})"
            train_cells(task, cells, path, resume=old, watcher=watch(label) if watch else None, workers=workers)
        return _write(conclude(task, base, grids, out), out)


def _check_same_recipe(task: Task, base: Any, out: Path) -> None:
    """A sweep goes on with the recipe it began with; its grids may change."""
    plain = {"objective": "ml", "tau": None, "temperature_scaled": False, "seed": 0}  # objective and seed are the grids'
    before, _ = read_recipe(task, out / SWEEP)
    if recipe_hash(cell_recipe(before, plain), task=task.name) != recipe_hash(cell_recipe(base, plain), task=task.name):
        raise RunError(f"{out} was begun with another recipe (see {SWEEP} there): resume it with the same one, or choose another --out")


def conclude(task: Task, base: Any, grids: Sequence[Grid], out: Path) -> Sweep:
    """What the finished runs of a sweep folder say."""
    wanted = expand(task, base, grids)
    found = {cell.hash: (cell, path) for path in _runs(out / RUNS) for cell in read_cells(RunFolder(path))}
    cells = [SweepCell(names, *found[name]) for name, (_, names) in wanted.items() if name in found]
    return Sweep(task.name, task.metric, task.signature(base), cells, choose(task, base, cells), len(wanted))


def _write(sweep: Sweep, out: Path) -> Sweep:
    """Write ``cells.jsonl`` and ``summary.json``."""
    folder = RunFolder(out)
    rows = [cell._asdict() | {"grids": list(names), "run": str(path.relative_to(out))} for names, cell, path in sweep.cells]
    folder.rewrite_lines(CELLS, rows)
    summary = {"task": sweep.task, "metric": sweep.metric, "signature": sweep.signature, "cells": len(sweep.cells)}
    folder.write(SUMMARY, as_json(summary | {"choices": [choice.as_json() for choice in sweep.choices]}))
    return sweep


def read_sweep(task: Task, out: Path) -> Sweep:
    """A sweep from its folder; of one that was broken off, what is finished."""
    folder = RunFolder(out)
    if not (out / SUMMARY).is_file():
        return conclude(task, *read_recipe(task, out / SWEEP), out)
    summary = read_json(out / SUMMARY)
    cells = [
        SweepCell(tuple(row["grids"]), Cell(**{name: row[name] for name in Cell._fields}), out / row["run"]) for row in folder.lines(CELLS)
    ]
    choices = [Choice.from_json(row) for row in summary["choices"]]
    return Sweep(summary["task"], summary["metric"], summary["signature"], cells, choices, len(cells))


def read_recipe(task: Task, path: Path) -> tuple[Any, list[Grid]]:
    """The recipe of a file and its grids, [] if it has none."""
    return parse_recipe(task, read_toml(path), str(path))


def parse_recipe(task: Task, table: Mapping[str, Any], where: str) -> tuple[Any, list[Grid]]:
    """The same from the file's tables."""
    base = build(task.recipe_type, {name: value for name, value in table.items() if name not in ("task", "sweep")}, where)
    grids = table.get("sweep", [])
    if not isinstance(grids, list) or not all(isinstance(grid, Mapping) for grid in grids):
        raise RecipeError(f"{where}: a grid is a table [[sweep]], in double brackets because there may be several, got {grids!r}")
    found = [build(Grid, grid, f"{where}, [[sweep]]") for grid in grids]
    names = [grid.name for grid in found]
    if len(set(names)) < len(names):
        raise RecipeError(f"{where}: every [[sweep]] needs a name of its own, got {', '.join(names)}")
    return base, found


def sweep_toml(task: Task, base: Any, grids: Sequence[Grid]) -> str:
    """The recipe with its grids as TOML."""
    tables = []
    for grid in grids:
        lines = [f"{field.name} = {toml_value(getattr(grid, field.name))}\n" for field in dataclasses.fields(grid)]
        tables.append("\n[[sweep]]\n" + "".join(lines))
    return to_toml(base, task=task.name) + "".join(tables)


def choose(task: Task, base: Any, cells: Sequence[SweepCell]) -> list[Choice]:
    """For each objective of each grid, the temperature of the best mean development score, and its gain over ML."""
    groups: dict[tuple[str, str, bool], dict[float | None, list[SweepCell]]] = {}
    for grid in dict.fromkeys(grid for member in cells for grid in member.grids):
        for member in cells:
            if grid in member.grids:
                group = groups.setdefault((grid, member.cell.objective, member.cell.temperature_scaled), {})
                group.setdefault(member.cell.tau, []).append(member)
    chosen = {name: max(group.values(), key=lambda members: _mean_dev(members)) for name, group in groups.items()}
    gains = _gains(task, base, chosen)
    return [
        Choice(
            *name,
            tau=members[0].cell.tau,
            seeds=len(members),
            dev=mean_interval([member.cell.dev for member in members]),
            test=mean_interval([member.cell.test for member in members]),
            gain=gains.get(name),
        )
        for name, members in chosen.items()
    ]


def _mean_dev(members: Sequence[SweepCell]) -> float:
    return sum(member.cell.dev for member in members) / len(members)


def _gains(task: Task, base: Any, chosen: Mapping[tuple[str, str, bool], Sequence[SweepCell]]) -> dict[tuple[str, str, bool], Interval]:
    """Paired bootstrap of every choice against ML, on the same resampled test sets; of the same number of seeds at a time."""
    baseline = next((members for (_, objective, _), members in chosen.items() if objective == "ml"), None)
    others = {name: members for name, members in chosen.items() if name[1] != "ml"}
    if baseline is None or not others:
        return {}
    theirs = _statistics(task, base, baseline)
    gains: dict[tuple[str, str, bool], Interval] = {}
    for count in {len(members) for members in others.values()}:
        alike = {name: members for name, members in others.items() if len(members) == count}
        ours = torch.stack([_statistics(task, base, members) for members in alike.values()])
        generator = torch.Generator().manual_seed(0)  # the same resamples for every count
        intervals = paired_bootstrap(ours, theirs, task.metric_of, resamples=RESAMPLES, generator=generator)
        gains |= dict(zip(alike, intervals, strict=True))
    return gains


def _statistics(task: Task, base: Any, members: Sequence[SweepCell]) -> Tensor:
    """Test statistics ``[seeds, examples, D]`` of cells, run by run."""
    found = []
    for member in members:
        run = RunFolder(member.run)
        described = run.lines(CELLS)
        recipes = [cell_recipe(base, row) for row in described]
        index = [row["hash"] for row in described].index(member.cell.hash)
        found.append(task.test_statistics(recipes, best_models(run), [index]))
    return torch.cat(found)


class _Job(NamedTuple):
    path: Path
    cells: list[Any]
    old: bool


def _runs(runs: Path) -> list[Path]:
    return sorted(path for path in runs.glob("*") if (path / RECIPE).is_file())


def _jobs(task: Task, runs: Path, wanted: Mapping[str, tuple[Any, tuple[str, ...]]]) -> list[_Job]:
    """The runs that are left to do: broken ones first, then one for each new cell, or one for all of them."""
    base = next(iter(wanted.values()))[0]
    left, jobs = dict(wanted), []
    for path in _runs(runs):
        rows = RunFolder(path).lines(CELLS)
        if RunFolder(path).result() is None and any(row["hash"] in left for row in rows):
            jobs.append(_Job(path, [cell_recipe(base, row) for row in rows], True))
        for row in rows:
            left.pop(row["hash"], None)
    new = [recipe for recipe, _ in left.values()]
    if task.together and len(new) > 1:
        name = hashlib.sha256("".join(left).encode()).hexdigest()[:12]
        jobs.append(_Job(runs / f"grid-{name}", new, False))
    else:
        jobs += [_Job(runs / _slug(recipe, name), [recipe], False) for name, recipe in zip(left, new, strict=True)]
    return jobs


def _slug(recipe: Any, name: str) -> str:
    """A folder name that people can read.

    >>> _slug(type("R", (), {"objective": Objective("raml", 2.4), "training": type("T", (), {"seed": 1})}), "abc")
    'raml-tau2.4-seed1-abc'
    """
    objective = recipe.objective
    parts = [objective.name, *([f"tau{objective.tau:g}"] if objective.tau else []), *(["scaled"] if objective.temperature_scaled else [])]
    return "-".join([*parts, f"seed{recipe.training.seed}", name])
