"""Run folders.

Whole files or none, checkpoints that read back, one process at a time, disks that are full.
"""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import softq
from small_runs import Scripted, go, new_run
from softq.errors import RunError
from softq.lab.run import (
    BEST,
    CELLS,
    ENVIRONMENT,
    LAST,
    METRICS,
    OUTPUTS,
    RECIPE,
    RESULT,
    TIMINGS,
    RunFolder,
    as_json,
    write_atomically,
)
from softq.lab.tasks.base import best_models

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
CELL = {"hash": "abc", "objective": "ml", "tau": None, "temperature_scaled": False}
CELL |= {"seed": 0, "settings": {}}


@pytest.fixture
def run(tmp_path):
    return new_run(tmp_path / "run", 'task = "demo"\n', [CELL])


def files(run):
    return {path.name for path in run.path.iterdir()}


def failing(function, number, error=FULL):
    """The function, with an error at its n-th call and after it."""
    calls = iter(range(1, 10_000))

    def call(*args, **kwargs):
        if next(calls) >= number:
            raise error
        return function(*args, **kwargs)

    return call


def test_a_new_folder(run):
    assert files(run) == {RECIPE, CELLS, ENVIRONMENT}
    assert (run.path / RECIPE).read_text() == 'task = "demo"\n'
    assert run.lines(CELLS) == [CELL]
    environment = json.loads((run.path / ENVIRONMENT).read_text())
    assert environment["softq"] == softq.__version__
    assert environment["torch"] == torch.__version__
    assert environment["device"] == "cpu"
    assert run.exists()
    assert run.result() is None
    assert run.load(LAST) is None
    assert run.lines(METRICS) == []


def test_a_folder_holds_one_run(run):
    with pytest.raises(
        RunError, match="already holds a run: add --resume to continue it, or choose another --out"
    ):
        new_run(run.path)
    (run.path / RECIPE).unlink()  # as if killed while it was made
    assert not run.exists()
    assert new_run(run.path).exists()


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
def test_a_failing_write_leaves_the_old_file_alone(tmp_path, monkeypatch, step, error):
    path = tmp_path / "deep" / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, step, failing(getattr(os, step), 1, error))
    with pytest.raises(type(error)):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]
    monkeypatch.undo()
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, real=real, name=name: (done.append(name), real(*args))
        )
    write_atomically(tmp_path / "file", b"new")
    assert done == ["fsync", "replace", "fsync"]  # content, name, folder


DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"]


def test_a_checkpoint_reads_back(run):
    tensors = {
        name: torch.tensor([[0, 1, 2], [3, 4, 5]]).to(getattr(torch, name)) for name in DTYPES
    }
    tensors |= {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4)}
    tensors |= {"transposed": torch.arange(6.0).view(2, 3).T}
    tensors |= {"with gradient": torch.ones(2, requires_grad=True)}
    tensors |= {"nan": torch.tensor([float("nan"), float("inf")])}
    notes = {"epoch": 3, "scores": [1.5, None], "name": "ü"}
    run.save(LAST, tensors, notes)
    loaded = run.load(LAST)
    assert loaded.notes == notes
    assert loaded.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded.tensors[name].dtype == tensor.dtype
        assert torch.equal(loaded.tensors[name].nan_to_num(7.0), tensor.detach().nan_to_num(7.0))
    first = (run.path / LAST).read_bytes()
    run.save(LAST, tensors, notes)
    assert (run.path / LAST).read_bytes() == first


def test_what_was_loaded_can_be_changed_without_changing_the_file(run):
    run.save(LAST, {"x": torch.zeros(3)}, {})
    run.load(LAST).tensors["x"].add_(1)
    assert torch.equal(run.load(LAST).tensors["x"], torch.zeros(3))


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 100, "half", "no notes"])
def test_a_checkpoint_that_is_none(run, content):
    run.save(LAST, {"x": torch.zeros(100)}, {"epoch": 1})
    whole = (run.path / LAST).read_bytes()
    if content == "no notes":
        content = whole.replace(b'"softq"', b'"other"')
    (run.path / LAST).write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with pytest.raises(RunError) as error:
        run.load(LAST)
    assert str(run.path / LAST) in str(error.value)
    assert "is not a checkpoint of softq" in str(error.value)
    assert "delete it to start the run again" in str(error.value)


