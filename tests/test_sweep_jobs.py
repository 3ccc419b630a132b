"""Several runs of a sweep at a time: the same bytes, and nobody left behind, whatever happens."""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

from over_task import Alone, OverRecipe, OverTask
from small_runs import contents, recipe, single_thread, wait_for
from softq.errors import RecipeError, RunError
from softq.recipe import to_toml
from softq.run import CELLS, ENVIRONMENT, LAST, METRICS, RESULT, RunFolder
from softq.sweep import RUNS, SUMMARY, SWEEP, Grid, expand, folder, processes, run_sweep
from softq.tasks import TASKS

FOUR = Grid("g", ("ml", "raml"), "2", "0:1")


class Seen:
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
    return {path.name: contents(path) | {CELLS: (path / CELLS).read_bytes()} for path in sorted((out / RUNS).iterdir())}


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
    assert seen.told == ["8 models, 2 at a time", (8, 0), *((1, f"{number} of 8") for number in range(1, 9))]
    environments = [json.loads(path.read_text()) for path in tmp_path.rglob(ENVIRONMENT)]
    assert all(environment == environments[0] for environment in environments)  # the arguments too


def test_jobs_are_for_tasks_of_single_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "train_in_processes", None)
    with single_thread():
        run_sweep(TASKS["classification"], recipe(), [FOUR], tmp_path / "together", jobs=2)
    run_sweep(OverTask(), OverRecipe(), [Grid(objective=("ml",))], tmp_path / "a single run", jobs=2)
    with pytest.raises(RecipeError, match="jobs must be at least 1, got 0"):
        run_sweep(OverTask(), OverRecipe(), [FOUR], tmp_path / "none", jobs=0)


def test_jobs_need_a_task_with_a_name(tmp_path):
    class Hidden(OverTask):
        pass

    with pytest.raises(RunError, match=r"a task that other processes can import, got test_jobs_need_a_task_with_a_name\.<locals>\.Hidden"):
        run_sweep(Hidden(), OverRecipe(), [FOUR], tmp_path, jobs=2)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    run_sweep(OverTask(), OverRecipe(), [FOUR], out)
    return run_contents(out)


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [("refuse", "no more"), ("die", "its process ended with signal 9")],
)
def test_an_error_in_one_of_several(tmp_path, monkeypatch, unbroken, behaviour, text):
    monkeypatch.setenv("BEHAVIOUR", behaviour)
    grid = dataclasses.replace(FOUR, objective=("raml", "ml"))
    with pytest.raises(RunError) as caught:
        run_sweep(OverTask(), OverRecipe(), [grid], tmp_path, jobs=2)
    assert f"raml τ=2 seed 0: {text} (run {tmp_path / RUNS}/raml-tau2-seed0-" in str(caught.value)
    (broken,) = (tmp_path / RUNS).glob("raml-tau2-seed0-*")
    assert RunFolder(broken).load(LAST).notes["epoch"] == 2
    monkeypatch.delenv("BEHAVIOUR")
    run_sweep(OverTask(), OverRecipe(), [grid], tmp_path, resume=True)
    assert run_contents(tmp_path) == unbroken


def test_what_a_process_answers(tmp_path, monkeypatch, capfd):
    (cell, _), *_ = expand(OverTask(), OverRecipe(), [Grid(objective=("raml",), tau="2")]).values()
    order = {"task": "over_task:OverTask", "recipe": to_toml(cell, task="over"), "settings": {}, "path": str(tmp_path), "resume": True}
    for behaviour, reply in {
        "refuse": {"failed": "no more"},
        "fault": {"failed": "KeyError: 'a slip'"},
        "signal": {"stopped": f"stopped in epoch 3 at step 1; {tmp_path} can be gone on with: add --resume"},
        "": {"finished": str(tmp_path)},
    }.items():
        monkeypatch.setenv("BEHAVIOUR", behaviour)
        assert processes._carry_out(order) == reply
        assert ("in train" in capfd.readouterr().err) == (behaviour == "fault")  # a fault has a traceback
    missing = processes._carry_out(order | {"task": "no_such_module:Task"})
    assert missing == {"failed": "ModuleNotFoundError: No module named 'no_such_module'"}


COMMAND = (
    "import sys; sys.path[:] = {path!r}; from over_task import OverTask; from softq import cli, tasks; tasks.TASKS['over'] = OverTask(); "
    "cli.app(prog_name='softq')"
)


def start_sweep(out):
    """The command in a session of its own; returns when two runs are under way."""
    arguments = ["sweep", "over", "--objective", "ml,raml", "--tau", "2", "--seed", "0:1", "--jobs", "2", "--out", str(out)]
    process = subprocess.Popen(  # noqa: S603
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


@pytest.mark.parametrize(("send", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)])  # a terminal sends it to all
def test_a_signal_stops_all(tmp_path, unbroken, send, number):
    process = start_sweep(tmp_path)
    send(process.pid, number)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, "")
    assert stderr == f"softq: stopped; {tmp_path} can be gone on with: add --resume\n"
    assert all(is_free(path) for path in (tmp_path / RUNS).iterdir())  # it has waited for them
    assert_goes_on(tmp_path, unbroken)


def test_nobody_is_left_behind_after_a_kill(tmp_path, unbroken):
    process = start_sweep(tmp_path)
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    assert_goes_on(tmp_path, unbroken)
