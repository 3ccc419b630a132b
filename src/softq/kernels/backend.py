"""Which implementation runs: the fast kernels, or plain torch for comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch

Backend = Literal["fast", "reference"]

_BACKEND: ContextVar[Backend] = ContextVar("softq_backend", default="fast")


@contextmanager
def backend(name: Backend) -> Iterator[None]:
    """Run the block on ``"fast"`` kernels (the default) or on the plain torch ``"reference"``.

    It governs log-partitions, marginals, losses and grids of networks; modes and samples have one
    implementation. The choice belongs to the calling thread (or async task) alone.

    >>> import softq, torch
    >>> with softq.backend("reference"):
    ...     softq.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2)).log_partition.item()  # log 2**3
    2.0794...
    """
    if name not in ("fast", "reference"):
        raise ValueError(f"backend is 'fast' or 'reference', got {name!r}")
    token = _BACKEND.set(name)
    try:
        yield
    finally:
        _BACKEND.reset(token)


def use_kernels() -> bool:
    """Whether the fast kernels are in force; while a graph is traced, they always are."""
    return torch.compiler.is_compiling() or _BACKEND.get() == "fast"