def test_a_line_that_was_cut_short_is_dropped(run):
    rows = [{"epoch": 1, "loss": 0.1}, {"epoch": 2, "loss": None}]
    for row in rows:
        run.append_line(METRICS, row)
    assert run.lines(METRICS) == rows
    path = run.path / METRICS
    whole = path.read_bytes()
    for length in range(len(whole)):  # wherever it was cut
        path.write_bytes(whole[:length])
        assert run.lines(METRICS) == rows[: whole[:length].count(b"\n")]


def test_json_has_no_nan(run):
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.append_line(METRICS, {"loss": float("nan")})
    assert run.lines(METRICS) == []
    assert as_json({"ü": 1}) == '{\n  "ü": 1\n}\n'


# --- the lock -----------------------------------------------------------------------------------------

BEGIN = """
import sys, time
from pathlib import Path
from softq.errors import RunError
from softq.lab.recipe import build, parse_flags
from softq.lab.run import RunFolder
from softq.lab.tasks import TASKS, train_cells

folder, seed, pause = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
write = RunFolder.write

def write_slowly(run, name, text):
    time.sleep(pause)
    write(run, name, text)

RunFolder.write = write_slowly
task = TASKS["classification"]
small = ["--inputs", "60", "--dev", "20", "--test", "20", "--batch-size", "20", "--epochs", "1"]
cells = [build(task.recipe_type, parse_flags(task.recipe_type, [*small, "--training.seed", seed]))]
print("ready", flush=True)
sys.stdin.readline()
try:
    train_cells(task, cells, folder)
except RunError as error:
    print(error)
else:
    print("trained")
"""


def test_two_processes_that_begin_at_once_leave_one_run(tmp_path):
    pipe, folder = subprocess.PIPE, tmp_path / "run"
    commands = [
        [sys.executable, "-c", BEGIN, str(folder), *options]
        for options in (("1", "0.1"), ("2", "0.7"))
    ]
    both = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for command in commands]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=120)[0].strip() for process in both]
    trained = told.index("trained")
    assert re.search("another process is training|already holds a run", told[1 - trained])
    (cell,) = RunFolder(folder).result()["cells"]
    assert cell["seed"] == trained + 1
    assert f"seed = {cell['seed']}\n" in (folder / RECIPE).read_text().partition("[training]")[2]
    assert RunFolder(folder).lines(CELLS)[0]["seed"] == cell["seed"]


def test_the_lock_clears_away_what_a_kill_left(run):
    (run.path / f".{LAST}.123.tmp").write_bytes(b"half")
    with run.locked():
        assert files(run) == {RECIPE, CELLS, ENVIRONMENT}


# --- disks that are full, folders that cannot be written ----------------------------------------------


@pytest.mark.parametrize(
    "action",
    [
        lambda run: run.write(RESULT, "{}"),
        lambda run: run.save(LAST, {"x": torch.ones(3)}, {"epoch": 2}),
        lambda run: run.append_line(METRICS, {"epoch": 2}),
    ],
)
def test_a_full_disk_leaves_the_last_checkpoint(run, monkeypatch, action):
    monkeypatch.setattr(os, "fsync", failing(os.fsync, 1))
    with pytest.raises(RunError) as error:
        action(run)
    assert (
        str(error.value)
        == f"cannot write to {run.path}: No space left on device; it has no checkpoint yet: make"
        " room and add --resume to begin again"
    )
    monkeypatch.undo()
    run.save(LAST, {"x": torch.zeros(3)}, {"epoch": 1})
    monkeypatch.setattr(os, "fsync", failing(os.fsync, 1))
    with pytest.raises(RunError) as error:
        action(run)
    assert str(error.value).endswith(
        "No space left on device; the last checkpoint in it is intact: make room and add --resume"
    )
    loaded = run.load(LAST)
    assert loaded.notes == {"epoch": 1}
    assert torch.equal(loaded.tensors["x"], torch.zeros(3))
    assert not list(run.path.glob(".*"))


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        RunError, match=r"cannot write to .*file/run: Not a directory; nothing was begun there"
    ):
        new_run(tmp_path / "file" / "run")


