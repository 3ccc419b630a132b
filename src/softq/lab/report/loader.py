"""Run and sweep folders as models and results. Nothing else is read.

No data, and no model decodes anything again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from softq.errors import DataError, RunError
from softq.lab.recipe import read_toml
from softq.lab.report.experiment import Experiment
from softq.lab.report.results import SCALED, Model, Results, System
from softq.lab.run import (
    CELLS,
    COUNTS,
    ENVIRONMENT,
    METRICS,
    RECIPE,
    RESULT,
    TIMINGS,
    RunFolder,
    read_json,
)
from softq.lab.sweep import RUNS, SWEEP, Sweep, SweepCell, read_recipe, read_sweep
from softq.lab.tasks import TASKS, Task
from softq.lab.tasks.base import cell_recipe
from softq.lab.tasks.lm_recipe import TASK as LM

SPLITS = ("train", "dev", "test")
WORLD = "built-in world"
DEV_AGAIN, TRAIN_AGAIN = "the development set again", "the training file itself"


@dataclass(frozen=True)
class Source:
    """A folder to report on, and how it was made, where that is known."""

    path: Path
    command: str = ""
    scale: str = ""

    @property
    def is_sweep(self) -> bool:
        """Whether it is a sweep, else it is a run."""
        return (self.path / SWEEP).is_file()


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """The sweeps and runs in these folders, at any depth, each once.

    The runs of a sweep are the sweep's.
    """
    found: dict[Path, Path] = {}  # folders as they were named, by what they resolve to
    for path in paths:
        files = [*sorted(path.rglob(SWEEP)), *sorted(path.rglob(RECIPE))]
        if not files:
            raise DataError(
                f"{path} holds no run and no sweep (no {RECIPE}, no {SWEEP}); train one first:"
                " softq train, softq sweep"
            )
        for file in files:
            found.setdefault(file.parent.resolve(), file.parent)
    sweeps = {folder for folder in found if (folder / SWEEP).is_file()}
    return [
        Source(named)
        for folder, named in found.items()
        if folder in sweeps or not sweeps.intersection(folder.parents)
    ]


def task_of(path: Path) -> Task:
    """The task that a recipe is of."""
    return TASKS.find(read_toml(path).get("task"), str(path))


# --- runs -----------------------------------------------------------------------------------------------


def read_models(path: Path, settings: Mapping[str, Mapping[str, Any]] | None = None) -> list[Model]:
    """The models of a run, finished or not.

    ``settings`` are what its sweep says of them, by hash, which is newer than what the run says.
    """
    run = RunFolder(path)
    recipe = read_toml(path / RECIPE)
    is_lm = recipe.get("task") == LM  # no task of sweeps
    task = None if is_lm else task_of(path / RECIPE)
    loss, dev = ("dev_loss", "dev_reward") if is_lm else ("loss", "dev")
    result, metrics, cells = run.result(), run.lines(METRICS), run.cells()
    test_set = split_sources(recipe.get("data", {}))["test"]
    if result is not None and len(result["cells"]) != len(cells):
        raise RunError(
            f"{path} is damaged ({CELLS} has {len(cells)} models, {RESULT} {len(result['cells'])});"
            " delete it, or train it again"
        )
    return [
        Model(
            run=path,
            number=number,
            task=LM if task is None else task.name,
            metric="reward" if task is None else task.metric,
            signature=result["signature"] if result else "",
            hash=row["hash"],
            objective=row["objective"],
            tau=row["tau"],
            scaled=row["temperature_scaled"],
            seed=row["seed"],
            settings=(settings or {}).get(row["hash"], row.get("settings", {})),
            finished=result is not None,
            facts=result.get("facts", {}) if result else {},
            scores=_measures(result["cells"][number] if result else row, task),
            curve=[
                (
                    line["epoch"],
                    _of_cell(line.get(loss), number),
                    _of_cell(line.get(dev), number),
                )
                for line in metrics
            ],
            command=_command(path, cells, number, finished=result is not None),
            test_set=test_set,
        )
        for number, row in enumerate(cells)
    ]


def _measures(row: Mapping[str, Any], task: Task | None) -> dict[str, float]:
    """The numbers of a row of ``result.json`` that are no part of the recipe.

    ``dev`` by the name of its metric, too.
    """
    recipe = ("seed", "tau", SCALED)
    found = {
        name: value
        for name, value in row.items()
        if isinstance(value, int | float) and name not in recipe
    }
    if task is not None and "dev" in found:
        found.setdefault(f"dev_{task.chosen_by}", found["dev"])
    return found


def _of_cell(value: Any, number: int) -> float | None:
    found: float | None = value[number] if isinstance(value, list) else value
    return found


def _command(path: Path, cells: Sequence[Mapping[str, Any]], number: int, *, finished: bool) -> str:
    """Train a model again, or resume its run or the sweep that it is of.

    The recipe of a run with several models is the first one's.
    """
    recipe, row, sweep = shlex.quote(str(path / RECIPE)), cells[number], path.parent.parent
    if not finished and (sweep / SWEEP).is_file():
        place = shlex.quote(str(sweep))
        return f"softq sweep {shlex.quote(str(sweep / SWEEP))} --out {place} --resume"
    if not finished:
        return f"softq train {recipe} --out {shlex.quote(str(path))} --resume"
    flags = ""
    if len(cells) > 1:
        flags = f" --objective {row['objective']} --seed {row['seed']}"
        flags += "" if row["tau"] is None else f" --tau {row['tau']!r}"
        flags += f" --{SCALED.replace('_', '-')}" if row[SCALED] else ""
    return f"softq train {recipe}{flags} --out runs/again-{row['hash']}"


def split_sources(data: Mapping[str, Any]) -> dict[str, str]:
    """Where each split comes from, by the data section of a recipe.

    >>> split_sources({"train": "a.conll", "dev": "b.conll", "test": ""})
    {'train': 'a.conll', 'dev': 'b.conll', 'test': 'the development set again'}
    """
    named = {split: data.get(split) or "" for split in SPLITS}
    train, dev, test = named.values()
    if not isinstance(train, str) or not train:
        return dict.fromkeys(SPLITS, WORLD if data else "not stated")
    file = {split: Path(path).name for split, path in named.items() if path}
    alone = not train.endswith(".json")  # a JSON file of captions holds all splits
    if not dev:
        folds = data.get("folds")
        file["dev"] = f"{folds} folds of {file['train']}" if folds else TRAIN_AGAIN
    elif alone and dev == train:
        file["dev"] = TRAIN_AGAIN
    if data.get("halve_dev"):
        file["dev"] = f"every other {Path(dev).name} example"
        file["test"] = f"the remaining {Path(dev).name} examples"
    elif not test:
        file["test"] = TRAIN_AGAIN if file["dev"] == TRAIN_AGAIN else DEV_AGAIN
    elif alone and test in (train, dev):
        file["test"] = TRAIN_AGAIN if test == train else DEV_AGAIN
    return {split: file[split] for split in SPLITS}


# --- sweeps ---------------------------------------------------------------------------------------------


def read_results(source: Source, task: Task, experiment: Experiment) -> Results:
    """What is finished of a sweep, and which of its runs are not."""
    base, _ = read_recipe(task, source.path / SWEEP)
    sweep = read_sweep(task, source.path)
    settings = {member.cell.hash: _settings(sweep, member) for member in sweep.cells}
    runs = sorted(path.parent for path in (source.path / RUNS).glob(f"*/{RECIPE}"))
    models = {model.hash: model for run in runs for model in read_models(run, settings)}
    groups: dict[tuple[Any, ...], list[SweepCell]] = {}
    for member in sweep.cells:
        cell = member.cell
        key = (cell.objective, cell.tau, cell.temperature_scaled, json.dumps(cell.settings))
        groups.setdefault(key, []).append(member)
    systems = [_system(base, members, models, experiment) for members in groups.values()]
    finished = sorted({member.run for member in sweep.cells})
    facts = systems[0].models[0].facts if systems else {}
    return Results(
        experiment=experiment,
        task=task,
        systems=systems,
        unfinished=[model for model in models.values() if not model.finished],
        wanted=sweep.wanted,
        recipe=base,
        data=read_toml(source.path / SWEEP).get("data", {}),
        facts=facts,
        sizes={**facts.get("examples", {}), **(_counted(finished[0]) if finished else {})},
        provenance=_provenance(source, sweep, finished, systems) if finished else {},
    )


def _settings(sweep: Sweep, member: SweepCell) -> dict[str, Any]:
    """What tells a cell from others; scaling is a setting where only some are scaled."""
    scaled = {one.cell.temperature_scaled for one in sweep.cells}
    own = {SCALED: member.cell.temperature_scaled} if len(scaled) > 1 else {}
    return {**member.cell.settings, **own}


def _system(
    base: Any, members: Sequence[SweepCell], models: Mapping[str, Model], experiment: Experiment
) -> System:
    ours = [models[member.cell.hash] for member in members]
    names = [name for name in ours[0].scores if all(name in one.scores for one in ours)]
    settings = ours[0].settings
    if experiment.by_grid:
        settings = {flag: value for flag, value in settings.items() if flag != SCALED}
    return System(
        models=ours,
        grids=tuple(dict.fromkeys(grid for member in members for grid in member.grids)),
        recipe=cell_recipe(base, dataclasses.asdict(members[0].cell)),
        settings=settings,
        scores={name: experiment.spread([one.scores[name] for one in ours]) for name in names},
    )


def _counted(path: Path) -> dict[str, int]:
    """Number of examples of the splits whose counts a run has stored."""
    file = path / COUNTS
    if not file.is_file():
        return {}
    try:
        with safe_open(file, "pt") as counts:
            keys = {split: f"{split}.index" for split in SPLITS}
            there = set(counts.keys())
            return {
                split: counts.get_slice(key).get_shape()[1]
                for split, key in keys.items()
                if key in there
            }
    except (SafetensorError, OSError, IndexError) as error:
        raise RunError(f"{file} is damaged ({error}); train the run again") from None


def _provenance(
    source: Source, sweep: Sweep, runs: Sequence[Path], systems: Sequence[System]
) -> dict[str, str]:
    environment = read_json(runs[0] / ENVIRONMENT)
    seconds = sum(line["seconds"] for run in runs for line in RunFolder(run).lines(TIMINGS))
    threads = environment.get("threads")
    cpu = f"{threads} CPU thread{'' if threads == 1 else 's'}"
    seeds = sorted({model.seed for system in systems for model in system.models})
    data = getattr(systems[0].recipe, "data", None)
    files = [path for path in getattr(data, "files", ()) if path]
    known = {
        "Sweep": str(source.path),
        "Recipe": hashlib.sha256((source.path / SWEEP).read_bytes()).hexdigest()[:12],
        "Reward": sweep.signature,
        "Files": (
            ", ".join(dict.fromkeys(Path(path).name for path in files)) or (WORLD if data else "")
        ),
        "Seeds": ", ".join(map(str, seeds)),
        "Scale": source.scale,
        "Training time": f"{seconds:,.0f} seconds of training steps",
        "Device": str(environment.get("gpu")) if environment.get("device") == "cuda" else cpu,
        "softq": str(environment.get("softq", "")),
        "Report written": datetime.now(UTC).date().isoformat(),
    }
    return {key: value for key, value in known.items() if value}
