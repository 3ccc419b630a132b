"""Bits and tokens: what the kernels of `softq.kernels.text` share."""

from __future__ import annotations

from typing import Any

import numpy as np

from softq.kernels.jit import jit

Array = np.ndarray[Any, Any]

ZERO, ONE = np.uint64(0), np.uint64(1)
FULL = np.uint64(0xFFFFFFFFFFFFFFFF)

_M1, _M2 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_M4, _H01 = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


@jit
def same_positions(a: Any, row_a: int, b: Any, row_b: int, length: int) -> int:
    """Number of positions below ``length`` at which two sentences have the same token."""
    ra, rb = np.uint64(row_a), np.uint64(row_b)
    total = 0
    for t in range(np.uint64(length)):
        total += a[ra, t] == b[rb, t]
    return total


@jit
def count_bits(x: Any) -> Any:
    """Number of ones in a 64-bit word."""
    x = x - ((x >> ONE) & _M1)
    x = (x & _M2) + ((x >> np.uint64(2)) & _M2)
    x = (x + (x >> np.uint64(4))) & _M4
    return (x * _H01) >> np.uint64(56)