def test_nothing_is_pickled():
    banned = re.compile(
        r"\bpickle\b|torch\.(save|load)\b|\bjoblib\b|\bmarshal\b|\bshelve\b|allow_pickle|\bnp\.(save|load)\b"
    )
    for path in Path(softq.__file__).parent.rglob("*.py"):
        told = [
            line
            for line in path.read_text().splitlines()
            if banned.search(line) and not line.lstrip().startswith(("#", '"""'))
        ]
        if (
            path.name == "encoders.py"
        ):  # weights of others come as torch saves them: tensors are read from there, and nothing else
            assert len(told) == 1
            assert "weights_only=True" in told.pop()
        assert not told, f"{path}: {told}"


def test_a_missing_best_model(run):
    with pytest.raises(RunError, match="has no best model yet; finish its training with --resume"):
        best_models(run)
    run.save(BEST, {"x": torch.ones(1)}, {})
    assert best_models(run).keys() == {"x"}


def test_damaged_lines_are_named_and_later_ones_need_not_be_read(tmp_path):
    run = new_run(tmp_path / "run", cells=[CELL])
    rows = [{"epoch": 1}, {"epoch": 2}]
    run.rewrite_lines(METRICS, rows)
    with (run.path / METRICS).open("ab") as file:
        file.write(bytes(4) + b"\n")  # as a power cut may leave it
    assert run.lines(METRICS, 2) == rows
    with pytest.raises(RunError, match=f"line 3 of .*{METRICS} is damaged"):
        run.lines(METRICS)
    (run.path / RESULT).write_text("{")
    with pytest.raises(RunError, match=f"{RESULT} is damaged"):
        run.result()


ODD = {
    CELLS: ["[1]", '{"hash": 1}', json.dumps(CELL | {"tau": "warm"}), "9" * 5000],
    METRICS: [
        '{"epnch": 1}',
        '{"epoch": 1, "dev": "good"}',
        '{"epoch": 1, "dev": NaN}',
        "[" * 5000,
    ],
    TIMINGS: ['{"epoch": 1}', '{"epoch": 1, "seconds": []}'],
    OUTPUTS: ["{}", "null"],
}


@pytest.mark.parametrize("name", ODD)
def test_lines_that_are_json_and_wrong(run, name):
    for line in ODD[name]:
        good = run.path.joinpath(CELLS).read_text() if name == CELLS else ""
        (run.path / name).write_text(good + line + "\n")
        number = 2 if good else 1
        with pytest.raises(RunError, match=f"^line {number} of .*{name} is damaged") as error:
            run.lines(name)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 500


@pytest.mark.parametrize("text", ["[]", "{}", '{"cells": [1]}', "1" * 5000])
def test_a_result_that_is_json_and_wrong(run, text):
    (run.path / RESULT).write_text(text)
    with pytest.raises(RunError, match=f"{RESULT} is damaged"):
        run.result()
    result = {"task": "x", "metric": "x", "signature": "x", "cells": [CELL]}
    (run.path / RESULT).write_text(json.dumps(result))
    with pytest.raises(RunError, match=r"the key 'dev' is missing"):
        run.result()


def test_notes_of_a_checkpoint_that_do_not_fit(tmp_path):
    learner = Scripted([[1.0] * 6])
    go(learner, tmp_path, epochs=2)
    notes = RunFolder(tmp_path).load(LAST).notes
    wrong = [
        {"epnch": 3},
        notes | {"best_epochs": [1, 2]},
        notes | {"step": 99},
        notes | {"epoch": []},
    ]
    for one in wrong:
        RunFolder(tmp_path).save(LAST, learner.state(), one)
        with pytest.raises(RunError, match=f"the checkpoint .*{LAST} (is damaged|does not fit)"):
            go(Scripted([[1.0] * 6]), tmp_path)
