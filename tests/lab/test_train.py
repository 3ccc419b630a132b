"""The loop: what it keeps, when it stops and what it refuses, and the learners it runs."""

import contextlib
import itertools
import math
import signal
import sys
import threading

import pytest
import torch
from torch import nn

from small_runs import CPU, Scripted, contents, go, new_run, noisy_regression, recipe
from softq.errors import DependencyError, RunError, StoppedError
from softq.lab import loop
from softq.lab.loop import Evaluation, Watcher, train
from softq.lab.processes import AcceleratedWorkers, Interrupts, find_device, find_workers
from softq.lab.recipe import Training
from softq.lab.run import BEST, LAST, METRICS, RESULT, TIMINGS, RunFolder
from softq.lab.tasks import TASKS, train_cells
from softq.lab.tasks.classification import make_data, visiting_order
from softq.lab.torch_learner import TorchLearner, generator_for

NAN = math.nan
TASK = TASKS["classification"]

pytestmark = pytest.mark.usefixtures("one_thread")


# --- keeping and stopping -----------------------------------------------------------------------------


def test_the_best_epoch_is_kept_and_judged(tmp_path):
    learner = Scripted([[1.0, 3.0, 2.0, 3.0, 0.0, 1.0]], test=[0.25, 0.75])
    outcome, rows = go(learner, tmp_path)
    assert outcome == {"epochs": [2], "dev": [3.0], "measures": [{}]}  # the first of two equal ones
    assert RunFolder(tmp_path).test_counts().model(0).tolist() == [[0.25, 1.0], [0.75, 1.0]]
    assert [row["dev"] for row in rows] == learner.dev[0]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows] == [1 / (4 * epoch) for epoch in range(1, 7)]
    best = RunFolder(tmp_path).load(BEST)
    assert best.tensors["weights"].tolist() == [2 * learner.steps]
    assert best.notes == {"epochs": [2], "dev": [3.0]}
    assert [
        row["examples_per_second"] * row["seconds"] for row in RunFolder(tmp_path).lines(TIMINGS)
    ] == pytest.approx([40] * 6)


