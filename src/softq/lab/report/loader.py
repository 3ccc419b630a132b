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
from softq.lab.report.results import SCALED, ModelResult, Results, System
from softq.lab.run import (
    CELLS,
    COUNTS,
    ENVIRONMENT,
    METRICS,
    RECIPE,
    RESULT,
    TIMINGS,
    TRAINING,
    Facts,
    RunFolder,
    read_json,
)
from softq.lab.sweep import RUNS, SWEEP, SweepCell, read_finished, read_recipe
from softq.lab.tasks import TASKS, Task
from softq.lab.tasks.base import cell_recipe
from softq.lab.tasks.files import SPLITS, WORLD, split_sources
from softq.lab.tasks.lm_recipe import TASK as LM


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


def read_models(path: Path) -> list[ModelResult]:
    """The models of a run, finished or not."""
    run = RunFolder(path)
    recipe = read_toml(path / RECIPE)
    name, metric, dev, columns = _measured(path, recipe)
    result, metrics, cells = run.result(), run.lines(METRICS), run.cells()
    rows: Sequence[Mapping[str, Any]] = result["cells"] if result is not None else cells
    if len(rows) != len(cells):
        raise RunError(
            f"{path} is damaged ({CELLS} has {len(cells)} models, {RESULT} {len(rows)});"
            " delete it, or train it again"
        )
    shared: dict[str, Any] = {
        "run": path,
        "task": name,
        "metric": metric,
        "signature": result["signature"] if result else "",
        "finished": result is not None,
        "facts": result.get("facts", Facts()) if result else Facts(),
        "test_set": split_sources(recipe.get("data", {}))["test"],
        "steps": _by_step([*run.lines(TRAINING), *metrics]) if name == LM else {},
        "curves": run.curves() if result is not None else None,
    }
    return [
        ModelResult(
            **shared,
            number=number,
            hash=cell["hash"],
            objective=cell["objective"],
            tau=cell["tau"],
            scaled=cell["temperature_scaled"],
            seed=cell["seed"],
            settings=cell.get("settings", {}),
            scores=_scores(rows[number], dev),
            curve=[
                (line["epoch"], *(_of(number, line.get(one)) for one in columns))
                for line in metrics
            ],
            command=_command(path, cells, number, finished=result is not None),
        )
        for number, cell in enumerate(cells)
    ]


def _measured(path: Path, recipe: Mapping[str, Any]) -> tuple[str, str, str, tuple[str, str]]:
    """The task of a run, its metric, the score that "dev" is, and loss and score of epochs."""
    if recipe.get("task") == LM:  # no task of sweeps
        return LM, "reward", "", ("dev_loss", "dev_reward")
    task = task_of(path / RECIPE)
    return task.name, task.metric, f"dev_{task.chosen_by}", ("loss", "dev")


