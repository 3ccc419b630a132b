"""Examples run as people run them, and learn."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from softq.data.worlds import EntityWorld

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, *flags):
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return done.stdout


def token_accuracy(output, system):
    (row,) = [line for line in output.splitlines() if system in line]
    return float(re.findall(r"\d+\.\d+", row)[0])


def test_the_tagger_learns():
    output = run("bilstm_crf.py", "--sentences", "500", "--epochs", "4", "--constraints")
    bayes = token_accuracy(output, "Bayes rule")
    assert 90 < bayes < 99
    # Of every hundred words 74 are O: a tagger that learnt nothing is right on those.
    assert 82 < token_accuracy(output, "BiLSTM-CRF, sqdml") <= bayes + 1


@pytest.mark.parametrize("objective", ["ml", "raml"])
def test_the_other_objectives_train_too(objective):
    output = run("bilstm_crf.py", "--objective", objective, "--sentences", "800", "--epochs", "4")
    labels = [label for sentence in EntityWorld().draw(1000, seed=1) for label in sentence.labels[0]]  # the example's test sentences
    outside = 100 * labels.count("O") / len(labels)
    assert outside + 4 < token_accuracy(output, f"BiLSTM-CRF, {objective}") <= token_accuracy(output, "Bayes rule") + 1
