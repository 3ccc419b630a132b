"""One recursion on numbers or on their logarithms: sums and products of either kind.

A recursion runs in probability space (``PLAIN``) as long as its numbers can be represented and
trusted, and once more in log space (``LOG``) where they cannot. With ``BEST`` it runs in log space
and the largest term of a sum stands for the sum. The choice is an argument that is None, True or
False, because numba leaves out of the compiled code what a None argument rules out; a number would
stay in every inner loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softq.kernels.jit import jit, ordered_jit

PLAIN, LOG, BEST = None, True, False

LOW, HIGH = 1e-100, 1e100  # nonzero numbers beyond are not trusted: a product of three must exist


@ordered_jit
def fast_exp(x: float) -> float:
    """e^x for x ≤ 0 to rounding, and 0 below -700; unlike a call to the C library it vectorises.

    Reordering the sums of the range reduction would undo it.
    """
    clipped = max(x, -700.0)
    power = np.floor(clipped * 1.4426950408889634 + 0.5)  # e^x = 2^power e^rest, |rest| ≤ log(2)/2
    rest = clipped - power * 0.6931471803691238 - power * 1.9082149292705877e-10
    p = 2.08767569878681e-09  # 1/12!, then Horner's rule down to 1/0!
    for coefficient in (
        2.505210838544172e-08,
        2.755731922398589e-07,
        2.7557319223985893e-06,
        2.48015873015873e-05,
        0.0001984126984126984,
        0.001388888888888889,
        0.008333333333333333,
        0.041666666666666664,
        0.16666666666666666,
        0.5,
        1.0,
        1.0,
    ):
        p = p * rest + coefficient
    value: float = p * np.int64((np.int64(power) + 1023) << 52).view(np.float64)
    return value if x >= -700.0 else 0.0


@jit
def times(a: float, b: float, log: bool | None) -> Any:
    """Product of a and b."""
    return a + b if log is not None else a * b


@jit
def inverse(a: float, log: bool | None) -> Any:
    """1 / a."""
    return -a if log is not None else 1.0 / a


@jit
def plus(a: float, b: float, log: bool | None) -> Any:
    """Sum of a and b."""
    if log is None:
        return a + b
    return log_add(a, b) if log else max(a, b)


@jit
def log_add(a: float, b: float) -> Any:
    """log(e^a + e^b), with log 0 = -inf."""
    if a < b:
        a, b = b, a
    if b == -np.inf:
        return a
    return a + np.log1p(np.exp(b - a))


@jit
def number(a: float, log: bool | None) -> Any:
    """The number that ``a`` stands for."""
    return np.exp(a) if log is not None else a


@jit
def lost(x: float) -> int:
    """1 for a number so small or large that a product with others might not be representable."""
    return int((x != 0.0) & ((x < LOW) | (x > HIGH)))


# The two inner loops of every recursion. They take a matrix, a row and a first column instead of a
# slice, because making an array view costs more than a short loop, and count with unsigned numbers,
# because an index that might be negative (numba would count it from the end) is not vectorised.


@jit
def dot(
    a: Any, row_a: int, from_a: int, b: Any, row_b: int, from_b: int, size: int, log: bool | None
) -> Any:
    """Sum over k of a[row_a, from_a + k] · b[row_b, from_b + k]."""
    ra, fa, rb, fb = np.uint64(row_a), np.uint64(from_a), np.uint64(row_b), np.uint64(from_b)
    if log is not None:  # apart, so that the common case is small enough to inline
        return _log_dot(a, ra, fa, b, rb, fb, np.uint64(size), log)
    total = 0.0
    for k in range(np.uint64(size)):
        total += a[ra, fa + k] * b[rb, fb + k]
    return total


@jit
def _log_dot(a: Any, ra: Any, fa: Any, b: Any, rb: Any, fb: Any, size: Any, log: bool) -> Any:
    peak = -np.inf
    for k in range(size):
        peak = max(peak, a[ra, fa + k] + b[rb, fb + k])
    if peak == -np.inf or not log:
        return peak
    total = 0.0
    for k in range(size):
        total += np.exp(a[ra, fa + k] + b[rb, fb + k] - peak)
    return peak + np.log(total)


@jit
def add_scaled(
    out: Any,
    row_out: int,
    from_out: int,
    factor: float,
    x: Any,
    row_x: int,
    from_x: int,
    size: int,
    log: bool | None,
) -> None:
    """out[row_out, from_out + k] += factor · x[row_x, from_x + k]."""
    ro, fo, rx, fx = np.uint64(row_out), np.uint64(from_out), np.uint64(row_x), np.uint64(from_x)
    for k in range(np.uint64(size)):
        out[ro, fo + k] = plus(out[ro, fo + k], times(factor, x[rx, fx + k], log), log)
