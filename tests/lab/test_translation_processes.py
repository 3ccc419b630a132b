"""A translator trained by two processes is the one that a single process trains."""

import json
import os
import signal

import pytest
from test_processes import free_port

from fork_server import ForkServer
from small_runs import wait_for

# The last batch of an epoch has one example: there is nothing for the second process to do.
SMALL = [
    "--sentences",
    "33",
    "--batch-size",
    "16",
    "--dev-sentences",
    "10",
    "--epochs",
    "6",
    "--patience",
    "0",
    "--device",
    "cpu",
]
MODEL = [
    "--embedding",
    "12",
    "--hidden",
    "12",
    "--dropout",
    "0",
    "--init",
    "0.3",
    "--learning-rate",
    "0.01",
    "--dev-beam",
    "1",
]
COMMAND = [
    "train",
    "translation",
    *SMALL,
    *MODEL,
    "--objective",
    "raml",
    "--tau",
    "0.5",
    "--candidates.size",
    "6",
]


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def start_both(server, folder, *command):
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    variables = [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return server.start(*[[*COMMAND, *command]] * 2, folder=folder, variables=variables)


def test_two_processes_train_as_one_does_and_go_on_when_killed(tmp_path):
    pytest.importorskip("accelerate")
    with ForkServer() as server:
        code, _, stderr = server.run(*COMMAND, "--out", "alone", folder=tmp_path)
        assert (code, stderr) == (0, "")
        start_both(server, tmp_path, "--out", "both")
        ended = server.wait()
        assert [code for code, *_ in ended] == [0, 0], ended
        pids = start_both(server, tmp_path, "--out", "killed")
        wait_for(
            lambda: (tmp_path / "killed" / "metrics.jsonl").is_file() and rows(tmp_path / "killed")
        )
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert [code for code, *_ in server.wait()] == [-signal.SIGKILL] * 2
        start_both(server, tmp_path, "--out", "killed", "--resume")
        assert [code for code, *_ in server.wait()] == [0, 0]
    assert rows(tmp_path / "killed") == rows(tmp_path / "both")
    for alone, both in zip(rows(tmp_path / "alone"), rows(tmp_path / "both"), strict=True):
        assert both["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        assert both["dev_perplexity"] == pytest.approx(alone["dev_perplexity"], rel=1e-3)
    losses = [row["loss"] for row in rows(tmp_path / "alone")]
    assert losses[4] < losses[2] < losses[0]
