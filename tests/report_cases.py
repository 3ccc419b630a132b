"""Runs and sweeps for the tests of the report that take no training, and what their tests read from a page."""

import csv
import html
import io
import math
import re

import numpy as np
import torch

from small_runs import ToyRecipe, ToyTask, new_run
from softq.lab.recipe import to_toml
from softq.lab.report.content import to_csv
from softq.lab.run import METRICS, RESULT, as_json
from softq.lab.sweep import Grid, run_sweep
from softq.metrics import ExampleCounts

EXAMPLES = 40
GRID = Grid("one", ("ml", "raml", "sqdml"), "0.5,1,2", "0:1")


def toy_task():
    """A sixth task, which declares metrics alone. RAML is best at τ = 1, and better than ML."""

    def quality(cell):
        objective = cell.objective
        return 0.2 if objective.name == "ml" else 0.5 - 0.1 * abs(math.log(objective.tau))

    def test(cell):
        rng = np.random.default_rng(cell.training.seed + round(100 * quality(cell)))
        return (rng.random(EXAMPLES) < quality(cell)).astype(float).tolist()

    return ToyTask(quality, test)


def sweep_toys(folder, grids=(GRID,)):
    """A sweep of the sixth task; its name must be known to `TASKS`."""
    run_sweep(toy_task(), ToyRecipe(), list(grids), folder)
    return folder


def make_run(folder, *, seed=0, objective="raml", tau=1.0, epochs=20, finished=True, data=""):
    """A run of a parser that nobody trained."""
    from softq.lab.tasks.parsing_recipe import ParsingRecipe

    recipe = to_toml(ParsingRecipe(), task="parsing")
    for split in ("train", "dev", "test"):
        recipe = recipe.replace(
            f'{split} = ""', f'{split} = "{split}.conllu"' if split in data else f'{split} = ""', 1
        )
    row = {
        "hash": f"{seed:012x}",
        "objective": objective,
        "tau": tau,
        "temperature_scaled": False,
        "settings": {},
        "seed": seed,
    }
    run = new_run(folder, recipe, [row])
    curve = [
        0.9 - 0.5 * math.exp(-0.2 * epoch) + 0.01 * math.sin(seed + epoch)
        for epoch in range(1, epochs + 1)
    ]
    run.rewrite_lines(
        METRICS, [{"epoch": i, "loss": 2 - dev, "dev": dev} for i, dev in enumerate(curve, 1)]
    )
    if finished:
        score = {"epoch": epochs, "dev": curve[-1], "test": curve[-1] - 0.02}
        result = {
            "task": "parsing",
            "metric": "UAS",
            "signature": "attachment",
            "cells": [row | score],
        }
        run.save_counts({"test": ExampleCounts.of(torch.ones(1, 5, 10))})
        run.write(RESULT, as_json(result))
    return folder


def part(section, name):
    """The first part of that name."""
    return next(one for one in section.parts if one.name == name)


def rows_of(table):
    """The rows of a table's CSV, by their first column, without the mark of the best."""
    rows = csv.DictReader(io.StringIO(to_csv(table)))
    return {row[table.columns[0].title].removesuffix(" (best)"): row for row in rows}


def interval(row, title):
    """A value of a CSV row with its ends."""
    return [float(row[title + end]) for end in ("", " low", " high")]


def text_of(page):
    """The words of a page, without its drawings and downloads."""
    text = re.sub(
        r"<svg .*?</svg>|<style>.*?</style>|<script>.*?</script>",
        " ",
        page.read_text("utf-8"),
        flags=re.S,
    )
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text)))
