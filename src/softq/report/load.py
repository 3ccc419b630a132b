"""Run and sweep folders as sections of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softq.errors import DataError, RecipeError
from softq.kernels import perceptrons
from softq.recipe import read_toml, recipe_hash
from softq.report.classification import AGREEMENT_TAUS, Cell, ClassificationResults, Comparison, section
from softq.report.page import Section
from softq.report.runs import RunSummary, runs_section
from softq.run import CELLS, ENVIRONMENT, METRICS, RECIPE, TIMINGS, RunFolder, read_json
from softq.sweep import SWEEP, Sweep, SweepCell, read_recipe, read_sweep
from softq.tasks import TASKS, Task
from softq.tasks.base import best_models
from softq.tasks.classification import make_data
from softq.theory import TheoryTable, bayes_rule, four_class_problem, theory_table

FINE_GRID, COARSE_GRID = 1000, 400  # inputs along each side, for rewards to about 1e-5 in tables and 1e-4 in curves
BETWEEN = (4.0, 6.0, 9.0, 13.0, 20.0, 30.0, 45.0, 65.0, 100.0, 150.0)  # temperatures that no grid has, to draw exact curves through
REGION_GRID = 160
WIDE = 10.0  # a grid with temperatures above this is shown as the paper's Figure 2


@dataclass(frozen=True)
class Source:
    """A folder to report on, and how it was made, where that is known."""

    path: Path
    command: str = ""
    scale: str = ""


def find_sources(paths: Iterable[Path]) -> list[Source]:
    """The sweeps and runs in these folders, at any depth; the runs of a sweep are the sweep's."""
    found: list[Source] = []
    for path in paths:
        sweeps = [file.parent for file in sorted(path.rglob(SWEEP))]
        runs = [file.parent for file in sorted(path.rglob(RECIPE))]
        alone = [run for run in runs if not any(sweep in run.parents for sweep in sweeps)]
        if not sweeps and not alone:
            raise DataError(f"{path} holds no run and no sweep (no {RECIPE}, no {SWEEP}); train one first: softq train, softq sweep")
        found += [Source(folder) for folder in (*sweeps, *alone)]
    return found


def read_sections(sources: Sequence[Source]) -> list[Section]:
    """A section for each sweep, and one for all runs that stand alone."""
    sweeps = [source for source in sources if (source.path / SWEEP).is_file()]
    runs = [source.path for source in sources if source not in sweeps]
    sections = [_sweep_section(source) for source in sweeps]
    if runs:
        sections.append(runs_section([summary for path in runs for summary in _run_summaries(RunFolder(path))]))
    return sections


def _task_of(path: Path) -> Task:
    name = read_toml(path).get("task")
    if name not in TASKS:
        raise RecipeError(f"{path}: the key 'task' must be one of {', '.join(TASKS)}, got {name!r}")
    return TASKS[name]


def _run_summaries(run: RunFolder) -> list[RunSummary]:
    """One for each cell of a run, finished or not."""
    task = _task_of(run.path / RECIPE)
    result, metrics = run.result(), run.lines(METRICS)
    summaries = []
    for number, row in enumerate(run.lines(CELLS)):
        cell = result["cells"][number] if result else row
        curve = [(line["epoch"], _of_cell(line["loss"], number), _of_cell(line["dev"], number)) for line in metrics]
        summaries.append(
            RunSummary(
                name=run.path.name,
                task=task.name,
                objective=row["objective"],
                tau=row["tau"],
                seed=row["seed"],
                metric=task.metric,
                best_dev=cell.get("dev"),
                best_epoch=cell.get("epoch"),
                test=cell.get("test"),
                curve=curve,
                recipe_hash=row["hash"],
                signature=result["signature"] if result else "",
            )
        )
    return summaries


def _of_cell(value: Any, number: int) -> float | None:
    found: float | None = value[number] if isinstance(value, list) else value
    return found


def _sweep_section(source: Source) -> Section:
    task = _task_of(source.path / SWEEP)
    sweep = read_sweep(task, source.path)
    if task.name == "classification":
        return section(_classification_results(task, sweep, source))
    runs = {member.run for member in sweep.cells}
    return runs_section([summary for run in sorted(runs) for summary in _run_summaries(RunFolder(run))], command=source.command)


