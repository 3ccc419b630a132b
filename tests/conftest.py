"""Fixtures that several files of tests name in ``pytestmark``."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by whichever file of tests comes first

from small_runs import single_thread
from softq.train import events


@pytest.fixture(scope="module")
def one_thread():
    """Sums in one order, whatever the machine; two threads on little work are slower, too."""
    with single_thread():
        yield


@pytest.fixture
def no_events(monkeypatch):
    """Without TensorBoard, whose files hold the time."""
    monkeypatch.setattr(events.importlib.util, "find_spec", lambda name: None)
