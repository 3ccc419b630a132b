"""Hashed features of dependency arcs: scores of all arcs of sentences, and the way back.

A template joins something of the head, something of the dependent and perhaps one of the tags
between them. What it takes of a word is hashed once per word (`parts`); an arc's feature is the
sum of its two words' hashes, or the sum of three hashes for each distinct tag between. Each
feature is there twice, alone and together with the arc's direction and length (`KINDS`): the sum,
32 bits, is multiplied by an odd number for the kind, and its upper bits name the weight.
`list_places` does this for one arc at a time; no longer list of features is ever held.

The table of weights is cut into `BANKS` banks, and each template keeps to one of them. Derivatives
are added up bank by bank, each by one thread and in the order of the arcs, so that the result is
the same whatever the number of threads.

A feature may have one weight or a row of them (`softq.kernels.features.relations`): `Sums`,
`Moments` and the steps of `descend` are made for both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softq.kernels.jit import jit, run_batch
from softq.kernels.random import next_word

Array = np.ndarray[Any, Any]

BANKS = 8
KINDS = 15  # 0: any; then seven lengths to the right, and seven to the left
# Codes of every column; its strings' begin at FIRST.
BEFORE, BEHIND, ROOT, UNKNOWN, FIRST = range(5)
HEAD, DEPENDENT = range(2)
_ONE = np.uint64(1)

NEGLIGIBLE = 1e-7  # marginals are near 1 and float32: differences of theirs below this are rounding


class ArcPlan(NamedTuple):
    """Templates as arrays, those with a tag between last.

    Attributes:
        seeds: ``[T]`` uint64, which tell templates apart.
        atoms_from: ``[2, T + 1]``, where the atoms of each template's head and dependent begin.
        atoms: ``[A, 2]`` (column, place relative to the head or the dependent).
        between: ``[T]``, position in ``columns`` of the tags between, -1 without.
        columns: ``[C]``, the columns that are read between head and dependent.
        plain: number of templates without a tag between.

    """

    seeds: Array
    atoms_from: Array
    atoms: Array
    between: Array
    columns: Array
    plain: int


class SentenceWords(NamedTuple):
    """The words of B sentences, each beginning with its root, N in all.

    Attributes:
        codes: ``[columns, N]`` int32.
        starts: ``[B + 1]`` int64, where sentences begin.
        hashes: ``[2, N, T]`` uint32, what a word contributes to its arcs as head and as dependent.
        tags: ``[C, N]`` uint32, what a word contributes to arcs over it, see `ArcPlan`.
        previous: ``[C, N]`` int64, the last word before it of the same tag, or any before its
            sentence.

    """

    codes: Array
    starts: Array
    hashes: Array
    tags: Array
    previous: Array


def parts(plan: ArcPlan, codes: Array, starts: Array) -> SentenceWords:
    """Hash what templates take of each word."""
    hashes = np.empty((2, codes.shape[1], len(plan.seeds)), np.uint32)
    tags = _mix(codes[plan.columns].astype(np.uint64), np.uint64(3)) >> np.uint64(32)
    words = SentenceWords(
        codes, starts, hashes, tags.astype(np.uint32), np.empty(tags.shape, np.int64)
    )
    run_batch(_parts, len(starts) - 1, 10 * hashes.size, plan, words)
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
        for side in range(2):
            for t in range(len(plan.seeds)):
                seed = _mix(plan.seeds[t], np.uint64(1 + side))
                atoms = plan.atoms[plan.atoms_from[side, t] : plan.atoms_from[side, t + 1]]
                for i in range(begin, end):
                    words.hashes[side, i, t] = _part(words.codes, begin, end, i, atoms, seed)
        for c in range(len(plan.columns)):
            for i in range(begin, end):
                before = i - 1
                while before >= begin and words.tags[c, before] != words.tags[c, i]:
                    before -= 1
                words.previous[c, i] = before


@jit
def _part(codes: Any, begin: int, end: int, word: int, atoms: Any, state: Any) -> Any:
    for a in range(len(atoms)):
        place, code = word + atoms[a, 1], np.int64(BEFORE)
        if place >= begin:
            code = np.int64(BEHIND if place >= end else codes[atoms[a, 0], place])
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
    """Direction and length: 1, …, 5, up to 10 and more words to the right, then to the left."""
    length = abs(head - dependent)
    step = length if length <= 5 else (6 if length <= 10 else 7)
    return step if head < dependent else 7 + step


class Arc(NamedTuple):
    """Room for what one arc has at a time.

    The distinct tags between its words have the hashes ``tags[c, : counts[c]]`` for each column
    that is read there.
    """

    tags: Array
    counts: Array
    places: Array  # weights of its features; see list_places


@jit
def room_for_arc(plan: Any, words: Any) -> Any:
    """Room for any arc between these words, with no tags yet."""
    widest, columns = np.diff(words.starts).max(), len(plan.columns)
    features = plan.plain + (len(plan.seeds) - plan.plain) * widest
    return Arc(
        np.zeros((columns, widest), np.uint32),
        np.zeros(columns, np.int64),
        np.zeros(2 * features, np.uint64),
    )


@jit
def collect_tags(words: Any, arc: Any, left: int, word: int) -> None:
    """Add a word's tags to those between, if none stands between ``left`` and the word."""
    place = np.uint64(word)
    for c in range(np.uint64(len(words.tags))):
        if words.previous[c, place] <= left:
            arc.tags[c, np.uint64(arc.counts[c])] = words.tags[c, place]
            arc.counts[c] += 1