def _classification_results(task: Task, sweep: Sweep, source: Source) -> ClassificationResults:
    recipe, grids = read_recipe(task, source.path / SWEEP)
    splits = make_data(recipe.data)
    ranges = {grid.name: _range(grid.temperature_scaled, [objective.tau or 0.0 for objective in grid.objectives()]) for grid in grids}
    cells = [
        Cell(ranges[grid], cell.objective, cell.tau, cell.seed, cell.temperature_scaled, cell.dev, cell.test, cell.epoch)  # type: ignore[arg-type]
        for grids_of_cell, cell, _ in sweep.cells
        for grid in grids_of_cell
    ]
    comparisons = [
        Comparison(choice.objective, choice.tau, *choice.gain, choice.temperature_scaled)  # type: ignore[arg-type]
        for choice in sweep.choices
        if choice.tau is not None and choice.gain is not None
    ]
    folders = [RunFolder(path) for path in sorted({member.run for member in sweep.cells})]
    environment = read_json(folders[0].path / ENVIRONMENT) if folders else {}
    device = environment.get("gpu") if environment.get("device") == "cuda" else f"{environment.get('threads')} CPU threads"
    return ClassificationResults(
        cells=cells,
        population=_population(tuple(sorted({cell.tau for cell in cells if cell.tau is not None}))),
        bayes_dev=splits.dev.bayes_reward(splits.rewards),
        bayes_test=splits.test.bayes_reward(splits.rewards),
        regions=_regions(task, sweep, recipe),
        comparisons=comparisons,
        inputs=recipe.data.inputs,
        outputs_per_input=recipe.data.outputs,
        seeds=sorted({cell.seed for cell in cells}),
        epochs=recipe.training.epochs,
        recipe_hash=recipe_hash(recipe, task=task.name),
        signature=sweep.signature,
        command=source.command or f"softq sweep {source.path / SWEEP} --out sweeps/again",
        scale=source.scale,
        seconds=sum(line["seconds"] for folder in folders for line in folder.lines(TIMINGS)),
        device=str(device),
        date=datetime.now(UTC).date().isoformat(),
        version=str(environment.get("softq", "")),
        differences=_differences(recipe),
    )


def _range(temperature_scaled: bool, taus: Sequence[float]) -> str:
    if temperature_scaled:
        return "wide-scaled"
    return "wide" if max(taus, default=0.0) > WIDE else "short"


def _differences(recipe: Any) -> list[str]:
    told = []
    if recipe.optimizer.average:
        told.append(
            "The network of an epoch is the mean of its weights over the epoch’s steps. The paper does not say; with the weights of the "
            "last step, early stopping picks decision boundaries that are better by luck."
        )
    if recipe.training.burn_in:
        told.append(
            f"Early stopping looks at validation rewards from epoch {recipe.training.burn_in + 1} on: a half-trained network may earn more "
            "than a trained one by luck."
        )
    if recipe.training.patience:
        told.append(f"Training stops after {recipe.training.patience} epochs without a better validation reward.")
    told.append(f"Batches of {recipe.training.batch_size:,} inputs and rectified hidden units; the paper does not say.")
    told.append("Repetitions differ in the first weights; they share the data and its order.")
    return told


@lru_cache(maxsize=4)
def _population(taus: tuple[float, ...]) -> TheoryTable:
    """Exact rewards, gap and bounds at these temperatures."""
    fine = theory_table(four_class_problem(FINE_GRID), [tau for tau in taus if tau in AGREEMENT_TAUS])
    others = [tau for tau in taus if tau not in AGREEMENT_TAUS]
    if max(taus, default=0.0) > WIDE:
        others += [tau for tau in BETWEEN if tau not in taus]
    coarse = theory_table(four_class_problem(COARSE_GRID), others)
    return fine._replace(rows=sorted(fine.rows + coarse.rows, key=lambda row: row.tau))


def _regions(task: Task, sweep: Sweep, recipe: Any) -> dict[str, NDArray[np.integer[Any]]]:
    """Decisions over the square of the Bayes rule and of chosen cells: RAML and SQDML at 0.5, their best and their largest τ (Figure 4)."""
    problem = four_class_problem(REGION_GRID)
    panels = {"Bayes rule": bayes_rule(problem.p, problem.rewards).view(REGION_GRID, REGION_GRID).numpy()}
    for title, member in _panels(sweep).items():
        run = RunFolder(member.run)
        index = [row["hash"] for row in run.lines(CELLS)].index(member.cell.hash)
        network = best_models(run)["networks"][[index]]
        decided = perceptrons.decisions(network, sizes=recipe.model.sizes, inputs=problem.inputs.float())
        panels[title] = decided[0].view(REGION_GRID, REGION_GRID).numpy()
    return panels


def _panels(sweep: Sweep) -> dict[str, SweepCell]:
    """Cells by the titles of their panels, of the first seed."""
    plain = [member for member in sweep.cells if not member.cell.temperature_scaled]
    first: dict[tuple[str, float | None], SweepCell] = {}
    for member in plain:
        first.setdefault((member.cell.objective, member.cell.tau), member)
    panels = {"ML": first["ml", None]} if ("ml", None) in first else {}
    best = {choice.objective: choice.tau for choice in reversed(sweep.choices) if not choice.temperature_scaled}
    for objective in ("raml", "sqdml"):
        taus = [tau for name, tau in first if name == objective and tau is not None]
        if not taus:
            continue
        wanted = {0.5: "", best[objective]: " (best)", max(taus): ""}
        for tau, note in sorted((tau, note) for tau, note in wanted.items() if tau is not None and tau in taus):
            panels[f"{objective.upper()} τ = {tau:,g}{note}"] = first[objective, tau]
    return panels
