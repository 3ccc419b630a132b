"""Parsers on the command line: `softq train`, `softq sweep` and `softq reproduce`."""

import json

import pytest

from ner_commands import refused, well
from parsing_runs import SMALL, crosses, make_files, parts
from small_runs import snapshot, softq
from softq.cli import recipes, reproduction
from softq.formats.conllu import read_conllu
from softq.lab.sweep import expand
from softq.lab.tasks import TASKS

WORLD = ["--sentences", 30, "--dev-sentences", 20]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


def test_train_on_the_world_and_again(tmp_path):
    arguments = ["train", "parsing", *SMALL, *WORLD, "--out", tmp_path / "run"]
    first, *_, reward, where = lines = well(softq(*arguments)).splitlines()
    row = json.loads(well(softq(*arguments, "--resume", "--json")))["cells"][0]
    scores = (
        f"UAS {row['test_uas']:.4f}, LAS {row['test_las']:.4f}, exact match"
        f" {row['test_exact_match']:.4f} (built-in world)"
    )
    assert first.startswith("ml, seed 0: dev UAS ")
    assert first.endswith(f"; test {scores}")
    assert (reward, where) == ("reward: attachment", f"run: {tmp_path / 'run'}")
    assert row["lifted"] > 0
    assert (
        lines.count(
            f"crossing arcs: {row['lifted']:.0f} trees of 30 training sentences were lifted"
        )
        == 1
    )


def test_train_on_files(tmp_path, files):
    flags = ["--objective", "raml", "--tau", "0.3"]
    crossing = sum(crosses(sentence.heads) for sentence in read_conllu(files["train"]))
    shown = well(
        softq(
            "train",
            "parsing",
            *SMALL,
            *parts(files, "train", "dev"),
            *flags,
            "--spanning",
            "--out",
            tmp_path / "a",
        )
    )
    assert "(dev.conllu); test UAS" in shown
    assert "(the development set again)" in shown
    assert "crossing arcs" not in shown
    shown = well(
        softq(
            "train",
            "parsing",
            *SMALL,
            *parts(files, "train"),
            *flags,
            "--nonprojective",
            "skip",
            "--out",
            tmp_path / "b",
        )
    )
    assert shown.count("(the training file itself)") == 2
    assert f"crossing arcs: {crossing} of 60 training sentences were skipped" in shown
    refused(
        softq("train", "parsing", "--train", tmp_path / "none", "--out", tmp_path / "c"),
        "cannot read",
        "none",
    )
    assert not (tmp_path / "c").exists()


def test_sweep(tmp_path, files):
    flags = [*SMALL, "--objective", "ml,raml", "--tau", "0.1,0.3", "--seed", "0:1", "--jobs", "2"]
    shown = well(
        softq(
            "sweep",
            "parsing",
            *flags,
            *parts(files, "train", "dev", "test"),
            "--out",
            tmp_path / "sweep",
        )
    )
    assert "parsing: UAS, 6 models" in shown
    assert "dev: dev.conllu; test: test.conllu" in shown
    assert shown.count("crossing arcs: ") == 1
    assert "gain over ML" in shown
    result = softq("sweep", "parsing", *SMALL, *parts(files, "train"), "--out", tmp_path / "none")
    refused(result, "the training file can be neither: add --dev FILE\n")


def test_recipes_of_parsing():
    sizes = {}
    for path in sorted(recipes.RECIPES.glob("parsing-*.toml")):
        wanted = recipes.find_recipe(str(path), [], sweep=True)
        sizes[path.stem] = len(expand(wanted.task, wanted.recipe, wanted.grids))
    assert sizes == {"parsing-paper": 2 * (1 + 9), "parsing-small": 1 + 2 * 4 + 1}


def test_reproduce(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    arguments = ["reproduce", "parsing", *SMALL, *WORLD, "--epochs", "1", "--out", tmp_path]
    assert "gain over ML" in well(softq(*arguments))
    assert (tmp_path / "report.html").is_file()
    before = snapshot(tmp_path / "parsing" / "runs")
    monkeypatch.setattr(type(TASKS["parsing"]), "learner", None)
    monkeypatch.setattr(
        reproduction, "write_report", lambda sections, page, title: None
    )  # the figures take long
    well(softq(*arguments))
    assert snapshot(tmp_path / "parsing" / "runs") == before


def test_reproduce_at_the_papers_scale_needs_files(tmp_path, monkeypatch, files):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    wanted = [
        "parsing at the paper's scale is trained on the Penn Treebank",
        "--train train.conllu --dev dev.conllu --test test.conllu",
    ]
    refused(
        softq("reproduce", "parsing", "--scale", "paper"), "there is no file train.conllu", *wanted
    )
    refused(
        softq("reproduce", "parsing", "--scale", "paper", *parts(files, "train", "dev")),
        "there is no file test.conllu",
        *wanted,
    )
    started = []
    monkeypatch.setattr(reproduction, "run_sweep", lambda task, *_, **__: started.append(task.name))
    for name in ("read_sections", "write_report", "show_choices"):
        monkeypatch.setattr(reproduction, name, lambda *_, **__: None)
    well(softq("reproduce", "parsing", "--scale", "paper", *parts(files, "train", "dev", "test")))
    assert started == ["parsing"]
