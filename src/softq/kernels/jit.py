"""How kernels are compiled and run: numba without the GIL, split over threads by the batch.

The threads are torch's own where its OpenMP library can be reached (the Linux builds): after each parallel operation
they spin for a while in wait of the next, so that other threads would find their cores taken. Elsewhere they are
Python's. Numba's ``prange`` is not used, because its default threads abort the process when two Python threads enter
at once, and a training loop that prepares batches beside itself does that.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and fused (this is what lets them vectorise), but inf and NaN keep their meaning.
_FASTMATH = {"reassoc", "contract", "nsz"}

# Waking a thread costs some tens of microseconds: a share smaller than this is not worth one.
_OPERATIONS_PER_THREAD = 100_000

_SHARES_PER_THREAD = 2  # taken as threads come free, so that a core that is half taken holds nobody up

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
    shares = min(size, threads * _SHARES_PER_THREAD)
    waiting = iter(range(shares))  # taking the next share is atomic
    errors: list[BaseException] = []

    def work(_data: Any = None) -> None:
        try:
            for share in waiting:
                kernel(share, shares, *args)
        except BaseException as error:  # it may be in a thread that cannot raise: the caller does, below
            errors.append(error)

    if _OPENMP is not None and os.getpid() == _PROCESS:
        _OPENMP.GOMP_parallel(_OPENMP_FUNCTION(work), None, threads, 0)
    else:
        others = [_executor(threads - 1).submit(work) for _ in range(1, threads)]
        work()
        for other in others:
            other.result()
    if errors:
        raise errors[0]


_OPENMP_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PROCESS = os.getpid()  # OpenMP's threads do not survive a fork


def _torch_openmp() -> ctypes.CDLL | None:
    """The GNU OpenMP library that torch has loaded, or None."""
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD)
            library.GOMP_parallel.argtypes = [_OPENMP_FUNCTION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
            library.GOMP_parallel.restype = None
        except (OSError, AttributeError):  # a copy that is not in use, or not GNU's
            continue
        return library
    return None


_OPENMP = _torch_openmp()


def _executor(size: int) -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None or _pool[0] != os.getpid() or _pool[1] < size:
            _pool = (os.getpid(), size, ThreadPoolExecutor(size, thread_name_prefix="softq"))
        return _pool[2]


def as_array(x: Tensor) -> np.ndarray[Any, Any]:
    """A detached, contiguous CPU view (a copy only if it must) for a kernel."""
    if x.requires_grad:
        x = x.detach()
    if not x.is_cpu:
        x = x.cpu()
    return cast("np.ndarray[Any, Any]", x.contiguous().numpy())


def zeros(shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Zeros on the device of ``like``. On the CPU they come from numpy: torch would wake its threads to write them."""
    dtype = like.dtype if dtype is None else dtype
    if not like.is_cpu:
        return torch.zeros(tuple(shape), dtype=dtype, device=like.device)
    return torch.from_numpy(np.zeros(tuple(shape), dtype=np.float32 if dtype == torch.float32 else np.float64))


def draw_seeds(size: int, generator: torch.Generator | None) -> np.ndarray[Any, Any]:
    """One 64-bit seed per sample from torch's generator: results do not depend on the number of threads."""
    device = generator.device if generator is not None else torch.device("cpu")
    seeds = torch.randint(-(2**63), 2**63 - 1, (size,), dtype=torch.int64, generator=generator, device=device)
    return cast("np.ndarray[Any, Any]", seeds.cpu().numpy().view(np.uint64))


