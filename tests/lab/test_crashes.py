"""Runs that are broken off at every write they make, and what TensorBoard shows of them."""

import itertools
import math
import os
import shutil

import pytest
import torch

from small_runs import CPU, Scripted, contents, go, noisy_regression, recipe
from softq.errors import RunError
from softq.lab import tensorboard
from softq.lab.run import LAST, METRICS, RESULT, TIMINGS, RunFolder
from softq.lab.tasks import TASKS, train_cells

NAN = math.nan
TASK = TASKS["classification"]

pytestmark = pytest.mark.usefixtures("one_thread")


class CrashError(BaseException):
    """The end of the process, as far as the code can tell."""


def crash_at(monkeypatch, number, late):
    """Let the process end at its n-th write: halfway through it, or (``late``) right after it."""
    calls, replace, append = itertools.count(1), os.replace, RunFolder.append_line

    def broken_replace(source, target):
        crash = next(calls) == number
        if crash and not late:
            shutil.copy(
                source, target.with_name(f".{target.name}.1.tmp")
            )  # a process that is killed clears nothing away
        else:
            replace(source, target)
        if crash:
            raise CrashError

    def broken_append(self, name, row):
        crash = next(calls) == number
        size = path.stat().st_size if (path := self.path / name).exists() else 0
        append(self, name, row)
        if crash and not late:
            os.truncate(path, (size + path.stat().st_size) // 2)
        if crash:
            raise CrashError

    monkeypatch.setattr(os, "replace", broken_replace)
    monkeypatch.setattr(RunFolder, "append_line", broken_append)
    monkeypatch.setattr(
        os, "fsync", lambda handle: None
    )  # which takes long, and changes nothing that a process can see


def several_cells(out):
    scaled = ["sqdml", "--tau", 300, "--temperature-scaled"]
    objectives = (["ml"], ["raml", "--tau", 1, "--seed", 1], scaled)
    flags = ["--patience", 1, "--checkpoint-every", 1, "--epochs", 4, "--objective"]
    cells = [recipe(*flags, *objective) for objective in objectives]
    train_cells(TASK, cells, out, resume=True, workers=CPU)


def scripted(out):
    """A cell that was best before the checkpoint, one that becomes better after it."""
    go(Scripted([[5.0, 1.0, 1.0], [1.0, 2.0, 3.0]]), out, epochs=3)


def one_cell(out):
    train_cells(TASK, [recipe("--no-average", "--inputs", 250)], out, resume=True, workers=CPU)


def adam(out):
    go(noisy_regression(average=True), out, epochs=2, checkpoint_every=3)


def plain_sgd(out):
    learner = noisy_regression(average=False, optimizer=torch.optim.SGD)
    go(learner, out, epochs=2, checkpoint_every=1)


def broken_off_at_every_write(job, folder):
    """The folders of a job that crashed at one write, each at another, and then went on to its end."""
    for late in (False, True):
        for number in itertools.count(1):
            out = folder / f"{late}-{number}"
            with pytest.MonkeyPatch.context() as patch:
                crash_at(patch, number, late)
                try:
                    job(out)
                    break
                except CrashError:
                    pass
            job(out)
            yield out


@pytest.fixture
def no_events(monkeypatch):
    monkeypatch.setattr(tensorboard.importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_events")
@pytest.mark.parametrize("job", [scripted, several_cells, one_cell, adam, plain_sgd])
def test_a_run_that_is_broken_off_at_any_write_ends_the_same(tmp_path, job):
    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for out in broken_off_at_every_write(job, tmp_path):
        writes += 1
        assert contents(out) == whole
        assert not list(out.glob(".*"))
        assert len(RunFolder(out).lines(TIMINGS)) == len(RunFolder(out).lines(METRICS))
    assert writes >= 2 * (
        3 + 2 + 3 * len(RunFolder(tmp_path / "whole").lines(METRICS)) + 1
    )  # more with checkpoints and better models


@pytest.mark.usefixtures("no_events")
@pytest.mark.parametrize("job", [several_cells, adam])
def test_a_run_that_is_broken_off_again_and_again_ends_the_same(tmp_path, job):
    job(tmp_path / "whole")
    crashes = 0
    for number in range(
        7, 12
    ):  # six writes may lie between a checkpoint and the next, with those that cut the lines to size
        out = tmp_path / str(number)
        while not (out / RESULT).exists():
            with pytest.MonkeyPatch.context() as patch:
                crash_at(patch, number, late=number % 2 == 0)
                try:
                    job(out)
                except CrashError:
                    crashes += 1
            assert crashes < 100, "it makes no progress"
        assert contents(out) == contents(tmp_path / "whole")
    assert crashes >= 8


@pytest.mark.usefixtures("no_events")
def test_a_best_model_that_no_checkpoint_knows_is_forgotten(tmp_path, monkeypatch):
    save = RunFolder.save

    def broken_save(self, name, tensors, notes):
        if name == LAST and notes["epoch"] == 2:  # its best model is written by then
            raise CrashError
        save(self, name, tensors, notes)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", broken_save)
        with pytest.raises(CrashError):
            go(Scripted([[1.0, 9.0, 0.0]]), tmp_path, epochs=3)
    other = Scripted([[1.0, 0.5, 0.5]])  # as if on another device: what was best is not again
    outcome, _ = go(other, tmp_path, epochs=3)
    assert (outcome["epochs"], outcome["dev"]) == ([1], [1.0])
    assert other.kept.tolist() == [4.0]  # the steps of the first epoch


@pytest.mark.usefixtures("no_events")
def test_a_checkpoint_of_another_kind_of_training_is_refused(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 12, late=True)
        with pytest.raises(CrashError):
            one_cell(tmp_path)
    with pytest.raises(
        RunError,
        match="written by another kind of training, such as one process instead of several",
    ):
        go(noisy_regression(average=True), tmp_path)


# --- TensorBoard --------------------------------------------------------------------------------------


def read_events(folder):
    """Curves by name, as TensorBoard shows them."""
    reader = (
        pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        .EventAccumulator(str(folder))
        .Reload()
    )
    return {
        name: [(event.step, event.value) for event in reader.Scalars(name)]
        for name in reader.Tags()["scalars"]
    }


@pytest.mark.parametrize(
    "dev", [[[1.0, 3.0, 2.0, 4.0]], [[1.0, 3.0, 2.0, 4.0], [4.0, 1.0, 5.0, 0.5]]]
)
def test_tensorboard_shows_the_metrics_once(tmp_path, dev):
    pytest.importorskip("tensorboard")
    for number in (
        9,
        10,
        10,
    ):  # between the events of an epoch and its checkpoint: a run that goes on hides those events
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number, late=False)
            with pytest.raises(CrashError):
                go(Scripted(dev), tmp_path, epochs=4)
    _, rows = go(Scripted(dev), tmp_path, epochs=4)
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 4
    curves = read_events(tmp_path)
    for name in ("loss", "dev"):
        for cell in range(len(dev)):
            values = [row[name] if len(dev) == 1 else row[name][cell] for row in rows]
            curve = curves[name if len(dev) == 1 else f"{name}/cell {cell}"]
            assert curve == [
                (row["epoch"], pytest.approx(value))
                for row, value in zip(rows, values, strict=True)
            ]
    assert len(curves) == 2 * len(dev)


def test_tensorboard_of_many_cells(tmp_path):
    pytest.importorskip("tensorboard")
    count = tensorboard.MOST_CURVES + 2
    writer = tensorboard.EventWriter(tmp_path, [str(number) for number in range(count)], 0)
    writer.write(1, {"dev": [NAN, *(float(number) for number in range(1, count))]})
    writer.write(2, {"dev": [NAN] * count})
    assert read_events(tmp_path) == {
        "dev/mean": [(1, pytest.approx(sum(range(1, count)) / (count - 1)))],
        "dev/least": [(1, 1.0)],
        "dev/most": [(1, count - 1.0)],
    }


@pytest.mark.usefixtures("no_events")
def test_no_events_without_tensorboard(tmp_path):
    go(Scripted([[1.0] * 6]), tmp_path)
    assert not list(tmp_path.glob("events*"))
