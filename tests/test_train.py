"""The loop: what it keeps and when it stops, broken off at every write it makes, and the learners it runs."""

import itertools
import math
import os
import shutil
import signal
import sys
import threading

import pytest
import torch
from torch import nn

from small_runs import CPU, Scripted, contents, noisy_regression, recipe
from softq.errors import DependencyError, RunError
from softq.recipe import Training
from softq.run import BEST, LAST, METRICS, RESULT, TIMINGS, RunFolder
from softq.tasks import TASKS, train_cells
from softq.tasks.classification import make_data, visiting_order
from softq.train import StoppedError, TorchLearner, events, find_device, find_workers, generator_for, train
from softq.train.workers import AcceleratedWorkers

NAN = math.nan
TASK = TASKS["classification"]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """On tensors as small as these, a second thread only costs, and where others are at work it costs much."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def go(learner, folder, watcher=None, workers=CPU, **training):
    """Train a learner into a folder, new or not; the outcome and the rows of its metrics."""
    run = RunFolder(folder)
    if not run.exists():
        run = RunFolder.create(folder, "", [], "cpu")
    names = [f"cell {number}" for number in range(learner.cells)]
    options = {"epochs": 6, "patience": 0} | training

    def finish(outcome):
        return outcome._asdict()

    with run.locked():
        outcome = train(learner, run, Training(**options), workers=workers, cell_names=names, finish=finish, watcher=watcher)
    return outcome, run.lines(METRICS)


# --- keeping and stopping -----------------------------------------------------------------------------


def test_the_best_epoch_is_kept_and_judged(tmp_path):
    learner = Scripted([[1.0, 3.0, 2.0, 3.0, 0.0, 1.0]], test=0.5)
    outcome, rows = go(learner, tmp_path)
    assert outcome == {"epochs": [2], "dev": [3.0], "test": [{"test": 0.5}]}  # the first of two equal ones
    assert [row["dev"] for row in rows] == learner.dev[0]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == [1 / (4 * epoch) for epoch in range(1, 7)]
    best = RunFolder(tmp_path).load(BEST)
    assert best.tensors["weights"].tolist() == [2 * learner.steps]
    assert best.notes == {"epochs": [2], "dev": [3.0]}
    assert [row["examples_per_second"] * row["seconds"] for row in RunFolder(tmp_path).lines(TIMINGS)] == pytest.approx([40] * 6)


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = go(Scripted([[1.0] * 6]), tmp_path)
    again = Scripted([[NAN] * 6])
    assert go(again, tmp_path) == first
    assert again.place == 0


@pytest.mark.parametrize(
    ("dev", "patience", "burn_in", "epochs", "best"),
    [
        ([1, 2, 0, 0, 9, 9], 2, 0, 4, 2),
        ([1, 2, 0, 3, 0, 0], 2, 0, 6, 4),
        ([1, 2, 2, 9, 9, 9], 1, 0, 3, 2),  # as good is not better
        ([9, 1, 2, 1, 1, 9], 2, 1, 5, 3),  # what comes first does not count
        ([9, 9, 1, 0, 0, 9], 2, 2, 5, 3),
        ([1, NAN, NAN, 9, 9, 9], 2, 0, 3, 1),
        ([NAN, 1, 0, 0, 9, 9], 2, 0, 4, 2),
        ([1, 0, 0, 0, 0, 2], 0, 0, 6, 6),  # never stops early
    ],
)
def test_patience(tmp_path, dev, patience, burn_in, epochs, best):
    outcome, rows = go(Scripted([dev]), tmp_path, patience=patience, burn_in=burn_in)
    assert (len(rows), outcome["epochs"], outcome["dev"]) == (epochs, [best], [dev[best - 1]])


def test_cells_stop_one_by_one(tmp_path):
    dev = [[1, 2, 3, 4, 5, 6], [3, 2, 1, 9, 9, 9], [1, 4, 3, 2, 9, 9]]
    learner = Scripted(dev)
    outcome, rows = go(learner, tmp_path, patience=2)
    assert (outcome["epochs"], outcome["dev"]) == ([6, 1, 2], [6, 3, 4])
    assert [row["dev"] for row in rows] == [[1, 3, 1], [2, 2, 4], [3, 1, 3], [4, None, 2], [5, None, None], [6, None, None]]
    assert [[value is None for value in row["loss"]] for row in rows] == [[value is None for value in row["dev"]] for row in rows]
    assert learner.weights.tolist() == [24, 12, 16]  # steps taken
    assert learner.kept.tolist() == [24, 4, 8]


@pytest.mark.parametrize("dev", [[[NAN] * 6], [[NAN] * 6, [1.0] * 6]])
def test_a_model_without_a_score_is_no_result(tmp_path, dev):
    with pytest.raises(RunError, match="no development score of it is a number; look at metrics"):
        go(Scripted(dev), tmp_path)
    assert not (tmp_path / RESULT).exists()


class Recorder:
    def begin(self, examples, done):
        self.total, self.done, self.seen, self.status = examples, done, 0, ""

    def advance(self, examples, status):
        self.seen, self.status = self.seen + examples, status


def test_who_watches_sees_every_example(tmp_path):
    watcher = Recorder()
    go(Scripted([[1.0] * 6]), tmp_path, watcher)
    assert vars(watcher) == {"total": 240, "done": 0, "seen": 240, "status": "epoch 6/6"}


# --- signals ------------------------------------------------------------------------------------------


class Signalled(Scripted):
    """Sends its own process a signal at a step."""

    def __init__(self, at, number, times=1):
        super().__init__([[1.0, 3.0, 2.0, 4.0, 0.0, 1.0]])
        self._at, self._number, self._times = at, number, times

    def train(self, epoch, first, last, active):
        if epoch * self.steps + first == self._at:
            for _ in range(self._times):
                signal.raise_signal(self._number)
        super().train(epoch, first, last, active)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [0, 5, 7, 23])
def test_a_signal_stops_with_a_checkpoint(tmp_path, number, at):
    before = [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)]
    learner = Signalled(at, number)
    with pytest.raises(StoppedError) as stop:
        go(learner, tmp_path / "broken")
    epoch, step = divmod(at + 1, learner.steps)
    assert [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)] == before
    assert f"{tmp_path / 'broken'} can be gone on with: add --resume" in str(stop.value)
    assert learner.place == at + 1
    notes = RunFolder(tmp_path / "broken").load(LAST).notes
    assert (notes["epoch"], notes["step"]) in [(epoch, step), (epoch - 1, learner.steps)]
    watcher = Recorder()
    assert go(Signalled(-1, number), tmp_path / "broken", watcher) == go(Signalled(-1, number), tmp_path / "whole")
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert (watcher.done, watcher.done + watcher.seen) == (10 * (at + 1), watcher.total)


def test_a_second_signal_ends_it_at_once(tmp_path):
    learner = Signalled(5, signal.SIGINT, times=2)
    with pytest.raises(KeyboardInterrupt):
        go(learner, tmp_path)
    assert learner.place == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_in_a_thread(tmp_path):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(go(Scripted([[1.0] * 6]), tmp_path)))
    thread.start()
    thread.join()
    assert outcomes[0][0]["dev"] == [1.0]


# --- broken off at every write ------------------------------------------------------------------------


class CrashError(BaseException):
    """The end of the process, as far as the code can tell."""


def crash_at(monkeypatch, number, late):
    """Let the process end at its n-th write: halfway through it, or (``late``) right after it."""
    calls, replace, append = itertools.count(1), os.replace, RunFolder.append_line

    def broken_replace(source, target):
        crash = next(calls) == number
        if crash and not late:
            shutil.copy(source, target.with_name(f".{target.name}.1.tmp"))  # a process that is killed clears nothing away
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
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # which takes long, and changes nothing that a process can see


def several_cells(out):
    objectives = (["ml"], ["raml", "--tau", 1, "--seed", 1], ["sqdml", "--tau", 300, "--temperature-scaled"])
    flags = ["--patience", 1, "--checkpoint-every", 1, "--epochs", 4, "--objective"]
    train_cells(TASK, [recipe(*flags, *objective) for objective in objectives], out, resume=True, workers=CPU)


def one_cell(out):
    train_cells(TASK, [recipe("--no-average", "--inputs", 250)], out, resume=True, workers=CPU)


def adam(out):
    go(noisy_regression(average=True), out, epochs=2, checkpoint_every=3)


def plain_sgd(out):
    go(noisy_regression(average=False, optimizer=torch.optim.SGD), out, epochs=2, checkpoint_every=1)


@pytest.fixture
def no_events(monkeypatch):
    monkeypatch.setattr(events.importlib.util, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_events")
@pytest.mark.parametrize("job", [several_cells, one_cell, adam, plain_sgd])
def test_a_run_that_is_broken_off_at_any_write_ends_the_same(tmp_path, job):
    job(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    writes = 0
    for late in (False, True):
        for number in itertools.count(1):
            out = tmp_path / f"{late}-{number}"
            with pytest.MonkeyPatch.context() as patch:
                crash_at(patch, number, late)
                try:
                    job(out)
                    break
                except CrashError:
                    writes += 1
            job(out)
            assert contents(out) == whole
            assert not list(out.glob(".*"))
            assert len(RunFolder(out).lines(TIMINGS)) == len(RunFolder(out).lines(METRICS))
    assert writes >= 2 * (3 + 2 + 3 * len(RunFolder(tmp_path / "whole").lines(METRICS)) + 1)  # more with checkpoints and better models


@pytest.mark.usefixtures("no_events")
@pytest.mark.parametrize("job", [several_cells, adam])
def test_a_run_that_is_broken_off_again_and_again_ends_the_same(tmp_path, job):
    job(tmp_path / "whole")
    crashes = 0
    for number in range(7, 12):  # six writes may lie between a checkpoint and the next, with those that cut the lines to size
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


# --- a loss that is not finite ------------------------------------------------------------------------


def test_a_grid_stops_at_a_loss_that_is_not_finite(tmp_path):
    wild = recipe("--learning-rate", 1e30, "--checkpoint-every", 1)
    kept = []
    for _ in range(2):  # and again, if it is resumed
        with pytest.raises(RunError) as error:
            train_cells(TASK, [wild], tmp_path / "run", resume=True, workers=CPU)
        assert "the loss of ml seed=0 is not finite in epoch 1, step 1; try a smaller learning_rate" in str(error.value)
        assert f"training stopped, the batch is in {tmp_path / 'run' / 'nonfinite.safetensors'}" in str(error.value)
        run = RunFolder(tmp_path / "run")
        batch = run.load("nonfinite.safetensors")
        visited = visiting_order(wild.data, 0)[100:200]
        assert torch.equal(batch.tensors["inputs"], make_data(wild.data).train.inputs[visited])
        last = run.load(LAST)
        assert (last.notes["epoch"], last.notes["step"]) == (0, 1)
        assert all(bool(tensor.isfinite().all()) for tensor in last.tensors.values())
        kept.append((run.path / LAST).read_bytes())
        assert not (run.path / METRICS).read_text()
        assert run.result() is None
    assert kept[0] == kept[1]


def test_a_module_stops_at_a_loss_that_is_not_finite(tmp_path):
    learner = noisy_regression(average=False, scale=math.inf)
    before = {name: value.clone() for name, value in learner.state().items() if "running" not in name and "batches" not in name}
    with pytest.raises(RunError, match="the loss of epoch 1, step 0 is inf; training stopped"):
        go(learner, tmp_path)
    assert all(torch.equal(learner.state()[name], value) for name, value in before.items())  # nothing was trained on it
    saved = RunFolder(tmp_path).load("nonfinite.safetensors").tensors["examples"]
    assert torch.equal(saved, torch.randperm(50, generator=generator_for(1, 0))[:16])


# --- a module against torch's own loop ----------------------------------------------------------------


@pytest.mark.parametrize("average", [False, True])
def test_a_module_trains_as_in_a_loop_by_hand(tmp_path, average):
    inputs, outputs = torch.randn(2, 25, generator=generator_for(5)).double()
    dev = []

    class Line(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

        def forward(self, examples):
            return (self.slope * inputs[examples] - outputs[examples]) ** 2

    def score():
        dev.append(float(model.slope))
        return -abs(dev[-1])  # the first epoch is the best

    model = Line()
    learner = TorchLearner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        examples=25,
        batch_size=10,
        order=lambda epoch: torch.arange(25).roll(epoch),
        seed=0,
        average=average,
        evaluate=score,
        test=lambda: {"test": float(model.slope)},
        workers=CPU,
    )
    noise = torch.get_rng_state()
    outcome, rows = go(learner, tmp_path, epochs=3)
    assert torch.equal(torch.get_rng_state(), noise)  # the caller's randomness is left alone
    slope, judged, losses = 0.0, [], []
    for epoch in range(3):
        order = [(number - epoch) % 25 for number in range(25)]
        loss, mean = 0.0, 0.0
        for batch in (order[:10], order[10:20], order[20:]):
            errors = [slope * float(inputs[i]) - float(outputs[i]) for i in batch]
            loss += sum(error**2 for error in errors)
            slope -= 0.1 * sum(2 * error * float(inputs[i]) for error, i in zip(errors, batch, strict=True)) / len(batch)
            mean += slope / 3
        judged.append(mean if average else slope)
        losses.append(loss / 25)
    assert dev == pytest.approx(judged)
    assert [row["loss"] for row in rows] == pytest.approx(losses)
    best = min(range(3), key=lambda epoch: abs(judged[epoch]))
    assert outcome["epochs"] == [best + 1]
    assert outcome["test"][0]["test"] == pytest.approx(judged[best])


def test_places_have_generators_of_their_own():
    drawn = {
        tuple(torch.randint(2**40, (2,), generator=generator_for(*place)).tolist()) for place in itertools.product(range(-3, 4), repeat=3)
    }
    assert len(drawn) == 7**3
    assert generator_for(1, 2).initial_seed() == generator_for(1, 2).initial_seed()


# --- processes ----------------------------------------------------------------------------------------


def test_one_process_through_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    try:
        workers = AcceleratedWorkers("cpu")
        assert (workers.rank, workers.size, workers.is_main, workers.device.type) == (0, 1, True, "cpu")
        assert workers.any(True)
        assert not workers.any(False)
        learner = noisy_regression(average=True, workers=workers)
        go(learner, tmp_path / "accelerated", workers=workers, epochs=2)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    go(noisy_regression(average=True), tmp_path / "plain", epochs=2)
    assert contents(tmp_path / "accelerated") == contents(tmp_path / "plain")


def test_several_processes_need_accelerate(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(DependencyError, match=r"several processes needs Accelerate: pip install 'softq\[distributed\]'"):
        find_workers()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    assert find_device("auto").type == "cpu"
    with pytest.raises(RunError, match=r'the recipe asks for a GPU .* use device = "auto" or "cpu"'):
        find_device("cuda")


# --- TensorBoard --------------------------------------------------------------------------------------


def read_events(folder):
    """Curves by name, as TensorBoard shows them."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(str(folder)).Reload()
    return {name: [(event.step, event.value) for event in reader.Scalars(name)] for name in reader.Tags()["scalars"]}


@pytest.mark.parametrize("dev", [[[1.0, 3.0, 2.0, 4.0]], [[1.0, 3.0, 2.0, 4.0], [4.0, 1.0, 5.0, 0.5]]])
def test_tensorboard_shows_the_metrics_once(tmp_path, dev):
    pytest.importorskip("tensorboard")
    for number in (9, 10, 10):  # between the events of an epoch and its checkpoint: a run that goes on hides those events
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
            assert curve == [(row["epoch"], pytest.approx(value)) for row, value in zip(rows, values, strict=True)]
    assert len(curves) == 2 * len(dev)


def test_tensorboard_of_many_cells(tmp_path):
    pytest.importorskip("tensorboard")
    count = events.MOST_CURVES + 2
    writer = events.EventWriter(tmp_path, [str(number) for number in range(count)], 0)
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
