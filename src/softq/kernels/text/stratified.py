"""Sentences at a random distance from a reference.

Hamming (paper, App. D.2.4) or edits (Norouzi 2016), with a reference that is drawn uniformly. A
sentence that costs d changes has weight e^{-d/τ}, given as ``log_change`` = -1/τ. References are
filled up with the padding.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from softq.kernels.jit import jit, run_batch
from softq.kernels.random import next_below, next_random
from softq.kernels.semiring import log_add
from softq.kernels.text.sets import Rows, copy_tokens, empty_rows, fill_up
from softq.kernels.text.words import Array


class ReplacementWords(NamedTuple):
    """The token ids that may be written."""

    ids: Array  # int64 [W]
    place: Array  # int64 [V]: the index of a token id in ``ids``, or -1


class EditLaw(NamedTuple):
    """How many edits e a reference of L tokens gets: P(e) ∝ c(e, L) e^{-e/τ}.

    There are c(e, L) = Σ_s C(L, s) C(L + e - 2s, e - s) W^e ways: s of the tokens are edited, each
    in one of W ways (W - 1 other words, or left out), and e - s words are inserted before or behind
    those that stay.
    """

    log_change: float
    log_none: Array  # log P(0), float64 [L + 1]
    cumulative: Array  # that there are e edits or fewer, float64 [L + 1, E + 1]
    inserted: Array  # that all of e edits are insertions, float64 [L + 1, E + 1]
    most: int  # edits allowed; the arrays may hold fewer, where more never come


@lru_cache(maxsize=64)
def edit_law(longest: int, words: int, log_change: float, max_edits: int) -> EditLaw:
    """The law for lengths 0..longest, cut where no draw would ever come."""
    edits = np.arange(max_edits + 1)
    log_ways, log_inserted = np.zeros((2, longest + 1, max_edits + 1))  # c(e, L) / W^e; C(L + e, e)
    for length in range(longest):
        # One token more is edited, or stays behind any number of words that are inserted.
        log_inserted[length + 1] = np.logaddexp.accumulate(log_inserted[length])
        log_ways[length + 1] = np.logaddexp.accumulate(log_ways[length])
        log_ways[length + 1, 1:] = np.logaddexp(log_ways[length + 1, 1:], log_ways[length, :-1])
    weight = log_ways + edits * (np.log(words) + log_change)
    weight[edits > np.arange(longest + 1)[:, None]] = -np.inf
    log_prob = weight - np.logaddexp.reduce(weight, axis=1, keepdims=True)
    prob = np.exp(log_prob)
    tail = prob[:, ::-1].cumsum(1)[:, ::-1].max(0)  # e edits or more, at the length that has most
    tables = prob.cumsum(1), np.exp(log_inserted - log_ways)
    cumulative, inserted = (table[:, tail > 1e-17].copy() for table in tables)
    return EditLaw(log_change, log_prob[:, 0].copy(), cumulative, inserted, max_edits)


def stratified_samples(
    refs: Rows,
    seeds: Array,
    words: ReplacementWords,
    law: float | EditLaw,
    keep_last: bool,
    pad: int,
    size: int,
) -> tuple[Rows, Array]:
    """Independent draws, and their log-probabilities ``[B, S]``.

    ``law`` is that of edits, or the weight ``log_change`` of a position that differs. Several ways
    of edits may lead to one sentence: they are added up.
    """
    kernel: Any = _hamming_kernel
    width, work = refs.tokens.shape[1], 3
    if isinstance(law, EditLaw):
        width, kernel, work = width + law.cumulative.shape[1] - 1, _edit_kernel, 20
    made = empty_rows(len(seeds), size, width, refs.tokens.dtype)
    log_prob = np.empty(made.lengths.shape)
    given = refs, seeds, words, law, keep_last, pad, made, log_prob
    run_batch(kernel, len(seeds), work * made.tokens.size, *given)
    return made, log_prob


@jit
def _other_word(token: int, words: Any, state: Any) -> Any:
    """A word that may be written and is not this token."""
    if words.place[token] < 0:
        return words.ids[next_below(state, len(words.ids))]
    other = next_below(state, len(words.ids) - 1)
    return words.ids[other + (other >= words.place[token])]


@jit
def _hamming_kernel(
    first: int,
    stride: int,
    refs: Any,
    seeds: Any,
    words: Any,
    log_change: float,
    keep_last: bool,
    _pad: int,
    made: Any,
    log_prob: Any,
) -> None:
    """Sentences at Hamming distance d from a reference, of weight e^{-d/τ}.

    That is a product over positions, of which each changes whatever the others do. A position stays
    with probability 1 / Z. Those whose token could have been written have W - 1 others, so that
    Z = 1 + (W - 1) e^{-1/τ}; the rest, such as an unknown word, have W.
    """
    batch, size = made.lengths.shape
    count, width = refs.lengths.shape[1], refs.tokens.shape[1]
    others = len(words.ids) + np.array([-1.0, 0.0])  # of a token that is known, and of another
    z_of = 1.0 + others * np.exp(log_change)
    state, log_z = np.empty(1, np.uint64), np.log(z_of)
    z, normaliser = np.empty((count, width)), np.empty(count)  # Z of each position; log of all
    for b in range(first, batch, stride):
        state[0] = seeds[b]
        many = (refs.lengths[b] >= 0).sum()
        for r in range(many):
            normaliser[r] = 0.0
            for t in range(refs.lengths[b, r] - keep_last):
                kind = 1 if words.place[refs.tokens[b * count + r, t]] < 0 else 0
                z[r, t] = z_of[kind]
                normaliser[r] += log_z[kind]
        for s in range(size):
            r = next_below(state, many)
            ref, row = b * count + r, b * size + s
            copy_tokens(refs.tokens, ref, 0, width, made.tokens, row, 0)
            # One random number serves until a position changes: n positions stay where it lies
            # below 1 / (Z_1 ⋯ Z_n).
            u, changed = next_random(state), 0
            for t in range(refs.lengths[b, r] - keep_last):
                u *= z[r, t]
                if u >= 1.0:
                    made.tokens[row, t] = _other_word(refs.tokens[ref, t], words, state)
                    u, changed = next_random(state), changed + 1
            made.lengths[b, s] = refs.lengths[b, r]
            log_prob[b, s] = changed * log_change - normaliser[r]
            if many > 1:
                total = -np.inf
                for other in range(many):
                    value = _log_hamming(made, b, s, refs, other, words, log_change, keep_last)
                    total = log_add(total, value - normaliser[other])
                log_prob[b, s] = total - np.log(many)


@jit
def _log_hamming(
    made: Any, b: int, s: int, refs: Any, r: int, words: Any, log_change: float, keep_last: bool
) -> Any:
    """Log of e^{-distance / τ}, or of 0 if a token that differs could not have been written."""
    row, ref = b * made.lengths.shape[1] + s, b * refs.lengths.shape[1] + r
    length = made.lengths[b, s]
    if refs.lengths[b, r] != length:
        return -np.inf
    distance = 0
    for t in range(length):
        token = made.tokens[row, t]
        if token != refs.tokens[ref, t]:
            if words.place[token] < 0 or (keep_last and t == length - 1):
                return -np.inf
            distance += 1
    return distance * log_change


@jit
def _edit_kernel(
    first: int,
    stride: int,
    refs: Any,
    seeds: Any,
    words: Any,
    law: Any,
    keep_last: bool,
    pad: int,
    made: Any,
    log_prob: Any,
) -> None:
    batch, size = made.lengths.shape
    count, tokens = refs.lengths.shape[1], made.tokens
    most = law.cumulative.shape[1] - 1
    shape = (2, tokens.shape[1] + 1, most + 1)
    state, free, held = np.empty(1, np.uint64), np.empty(shape), np.empty(shape)
    for b in range(first, batch, stride):
        state[0] = seeds[b]
        many = (refs.lengths[b] >= 0).sum()
        for s in range(size):
            r = next_below(state, many)
            ref, row = b * count + r, b * size + s
            room = max(0, refs.lengths[b, r] - keep_last)
            u, edits = next_random(state), 0
            while edits < min(room, most) and u >= law.cumulative[room, edits]:
                edits += 1
            # How many of the edits change a token that is there: C(L, s) C(L + e - 2s, e - s) ways.
            u, changed, share = next_random(state), 0, law.inserted[room, edits]
            reached = share
            while u >= reached and changed < min(room, edits):
                slots = room + edits - 2 * changed
                share *= (
                    (room - changed) ** 2
                    * (edits - changed)
                    / ((changed + 1) * slots * (slots - 1))
                )
                changed += 1
                reached += share
            kept, inserted, length = room - changed, edits - changed, 0
            for t in range(room + 1):
                if t < room and next_below(state, room - t) < changed:  # of those left, so many
                    changed -= 1
                    token = refs.tokens[ref, t]
                    # One of W ways: the last is to leave it out, except where W words are others.
                    ways = len(words.ids)
                    if words.place[token] < 0 or next_below(state, ways) < ways - 1:
                        tokens[row, length] = _other_word(token, words, state)
                        length += 1
                    continue
                # Before a token that stays, and at the end: the words inserted there.
                while inserted > 0 and (t == room or next_below(state, kept + inserted) < inserted):
                    tokens[row, length] = words.ids[next_below(state, len(words.ids))]
                    length += 1
                    inserted -= 1
                if t < refs.lengths[b, r]:  # at the end: the last token, where it is kept
                    tokens[row, length] = refs.tokens[ref, t]
                    length += 1
                    kept -= 1
            fill_up(tokens, row, length, pad)
            made.lengths[b, s] = length
            total = -np.inf
            for other in range(many):
                value = _log_edit_probability(
                    made, b, s, refs, other, words, law, keep_last, free, held
                )
                total = log_add(total, value)
            log_prob[b, s] = total - np.log(many)


@jit
def _log_edit_probability(
    made: Any,
    b: int,
    s: int,
    refs: Any,
    r: int,
    words: Any,
    law: Any,
    keep_last: bool,
    free: Any,
    held: Any,
) -> Any:
    """Log of Σ over the ways to make the sentence from this reference of P(e) / c(e, L)."""
    row, ref = b * made.lengths.shape[1] + s, b * refs.lengths.shape[1] + r
    last = keep_last and refs.lengths[b, r] > 0
    length, ref_length = made.lengths[b, s] - last, refs.lengths[b, r] - last
    if last and (length < 0 or made.tokens[row, length] != refs.tokens[ref, ref_length]):
        return -np.inf
    edits = min(law.cumulative.shape[1] - 1, ref_length)
    if abs(length - ref_length) > edits:
        return -np.inf
    # Where the law was cut because more edits never come, ways with more of them add nothing, and
    # a sum of weights will do instead of counts for each e.
    weighted = 0 < edits < min(ref_length, law.most) and law.log_change * edits > -600.0
    given = made.tokens, row, length, refs.tokens, ref, ref_length, words.place, edits
    if weighted:
        _sum_ways(*given, np.exp(law.log_change), None, free, held)
    else:
        _sum_ways(*given, 1.0, True, free, held)
    total, now = -np.inf, ref_length & 1
    for e in range(1 if weighted else edits + 1):
        log_ways = np.log(free[now, length, e] + held[now, length, e])
        total = log_add(total, log_ways + e * law.log_change)
    return total + law.log_none[ref_length]  # P(e) / c(e, L) is e^{log_change} · P(e-1) / c(e-1, L)


@jit
def _sum_ways(
    tokens: Any,
    row: int,
    length: int,
    refs: Any,
    ref: int,
    ref_length: int,
    place: Any,
    edits: int,
    change: float,
    counted: Any,
    free: Any,
    held: Any,
) -> None:
    """Sum change^e over the ways to make the sentence with e ≤ ``edits`` edits.

    ``free[., j, e]`` are ways that have made j tokens with e edits and may continue with anything,
    ``held[., j, e]`` those that have just inserted a word and so must continue with another one, or
    with a token that stays, or end. Unless ``counted``, e is summed out and only e = 0 is there.
    The first index is the number of tokens of the reference read so far, modulo 2.
    """
    wide, step = 1, 0
    if counted is not None:
        wide, step = edits + 1, 1
    for j in range(length + 1):
        for e in range(wide):
            free[0, j, e] = 1.0 if j + e == 0 else 0.0
    for i in range(ref_length + 1):
        now, then = i & 1, (i + 1) & 1
        low, high = max(0, i - edits), min(length, i + edits)
        for j in range(low, high + 1):
            inserted = j > low and place[tokens[row, j - 1]] >= 0
            held[now, j, 0] = 0.0
            for e in range(step, wide):
                before = free[now, j - 1, e - step] + held[now, j - 1, e - step]
                held[now, j, e] = change * before if inserted else 0.0
        if i == ref_length:
            break
        left_out = change if place[refs[ref, i]] >= 0 else 0.0
        for j in range(max(0, i + 1 - edits), min(length, i + 1 + edits) + 1):
            same = j > low and tokens[row, j - 1] == refs[ref, i]
            other = j > low and place[tokens[row, j - 1]] >= 0 and not same
            for e in range(wide):
                total = free[now, j - 1, e] + held[now, j - 1, e] if same else 0.0
                if e >= step:
                    total += change * free[now, j - 1, e - step] if other else 0.0
                    total += left_out * free[now, j, e - step] if j <= high else 0.0
                free[then, j, e] = total
