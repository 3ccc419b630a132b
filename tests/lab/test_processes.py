"""Training in processes of its own: killed, interrupted, out of disk, two at a time."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fork_server import ForkServer
from small_runs import CPU, contents, new_run, softq, wait_for
from softq.lab.loop import train
from softq.lab.processes import Interrupts
from softq.lab.recipe import build, parse_flags
from softq.lab.run import LAST, METRICS, RESULT, RunFolder, as_json
from softq.lab.tasks import TASKS
from softq.lab.tasks.base import describe_cell, measures
from softq.lab.tasks.classification import torch_learner
from softq.lab.tasks.classification_recipe import ClassificationRecipe

EPOCHS, STEPS = 25, 30
MODEL = ["--hidden", "64,64", "--objective", "raml", "--tau", "2"]
COMMAND = [
    *[
        "train",
        "classification",
        "--inputs",
        "3000",
        "--dev",
        "500",
        "--test",
        "500",
        "--batch-size",
        "100",
    ],
    *MODEL,
    *f"--epochs {EPOCHS} --patience 0 --checkpoint-every 7".split(),
]
ENOUGH = 20_000  # bytes: for every file of such a run but its checkpoints, 55 kB


@pytest.fixture(scope="module")
def server():
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="module")
def unbroken(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken")
    code, stdout, stderr = server.run(*COMMAND, "--out", "run", folder=folder)
    assert (code, stderr) == (0, "")
    assert "raml τ=2, seed 0: reward" in stdout
    return folder / "run"


def begins(run):
    """Whether a process that is about to be started has begun to train.

    To write the metrics anew is its first deed.
    """

    def written():
        path = run / METRICS
        return path.stat().st_mtime_ns if path.exists() else None

    before = written()
    return lambda: written() != before


def place(run):
    """How far the last checkpoint of a run has come, in epochs."""
    last = RunFolder(run).load(LAST)
    return 0.0 if last is None else last.notes["epoch"] + last.notes["step"] / STEPS


def test_a_run_that_is_killed_ten_times_ends_the_same(server, unbroken, tmp_path):
    run = tmp_path / "run"
    rng = random.Random(0)
    killed, places = 0, set()
    for number in range(10):
        has_begun, moment = begins(run), EPOCHS * (number + rng.random()) / 11 if number else 0.0
        (pid,) = server.start([*COMMAND, "--resume", "--out", run], folder=tmp_path)
        wait_for(lambda has_begun=has_begun, moment=moment: has_begun() and place(run) >= moment)
        time.sleep(rng.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        ((code, _, stderr),) = server.wait()
        assert code in (-signal.SIGKILL, 0), stderr
        killed += code != 0
        places.add(place(run))
    assert killed >= 6, "most kills must hit a run that trains"
    assert len(places) >= 6, "and at different places"
    code, stdout, stderr = server.run("train", "--resume", "--out", run, "--json", folder=tmp_path)
    assert (code, stderr) == (0, "")
    assert contents(run) == contents(unbroken)
    assert json.loads(stdout)["cells"] == json.loads((unbroken / RESULT).read_text())["cells"]
    assert not list(run.glob(".*"))


def one_line(stderr):
    assert stderr.startswith("softq: ")
    assert stderr.count("\n") == 1
    return stderr


def test_sigterm_leaves_a_run_to_go_on_with(server, unbroken, tmp_path):
    has_begun = begins(tmp_path / "run")
    (pid,) = server.start([*COMMAND, "--out", "run"], folder=tmp_path)
    wait_for(has_begun)
    os.kill(pid, signal.SIGTERM)
    code, stdout, stderr = server.wait()[0]
    assert (code, stdout) == (130, "")
    assert "; add --resume to continue run" in one_line(stderr)
    assert RunFolder(tmp_path / "run").load(LAST) is not None
    assert server.run("train", "--resume", "--out", "run", folder=tmp_path)[0] == 0
    assert contents(tmp_path / "run") == contents(unbroken)


def test_ctrl_c_in_a_process_from_the_shell(server, unbroken, tmp_path):
    run = tmp_path / "run"
    has_begun = begins(run)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", "softq", *COMMAND, "--out", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    wait_for(has_begun)
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=120)
    assert (child.returncode, stdout) == (130, "")
    assert f"; add --resume to continue {run}" in one_line(stderr)
    assert RunFolder(run).load(LAST) is not None
    assert server.run("train", "--resume", "--out", run, folder=tmp_path)[0] == 0
    assert contents(run) == contents(unbroken)


def test_a_disk_that_is_full(server, unbroken, tmp_path):
    run = tmp_path / "run"
    code, stdout, stderr = server.run(*COMMAND, "--out", run, folder=tmp_path, largest_file=ENOUGH)
    assert (code, stdout) == (2, "")
    assert (
        one_line(stderr)
        == f"softq: cannot write to {run}: File too large; it has no checkpoint yet: make room and"
        " add --resume to begin again\n"
    )
    has_begun = begins(run)
    (pid,) = server.start([*COMMAND, "--out", run, "--resume"], folder=tmp_path)
    wait_for(has_begun)
    os.kill(pid, signal.SIGTERM)
    assert server.wait()[0][0] == 130
    before = (run / LAST).read_bytes()
    code, stdout, stderr = server.run(
        "train", "--out", run, "--resume", folder=tmp_path, largest_file=ENOUGH
    )
    assert (code, stdout) == (2, "")
    assert (
        one_line(stderr)
        == f"softq: cannot write to {run}: File too large; the last checkpoint in it is intact:"
        " make room and add --resume\n"
    )
    assert (run / LAST).read_bytes() == before
    assert not list(run.glob(".*"))
    assert server.run("train", "--resume", "--out", run, folder=tmp_path)[0] == 0
    assert contents(run) == contents(unbroken)


def test_two_processes_do_not_train_one_run(server, tmp_path):
    has_begun = begins(tmp_path / "run")
    (pid,) = server.start([*COMMAND, "--out", "run"], folder=tmp_path)
    wait_for(has_begun)
    os.kill(pid, signal.SIGSTOP)
    try:
        refused = softq(*COMMAND, "--resume", "--out", tmp_path / "run")
    finally:
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGKILL)
        server.wait()
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert (
        one_line(refused.stderr)
        == f"softq: another process is training {tmp_path / 'run'}: wait for it to end, or stop"
        " it\n"
    )


# --- several processes that train together ------------------------------------------------------------

SIZES = ["--inputs", "430", "--dev", "300", "--test", "300", "--epochs", "3", "--batch-size", "100"]
TOGETHER = [*SIZES, "--device", "cpu", "--objective", "sqdml", "--tau", "1"]
RECIPE_TOGETHER = build(ClassificationRecipe, parse_flags(ClassificationRecipe, TOGETHER))


def hears(pid):
    """Whether a process catches SIGTERM, as it does while it trains.

    Before that it would end at once.
    """
    caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def assert_same_numbers(run, other):
    """Loss curves, development scores and results, up to the rounding of sums in another order."""
    ours, theirs = (RunFolder(path).lines(METRICS) for path in (run, other))
    assert [row["epoch"] for row in ours] == [row["epoch"] for row in theirs] == [1, 2, 3]
    for name in ("loss", "dev"):
        assert [row[name] for row in ours] == pytest.approx([row[name] for row in theirs], abs=1e-5)
    (mine,), (yours,) = (RunFolder(path).result()["cells"] for path in (run, other))
    assert mine["epoch"] == yours["epoch"]
    assert (mine["dev"], mine["test"]) == pytest.approx((yours["dev"], yours["test"]), abs=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The plain module of that recipe in this process."""
    folder = new_run(tmp_path_factory.mktemp("alone") / "run")
    with Interrupts(CPU) as interrupts:
        outcome = train(
            torch_learner(RECIPE_TOGETHER, CPU),
            folder,
            RECIPE_TOGETHER.training,
            workers=CPU,
            interrupts=interrupts,
            cell_names=["x"],
        )
    task = TASKS["classification"]
    cell = describe_cell(task.name, RECIPE_TOGETHER)
    cell |= {"epoch": outcome.epochs[0], "dev": outcome.dev[0]}
    cells = [cell | measures(task, outcome.evaluation)[0]]
    names = {"task": task.name, "metric": task.metric, "signature": ""}
    folder.write(RESULT, as_json(names | {"cells": cells}))
    return folder.path


