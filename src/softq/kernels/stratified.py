"""Sentences at a random distance from a reference: Hamming (paper, Appendix D.2.4) and edits (Norouzi et al. 2016).

Both draw a reference uniformly, then the number of changes, then the changes. A sentence that costs d changes has weight
e^{-d/τ}, given as ``log_change`` = -1/τ. Words that may be written are ``words [W]``; ``place [V]`` is the index of a number in them,
or -1. Arrays of references are ``[B·R, M]``, filled up with the padding.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from softq.kernels.jit import jit, log_add, next_below, next_random, run_batch
from softq.kernels.words import Array


def hamming_samples(
    refs: Array,
    ref_lengths: Array,
    seeds: Array,
    words: Array,
    place: Array,
    log_change: float,
    keep_last: bool,
    tokens: Array,
    lengths: Array,
    log_prob: Array,
) -> None:
    """Fill ``tokens [B·S, M]``, ``lengths [B, S]`` and ``log_prob [B, S]`` with independent draws from q ∝ e^{-Hamming distance / τ}.

    At distance d there are C(L, d)(W-1)^d sentences, so that d is binomial: the number of positions that change.
    """
    longest = refs.shape[1]
    # Positions whose word could have been written have W - 1 others, the rest (such as an unknown word) have W.
    others = np.array([len(words) - 1, len(words)], dtype=np.float64)
    with np.errstate(divide="ignore"):
        log_ratio = np.log(others) + log_change  # odds that a position changes
    cumulative = np.stack([_binomial_tables(longest, ratio) for ratio in log_ratio])  # [2, L + 1, L + 1]
    log_z = np.logaddexp(0.0, log_ratio)  # per position
    batch = len(ref_lengths)
    operations = 3 * tokens.size
    run_batch(
        _hamming_kernel,
        batch,
        operations,
        refs,
        ref_lengths,
        seeds,
        words,
        place,
        log_change,
        keep_last,
        cumulative,
        log_z,
        tokens,
        lengths,
        log_prob,
    )


class EditLaw(NamedTuple):
    """How many edits a reference gets, by its length: e edits count c(e, L) = Σ_s C(L, s) C(L + e - 2s, e - s) W^e ways.

    s of the words are edited, each in one of W ways (W - 1 other words, or left out), and e - s words are inserted before or
    behind those that stay.
    """

    log_prob: Array  # float64 [L + 1, E + 1]
    log_ways: Array  # log c(e, L), float64 [L + 1, E + 1]
    log_factorial: Array
    most: int  # edits allowed; the arrays may hold fewer, where more never come


@lru_cache(maxsize=64)
def edit_law(longest: int, words: int, log_change: float, max_edits: int) -> EditLaw:
    """The law for lengths 0..longest with weight e^{log_change} per edit, cut where no draw would ever come."""
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, 2 * (longest + max_edits) + 2)))])
    ways = np.full((longest + 1, max_edits + 1), -np.inf)
    _fill_ways(ways, np.log(words), log_factorial)
    weight = ways + log_change * np.arange(max_edits + 1)
    log_prob = weight - np.logaddexp.reduce(weight, axis=1, keepdims=True)
    tail = np.exp(log_prob)[:, ::-1].cumsum(1)[:, ::-1].max(0)  # that there are e edits or more, at the length that has most
    edits = int((tail > 1e-17).sum())
    return EditLaw(np.ascontiguousarray(log_prob[:, :edits]), np.ascontiguousarray(ways[:, :edits]), log_factorial, max_edits)


def edit_samples(
    refs: Array,
    ref_lengths: Array,
    seeds: Array,
    words: Array,
    place: Array,
    law: EditLaw,
    keep_last: bool,
    pad: int,
    tokens: Array,
    lengths: Array,
    log_prob: Array,
) -> None:
    """The same with insertions, deletions and substitutions. Several ways may lead to one sentence: ``log_prob`` adds them up."""
    operations = 20 * tokens.size
    run_batch(
        _edit_kernel, len(ref_lengths), operations, refs, ref_lengths, seeds, words, place, keep_last, pad, *law, tokens, lengths, log_prob
    )


@lru_cache(maxsize=64)
def _binomial_tables(longest: int, log_ratio: float) -> Array:
    """Cumulative binomial probabilities ``[L + 1, L + 1]`` for every length up to ``longest`` at odds e^log_ratio."""
    table = np.ones((longest + 1, longest + 1))
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, longest + 1)))])
    for length in range(longest + 1):
        d = np.arange(length + 1)
        with np.errstate(invalid="ignore"):
            log_weight = log_factorial[length] - log_factorial[d] - log_factorial[length - d] + np.where(d > 0, d * log_ratio, 0.0)
        log_weight -= np.logaddexp.reduce(log_weight)
        table[length, : length + 1] = np.cumsum(np.exp(log_weight))
    return table


@jit
def _fill_ways(ways: Any, log_words: float, log_factorial: Any) -> None:
    for length in range(ways.shape[0]):
        for edits in range(min(length + 1, ways.shape[1])):
            total = -np.inf
            for edited in range(edits + 1):
                total = log_add(total, _log_places(length, edits, edited, log_factorial))
            ways[length, edits] = total + edits * log_words


@jit
def _log_places(length: int, edits: int, edited: int, log_factorial: Any) -> Any:
    inserted = edits - edited
    slots = length - edited + inserted
    first = log_factorial[length] - log_factorial[edited] - log_factorial[length - edited]
    return first + log_factorial[slots] - log_factorial[inserted] - log_factorial[slots - inserted]


@jit
def _known(token: int, place: Any) -> bool:
    return token < len(place) and place[token] >= 0


@jit
def _other_word(token: int, words: Any, place: Any, state: Any) -> Any:
    """A word that may be written and is not this one."""
    if not _known(token, place):
        return words[next_below(state, len(words))]
    other = next_below(state, len(words) - 1)
    return words[other + (other >= place[token])]


@jit
def _pick(count: int, order: Any, start: int, size: int, state: Any) -> None:
    """Bring a uniform choice of ``count`` of ``order[start:start+size]`` to the front."""
    for k in range(count):
        other = k + next_below(state, size - k)
        order[start + k], order[start + other] = order[start + other], order[start + k]


@jit
def _hamming_kernel(
    first: int, stride: int, refs: Any, ref_lengths: Any, seeds: Any, words: Any, place: Any, log_change: float, keep_last: bool,
    cumulative: Any, log_z: Any, tokens: Any, lengths: Any, log_prob: Any,
) -> None:  # fmt: skip
    batch, size = lengths.shape
    count, width = ref_lengths.shape[1], refs.shape[1]
    state = np.empty(1, np.uint64)
    usable = np.empty(count, np.int64)
    normaliser = np.empty(count)
    kinds = np.empty((count, 2), np.int64)  # positions whose word is known, and the others
    order = np.empty((count, max(width, 1)), np.int64)  # known positions from the front, others behind them
    for b in range(first, batch, stride):
        state[0] = seeds[b]
        present = 0
        for r in range(count):
            if ref_lengths[b, r] < 0:
                continue
            usable[present] = r
            present += 1
            kinds[r, 0] = kinds[r, 1] = 0
            for kind in range(2):
                for t in range(ref_lengths[b, r] - keep_last):
                    if _known(refs[b * count + r, t], place) == (kind == 0):
                        order[r, kinds[r, 0] + kinds[r, 1]] = t
                        kinds[r, kind] += 1
            normaliser[r] = kinds[r, 0] * log_z[0] + kinds[r, 1] * log_z[1]
        for s in range(size):
            r = usable[next_below(state, present)]
            ref, row = b * count + r, b * size + s
            for t in range(np.uint64(width)):
                tokens[np.uint64(row), t] = refs[np.uint64(ref), t]
            changed = 0
            start = 0
            for kind in range(2):
                positions = kinds[r, kind]
                if positions > 0:
                    u = next_random(state)
                    changes = 0
                    while changes < positions and u >= cumulative[kind, positions, changes]:
                        changes += 1
                    _pick(changes, order[r], start, positions, state)
                    for k in range(start, start + changes):
                        tokens[row, order[r, k]] = _other_word(refs[ref, order[r, k]], words, place, state)
                    changed += changes
                start += positions
            lengths[b, s] = ref_lengths[b, r]
            if present == 1:
                log_prob[b, s] = changed * log_change - normaliser[r]
            else:
                total = -np.inf
                for k in range(present):
                    other = usable[k]
                    if ref_lengths[b, other] == lengths[b, s]:
                        distance = _reach(tokens, row, refs, b * count + other, lengths[b, s], keep_last, place)
                        if distance >= 0:
                            total = log_add(total, distance * log_change - normaliser[other])
                log_prob[b, s] = total - np.log(present)


@jit
def _reach(tokens: Any, row: int, refs: Any, ref: int, length: int, keep_last: bool, place: Any) -> int:
    """Hamming distance, or -1 if a word that differs could not have been written there."""
    distance = 0
    for t in range(length):
        if tokens[row, t] != refs[ref, t]:
            if not _known(tokens[row, t], place) or (keep_last and t == length - 1):
                return -1
            distance += 1
    return distance


@jit
def _edit_kernel(
    first: int, stride: int, refs: Any, ref_lengths: Any, seeds: Any, words: Any, place: Any, keep_last: bool, pad: int,
    law: Any, ways: Any, log_factorial: Any, most: int, tokens: Any, lengths: Any, log_prob: Any,
) -> None:  # fmt: skip
    batch, size = lengths.shape
    count, width = ref_lengths.shape[1], tokens.shape[1]
    max_edits = law.shape[1] - 1
    state = np.empty(1, np.uint64)
    usable = np.empty(count, np.int64)
    order = np.empty(max(refs.shape[1], 1), np.int64)
    edited = np.empty(max(refs.shape[1], 1), np.bool_)
    free, held = np.empty((2, width + 1, max_edits + 1)), np.empty((2, width + 1, max_edits + 1))
    for b in range(first, batch, stride):
        state[0] = seeds[b]
        present = 0
        for r in range(count):
            if ref_lengths[b, r] >= 0:
                usable[present] = r
                present += 1
        for s in range(size):
            r = usable[next_below(state, present)]
            ref, row = b * count + r, b * size + s
            room = max(0, ref_lengths[b, r] - keep_last)
            u = next_random(state)
            edits, reached = 0, np.exp(law[room, 0])
            while u >= reached and edits < min(room, max_edits):
                edits += 1
                reached += np.exp(law[room, edits])
            # How many of the edits change a word that is there.
            u = next_random(state)
            total = ways[room, edits] - edits * np.log(float(len(words)))
            changed, reached = 0, np.exp(_log_places(room, edits, 0, log_factorial) - total)
            while u >= reached and changed < min(room, edits):
                changed += 1
                reached += np.exp(_log_places(room, edits, changed, log_factorial) - total)
            for t in range(room):
                order[t] = t
                edited[t] = False
            _pick(changed, order, 0, room, state)
            for k in range(changed):
                edited[order[k]] = True
            kept, inserted, length = room - changed, edits - changed, 0
            for t in range(room + 1):
                if t < room and edited[t]:
                    token = refs[ref, t]
                    # One of W ways: the last is to leave the word out, except where W words are other words.
                    if not _known(token, place) or next_below(state, len(words)) < len(words) - 1:
                        tokens[row, length] = _other_word(token, words, place, state)
                        length += 1
                    continue
                # Before a word that stays, and at the end: the words inserted there.
                while inserted > 0 and (t == room or next_below(state, kept + inserted) < inserted):
                    tokens[row, length] = words[next_below(state, len(words))]
                    length += 1
                    inserted -= 1
                if t < room:
                    tokens[row, length] = refs[ref, t]
                    length += 1
                    kept -= 1
            if room < ref_lengths[b, r]:
                tokens[row, length] = refs[ref, room]
                length += 1
            for t in range(length, width):
                tokens[row, t] = pad
            lengths[b, s] = length
            total_log = -np.inf
            for k in range(present):
                other = usable[k]
                value = _log_edit_probability(
                    tokens, row, length, refs, b * count + other, ref_lengths[b, other], keep_last, place, law, ways, most, free, held
                )
                total_log = log_add(total_log, value)
            log_prob[b, s] = total_log - np.log(present)


@jit
def _weigh_ways(
    tokens: Any, row: int, length: int, refs: Any, ref: int, ref_length: int, place: Any, edits: int, change: float, free: Any, held: Any
) -> Any:
    """Σ over the ways to make the sentence of change^e; the recursion of `_log_edit_probability` with e summed out."""
    for j in range(length + 1):
        free[0, j, 0] = 0.0
    free[0, 0, 0] = 1.0
    for i in range(ref_length + 1):
        now, then = i & 1, (i + 1) & 1
        low, high = max(0, i - edits), min(length, i + edits)
        held[now, low, 0] = 0.0
        for j in range(low + 1, high + 1):
            inserted = _known(tokens[row, j - 1], place)
            held[now, j, 0] = change * (free[now, j - 1, 0] + held[now, j - 1, 0]) if inserted else 0.0
        if i == ref_length:
            break
        left_out = change if _known(refs[ref, i], place) else 0.0
        for j in range(max(0, i + 1 - edits), min(length, i + 1 + edits) + 1):
            total = left_out * free[now, j, 0] if j <= high else 0.0
            if j > low:
                if tokens[row, j - 1] == refs[ref, i]:
                    total += free[now, j - 1, 0] + held[now, j - 1, 0]
                elif _known(tokens[row, j - 1], place):
                    total += change * free[now, j - 1, 0]
            free[then, j, 0] = total
    last = ref_length & 1
    return free[last, length, 0] + held[last, length, 0]


@jit
def _log_edit_probability(
    tokens: Any,
    row: int,
    length: int,
    refs: Any,
    ref: int,
    ref_length: int,
    keep_last: bool,
    place: Any,
    law: Any,
    ways: Any,
    most: int,
    free: Any,
    held: Any,
) -> Any:
    """Log of Σ over the ways to make the sentence from this reference of P(e) / c(e, L).

    ``free[., j, e]`` counts ways that have made j words with e edits and may go on with anything, ``held[., j, e]`` those that
    have just inserted a word and so must go on with another one, with a word that stays, or end.
    """
    if keep_last and ref_length > 0:
        if length == 0 or tokens[row, length - 1] != refs[ref, ref_length - 1]:
            return -np.inf
        length -= 1
        ref_length -= 1
    edits = min(law.shape[1] - 1, ref_length)
    if abs(length - ref_length) > edits:
        return -np.inf
    # P(e) / c(e, L) falls by one factor per edit. Where the law was cut because more edits never come, ways with more of them
    # add nothing, and a sum of weights will do instead of counts for each e.
    log_one = law[ref_length, 0] - ways[ref_length, 0]
    if 0 < edits < min(ref_length, most):
        log_change = law[ref_length, 1] - ways[ref_length, 1] - log_one
        if -log_change * edits < 600.0:
            return log_one + np.log(_weigh_ways(tokens, row, length, refs, ref, ref_length, place, edits, np.exp(log_change), free, held))
    for j in range(length + 1):
        for e in range(edits + 1):
            free[0, j, e] = 0.0
    free[0, 0, 0] = 1.0
    for i in range(ref_length + 1):
        now, then = i & 1, (i + 1) & 1
        low, high = max(0, i - edits), min(length, i + edits)
        for j in range(low, high + 1):
            inserted = j > low and _known(tokens[row, j - 1], place)
            held[now, j, 0] = 0.0
            for e in range(1, edits + 1):
                held[now, j, e] = free[now, j - 1, e - 1] + held[now, j - 1, e - 1] if inserted else 0.0
        if i == ref_length:
            break
        for j in range(max(0, i + 1 - edits), min(length, i + 1 + edits) + 1):
            for e in range(edits + 1):
                free[then, j, e] = 0.0
            if low <= j - 1 <= high:
                if tokens[row, j - 1] == refs[ref, i]:
                    for e in range(edits + 1):
                        free[then, j, e] += free[now, j - 1, e] + held[now, j - 1, e]
                elif _known(tokens[row, j - 1], place):
                    for e in range(edits):
                        free[then, j, e + 1] += free[now, j - 1, e]
            if low <= j <= high and _known(refs[ref, i], place):
                for e in range(edits):
                    free[then, j, e + 1] += free[now, j, e]
    last = ref_length & 1
    total = -np.inf
    for e in range(edits + 1):
        count = free[last, length, e] + held[last, length, e]
        if count > 0.0:
            total = log_add(total, np.log(count) + law[ref_length, e] - ways[ref_length, e])
    return total
