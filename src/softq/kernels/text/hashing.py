"""Hashes of sentences and n-grams, and a table of them.

A hash has 64 bits of a fixed random sum; that two different sentences of one example share it is
not to be expected.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from softq.kernels.jit import jit
from softq.kernels.text.words import ONE, ZERO, Array


@lru_cache(maxsize=64)
def place_keys(size: int) -> Array:
    """One odd random number per position, and one for the length; see `token_hash`."""
    return np.random.default_rng(0).integers(1 << 64, size=size, dtype=np.uint64) | ONE


@jit
def token_hash(tokens: Any, row: int, start: int, length: int, keys: Any) -> Any:
    """Of so many tokens: Σ (token + 1) · key plus a term for the length; never 0.

    An edit changes it by a few terms.
    """
    value = np.uint64(length) * keys[len(keys) - 1]
    for t in range(length):
        value += (np.uint64(tokens[row, start + t]) + ONE) * keys[t]
    return value if value != ZERO else ONE


@jit
def enter(table: Any, value: Any) -> bool:
    """Put a hash into the table; False if it was there."""
    last = np.uint64(len(table) - 1)
    slot = (value * np.uint64(0x9E3779B97F4A7C15)) & last
    while table[slot] != ZERO:
        if table[slot] == value:
            return False
        slot = (slot + ONE) & last
    table[slot] = value
    return True


@jit
def table_size(entries: int) -> int:
    """A power of two that leaves a table half empty."""
    return 1 << int(np.ceil(np.log2(max(16, 2 * entries))))