@pytest.mark.parametrize(
    ("dev", "patience", "burn_in", "epochs", "best"),
    [
        ([1, 2, 0, 0, 9, 9], 2, 0, 4, 2),
        ([1, 2, 0, 3, 0, 0], 2, 0, 6, 4),
        ([1, 2, 2, 9, 9, 9], 1, 0, 3, 2),  # as good is not better
        ([9, 1, 2, 1, 1, 9], 2, 1, 5, 3),  # what comes first does not count
        ([9, 9, 1, 0, 0, 9], 2, 2, 5, 3),
        ([9, 9, 9, 9, 9, 1], 2, 99, 6, 6),  # the last one always does
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
    assert [row["dev"] for row in rows] == [
        [1, 3, 1], [2, 2, 4], [3, 1, 3], [4, None, 2], [5, None, None], [6, None, None]
    ]  # fmt: skip
    for row in rows:
        assert [value is None for value in row["loss"]] == [value is None for value in row["dev"]]
    assert learner.weights.tolist() == [24, 12, 16]  # steps taken
    assert learner.kept.tolist() == [24, 4, 8]


@pytest.mark.parametrize("dev", [[[NAN] * 6], [[NAN] * 6, [1.0] * 6]])
def test_a_model_without_a_score_is_no_result(tmp_path, dev):
    with pytest.raises(
        RunError, match="none of its development scores is a number; look at metrics"
    ):
        go(Scripted(dev), tmp_path)
    assert not (tmp_path / RESULT).exists()


class Recorder(Watcher):
    def begin(self, examples, done):
        self.total, self.done, self.seen, self.status = examples, done, 0, ""

    def advance(self, examples, status):
        self.seen, self.status = self.seen + examples, status


def test_who_watches_sees_every_example(tmp_path):
    watcher = Recorder()
    go(Scripted([[1.0] * 6]), tmp_path, watcher)
    assert (watcher.total, watcher.done, watcher.seen) == (240, 0, 240)
    assert watcher.status == "scoring the best model"


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
    assert f"; add --resume to continue {tmp_path / 'broken'}" in str(stop.value)
    assert learner.place == at + 1
    notes = RunFolder(tmp_path / "broken").load(LAST).notes
    assert (notes["epoch"], notes["step"]) in [(epoch, step), (epoch - 1, learner.steps)]
    watcher = Recorder()
    assert go(Signalled(-1, number), tmp_path / "broken", watcher) == go(
        Signalled(-1, number), tmp_path / "whole"
    )
    assert contents(tmp_path / "broken") == contents(tmp_path / "whole")
    assert (watcher.done, watcher.done + watcher.seen) == (10 * (at + 1), watcher.total)


def test_a_second_signal_ends_it_at_once(tmp_path):
    learner = Signalled(5, signal.SIGINT, times=2)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell lets what it starts in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            go(learner, tmp_path)
        assert learner.place == 5
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


class Late(Scripted):
    """Sends its own process a signal while its last epoch is scored."""

    def evaluate(self, active):
        if self.place == 6 * self.steps:
            signal.raise_signal(signal.SIGTERM)
        return super().evaluate(active)


def test_a_stop_after_the_last_epoch(tmp_path):
    dev = [[1.0, 3.0, 2.0, 4.0, 0.0, 1.0]]
    with pytest.raises(StoppedError, match="stopped after epoch 6 of 6; add --resume"):
        go(Late(dev), tmp_path / "broken")
    assert go(Scripted(dev), tmp_path / "broken") == go(Scripted(dev), tmp_path / "whole")


def test_a_signal_that_is_ignored_stays_ignored(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does in the background
    try:
        outcome, _ = go(Signalled(5, signal.SIGINT), tmp_path)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcome["epochs"] == [4]


def test_a_signal_that_a_library_loses_before_training_is_remembered(tmp_path):
    run, learner = new_run(tmp_path), Scripted([[1.0] * 6])
    with run.locked(), Interrupts(CPU) as interrupts:
        with contextlib.suppress(KeyboardInterrupt):  # as in a callback of numba
            signal.raise_signal(signal.SIGINT)
        options = {"workers": CPU, "interrupts": interrupts, "cell_names": ["x"]}
        with pytest.raises(StoppedError, match="stopped before epoch 1"):
            train(learner, run, Training(epochs=6), **options)
    assert learner.place == 0


class Slow(Scripted):
    """Its clock advances by as many seconds in each step."""

    steps, examples = 400, 4000

    def __init__(self, clock, seconds):
        super().__init__([[1.0] * 6])
        self.clock, self.seconds, self.calls = clock, seconds, []

    def train(self, epoch, first, last, active):
        self.clock[0] += (last - first) * self.seconds
        self.calls.append(last - first)
        super().train(epoch, first, last, active)


def test_progress_is_reported_every_few_seconds_and_long_work_is_announced(tmp_path, monkeypatch):
    clock, notes = [0.0], []
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    watcher = Recorder()
    watcher.note = notes.append
    quick, slow = Slow(clock, 1e-3), Slow(clock, 0.5)
    go(quick, tmp_path / "quick", watcher)
    assert (max(quick.calls), notes) == (20, [])  # twenty looks in an epoch
    go(slow, tmp_path / "slow", watcher)
    assert (max(slow.calls), notes) == (4, [])  # two seconds
    go(Slow(clock, 20.0), tmp_path / "long", watcher)
    assert len(notes) == 1
    assert "training takes about 13 hours more on this CPU" in notes[0]


def test_training_in_a_thread(tmp_path):
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(go(Scripted([[1.0] * 6]), tmp_path)))
    thread.start()
    thread.join()
    assert outcomes[0][0]["dev"] == [1.0]


# --- a loss that is not finite ------------------------------------------------------------------------


def test_a_grid_stops_at_a_loss_that_is_not_finite(tmp_path):
    wild = recipe("--learning-rate", 1e30, "--checkpoint-every", 1)
    kept = []
    for _ in range(2):  # and again, if it is resumed
        with pytest.raises(RunError) as error:
            train_cells(TASK, [wild], tmp_path / "run", resume=True, workers=CPU)
        assert (
            "the loss of ml seed=0 is not finite in epoch 1, step 1; try a smaller learning_rate"
            in str(error.value)
        )
        assert (
            f"training stopped, the batch is in {tmp_path / 'run' / 'nonfinite.safetensors'}"
            in str(error.value)
        )
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
    before = {
        name: value.clone()
        for name, value in learner.state().items()
        if "running" not in name and "batches" not in name
    }
    with pytest.raises(RunError, match="the loss of epoch 1, step 0 is inf; training stopped"):
        go(learner, tmp_path)
    assert all(
        torch.equal(learner.state()[name], value) for name, value in before.items()
    )  # nothing was trained on it
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
        evaluate_best=lambda: Evaluation({}, [{"slope": float(model.slope)}]),
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
            slopes = [2 * error * float(inputs[i]) for error, i in zip(errors, batch, strict=True)]
            slope -= 0.1 * sum(slopes) / len(batch)
            mean += slope / 3
        judged.append(mean if average else slope)
        losses.append(loss / 25)
    assert dev == pytest.approx(judged)
    assert [row["loss"] for row in rows] == pytest.approx(losses)
    best = min(range(3), key=lambda epoch: abs(judged[epoch]))
    assert outcome["epochs"] == [best + 1]
    assert outcome["measures"][0]["slope"] == pytest.approx(judged[best])


def test_places_have_generators_of_their_own():
    drawn = {
        tuple(torch.randint(2**40, (2,), generator=generator_for(*place)).tolist())
        for place in itertools.product(range(-3, 4), repeat=3)
    }
    assert len(drawn) == 7**3
    assert generator_for(1, 2).initial_seed() == generator_for(1, 2).initial_seed()


# --- processes ----------------------------------------------------------------------------------------


def test_one_process_through_accelerate(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    try:
        workers = AcceleratedWorkers("cpu")
        found = (workers.rank, workers.size, workers.is_main, workers.device.type)
        assert found == (0, 1, True, "cpu")
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
    with pytest.raises(
        DependencyError,
        match=r"several processes needs Accelerate: pip install 'softq\[distributed\]'",
    ):
        find_workers()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    assert find_device("auto").type == "cpu"
    with pytest.raises(
        RunError,
        match=r"the device is to be a GPU \(cuda\), and torch finds none: choose auto or cpu",
    ):
        find_device("cuda")
