"""The report: opened in a browser, read back from its files, and its numbers checked against scipy and by hand."""

import base64
import csv
import io
import math
import os
import random
import re
import shutil
import statistics
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

from softq import report, theory
from softq.errors import DataError, DependencyError, SoftqError
from softq.report import figures, paper
from softq.report.statistics import student_t

SHORT = [round(0.1 * i, 1) for i in range(1, 31)]
WIDE = [float(tau) for tau in range(1, 10002, 400)]
SEEDS = range(5)
ONE_CLASS = math.exp(2.0) / 4  # what always deciding for class 0 earns, about


def make_cells(table, sweeps=("short", "wide", "wide-scaled")):
    """Cells as training would give them: the exact reward of each target, a fall at large τ with plain logits, noise by seed."""
    rng = random.Random(0)  # noqa: S311
    rows = {row.tau: row for row in table.rows}
    shift = {"dev": 0.0031, "test": -0.0042}  # of a drawn set against the population

    def cell(sweep, objective, tau, seed, exact):
        if sweep == "wide":
            exact = ONE_CLASS + (exact - ONE_CLASS) / (1 + (tau / 5000) ** 6)
        noise = 0.012 if sweep == "wide" and tau > 2000 else 0.0012
        dev, test = (exact + shift[split] + rng.gauss(0, noise) for split in ("dev", "test"))
        return report.Cell(sweep, objective, tau, seed, sweep == "wide-scaled", dev, test, rng.randrange(20, 100))

    cells = []
    for seed in SEEDS:
        if "short" in sweeps:
            cells.append(cell("short", "ml", None, seed, table.reward_ml))
        for sweep in sweeps:
            for tau in SHORT if sweep == "short" else WIDE:
                cells.append(cell(sweep, "raml", tau, seed, rows[tau].reward_raml))
                cells.append(cell(sweep, "sqdml", tau, seed, rows[tau].reward_sqdml))
    return cells


@pytest.fixture(scope="module")
def population():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on tensors as small as these, a second thread only costs
    try:
        return theory.theory_table(theory.four_class_problem(40), [*SHORT, *WIDE[1:]])
    finally:
        torch.set_num_threads(threads)


def make_regions(size=120):
    problem = theory.four_class_problem(size)

    def decide(scores):
        return scores.argmax(-1).reshape(size, size).numpy()

    return {
        "Bayes rule": theory.bayes_rule(problem.p, problem.rewards).reshape(size, size).numpy(),
        "ML": decide(problem.p),
        **{f"RAML τ = {name}": decide(theory.q_prime(problem.p, problem.rewards, tau)) for name, tau in (("0.5", 0.5), ("2.4 (best)", 2.4))},
        "RAML τ = 10,001": np.zeros((size, size), dtype=np.int64),
        **{
            f"SQDML τ = {name}": decide(theory.softmax_q(problem.p, problem.rewards, tau))
            for name, tau in (("0.5", 0.5), ("1.1 (best)", 1.1), ("10,001", 10001.0))
        },
    }


def make_results(population, sweeps=("short", "wide", "wide-scaled"), **changes):
    fields = {
        "cells": make_cells(population, sweeps),
        "population": population,
        "bayes_dev": population.reward_bayes + 0.0031,
        "bayes_test": population.reward_bayes - 0.0042,
        "regions": make_regions(),
        "comparisons": [
            report.Comparison("raml", 2.4, 0.1302, 0.1241, 0.1364),
            report.Comparison("sqdml", 1.1, 0.1349, 0.1287, 0.1410),
            report.Comparison("raml", 10001.0, -0.3102, -0.3311, -0.2893),
            report.Comparison("raml", 10001.0, 0.1347, 0.1285, 0.1409, temperature_scaled=True),
        ],
        "inputs": 100_000,
        "outputs_per_input": 10,
        "seeds": list(SEEDS),
        "epochs": 100,
        "recipe_hash": "3f9a1c62b7d0",
        "signature": "matrix|K=4|sha256=0d2c51aa",
        "command": "softq reproduce classification --scale small --out runs/classification",
        "scale": "small",
        "seconds": 412.3,
        "device": "2 CPU cores",
        "date": "2025-01-31",
        "version": "0.1.0",
        "differences": ["Weights are averaged over the last epoch."],
    }
    return report.ClassificationResults(**fields | changes)


def make_runs():
    def curve(top, speed):
        return [(epoch, 1.9 * math.exp(-speed * epoch) + 0.2, top - 0.4 * math.exp(-speed * epoch)) for epoch in range(1, 21)]

    return [
        report.RunSummary("ner-ml", "ner", "ml", None, 0, "F1", 0.8491, 17, 0.8312, curve(0.85, 0.3), "77aa01bc", "token-accuracy"),
        report.RunSummary("ner-raml-0.2", "ner", "raml", 0.2, 0, "F1", 0.8604, 19, None, curve(0.861, 0.25), "12cd88ef", "token-accuracy"),
    ]


@pytest.fixture(scope="module")
def results(population):
    return make_results(population)


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "page.html"
    sections = [report.classification_section(results), report.runs_section(make_runs(), command="softq report runs/*")]
    return out, report.write_report(sections, out, title="softq against the paper")


# --- in a browser ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no Chromium or Chrome to open the report in")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_in_a_browser(written, browser, tmp_path, scheme, width):
    out, _ = written
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, device_scale_factor=int(os.environ.get("SCALE","1")))
    page = context.new_page()
    requests, troubles = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(out.as_uri())
    page.wait_for_load_state("load")
    pictures = page.eval_on_selector_all(
        "figure img",
        """images => images.map(image => ({
            alt: image.alt, loaded: image.complete && image.naturalWidth > 0, source: image.currentSrc,
            shown: image.checkVisibility() && image.getBoundingClientRect().width > 250 }))""",
    )
    assert len(pictures) == 6
    assert all(picture["loaded"] and picture["shown"] and len(picture["alt"]) > 60 for picture in pictures)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert_headings_in_order(page)
    style = next(s for s in (figures.LIGHT, figures.DARK, figures.LIGHT_PHONE, figures.DARK_PHONE) if (s.scheme, s.phone) == (scheme, width < 720))
    for picture in pictures:  # the variant for this scheme and width was chosen
        svg = base64.b64decode(picture["source"].partition(",")[2]).decode()
        assert style.background in svg
        assert f'width="{style.width * 72:g}pt"' in svg
    assert {url for url in requests if not url.startswith("data:")} == {out.as_uri()}
    assert troubles == []
    for folder in filter(None, (tmp_path, os.environ.get("SOFTQ_SCREENSHOTS"))):
        page.screenshot(path=Path(folder) / f"report-{scheme}-{width}.png", full_page=True)
    context.close()


def assert_headings_in_order(page):
    levels = page.eval_on_selector_all("h1, h2, h3, h4, h5, h6", "found => found.map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
