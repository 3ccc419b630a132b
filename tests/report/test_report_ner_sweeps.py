"""The named-entity experiment in a report: its kinds of sweeps, trained, numbers against the cells they are of."""

import csv
import dataclasses
import math
import re
import shutil

import pytest

from report_cases import part, rows_of, text_of
from small_runs import single_thread
from softq.annotators.reliability import estimate
from softq.lab import report
from softq.lab.report.load import find_sources, read_sections
from softq.lab.report.ner import section
from softq.lab.report.ner_load import kind_of, ner_results
from softq.lab.sweep import SUMMARY, SWEEP, Grid, read_sweep, run_sweep
from softq.lab.tasks import TASKS
from softq.lab.tasks.ner_data import bayes_statistics, read_corpora
from softq.lab.tasks.ner_recipe import Data, NerRecipe
from softq.metrics import token_accuracy

TASK = TASKS["ner"]

SENTENCES = [
    "Ann/B-PER Lee/I-PER lives/O in/O Rome/B-LOC",
    "Bob/B-PER saw/O Oslo/B-LOC",
    "the/O man/O went/O to/O Rome/B-LOC",
    "Eve/B-PER met/O Bob/B-PER Lee/I-PER",
    "in/O Oslo/B-LOC it/O rains/O",
    "Ann/B-PER ran/O",
]


