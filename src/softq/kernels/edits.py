"""Edit distance, longest common subsequence, equal positions and equality of candidates with references.

The first two walk over the candidate and treat 64 positions of the reference at a time (Myers 1999, Hyyrö 2003, 2004).
Candidates are ``[B, S, L]``, references ``[B, R, M]``; a length of -1 marks one that is missing, and its values are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import jit
from softq.kernels.words import (
    EMPTY,
    FULL,
    LANES,
    ONE,
    ZERO,
    count_bits,
    direct_size,
    find,
    forget_directly,
    note_directly,
    note_positions,
    run_pairs,
)


def edit_distance(candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor) -> Tensor:
    """Levenshtein distance of each candidate to each reference, int32 ``[B, S, R]``."""
    if references.shape[1] > candidates.shape[1] and not bool((candidates < 0).any()):
        # It is symmetric, and a table of one side pays the more often it is used.
        return edit_distance(references, ref_lengths, candidates, lengths).transpose(1, 2)
    direct = direct_size(references, ref_lengths)
    if direct:
        return _walk(_edit_kernel_short, candidates, lengths, references, ref_lengths, direct)
    return _walk(_edit_kernel, candidates, lengths, references, ref_lengths)


def common_subsequence(candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor) -> Tensor:
    """Length of the longest common subsequence, int32 ``[B, S, R]``."""
    return _walk(_subsequence_kernel, candidates, lengths, references, ref_lengths)


def equal_positions(candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor) -> Tensor:
    """Number of positions at which both have the same token, int32 ``[B, S, R]``."""
    return _walk(_equal_kernel, candidates, lengths, references, ref_lengths)


def equal(candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor) -> Tensor:
    """Whether candidate and reference are the same, bool ``[B, S, R]``."""
    same_length = lengths.unsqueeze(2) == ref_lengths.unsqueeze(1)
    positions = equal_positions(candidates, lengths, references, ref_lengths)
    return same_length & (positions == lengths.unsqueeze(2))


def _walk(kernel: Any, candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor, *options: Any) -> Tensor:
    out = np.zeros((*lengths.shape, references.shape[1]), dtype=np.int32)
    run_pairs(kernel, candidates, lengths, references, ref_lengths, *options, out)
    return torch.from_numpy(out).to(candidates.device)


# Sixteen candidates stand side by side in the state of the short kernel. Bit i of a rise (fall): the column of distances grows
# (shrinks) by one at row i. One array, fixed distances and unsigned indices, so that a loop over the sixteen vectorises.
_FALL, _NEXT, _DISTANCE, _ACTIVE = (np.uint64(LANES * part) for part in range(1, 5))  # rises come first


@jit
def _take_word(state: Any, top: Any) -> None:
    """One more word of each candidate; ``top`` is the last row of the table."""
    for k in range(np.uint64(LANES)):
        rise, fall, same = state[k], state[k + _FALL], state[k + _NEXT]
        diagonal = (((same & rise) + rise) ^ rise) | same | fall
        up = fall | ~(diagonal | rise)  # where the row of distances grows
        down = rise & diagonal
        state[k + _DISTANCE] += (((up >> top) & ONE) - ((down >> top) & ONE)) & state[k + _ACTIVE]
        up = (up << ONE) | ONE
        down = down << ONE
        state[k + _FALL] = up & diagonal
        state[k] = down | ~(diagonal | up)


@jit
def _edit_kernel_short(
    first: int,
    stride: int,
    shares: int,
    per_share: int,
    bits: int,
    words: int,
    cands: Any,
    lengths: Any,
    refs: Any,
    ref_lengths: Any,
    direct: int,
    out: Any,
) -> None:
    """References of up to 64 words, sixteen candidates at a time."""
    size, count = lengths.shape[1], ref_lengths.shape[1]
    table = np.zeros(direct, np.uint64)
    last = np.uint64(direct - 1)  # stands for every word beyond the references'
    state = np.empty(5 * LANES, np.uint64)
    flat, width = cands.reshape(cands.size), np.uint64(cands.shape[1])
    for share in range(first, lengths.shape[0] * shares, stride):
        b = share // shares
        start = (share % shares) * per_share
        end = min(start + per_share, size)
        for r in range(count):
            ref_length = ref_lengths[b, r]
            if ref_length < 0:
                continue
            note_directly(refs, b * count + r, ref_length, table)
            top = np.uint64(max(ref_length - 1, 0))
            for block in range(start, end, LANES):
                first_word = np.uint64(b * size + block) * width
                last_lane: Any = np.uint64(min(LANES, end - block) - 1)  # stands in for those that are not there
                shortest, longest = lengths[b, block], 0
                for k in range(np.uint64(LANES)):
                    length = lengths[b, block + np.int64(min(k, last_lane))]
                    shortest, longest = min(shortest, length), max(longest, length)
                    state[k], state[k + _FALL] = FULL, ZERO
                    state[k + _DISTANCE], state[k + _ACTIVE] = np.uint64(ref_length), FULL
                for i in range(np.uint64(longest)):
                    for k in range(np.uint64(LANES)):
                        word = np.uint64(flat[first_word + min(k, last_lane) * width + i])
                        state[k + _NEXT] = table[min(word, last)]
                    if np.int64(i) >= shortest:
                        for k in range(np.uint64(LANES)):
                            going = np.int64(i) < lengths[b, block + np.int64(min(k, last_lane))]
                            state[k + _ACTIVE] = FULL if going else ZERO
                    _take_word(state, top)
                for s in range(block, min(block + LANES, end)):
                    if lengths[b, s] >= 0:
                        out[b, s, r] = np.int64(state[_DISTANCE + np.uint64(s - block)]) if ref_length > 0 else lengths[b, s]
            forget_directly(refs, b * count + r, ref_length, table)


@jit
def _edit_kernel(
    first: int,
    stride: int,
    shares: int,
    per_share: int,
    bits: int,
    words: int,
    cands: Any,
    lengths: Any,
    refs: Any,
    ref_lengths: Any,
    out: Any,
) -> None:
    size, count = lengths.shape[1], ref_lengths.shape[1]
    keys = np.empty(1 << bits, np.int64)
    masks = np.empty((1 << bits, words), np.uint64)
    rises, falls = np.empty(words, np.uint64), np.empty(words, np.uint64)
    for share in range(first, lengths.shape[0] * shares, stride):
        b = share // shares
        start = (share % shares) * per_share
        for r in range(count):
            if ref_lengths[b, r] < 0:
                continue
            note_positions(refs, b * count + r, ref_lengths[b, r], keys, masks, bits)
            for s in range(start, min(start + per_share, size)):
                if lengths[b, s] >= 0:
                    out[b, s, r] = _edits(cands, b * size + s, lengths[b, s], keys, masks, bits, ref_lengths[b, r], rises, falls)


@jit
def _edits(tokens: Any, row: int, length: int, keys: Any, masks: Any, bits: int, ref_length: int, rises: Any, falls: Any) -> Any:
    """The same in blocks of 64 words, with the change of a block's last row carried into the next block."""
    words = (ref_length + 63) >> 6
    for w in range(words):
        rises[w], falls[w] = FULL, ZERO
    distance = ref_length if words > 0 else length
    for i in range(length if words > 0 else 0):
        slot = find(keys, tokens[row, i], bits)
        up_in, down_in = ONE, ZERO
        for w in range(words):
            same = masks[slot, w] if keys[slot] != EMPTY else ZERO
            rise, fall = rises[w], falls[w]
            stays = same | fall
            same |= down_in
            diagonal = (((same & rise) + rise) ^ rise) | same
            up = fall | ~(diagonal | rise)
            down = rise & diagonal
            top = np.uint64((ref_length - 1) & 63) if w == words - 1 else np.uint64(63)
            up_out, down_out = (up >> top) & ONE, (down >> top) & ONE
            up = (up << ONE) | up_in
            down = (down << ONE) | down_in
            rises[w] = down | ~(stays | up)
            falls[w] = up & stays
            up_in, down_in = up_out, down_out
        distance = distance + np.int64(up_in) - np.int64(down_in)  # type: ignore[assignment]
    return distance