def _by_step(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Everything that lines of a run tell, by its name."""
    found: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        for name in line.keys() - {"step", "epoch"}:
            if isinstance(line[name], int | float):
                found.setdefault(name, []).append((float(line["step"]), float(line[name])))
    return found


def _scores(row: Mapping[str, Any], dev: str) -> dict[str, float]:
    known = {name: value for name, value in row.items() if isinstance(value, int | float)}
    scores = {name: known[name] for name in known if name not in ("seed", "tau", SCALED)}
    return {dev: scores["dev"]} | scores if dev and "dev" in scores else scores


def _of(number: int, values: Any) -> Any:
    """A model's own of values that a run with several models has as a list."""
    return values[number] if isinstance(values, list) else values


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


# --- sweeps ---------------------------------------------------------------------------------------------


def read_results(source: Source, task: Task, experiment: Experiment) -> Results:
    """What is finished of a sweep, and which of its runs are not."""
    base, _ = read_recipe(task, source.path / SWEEP)
    finished, wanted = read_finished(task, source.path)
    runs = sorted(path.parent for path in (source.path / RUNS).glob(f"*/{RECIPE}"))
    models = {model.hash: model for run in runs for model in read_models(run)}
    scales_differ = len({member.cell.temperature_scaled for member in finished}) > 1
    groups: dict[str, list[SweepCell]] = {}
    for member in finished:
        cell, scaled = member.cell, member.cell.temperature_scaled
        # what tells a cell from others is newer here than in its run
        settings = cell.settings | ({SCALED: scaled} if scales_differ else {})
        models[cell.hash] = dataclasses.replace(models[cell.hash], settings=settings)
        key = json.dumps([cell.objective, cell.tau, scaled, cell.settings])
        groups.setdefault(key, []).append(member)
    systems = [_system(base, members, models, experiment) for members in groups.values()]
    facts = systems[0].models[0].facts if systems else Facts()
    counted = _counted(min(member.run for member in finished)) if finished else {}
    return Results(
        experiment=experiment,
        task=task,
        systems=systems,
        unfinished=[model for model in models.values() if not model.finished],
        wanted=wanted,
        recipe=base,
        data=read_toml(source.path / SWEEP).get("data", {}),
        facts=facts,
        sizes={**facts.get("examples", {}), **counted},
    )


def _system(
    base: Any,
    members: Sequence[SweepCell],
    models: Mapping[str, ModelResult],
    experiment: Experiment,
) -> System:
    ours = [models[member.cell.hash] for member in members]
    recipe, settings = cell_recipe(base, dataclasses.asdict(members[0].cell)), ours[0].settings
    if experiment.by_grid:
        settings = {flag: value for flag, value in settings.items() if flag != SCALED}
    names = [name for name in ours[0].scores if all(name in one.scores for one in ours)]
    scores = {name: experiment.spread([one.scores[name] for one in ours]) for name in names}
    if "test" not in scores:
        raise RunError(f"{ours[0].run} is damaged ({RESULT} has no test score); train it again")
    grids = dict.fromkeys(grid for member in members for grid in member.grids)
    return System(ours, tuple(grids), recipe, settings, scores)


def _counted(path: Path) -> dict[str, int]:
    """Number of examples of the splits whose counts a run has stored."""
    file = path / COUNTS
    if not file.is_file():
        return {}
    try:
        with safe_open(file, "pt") as counts:
            there = {split for split in SPLITS if f"{split}.index" in counts.keys()}  # noqa: SIM118 -- not a dict
            shapes = {split: counts.get_slice(f"{split}.index").get_shape() for split in there}
            return {split: shapes[split][1] for split in SPLITS if split in shapes}
    except (SafetensorError, OSError, IndexError) as error:
        raise RunError(f"{file} is damaged ({error}); train the run again") from None


def read_provenance(source: Source, results: Results) -> dict[str, str]:
    """Where the numbers of a sweep come from."""
    models = [model for system in results.systems for model in system.models]
    runs = sorted({model.run for model in models})
    environment = read_json(runs[0] / ENVIRONMENT)
    seconds = sum(line["seconds"] for run in runs for line in RunFolder(run).lines(TIMINGS))
    threads = environment.get("threads")
    cpu = f"{threads} CPU thread{'s' * (threads != 1)}"
    signatures = dict.fromkeys(system.models[0].signature for _, system in results.chosen)
    data = getattr(results.systems[0].recipe, "data", None)
    files = dict.fromkeys(Path(path).name for path in getattr(data, "files", ()) if path)
    known = {
        "Sweep": str(source.path),
        "Recipe": hashlib.sha256((source.path / SWEEP).read_bytes()).hexdigest()[:12],
        "Reward": ", ".join(signatures),
        "Files": ", ".join(files) or (WORLD if data else ""),
        "Seeds": ", ".join(map(str, sorted({model.seed for model in models}))),
        "Scale": source.scale,
        "Training time": f"{seconds:,.0f} seconds of training steps",
        "Device": str(environment.get("gpu")) if environment.get("device") == "cuda" else cpu,
        "softq": str(environment.get("softq", "")),
        "Report written": datetime.now(UTC).date().isoformat(),
    }
    return {key: value for key, value in known.items() if value}
