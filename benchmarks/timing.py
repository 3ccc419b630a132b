"""Timing by turns: every contender runs once per round, so that a slow spell of the machine hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def by_turns(
    contenders: dict[str, Callable[[], object]], *, rounds: int, warmup: int = 3, repeats: dict[str, int] | None = None
) -> dict[str, float]:
    """Median milliseconds of one call of each contender; ``repeats`` runs a short one several times per turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        for _ in range(warmup):
            call()
    for _ in range(rounds):
        for name, call in contenders.items():
            count = (repeats or {}).get(name, 1)
            call()  # find the caches as one's own last call left them
            synchronize()
            start = time.perf_counter()
            for _ in range(count):
                call()
            synchronize()
            times[name].append((time.perf_counter() - start) / count * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