@jit
def _subsequence_kernel(
    first: int,
    stride: int,
    shares: int,
    per_share: int,
    bits: int,
    words: int,
    cands: Any,
    lengths: Any,
    refs: Any,
    ref_lengths: Any,
    out: Any,
) -> None:
    size, count = lengths.shape[1], ref_lengths.shape[1]
    keys = np.empty(1 << bits, np.int64)
    masks = np.empty((1 << bits, words), np.uint64)
    steps = np.empty(words, np.uint64)
    for share in range(first, lengths.shape[0] * shares, stride):
        b = share // shares
        start = (share % shares) * per_share
        for r in range(count):
            if ref_lengths[b, r] < 0:
                continue
            note_positions(refs, b * count + r, ref_lengths[b, r], keys, masks, bits)
            for s in range(start, min(start + per_share, size)):
                # A zero bit marks a row at which the length of the common subsequence grows.
                for w in range(words):
                    steps[w] = FULL
                for i in range(lengths[b, s]):
                    slot = find(keys, cands[b * size + s, i], bits)
                    if keys[slot] == EMPTY:
                        continue
                    carry = ZERO
                    for w in range(words):
                        step = steps[w]
                        hit = step & masks[slot, w]
                        total = step + hit
                        over = total < step
                        total += carry
                        carry = ONE if over or total < carry else ZERO
                        steps[w] = total | (step - hit)
                total_bits = 0
                for w in range(words):
                    total_bits += count_bits(~steps[w])
                out[b, s, r] = total_bits


@jit
def _equal_kernel(
    first: int,
    stride: int,
    shares: int,
    per_share: int,
    bits: int,
    words: int,
    cands: Any,
    lengths: Any,
    refs: Any,
    ref_lengths: Any,
    out: Any,
) -> None:
    size, count = lengths.shape[1], ref_lengths.shape[1]
    for share in range(first, lengths.shape[0] * shares, stride):
        b = share // shares
        start = (share % shares) * per_share
        for s in range(start, min(start + per_share, size)):
            row = np.uint64(b * size + s)
            for r in range(count):
                ref = np.uint64(b * count + r)
                total = 0
                for i in range(np.uint64(max(0, min(lengths[b, s], ref_lengths[b, r])))):
                    total += cands[row, i] == refs[ref, i]
                out[b, s, r] = total
