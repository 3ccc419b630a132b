"""The task that CONTRIBUTING.md writes in full: trained, swept and reported by the commands."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

from small_runs import softq
from softq.lab.tasks import TASKS

GUIDE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
WORDS = {"greet": ("hello", "hi", "morning"), "buy": ("order", "buy", "price"), "leave": ("bye",)}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The module and three files of texts."""
    section = GUIDE.partition("## Adding a task")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    assert code.count("\n") < 100
    (tmp_path / "intents_task.py").write_text(code)
    for number, split in enumerate(("train", "dev", "test")):
        rows = [
            f"{label}\t{word} {filler} {number}\n"
            for label, words in WORDS.items()
            for word in words
            for filler in ("please", "to you", "now")
        ]
        (tmp_path / split).write_text("".join(rows))
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *sys.path]))  # of processes, too
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(TASKS, "intents", importlib.import_module("intents_task").Intents())
    yield [f"--{split}={tmp_path / split}" for split in ("train", "dev", "test")]
    del sys.modules["intents_task"]


@pytest.mark.filterwarnings("ignore")  # of matplotlib's fonts
def test_a_task_of_ones_own(files, tmp_path):
    told = softq("train", "intents", "--help")  # there is no guide to it, and its keys are flags
    assert told.exit_code == 0, told.output
    assert "--buckets" in told.stdout
    flags = [*files, "--epochs", "3"]
    trained = softq("train", "intents", *flags, "--out", tmp_path / "run", "--json")
    assert trained.exit_code == 0, trained.output
    (cell,) = json.loads(trained.stdout)["cells"]
    assert cell["test"] == cell["test_accuracy"] > 0.9
    grid = ["--objective", "ml,raml", "--tau", "0.5", "--seed", "0:1", "--jobs", "2"]
    swept = softq("sweep", "intents", *flags, *grid, "--out", tmp_path / "sweep")
    assert swept.exit_code == 0, swept.output
    assert "intents: accuracy, 4 models" in swept.stdout
    page = tmp_path / "report.html"
    reported = softq("report", tmp_path / "run", tmp_path / "sweep", "--out", page)
    assert reported.exit_code == 0, reported.output
    assert "intents" in page.read_text()
    assert cell["hash"] in page.read_text()
    (tmp_path / "train").write_text("no tab\n")
    refused = softq("train", "intents", *flags, "--out", tmp_path / "other")
    assert refused.exit_code == 2
    assert "train, line 1: expected LABEL TAB TEXT, got 1 columns" in refused.stderr
