"""Clipped n-gram matches of candidates with references, and sentence BLEU from them.

For candidate position i and order n let E_n be the set of positions at which a reference n-gram ends that equals the
candidate's n-gram ending at i. Then E_1 = positions of the word, E_n = (previous E_{n-1} shifted by one) ∩ E_1. Reference
positions of different n-grams are disjoint, so letting each candidate n-gram claim the first free position of its E_n
counts matches clipped at the reference's count: Σ over distinct n-grams of min(count in candidate, count in reference).

Candidates are ``[B, S, L]``, references ``[B, R, M]``; a length of -1 marks one that is missing, and its values are 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import fast_exp, jit
from softq.kernels.words import (
    EMPTY,
    LANES,
    ONE,
    ZERO,
    Array,
    count_bits,
    direct_size,
    find,
    forget_directly,
    note_directly,
    note_positions,
    run_pairs,
)

# Rules for orders without matches; see SentenceBLEU.
SMOOTHING = {"none": 0, "nltk3": 1, "mteval": 2, "sacrebleu": 3}
_NONE, _NLTK3, _MTEVAL = 0, 1, 2


def ngram_matches(candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor, order: int, *, union: bool) -> Tensor:
    """Clipped matches of orders 1..order, int32 ``[B, S, R, order]``; with ``union``, clipped over all references, ``[B, S, 1, order]``."""
    batch, size, _ = candidates.shape
    out = np.zeros((batch, size, 1 if union else references.shape[1], order), dtype=np.int32)
    run_pairs(_match_kernel, candidates, lengths, references, ref_lengths, order, union, out, per_word=order)
    return torch.from_numpy(out).to(candidates.device)


def sentence_bleu(
    candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor, order: int, rule: str, brevity: bool, effective: bool
) -> Tensor:
    """BLEU of each candidate against each reference, float64 ``[B, S, R]``."""
    out = np.zeros((*lengths.shape, references.shape[1]))
    pairs = candidates, lengths, references, ref_lengths
    options = SMOOTHING[rule], brevity, effective, log_table(candidates.shape[2]), out
    direct = direct_size(references, ref_lengths) if order == 4 else 0
    if direct:
        run_pairs(_bleu_kernel_short, *pairs, direct, *options, per_word=order)
    else:
        run_pairs(_bleu_kernel, *pairs, order, *options, per_word=order)
    return torch.from_numpy(out).to(candidates.device)


def bleu_from_matches(matches: Array, lengths: Array, ref_lengths: Array, rule: str, brevity: bool, effective: bool) -> Array:
    """BLEU from clipped matches ``[N, order]`` and lengths ``[N]``, float64 ``[N]``."""
    out = np.zeros(len(lengths))
    logs = log_table(int(lengths.max(initial=0)))
    _value_kernel(matches, lengths, ref_lengths, SMOOTHING[rule], brevity, effective, logs, out)
    return out


def log_table(largest: int) -> Array:
    """Logarithms of 0..largest; the first is not used."""
    return np.log(np.maximum(np.arange(largest + 1), 1))


@jit
def _log_bleu(counts: Any, row: int, order: int, length: int, ref_length: int, rule: int, brevity: bool, effective: bool, logs: Any) -> Any:
    """Log of BLEU from the clipped matches ``counts[row]`` under one of the smoothing rules."""
    if length == 0:
        return -np.inf
    present = min(order, length)  # orders of which the candidate has any n-gram
    if rule != _MTEVAL and (counts[row, 0] == 0 or (rule != _NLTK3 and present < order and not effective)):
        return -np.inf
    total = 0.0
    halvings = 0
    for n in range(present):
        if counts[row, n] > 0:
            total += logs[counts[row, n]] - logs[length - n]
        elif rule == _NONE:
            return -np.inf
        else:
            halvings += 1
            total -= halvings * 0.6931471805599453 + logs[length - n]
    if rule == _NLTK3 and not effective:  # an order without n-grams counts as one n-gram that fails
        for _ in range(present, order):
            halvings += 1
            total -= halvings * 0.6931471805599453
    exponent = total / (present if effective else order)
    if brevity and length < ref_length:
        exponent += 1.0 - ref_length / length
    return min(exponent, 0.0)


@jit
def _value_kernel(matches: Any, lengths: Any, ref_lengths: Any, rule: int, brevity: bool, effective: bool, logs: Any, out: Any) -> None:
    for i in range(len(out)):
        if lengths[i] >= 0 and ref_lengths[i] >= 0:
            out[i] = fast_exp(_log_bleu(matches, i, matches.shape[1], lengths[i], ref_lengths[i], rule, brevity, effective, logs))


@jit
def _claim(
    tokens: Any, row: int, length: int, keys: Any, masks: Any, bits: int, order: int, ends: Any, used: Any, counts: Any, hits: Any
) -> None:
    """Clipped matches of one candidate into ``counts[0]``; ``hits[n-1, i]`` is set where the n-gram that ends at i found a place."""
    words = masks.shape[1]
    for n in range(order + 1):
        for w in range(words):
            used[n, w] = ZERO
    for n in range(order):
        counts[0, n] = 0
    depth = 0  # longest n-gram that ends at the previous position and is in the reference
    for i in range(length):
        slot = find(keys, tokens[row, i], bits)
        reach = min(depth + 1, order)
        depth = 0
        if keys[slot] == EMPTY:
            continue
        for n in range(reach, 0, -1):
            found, claimed = False, False
            carry = ZERO
            for w in range(words):
                here = masks[slot, w]
                if n > 1:  # n falls, so ends[n - 1] still belongs to the previous position
                    before = ends[n - 1, w]
                    here &= (before << ONE) | carry
                    carry = before >> np.uint64(63)
                ends[n, w] = here
                if here != ZERO:
                    found = True
                    free = here & ~used[n, w]
                    if free != ZERO and not claimed:
                        used[n, w] |= free & (ZERO - free)
                        claimed = True
            if found:
                depth = max(depth, n)
            if claimed:
                counts[0, n - 1] += 1
                if hits is not None:
                    hits[n - 1, i] = True


@jit
def _match_kernel(
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
    order: int,
    union: bool,
    out: Any,
) -> None:
    size, count = lengths.shape[1], ref_lengths.shape[1]
    keys = np.empty((count, 1 << bits), np.int64)
    masks = np.empty((count, 1 << bits, words), np.uint64)
    ends, used = np.empty((order + 1, words), np.uint64), np.empty((order + 1, words), np.uint64)
    counts = np.empty((1, order), np.int32)
    hits = np.zeros((order, max(cands.shape[1], 1)), np.bool_)
    for share in range(first, lengths.shape[0] * shares, stride):
        b = share // shares
        start = (share % shares) * per_share
        for r in range(count):
            if ref_lengths[b, r] >= 0:
                note_positions(refs, b * count + r, ref_lengths[b, r], keys[r], masks[r], bits)
        for s in range(start, min(start + per_share, size)):
            length = lengths[b, s]
            hits[:, :] = False
            for r in range(count):
                if length < 0 or ref_lengths[b, r] < 0:
                    continue
                _claim(cands, b * size + s, length, keys[r], masks[r], bits, order, ends, used, counts, hits)
                if not union:
                    for n in range(order):
                        out[b, s, r, n] = counts[0, n]
            if union:  # the k-th occurrence finds a place where a reference has k of them: clipped at the largest count
                for n in range(order):
                    for i in range(length):
                        out[b, s, 0, n] += hits[n, i]


@jit
def _bleu_kernel(
    first: int, stride: int, shares: int, per_share: int, bits: int, words: int, cands: Any, lengths: Any, refs: Any, ref_lengths: Any,
    order: int, rule: int, brevity: bool, effective: bool, logs: Any, out: Any,
) -> None:  # fmt: skip
    size, count = lengths.shape[1], ref_lengths.shape[1]
    keys = np.empty(1 << bits, np.int64)
    masks = np.empty((1 << bits, words), np.uint64)
    ends, used = np.empty((order + 1, words), np.uint64), np.empty((order + 1, words), np.uint64)
    counts = np.empty((1, order), np.int32)
    for share in range(first, lengths.shape[0] * shares, stride):
        b = share // shares
        start = (share % shares) * per_share
        for r in range(count):
            if ref_lengths[b, r] < 0:
                continue
            note_positions(refs, b * count + r, ref_lengths[b, r], keys, masks, bits)
            for s in range(start, min(start + per_share, size)):
                if lengths[b, s] >= 0:
                    _claim(cands, b * size + s, lengths[b, s], keys, masks, bits, order, ends, used, counts, None)
                    out[b, s, r] = fast_exp(_log_bleu(counts, 0, order, lengths[b, s], ref_lengths[b, r], rule, brevity, effective, logs))


# The sets of sixteen candidates stand side by side in the state of the short kernel: E_1, E_2, E_3, the places claimed of each
# order, and the positions of the word that comes next. One array, fixed distances and unsigned indices, so that a loop over the
# sixteen vectorises.
_E2, _E3, _U1, _U2, _U3, _U4, _NEXT = (np.uint64(LANES * part) for part in range(1, 8))


@jit
def _take_word(state: Any) -> None:
    """One more word of each candidate."""
    for k in range(np.uint64(LANES)):
        e1 = state[k + _NEXT]
        e2 = (state[k] << ONE) & e1
        e3 = (state[k + _E2] << ONE) & e1
        e4 = (state[k + _E3] << ONE) & e1
        state[k] = e1
        state[k + _E2] = e2
        state[k + _E3] = e3
        claimed = state[k + _U1]
        free = e1 & ~claimed
        state[k + _U1] = claimed | (free & (ZERO - free))
        claimed = state[k + _U2]
        free = e2 & ~claimed
        state[k + _U2] = claimed | (free & (ZERO - free))
        claimed = state[k + _U3]
        free = e3 & ~claimed
        state[k + _U3] = claimed | (free & (ZERO - free))
        claimed = state[k + _U4]
        free = e4 & ~claimed
        state[k + _U4] = claimed | (free & (ZERO - free))


@jit
def _exponentiate(values: Any, size: int) -> None:
    """Apart from the rest, so that it vectorises."""
    for k in range(np.uint64(size)):
        values[k] = fast_exp(values[k])


@jit
def _bleu_kernel_short(
    first: int, stride: int, shares: int, per_share: int, bits: int, words: int, cands: Any, lengths: Any, refs: Any, ref_lengths: Any,
    direct: int, rule: int, brevity: bool, effective: bool, logs: Any, out: Any,
) -> None:  # fmt: skip
    """The common case, four orders and references of up to 64 words: sixteen candidates at a time; the places claimed are the counts.

    There is no branch on what matches: words are looked up in a table of all of them, in which most have no position.
    """
    size, count = lengths.shape[1], ref_lengths.shape[1]
    table = np.zeros(direct, np.uint64)
    last = np.uint64(direct - 1)  # stands for every word beyond the references'
    state = np.empty(8 * LANES, np.uint64)
    flat, width = cands.reshape(cands.size), np.uint64(cands.shape[1])
    counts = np.empty((1, 4), np.int32)
    log_value = np.empty(per_share)
    for share in range(first, lengths.shape[0] * shares, stride):
        b = share // shares
        start = (share % shares) * per_share
        end = min(start + per_share, size)
        for r in range(count):
            ref_length = ref_lengths[b, r]
            if ref_length < 0:
                continue
            note_directly(refs, b * count + r, ref_length, table)
            for block in range(start, end, LANES):
                first_word = np.uint64(b * size + block) * width
                last_lane: Any = np.uint64(min(LANES, end - block) - 1)  # stands in for those that are not there
                state[:] = ZERO
                shortest, longest = lengths[b, block], 0
                for s in range(block, min(block + LANES, end)):
                    shortest, longest = min(shortest, lengths[b, s]), max(longest, lengths[b, s])
                for i in range(np.uint64(longest)):
                    for k in range(np.uint64(LANES)):
                        word = np.uint64(flat[first_word + min(k, last_lane) * width + i])
                        state[k + _NEXT] = table[min(word, last)]
                    if np.int64(i) >= shortest:
                        for k in range(np.uint64(LANES)):
                            if np.int64(i) >= lengths[b, block + np.int64(min(k, last_lane))]:
                                state[k + _NEXT] = ZERO
                    _take_word(state)
                for k in range(np.uint64(4 * LANES)):
                    state[k + _U1] = np.uint64(count_bits(state[k + _U1]))
                for s in range(block, min(block + LANES, end)):
                    length = max(lengths[b, s], 0)
                    lane = np.uint64(s - block)
                    counts[0, 0], counts[0, 1] = state[lane + _U1], state[lane + _U2]
                    counts[0, 2], counts[0, 3] = state[lane + _U3], state[lane + _U4]
                    if counts[0, 3] > 0:  # and so are the others: every rule is the plain formula
                        total = logs[counts[0, 0]] + logs[counts[0, 1]] + logs[counts[0, 2]] + logs[counts[0, 3]]
                        total -= logs[length] + logs[length - 1] + logs[length - 2] + logs[length - 3]
                        short = brevity and length < ref_length
                        log_value[s - start] = min(0.25 * total + (1.0 - ref_length / length if short else 0.0), 0.0)
                    else:
                        log_value[s - start] = _log_bleu(counts, 0, 4, length, ref_length, rule, brevity, effective, logs)
            _exponentiate(log_value, end - start)
            for s in range(start, end):
                out[b, s, r] = log_value[s - start]
            forget_directly(refs, b * count + r, ref_length, table)