def write_file(path, sentences):
    path.write_text(
        "".join(
            "".join(pair.replace("/", "\t") + "\n" for pair in one.split()) + "\n"
            for one in sentences
        )
    )
    return str(path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Temperatures, from files that are named by their whole paths."""
    place = tmp_path_factory.mktemp("files")
    data = Data(
        train=write_file(place / "some.conll", SENTENCES * 2),
        test=write_file(place / "held.conll", SENTENCES[:4]),
        folds=2,
    )
    grids = [Grid("plain", ("ml", "raml"), "0.2,0.4", over=("c2=0.1,1",))]
    with single_thread():
        run_sweep(TASK, NerRecipe(data=data), grids, place / "sweep")
    return place / "sweep"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    grids = [
        Grid("vote", ("ml",), over=("references=vote", "ties=outside")),
        Grid(
            "sqdml",
            ("sqdml",),
            "0.3",
            over=("references=all", "weights=dawid-skene", "entity_weight=1,2"),
        ),
    ]
    with single_thread():
        run_sweep(TASK, NerRecipe(data=Data(sentences=60, dev_sentences=40)), grids, folder)
    return folder


def test_a_sweep_of_temperatures(swept, tmp_path):
    sections = read_sections(find_sources([swept]))
    (shown,) = sections
    page, *files = report.write_report(sections, tmp_path / "page.html")
    text = text_of(page)
    assert str(swept.parent) not in text
    assert "held.conll" in text
    assert "nan" not in text
    table = list(
        csv.DictReader(
            (tmp_path / "page_files/temperatures.csv").read_text(encoding="utf-8").splitlines()
        )
    )
    rows = {row["Model"].removesuffix(" (best)"): row for row in table}
    cells = [member.cell for member in read_sweep(TASK, swept).cells]
    best = {}
    for cell in cells:
        key = "ML" if cell.tau is None else f"RAML τ = {cell.tau:g}"
        best[key] = max(best.get(key, cell), cell, key=lambda one: one.dev)
    assert rows.keys() == best.keys()
    for name, cell in best.items():
        assert float(rows[name]["Dev F1, %"]) == 100 * cell.dev
        assert float(rows[name]["Test accuracy, %"]) == 100 * cell.measures["test_token_accuracy"]
        assert float(rows[name]["c2"]) == cell.settings["c2"]
    (choice,) = [choice for choice in read_sweep(TASK, swept).choices if choice.objective == "raml"]
    (marked,) = [row for row in table if row["Model"].endswith("(best)")]
    ends = [float(marked[f"Gain over ML in F1{end}"]) for end in ("", " low", " high")]
    assert ends == pytest.approx([100 * end for end in choice.gain])
    assert shown.command == "softq sweep sweep.toml --out sweeps/again"
    assert 'train = "some.conll"' in shown.recipe
    types = part(shown, "types")
    assert [row[0] for row in types.rows] == ["LOC", "PER"]
    assert [row[-1] for row in types.rows] == [3, 4]  # in the four sentences
    assert "trained on some.conll (12 sentences)" in shown.intro[0]
    assert {path.name for path in files} >= {
        "scores-by-temperature.svg",
        "scores-by-temperature.png",
        "training.csv",
    }


def test_a_sweep_whose_files_are_gone(swept, tmp_path):
    results = ner_results(TASK, read_sweep(TASK, swept), swept, "")
    moved = tmp_path / "sweep"
    shutil.copytree(swept, moved)
    text = (moved / SWEEP).read_text()
    (moved / SWEEP).write_text(text.replace(str(swept.parent), str(tmp_path)))
    (shown,) = read_sections(find_sources([moved]))
    assert shown.intro[-1].startswith("The data cannot be read here (")
    assert "some.conll" in shown.intro[-1]
    assert str(tmp_path) not in " ".join([*shown.intro, shown.recipe, shown.command])
    rows, before = (part(one, "temperatures").rows for one in (shown, section(results)))
    assert [row[:9] for row in rows] == [row[:9] for row in before]
    assert {row[-2] for row in rows} == {None}
    assert [one.name for one in shown.parts] == [
        "temperatures",
        "scores-by-temperature",
        "training",
    ]


def test_a_sweep_that_is_not_finished(swept, tmp_path):
    shutil.copytree(swept, tmp_path / "sweep")
    (tmp_path / "sweep" / SUMMARY).unlink()
    for run in (tmp_path / "sweep" / "runs").glob("raml-*"):
        shutil.rmtree(run)
    (shown,) = read_sections(find_sources([tmp_path / "sweep"]))
    assert shown.intro[0] == "2 of 6 models are finished; this page is of these."
    assert [row[0] for row in part(shown, "temperatures").rows] == ["ML"]
    assert "by RAML" not in shown.intro[1]
    report.write_report([shown], tmp_path / "page.html")
    shutil.rmtree(tmp_path / "sweep" / "runs")
    (shown,) = read_sections(find_sources([tmp_path / "sweep"]))
    assert shown.intro == ["Nothing is finished yet, none of 6 models."]


def test_a_sweep_of_the_world(world, tmp_path):
    sections = read_sections(find_sources([world]))
    (shown,) = sections
    names = [one.name for one in shown.parts]
    assert names == [
        "methods",
        "f1-by-method",
        "accuracy-by-method",
        "scores-by-entity-weight",
        "annotators",
        "all-annotators",
        "types",
    ]
    data = Data(sentences=60, dev_sentences=40)
    rows = rows_of(part(shown, "methods"))
    assert list(rows) == ["vote", "sqdml", "Bayes rule"]
    bayes = float(token_accuracy(bayes_statistics(data).sum(0)))
    assert float(rows["Bayes rule"]["Token accuracy, %"]) == 100 * bayes
    cells = {
        member.cell.hash: member.cell
        for member in read_sweep(TASK, world).cells
        if member.cell.objective == "sqdml"
    }
    best = max(cells.values(), key=lambda cell: cell.dev)
    assert float(rows["sqdml"]["Entity weight"]) == best.settings["entity_weight"]
    assert float(rows["sqdml"]["% of the Bayes rule"]) == pytest.approx(
        100 * best.measures["test_token_accuracy"] / bayes
    )
    estimated = {row.name: row for row in estimate(read_corpora(data).train).annotators}
    table = part(shown, "annotators")
    assert {row[0]: row[-1] for row in table.rows} == {
        name: row.weight for name, row in estimated.items()
    }
    page = text_of(report.write_report(sections, tmp_path / "page.html")[0])
    assert page.count("<img ") == 4
    assert all(len(alt) > 60 for alt in re.findall(r'alt="([^"]*)"', page))
    assert "nan" not in page


def test_a_sweep_of_a_crowd(tmp_path):
    lines = [
        "# annotators = w1 w2",
        "Ann\tB-PER\tB-PER",
        "ran\tO\tB-LOC",
        "",
        "# annotators = w2 w3",
        "in\tO\tO",
        "Rome\tO\tB-LOC",
        "",
        "",
    ]
    (tmp_path / "crowd.conll").write_text("\n".join(lines) * 3)
    gold = write_file(tmp_path / "gold.conll", ["Ann/B-PER ran/O", "in/O Rome/B-LOC"] * 3)
    data = Data(train=str(tmp_path / "crowd.conll"), dev=gold, halve_dev=True, annotators="all")
    grids = [
        Grid("vote-entity", ("ml",), over=("references=vote",)),
        Grid("all", ("ml", "sqdml"), "0.5", over=("references=all", "weights=dawid-skene")),
    ]
    with single_thread():
        run_sweep(TASK, NerRecipe(data=data), grids, tmp_path / "sweep")
    (shown,) = read_sections(find_sources([tmp_path / "sweep"]))
    assert [row[0] for row in part(shown, "methods").rows] == [
        "vote-entity",
        "all, ML",
        "all, SQDML",
    ]
    assert {row[0] for row in part(shown, "annotators").rows} == {"w1", "w2", "w3"}
    assert "every other sentence of gold.conll (3)" in shown.intro[1]
    assert str(tmp_path) not in text_of(report.write_report([shown], tmp_path / "page.html")[0])


def test_kinds_of_sweeps():
    single, several = (
        NerRecipe(data=Data(train="a")),
        NerRecipe(data=Data(train="a", annotators="3")),
    )
    assert kind_of([single]) == "temperatures"
    assert kind_of([single, several]) == "crowd"
    assert kind_of([NerRecipe()]) == "world"


def test_seeds_are_averaged(swept):
    results = ner_results(TASK, read_sweep(TASK, swept), swept, "")
    assert all(math.isnan(one.scores["dev"].low) for one in results.systems)
    sweep = read_sweep(TASK, swept)
    again = [
        member._replace(cell=dataclasses.replace(member.cell, seed=1, dev=member.cell.dev - 0.1))
        for member in sweep.cells
    ]
    twice = ner_results(TASK, sweep._replace(cells=[*sweep.cells, *again]), swept, "")
    assert [one.seeds for one in twice.systems] == [(0, 1)] * len(results.systems)
    for before, after in zip(results.systems, twice.systems, strict=True):
        assert after.dev == pytest.approx(before.dev - 0.05)
    assert section(twice).provenance["Seeds"] == "0, 1"
    assert "Dev F1, % low" in rows_of(part(section(twice), "temperatures"))["ML"]
