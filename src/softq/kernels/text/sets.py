"""What the kernels of samplers share: rows of tokens, and sets of different sentences."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.text.hashing import enter, place_keys, table_size, token_hash
from softq.kernels.text.words import ZERO, Array

PATIENCE = 2000
"""Draws thrown away in a row before an example is left to the caller."""


class Rows(NamedTuple):
    """Sentences as kernels take them: S of each of B examples."""

    tokens: Array  # [B·S, L]
    lengths: Array  # int64 [B, S]; -1: missing


def as_rows(tokens: Tensor, lengths: Tensor) -> Rows:
    """Sentences ``[B, S, L]`` with lengths ``[B, S]`` as rows."""
    return Rows(as_array(tokens.flatten(0, 1)), as_array(lengths))


def empty_rows(batch: int, size: int, width: int, dtype: Any) -> Rows:
    """Rows to be filled by a kernel."""
    return Rows(np.empty((batch * size, width), dtype), np.empty((batch, size), np.int64))


def repeats(tokens: Tensor, lengths: Tensor) -> Tensor:
    """Which of ``tokens [B, S, L]`` repeat an earlier sentence of their example, bool ``[B, S]``.

    Missing ones do not.

    >>> repeats(torch.tensor([[[4, 5], [4, 6], [4, 5]]]), torch.tensor([[2, 2, 2]]))
    tensor([[False, False,  True]])
    """
    out = np.zeros(lengths.shape, np.bool_)
    rows, keys = as_rows(tokens, lengths), place_keys(tokens.shape[2] + 1)
    run_batch(_repeat_kernel, len(out), tokens.numel(), rows, keys, out)
    return torch.from_numpy(out).to(tokens.device)


@jit
def _repeat_kernel(first: int, stride: int, rows: Any, keys: Any, out: Any) -> None:
    batch, size = out.shape
    table = np.empty(table_size(size), np.uint64)
    for b in range(first, batch, stride):
        table[:] = ZERO
        for s in range(size):
            length = rows.lengths[b, s]
            if length >= 0:
                out[b, s] = not enter(table, token_hash(rows.tokens, b * size + s, 0, length, keys))


@jit
def copy_tokens(
    source: Any, from_row: int, start: int, size: int, out: Any, to_row: int, place: int
) -> None:
    """out[to_row, place:place+size] = source[from_row, start:start+size], without making views."""
    fr, fs, tr, tp = np.uint64(from_row), np.uint64(start), np.uint64(to_row), np.uint64(place)
    for t in range(np.uint64(size)):
        out[tr, tp + t] = source[fr, fs + t]


@jit
def fill_up(tokens: Any, row: int, length: int, pad: int) -> None:
    """Write the padding behind a sentence."""
    for t in range(np.uint64(length), np.uint64(tokens.shape[1])):
        tokens[np.uint64(row), t] = pad


@jit
def begin_set(refs: Any, b: int, keys: Any, pad: int, table: Any, hashes: Any, made: Any) -> int:
    """Begin the set of example b with its different references; how many they are.

    ``table`` holds the hashes of the set, ``hashes [R]`` are those of the references.
    """
    count, size = refs.lengths.shape[1], made.lengths.shape[1]
    table[:] = ZERO
    filled = 0
    for r in range(count):
        length = refs.lengths[b, r]
        if length >= 0:
            hashes[r] = token_hash(refs.tokens, b * count + r, 0, length, keys)
            if enter(table, hashes[r]):
                copy_tokens(
                    refs.tokens, b * count + r, 0, length, made.tokens, b * size + filled, 0
                )
                fill_up(made.tokens, b * size + filled, length, pad)
                made.lengths[b, filled] = length
                filled += 1
    return filled


@jit
def end_set(b: int, filled: int, pad: int, made: Any) -> None:
    """Mark what is missing in the set of example b."""
    for s in range(filled, made.lengths.shape[1]):
        made.lengths[b, s] = -1
        fill_up(made.tokens, b * made.lengths.shape[1] + s, 0, pad)
