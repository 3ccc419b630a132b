"""Alternating timing.

Every contender runs once per round, so that a slow phase of the machine affects all of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

# a contender this slow takes part in the first rounds only: its spread is small beside its time
SLOW_MS = 300.0


def by_turns(
    contenders: dict[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int = 2,
    repeats: dict[str, int] | None = None,
) -> dict[str, float]:
    """Median milliseconds of one call of each contender.

    ``repeats`` runs a short one several times per turn.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        for _ in range(warmup):
            call()
    for turn in range(rounds):
        for name, call in contenders.items():
            slow = bool(times[name]) and times[name][-1] > SLOW_MS
            if slow and turn >= 3:
                continue
            if not slow:
                call()  # find the caches as one's own last call left them
            count = (repeats or {}).get(name, 1)
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
