"""A log-linear model of an arc's relation: a row of K weights for each of the arc's features.

The features, and the steps of training, are those of `softq.kernels.features.arcs`; here they are
taken of given arcs instead of all arcs of a sentence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softq.kernels.features.arcs import (
    BANKS,
    NEGLIGIBLE,
    ArcPlan,
    Array,
    SentenceWords,
    Sums,
    add_first,
    bank_bits,
    collect_tags,
    list_places,
    room_for_arc,
)
from softq.kernels.jit import jit, run_batch


class Arcs(NamedTuple):
    """A arcs of some sentences, ``[A]`` int64 each: whose, and from which word to which.

    Words are counted from 1, and 0 is the root.
    """

    sentences: Array
    heads: Array
    dependents: Array


@jit
def _places(plan: Any, words: Any, arcs: Any, a: int, bits: Any, bank: Any, arc: Any) -> Any:
    """List the rows of one of the arcs, as `list_places` does."""
    begin, head, dependent = words.starts[arcs.sentences[a]], arcs.heads[a], arcs.dependents[a]
    left, right = begin + min(head, dependent), begin + max(head, dependent)
    arc.counts[:] = 0
    for word in range(left + 1, right):
        collect_tags(words, arc, left, word)
    return list_places(plan, words, begin, head, dependent, bits, bank, arc)


def scores(plan: ArcPlan, words: SentenceWords, arcs: Arcs, weights: Array) -> Array:
    """Scores of the relations of arcs ``[A, K]`` under ``weights [R, K]``.

    R is a power of two, at least two rows per bank.
    """
    out = np.zeros((len(arcs.heads), weights.shape[1]), weights.dtype)
    operations = 2 * out.size * len(plan.seeds)
    run_batch(
        _scores, len(out), operations, plan, words, arcs, bank_bits(len(weights)), weights, out
    )
    return out


@jit
def _scores(
    first: int, stride: int, plan: Any, words: Any, arcs: Any, bits: Any, weights: Any, out: Any
) -> None:
    arc = room_for_arc(plan, words)
    for a in range(first, len(arcs.heads), stride):
        for i in range(_places(plan, words, arcs, a, bits, None, arc)):
            place, row = arc.places[i], np.uint64(a)
            for k in range(np.uint64(weights.shape[1])):
                out[row, k] += weights[place, k]


def add_gradient(
    plan: ArcPlan, words: SentenceWords, arcs: Arcs, slopes: Array, sums: Sums
) -> None:
    """Add the derivatives ``slopes [A, K]`` of the scores of arcs' relations to their features'."""
    operations = slopes.size * len(plan.seeds)
    rows = len(sums.values) // slopes.shape[1]
    run_batch(_add_gradient, BANKS, operations, plan, words, arcs, bank_bits(rows), slopes, sums)


@jit
def _add_gradient(
    first: int, stride: int, plan: Any, words: Any, arcs: Any, bits: Any, slopes: Any, sums: Any
) -> None:
    arc = room_for_arc(plan, words)
    width = np.uint64(slopes.shape[1])
    for bank in range(first, BANKS, stride):
        listed = np.uint64(sums.counts[bank])
        for a in range(len(arcs.heads)):
            if np.abs(slopes[a]).max() >= NEGLIGIBLE:
                for i in range(_places(plan, words, arcs, a, bits, bank, arc)):
                    place, row = arc.places[i], np.uint64(a)
                    at = place * width
                    listed = add_first(sums, np.uint64(bank), listed, place, at, slopes[row, 0])
                    for k in range(np.uint64(1), width):
                        sums.values[at + k] += slopes[row, k]
        sums.counts[bank] = listed
