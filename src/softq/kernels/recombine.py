"""Recombination: candidates in which an n-gram of one reference stands in the place of one of another.

A draw takes a reference i, then n, then a place, another reference j, then m, then a place, each uniformly, and writes the m-gram
of j over the n-gram of i. Draws that give a reference or an earlier candidate are thrown away, so the set is a sample without
replacement. Unlike in `softq.kernels.replace`, the length may change, and with it the place of every word behind the window: a
candidate is written first and hashed as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softq.kernels.hashing import enter, place_keys, sentence_hash, table_size
from softq.kernels.jit import jit, next_below, run_batch
from softq.kernels.words import ZERO, Array

_PATIENCE = 2000  # draws thrown away in a row before an example is left to the caller


def recombine(
    refs: Array, ref_lengths: Array, seeds: Array, max_n: int, pad: int, tokens: Array, lengths: Array
) -> tuple[Array, Array, Array]:
    """Fill ``tokens [B, S, L]`` and ``lengths [B, S]`` from ``refs [B, R, M]``; references come first, L ≥ M + max_n - 1.

    Returns:
        how many of the front are references, how many candidates there are in all, and whether draws ended because no new candidate
        came up for a long time, ``[B]`` each.

    """
    batch, size, width = tokens.shape
    fixed, found, gave_up = np.zeros(batch, np.int64), np.zeros(batch, np.int64), np.zeros(batch, np.bool_)
    rows, ref_rows = tokens.reshape(batch * size, width), refs.reshape(-1, refs.shape[2])
    run_batch(
        _recombine_kernel, batch, 100 * batch * size, ref_rows, ref_lengths, seeds, max_n, pad, place_keys(width + 1), rows, lengths,
        fixed, found, gave_up,
    )  # fmt: skip
    return fixed, found, gave_up


@jit
def _recombine_kernel(
    first: int, stride: int, refs: Any, ref_lengths: Any, seeds: Any, max_n: int, pad: int, keys: Any, tokens: Any, lengths: Any,
    fixed: Any, found: Any, gave_up: Any,
) -> None:  # fmt: skip
    batch, size = lengths.shape
    count, width = ref_lengths.shape[1], tokens.shape[1]
    table = np.empty(table_size(size), np.uint64)
    state = np.empty(1, np.uint64)
    usable = np.empty(count, np.int64)  # different references that have words
    for b in range(first, batch, stride):
        state[0] = seeds[b]
        table[:] = ZERO
        filled = 0
        usable_count = 0
        for r in range(count):
            length = ref_lengths[b, r]
            if length >= 0 and enter(table, sentence_hash(refs, b * count + r, length, keys)):
                _copy(refs, b * count + r, 0, length, tokens, b * size + filled, 0)
                lengths[b, filled] = length
                filled += 1
                if length > 0:
                    usable[usable_count] = r
                    usable_count += 1
        fixed[b] = filled
        failures = 0
        while filled < size and usable_count > 1 and failures < _PATIENCE:
            into = next_below(state, usable_count)
            out_of = next_below(state, usable_count - 1)
            out_of += out_of >= into  # another one
            i, j = usable[into], usable[out_of]
            length_i, length_j = ref_lengths[b, i], ref_lengths[b, j]
            n = 1 + next_below(state, min(max_n, length_i))
            p = next_below(state, length_i - n + 1)
            m = 1 + next_below(state, min(max_n, length_j))
            q = next_below(state, length_j - m + 1)
            row, length = b * size + filled, length_i - n + m
            _copy(refs, b * count + i, 0, p, tokens, row, 0)
            _copy(refs, b * count + j, q, m, tokens, row, p)
            _copy(refs, b * count + i, p + n, length_i - p - n, tokens, row, p + m)
            if enter(table, sentence_hash(tokens, row, length, keys)):
                lengths[b, filled] = length
                filled += 1
                failures = 0
            else:
                failures += 1
        found[b] = filled
        gave_up[b] = filled < size and usable_count > 1
        for s in range(size):
            if s >= filled:
                lengths[b, s] = -1
            for t in range(max(lengths[b, s], 0), width):
                tokens[b * size + s, t] = pad


@jit
def _copy(source: Any, from_row: int, start: int, size: int, out: Any, to_row: int, place: int) -> None:
    """out[to_row, place:place+size] = source[from_row, start:start+size], without the views that would cost more than the loop."""
    fr, fs, tr, tp = np.uint64(from_row), np.uint64(start), np.uint64(to_row), np.uint64(place)
    for t in range(np.uint64(size)):
        out[tr, tp + t] = source[fr, fs + t]
