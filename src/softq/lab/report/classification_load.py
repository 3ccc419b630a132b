"""A sweep folder of the four-class experiment as its results: rewards, exact values, decision regions."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softq.lab.report.classification import AGREEMENT_TAUS, TUNED
from softq.lab.report.classification_results import Cell, ClassificationResults, Comparison
from softq.lab.report.classification_results import Sweep as Range
from softq.lab.report.paper import ClassificationSetup
from softq.lab.run import CELLS, ENVIRONMENT, TIMINGS, RunFolder, read_json
from softq.lab.sweep import SWEEP, Grid, Sweep, SweepCell, read_recipe
from softq.lab.tasks import Task
from softq.lab.tasks.base import best_models
from softq.lab.tasks.classification import make_data
from softq.neural import perceptrons
from softq.targets import ObjectiveName
from softq.theory import TheoryTable, bayes_rule, four_class_problem, theory_table

FINE_GRID, COARSE_GRID = (
    1000,
    400,
)  # inputs along each side, for rewards to about 1e-5 in tables and 1e-4 in curves
BETWEEN = (
    4.0,
    6.0,
    9.0,
    13.0,
    20.0,
    30.0,
    45.0,
    65.0,
    100.0,
    150.0,
)  # temperatures that no grid has, to draw exact curves through
REGION_GRID = 160
WIDE = 10.0  # a grid with temperatures above this is shown as the paper's Figure 2


def classification_results(
    task: Task, sweep: Sweep, folder: Path, scale: str
) -> ClassificationResults:
    """What the finished cells of a sweep found, at least one."""
    recipe, grids = read_recipe(task, folder / SWEEP)
    splits = make_data(recipe.data)
    cells = _cells(sweep, grids)
    comparisons = [
        Comparison(choice.objective, choice.tau, *choice.gain, choice.temperature_scaled)  # type: ignore[arg-type]
        for choice in sweep.choices
        if choice.tau is not None and choice.gain is not None
    ]
    runs = [RunFolder(path) for path in sorted({member.run for member in sweep.cells})]
    environment = read_json(runs[0].path / ENVIRONMENT)
    device = (
        environment.get("gpu")
        if environment.get("device") == "cuda"
        else f"{environment.get('threads')} CPU threads"
    )
    data, optimizer, epochs = recipe.data, recipe.optimizer, recipe.training.epochs
    results = ClassificationResults(
        cells=cells,
        population=_population(tuple(sorted({cell.tau for cell in cells if cell.tau is not None}))),
        bayes_dev=splits.dev.bayes_reward(splits.rewards),
        bayes_test=splits.test.bayes_reward(splits.rewards),
        regions={},
        comparisons=list(dict.fromkeys(comparisons)),  # two grids may have chosen the same
        setup=ClassificationSetup(
            data.inputs,
            data.outputs,
            data.dev,
            data.test,
            recipe.model.hidden,
            optimizer.learning_rate,
            optimizer.momentum,
            epochs,
        ),
        recipe_hash=hashlib.sha256((folder / SWEEP).read_bytes()).hexdigest()[:12],
        signature=sweep.signature,
        scale=scale,
        seconds=sum(line["seconds"] for run in runs for line in run.lines(TIMINGS)),
        device=str(device),
        date=datetime.now(UTC).date().isoformat(),
        version=str(environment.get("softq", "")),
        differences=_differences(recipe),
    )
    best = {
        objective: found.tau
        for objective in TUNED
        if (found := results.best(objective)) is not None
    }
    return dataclasses.replace(results, regions=_regions(_panels(sweep, best), recipe.model.sizes))


def _cells(sweep: Sweep, grids: Sequence[Grid]) -> list[Cell]:
    """The networks by the range of temperatures that shows them; one that several grids of a range hold counts once."""
    ranges = {grid.name: _range(grid) for grid in grids}
    found = {
        (ranges[grid], member.cell.hash): member.cell
        for member in sweep.cells
        for grid in member.grids
    }
    return [
        Cell(
            span,
            cell.objective,  # type: ignore[arg-type]
            cell.tau,
            cell.seed,
            cell.temperature_scaled,
            cell.dev,
            cell.test,
            cell.epoch,
        )
        for (span, _), cell in found.items()
    ]


def _range(grid: Grid) -> Range:
    wide = max(objective.tau or 0.0 for objective in grid.objectives()) > WIDE
    if grid.temperature_scaled:
        return "wide-scaled" if wide else "short-scaled"
    return "wide" if wide else "short"


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
        told.append(
            f"Training stops after {recipe.training.patience} epochs without a better validation reward."
        )
    told.append(
        f"Batches of {recipe.training.batch_size:,} inputs and rectified hidden units; the paper does not say."
    )
    told.append("Repetitions differ in the first weights; they share the data and its order.")
    return told


@lru_cache(maxsize=4)
def _population(taus: tuple[float, ...]) -> TheoryTable:
    """Exact rewards, gap and bounds at these temperatures."""
    fine = theory_table(
        four_class_problem(FINE_GRID), [tau for tau in taus if tau in AGREEMENT_TAUS]
    )
    others = [tau for tau in taus if tau not in AGREEMENT_TAUS]
    if max(taus, default=0.0) > WIDE:
        others += [tau for tau in BETWEEN if tau not in taus]
    coarse = theory_table(four_class_problem(COARSE_GRID), others)
    return fine._replace(rows=sorted(fine.rows + coarse.rows, key=lambda row: row.tau))


def _regions(
    panels: Mapping[str, SweepCell], sizes: Sequence[int]
) -> dict[str, NDArray[np.integer[Any]]]:
    """Decisions over the square of the Bayes rule and of these networks."""
    problem = four_class_problem(REGION_GRID)
    regions = {
        "Bayes rule": bayes_rule(problem.p, problem.rewards).view(REGION_GRID, REGION_GRID).numpy()
    }
    for title, member in panels.items():
        run = RunFolder(member.run)
        index = [row["hash"] for row in run.lines(CELLS)].index(member.cell.hash)
        network = best_models(run)["networks"][[index]]
        decided = perceptrons.decisions(network, sizes=sizes, inputs=problem.inputs.float())
        regions[title] = decided[0].view(REGION_GRID, REGION_GRID).numpy()
    return regions


def _panels(sweep: Sweep, best: Mapping[ObjectiveName, float]) -> dict[str, SweepCell]:
    """Networks of plain logits and the first seed, by the titles of their panels.

    As in Figure 4: ML, then RAML and SQDML at τ = 0.5, at the ``best`` τ of each and at the largest.
    """
    first: dict[tuple[str, float | None], SweepCell] = {}
    for member in sweep.cells:
        if not member.cell.temperature_scaled:
            first.setdefault((member.cell.objective, member.cell.tau), member)
    panels = {"ML": first["ml", None]} if ("ml", None) in first else {}
    for objective in TUNED:
        taus = {tau for name, tau in first if name == objective and tau is not None}
        notes = dict.fromkeys((0.5, max(taus, default=0.5)), "")
        if objective in best:
            notes[best[objective]] = " (best)"
        for tau in sorted(taus & notes.keys()):
            panels[f"{objective.upper()} τ = {tau:,g}{notes[tau]}"] = first[objective, tau]
    return panels
