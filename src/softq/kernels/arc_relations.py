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
    """Scores of the relations of arcs ``[A, K]`` under ``weights [R, K]``, R a power of two and at least `BANKS`."""
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


def descend(plan: Plan, words: Words, arcs: Arcs, slopes: Array, moments: Moments, weights: Array, rate: float, step: int) -> None:
    """A step of AdaGrad for each arc, one after another, along derivatives ``slopes [A, K]`` of its relations' scores.

    ``moments [R, K]`` and ``weights [R, K]`` are changed; ``step`` (from 1) is that of the batch, see `arc_features.average`.
    """
    kind = weights.dtype.type
    operations = len(arcs.heads) * len(plan.seeds) * weights.shape[1]
    run_batch(
        _descend,
        BANKS,
        operations,
        plan,
        words,
        arcs,
        MULTIPLIERS,
        bank_bits(len(weights)),
        slopes,
        moments,
        weights,
        kind(rate),
        kind(step),
    )


@jit
def _descend(
    first: int,
    stride: int,
    plan: Any,
    words: Any,
    arcs: Any,
    multipliers: Any,
    bits: Any,
    slopes: Any,
    moments: Any,
    weights: Any,
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
                    _descend_row(slopes, row, moments, weights, place_of(t, pair, any_kind, bits), rate, step)
                    _descend_row(slopes, row, moments, weights, place_of(t, pair, kind, bits), rate, step)
                else:
                    c = np.uint64(plan.between[t])
                    for k in range(np.uint64(between.counts[c])):
                        x = np.uint32(pair + between.lists[c, k])
                        _descend_row(slopes, row, moments, weights, place_of(t, x, any_kind, bits), rate, step)
                        _descend_row(slopes, row, moments, weights, place_of(t, x, kind, bits), rate, step)


@jit
def _descend_row(slopes: Any, row: Any, moments: Any, weights: Any, place: Any, rate: Any, step: Any) -> None:
    for k in range(np.uint64(weights.shape[1])):
        slope = slopes[row, k]
        squares = moments.squares[place, k] + slope * slope
        change = rate * slope / np.sqrt(squares)
        moments.squares[place, k] = squares
        moments.drift[place, k] += step * change
        weights[place, k] -= change
