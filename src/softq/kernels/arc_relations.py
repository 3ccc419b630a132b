"""A log-linear model of an arc's relation, on the hashed features of `softq.kernels.arc_features`: a row of K weights for each feature."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softq.kernels.arc_features import (
    BANKS,
    MULTIPLIERS,
    NEGLIGIBLE,
    Array,
    Moments,
    Plan,
    Words,
    arc_kind,
    bank_bits,
    collect,
    no_tags_between,
    place_of,
)
from softq.kernels.jit import jit, run_batch


class Arcs(NamedTuple):
    """A arcs of some sentences: whose, from which word (0 is the root) to which, ``[A]`` int64 each."""

    sentences: Array
    heads: Array
    dependents: Array


def scores(plan: Plan, words: Words, arcs: Arcs, weights: Array) -> Array:
    """Scores of the relations of arcs ``[A, K]`` under ``weights [R, K]``, R a power of two, at least two rows per bank."""
    out = np.zeros((len(arcs.heads), weights.shape[1]), weights.dtype)
    operations = 2 * len(out) * len(plan.seeds) * weights.shape[1]
    run_batch(_scores, len(out), operations, plan, words, arcs, MULTIPLIERS, bank_bits(len(weights)), weights, out)
    return out


@jit
def _scores(first: int, stride: int, plan: Any, words: Any, arcs: Any, multipliers: Any, bits: Any, weights: Any, out: Any) -> None:
    between = no_tags_between(plan, words)
    for a in range(first, len(arcs.heads), stride):
        _collect_between(plan, words, between, arcs, a, a + 1)
        kind, any_kind = multipliers[arc_kind(arcs.heads[a], arcs.dependents[a])], multipliers[0]
        begin = words.starts[arcs.sentences[a]]
        h, d, row = np.uint64(begin + arcs.heads[a]), np.uint64(begin + arcs.dependents[a]), np.uint64(a)
        for t in range(np.uint64(len(plan.seeds))):
            pair = np.uint32(words.heads[h, t] + words.dependents[d, t])
            if t < np.uint64(plan.plain):
                _add_row(weights, place_of(t, pair, any_kind, bits), out, row)
                _add_row(weights, place_of(t, pair, kind, bits), out, row)
            else:
                c = np.uint64(plan.between[t])
                for k in range(np.uint64(between.counts[c])):
                    x = np.uint32(pair + between.lists[c, k])
                    _add_row(weights, place_of(t, x, any_kind, bits), out, row)
                    _add_row(weights, place_of(t, x, kind, bits), out, row)


@jit
def _collect_between(plan: Any, words: Any, between: Any, arcs: Any, a: int, search: int) -> None:
    between.counts[:] = 0
    begin = words.starts[arcs.sentences[a]]
    low, high = min(arcs.heads[a], arcs.dependents[a]), max(arcs.heads[a], arcs.dependents[a])
    for i in range(low + 1, high):
        collect(plan, words, between, begin + i, search)


@jit
def _add_row(weights: Any, place: Any, out: Any, row: Any) -> None:
    for k in range(np.uint64(weights.shape[1])):
        out[row, k] += weights[place, k]


class RowSums(NamedTuple):
    """Derivatives by weight ``[R, K]``; rows with any are listed by bank, ``counts[bank]`` in ``touched [BANKS, R / BANKS]``."""

    values: Array
    is_touched: Array
    touched: Array
    counts: Array

    @classmethod
    def like(cls, weights: Array) -> RowSums:
        """No derivatives yet."""
        rows = len(weights)
        touched = np.empty((BANKS, rows // BANKS), np.int32)
        return cls(np.zeros_like(weights), np.zeros(rows, np.bool_), touched, np.zeros(BANKS, np.int64))


def descend(
    plan: Plan, words: Words, arcs: Arcs, slopes: Array, sums: RowSums, moments: Moments, weights: Array, rate: float, step: int
) -> None:
    """Step ``step`` (from 1) of AdaGrad along derivatives ``slopes [A, K]`` of the scores of arcs' relations.

    ``moments`` and ``weights [R, K]`` are changed; ``sums`` are 0 before and afterwards. See `arc_features.average`.
    """
    kind = weights.dtype.type
    operations = len(arcs.heads) * len(plan.seeds) * weights.shape[1]
    settings = MULTIPLIERS, bank_bits(len(weights)), kind(rate), kind(step)
    run_batch(_descend, BANKS, operations, plan, words, arcs, slopes, sums, moments, weights, *settings)


@jit
def _descend(
    first: int,
    stride: int,
    plan: Any,
    words: Any,
    arcs: Any,
    slopes: Any,
    sums: Any,
    moments: Any,
    weights: Any,
    multipliers: Any,
    bits: Any,
    rate: Any,
    step: Any,
) -> None:
    between = no_tags_between(plan, words)
    for bank in range(first, BANKS, stride):
        for a in range(len(arcs.heads)):
            if np.abs(slopes[a]).max() < NEGLIGIBLE:
                continue
            _collect_between(plan, words, between, arcs, a, bank * len(arcs.heads) + a + 1)
            kind, any_kind = multipliers[arc_kind(arcs.heads[a], arcs.dependents[a])], multipliers[0]
            begin = words.starts[arcs.sentences[a]]
            h, d, row = np.uint64(begin + arcs.heads[a]), np.uint64(begin + arcs.dependents[a]), np.uint64(a)
            for t in range(np.uint64(bank), np.uint64(len(plan.seeds)), np.uint64(BANKS)):
                pair = np.uint32(words.heads[h, t] + words.dependents[d, t])
                if t < np.uint64(plan.plain):
                    _add_slopes(slopes, row, sums, bank, place_of(t, pair, any_kind, bits))
                    _add_slopes(slopes, row, sums, bank, place_of(t, pair, kind, bits))
                else:
                    c = np.uint64(plan.between[t])
                    for k in range(np.uint64(between.counts[c])):
                        x = np.uint32(pair + between.lists[c, k])
                        _add_slopes(slopes, row, sums, bank, place_of(t, x, any_kind, bits))
                        _add_slopes(slopes, row, sums, bank, place_of(t, x, kind, bits))
        for k in range(sums.counts[bank]):
            place = np.uint64(sums.touched[bank, k])
            sums.is_touched[place] = False
            _descend_row(sums.values, moments.squares, moments.drift, weights, place, rate, step)
        sums.counts[bank] = 0


@jit
def _add_slopes(slopes: Any, row: Any, sums: Any, bank: int, place: Any) -> None:
    if not sums.is_touched[place]:
        sums.is_touched[place] = True
        sums.touched[bank, sums.counts[bank]] = place
        sums.counts[bank] += 1
    values = sums.values
    for k in range(np.uint64(values.shape[1])):
        values[place, k] += slopes[row, k]


@jit
def _descend_row(values: Any, squares: Any, drift: Any, weights: Any, place: Any, rate: Any, step: Any) -> None:
    for k in range(np.uint64(weights.shape[1])):
        slope = values[place, k]
        squares[place, k] += slope * slope
        change = rate * slope / np.sqrt(squares[place, k])
        values[place, k] = 0
        drift[place, k] += step * change
        weights[place, k] -= change
