"""Results of the four-class experiment and of runs as training would give them, for the tests of the report."""

import csv
import functools
import io
import math
import random
import re
import statistics

import numpy as np

from small_runs import single_thread
from softq import theory
from softq.lab import report
from softq.lab.report import figures
from softq.lab.report.page import to_csv
from softq.lab.report.paper import ClassificationSetup

ORIGIN = {
    "recipe_hash": "3f9a1c62b7d0",
    "command": "softq sweep sweep.toml --out sweeps/again",
    "scale": "",
    "seconds": 12.0,
    "device": "2 CPU threads",
    "version": "0.1.0",
    "date": "2025-01-31",
}
SHORT = [round(0.1 * i, 1) for i in range(1, 31)]
WIDE = [float(tau) for tau in range(1, 10002, 400)]
SEEDS = range(5)
ONE_CLASS = math.exp(2.0) / 4  # what always deciding for class 0 earns, about


def make_cells(table, sweeps=("short", "wide", "wide-scaled")):
    """Cells as training would give them: the exact reward of each target, a fall at large τ with plain logits, noise by seed."""
    rng = random.Random(0)
    rows = {row.tau: row for row in table.rows}
    shift = {"dev": 0.0031, "test": -0.0042}  # of a drawn set against the population

    def cell(sweep, objective, tau, seed, exact):
        if sweep == "wide":
            exact = ONE_CLASS + (exact - ONE_CLASS) / (1 + (tau / 5000) ** 6)
        noise = 0.012 if sweep == "wide" and tau > 2000 else 0.0012
        dev, test = (exact + shift[split] + rng.gauss(0, noise) for split in ("dev", "test"))
        return report.Cell(
            sweep, objective, tau, seed, sweep.endswith("scaled"), dev, test, rng.randrange(20, 100)
        )

    cells = []
    for seed in SEEDS:
        if "short" in sweeps:
            cells.append(cell("short", "ml", None, seed, table.reward_ml))
        for sweep in sweeps:
            for tau in SHORT if sweep.startswith("short") else WIDE:
                cells.append(cell(sweep, "raml", tau, seed, rows[tau].reward_raml))
                cells.append(cell(sweep, "sqdml", tau, seed, rows[tau].reward_sqdml))
    return cells


@functools.cache
def make_population():
    """The exact values at every temperature."""
    with single_thread():
        return theory.theory_table(theory.four_class_problem(40), [*SHORT, *WIDE[1:]])


def make_regions(size=120):
    """What the exact targets decide."""
    problem = theory.four_class_problem(size)

    def decide(scores):
        return scores.argmax(-1).reshape(size, size).numpy()

    return {
        "Bayes rule": theory.bayes_rule(problem.p, problem.rewards).reshape(size, size).numpy(),
        "ML": decide(problem.p),
        **{
            f"RAML τ = {name}": decide(theory.q_prime(problem.p, problem.rewards, tau))
            for name, tau in (("0.5", 0.5), ("2.4 (best)", 2.4))
        },
        "RAML τ = 10,001": np.zeros((size, size), dtype=np.int64),
        **{
            f"SQDML τ = {name}": decide(theory.softmax_q(problem.p, problem.rewards, tau))
            for name, tau in (("0.5", 0.5), ("1.1 (best)", 1.1), ("10,001", 10001.0))
        },
    }


def oracle_best_tau(cells, objective):
    """By hand: the τ of the short sweep whose mean validation reward is highest."""
    means = {}
    for tau in SHORT:
        values = [
            cell.dev
            for cell in cells
            if (cell.sweep, cell.objective, cell.tau) == ("short", objective, tau)
        ]
        if values:
            means[tau] = statistics.fmean(values)
    return max(means, key=means.get) if means else 1.0


def make_results(sweeps=("short", "wide", "wide-scaled"), **changes):
    """Results of these sweeps, as if trained on a tenth of the paper's data."""
    population = changes.get("population", make_population())
    cells = make_cells(population, sweeps)
    best = {objective: oracle_best_tau(cells, objective) for objective in ("raml", "sqdml")}
    fields = {
        "cells": cells,
        "population": population,
        "bayes_dev": population.reward_bayes + 0.0031,
        "bayes_test": population.reward_bayes - 0.0042,
        "regions": make_regions(),
        "comparisons": [
            report.Comparison("raml", best["raml"], 0.1302, 0.1241, 0.1364),
            report.Comparison("sqdml", best["sqdml"], 0.1349, 0.1287, 0.1410),
            report.Comparison("raml", 10001.0, -0.3102, -0.3311, -0.2893),
            report.Comparison("raml", 10001.0, 0.1347, 0.1285, 0.1409, temperature_scaled=True),
        ],
        "setup": ClassificationSetup(100_000, 10, 100_000, 100_000, (8, 8), 0.1, 0.9, 100),
        "recipe_hash": "3f9a1c62b7d0",
        "signature": "matrix|K=4|sha256=0d2c51aa",
        "scale": "small",
        "seconds": 412.3,
        "device": "2 CPU cores",
        "date": "2025-01-31",
        "version": "0.1.0",
        "differences": ["Weights are averaged over the last epoch."],
    }
    return report.ClassificationResults(**fields | changes)


def make_runs():
    """Two runs of a task with 20 epochs each."""

    def curve(top, speed):
        return [
            (epoch, 1.9 * math.exp(-speed * epoch) + 0.2, top - 0.4 * math.exp(-speed * epoch))
            for epoch in range(1, 21)
        ]

    return [
        report.RunSummary(
            "ner-ml",
            "ner",
            "ml",
            None,
            0,
            "F1",
            0.8491,
            17,
            0.8312,
            curve(0.85, 0.3),
            "77aa01bc",
            "token-accuracy",
        ),
        report.RunSummary(
            "ner-raml-0.2",
            "ner",
            "raml",
            0.2,
            0,
            "F1",
            0.8604,
            19,
            None,
            curve(0.861, 0.25),
            "12cd88ef",
            "token-accuracy",
        ),
    ]


def part(section, name):
    """The table or figure of that name."""
    return next(one for one in section.parts if one.name == name)


def legend_of(figure):
    """The labels and the titles of the panels that matplotlib would show."""
    labels, titles = [], []

    def draw(canvas):
        figure.draw(canvas)
        labels.extend(text.get_text() for text in canvas.figure.legends[0].get_texts())
        titles.extend(axes.get_title(loc="left") for axes in canvas.figure.axes)

    figures.render(draw, figures.LIGHT, "svg")
    return labels, titles


def rows_of(table):
    """The rows of a table's CSV, by their first column."""
    return {row[table.columns[0].title]: row for row in csv.DictReader(io.StringIO(to_csv(table)))}


def text_of(page):
    """The text of a page, without its pictures and downloads."""
    return re.sub(r"base64,[^\"]*", "", page.read_text(encoding="utf-8"))