@intrinsic
def _float_from_bits(_typing: Any, _bits: Any) -> Any:
    """The float64 whose bits are this int64."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), generate


def _fast_exp(x: float) -> float:
    """e^x for x ≤ 0 to rounding, and 0 below -700. Unlike a call to the C library it vectorises: five times as fast."""
    clipped = max(x, -700.0)
    power = np.floor(clipped * 1.4426950408889634 + 0.5)  # e^x = 2^power · e^rest with |rest| ≤ log(2)/2
    rest = (clipped - power * 0.6931471803691238) - power * 1.9082149292705877e-10  # log 2 in two parts
    p = 2.08767569878681e-09  # 1/12!, then Horner's rule down to 1/0!
    p = p * rest + 2.505210838544172e-08
    p = p * rest + 2.755731922398589e-07
    p = p * rest + 2.7557319223985893e-06
    p = p * rest + 2.48015873015873e-05
    p = p * rest + 0.0001984126984126984
    p = p * rest + 0.001388888888888889
    p = p * rest + 0.008333333333333333
    p = p * rest + 0.041666666666666664
    p = p * rest + 0.16666666666666666
    p = p * rest + 0.5
    p = p * rest + 1.0
    p = p * rest + 1.0
    value: float = p * _float_from_bits((np.int64(power) + 1023) << 52)  # type: ignore[call-arg]
    return value if x >= -700.0 else 0.0


# Reordering the sums of the range reduction would undo it, so this one is compiled without that licence.
_compiled_exp = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})(_fast_exp)
fast_exp: Any = np.exp if _compiled_exp is _fast_exp else _compiled_exp  # NUMBA_DISABLE_JIT: there are no bits to set


@jit
def next_word(state: np.ndarray[Any, Any]) -> Any:
    """64 random bits from a one-word splitmix64 state, which is advanced."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@jit
def next_random(state: np.ndarray[Any, Any]) -> float:
    """Uniform in [0, 1)."""
    return float(next_word(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@jit
def next_below(state: np.ndarray[Any, Any], bound: int) -> Any:
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


# Kernels run on numbers or on their logarithms. The choice is an argument that is None or True, because numba leaves
# out of the compiled code what a None argument rules out; a False one would stay in every inner loop.
PLAIN, LOG = None, True

# The two inner loops of every recursion. They take a matrix, a row and a first column instead of a slice, because
# making an array view costs more than a short loop, and count with unsigned numbers, because an index that might be
# negative (numba would count it from the end) keeps a loop from being vectorised.


@jit
def dot(a: Any, row_a: int, from_a: int, b: Any, row_b: int, from_b: int, size: int, log: bool | None) -> Any:
    """Sum over k of a[row_a, from_a + k] · b[row_b, from_b + k]; with ``log``, of their exponentials, as a logarithm."""
    ra, fa, rb, fb = np.uint64(row_a), np.uint64(from_a), np.uint64(row_b), np.uint64(from_b)
    if log is not None:
        return _log_dot(a, ra, fa, b, rb, fb, np.uint64(size))  # apart, so that the common case is small enough to inline
    total = 0.0
    for k in range(np.uint64(size)):
        total += a[ra, fa + k] * b[rb, fb + k]
    return total


@jit
def _log_dot(a: Any, ra: Any, fa: Any, b: Any, rb: Any, fb: Any, size: Any) -> Any:
    peak = -np.inf
    for k in range(size):
        peak = max(peak, a[ra, fa + k] + b[rb, fb + k])
    if peak == -np.inf:
        return -np.inf
    total = 0.0
    for k in range(size):
        total += np.exp(a[ra, fa + k] + b[rb, fb + k] - peak)
    return peak + np.log(total)


@jit
def add_scaled(out: Any, row_out: int, from_out: int, factor: float, x: Any, row_x: int, from_x: int, size: int, log: bool | None) -> None:
    """out[row_out, from_out + k] += factor · x[row_x, from_x + k]; with ``log``, the same in logarithms."""
    ro, fo, rx, fx = np.uint64(row_out), np.uint64(from_out), np.uint64(row_x), np.uint64(from_x)
    if log is not None:
        _log_add_scaled(out, ro, fo, factor, x, rx, fx, np.uint64(size))
        return
    for k in range(np.uint64(size)):
        out[ro, fo + k] += factor * x[rx, fx + k]


@jit
def _log_add_scaled(out: Any, ro: Any, fo: Any, factor: float, x: Any, rx: Any, fx: Any, size: Any) -> None:
    if factor > -np.inf:
        for k in range(size):
            out[ro, fo + k] = log_add(out[ro, fo + k], factor + x[rx, fx + k])


@jit
def log_add(a: float, b: float) -> Any:
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
