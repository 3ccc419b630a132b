"""Sixteen candidates side by side against one reference: edits, common subsequences and n-grams.

A reference is a table of the positions of each token, 64 to a word. All candidates read a token at
once, and a step treats 64 positions of the reference at a time (Myers 1999, Hyyrö 2003, 2004).

The state has a block for each word, and one more for what is carried beyond the last. A block has
parts, and a part has one 64-bit number for each of the sixteen: that of candidate k in part p of
block w is at ``(w · parts + p) · LANES + k``. Part 0 are the positions of the tokens that are read,
part 1 the lengths of the candidates; the others begin with zeros. Loops over the sixteen have no
branches, unsigned indices, and few distances between what is read and written that are not
constants, so that they vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softq.kernels.jit import jit
from softq.kernels.text.words import FULL, ONE, ZERO

LANES = np.uint64(16)
"""With eight the processor would wait for each other's results."""

EDITS, SUBSEQUENCE, NGRAMS, UNION = range(4)

_LAST = np.uint64(63)
_P1, _P2, _P3, _P4, _P5, _P6, _P7 = (np.uint64(16 * part) for part in range(1, 8))
# Of n-grams up to four: E_1, E_2, E_3, and what is claimed of each order; see `_take_ngrams`.
_E1, _E2, _E3, _U1, _U2, _U3, _U4 = (np.uint64(16 * part) for part in (4, 5, 6, 8, 9, 10, 11))


@jit
def count_parts(measure: int, order: Any) -> Any:
    """Number of parts of a block."""
    return np.uint64(7) if measure == EDITS else order + order + np.uint64(4)


@jit
def read_short(
    tokens: Any, first_row: Any, last_lane: Any, longest: Any, table: Any, top: Any, state: Any
) -> None:
    """Read candidates from ``first_row`` on against a reference of one word, in ``table [V]``.

    Edits, or n-grams up to four if ``top``, the last row of the reference, is None. Where there are
    fewer candidates, the one in ``last_lane`` stands in for them. The last entry of the table is
    for all tokens that are larger than those of the reference.
    """
    last = np.uint64(len(table) - 1)
    for i in range(longest):
        for k in range(LANES):
            token = np.uint64(tokens[first_row + min(k, last_lane), i])
            state[k] = table[min(token, last)] if i < state[k + _P1] else ZERO
        if top is None:
            _take_four_ngrams(state)
        else:
            _take_edits(state, None, i, top)


@jit
def read_long(
    tokens: Any,
    first_row: Any,
    last_lane: Any,
    longest: Any,
    table: Any,
    top: Any,
    state: Any,
    words: Any,
    measure: int,
    order: Any,
    seen: Any,
) -> None:
    """The same against a reference of several words, in ``table [V, W]``, by any measure."""
    parts, reach, last = count_parts(measure, order), ZERO, np.uint64(len(table) - 1)
    for i in range(longest):
        for w in range(words):
            at = w * parts * LANES
            for k in range(LANES):
                token = np.uint64(tokens[first_row + min(k, last_lane), i])
                found = table[min(token, last), w]
                state[at + k] = found if i < state[at + k + _P1] else ZERO
        reach = min(reach + ONE, order)
        if measure == EDITS:
            _take_edits(state, words, i, top)
        elif measure == SUBSEQUENCE:
            _take_subsequences(state, words, parts)
        else:
            reach = _take_ngrams(state, words, order, reach, i, seen)


