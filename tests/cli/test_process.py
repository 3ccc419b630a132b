"""The command as a process: signals, a full disk, help without torch, logs, completion."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ner_commands import softq
from softq.cli import progress

COMMAND = [sys.executable, "-m", "softq"]


def run(*arguments, **options):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_a_signal_before_training_is_one_line(tmp_path, number, seconds):
    process = subprocess.Popen(
        [*COMMAND, "train", "ner", "--sentences", "50000", "--out", str(tmp_path / "run")],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(seconds)
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.startswith("softq: ")
    assert "Traceback" not in errors


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full device")
@pytest.mark.parametrize("arguments", [["--help"], ["theory", "--grid", "20", "--json"]])
def test_a_full_disk_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 2
    assert result.stderr == "softq: cannot write the output: No space left on device\n"


def test_help_does_not_wait_for_torch():
    pages = [["predict"], ["evaluate"], ["data", "check"], ["data", "features"]]
    pages += [["theory"], ["train"], ["sweep"], ["bench", "core"]]
    pages += [["report"], ["reproduce"], ["explore"]]
    program = (
        "import sys; from softq.cli import app\n"
        f"for page in {pages!r}: app([*page, '--help'], standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not {"torch", "numba", "transformers"} & set(result.stderr.split())


def test_completion():
    shown = run(
        env=os.environ
        | {
            "_SOFTQ_COMPLETE": "complete_bash",
            "COMP_WORDS": "softq predict --pro",
            "COMP_CWORD": "2",
        }
    )
    assert shown.stdout.split() == ["--probabilities"]


def test_a_line_for_logs(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_EVERY", 0.01)
    with progress.progress_bars() as watch:
        watcher = watch("raml τ=0.2", unit="sentences")
        watcher.begin(1000, 0)
        for _ in range(50):
            watcher.advance(10, "epoch 1")
            time.sleep(0.002)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith("softq: raml τ=0.2: ") for line in lines)
    for text in (" %, epoch 1", "sentences/s", " left"):
        assert text in lines[-1]


def test_compilation_is_told_once(monkeypatch, capsys):
    from numba import njit

    monkeypatch.setattr(progress, "COMPILATION_TOLD", type(progress.COMPILATION_TOLD)())
    with progress.progress_bars():
        njit(lambda x: x + 1)(1)
        njit(lambda x: x + 2)(1)
    assert capsys.readouterr().err.count("compiling kernels") == 1


def test_long_lines_are_not_translated(tmp_path):
    from softq.formats.vocabulary import Vocabulary
    from softq.neural.recipe import TranslationDecoding, TranslatorSettings
    from softq.neural.text_generator import TextGenerator

    settings = TranslatorSettings(embedding=4, hidden=4)
    words = Vocabulary.fit_words(["a b c"])
    model = settings.build(len(words), len(words))
    TextGenerator(model, settings, words, words, TranslationDecoding()).save(tmp_path / "mt")
    result = softq("predict", tmp_path / "mt", stdin="a b\n" + "a " * 7500)
    assert result.exit_code == 2
    assert "line 2: expected a sentence of at most 5,000 characters, got 14,999" in result.stderr
