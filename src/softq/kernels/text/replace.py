"""n-gram replacement: candidates that differ from a reference in one n-gram (paper, §4.1.2, C).

A draw takes a reference, then n, then a place, each uniformly, and puts another n-gram there. Draws
that give a reference or an earlier candidate are thrown away, so the set is a sample without
replacement. With f the law of the new n-grams, the probability of one draw is, over references y_i,
orders n and places p whose window holds all that differs,

    P(y) = Σ_i Σ_n Σ_p  1/R · 1/N_i · 1/(L_i - n + 1) · f(y[p:p+n]) / (1 - f(y_i[p:p+n]))

divided by the share of draws that are not references.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softq.kernels.jit import jit, run_batch
from softq.kernels.random import next_below, next_random
from softq.kernels.text.hashing import enter, place_keys, table_size, token_hash
from softq.kernels.text.sets import (
    PATIENCE,
    Rows,
    begin_set,
    empty_rows,
    end_set,
)
from softq.kernels.text.words import ONE, ZERO, Array, same_positions

UNIFORM, FREQUENCIES, CORPUS = 0, 1, 2

_NO_NUMBERS, _NO_PLACES, _NO_HASHES = np.zeros(0), np.zeros(0, np.int64), np.zeros(0, np.uint64)


class NgramLaw(NamedTuple):
    """How replacement n-grams are drawn. Every array is there for every kind, but may be empty."""

    kind: int
    words: Array  # int64 [W]: the token ids that may be written
    log_prob: Array  # float64 [V]: log-probability of a token id, -inf outside ``words``; or 0
    share: Array = _NO_NUMBERS  # float64 [W]: alias table, share that stays
    alias: Array = _NO_PLACES  # int64 [W]: alias table, where the rest goes
    corpus: Array = _NO_PLACES  # int64 [T]
    starts: Array = _NO_PLACES  # int64: where n-grams of the corpus begin, first those for n = 1
    first_start: Array = _NO_PLACES  # int64 [max_n + 1]: where in ``starts`` each order begins
    keys: Array = _NO_HASHES  # uint64 [max_n + 1]: with which they are hashed
    hashes: Array = _NO_HASHES  # uint64 [U]: hashes of the corpus n-grams, sorted
    log_counts: Array = _NO_NUMBERS  # float64 [U]: log relative frequency of each


def replace_ngrams(
    refs: Rows, seeds: Array, max_n: int, keep_last: bool, pad: int, law: NgramLaw, size: int
) -> tuple[Rows, Array, Array, Array]:
    """Sets of ``size`` candidates, the references first.

    Where a set stays short, no new candidate came up for a long time: the space is small, or its
    law very uneven.

    Returns:
        candidates, their log-probabilities ``[B, S]``, how many of the front are references, and
        how many candidates were found in all, ``[B]`` each.

    """
    batch, width = len(seeds), refs.tokens.shape[1]
    made = empty_rows(batch, size, width, refs.tokens.dtype)
    log_prob, (fixed, found) = np.zeros((batch, size)), np.zeros((2, batch), np.int64)
    run_batch(
        _replace_kernel,
        batch,
        100 * batch * size,
        refs,
        seeds,
        max_n,
        keep_last,
        pad,
        law,
        place_keys(width + 1),
        made,
        log_prob,
        fixed,
        found,
    )
    return made, log_prob, fixed, found


def ngram_hashes(tokens: Array, places: Array, size: int, keys: Array) -> Array:
    """`token_hash` of the n-grams that begin at ``places`` of ``tokens [T]``."""
    ngrams = tokens[places[:, None] + np.arange(size)].astype(np.uint64) + ONE
    return np.maximum(ngrams @ keys[:size] + keys[-1:] * np.uint64(size), ONE)


@jit
def _ngram_probability(tokens: Any, row: int, start: int, size: int, law: Any) -> Any:
    """Probability f of one n-gram.

    Here and below, ``law`` is what this needs of the law: a call counts references to each array.
    """
    kind, log_prob, keys, hashes, log_counts = law
    total = 0.0
    if kind == CORPUS:
        key = token_hash(tokens, row, start, size, keys)
        place = np.searchsorted(hashes, key)
        known = place < len(hashes) and hashes[place] == key
        total = log_counts[place] if known else -np.inf
    else:
        for t in range(start, start + size):
            total += log_prob[tokens[row, t]]
    return np.exp(total)


@jit
def _draw_probability(
    tokens: Any,
    row: int,
    length: int,
    refs: Any,
    ref_lengths: Any,
    b: int,
    many: int,
    keep_last: bool,
    factors: Any,
    law: Any,
) -> Any:
    """P(y) before the references are taken out.

    ``factors[i, n-1, p]`` holds all that depends on the reference and the window alone.
    """
    total = 0.0
    room = length - keep_last
    for i in range(many):
        ref = b * ref_lengths.shape[1] + i
        if ref_lengths[b, i] != length:
            continue
        low, high = 0, length - 1
        while low < length and tokens[row, low] == refs[ref, low]:
            low += 1
        while high > low and tokens[row, high] == refs[ref, high]:
            high -= 1
        if low == length or high >= room:
            continue
        for n in range(high - low + 1, min(factors.shape[1], room) + 1):
            for p in range(max(0, high - n + 1), min(low, room - n) + 1):
                total += factors[i, n - 1, p] * _ngram_probability(tokens, row, p, n, law)
    return total


@jit
def _weigh_windows(
    refs: Any, ref: int, room: int, many: int, flat: Any, law: Any, unknown: Any, factors: Any
) -> Any:
    """Fill ``factors[n-1, p]`` of a reference; the mass of draws that have another n-gram.

    ``unknown[t]`` becomes the number of tokens among the first t that the law does not write.
    """
    kind, log_prob = law[0], law[1]
    unknown[0] = 0
    factors[0, 0] = 0.0  # nothing can be replaced where there is no room
    for t in range(room):
        unknown[t + 1] = unknown[t] + (log_prob[refs[ref, t]] == -np.inf)
    mass, orders = 0.0, min(factors.shape[0], room)
    for n in range(1, orders + 1):
        places = room - n + 1
        weight = 1.0 / (many * orders * places)
        for p in range(places):
            if kind == UNIFORM:
                same = flat[n] if unknown[p + n] == unknown[p] else 0.0
            else:
                same = _ngram_probability(refs, ref, p, n, law)
            possible = same < 1.0 - 1e-12  # there is another n-gram
            factors[n - 1, p] = weight / (1.0 - same) if possible else 0.0
            mass += weight if possible else 0.0
    return mass


@jit
def _tabulate(room: int, flat: Any, unknown: Any, factors: Any, out: Any) -> None:
    """Fill ``out[span-1, low]`` for one reference that no other is near, and uniform words.

    It is log P(y) where y differs from the reference in ``span`` places from ``low`` on, before the
    references are taken out.
    """
    orders = min(factors.shape[0], room)
    for span in range(1, orders + 1):
        for low in range(room - span + 1):
            if unknown[room] == 0 and orders - span < low <= room - orders:
                out[span - 1, low] = out[span - 1, low - 1]  # as it is away from both ends
                continue
            total = 0.0
            for n in range(span, orders + 1):
                for p in range(max(0, low + span - n), min(low, room - n) + 1):
                    # What the window holds beside the difference is written too, so the law must
                    # know it.
                    if unknown[low] == unknown[p] and unknown[p + n] == unknown[low + span]:
                        total += factors[n - 1, p] * flat[n]
            out[span - 1, low] = np.log(total)


@jit
def _is_alone(refs: Any, ref_lengths: Any, b: int, i: int, many: int, max_n: int) -> bool:
    """Whether no other reference can become the same candidate: two windows hold 2 max_n tokens."""
    first, length = b * ref_lengths.shape[1], ref_lengths[b, i]
    for j in range(many):
        same = same_positions(refs, first + i, refs, first + j, length)
        if j != i and ref_lengths[b, j] == length and length - same <= 2 * max_n:
            return False
    return True


@jit
def _replace_kernel(
    first: int,
    stride: int,
    references: Any,
    seeds: Any,
    max_n: int,
    keep_last: bool,
    pad: int,
    law: Any,
    keys: Any,
    made: Any,
    log_prob: Any,
    fixed: Any,
    found: Any,
) -> None:
    refs, ref_lengths = references
    tokens, lengths = made
    kind, words = law.kind, law.words
    scores = kind, law.log_prob, law.keys, law.hashes, law.log_counts
    size, count, width = lengths.shape[1], ref_lengths.shape[1], tokens.shape[1]
    table, ref_hash = np.empty(table_size(size), np.uint64), np.empty(count, np.uint64)
    state, written = np.empty(1, np.uint64), np.zeros(max_n, np.int64)
    unknown = np.empty((count, width + 1), np.int64)
    factors, alone = np.empty((count, max_n, width + 1)), np.empty((count, max_n, width + 1))
    flat = float(len(words)) ** -np.arange(max_n + 1)  # f of an n-gram if words are uniform
    for b in range(first, lengths.shape[0], stride):
        state[0] = seeds[b]
        filled = fixed[b] = begin_set(references, b, keys, pad, table, ref_hash, made)
        many, mass = (ref_lengths[b] >= 0).sum(), 0.0
        for i in range(many):
            row, room = b * count + i, ref_lengths[b, i] - keep_last
            mass += _weigh_windows(refs, row, room, many, flat, scores, unknown[i], factors[i])
            alone[i, 0, 0] = np.inf  # to be worked out for each candidate
            if kind == UNIFORM and _is_alone(refs, ref_lengths, b, i, many, max_n):
                _tabulate(room, flat, unknown[i], factors[i], alone[i])
        for k in range(filled):
            mass -= _draw_probability(
                tokens,
                b * size + k,
                lengths[b, k],
                refs,
                ref_lengths,
                b,
                many,
                keep_last,
                factors,
                scores,
            )
        log_mass = np.log(max(mass, 0.0))
        failures = 0
        while filled < size and mass > 1e-12 and failures < PATIENCE:
            i = next_below(state, many)
            row, length = b * size + filled, ref_lengths[b, i]
            out, source = np.uint64(row), np.uint64(b * count + i)
            n = 1 + next_below(state, min(max_n, length - keep_last))
            p = next_below(state, length - keep_last - n + 1)
            failures += 1
            if factors[i, n - 1, p] == 0.0:
                continue
            # Some loops run to max_n and width whatever n and the length are: a count that varies
            # costs a mispredicted branch.
            low, high = -1, 0
            while low < 0 and failures <= PATIENCE:
                if kind == UNIFORM:
                    for t in range(max_n):
                        written[t] = words[next_below(state, len(words))]
                elif kind == FREQUENCIES:
                    for t in range(n):
                        word = next_below(state, len(words))
                        written[t] = words[
                            word if next_random(state) < law.share[word] else law.alias[word]
                        ]
                else:
                    begin = law.first_start[n - 1]
                    start = law.starts[begin + next_below(state, law.first_start[n] - begin)]
                    for t in range(n):
                        written[t] = law.corpus[start + t]
                key = ref_hash[i]
                for t in range(max_n - 1, -1, -1):
                    place = np.uint64(min(p + t, width - 1))
                    old = np.int64(refs[source, place])
                    new = written[t] if t < n else old
                    written[t] = new
                    key += np.uint64(new - old) * keys[place]
                    high = max(high, t if new != old else 0)
                    low = t if new != old else low
                failures += low < 0
            if low < 0 or not enter(table, key if key != ZERO else ONE):
                continue
            failures = 0
            for t in range(np.uint64(width)):
                tokens[out, t] = refs[source, t]
            for t in range(max_n - 1, -1, -1):  # what lies behind may fall on the last place
                tokens[out, np.uint64(min(p + t, width - 1))] = written[t]
            lengths[b, filled] = length
            if alone[i, 0, 0] < np.inf:  # no other reference is near: what differs says it all
                log_prob[b, filled] = alone[i, high - low, p + low] - log_mass
            else:
                probability = _draw_probability(
                    tokens,
                    row,
                    length,
                    refs,
                    ref_lengths,
                    b,
                    many,
                    keep_last,
                    factors,
                    scores,
                )
                log_prob[b, filled] = np.log(probability) - log_mass
            filled += 1
        found[b] = filled
        log_prob[b, filled:] = -np.inf
        end_set(b, filled, pad, made)
