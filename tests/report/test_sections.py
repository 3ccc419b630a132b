"""Run and sweep folders as sections.

Numbers against counts, what is unfinished or damaged, how to run it again.
"""

import dataclasses
import hashlib
import json
import shlex
import shutil

import pytest
import torch

from report_cases import GRID, interval, make_run, part, rows_of, sweep_toys, text_of, toy_task
from small_runs import recipe, single_thread, softq
from softq.errors import DataError, SoftqError
from softq.lab import report
from softq.lab.report import classification, find_sources, read_sections, tables
from softq.lab.report.experiments import EXPERIMENTS
from softq.lab.run import CELLS, COUNTS, RECIPE, RESULT, RunFolder
from softq.lab.sweep import SUMMARY, SWEEP, Grid, read_sweep, run_sweep
from softq.lab.tasks import TASKS
from softq.lab.tasks.base import train_cells
from softq.lab.tasks.files import split_sources
from softq.metrics import mean_of_first, paired_test

pytestmark = pytest.mark.usefixtures("one_thread")

FOUR_CLASSES = [
    Grid("one", ("ml", "raml"), "0.5,1", "0:1"),
    Grid("two", ("raml",), "1,20", "0:1"),
    Grid("divided", ("raml",), "1,20", "0", temperature_scaled=True),
]


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Population values to fewer digits, in less time; and a sixth task."""
    monkeypatch.setitem(TASKS, "toy", toy_task())
    classification._population.cache_clear()
    for name in ("FINE_GRID", "COARSE_GRID", "REGION_GRID"):
        monkeypatch.setattr(classification, name, 20)
    yield
    classification._population.cache_clear()


@pytest.fixture
def toys(tmp_path):
    return sweep_toys(tmp_path / "toys")


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept") / "a sweep"
    with single_thread():
        run_sweep(TASKS["classification"], recipe(), FOUR_CLASSES, folder)
    return folder


# --- a sixth task ---------------------------------------------------------------------------------------


def test_a_task_with_metrics_alone_gets_a_whole_section(toys, tmp_path):
    (section,) = read_sections(find_sources([toys]))
    assert [one.name for one in section.parts] == [
        "data", "temperatures", "by-temperature", "scores", "gains", "learning-curves-toy-score", "runs"
    ]  # fmt: skip
    report.write_report([section], tmp_path / "page.html")
    assert list(section.warnings) == []


def test_numbers_are_those_of_the_counts(toys):
    (section,) = read_sections(find_sources([toys]))
    cells = [member.cell for member in read_sweep(toy_task(), toys).cells]
    rows = rows_of(part(section, "temperatures"))
    assert list(rows) == ["ML"] + [f"{o} τ = {t:g}" for o in ("RAML", "SQDML") for t in (0.5, 1, 2)]

    def counts(objective, tau):
        cell = toy_task()
        found = []
        for seed in range(2):
            wanted = cell.recipe_type(objective=type(recipe().objective)(objective, tau))
            scores = cell._test(seeded(wanted, seed))
            found.append([[score, 1.0] for score in scores])
        return torch.tensor(found, dtype=torch.float64)

    for name, objective, tau in (("ML", "ml", None), ("RAML τ = 1", "raml", 1.0)):
        tests = [cell.test for cell in cells if (cell.objective, cell.tau) == (objective, tau)]
        assert interval(rows[name], "Test score") == pytest.approx(
            [sum(tests) / 2, min(tests), max(tests)]
        )
        assert sum(tests) / 2 == pytest.approx(float(counts(objective, tau)[..., 0].mean()))
    generator = torch.Generator().manual_seed(0)
    both = counts("raml", 1.0)[None], counts("ml", None)
    (test,) = paired_test(*both, mean_of_first, generator=generator)
    assert interval(rows["RAML τ = 1"], "Gain over ML in score") == pytest.approx(list(test.gain))
    gains = rows_of(part(section, "gains"))
    assert list(gains) == ["SQDML over RAML", "SQDML over ML", "RAML over ML"]
    assert float(gains["RAML over ML"]["p, score"]) == pytest.approx(test.p_value)
    names = [row[0] for row in part(section, "temperatures").rows]
    assert [name for name in names if name.startswith("RAML") and "best" in name] == [
        "RAML τ = 1 (best)"
    ]
    drawn = part(section, "by-temperature").numbers
    column = [one.title for one in drawn.columns].index("Test score: RAML")
    assert [row[0] for row in drawn.rows] == [0.5, 1.0, 2.0]
    assert drawn.rows[1][column].value == pytest.approx(float(rows["RAML τ = 1"]["Test score"]))


def seeded(one, seed):
    return dataclasses.replace(one, training=dataclasses.replace(one.training, seed=seed))


def test_no_figure_of_single_points(tmp_path):
    sweep_toys(tmp_path, [Grid("one", ("ml", "raml"), "1")])
    (section,) = read_sections(find_sources([tmp_path]))
    assert "by-temperature" not in [one.name for one in section.parts]
    make_run(tmp_path / "run", epochs=1)
    (section,) = read_sections(find_sources([tmp_path / "run"]))
    assert [one.name for one in section.parts] == ["runs"]


# --- unfinished and damaged -------------------------------------------------------------------------


def test_unfinished_runs_are_named(toys, tmp_path):
    (toys / SUMMARY).unlink()
    runs = sorted((toys / "runs").iterdir())
    (runs[0] / RESULT).unlink()
    shutil.rmtree(runs[1])
    (section,) = read_sections(find_sources([toys]))
    assert section.warnings[0] == "12 of 14 models are finished."
    resume = f"softq sweep {toys / SWEEP} --out {toys} --resume"
    assert section.warnings[1].startswith(f"Unfinished: {runs[0].name}, after 2 epochs.")
    assert section.warnings[1].endswith(resume)
    assert section.commands[1] == resume
    table = part(section, "runs")
    assert len(table.rows) == 13
    assert f"{runs[0].name} (unfinished)" in [row[0] for row in table.rows]
    page = report.write_report([section], tmp_path / "page.html")[0]
    assert "12 of 14 models are finished." in text_of(page)
    shutil.rmtree(toys / "runs")
    (section,) = read_sections(find_sources([toys]))
    assert section.warnings == ["0 of 14 models are finished."]
    assert (list(section.parts), section.differences, section.provenance) == ([], None, {})
    assert "tau = " in section.recipe


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        (RESULT, lambda text: text.replace(b'"cells"', b'"cellar"')),
        (RESULT, lambda text: text[: len(text) // 2]),
        (RESULT, lambda text: json.dumps(json.loads(text) | {"cells": []}).encode()),
        (RESULT, lambda text: json.dumps(json.loads(text) | {"facts": {"bayes": 1}}).encode()),
        (CELLS, lambda text: text.replace(b'"hash"', b'"hush"')),
        (RECIPE, lambda text: text.replace(b"parsing", b"parking")),
        (RECIPE, lambda text: b"= =\n"),
    ],
)
def test_a_damaged_run_is_an_error_that_names_it(tmp_path, name, damage):
    file = make_run(tmp_path / "a run") / name
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(SoftqError) as error:
        read_sections(find_sources([tmp_path]))
    assert str(tmp_path / "a run") in str(error.value)
    assert "\n" not in str(error.value)
    done = softq("report", tmp_path, "--out", tmp_path / "page.html")
    assert done.exit_code == 2
    assert not (tmp_path / "page.html").exists()


def test_a_fault_of_the_report_is_not_blamed_on_the_folder(toys, monkeypatch):
    monkeypatch.setattr(tables, "splits", lambda results: {}["a slip"])
    with pytest.raises(KeyError, match="a slip"):
        read_sections(find_sources([toys]))


def test_counts_that_are_gone_or_damaged(toys):
    (toys / SUMMARY).unlink()
    counts = next(iter(sorted((toys / "runs").iterdir()))) / COUNTS
    counts.write_bytes(b"no tensors")
    with pytest.raises(SoftqError, match=r"counts\.safetensors"):
        read_sections(find_sources([toys]))
    counts.unlink()
    with pytest.raises(SoftqError, match=r"has no counts\.safetensors"):
        read_sections(find_sources([toys]))


# --- where the examples come from ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "dev", "test"),
    [
        ({"train": "a", "dev": "b", "test": "c"}, "b", "c"),
        ({"train": "a", "dev": "b", "test": ""}, "b", "the development set again"),
        ({"train": "a", "dev": "b", "test": "b"}, "b", "the development set again"),
        ({"train": "a", "dev": "", "test": ""}, *["the training file itself"] * 2),
        ({"train": "a", "dev": "b", "test": "a"}, "b", "the training file itself"),
        ({"train": "a", "folds": 2}, "2 folds of a", "the development set again"),
        ({"train": "coco.json", "dev": "coco.json", "test": "coco.json"}, *["coco.json"] * 2),
        ({"train": "", "dev": "", "test": ""}, *["built-in world"] * 2),
        ({"inputs": 10, "dev": 5, "test": 5}, *["built-in world"] * 2),
    ],
)
def test_sources_of_splits(data, dev, test):
    found = split_sources(data)
    assert (found["dev"], found["test"]) == (dev, test)


def test_a_run_that_was_not_tested_on_held_out_examples(tmp_path):
    make_run(tmp_path / "good", data=("train", "dev", "test"))
    make_run(tmp_path / "again", seed=1, data=("train", "dev"))
    make_run(tmp_path / "same", seed=2, data=("train",))
    (section,) = read_sections(find_sources([tmp_path]))
    assert section.warnings == [
        "The test set of again was the development set again.",
        "The test set of same was the training file itself.",
    ]
    rows = rows_of(part(section, "runs"))
    assert rows["good"]["Test set"] == "test.conllu"
    page = report.write_report([section], tmp_path / "page.html")[0]
    assert "The test set of again was the development set again." in text_of(page)


# --- folders and commands -------------------------------------------------------------------------------


def test_each_folder_once(toys, tmp_path):
    make_run(tmp_path / "runs" / "x")
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    runs = tmp_path / "runs"
    paths = [runs, runs / "x", tmp_path / "link", runs / ".." / "runs"]
    assert [source.path for source in find_sources(paths)] == [runs / "x"]
    one = next((toys / "runs").iterdir())
    assert [source.path for source in find_sources([one, toys])] == [toys]
    assert [source.path for source in find_sources([one])] == [one]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no run and no sweep"):
        find_sources([tmp_path / "empty"])


def test_a_sweep_shows_its_recipe(toys, tmp_path):
    first, second = read_sections(find_sources([toys, sweep_toys(tmp_path / "b", [GRID])]))
    text = (toys / SWEEP).read_text()
    assert first.recipe == text
    assert first.provenance["Recipe"] == hashlib.sha256(text.encode()).hexdigest()[:12]
    assert first.commands == [f"softq sweep {toys}/{SWEEP} --out sweeps/again"]
    assert first.title != second.title


def test_every_run_can_be_run_again(tmp_path, monkeypatch, classes):
    monkeypatch.chdir(tmp_path)
    task = TASKS["classification"]
    with single_thread():
        for name, flags in (("a b", ["--temperature-scaled"]), ("c", [])):
            cell = recipe("--objective", "raml", "--tau", 2, *flags)
            train_cells(task, [cell], tmp_path / "done" / name)
        (section,) = read_sections(find_sources([tmp_path / "done"]))
        assert len(section.commands) == 2
        assert softq(*shlex.split(section.commands[0])[1:]).exit_code == 0
    (again,) = (tmp_path / "runs").iterdir()
    assert RunFolder(again).result() == RunFolder(tmp_path / "done" / "a b").result()
    assert (tmp_path / "done" / "c" / RECIPE).read_text() in section.recipe
    # models that were trained as one have a command each, with what tells them apart
    (grid,) = (classes / "runs").iterdir()
    (section,) = read_sections(find_sources([grid]))
    assert len(set(section.commands)) == len(RunFolder(grid).cells()) == 10
    command = next(one for one in section.commands if "--temperature-scaled" in one)
    with single_thread():
        assert softq(*shlex.split(command)[1:]).exit_code == 0


# --- the four-class experiment --------------------------------------------------------------------------


def test_classification(classes, tmp_path):
    (section,) = read_sections(find_sources([classes]))
    names = [one.name for one in section.parts]
    assert names.count("by-temperature") == 3  # a grid each
    assert {"population-agreement", "decision-regions", "gap-and-bounds", "methods"} <= set(names)
    cells = [member.cell for member in read_sweep(TASKS["classification"], classes).cells]
    rows = rows_of(part(section, "temperatures"))
    tests = [cell.test for cell in cells if cell.tau == 0.5]
    assert float(rows["RAML τ = 0.5"]["Test reward"]) == pytest.approx(sum(tests) / 2)
    (run,) = (classes / "runs").iterdir()
    bayes = RunFolder(run).result()["facts"]["bayes"]
    assert float(rows["Bayes rule"]["Test reward"]) == bayes["test_reward"]
    exact = rows_of(part(section, "population-agreement"))
    assert {"ML", "RAML τ = 0.5", "RAML τ = 20", "RAML, scaled τ = 20", "Bayes rule"} <= set(exact)
    share = float(exact["RAML τ = 0.5"]["Test, % of Bayes"])
    assert share == pytest.approx(100 * sum(tests) / 2 / bayes["test_reward"])
    regions = rows_of(part(section, "decision-regions").numbers)
    assert float(regions["Bayes rule"]["As the Bayes rule"]) == 100
    shares = [float(regions["ML"].get(f"Class {label}", 0)) for label in range(4)]
    assert sum(shares) == pytest.approx(100)
    # a model of two grids is in both, and counts once in each
    both = [rows_of(one) for one in section.parts if one.name == "temperatures"][:2]
    assert both[0]["RAML τ = 1"]["Test reward"] == both[1]["RAML τ = 1"]["Test reward"]
    assert both[0]["ML"] == both[1]["ML"]  # which only the first grid trained
    changed = rows_of(section.differences)
    assert list(changed["Examples, train"].values()) == ["Examples, train", "1,000,000", "300"]
    assert "optimizer.momentum" not in changed  # as in the paper
    page = report.write_report([section], tmp_path / "page.html")[0]
    assert page.stat().st_size < 1_000_000


# --- what the paper prints ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "method", "objective", "tau", "key", "value", "gain"),
    [
        ("ner", "", "RAML", 0.2, "test_f1", 86.0, 1.1),
        ("ner", "", "ML", None, "test_exact_match", 78.8, None),
        ("parsing", "", "RAML", 0.3, "test_uas", 91.1, 0.4),
        ("translation", "ngram", "RAML", 0.4, "test_corpus_bleu", 28.77, 1.11),
        ("translation", "importance", "RAML", 0.7, "test_corpus_bleu", 28.61, 0.95),
        ("translation", "hamming", "RAML", 0.9, "test_corpus_bleu", 28.39, 0.73),
        ("captioning", "", "SQDML", 0.9, "test_average_reward", 10.91, 0.2),
        ("captioning", "", "RAML", 0.9, "test_corpus_bleu", 27.62, 0.71),
    ],
)
def test_numbers_of_the_paper(task, method, objective, tau, key, value, gain):
    table = EXPERIMENTS[task].paper[method]
    assert table.value(objective, tau, key) == value
    assert table.at_best(objective, key) == value
    assert table.gain(objective, tau, key) == gain
    assert table.value(objective, 7.0, key) is None
