"""Projective dependency trees on the CPU: Eisner's inside-outside, best tree, samples; O(n³) each.

Charts over words 0..count-1, all ``[count, count]`` and indexed [left end, right end]:

    split(i,j) = Σ_k right(i,k) left(k+1,j)       two half-built spans joined by an arc of i and j
    open_right(i,j) = w(i→j) split(i,j)           open_left(i,j) = w(j→i) split(i,j)
    right(i,j) = Σ_k open_right(i,k) right(k,j)   i heads all of i..j
    left(i,j)  = Σ_k left(i,k) open_left(k,j)     j heads all of i..j

and Z = Σ_r top(r) left(0,r) right(r,count-1). With one root, top(r) is the weight of the arc from
the root to word r. With several, the root is one more word at the left edge, into which no arc
leads, and the only one that may be at the top.

A chart fills the upper triangle of its matrix and its transpose the lower one: entry [j, i] is
that of the span i..j as well. So each of these sums, and of those for the derivatives, is a product
of two contiguous stretches. Sums run in probability space on arcs scaled per dependent (each word
has one head, so Z scales with it) and are redone in log space if any nonzero number leaves the
range of `softq.kernels.semiring`. The best tree is found in log space, with the largest term of a
sum in the place of the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.random import choose, draw_seeds
from softq.kernels.semiring import BEST, LOG, PLAIN, dot, inverse, lost, number, plus, times
from softq.kernels.trees import load_weights, loss_of

# For each word there are about 27/4 times as many projective trees: see `load_weights`.
_GROWTH_PER_WORD = 6.75

_RIGHT, _LEFT, _OPEN_RIGHT, _OPEN_LEFT, _CHARTS = range(5)


@jit
def losses(
    first: int,
    stride: int,
    scores: Any,
    lengths: Any,
    loss: Any,
    found: Any,
    heads: Any,
    weights: Any,
    expected: Any,
    multiroot: bool,
    want: bool,
) -> None:
    """Write the loss of each example and its gradient; see `softq.kernels.trees.infer`."""
    for b in range(first, scores.shape[0], stride):
        n, marginals = lengths[b], found[b if want else 0]
        log_z, in_range = _solve(scores[b], n, multiroot, want, marginals, PLAIN)
        if not in_range:
            log_z, _ = _solve(scores[b], n, multiroot, want, marginals, LOG)
        loss[b] = loss_of(b, log_z, scores[b], n, heads, weights, expected, marginals)


@jit
def _solve(
    scores: Any, n: int, multiroot: bool, want: bool, marginals: Any, log: bool | None
) -> Any:
    """Log Z of one sentence and whether the range held; if wanted, the marginals of its arcs."""
    marginals[:] = 0.0
    if n == 0:
        return 0.0, True
    weight = np.empty((n + 1, n + 1))
    vectors = np.empty((3, n + 1))
    shift, top, tree = vectors[0], vectors[1], vectors[2]
    first, total = 0 if multiroot else 1, 0.0  # first: the node that chart word 0 stands for
    chart = np.empty((_CHARTS, n + 1 - first, n + 1 - first))
    in_range = load_weights(scores, n, _GROWTH_PER_WORD, weight, shift, log)
    if in_range:
        total, in_range = _inside(weight, n, first, chart, top, tree, log)
    log_z = total if log is not None else np.log(total)
    if in_range and want and log_z > -np.inf:
        _outside(weight, n, first, chart, top, total, marginals, log)
    return log_z + shift[1:].sum(), in_range


@jit
def _inside(
    weight: Any, n: int, first: int, chart: Any, top: Any, tree: Any, log: bool | None
) -> Any:
    """Fill the charts; returns Z (or log Z) and whether the range held.

    Word 0 of the charts is node `first`: the root, or the first word. `top` is filled as well, and
    `tree[r]` gets the part of Z of the trees with word r at the top.
    """
    arc, count = weight[first:, first:], n + 1 - first
    right, left = chart[_RIGHT], chart[_LEFT]
    open_right, open_left = chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
    zero, one = (-np.inf, 0.0) if log is not None else (0.0, 1.0)
    strange = 0
    if first == 0:
        top[:count] = zero
        top[0] = one
    else:
        top[:count] = weight[0, 1 : n + 1]
    for i in range(count):
        right[i, i] = left[i, i] = one
    for w in range(1, count):
        for i in range(count - w):  # spans of one width do not wait for each other
            j = i + w
            # All three sums but for their last terms, right(i,j-1) left(j,j),
            # open_right(i,j) right(j,j) and left(i,i) open_left(i,j)
            split = dot(right, i, i, left, j, i + 1, w - 1, log)
            rightward = dot(open_right, i, i + 1, right, j, i + 1, w - 1, log)
            leftward = dot(left, i, i + 1, open_left, j, i + 1, w - 1, log)
            split = plus(split, right[i, j - 1], log)
            to_right = times(split, arc[i, j], log)
            to_left = times(split, arc[j, i], log)
            rightward = plus(rightward, to_right, log)
            leftward = plus(leftward, to_left, log)
            open_right[i, j] = open_right[j, i] = to_right
            open_left[i, j] = open_left[j, i] = to_left
            right[i, j] = right[j, i] = rightward
            left[i, j] = left[j, i] = leftward
            if log is None:
                strange += lost(split) + lost(to_right) + lost(to_left)
                strange += lost(rightward) + lost(leftward)
        if strange > 0:
            return 0.0, False
    total = zero
    for r in range(count):
        # left · right ≥ 1e-200 and the arc ≥ 1e-100: representable, and checked below
        tree[r] = times(times(top[r], left[0, r], log), right[r, count - 1], log)
        total = plus(total, tree[r], log)
    return total, log is not None or lost(total) == 0


@jit
def _outside(
    weight: Any,
    n: int,
    first: int,
    chart: Any,
    top: Any,
    total: float,
    marginals: Any,
    log: bool | None,
) -> None:
    """Derivatives of log Z by every chart entry, widest spans first.

    Marginal = weight · derivative.
    """
    arc, found, count = weight[first:, first:], marginals[first:, first:], n + 1 - first
    right, left = chart[_RIGHT], chart[_LEFT]
    open_right, open_left = chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
    last = count - 1
    grad = np.full((3, count, count), -np.inf if log is not None else 0.0)
    d_right, d_left, d_split = grad[0], grad[1], grad[2]
    for r in range(count):  # what Z itself contributes, left in the transposed derivatives
        share = times(top[r], inverse(total, log), log)
        d_left[r, 0] = times(share, right[r, last], log)
        d_right[last, r] = times(share, left[0, r], log)
        if first == 1:
            marginals[0, r + 1] = number(times(d_left[r, 0], left[0, r], log), log)
    for w in range(last, 0, -1):
        for i in range(count - w):
            j = i + w
            rest = last - j
            # right(i,j) stands in right(i',j) behind open_right(i',i), and in split(i,j') before
            # left(j+1,j'); left(i,j) in left(i,j') before open_left(j,j'), and in split(i',j)
            # behind right(i',i-1); open_right(i,j) in right(i,j') before right(j,j'), and
            # open_left(i,j) in left(i',j) behind left(i',i)
            behind = dot(d_right, j, 0, open_right, i, 0, i, log)
            following = dot(d_split, i, j + 1, left, min(j + 1, last), j + 1, rest, log)
            ahead = dot(d_left, i, j + 1, open_left, j, j + 1, rest, log)
            before = dot(d_split, j, 0, right, max(i - 1, 0), 0, i, log)
            to_right = dot(d_right, i, j + 1, right, j, j + 1, rest, log)
            to_left = dot(d_left, j, 0, left, i, 0, i, log)
            rightward = plus(d_right[j, i], plus(behind, following, log), log)
            leftward = plus(d_left[j, i], plus(ahead, before, log), log)
            to_right, to_left = plus(to_right, rightward, log), plus(to_left, leftward, log)
            into_j, into_i = times(to_right, arc[i, j], log), times(to_left, arc[j, i], log)
            d_right[i, j] = d_right[j, i] = rightward
            d_left[i, j] = d_left[j, i] = leftward
            d_split[i, j] = d_split[j, i] = plus(into_j, into_i, log)
            found[i, j] = number(times(to_right, open_right[i, j], log), log)
            found[j, i] = number(times(to_left, open_left[i, j], log), log)


def mode(lengths: Tensor, arcs: Tensor, multiroot: bool) -> Tensor:
    """Best projective tree: heads ``[B,n]`` (0 on padding)."""
    seeds = np.zeros((1, len(lengths)), dtype=np.uint64)
    return _decode(lengths, arcs, multiroot, seeds, BEST)[0]


def sample(
    lengths: Tensor, arcs: Tensor, multiroot: bool, count: int, generator: torch.Generator | None
) -> Tensor:
    """``count`` exact samples per sentence: heads ``[count,B,n]``."""
    seeds = draw_seeds(count * len(lengths), generator).reshape(count, len(lengths))
    return _decode(lengths, arcs, multiroot, seeds, LOG)


def _decode(lengths: Tensor, arcs: Tensor, multiroot: bool, seeds: Any, log: bool) -> Tensor:
    count, batch = seeds.shape
    nodes = arcs.shape[1]
    heads = torch.zeros(count, batch, nodes - 1, dtype=torch.int64)
    arrays = (as_array(x) for x in (arcs.double(), lengths, heads))
    operations = (20 if log else 1) * batch * nodes**3 + 10 * count * batch * nodes**2
    run_batch(_top_down, batch, operations, *arrays, seeds, multiroot, log)
    return heads.to(arcs.device)


@jit
def _top_down(
    first: int,
    stride: int,
    arcs: Any,
    lengths: Any,
    heads: Any,
    seeds: Any,
    multiroot: bool,
    log: bool,
) -> None:
    """Choose splits from the widest span down: the best ones, or each with its probability."""
    nodes = arcs.shape[1]
    weight = np.empty((nodes, nodes))
    vectors = np.empty((4, nodes))
    shift, top, tree, choices = vectors[0], vectors[1], vectors[2], vectors[3]
    chart = np.empty((_CHARTS, nodes, nodes))
    right, left = chart[_RIGHT], chart[_LEFT]
    open_right, open_left = chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
    todo = np.empty((6 * nodes, 3), dtype=np.int64)
    state = np.empty(1, dtype=np.uint64)
    for b in range(first, arcs.shape[0], stride):
        n, base = lengths[b], 0 if multiroot else 1  # base: the node that chart word 0 stands for
        last = n - base
        load_weights(arcs[b], n, 1.0, weight, shift, LOG)
        total, _ = _inside(weight, n, base, chart, top, tree, log)
        for s in range(heads.shape[0] if total > -np.inf else 0):
            state[0] = seeds[s, b]
            choices[: last + 1] = tree[: last + 1]
            r = _choose(choices, last + 1, state, log)
            todo[0, 0], todo[0, 1], todo[0, 2] = _LEFT, 0, r
            todo[1, 0], todo[1, 1], todo[1, 2] = _RIGHT, r, last
            size = 2
            while size > 0:
                size -= 1
                kind, i, j = todo[size, 0], todo[size, 1], todo[size, 2]
                if i == j:
                    continue
                if kind == _RIGHT:  # choose i's last dependent k, whose own words end at j
                    k = _choose_split(open_right, i, right, j, i + 1, j + 1, 0, choices, state, log)
                    heads[s, b, base + k - 1] = base + i
                    todo[size, 0], todo[size, 1], todo[size, 2] = _RIGHT, k, j
                    low, high = i, k
                else:
                    k = _choose_split(left, i, open_left, j, i, j, 0, choices, state, log)
                    heads[s, b, base + k - 1] = base + j
                    todo[size, 0], todo[size, 1], todo[size, 2] = _LEFT, i, k
                    low, high = k, j
                # the split under the new arc between low and high
                k = _choose_split(right, low, left, high, low, high, 1, choices, state, log)
                todo[size + 1, 0], todo[size + 1, 1], todo[size + 1, 2] = _RIGHT, low, k
                todo[size + 2, 0], todo[size + 2, 1], todo[size + 2, 2] = _LEFT, k + 1, high
                size += 3


@jit
def _choose_split(
    a: Any,
    i: int,
    b: Any,
    j: int,
    first: int,
    stop: int,
    shift: int,
    choices: Any,
    state: Any,
    log: bool,
) -> Any:
    """Split m in first..stop-1, by log-weights a[i, m] + b[j, m + shift]."""
    for m in range(first, stop):
        choices[m - first] = a[i, m] + b[j, m + shift]
    return first + _choose(choices, stop - first, state, log)


@jit
def _choose(log_weight: Any, size: int, state: Any, log: bool) -> Any:
    """Index of the largest weight if `log` is `BEST`, else one drawn in proportion to them."""
    return choose(log_weight, size, state) if log else np.argmax(log_weight[:size])
