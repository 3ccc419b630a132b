"""softq reproduce --data DIR: the files of an experiment by their usual names."""

from pathlib import Path

import pytest
from test_commands import refused

from small_runs import softq
from softq.cli import reproduction
from softq.formats.captions import features_beside


@pytest.fixture
def reproduced(monkeypatch):
    """Recipes that would have been trained, and the command that the page names."""
    pytest.importorskip("matplotlib")
    started = []

    def run(task, recipe, *_, **__):
        started.append(recipe.data)

    def read(sources):
        started.extend(source.command for source in sources)

    monkeypatch.setattr(reproduction, "run_sweep", run)
    monkeypatch.setattr(reproduction, "read_sections", read)
    for name in ("write_report", "show_choices"):
        monkeypatch.setattr(reproduction, name, lambda *_, **__: None)
    return started


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize(
    ("task", "train", "dev", "test"),
    [
        ("translation", "train.tsv", "dev.tsv.gz", "test.tsv.xz"),
        ("translation", "train.tsv", "dev.tsv", ""),
        ("parsing", "en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu.gz", "en_ewt-ud-test.conllu"),
        ("parsing", "train.conllu", "dev.conllu", ""),
        ("ner", "train.conll", "dev.conll", "test.conll"),
        ("captioning", "train.captions.tsv.gz", "dev.captions.tsv", "flickr-test.captions.tsv"),
        ("ner", "eng.train.conll", "eng_dev.conll.xz", ""),
    ],
)
def test_reproduce_with_a_folder_of_files(tmp_path, reproduced, task, scale, train, dev, test):
    others = ["readme.txt", "latest.tsv", "contrain.conllu", ".train.conll", f"old-{train}.bak"]
    for name in filter(None, (train, dev, test, *others)):
        (tmp_path / name).touch()
        (tmp_path / features_beside(Path(name))).touch()
    done = softq("reproduce", task, "--scale", scale, "--data", tmp_path, "--out", tmp_path / "out")
    assert done.exit_code == 0
    data, command = reproduced
    assert (data.train, data.dev, data.test) == tuple(
        name and str(tmp_path / name) for name in (train, dev, test)
    )
    assert data.halve_dev == (not test)
    assert getattr(data, "folds", 0) == 0
    assert command == f"softq reproduce {task} --scale {scale} --data {tmp_path}"


def test_reproduce_with_a_folder_and_folds(tmp_path, reproduced):
    for name in ("train.conll", "test.conll"):
        (tmp_path / name).touch()
    command = [
        "reproduce",
        "ner",
        "--scale",
        "paper",
        "--data",
        tmp_path,
        "--out",
        tmp_path / "out",
    ]
    assert softq(*command).exit_code == 0
    data = reproduced[0]
    assert (data.dev, data.test, data.folds) == ("", str(tmp_path / "test.conll"), 2)
    assert softq(*command, "--folds", "4").exit_code == 0  # flags lie over the folder
    assert reproduced[2].folds == 4


@pytest.mark.parametrize(
    ("task", "names", "texts"),
    [
        ("translation", [], [
            "there is no file train.tsv or …-train.tsv (or .gz, .xz) in ",
            "--train train.tsv --dev dev.tsv",
        ]),
        ("translation", ["train.tsv", "test.tsv"], ["there is no file dev.tsv or …-dev.tsv"]),
        ("parsing", ["train.tsv", "dev.conllu"], ["no file train.conllu or …-train.conllu"]),
        ("ner", ["train.conll"], ["there is no file dev.conll"]),
        ("translation", ["train.tsv", "train.tsv.gz", "dev.tsv"],
         ["expected one file train.tsv", "got train.tsv, train.tsv.gz;"]),
        ("classification", [],
         ["that is ner or parsing or translation or captioning, got classification"]),
        (None, [], ["that is ner or parsing or translation or captioning, got all of them"]),
    ],
)  # fmt: skip
def test_folders_that_do_not_do(tmp_path, reproduced, task, names, texts):
    for name in names:
        (tmp_path / name).touch()
    arguments = ["reproduce", *([task] if task else []), "--scale", "paper", "--data"]
    refused(softq(*arguments, tmp_path), *texts)
    if task in ("ner", "parsing", "translation"):
        refused(softq(*arguments, tmp_path / "none"), f"there is no folder {tmp_path / 'none'}")
    assert reproduced == []
