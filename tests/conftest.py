"""Fixtures that several files of tests name in ``pytestmark``, and what spares the count of coverage from slowing others' code."""

import contextlib
import functools
import os
import signal
import sys

import pytest
import torch
from numba.core.dispatcher import Dispatcher

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = (
        "1"  # read when Triton is imported, by whichever file of tests comes first
    )

from small_runs import single_thread
from softq.cli import progress
from softq.lab import tensorboard

collect_ignore = [
    "conftest.py"
]  # it has no examples, and the documentation has a module of the same name


def untraced(function):
    """The same function, unseen by the count of coverage."""

    @functools.wraps(function)
    def call(*arguments):
        tracer = sys.gettrace()
        sys.settrace(None)
        try:
            return function(*arguments)
        finally:
            sys.settrace(tracer)

    return call


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard():
    """A process that was started in the background ignores Ctrl-C, and so would all that tests start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def compiling_and_drawing_are_not_traced():
    """Coverage is told of each line that Python runs, whoever wrote it.

    Numba's compiler and matplotlib take half as long again for it.
    """
    with pytest.MonkeyPatch.context() as patch:
        compile_kernel, compile_unseen = Dispatcher.compile, untraced(Dispatcher.compile)

        def choose(dispatcher, signature):
            # Their instructions are written by functions of softq (`jit`, `simd`), which are to be
            # seen at work.
            seen = any(name in dispatcher.py_func.__module__ for name in ("features.crf", "jit"))
            return (compile_kernel if seen else compile_unseen)(dispatcher, signature)

        patch.setattr(Dispatcher, "compile", choose)
        with contextlib.suppress(ImportError):
            from matplotlib.figure import Figure

            patch.setattr(Figure, "draw", untraced(Figure.draw))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_progress_in_logs():
    """Commands under test print nothing but results, however slow the machine is and however cold numba's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "LOG_EVERY", 3600)
        progress.COMPILATION_TOLD.set()
        yield


@pytest.fixture(scope="module")
def one_thread():
    """Sums in one order, whatever the machine; two threads on little work are slower, too."""
    with single_thread():
        yield


@pytest.fixture
def no_events(monkeypatch):
    """Without TensorBoard, whose files hold the time."""
    monkeypatch.setattr(tensorboard.importlib.util, "find_spec", lambda name: None)
