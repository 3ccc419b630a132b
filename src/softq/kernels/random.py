"""Random numbers inside kernels: splitmix64, seeded from torch's generator for each sample."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from softq.kernels.jit import jit

Array = np.ndarray[Any, Any]


def seed_tensor(size: int, generator: torch.Generator | None) -> torch.Tensor:
    """One 64-bit seed per sample, where the generator is."""
    device = generator.device if generator is not None else torch.device("cpu")
    return torch.randint(-(2**63), 2**63 - 1, (size,), generator=generator, device=device)


def draw_seeds(size: int, generator: torch.Generator | None) -> Array:
    """One 64-bit seed per sample, so that results do not depend on the number of threads."""
    return cast("Array", seed_tensor(size, generator).cpu().numpy().view(np.uint64))


@jit
def mix(value: Any) -> Any:
    """Spread 64 bits over 64 bits, one to one (the finalizer of splitmix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@jit
def next_word(state: Array) -> Any:
    """64 random bits from a one-word state, which is advanced."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return mix(state[0])


@jit
def next_random(state: Array) -> float:
    """Uniform in [0, 1)."""
    return float(next_word(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def next_below(state: Array, bound: int) -> Any:
    """Uniform in 0..bound-1 for a bound below 2^32, without bias (Lemire 2019)."""
    if bound == 1:
        return 0
    limit = np.uint64(bound)
    product = (next_word(state) >> np.uint64(32)) * limit
    if (product & np.uint64(0xFFFFFFFF)) < limit:
        uneven = (np.uint64(1 << 32) - limit) % limit
        while (product & np.uint64(0xFFFFFFFF)) < uneven:
            product = (next_word(state) >> np.uint64(32)) * limit
    return np.int64(product >> np.uint64(32))


@jit
def choose(log_weight: Any, size: int, state: Any) -> int:
    """Index drawn with probability proportional to exp(log_weight), which is overwritten."""
    peak = log_weight[:size].max()
    total = 0.0
    for i in range(size):
        log_weight[i] = np.exp(log_weight[i] - peak)
        total += log_weight[i]
    return choose_weight(log_weight, total, 0, size, state)


@jit
def choose_weight(weight: Any, total: float, low: int, high: int, state: Any) -> int:
    """Index in low..high-1 drawn with probability proportional to its weight."""
    threshold = next_random(state) * total
    reached = 0.0
    last = low
    for i in range(low, high):
        if weight[i] > 0.0:
            last = i  # rounding may leave the threshold above the last sum: keep the last possible
            reached += weight[i]
            if reached > threshold:
                break
    return last