def test_two_processes_from_a_launcher(alone, tmp_path):
    pytest.importorskip("accelerate")
    launcher = [sys.executable, *["-m", "torch.distributed.run", "--nproc_per_node", "2"]]
    launcher += ["--master_addr", "127.0.0.1", "--master_port", free_port()]
    command = [*launcher, "-m", "softq", "train", "classification", *TOGETHER]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, "--out", "run", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment,
    )
    assert ended.returncode == 0, ended.stderr
    assert (
        json.loads(ended.stdout)["cells"] == RunFolder(tmp_path / "run").result()["cells"]
    )  # one process speaks
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["device"] == "2 × cpu"
    assert len(list((tmp_path / "run").glob("events*"))) <= 1  # and one writes
    assert_same_numbers(tmp_path / "run", alone)


def test_two_processes_go_on_after_a_signal(server, alone, tmp_path):
    pytest.importorskip("accelerate")
    if not Path("/proc/self/status").is_file():
        pytest.skip("nothing here tells which signals a process catches")
    run = tmp_path / "run"
    command = ["train", "classification", *TOGETHER, "--out", run, "--resume"]

    def start():
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        variables = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
        # only the main process may write: the other one has room for what it says, and for no
        # checkpoint
        return server.start(
            command, command, folder=tmp_path, variables=variables, largest_file=[None, 500]
        )

    has_begun = begins(run)
    pids = start()
    wait_for(lambda: has_begun() and hears(pids[1]))
    os.kill(pids[1], signal.SIGTERM)  # one hears it, both stop
    ended = server.wait()
    assert [code for code, *_ in ended] == [130, 130], ended
    assert RunFolder(run).load(LAST) is not None
    assert RunFolder(run).result() is None
    start()
    ended = server.wait()
    assert [code for code, *_ in ended] == [0, 0], ended
    assert (ended[1][1], ended[1][2]) == ("", "")
    assert_same_numbers(run, alone)
