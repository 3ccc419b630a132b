"""Several runs of a sweep at a time: the same bytes, and nobody left behind, whatever happens."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import warnings

import pytest

from over_task import Alone, OverRecipe, OverTask
from small_runs import contents, recipe, single_thread, wait_for
from softq.errors import DependencyError, RecipeError, RunError, StoppedError
from softq.lab.loop import Watcher
from softq.lab.run import CELLS, ENVIRONMENT, LAST, METRICS, RESULT, RunFolder
from softq.lab.sweep import RUNS, SUMMARY, SWEEP, Grid, expand, folder, run_sweep
from softq.lab.sweep.engine import STOP, Run, train_run
from softq.lab.tasks import TASKS

FOUR = Grid("g", ("ml", "raml"), "2", "0:1")


class Seen(Watcher):
    """A maker of watchers that writes down what it is told."""

    def __init__(self):
        self.told = []

    def __call__(self, label, unit="examples"):
        self.told.append(label)
        return self

    def begin(self, examples, done):
        self.told.append((examples, done))

    def advance(self, examples, status):
        self.told.append((examples, status))


def run_contents(out):
    return {
        path.name: contents(path) | {CELLS: (path / CELLS).read_bytes()}
        for path in sorted((out / RUNS).iterdir())
    }


def test_jobs_change_no_byte(tmp_path):
    grid = Grid("g", ("ml", "raml"), "2", "0:1", over=("hidden=4;8,8",))
    seen = Seen()
    with single_thread():
        one = run_sweep(Alone(), recipe(), [grid], tmp_path / "one")
        two = run_sweep(Alone(), recipe(), [grid], tmp_path / "two", jobs=2, watch=seen)
    assert run_contents(tmp_path / "one") == run_contents(tmp_path / "two")
    for name in (SWEEP, CELLS, SUMMARY):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert one.choices == two.choices
    label, begun, *moves = seen.told
    assert (label, begun) == ("8 models, 2 at a time", (8, 0))
    assert sum(models for models, _ in moves) == 8
    assert any("0 of 8, ml hidden=4 seed 0" in status for _, status in moves)  # what is under way
    assert moves[-1][1] == "8 of 8"
    environments = [json.loads(path.read_text()) for path in tmp_path.rglob(ENVIRONMENT)]
    assert all(environment == environments[0] for environment in environments)  # the arguments too


def test_jobs_are_for_tasks_of_single_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "train_runs", None)
    with single_thread():
        run_sweep(TASKS["classification"], recipe(), [FOUR], tmp_path / "together", jobs=2)
    run_sweep(
        OverTask(), OverRecipe(), [Grid(objective=("ml",))], tmp_path / "a single run", jobs=2
    )
    with pytest.raises(RecipeError, match="jobs must be a whole number from 1, got 0"):
        run_sweep(OverTask(), OverRecipe(), [FOUR], tmp_path / "none", jobs=0)


def test_jobs_need_a_task_with_a_name(tmp_path):
    class Hidden(OverTask):
        pass

    with pytest.raises(
        RunError,
        match=(
            r"a task that other processes can import, got"
            r" test_jobs_need_a_task_with_a_name\.<locals>\.Hidden"
        ),
    ):
        run_sweep(Hidden(), OverRecipe(), [FOUR], tmp_path, jobs=2)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    run_sweep(OverTask(), OverRecipe(), [FOUR], out)
    return run_contents(out)


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("refuse", "raml τ=2 seed 0: no more (run RUNS/raml-tau2-seed0-"),
        ("fault", "raml τ=2 seed 0: KeyError: 'a slip' (run RUNS/raml-tau2-seed0-"),
        (
            "die",
            "a process of the sweep ended without a word, killed or out of memory; under way were ",
        ),
    ],
)
def test_an_error_in_one_of_several(tmp_path, monkeypatch, unbroken, behaviour, text):
    monkeypatch.setenv("BEHAVIOUR", behaviour)
    grid = dataclasses.replace(FOUR, objective=("raml", "ml"))
    with pytest.raises(RunError) as caught:
        run_sweep(OverTask(), OverRecipe(), [grid], tmp_path, jobs=2)
    assert text.replace("RUNS", str(tmp_path / RUNS)) in str(caught.value)
    (broken,) = (tmp_path / RUNS).glob("raml-tau2-seed0-*")
    assert RunFolder(broken).load(LAST).notes["epoch"] == 2
    monkeypatch.delenv("BEHAVIOUR")
    run_sweep(OverTask(), OverRecipe(), [grid], tmp_path, resume=True)
    assert run_contents(tmp_path) == unbroken


def test_what_a_process_is_told(tmp_path, monkeypatch, capfd):
    (cell, _), *_ = expand(OverTask(), OverRecipe(), [Grid(objective=("raml",), tau="2")]).values()
    stop = tmp_path / STOP
    run = Run(tmp_path / "run", [cell], {}, False)

    def start():
        return train_run(OverTask(), run, stop, ["softq"])

    monkeypatch.setenv("BEHAVIOUR", "fault")
    with pytest.raises(KeyError):
        start()
    assert "in train" in capfd.readouterr().err  # a fault has a traceback
    monkeypatch.setenv("BEHAVIOUR", "signal")
    with pytest.raises(StoppedError, match=r"stopped in epoch 3 of 6 at step 1"):
        start()
    monkeypatch.delenv("BEHAVIOUR")
    stop.touch()
    with pytest.raises(StoppedError):
        start()
    stop.unlink()
    assert start() == []
    assert RunFolder(tmp_path / "run").result() is not None


COMMAND = (
    "import sys; sys.path[:] = {path!r}; from over_task import OverTask; from softq import cli;"
    " from softq.lab import tasks; tasks.TASKS['over'] = OverTask(); cli.app(prog_name='softq')"
)


def start_sweep(out):
    """The command in a session of its own; returns when two runs are under way."""
    arguments = [
        "sweep",
        "over",
        "--objective",
        "ml,raml",
        "--tau",
        "2",
        "--seed",
        "0:1",
        "--jobs",
        "2",
        "--out",
    ]
    arguments.append(str(out))
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(path=sys.path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"BEHAVIOUR": "slow"},
    )
    wait_for(lambda: len(list(out.rglob(METRICS))) == 2 or process.poll() is not None)
    return process


def assert_goes_on(out, unbroken):
    """Nobody trains there any more, two runs have begun, and the rest follows."""
    begun = list((out / RUNS).iterdir())
    assert len(begun) == 2
    for path in begun:
        wait_for(lambda path=path: is_free(path))
        assert not (path / RESULT).exists()
        assert RunFolder(path).load(LAST) is not None
    run_sweep(OverTask(), OverRecipe(), [FOUR], out, resume=True)
    assert run_contents(out) == unbroken


def is_free(path):
    try:
        with RunFolder(path).locked():
            return True
    except RunError:
        return False


@pytest.mark.parametrize(
    ("send", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)]
)  # a terminal sends it to all
def test_a_signal_stops_all(tmp_path, unbroken, send, number):
    process = start_sweep(tmp_path)
    send(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    last = stderr.splitlines()[-1]  # after lines of progress, every ten seconds
    assert last == f"softq: stopped; {tmp_path} can be resumed: add --resume"
    assert all(is_free(path) for path in (tmp_path / RUNS).iterdir())  # it has waited for them
    assert_goes_on(tmp_path, unbroken)


def test_nobody_is_left_behind_after_a_kill(tmp_path, unbroken):
    process = start_sweep(tmp_path)
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    assert_goes_on(tmp_path, unbroken)


# --- on a cluster ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster(monkeypatch):
    """A Dask cluster of two workers with one thread each, in processes of their own."""
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed: pip install 'softq[cluster]'"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    with (
        warnings.catch_warnings(),
        distributed.LocalCluster(
            2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as started,
    ):
        warnings.simplefilter("ignore")  # of Dask's own, when ports are taken or a worker is slow
        yield started


@pytest.mark.filterwarnings(
    "ignore"
)  # Dask warns of workers that are killed and of unclosed files of theirs
def test_a_lost_worker_of_a_cluster_costs_nothing(tmp_path, monkeypatch, cluster, unbroken):
    monkeypatch.setenv("BEHAVIOUR", "die once")
    monkeypatch.setenv("DEATH", str(tmp_path / "died"))
    cluster.scale(0)  # workers that know the environment
    cluster.sync(cluster._correct_state)
    cluster.scale(2)
    sweep = run_sweep(
        OverTask(), OverRecipe(), [FOUR], tmp_path / "sweep", executor=cluster.scheduler_address
    )
    assert (tmp_path / "died").exists()
    assert len(sweep.cells) == 4
    assert run_contents(tmp_path / "sweep") == unbroken


def test_a_cluster_that_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'softq[cluster]'")
    with pytest.raises(
        DependencyError,
        match=(
            r"--cluster slurm needs dask-jobqueue, which is not installed: pip install"
            r" dask-jobqueue"
        ),
    ):
        run_sweep(OverTask(), OverRecipe(), [FOUR], tmp_path / "a", executor="slurm")
    with pytest.raises(RunError, match=r"no Dask scheduler answers at nowhere"):
        run_sweep(OverTask(), OverRecipe(), [FOUR], tmp_path / "b", executor="nowhere")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(
        DependencyError,
        match=(
            r"a sweep on a cluster needs Dask, which is not installed: pip install"
            r" 'softq\[cluster\]'"
        ),
    ):
        run_sweep(OverTask(), OverRecipe(), [FOUR], tmp_path / "c", executor="tcp://127.0.0.1:1")
    assert not any((tmp_path / name / SWEEP).exists() for name in "abc")
