"""Recombination: candidates in which an n-gram of one reference replaces one of another.

A draw takes a reference i, then n, then a place, another reference j, then m, then a place, each
uniformly, and writes the m-gram of j over the n-gram of i. Draws that give a reference or an
earlier candidate are thrown away, so the set is a sample without replacement. Unlike in
`softq.kernels.text.replace`, the length may change, and with it the place of every token behind the
window: a candidate is written first and hashed as a whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softq.kernels.jit import jit, run_batch
from softq.kernels.random import next_below
from softq.kernels.text.hashing import enter, place_keys, table_size, token_hash
from softq.kernels.text.sets import (
    PATIENCE,
    Rows,
    begin_set,
    copy_tokens,
    empty_rows,
    end_set,
    fill_up,
)
from softq.kernels.text.words import Array


def recombine(
    refs: Rows, seeds: Array, max_n: int, pad: int, size: int
) -> tuple[Rows, Array, Array]:
    """Sets of ``size`` candidates, the references first.

    Returns:
        candidates, how many of the front are references, and how many candidates there are in all,
        ``[B]`` each. Where a set stays short, there is one reference alone, or no new candidate
        came up for a long time.

    """
    batch, width = len(seeds), refs.tokens.shape[1] + max_n - 1
    made = empty_rows(batch, size, width, refs.tokens.dtype)
    fixed, found = np.zeros((2, batch), np.int64)
    keys, work = place_keys(width + 1), 100 * batch * size
    run_batch(_recombine_kernel, batch, work, refs, seeds, max_n, pad, keys, made, fixed, found)
    return made, fixed, found


@jit
def _recombine_kernel(
    first: int,
    stride: int,
    refs: Any,
    seeds: Any,
    max_n: int,
    pad: int,
    keys: Any,
    made: Any,
    fixed: Any,
    found: Any,
) -> None:
    batch, size = made.lengths.shape
    count, tokens, lengths = refs.lengths.shape[1], made.tokens, made.lengths
    table, hashes = np.empty(table_size(size), np.uint64), np.empty(count, np.uint64)
    state = np.empty(1, np.uint64)
    for b in range(first, batch, stride):
        state[0] = seeds[b]
        filled = fixed[b] = begin_set(refs, b, keys, pad, table, hashes, made)
        many, failures = filled, 0
        while filled < size and many > 1 and failures < PATIENCE:
            failures += 1
            i, j = next_below(state, many), next_below(state, many - 1)
            j += j >= i  # another one
            length_i, length_j = lengths[b, i], lengths[b, j]
            if length_i == 0 or length_j == 0:
                continue
            n = 1 + next_below(state, min(max_n, length_i))
            p = next_below(state, length_i - n + 1)
            m = 1 + next_below(state, min(max_n, length_j))
            q = next_below(state, length_j - m + 1)
            row, length = b * size + filled, length_i - n + m
            copy_tokens(tokens, b * size + i, 0, p, tokens, row, 0)
            copy_tokens(tokens, b * size + j, q, m, tokens, row, p)
            copy_tokens(tokens, b * size + i, p + n, length_i - p - n, tokens, row, p + m)
            if enter(table, token_hash(tokens, row, 0, length, keys)):
                fill_up(tokens, row, length, pad)
                lengths[b, filled] = length
                filled += 1
                failures = 0
        found[b] = filled
        end_set(b, filled, pad, made)
