"""Hashed features of dependency arcs: scores of all arcs of sentences, and the way back; no list of features is ever held.

A template joins something of the head, something of the dependent and perhaps one of the tags between them. What it takes of a word is
hashed once per word (`parts`); an arc's feature is the sum of its two words' hashes, or the sum of three hashes for each distinct tag
between. Each feature is there twice, alone and together with the arc's direction and length (`KINDS`): the sum, 32 bits, is multiplied by
an odd number for the kind, and its upper bits name the weight.

The table of weights is cut into `BANKS` banks, and each template keeps to one of them. Derivatives are added up bank by bank, each
by one thread and in the order of the arcs, so that the result is the same whatever the number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softq.kernels.jit import jit, next_word, run_batch

Array = np.ndarray[Any, Any]

BANKS = 8
KINDS = 15  # 0: any; then seven lengths to the right, and seven to the left
BEFORE, BEHIND, ROOT, UNKNOWN, FIRST = range(5)  # codes that every column has; those of its strings begin with FIRST

NEGLIGIBLE = 1e-7  # marginals are near 1 and float32: differences of theirs below this are rounding


class Plan(NamedTuple):
    """Templates as arrays, those with a tag between last.

    Attributes:
        seeds: ``[T]`` uint64, which tell templates apart.
        head_from: ``[T + 1]``, where the atoms of each template's head begin.
        head_atoms: ``[A, 2]`` (column, place relative to the head).
        dependent_from: likewise for the dependent.
        dependent_atoms: likewise.
        between: ``[T]``, position in ``columns`` of the tags between, -1 without.
        columns: ``[C]``, the columns that are read between head and dependent.
        plain: number of templates without a tag between.

    """

    seeds: Array
    head_from: Array
    head_atoms: Array
    dependent_from: Array
    dependent_atoms: Array
    between: Array
    columns: Array
    plain: int


class Words(NamedTuple):
    """The words of B sentences, each beginning with its root, N in all.

    Attributes:
        codes: ``[columns, N]`` int32.
        starts: ``[B + 1]`` int64, where sentences begin.
        heads: ``[N, T]`` uint32, what each word contributes to the features of its arcs as head.
        dependents: likewise as dependent.

    """

    codes: Array
    starts: Array
    heads: Array
    dependents: Array


def parts(plan: Plan, codes: Array, starts: Array) -> Words:
    """Hash what templates take of each word."""
    shape = codes.shape[1], len(plan.seeds)
    words = Words(codes, starts, np.empty(shape, np.uint32), np.empty(shape, np.uint32))
    run_batch(_parts, len(starts) - 1, 20 * shape[0] * shape[1], plan, words)
    return words


@jit
def _mix(state: Any, value: Any) -> Any:
    """A hash of 64 bits and one more number."""
    z = (state ^ value) * np.uint64(0x9E3779B97F4A7C15)
    return (z ^ (z >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)


@jit
def _parts(first: int, stride: int, plan: Any, words: Any) -> None:
    for b in range(first, len(words.starts) - 1, stride):
        begin, end = words.starts[b], words.starts[b + 1]
        for t in range(len(plan.seeds)):
            for i in range(begin, end):
                words.heads[i, t] = _part(
                    words.codes, begin, end, i, plan.head_atoms, plan.head_from[t], plan.head_from[t + 1], _mix(plan.seeds[t], np.uint64(1))
                )
                words.dependents[i, t] = _part(
                    words.codes,
                    begin,
                    end,
                    i,
                    plan.dependent_atoms,
                    plan.dependent_from[t],
                    plan.dependent_from[t + 1],
                    _mix(plan.seeds[t], np.uint64(2)),
                )


@jit
def _part(codes: Any, begin: int, end: int, word: int, atoms: Any, first: int, last: int, state: Any) -> Any:
    for a in range(first, last):
        place = word + atoms[a, 1]
        code = np.int64(BEFORE)
        if place >= end:
            code = np.int64(BEHIND)
        elif place >= begin:
            code = np.int64(codes[atoms[a, 0], place])
        state = _mix(state, np.uint64(code))
    return np.uint32(state >> np.uint64(32))


def _multipliers() -> Array:
    """An odd number for each kind of arc, ``[KINDS]`` uint32."""
    state = np.array([0x13198A2E03707344], np.uint64)
    with np.errstate(over="ignore"):
        return np.array([int(next_word(state)) >> 32 | 1 for _ in range(KINDS)], np.uint32)


MULTIPLIERS = _multipliers()


@jit
def arc_kind(head: int, dependent: int) -> int:
    """Direction and length of an arc: 1, 2, 3, 4, 5, up to 10 and more words to the right, then the same to the left."""
    length = abs(head - dependent)
    step = length if length <= 5 else (6 if length <= 10 else 7)
    return step if head < dependent else 7 + step


class _Between(NamedTuple):
    """Distinct tags between two words: their hashes ``lists[c, : counts[c]]`` for each column; ``seen[c, code]`` is the last search."""

    seen: Array
    lists: Array
    counts: Array


@jit
def no_tags_between(plan: Any, words: Any) -> Any:
    """Room for the distinct tags between two of these words."""
    widest, highest = 1, 0
    for b in range(len(words.starts) - 1):
        widest = max(widest, words.starts[b + 1] - words.starts[b])
    for c in range(len(plan.columns)):
        for i in range(words.codes.shape[1]):
            highest = max(highest, words.codes[plan.columns[c], i])
    columns = max(len(plan.columns), 1)
    return _Between(np.zeros((columns, highest + 1), np.int64), np.zeros((columns, widest), np.uint32), np.zeros(columns, np.int64))


@jit
def collect(plan: Any, words: Any, between: Any, place: int, search: int) -> None:
    """Add a word's tags to those between, if they are new."""
    for c in range(len(plan.columns)):
        code = words.codes[plan.columns[c], place]
        if between.seen[c, code] != search:
            between.seen[c, code] = search
            between.lists[c, between.counts[c]] = np.uint32(_mix(np.uint64(code), np.uint64(3)) >> np.uint64(32))
            between.counts[c] += 1