@jit
def _place(template: Any, feature: Any, multiplier: Any, bits: Any) -> Any:
    """The weight of a feature: its template's bank, then the upper bits of a product of 32."""
    upper = np.uint32(feature * multiplier) >> np.uint32(np.uint64(32) - bits)
    return ((template & np.uint64(BANKS - 1)) << bits) + np.uint64(upper)


@jit
def list_places(
    plan: Any, words: Any, begin: int, head: int, dependent: int, bits: Any, bank: Any, arc: Any
) -> Any:
    """List the weights of an arc's features in ``arc.places``; their number.

    Those of all templates, or of one bank's if ``bank`` is not None. ``begin`` is the first word of
    the sentence, in which head and dependent are counted.
    """
    kinds = MULTIPLIERS[0], MULTIPLIERS[arc_kind(head, dependent)]
    h, d, count = np.uint64(begin + head), np.uint64(begin + dependent), np.uint64(0)
    first, stride = np.uint64(0 if bank is None else bank), np.uint64(1 if bank is None else BANKS)
    hashes, places = words.hashes, arc.places
    t = first
    while t < np.uint64(plan.plain):
        pair = np.uint32(hashes[HEAD, h, t] + hashes[DEPENDENT, d, t])
        for kind in kinds:
            places[count] = _place(t, pair, kind, bits)
            count += _ONE
        t += stride
    while t < np.uint64(len(plan.seeds)):
        pair = np.uint32(hashes[HEAD, h, t] + hashes[DEPENDENT, d, t])
        c = np.uint64(plan.between[t])
        for k in range(np.uint64(arc.counts[c])):
            for kind in kinds:
                places[count] = _place(t, np.uint32(pair + arc.tags[c, k]), kind, bits)
                count += _ONE
        t += stride
    return count


