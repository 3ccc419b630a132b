"""`softq sweep`: many models."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softq.cli.options import option, takes_options
from softq.cli.progress import progress_bars
from softq.cli.shared import AsJson, Jobs, TaskOrRecipe, results_console

if TYPE_CHECKING:
    from softq.lab.sweep import Sweep


@dataclass(frozen=True)
class _GridOptions:
    """What a sweep varies."""

    objective: str | None = option(None, "Compare these objectives: ml,raml,sqdml.", metavar="LIST")
    tau: str | None = option(
        None, "Try these temperatures: 0.5,1,2 or FROM:TO:STEP.", metavar="LIST|RANGE"
    )
    seed: str | None = option(
        None, "Train with these random seeds: 0,1,2 or FROM:TO.", metavar="LIST|RANGE"
    )
    temperature_scaled: bool = option(
        False, "Divide scores by tau, multiply losses by tau².", "--temperature-scaled"
    )
    over: list[str] | None = option(
        None,
        "Vary another key of the recipe: c2=0.1,0.3,1. Repeatable.",
        metavar="KEY=LIST",
    )


@takes_options(_GridOptions, dict.fromkeys(_GridOptions.__dataclass_fields__, "Grid"))
def sweep(
    context: typer.Context,
    options: _GridOptions,
    what: TaskOrRecipe = None,
    jobs: Jobs = 1,
    cluster: Annotated[
        str,
        typer.Option(
            help=(
                "Train on a Dask cluster: the address of its scheduler, or slurm, pbs, sge or lsf"
                " to start --jobs workers by dask-jobqueue."
            ),
            metavar="ADDRESS|QUEUE",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the sweep to this folder.  [default: sweeps/TASK]", file_okay=False
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the sweep in --out: skip finished models, train the others.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train many models, choose the temperature on development data, and compare with ML.

    A sweep answers two questions: which temperature, and is the reward worth it? It trains every combination of objectives,
    temperatures, seeds and other keys, takes the best temperature by its mean development score, and shows what that one earns on test
    data: the gain over ML, with an interval from a paired bootstrap.

    The result is a sweep folder with a run folder of each model. An interrupted sweep is resumed with `--resume`, and a larger grid in the
    same folder trains only what is new.

    **Examples**

    ```sh
    softq sweep classification --tau 0.5:3:0.5 --seed 0:4 --out sweeps/tau
    # a larger grid; what is trained stays
    softq sweep classification --tau 0.5:5:0.5 --seed 0:4 --out sweeps/tau --resume
    softq sweep ner --train train.conll --dev dev.conll --test test.conll --objective ml,raml --tau 0.1:0.9:0.2 --jobs 2 --out sweeps/names
    softq report sweeps --out report.html
    ```

    `--over` varies any other key of the recipe, or sets it if there is one value; `;` separates values that are lists themselves:

    ```sh
    softq sweep classification --tau 2 --over learning-rate=0.03,0.1,0.3 --over "hidden=8,8;16" --out sweeps/rates
    ```

    Other flags are the recipe's, as in `softq train`. Recipes may hold several grids, tables `[[sweep]]`; `--objective`, `--tau`,
    `--seed`, `--temperature-scaled` and `--over` change all of them.

    **Next.** `softq report SWEEP` draws it; `softq predict SWEEP/runs/RUN FILES` uses one of the models.
    """
    from softq.cli.recipes import find_recipe, recipe_to_resume, show_choices, split_flags
    from softq.lab.recipe import build
    from softq.lab.sweep import SWEEP, Grid, lay_over, run_sweep

    what, flags = split_flags(what, context.args)
    what = what or recipe_to_resume("sweep", out if resume else None, SWEEP)
    task, recipe, grids = find_recipe(what, flags, sweep=True)
    given = {name: value for name, value in asdict(options).items() if value not in (None, False)}
    over = given.pop("over", [])
    if options.objective:
        given["objective"] = options.objective.split(",")
    asked = build(Grid, given, "flags")
    changed = {name: getattr(asked, name) for name in given}
    grids = [
        lay_over(task.recipe_type, replace(grid, **changed), over) for grid in grids or [Grid()]
    ]
    out = out or Path("sweeps") / task.name
    with progress_bars() as watch:
        found = run_sweep(
            task, recipe, grids, out, resume=resume, jobs=jobs, executor=cluster, watch=watch
        )
    if as_json:
        typer.echo(json.dumps(sweep_json(found, out)))
        return
    show_choices(found, recipe, results_console())
    typer.echo(f"sweep: {out}; a page of it: softq report {out} --out report.html")


def sweep_json(found: Sweep, out: Path) -> dict[str, object]:
    """A sweep's conclusions for machines."""
    return {
        "task": found.task,
        "metric": found.metric,
        "signature": found.signature,
        "sweep": str(out),
        "cells": len(found.cells),
        "choices": [choice.as_json() for choice in found.choices],
    }