@jit
def place_of(template: Any, x: Any, multiplier: Any, bits: Any) -> Any:
    """The weight of a feature: its template's bank, then the upper bits of a product of 32."""
    return ((template & np.uint64(BANKS - 1)) << bits) + np.uint64(np.uint32(x * multiplier) >> np.uint32(np.uint64(32) - bits))


def bank_bits(size: int) -> Any:
    """Bits that name a weight within its bank, of a table of ``size`` weights."""
    return np.uint64((size // BANKS).bit_length() - 1)


def scores(plan: Plan, words: Words, weights: Array, out: Array) -> None:
    """Scores of all arcs into ``out [B, n + 1, n + 1]`` (head, dependent), whose other entries stay as they are.

    ``weights [F]`` is a table of 2^bits weights, at least two per bank.
    """
    pairs = int((np.diff(words.starts) ** 2).sum())
    run_batch(_scores, len(words.starts) - 1, 2 * pairs * len(plan.seeds), plan, words, MULTIPLIERS, bank_bits(len(weights)), weights, out)


@jit
def _scores(first: int, stride: int, plan: Any, words: Any, multipliers: Any, bits: Any, weights: Any, out: Any) -> None:
    between = no_tags_between(plan, words)
    search = 0
    for b in range(first, len(words.starts) - 1, stride):
        begin = words.starts[b]
        n = words.starts[b + 1] - begin
        for left in range(n):
            search += 1
            between.counts[:] = 0
            for right in range(left + 1, n):
                if right > left + 1:
                    collect(plan, words, between, begin + right - 1, search)
                out[b, left, right] = _score(plan, words, between, begin, left, right, multipliers, bits, weights)
                if left > 0:
                    out[b, right, left] = _score(plan, words, between, begin, right, left, multipliers, bits, weights)


@jit
def _score(plan: Any, words: Any, between: Any, begin: int, head: int, dependent: int, multipliers: Any, bits: Any, weights: Any) -> Any:
    kind, any_kind = multipliers[arc_kind(head, dependent)], multipliers[0]
    h, d = np.uint64(begin + head), np.uint64(begin + dependent)
    total = weights[0] * 0  # of the weights' own type
    for t in range(np.uint64(plan.plain)):
        x = np.uint32(words.heads[h, t] + words.dependents[d, t])
        total += weights[place_of(t, x, any_kind, bits)] + weights[place_of(t, x, kind, bits)]
    for t in range(np.uint64(plan.plain), np.uint64(len(plan.seeds))):
        pair = np.uint32(words.heads[h, t] + words.dependents[d, t])
        c = np.uint64(plan.between[t])
        for k in range(np.uint64(between.counts[c])):
            x = np.uint32(pair + between.lists[c, k])
            total += weights[place_of(t, x, any_kind, bits)] + weights[place_of(t, x, kind, bits)]
    return total


class Sums(NamedTuple):
    """Derivatives by weight.

    Attributes:
        values: ``[F]``.
        touched: ``[BANKS, F / BANKS + 1]`` int32: weights whose derivative may not be 0, ``counts[bank]`` of each bank; F / BANKS of them
            stand for all.
        counts: ``[BANKS]`` int64.

    """

    values: Array
    touched: Array
    counts: Array

    @classmethod
    def zeros(cls, size: int, dtype: Any = np.float32) -> Sums:
        """No derivatives yet."""
        # one place more than a bank has: a place is written before it is known whether it counts
        return cls(np.zeros(size, dtype), np.empty((BANKS, size // BANKS + 1), np.int32), np.zeros(BANKS, np.int64))


def add_gradient(plan: Plan, words: Words, slopes: Array, sums: Sums) -> None:
    """Add to each weight the derivatives ``slopes [B, n + 1, n + 1]`` of the arcs that have its feature (appendix eq. 6)."""
    pairs = int((np.diff(words.starts) ** 2).sum())
    run_batch(_add_gradient, BANKS, pairs * len(plan.seeds), plan, words, MULTIPLIERS, bank_bits(len(sums.values)), slopes, sums)


@jit
def _add_gradient(first: int, stride: int, plan: Any, words: Any, multipliers: Any, bits: Any, slopes: Any, sums: Any) -> None:
    between = no_tags_between(plan, words)
    search = 0
    for bank in range(first, BANKS, stride):
        count = sums.counts[bank]
        for b in range(len(words.starts) - 1):
            begin = words.starts[b]
            n = words.starts[b + 1] - begin
            for left in range(n):
                search += 1
                between.counts[:] = 0
                for right in range(left + 1, n):
                    if right > left + 1:
                        collect(plan, words, between, begin + right - 1, search)
                    slope = slopes[b, left, right]
                    if abs(slope) > NEGLIGIBLE:
                        count = _add(plan, words, between, begin, left, right, multipliers, bits, bank, slope, sums, count)
                    slope = slopes[b, right, left]
                    if left > 0 and abs(slope) > NEGLIGIBLE:
                        count = _add(plan, words, between, begin, right, left, multipliers, bits, bank, slope, sums, count)
        sums.counts[bank] = count


@jit
def _add(
    plan: Any,
    words: Any,
    between: Any,
    begin: int,
    head: int,
    dependent: int,
    multipliers: Any,
    bits: Any,
    bank: int,
    slope: Any,
    sums: Any,
    count: Any,
) -> Any:
    kind, any_kind = multipliers[arc_kind(head, dependent)], multipliers[0]
    h, d, listed, full = np.uint64(begin + head), np.uint64(begin + dependent), np.uint64(count), np.uint64(sums.touched.shape[1] - 1)
    row = np.uint64(bank)
    for t in range(np.uint64(bank), np.uint64(len(plan.seeds)), np.uint64(BANKS)):
        pair = np.uint32(words.heads[h, t] + words.dependents[d, t])
        if t < np.uint64(plan.plain):
            listed = min(listed + _add_one(sums, row, listed, place_of(t, pair, any_kind, bits), slope), full)
            listed = min(listed + _add_one(sums, row, listed, place_of(t, pair, kind, bits), slope), full)
        else:
            c = np.uint64(plan.between[t])
            for k in range(np.uint64(between.counts[c])):
                x = np.uint32(pair + between.lists[c, k])
                listed = min(listed + _add_one(sums, row, listed, place_of(t, x, any_kind, bits), slope), full)
                listed = min(listed + _add_one(sums, row, listed, place_of(t, x, kind, bits), slope), full)
    return np.int64(listed)


@jit
def _add_one(sums: Any, bank: Any, listed: Any, place: Any, slope: Any) -> Any:
    """Add, and list the weight if its sum was 0: 1 if so. Without a branch, which could not be foreseen.

    A sum that comes back to 0 on its way is listed twice; its second turn finds 0.
    """
    before = sums.values[place]
    sums.touched[bank, listed] = place
    sums.values[place] = before + slope
    return np.uint64(before == 0)


class Moments(NamedTuple):
    """What AdaGrad keeps of each weight: the sum of its squared derivatives, and Σ s · change of step s; of the weights' shape both."""

    squares: Array
    drift: Array

    @classmethod
    def like(cls, weights: Array, squares: float) -> Moments:
        """Before the first step. Sums of squares begin above 0: a weight moves less than ``rate`` until its derivatives are worth more.

        From 0, the first derivative of a weight would move it by all of ``rate`` however small it is, be it rounding alone.
        """
        return cls(np.full_like(weights, squares), np.zeros_like(weights))


def descend(sums: Sums, moments: Moments, weights: Array, rate: float, step: int) -> None:
    """Step ``step`` (from 1) of AdaGrad along the derivatives, which are 0 afterwards (Duchi, Hazan and Singer 2011)."""
    kind = weights.dtype.type
    run_batch(_descend, BANKS, 10 * int(sums.counts.sum()), sums, moments, weights, kind(rate), kind(step))


_FEW = np.uint64(16)  # one weight in so many: a walk through all of them costs as much as jumps to these


@jit
def _descend(first: int, stride: int, sums: Any, moments: Any, weights: Any, rate: Any, step: Any) -> None:
    size = np.uint64(sums.touched.shape[1] - 1)
    values, squares, drift = sums.values, moments.squares, moments.drift
    for bank in range(first, BANKS, stride):
        count, row = np.uint64(sums.counts[bank]), np.uint64(bank)
        if _FEW * count < size:
            for k in range(count):
                _descend_one(values, squares, drift, weights, np.uint64(sums.touched[row, k]), rate, step)
        else:
            for place in range(row * size, (row + np.uint64(1)) * size):
                _descend_one(values, squares, drift, weights, place, rate, step)
        sums.counts[bank] = 0


@jit
def _descend_one(values: Any, squares: Any, drift: Any, weights: Any, place: Any, rate: Any, step: Any) -> None:
    slope = values[place]
    squares[place] += slope * slope
    change = rate * slope / np.sqrt(squares[place])
    values[place] = 0
    drift[place] += step * change
    weights[place] -= change


def average(weights: Array, moments: Moments, steps: int) -> Array:
    """The mean of the weights after each of the steps 1 … ``steps``, ``[F]``.

    With changes c_s of step s, w_T = -Σ c_s and the mean of w_1 … w_T is -Σ c_s (T - s + 1) / T = w_T (1 + 1/T) + Σ s c_s / T.
    """
    if steps == 0:
        return weights.copy()
    return np.asarray(weights * weights.dtype.type(1 + 1 / steps) + moments.drift * weights.dtype.type(1 / steps))
