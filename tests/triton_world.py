"""Triton kernels in tests.

Compiled where there is a GPU, else run by Triton's interpreter, for which conftest.py asks.
"""

from __future__ import annotations

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"

pytest.importorskip("triton", reason="Triton is not installed")

from triton.runtime import interpreter  # noqa: E402

on_gpu = pytest.mark.skipif(not HAS_GPU, reason="no NVIDIA GPU")


def mark_for(kernel):
    """The mark of tests of a kernel that run in both worlds.

    With a GPU they belong to its tests.
    """
    if HAS_GPU:
        return pytest.mark.gpu
    interpreted = isinstance(kernel, interpreter.InterpretedFunction)
    return pytest.mark.skipif(
        not interpreted,
        reason="no GPU, and Triton was imported before it could be told to interpret",
    )


@pytest.fixture(autouse=True)
def interpreter_takes_loop_bounds_from_tensors(monkeypatch):
    """Triton 3.6's interpreter turns a one-element array into a number in a way that NumPy 2.4 no longer allows."""
    original = interpreter._patch_lang_tensor

    def patched(tensor, *scope):
        original(tensor, *scope)
        index = lambda self: int(self.handle.data.item())  # noqa: E731
        if scope:
            scope[0].set_attr(tensor, "__index__", index)
        else:
            tensor.__index__ = index

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
