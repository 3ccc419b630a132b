"""n-gram replacement: candidates that differ from a reference in one n-gram (paper, §4.1.2 and Appendix C).

A draw takes a reference, then n, then a place, each uniformly, and puts another n-gram there. Draws that give a reference
or an earlier candidate are thrown away, so the set is a sample without replacement. With f the law of the new n-grams,
the probability of one draw is, over references y_i, orders n and places p whose window holds all that differs,

    P(y) = Σ_i Σ_n Σ_p  1/R · 1/N_i · 1/(L_i - n + 1) · f(y[p:p+n]) / (1 - f(y_i[p:p+n]))

divided by the share of draws that are not references.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from softq.kernels.hashing import enter, place_keys, sentence_hash, table_size
from softq.kernels.jit import jit, next_below, next_random, run_batch
from softq.kernels.words import ONE, ZERO, Array

UNIFORM, FREQUENCIES, CORPUS = 0, 1, 2

_PATIENCE = 2000  # draws thrown away in a row before an example is left to the caller


@dataclass
class NgramLaw:
    """How replacement n-grams are drawn. Every array is there for every kind; those not needed are short."""

    kind: int
    words: Array  # int64 [W]: the words that may be written
    log_prob: Array  # float64 [V]: log-probability of a word by its number, -inf outside ``words``
    share: Array  # float64 [W]: alias table, share that stays
    alias: Array  # int64 [W]: alias table, where the rest goes
    corpus: Array  # int64 [T]
    starts: Array  # int64: where n-grams of the corpus begin, first those for n = 1
    first_start: Array  # int64 [max_n + 1]: where in ``starts`` each order begins
    hashes: Array  # uint64 [U]: hashes of the corpus n-grams, sorted
    log_counts: Array  # float64 [U]: log relative frequency of each

    def arguments(self) -> tuple[Any, ...]:
        """Fields in the order the kernels take them."""
        sampling = self.words, self.log_prob, self.share, self.alias
        return (self.kind, *sampling, self.corpus, self.starts, self.first_start, self.hashes, self.log_counts)


def replace_ngrams(
    refs: Array,
    ref_lengths: Array,
    seeds: Array,
    max_n: int,
    keep_last: bool,
    pad: int,
    law: NgramLaw,
    tokens: Array,
    lengths: Array,
    log_prob: Array,
) -> tuple[Array, Array]:
    """Fill ``tokens [B, S, M]``, ``lengths [B, S]`` and ``log_prob [B, S]``; references come first.

    Returns how many of the front are references and how many candidates were found in all, ``[B]`` each.
    Where a row stays short, no new candidate came up for a long time: the space is small, or its law very uneven.
    """
    batch, size, _ = tokens.shape
    fixed, found = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    rows = tokens.reshape(batch * size, tokens.shape[2])
    ref_rows = refs.reshape(refs.shape[0] * refs.shape[1], refs.shape[2])
    run_batch(
        _replace_kernel, batch, 100 * batch * size, ref_rows, ref_lengths, seeds, max_n, keep_last, pad, *law.arguments(),
        place_keys(refs.shape[2] + 1), rows, lengths, log_prob, fixed, found,
    )  # fmt: skip
    return fixed, found


@jit
def ngram_hash(tokens: Any, row: int, start: int, size: int) -> Any:
    """Hash of one n-gram, for the counts of a corpus."""
    value = np.uint64(size) * np.uint64(0x9E3779B97F4A7C15)
    for t in range(start, start + size):
        value = (value + np.uint64(tokens[row, t])) * np.uint64(0xFF51AFD7ED558CCD)
        value ^= value >> np.uint64(32)
    return value


@jit
def ngram_hashes(tokens: Any, places: Any, size: int, out: Any) -> None:
    """Hashes of the n-grams that begin at ``places`` of ``tokens [1, T]``."""
    for k in range(len(places)):
        out[k] = ngram_hash(tokens, 0, places[k], size)


@jit
def ngram_log_prob(tokens: Any, row: int, start: int, size: int, kind: int, word_log_prob: Any, hashes: Any, log_counts: Any) -> Any:
    """Log f of one n-gram."""
    if kind == CORPUS:
        key = ngram_hash(tokens, row, start, size)
        place = np.searchsorted(hashes, key)
        if place < len(hashes) and hashes[place] == key:
            return log_counts[place]
        return -np.inf
    total = 0.0
    for t in range(start, start + size):
        token = tokens[row, t]
        total += word_log_prob[token] if token < len(word_log_prob) else -np.inf
    return total


@jit
def _draw_ngram(
    size: int, state: Any, kind: int, words: Any, share: Any, alias: Any, corpus: Any, starts: Any, first_start: Any, out: Any
) -> None:
    if kind == CORPUS:
        begin, end = first_start[size - 1], first_start[size]
        start = starts[begin + next_below(state, end - begin)]
        for t in range(size):
            out[t] = corpus[start + t]
        return
    for t in range(size):
        word = next_below(state, len(words))
        if kind == FREQUENCIES and next_random(state) >= share[word]:
            word = alias[word]
        out[t] = words[word]


@jit
def _draw_probability(
    tokens: Any, row: int, length: int, refs: Any, first_ref: int, usable: Any, count: int, open_lengths: Any, max_n: int, factors: Any,
    kind: int, word_log_prob: Any, hashes: Any, log_counts: Any,
) -> Any:  # fmt: skip
    """P(y) before the references are taken out. ``factors[i, n-1, p]`` holds what depends on the reference alone."""
    total = 0.0
    for k in range(count):
        i = usable[k]
        ref = first_ref + i
        if open_lengths[i, 1] != length:
            continue
        low = 0
        while low < length and tokens[row, low] == refs[ref, low]:
            low += 1
        if low == length:
            continue
        high = length - 1
        while tokens[row, high] == refs[ref, high]:
            high -= 1
        room = open_lengths[i, 0]
        if high >= room:
            continue
        for n in range(high - low + 1, min(max_n, room) + 1):
            for p in range(max(0, high - n + 1), min(low, room - n) + 1):
                total += factors[i, n - 1, p] * np.exp(ngram_log_prob(tokens, row, p, n, kind, word_log_prob, hashes, log_counts))
    return total


@jit
def _is_alone(refs: Any, first_ref: int, i: int, usable: Any, count: int, open_lengths: Any, max_n: int) -> bool:
    """Whether one n-gram cannot lead from another reference to the same candidate: two windows hold at most 2 max_n differences."""
    for k in range(count):
        j = usable[k]
        if j != i and open_lengths[i, 1] == open_lengths[j, 1]:
            different = 0
            for t in range(open_lengths[i, 1]):
                different += refs[first_ref + i, t] != refs[first_ref + j, t]
            if different <= 2 * max_n:
                return False
    return True


@jit
def _weigh_windows(
    refs: Any, first_ref: int, usable: Any, count: int, open_lengths: Any, max_n: int, flat: Any, kind: int, word_log_prob: Any,
    hashes: Any, log_counts: Any, unknown: Any, factors: Any,
) -> Any:  # fmt: skip
    """Fill ``factors[i, n-1, p]`` and ``unknown[i, t]``, the words among the first t that the law does not write.

    Returns the mass of draws that are possible: those for which there is another n-gram.
    """
    mass = 0.0
    for k in range(count):
        i = usable[k]
        ref, room = first_ref + i, open_lengths[i, 0]
        unknown[i, 0] = 0
        for t in range(room):
            token = refs[ref, t]
            strange = kind != CORPUS and (token >= len(word_log_prob) or word_log_prob[token] == -np.inf)
            unknown[i, t + 1] = unknown[i, t] + strange
        orders = min(max_n, room)
        for n in range(1, orders + 1):
            places = room - n + 1
            weight = 1.0 / (count * orders * places)
            if kind == UNIFORM and unknown[i, room] == 0 and flat[n] < 1.0:  # the same at all places
                common = weight / (1.0 - flat[n])
                for p in range(places):
                    factors[i, n - 1, p] = common
                mass += weight * places
                continue
            for p in range(places):
                if unknown[i, p + n] > unknown[i, p]:
                    same = 0.0
                elif kind == UNIFORM:
                    same = flat[n]
                else:
                    same = np.exp(ngram_log_prob(refs, ref, p, n, kind, word_log_prob, hashes, log_counts))
                possible = same < 1.0 - 1e-12  # there is another n-gram
                factors[i, n - 1, p] = weight / (1.0 - same) if possible else 0.0
                mass += weight if possible else 0.0
    return mass


@jit
def _tabulate(i: int, room: int, max_n: int, flat: Any, unknown: Any, factors: Any, mass: float, own: Any) -> None:
    """Fill ``own[i, span-1, low]``: log P(y) where y differs from reference i in ``span`` places from ``low`` on and words are uniform."""
    orders = min(max_n, room)
    for span in range(1, orders + 1):
        for low in range(room - span + 1):
            if unknown[i, room] == 0 and orders - span < low <= room - orders:  # away from the ends it is the same all along
                own[i, span - 1, low] = own[i, span - 1, low - 1]
                continue
            total = 0.0
            for n in range(span, orders + 1):
                for p in range(max(0, low + span - n), min(low, room - n) + 1):
                    # What the window holds beside the difference is written too, so the law must know it.
                    if unknown[i, low] == unknown[i, p] and unknown[i, p + n] == unknown[i, low + span]:
                        total += factors[i, n - 1, p] * flat[n]
            own[i, span - 1, low] = np.log(total / mass)


@jit
def _replace_kernel(
    first: int, stride: int, refs: Any, ref_lengths: Any, seeds: Any, max_n: int, keep_last: bool, pad: int,
    kind: int, words: Any, word_log_prob: Any, share: Any, alias: Any, corpus: Any, starts: Any, first_start: Any, hashes: Any,
    log_counts: Any, keys: Any, tokens: Any, lengths: Any, log_prob: Any, fixed: Any, found: Any,
) -> None:  # fmt: skip
    batch, size = lengths.shape
    count, width = ref_lengths.shape[1], tokens.shape[1]
    table = np.empty(table_size(size), np.uint64)
    state = np.empty(1, np.uint64)
    written = np.zeros(max_n, np.int64)
    usable = np.empty(count, np.int64)
    open_lengths = np.empty((count, 2), np.int64)  # up to where words may change, and the length
    factors = np.empty((count, max_n, width + 1))
    own = np.empty((count, max_n, width + 1))
    unknown = np.empty((count, width + 1), np.int64)
    ref_hash = np.empty(count, np.uint64)
    flat = np.empty(max_n + 1)
    for n in range(max_n + 1):
        flat[n] = float(len(words)) ** -n
    for b in range(first, batch, stride):
        state[0] = seeds[b]
        table[:] = ZERO
        filled = 0
        usable_count = 0
        for i in range(count):
            length = ref_lengths[b, i]
            if length < 0:
                continue
            ref = b * count + i
            open_lengths[i, 0], open_lengths[i, 1] = length - keep_last, length
            ref_hash[i] = sentence_hash(refs, ref, length, keys)
            if open_lengths[i, 0] > 0:
                usable[usable_count] = i
                usable_count += 1
            if enter(table, ref_hash[i]):
                for t in range(width):
                    tokens[b * size + filled, t] = refs[ref, t]
                lengths[b, filled] = length
                log_prob[b, filled] = 0.0  # certain to be there
                filled += 1
        fixed[b] = filled
        mass = _weigh_windows(
            refs, b * count, usable, usable_count, open_lengths, max_n, flat, kind, word_log_prob, hashes, log_counts, unknown, factors
        )
        for k in range(filled):
            mass -= _draw_probability(
                tokens, b * size + k, lengths[b, k], refs, b * count, usable, usable_count, open_lengths, max_n, factors,
                kind, word_log_prob, hashes, log_counts,
            )  # fmt: skip
        for k in range(usable_count):
            i = usable[k]
            own[i, 0, 0] = np.inf  # to be worked out for each candidate
            if kind == UNIFORM and mass > 1e-12 and _is_alone(refs, b * count, i, usable, usable_count, open_lengths, max_n):
                _tabulate(i, open_lengths[i, 0], max_n, flat, unknown, factors, mass, own)
        failures = 0
        while filled < size and usable_count > 0 and mass > 1e-12 and failures < _PATIENCE:
            i = usable[next_below(state, usable_count)]
            ref = b * count + i
            n = 1 + next_below(state, min(max_n, open_lengths[i, 0]))
            p = next_below(state, open_lengths[i, 0] - n + 1)
            if factors[i, n - 1, p] == 0.0:
                failures += 1
                continue
            # Loops run to max_n and width whatever n and the length are: a count that varies costs a mispredicted branch.
            low = -1
            while low < 0 and failures < _PATIENCE:
                if kind == UNIFORM:
                    for t in range(max_n):
                        written[t] = words[next_below(state, len(words))]
                else:
                    _draw_ngram(n, state, kind, words, share, alias, corpus, starts, first_start, written)
                key = ref_hash[i]
                for t in range(max_n - 1, -1, -1):
                    old = np.int64(refs[ref, min(p + t, width - 1)])
                    new = written[t] if t < n else old
                    written[t] = new
                    key += np.uint64(new - old) * keys[min(p + t, width - 1)]
                    low = t if new != old else low
                failures += low < 0
            if low < 0 or not enter(table, key if key != ZERO else ONE):
                failures += 1
                continue
            failures = 0
            row, length = b * size + filled, open_lengths[i, 1]
            out, source = np.uint64(row), np.uint64(ref)
            for t in range(np.uint64(width)):
                tokens[out, t] = refs[source, t]
            high = 0
            for t in range(max_n - 1, -1, -1):  # backwards: what lies behind the window may fall on its last place
                place = min(p + t, width - 1)
                high = max(high, t if written[t] != refs[ref, place] else 0)
                tokens[row, place] = written[t]
            lengths[b, filled] = length
            if own[i, 0, 0] < np.inf:  # no other reference is near, so that what differs says it all
                log_prob[b, filled] = own[i, high - low, p + low]
            else:
                log_prob[b, filled] = np.log(
                    _draw_probability(
                        tokens, row, length, refs, b * count, usable, usable_count, open_lengths, max_n, factors,
                        kind, word_log_prob, hashes, log_counts,
                    ) / mass
                )  # fmt: skip
            filled += 1
        found[b] = filled
        for s in range(filled, size):
            for t in range(width):
                tokens[b * size + s, t] = pad
            lengths[b, s] = -1
            log_prob[b, s] = -np.inf