@jit
def _take_edits(state: Any, words: Any, i: Any, top: Any) -> None:
    """Token i of the candidates; ``words`` is None if there is one.

    Part 2 is where the column of distances does not rise, part 3 where it falls. Parts 4 and 5 are
    carried: that the row above does not grow, and that it shrinks. Part 6 is how far the distance
    of row ``top`` is from the length of the reference.
    """
    for w in range(ONE if words is None else words):
        for k in range(LANES):
            at = w * _P7 + k
            up_in, down_in = ONE, ZERO
            if words is not None:
                up_in, down_in = ONE - state[at + _P4], state[at + _P5]
            rise, fall = ~state[at + _P2], state[at + _P3]
            stays, same = state[at] | fall, state[at] | down_in
            diagonal = (((same & rise) + rise) ^ rise) | same
            up = fall | ~(diagonal | rise)  # where the row of distances grows
            down = rise & diagonal
            change = ((up >> top) & ONE) - ((down >> top) & ONE)
            state[at + _P6] += change if i < state[at + _P1] else ZERO
            above = (up << ONE) | up_in
            state[at + _P2] = ~((down << ONE) | down_in | ~(stays | above))
            state[at + _P3] = above & stays
            if words is not None:
                state[at + _P7 + _P4] = ONE - (up >> _LAST)
                state[at + _P7 + _P5] = down >> _LAST


@jit
def _take_subsequences(state: Any, words: Any, parts: Any) -> None:
    """A token. Part 2 is carried, part 5 is where the length of the subsequence grows."""
    for w in range(words):
        for k in range(LANES):
            at = w * parts * LANES + k
            step, carry = ~state[at + _P5], state[at + _P2]
            hit = step & state[at]
            total = step + hit + carry
            over = total < step or (total == step and carry == ONE)
            state[at + _P5] = ~(total | (step - hit))
            state[at + parts * LANES + _P2] = ONE if over else ZERO


@jit
def _take_ngrams(state: Any, words: Any, order: Any, reach: Any, i: Any, seen: Any) -> Any:
    """Token i, where n-grams of the first ``reach`` orders can match; the largest that does.

    Let E_n be the set of positions at which a reference n-gram ends that equals the candidate's
    n-gram ending at i. Then E_1 = positions of the token, E_n = (previous E_{n-1} shifted by one) ∩
    E_1. Reference positions of different n-grams are disjoint, so letting each candidate n-gram
    claim the first free position of its E_n counts matches clipped at the reference's count: Σ over
    distinct n-grams of min(count in candidate, count in reference).

    Part n + 3 is E_n, part n + 3 + order the positions that are claimed. Parts 2 and 3 are carried:
    the bit to shift in, and whether a position has been claimed. ``seen[k, n-1, i]``, if given, is
    set where the n-gram found a position.
    """
    block = count_parts(NGRAMS, order) * LANES
    largest = ZERO
    for m in range(reach):
        n = reach - m  # falls, so that E_{n-1} still belongs to the previous token
        found = ZERO
        for w in range(words):
            for k in range(LANES):
                at = w * block + k
                end, used = at + _P3 + n * LANES, at + _P3 + (order + n) * LANES
                here = state[at]
                if n > ONE:
                    here &= (state[end - LANES] << ONE) | state[at + _P2]
                    state[at + block + _P2] = state[end - LANES] >> _LAST
                claim = here & ~state[used]
                claim &= (ZERO - claim) & ~state[at + _P3]  # the first
                state[end] = here
                state[used] |= claim
                state[at + block + _P3] = state[at + _P3] | (ZERO if claim == ZERO else FULL)
                found |= here
                if seen is not None:
                    seen[k, n - ONE, i] |= claim != ZERO
        if found != ZERO:
            largest = max(largest, n)
    return largest


@jit
def _take_four_ngrams(state: Any) -> None:
    """A token, as in `_take_ngrams`, for four orders and one word: all distances are constants."""
    for k in range(LANES):
        e1 = state[k]
        e2, e3 = (state[k + _E1] << ONE) & e1, (state[k + _E2] << ONE) & e1
        e4 = (state[k + _E3] << ONE) & e1
        state[k + _E1], state[k + _E2], state[k + _E3] = e1, e2, e3
        state[k + _U1] = _claim(state[k + _U1], e1)
        state[k + _U2] = _claim(state[k + _U2], e2)
        state[k + _U3] = _claim(state[k + _U3], e3)
        state[k + _U4] = _claim(state[k + _U4], e4)


@jit
def _claim(claimed: Any, here: Any) -> Any:
    """What is claimed together with the first position that is free."""
    free = here & ~claimed
    return claimed | (free & (ZERO - free))
