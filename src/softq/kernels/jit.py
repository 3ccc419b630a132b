"""How kernels are compiled and run: numba without the GIL, split over threads by the batch.

Threads are Python's own rather than numba's ``prange``: numba's default threading layer aborts the process
when two Python threads enter it at once, and a training loop that prepares batches beside itself does that.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and fused (this is what lets them vectorise), but inf and NaN keep their meaning.
_FASTMATH = {"reassoc", "contract", "nsz"}

# Waking a thread costs some tens of microseconds: a share smaller than this is not worth one.
_OPERATIONS_PER_THREAD = 100_000

_lock = threading.Lock()
_pool: tuple[int, int, ThreadPoolExecutor] | None = None  # process id (a fork has no threads), size, pool


def jit(function: F) -> F:
    """Compile with numba: cached on disk, free of the GIL, IEEE infinities kept."""
    return cast(F, numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=_FASTMATH)(function))


def run_batch(kernel: Callable[..., None], size: int, operations: int, *args: Any) -> None:
    """Call ``kernel(first, stride, *args)`` so that together the calls visit examples 0..size-1 once.

    ``operations`` is a rough count for the whole batch; small work stays in the calling thread.
    """
    threads = min(size, torch.get_num_threads(), max(1, operations // _OPERATIONS_PER_THREAD))
    if threads <= 1:
        kernel(0, 1, *args)
        return
    others = [_executor(threads - 1).submit(kernel, i, threads, *args) for i in range(1, threads)]
    kernel(0, threads, *args)
    for other in others:
        other.result()


def _executor(size: int) -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None or _pool[0] != os.getpid() or _pool[1] < size:
            _pool = (os.getpid(), size, ThreadPoolExecutor(size, thread_name_prefix="softq"))
        return _pool[2]


def as_array(x: Tensor) -> np.ndarray[Any, Any]:
    """A detached, contiguous CPU view (a copy only if it must) for a kernel."""
    return cast("np.ndarray[Any, Any]", x.detach().cpu().contiguous().numpy())


def draw_seeds(size: int, generator: torch.Generator | None) -> np.ndarray[Any, Any]:
    """One 64-bit seed per sample from torch's generator: results do not depend on the number of threads."""
    device = generator.device if generator is not None else torch.device("cpu")
    seeds = torch.randint(-(2**63), 2**63 - 1, (size,), dtype=torch.int64, generator=generator, device=device)
    return cast("np.ndarray[Any, Any]", seeds.cpu().numpy().view(np.uint64))


@jit
def next_random(state: np.ndarray[Any, Any]) -> float:
    """Uniform in [0, 1) from a one-word splitmix64 state, which is advanced."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return float(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def dot(a: Any, b: Any, size: int, log: bool) -> float:
    """Sum over i of a[i] · b[i]; with ``log``, the same of their exponentials, in logarithms."""
    if not log:
        total = 0.0
        for i in range(size):
            total += a[i] * b[i]
        return total
    peak = -np.inf
    for i in range(size):
        peak = max(peak, a[i] + b[i])
    if peak == -np.inf:
        return -np.inf
    total = 0.0
    for i in range(size):
        total += np.exp(a[i] + b[i] - peak)
    return peak + np.log(total)


@jit
def add_scaled(out: Any, factor: float, x: Any, size: int, log: bool) -> None:
    """out[i] += factor · x[i]; with ``log``, the same in logarithms."""
    if not log:
        for i in range(size):
            out[i] += factor * x[i]
        return
    if factor == -np.inf:
        return
    for i in range(size):
        out[i] = log_add(out[i], factor + x[i])


@jit
def log_add(a: float, b: float) -> float:
    """log(e^a + e^b), with log 0 = -inf."""
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return a + np.log1p(np.exp(b - a))

@jit
def choose(log_weight: Any, size: int, state: Any) -> int:
    """Index drawn with probability proportional to exp(log_weight); the weights are overwritten."""
    peak = -np.inf
    for i in range(size):
        peak = max(peak, log_weight[i])
    total = 0.0
    for i in range(size):
        log_weight[i] = np.exp(log_weight[i] - peak)
        total += log_weight[i]
    threshold = next_random(state) * total
    reached = 0.0
    last = 0
    for i in range(size):
        if log_weight[i] > 0.0:
            last = i  # rounding may leave the threshold above the last sum: keep the last possible one
            reached += log_weight[i]
            if reached > threshold:
                break
    return last
