"""The four-class experiment in a report: its numbers checked against scipy and by hand."""

import dataclasses
import math
import re
import statistics

import numpy as np
import pytest
import scipy.stats

from report_cases import (
    legend_of,
    make_cells,
    make_population,
    make_regions,
    make_results,
    oracle_best_tau,
    part,
)
from softq.lab import report
from softq.lab.report import figures, paper
from softq.metrics import mean_interval, student_t


@pytest.fixture(scope="module")
def population():
    return make_population()


@pytest.fixture(scope="module")
def results():
    return make_results()


# --- the numbers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 30, 101])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_student_t(freedom, level):
    assert student_t(level, freedom) == pytest.approx(
        scipy.stats.t.ppf((1 + level) / 2, freedom), rel=1e-9
    )


def test_mean_interval():
    values = [2.31, 2.312, 2.309, 2.3155, 2.308]
    found = mean_interval(values)
    assert found == pytest.approx(
        (
            statistics.fmean(values),
            *scipy.stats.t.interval(0.95, 4, np.mean(values), scipy.stats.sem(values)),
        )
    )
    alone = mean_interval([2.0])
    assert alone.value == 2.0
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


def test_best_temperature(results):
    table = part(report.classification_section(results), "best-temperature")
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == ["ML", "RAML", "SQDML", "Bayes rule"]
    for objective in ("raml", "sqdml"):
        _, tau, papers, dev, test, of_bayes, gain = rows[objective.upper()]
        assert tau == oracle_best_tau(results.cells, objective)
        assert papers == paper.CLASSIFICATION_BEST_TAU[objective].value
        cells = [
            c for c in results.cells if (c.sweep, c.objective, c.tau) == ("short", objective, tau)
        ]
        assert dev.value == pytest.approx(statistics.fmean(c.dev for c in cells))
        assert test.value == pytest.approx(statistics.fmean(c.test for c in cells))
        assert of_bayes == pytest.approx(100 * test.value / results.bayes_test)
        assert gain == next(
            c[2:5] for c in results.comparisons if (c.objective, c.tau) == (objective, tau)
        )
    assert rows["ML"][1:3] == (None, None)
    assert (
        paper.CLASSIFICATION_BEST_TAU["raml"].value,
        paper.CLASSIFICATION_BEST_TAU["sqdml"].value,
    ) == (2.4, 1.1)


def test_of_equal_temperatures_the_smallest():
    cells = [
        report.Cell("short", "raml", tau, 0, False, dev, 0.0, 1)
        for tau, dev in ((2.0, 1.5), (1.0, 1.5), (3.0, 1.2))
    ]
    assert make_results(cells=cells).best("raml").tau == 1.0


def test_a_run_in_two_sweeps_counts_once(population):
    once = [cell for cell in make_cells(population, ("short",)) if cell.objective == "ml"]
    results = make_results(cells=[*once, *(cell._replace(sweep="wide") for cell in once)])
    assert results.ml("test") == mean_interval([cell.test for cell in once])


def test_agreement_with_the_population(results):
    table = part(report.classification_section(results), "population-agreement")
    assert [row[0] for row in table.rows] == [
        "ML",
        *(f"RAML τ = {tau:g}" for tau in (0.5, 1, 1.5, 2, 2.4, 3)),
        "Bayes rule",
    ]
    for label, trained, exact, difference, of_bayes, exact_of_bayes in table.rows[:-1]:
        assert difference == pytest.approx(100 * (trained.value - exact) / exact)
        assert of_bayes == pytest.approx(exact_of_bayes, abs=0.2), (
            label
        )  # the noise of the made cells
    assert table.rows[0][2] == results.population.reward_ml
    assert table.rows[-1][2] == results.population.reward_bayes


def test_largest_temperature(results):
    table = part(report.classification_section(results), "largest-temperature")
    rewards = {row[0]: row[1].value for row in table.rows}
    assert list(rewards) == [
        "RAML, plain",
        "RAML, scaled by τ",
        "SQDML, plain",
        "SQDML, scaled by τ",
    ]
    assert rewards["RAML, plain"] < 2.0 < 2.3 < rewards["RAML, scaled by τ"]
    assert "10,001" in table.caption


def test_words_for_those_who_cannot_see(results):
    section = report.classification_section(results)
    alt = part(section, "reward-by-temperature").alt
    assert re.search(
        r"Test: RAML rises from 2\.1\d\d at τ 0\.1 to 2\.31\d at τ \d.*; SQDML stays near 2\.31\d; ML 2\.1\d\d; Bayes rule 2\.311",
        alt,
    )
    assert "then falls to 1.8" in part(section, "reward-by-wide-temperature").alt
    assert "Share decided as by the Bayes rule: ML 73." in part(section, "decision-regions").alt
    assert "Theorem 1, 2R/τ is 1.5e-03" in part(section, "gap-and-bounds").alt
    assert (
        figures.describe("loss", [(1, 2.0), (5, 0.5), (9, 1.0)], "epoch", 1)
        == "loss falls from 2.0 at epoch 1 to 0.5 at epoch 5, then rises to 1.0 at epoch 9"
    )


def test_what_differs_from_the_paper():
    told = report.classification_section(make_results()).differences
    assert told[0] == "Training inputs: 100,000 here, 1,000,000 in the paper."
    assert "Largest temperature: 10,001 here, 10,000 in the paper." in told
    assert told[-1] == "Weights are averaged over the last epoch."
    alike = make_results(("short",), setup=paper.CLASSIFICATION_SETUP, differences=[])
    assert len(report.classification_section(alike).differences) == 1  # the draw


