"""Where the words of a reference stand, as bits: the ground of BLEU, chrF, edit distance and longest common subsequence.

A reference becomes a small hash table from word to the set of its positions, in 64-bit words. The kernels of
`softq.kernels.overlap` and `softq.kernels.edits` then walk over a candidate and treat all positions of the reference at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.numerics import length_mask

Array = np.ndarray[Any, Any]

EMPTY = np.int64(-1)  # no word has a negative number
ZERO, ONE = np.uint64(0), np.uint64(1)
FULL = np.uint64(0xFFFFFFFFFFFFFFFF)

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2, _M4 = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_H01 = np.uint64(0x0101010101010101)


def _table_bits(max_length: int) -> int:
    """Logarithm of the size of a table that stays at most half full."""
    return max(4, (2 * max_length - 1).bit_length())


def _words_needed(max_length: int) -> int:
    """64-bit words that hold one bit per position."""
    return max(1, (max_length + 63) // 64)


_LARGEST_DIRECT = 1 << 20
_PER_SHARE = 256

LANES = 16  # candidates that go side by side through a short kernel; eight leave the processor waiting for each other's results


def _split_candidates(batch: int, size: int) -> tuple[int, int]:
    """Into how many shares the candidates of each example are split among threads, and how many of them are in one."""
    wanted = -(-batch * size // (4 * torch.get_num_threads()))  # a few shares per thread even where there are few examples
    per_share = max(LANES, min(_PER_SHARE, wanted, max(size, 1)))
    per_share += -per_share % LANES
    return -(-size // per_share), per_share


def direct_size(references: Tensor, ref_lengths: Tensor) -> int:
    """Size of a table with one entry per word number and one for all larger ones, or 0 if that would be too large.

    With up to 64 positions per reference, looking a word up there takes no comparison; see `note_directly`.
    """
    if references.shape[2] > 64:
        return 0
    real = references.masked_fill(~length_mask(ref_lengths, references.shape[2]), 0)
    largest = int(real.max()) if real.numel() else 0
    return largest + 2 if largest + 2 <= _LARGEST_DIRECT else 0


def run_pairs(
    kernel: Any, candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor, *options: Any, per_word: int = 2
) -> None:
    """Run a kernel over all pairs, split among threads by examples and, where there are few, by their candidates.

    It is called with its share, how candidates are split, the size of a table of positions, candidates ``[B·S, L]``, lengths ``[B, S]``,
    references ``[B·R, M]``, their lengths ``[B, R]``, and the options. ``per_word`` is a rough count of operations.
    """
    batch, size, _ = candidates.shape
    shares, per_share = _split_candidates(batch, size)
    bits, words = _table_bits(references.shape[2]), _words_needed(references.shape[2])
    arrays = as_array(candidates.flatten(0, 1)), as_array(lengths), as_array(references.flatten(0, 1)), as_array(ref_lengths)
    operations = candidates.numel() * references.shape[1] * words * per_word
    run_batch(kernel, batch * shares, operations, shares, per_share, bits, words, *arrays, *options)


@jit
def find(keys: Any, token: int, bits: int) -> Any:
    """Slot that holds the token, or the empty one where it belongs."""
    last = (ONE << np.uint64(bits)) - ONE
    slot = (np.uint64(token) * _SPREAD) >> np.uint64(64 - bits)
    while keys[slot] != token and keys[slot] != EMPTY:
        slot = (slot + ONE) & last
    return slot


@jit
def note_positions(tokens: Any, row: int, length: int, keys: Any, masks: Any, bits: int) -> None:
    """Fill the table with the positions of ``tokens[row, :length]``; ``masks`` has one row of 64-bit words per slot."""
    for slot in range(keys.shape[0]):
        keys[slot] = EMPTY
    for t in range(length):
        slot = find(keys, tokens[row, t], bits)
        if keys[slot] == EMPTY:
            keys[slot] = tokens[row, t]
            for w in range(masks.shape[1]):
                masks[slot, w] = ZERO
        masks[slot, t >> 6] |= ONE << np.uint64(t & 63)


@jit
def note_directly(tokens: Any, row: int, length: int, table: Any) -> None:
    """Fill a table that is all zeros with the positions of ``tokens[row, :length]``, as one word each."""
    for t in range(length):
        table[np.uint64(tokens[row, t])] |= ONE << np.uint64(t)


@jit
def forget_directly(tokens: Any, row: int, length: int, table: Any) -> None:
    """Make the table all zeros again."""
    for t in range(length):
        table[np.uint64(tokens[row, t])] = ZERO


@jit
def count_bits(x: Any) -> int:
    """Number of ones in a 64-bit word."""
    x = x - ((x >> ONE) & _M1)
    x = (x & _M2) + ((x >> np.uint64(2)) & _M2)
    x = (x + (x >> np.uint64(4))) & _M4
    count: int = np.int64((x * _H01) >> np.uint64(56))  # type: ignore[assignment]
    return count
