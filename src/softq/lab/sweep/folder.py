"""A sweep folder.

Training what is left of it, concluding from what is finished, reading it back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from softq.checks import check_count
from softq.errors import RecipeError, RunError, SoftqError, StoppedError
from softq.lab.loop import Watcher
from softq.lab.processes import Workers, find_workers
from softq.lab.recipe import build, recipe_hash, typed
from softq.lab.run import (
    CELLS,
    RECIPE,
    RunFolder,
    as_json,
    damaged,
)
from softq.lab.sweep.choices import Choice, SweepCell, choose
from softq.lab.sweep.engine import Run, find_executor, train_runs
from softq.lab.sweep.grids import Grid, expand, read_recipe, sweep_toml, varied
from softq.lab.tasks.base import (
    Cell,
    Task,
    cell_recipe,
    read_cells,
    settings_of,
    show_settings,
    train_cells,
)

SWEEP, RUNS, SUMMARY = "sweep.toml", "runs", "summary.json"
_LONGEST_SETTINGS = 120  # of the settings in the name of a folder


class Sweep(NamedTuple):
    """A sweep, or what is finished of it."""

    task: str
    metric: str
    signature: str  # of the reward; of all rewards that are in the choices, where grids vary it
    cells: list[SweepCell]
    choices: list[Choice]
    wanted: int  # cells, finished or not


def run_sweep(
    task: Task,
    base: Any,
    grids: Sequence[Grid],
    out: Path,
    *,
    resume: bool = False,
    jobs: int = 1,
    executor: Executor | str | None = None,
    watch: Callable[..., Watcher] | None = None,
) -> Sweep:
    """Train every cell that is not finished yet, choose temperatures and settings, compare with ML, and write it all down.

    Args:
        task: what to train.
        base: the recipe; objective, seed and what else they name are the grids'.
        grids: at least one.
        out: the sweep folder.
        resume: continue in a folder that exists already.
        jobs: runs that are trained at a time, in processes of their own that share the cores; a task that trains its cells together
            needs no others, and stays in this process.
        executor: processes to train them in, which several sweeps may share, or the address of a Dask cluster, see
            `softq.lab.sweep.engine.dask_cluster`; by default the sweep starts its own on this machine.
        watch: makes a watcher for a run, by its name; with several jobs, one for all of them that counts models.

    """
    check_count("jobs", jobs, RecipeError)
    workers = find_workers(base.training.device)
    if workers.size > 1:
        raise RunError(
            f"a sweep runs in one process, got {workers.size}; train single models with several"
            " processes: softq train"
        )
    folder = RunFolder(out)
    wanted = expand(task, base, grids)  # before anything is written: a cell's recipe may be refused
    with folder.locked(), _leaving_no_false_start(out):
        if (out / SWEEP).is_file():
            if not resume:
                raise RunError(
                    f"{out} already holds a sweep: add --resume to continue it, or choose another"
                    " --out"
                )
            _check_same_recipe(task, base, out)
        runs = _left_to_train(task, base, varied(task, grids), out / RUNS, wanted)
        if runs:
            folder.write(SWEEP, sweep_toml(task, base, grids))
            (out / SUMMARY).unlink(missing_ok=True)  # it does not fit what follows
        jobs, cluster = min(jobs, len(runs)), executor if isinstance(executor, str) else ""
        if runs and not task.together and (cluster or jobs > 1):
            where = f"on {cluster}" if cluster else f"{jobs} at a time"
            watcher = watch(f"{len(runs)} models, {where}", unit="models") if watch else None
            with find_executor(executor, jobs) as found:
                train_runs(task, runs, found, out, workers=workers, watcher=watcher)
        else:
            _train_here(task, runs, workers, watch)
        # it may fail on what was trained before: the old files stay until it has not
        sweep = _conclude(task, base, *_finished(task, base, grids, out))
        folder.write(SWEEP, sweep_toml(task, base, grids))
        return _write(sweep, out)


def _train_here(
    task: Task, runs: Sequence[Run], workers: Workers, watch: Callable[..., Watcher] | None
) -> None:
    """One run after the other, in this process."""
    for number, run in enumerate(runs):
        label = run.name + (f" ({number + 1} of {len(runs)})" if len(runs) > 1 else "")
        train_cells(
            task,
            run.cells,
            run.path,
            settings=run.settings,
            resume=run.old,
            watcher=watch(label) if watch else None,
            workers=workers,
        )


@contextmanager
def _leaving_no_false_start(out: Path) -> Iterator[None]:
    """Remove what was written of a new sweep whose first run could not start, because its data are bad."""
    new = not (out / SWEEP).is_file()
    try:
        yield
    except StoppedError:
        raise
    except SoftqError:
        if new and not _runs(out / RUNS):
            (out / SWEEP).unlink(missing_ok=True)
            with suppress(OSError):  # it holds something else
                out.rmdir()
        raise


def _check_same_recipe(task: Task, base: Any, out: Path) -> None:
    """A sweep is resumed with the recipe it began with; its grids may change."""
    before, _ = read_recipe(task, out / SWEEP)
    # objective and seed are the grids'
    ml = {"objective": "ml", "tau": None, "temperature_scaled": False, "seed": 0}
    hashes = {recipe_hash(cell_recipe(one, ml), task=task.name) for one in (before, base)}
    if len(hashes) > 1:
        raise RunError(
            f"{out} was started with another recipe (see {SWEEP} there): resume it with the same"
            " one, or choose another --out"
        )


def read_sweep(task: Task, out: Path) -> Sweep:
    """What the finished runs of a sweep folder say; writes nothing."""
    base, _ = read_recipe(task, out / SWEEP)
    return _conclude(task, base, *read_finished(task, out))


def read_finished(task: Task, out: Path) -> tuple[list[SweepCell], int]:
    """The finished cells of a sweep folder, and how many its grids have.

    Those of a finished sweep are the ones it has written down, whatever became of its recipe.
    """
    if not (out / SUMMARY).is_file():
        return _finished(task, *read_recipe(task, out / SWEEP), out)
    cells = []
    for number, row in enumerate(RunFolder(out).lines(CELLS), 1):
        with damaged(f"line {number} of {out / CELLS}"):
            names = typed(row.pop("grids", None), tuple[str, ...], "grids")
            path = out / typed(row.pop("run", None), str, "run")
            cells.append(SweepCell(names, build(Cell, row, "it"), path))
    return cells, len(cells)


def _finished(
    task: Task, base: Any, grids: Sequence[Grid], out: Path
) -> tuple[list[SweepCell], int]:
    """The same from its runs.

    Cells have the settings of the grids as they are now: a model may have been trained before they
    named a key.
    """
    wanted, flags = expand(task, base, grids), varied(task, grids)
    found = {
        cell.hash: (cell, path)
        for path in _runs(out / RUNS)
        for cell in read_cells(RunFolder(path))
    }
    cells = []
    for name, (recipe, names) in wanted.items():
        if name in found:
            cell, path = found[name]
            cell = dataclasses.replace(cell, settings=settings_of(recipe, flags))
            cells.append(SweepCell(names, cell, path))
    return cells, len(wanted)


def _conclude(task: Task, base: Any, cells: list[SweepCell], wanted: int) -> Sweep:
    choices = choose(task, base, cells)
    signatures = dict.fromkeys(choice.signature for choice in choices)
    signature = ", ".join(signatures) or task.signature(base)
    return Sweep(task.name, task.metric, signature, cells, choices, wanted)


def _write(sweep: Sweep, out: Path) -> Sweep:
    """Write ``cells.jsonl`` and ``summary.json``."""
    folder = RunFolder(out)
    rows = [
        dataclasses.asdict(cell) | {"grids": list(names), "run": str(path.relative_to(out))}
        for names, cell, path in sweep.cells
    ]
    folder.rewrite_lines(CELLS, rows)
    summary = {
        "task": sweep.task,
        "metric": sweep.metric,
        "signature": sweep.signature,
        "cells": len(sweep.cells),
    }
    folder.write(
        SUMMARY, as_json(summary | {"choices": [choice.as_json() for choice in sweep.choices]})
    )
    return sweep


def _runs(runs: Path) -> list[Path]:
    return sorted(path for path in runs.glob("*") if (path / RECIPE).is_file())


def _left_to_train(
    task: Task,
    base: Any,
    flags: Sequence[str],
    runs: Path,
    wanted: Mapping[str, tuple[Any, tuple[str, ...]]],
) -> list[Run]:
    """The runs that are left to do.

    Broken ones first, then one for each new cell, or one for all that can be trained together.
    """
    left, found = dict(wanted), []
    for path in _runs(runs):
        rows = RunFolder(path).cells()
        if RunFolder(path).result() is None and any(row["hash"] in left for row in rows):
            found.append(
                Run(
                    path,
                    [cell_recipe(base, row, str(path / CELLS)) for row in rows],
                    rows[0]["settings"],
                    True,
                )
            )
        for row in rows:
            left.pop(row["hash"], None)
    groups: dict[str, list[str]] = {}  # cells of one run differ in objective and seed
    for name, (recipe, _) in left.items():
        alike = json.dumps(settings_of(recipe, flags)) if task.together else name
        groups.setdefault(alike, []).append(name)
    for names in groups.values():
        cells = [left[name][0] for name in names]
        settings = settings_of(cells[0], flags)
        found.append(Run(runs / _folder_name(cells, settings, names), cells, settings, False))
    return found


def _folder_name(cells: Sequence[Any], settings: Mapping[str, Any], hashes: Sequence[str]) -> str:
    """A name that people can read, without characters that file systems have trouble with.

    >>> from softq.lab.recipe import Objective
    >>> cell = type("R", (), {"objective": Objective("raml", 2.4), "training": type("T", (), {"seed": 1})})
    >>> _folder_name([cell], {"train": "my data/a.conll", "c2": 0.3}, ["abc"])
    'raml-tau2.4-train=my_data_a.conll-c2=0.3-seed1-abc'
    """
    shown = "-".join(
        re.sub(r"[^\w.,=+-]", "_", show_settings({flag: value})) for flag, value in settings.items()
    )[:_LONGEST_SETTINGS]
    if len(cells) > 1:
        parts = ["grid", shown, hashlib.sha256("".join(hashes).encode()).hexdigest()[:12]]
    else:
        objective = cells[0].objective
        tau = f"tau{objective.tau:g}" if objective.tau else ""
        scaled = "scaled" if objective.temperature_scaled else ""
        parts = [objective.name, tau, scaled, shown, f"seed{cells[0].training.seed}", hashes[0]]
    return "-".join(filter(None, parts))