def test_every_part_of_the_setup_is_compared():
    ours = paper.ClassificationSetup(1000, 1, 200, 300, (16,), 0.05, 0.5, 7)
    cells = [
        report.Cell("short", "raml", tau, seed, False, 1.0, 1.0, 1)
        for tau, seed in ((1.0, 0), (1.0, 1), (2.0, 0))
    ]
    section = report.classification_section(make_results(cells=cells, setup=ours, differences=[]))
    assert section.differences[:-1] == [
        "Training inputs: 1,000 here, 1,000,000 in the paper.",
        "Outputs per training input: 1 here, 10 in the paper.",
        "Validation pairs: 200 here, 100,000 in the paper.",
        "Test pairs: 300 here, 100,000 in the paper.",
        "Units of the hidden layers: 16 here, 8 and 8 in the paper.",
        "Learning rate: 0.05 here, 0.1 in the paper.",
        "Momentum: 0.5 here, 0.9 in the paper.",
        "Epochs at most: 7 here, 100 in the paper.",
        "Repetitions: 1 to 2 here, 5 in the paper.",
    ]
    assert (
        "for at most 7 epochs, 1 to 2 times for each objective and temperature" in section.intro[1]
    )


def test_labels_say_what_they_measure(results):
    section = report.classification_section(results)
    assert section.provenance["Training time"] == "412 seconds of training steps"
    assert section.provenance["Report written"] == "2025-01-31"
    assert "of one network, that of the first seed" in part(section, "decision-regions").caption


@pytest.mark.parametrize(
    ("sweeps", "expected"),
    [
        ((), ["decision-regions", "gap-and-bounds", "gain-over-ml"]),
        (
            ("wide",),
            [
                "reward-by-wide-temperature",
                "largest-temperature",
                "decision-regions",
                "gap-and-bounds",
                "gain-over-ml",
            ],
        ),
        (
            ("short-scaled",),
            [
                "reward-with-scaled-logits-short",
                "decision-regions",
                "gap-and-bounds",
                "gain-over-ml",
            ],
        ),
        (
            ("wide-scaled",),
            [
                "reward-with-scaled-logits",
                "largest-temperature",
                "decision-regions",
                "gap-and-bounds",
                "gain-over-ml",
            ],
        ),
    ],
)
def test_missing_sweeps(sweeps, expected):
    names = [one.name for one in report.classification_section(make_results(sweeps)).parts]
    assert names == (["best-temperature"] if sweeps else []) + expected


@pytest.mark.parametrize(
    ("sweeps", "first"),
    [
        (("wide-scaled", "wide"), "wide"),
        (("wide-scaled", "wide", "short-scaled", "short"), "short"),
        (("wide-scaled",), "wide-scaled"),
    ],
)
def test_the_best_temperature_of_what_there_is(sweeps, first):
    results = make_results(sweeps)
    means = {
        tau: statistics.fmean(
            cell.dev
            for cell in results.cells
            if (cell.sweep, cell.objective, cell.tau) == (first, "raml", tau)
        )
        for tau in {cell.tau for cell in results.cells if cell.sweep == first and cell.tau}
    }
    best = max(means, key=means.get)
    scaled = first.endswith("scaled")
    gains = [
        report.Comparison("raml", best, gain, gain, gain, temperature_scaled=gain == 2.0)
        for gain in (1.0, 2.0)
    ]
    section = report.classification_section(dataclasses.replace(results, comparisons=gains))
    row = next(row for row in part(section, "best-temperature").rows if row[0].startswith("RAML"))
    assert row[:2] == ("RAML, scaled" if scaled else "RAML", best)
    assert row[-1].value == (2.0 if scaled else 1.0)
    assert f"{row[0]} at its best τ = {best:g}" in section.intro[-1]


def test_scaled_logits_over_a_short_range_are_not_called_large():
    figure = part(
        report.classification_section(make_results(("short", "short-scaled"))),
        "reward-with-scaled-logits-short",
    )
    assert figure.title == "Temperatures with plain and with scaled logits"
    assert "logarithmic" not in figure.caption
    assert legend_of(figure)[1] == ["Plain logits", "Logits scaled by τ"]


def test_next_to_nothing(population, tmp_path):
    """One seed, RAML alone at two temperatures, no maps, no comparisons, a population of one row."""
    cells = [
        cell
        for cell in make_cells(population, ("short",))
        if cell.objective == "raml" and cell.tau in (0.5, 1.0) and cell.seed == 0
    ]
    few = population._replace(rows=[row for row in population.rows if row.tau == 1.0])
    results = make_results((), population=few, cells=cells, regions={}, comparisons=[], scale="")
    section = report.classification_section(results)
    assert [one.name for one in section.parts] == [
        "best-temperature",
        "reward-by-temperature",
        "population-agreement",
    ]
    assert "Scale" not in section.provenance
    assert "100 epochs, once for each objective" in section.intro[1]
    page = report.write_report([section], tmp_path / "page.html")[0].read_text(encoding="utf-8")
    assert "nan" not in re.sub(r"base64,[^\"]*", "", page)
    nothing = make_results((), population=few, regions={}, comparisons=[])
    assert report.classification_section(nothing).parts == []


def test_maps_without_the_bayes_rule():
    regions = {title: found for title, found in make_regions(40).items() if title != "Bayes rule"}
    figure = part(report.classification_section(make_results(regions=regions)), "decision-regions")
    assert "coloured by the class decided at each point: ML, RAML" in figure.alt
    assert {row[1] for row in figure.numbers.rows} == {None}


def test_one_entry_stands_for_all_exact_lines(results):
    labels, panels = legend_of(
        part(report.classification_section(results), "reward-by-temperature")
    )
    assert labels == ["RAML", "SQDML", "ML", "Bayes rule", "exact"]
    assert panels == ["Validation", "Test"]
