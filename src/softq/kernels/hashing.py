"""Hashes of sentences, and which candidates of an example are the same.

A hash has 64 bits of a fixed random sum; that two different sentences of one example share it is not to be expected.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, next_word, run_batch
from softq.kernels.words import ONE, ZERO, Array


def repeats(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Which sentences of ``tokens [B, S, L]`` repeat an earlier one of their example, bool ``[B, S]``; missing ones do not."""
    batch, size, width = tokens.shape
    out = np.zeros((batch, size), dtype=np.bool_)
    rows = as_array(tokens.reshape(batch * size, width))
    run_batch(_repeat_kernel, batch, tokens.numel(), rows, as_array(lengths), place_keys(width + 1), out)
    return torch.from_numpy(out).to(tokens.device)


def place_keys(size: int) -> Array:
    """One odd random number per position: a sentence's hash is Σ (token + 1) · key, so an edit changes it by a few terms."""
    state = np.array([0x243F6A8885A308D3], dtype=np.uint64)
    with np.errstate(over="ignore"):
        return np.array([next_word(state) | ONE for _ in range(size)], dtype=np.uint64)


@jit
def sentence_hash(tokens: Any, row: int, length: int, keys: Any) -> Any:
    """Σ (token + 1) · key plus a term for the length; never 0."""
    value = np.uint64(length) * keys[len(keys) - 1]
    for t in range(length):
        value += (np.uint64(tokens[row, t]) + ONE) * keys[t]
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
    size = 16
    while size < 2 * entries:
        size *= 2
    return size


@jit
def _repeat_kernel(first: int, stride: int, tokens: Any, lengths: Any, keys: Any, out: Any) -> None:
    batch, size = lengths.shape
    table = np.empty(table_size(size), np.uint64)
    for b in range(first, batch, stride):
        table[:] = ZERO
        for s in range(size):
            if lengths[b, s] >= 0:
                out[b, s] = not enter(table, sentence_hash(tokens, b * size + s, lengths[b, s], keys))