def bank_bits(size: int) -> Any:
    """Bits that name a weight (or a row) within its bank, of a table of ``size``."""
    return np.uint64((size // BANKS).bit_length() - 1)


def scores(plan: ArcPlan, words: SentenceWords, weights: Array, out: Array) -> None:
    """Scores of all arcs into ``out [B, n + 1, n + 1]`` (head, dependent); the rest stays as it is.

    ``weights [F]`` is a table of 2^bits weights, at least two per bank.
    """
    operations = 2 * int((np.diff(words.starts) ** 2).sum()) * len(plan.seeds)
    bits = bank_bits(len(weights))
    run_batch(_scores, len(words.starts) - 1, operations, plan, words, bits, weights, out)


@jit
def _scores(
    first: int, stride: int, plan: Any, words: Any, bits: Any, weights: Any, out: Any
) -> None:
    arc = room_for_arc(plan, words)
    for b in range(first, len(words.starts) - 1, stride):
        begin, end = words.starts[b], words.starts[b + 1]
        for left in range(end - begin):
            arc.counts[:] = 0
            for right in range(left + 1, end - begin):
                if right > left + 1:
                    collect_tags(words, arc, begin + left, begin + right - 1)
                for head, dependent in ((left, right), (right, left)):
                    if dependent > 0:
                        count = list_places(plan, words, begin, head, dependent, bits, None, arc)
                        total = weights[0] * 0  # of the weights' own type
                        for i in range(count):
                            total += weights[arc.places[i]]
                        out[b, head, dependent] = total


class Sums(NamedTuple):
    """Derivatives by weight, of a table of F weights or of F rows of K.

    Attributes:
        values: ``[F · K]``.
        touched: ``[BANKS, F / BANKS + 1]`` int32: rows whose derivatives may not be 0,
            ``counts[bank]`` of each bank; F / BANKS of them stand for all.
        counts: ``[BANKS]`` int64.

    """

    values: Array
    touched: Array
    counts: Array

    @classmethod
    def like(cls, weights: Array) -> Sums:
        """No derivatives yet of weights ``[F]`` or ``[F, K]``."""
        # one place more than a bank has: a place is written before it is known whether it counts
        touched = np.empty((BANKS, len(weights) // BANKS + 1), np.int32)
        return cls(np.zeros(weights.size, weights.dtype), touched, np.zeros(BANKS, np.int64))


@jit
def add_first(sums: Any, bank: Any, listed: Any, place: Any, first: Any, slope: Any) -> Any:
    """Add to the first weight of a row, and list the row if its sum was 0; how many are listed now.

    Without a branch, which could not be foreseen. A sum that comes back to 0 on its way is listed
    twice; its second turn finds 0.
    """
    before = sums.values[first]
    sums.touched[bank, listed] = place
    sums.values[first] = before + slope
    return min(listed + np.uint64(before == 0), np.uint64(sums.touched.shape[1] - 1))


def add_gradient(plan: ArcPlan, words: SentenceWords, slopes: Array, sums: Sums) -> None:
    """Add the derivatives ``slopes [B, n + 1, n + 1]`` by arc to its features' (appendix eq. 6)."""
    operations = int((np.diff(words.starts) ** 2).sum()) * len(plan.seeds)
    bits = bank_bits(len(sums.values))
    run_batch(_add_gradient, BANKS, operations, plan, words, bits, slopes, sums)


@jit
def _add_gradient(
    first: int, stride: int, plan: Any, words: Any, bits: Any, slopes: Any, sums: Any
) -> None:
    arc = room_for_arc(plan, words)
    for bank in range(first, BANKS, stride):
        listed = np.uint64(sums.counts[bank])
        for b in range(len(words.starts) - 1):
            begin, end = words.starts[b], words.starts[b + 1]
            for left in range(end - begin):
                arc.counts[:] = 0
                for right in range(left + 1, end - begin):
                    if right > left + 1:
                        collect_tags(words, arc, begin + left, begin + right - 1)
                    for h, d in ((left, right), (right, left)):
                        slope = slopes[b, h, d]
                        if d > 0 and abs(slope) > NEGLIGIBLE:
                            listed = _add(
                                plan, words, arc, begin, h, d, bits, bank, slope, sums, listed
                            )
        sums.counts[bank] = listed


@jit
def _add(
    plan: Any,
    words: Any,
    arc: Any,
    begin: int,
    head: int,
    dependent: int,
    bits: Any,
    bank: int,
    slope: Any,
    sums: Any,
    listed: Any,
) -> Any:
    """What `list_places` would list, added to at once: lists of a bank are short and many."""
    kinds = MULTIPLIERS[0], MULTIPLIERS[arc_kind(head, dependent)]
    h, d, row = np.uint64(begin + head), np.uint64(begin + dependent), np.uint64(bank)
    for t in range(row, np.uint64(len(plan.seeds)), np.uint64(BANKS)):
        pair = np.uint32(words.hashes[HEAD, h, t] + words.hashes[DEPENDENT, d, t])
        if t < np.uint64(plan.plain):
            listed = _add_both(sums, row, listed, t, pair, kinds, bits, slope)
        else:
            c = np.uint64(plan.between[t])
            for k in range(np.uint64(arc.counts[c])):
                feature = np.uint32(pair + arc.tags[c, k])
                listed = _add_both(sums, row, listed, t, feature, kinds, bits, slope)
    return listed


@jit
def _add_both(
    sums: Any, bank: Any, listed: Any, t: Any, feature: Any, kinds: Any, bits: Any, slope: Any
) -> Any:
    for kind in kinds:
        place = _place(t, feature, kind, bits)
        listed = add_first(sums, bank, listed, place, place, slope)
    return listed


class Moments(NamedTuple):
    """What AdaGrad keeps of each weight, in arrays of the weights' shape."""

    squares: Array  # the sum of its squared derivatives
    drift: Array  # Σ s · change of step s

    @classmethod
    def like(cls, weights: Array, squares: float) -> Moments:
        """Before the first step.

        Sums of squares begin above 0: a weight moves less than ``rate`` until its derivatives are
        worth more. From 0, the first derivative of a weight would move it by all of ``rate``
        however small it is, be it rounding alone.
        """
        return cls(np.full_like(weights, squares), np.zeros_like(weights))


def descend(sums: Sums, moments: Moments, weights: Array, rate: float, step: int) -> None:
    """Step ``step`` (from 1) of AdaGrad along the derivatives, which are 0 afterwards.

    (Duchi, Hazan and Singer 2011)
    """
    kind, width = weights.dtype.type, weights.size // len(weights)
    tables = (table.reshape(-1) for table in (*moments, weights))
    operations = 10 * width * int(sums.counts.sum())
    run_batch(_descend, BANKS, operations, sums, *tables, np.uint64(width), kind(rate), kind(step))


# One row in so many: a walk through all of them costs as much as jumps to these.
_FEW = np.uint64(16)


@jit
def _descend(
    first: int,
    stride: int,
    sums: Any,
    squares: Any,
    drift: Any,
    weights: Any,
    width: Any,
    rate: Any,
    step: Any,
) -> None:
    values, size = sums.values, np.uint64(sums.touched.shape[1] - 1)
    for bank in range(first, BANKS, stride):
        row, count = np.uint64(bank), np.uint64(sums.counts[bank])
        few = _FEW * count < size
        stretch = width if few else size * width
        for k in range(count if few else _ONE):
            begin = np.uint64(sums.touched[row, k]) * width if few else row * stretch
            for i in range(begin, begin + stretch):
                slope = values[i]
                squares[i] += slope * slope
                change = rate * slope / np.sqrt(squares[i])
                values[i] = 0
                drift[i] += step * change
                weights[i] -= change
        sums.counts[bank] = 0


def average(weights: Array, moments: Moments, steps: int) -> Array:
    """The mean of the weights after each of the steps 1 … ``steps``, of the weights' shape.

    With changes c_s of step s, w_T = -Σ c_s and the mean of w_1 … w_T is
    -Σ c_s (T - s + 1) / T = w_T (1 + 1/T) + Σ s c_s / T.
    """
    if steps == 0:
        return weights.copy()
    kind = weights.dtype.type
    return np.asarray(weights * kind(1 + 1 / steps) + moments.drift * kind(1 / steps))
