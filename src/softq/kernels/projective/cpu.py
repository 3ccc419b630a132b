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
has one head, so Z scales with it), for four sentences at once (`softq.kernels.simd`); a sentence
in which a nonzero number leaves the range of `softq.kernels.semiring` is redone in log space. The
best tree is found in log space, with the largest term of a sum in the place of the sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.random import choose, draw_seeds
from softq.kernels.semiring import BEST, LOG, PLAIN, dot, inverse, lost, number, plus, times
from softq.kernels.simd import WIDTHS, vectors
from softq.kernels.trees import load_weights, loss_of

# For each word there are about 27/4 times as many projective trees: see `load_weights`.
_GROWTH_PER_WORD = 6.75

_SENTENCES = WIDTHS["float64"]  # that are worked on together

_RIGHT, _LEFT, _OPEN_RIGHT, _OPEN_LEFT, _CHARTS = range(5)
_SPLIT = 2  # in the place of the open spans among the derivatives


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
    order = np.argsort(lengths)  # sentences of about the same length share charts
    log_z = np.empty(_SENTENCES)
    in_range = np.empty(_SENTENCES, dtype=np.bool_)
    for g in range(first * _SENTENCES, len(order), stride * _SENTENCES):
        members = order[g : g + _SENTENCES]
        _solve(scores, lengths, members, multiroot, want, log_z, in_range, found, PLAIN)
        for m in range(len(members)):
            b = members[m]
            if not in_range[m]:
                one, alone = log_z[m : m + 1], members[m : m + 1]
                _solve(scores, lengths, alone, multiroot, want, one, in_range[m:], found, LOG)
            marginals = found[b if want else 0]
            loss[b] = loss_of(
                b, log_z[m], scores[b], lengths[b], heads, weights, expected, marginals
            )


@jit
def _solve(
    scores: Any,
    lengths: Any,
    members: Any,
    multiroot: bool,
    want: bool,
    log_z: Any,
    in_range: Any,
    found: Any,
    log: bool | None,
) -> None:
    """Log Z of a few sentences, whether the range held and, if wanted, the marginals of arcs.

    What is missing of the charts' sentences, or of their words, has no arcs.
    """
    zero = -np.inf if log is not None else 0.0
    first = 0 if multiroot else 1  # the node that chart word 0 stands for
    nodes = lengths[members].max() + 1
    count, together = nodes - first, _SENTENCES if log is None else 1
    shift, tree = np.empty((len(members), nodes)), np.empty(nodes)
    weight = np.full((nodes, nodes, together), zero)
    chart = np.empty((_CHARTS, count, count, together))
    for m in range(len(members)):
        n = lengths[members[m]]
        own = np.empty((n + 1, n + 1))
        in_range[m] = load_weights(scores[members[m]], n, _GROWTH_PER_WORD, own, shift[m], log)
        weight[: n + 1, : n + 1, m] = own
    _inside(weight, chart, first, log)
    strange = _count_lost(chart.reshape(-1)) if log is None else 0
    grad = np.full((_SPLIT + 1, count, count, together), zero)
    for m in range(len(members)):
        n, values = lengths[members[m]], chart[:, :, :, m]
        total = _tops(weight[:, :, m], n, first, values, tree, log)
        if log is None:
            lost_here = _count_lost(values.copy().reshape(-1)) if strange > 0 else 0
            in_range[m] &= lost_here + lost(total) == 0
        log_z[m] = (total if log is not None else np.log(total)) + shift[m, 1 : n + 1].sum()
        if want:
            _seed(weight[:, :, m], n, first, values, tree, total, grad[:, :, :, m], log)
    if want:
        _outside(weight, chart, grad, first, log)
        for m in range(len(members)):
            n, marginals = lengths[members[m]], found[members[m]]
            marginals[:] = 0.0
            for h in range(n + 1 if log_z[m] > -np.inf else 0):
                for d in range(1, n + 1):
                    marginals[h, d] = number(weight[h, d, m], log)


@jit
def _count_lost(values: Any) -> int:
    count = 0
    for k in range(values.size):
        count += lost(values[k])
    return count


@jit
def _inside(weight: Any, charts: Any, first: int, log: bool | None) -> None:
    """Fill the charts; word 0 of them is node `first`, the root or the first word."""
    # What is computed with: a number, or a vector of those of four sentences.
    arc = vectors(weight, log)[:, :, 0]
    chart = vectors(charts, log)[:, :, :, 0]
    right, left = chart[_RIGHT], chart[_LEFT]
    open_right, open_left = chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
    count = chart.shape[1]
    for i in range(count):
        charts[:_OPEN_RIGHT, i, i] = 0.0 if log is not None else 1.0
        charts[_OPEN_RIGHT:, i, i] = -np.inf if log is not None else 0.0
    one = np.uint64(1)
    for i in range(count - 1, -1, -1):  # its rows stay in the cache while its spans grow
        for j in range(i + 1, count):
            # The last terms are right(i,j-1) left(j,j), and below open_right(i,j) right(j,j) and
            # left(i,i) open_left(i,j).
            split, rightward, leftward = right[i, j - 1], open_right[i, i], open_left[i, i]
            if log is None:
                low, high = np.uint64(i), np.uint64(j)
                for k in range(low + one, high):
                    split = split + right[low, k - one] * left[high, k]
                    rightward = rightward + open_right[low, k] * right[high, k]
                    leftward = leftward + left[low, k] * open_left[high, k]
            else:
                size = j - i - 1
                split = plus(split, dot(right, i, i, left, j, i + 1, size, log), log)
                rightward = dot(open_right, i, i + 1, right, j, i + 1, size, log)
                leftward = dot(left, i, i + 1, open_left, j, i + 1, size, log)
            to_right = times(split, arc[i + first, j + first], log)
            to_left = times(split, arc[j + first, i + first], log)
            open_right[i, j] = open_right[j, i] = to_right
            open_left[i, j] = open_left[j, i] = to_left
            right[i, j] = right[j, i] = plus(rightward, to_right, log)
            left[i, j] = left[j, i] = plus(leftward, to_left, log)


@jit
def _tops(weight: Any, n: int, first: int, chart: Any, tree: Any, log: bool | None) -> Any:
    """Z (or log Z) of one sentence; `tree[r]` gets the part of the trees with word r at the top."""
    last = n - first
    if last < 0:
        return 1.0 if log is None else 0.0  # no words: the empty tree
    total = zero = 0.0 if log is None else -np.inf
    for r in range(last + 1):
        # left · right ≥ 1e-200 and the arc ≥ 1e-100: representable, and checked by the caller
        tree[r] = times(chart[_LEFT, 0, r], chart[_RIGHT, r, last], log)
        if first == 1:
            tree[r] = times(tree[r], weight[0, r + 1], log)
        elif r > 0:
            tree[r] = zero
        total = plus(total, tree[r], log)
    return total


@jit
def _seed(
    weight: Any,
    n: int,
    first: int,
    chart: Any,
    tree: Any,
    total: float,
    grad: Any,
    log: bool | None,
) -> None:
    """Derivatives of log Z by the spans at the top, in the transposed entries; see `_outside`."""
    last, factor = n - first, inverse(total, log)
    for r in range(last + 1 if first == 1 else 1):
        share = times(weight[0, r + 1], factor, log) if first == 1 else factor
        grad[_LEFT, r, 0] = times(share, chart[_RIGHT, r, last], log)
        grad[_RIGHT, last, r] = times(share, chart[_LEFT, 0, r], log)
        if first == 1:
            weight[0, r + 1] = times(tree[r], factor, log)


@jit
def _outside(weight: Any, charts: Any, grads: Any, first: int, log: bool | None) -> None:
    """Derivatives of log Z by every chart entry, widest spans first; arcs become marginals.

    Marginal = weight · derivative.
    """
    arc = vectors(weight, log)[:, :, 0]
    chart = vectors(charts, log)[:, :, :, 0]
    grad = vectors(grads, log)[:, :, :, 0]
    right, left = chart[_RIGHT], chart[_LEFT]
    open_right, open_left = chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
    d_right, d_left, d_split = grad[_RIGHT], grad[_LEFT], grad[_SPLIT]
    count, one = chart.shape[1], np.uint64(1)
    for i in range(count):
        for j in range(count - 1, i, -1):
            # right(i,j) stands in right(i',j) behind open_right(i',i), and in split(i,j') before
            # left(j+1,j'); left(i,j) in left(i,j') before open_left(j,j'), and in split(i',j)
            # behind right(i',i-1); open_right(i,j) in right(i,j') before right(j,j'), and
            # open_left(i,j) in left(i',j) behind left(i',i)
            rightward, leftward = d_right[j, i], d_left[j, i]
            to_right, to_left = open_right[i, i], open_left[i, i]
            if log is None:
                low, high = np.uint64(i), np.uint64(j)
                for k in range(low):
                    rightward = rightward + d_right[high, k] * open_right[low, k]
                    leftward = leftward + d_split[high, k] * right[low - one, k]
                    to_left = to_left + d_left[high, k] * left[low, k]
                for k in range(high + one, np.uint64(count)):
                    rightward = rightward + d_split[low, k] * left[high + one, k]
                    leftward = leftward + d_left[low, k] * open_left[high, k]
                    to_right = to_right + d_right[low, k] * right[high, k]
            else:
                after, rest = j + 1, count - 1 - j
                behind = dot(d_right, j, 0, open_right, i, 0, i, log)
                before = dot(d_split, j, 0, right, max(i - 1, 0), 0, i, log)
                to_left = dot(d_left, j, 0, left, i, 0, i, log)
                following = dot(d_split, i, after, left, after, after, rest, log)
                ahead = dot(d_left, i, after, open_left, j, after, rest, log)
                to_right = dot(d_right, i, after, right, j, after, rest, log)
                rightward = plus(rightward, plus(behind, following, log), log)
                leftward = plus(leftward, plus(ahead, before, log), log)
            to_right, to_left = plus(to_right, rightward, log), plus(to_left, leftward, log)
            into_j = times(to_right, arc[i + first, j + first], log)
            into_i = times(to_left, arc[j + first, i + first], log)
            d_right[i, j] = d_right[j, i] = rightward
            d_left[i, j] = d_left[j, i] = leftward
            d_split[i, j] = d_split[j, i] = plus(into_j, into_i, log)
            arc[i + first, j + first] = times(to_right, open_right[i, j], log)
            arc[j + first, i + first] = times(to_left, open_left[i, j], log)


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
    weight = np.empty((nodes, nodes, 1))
    rows = np.empty((3, nodes))
    shift, tree, choices = rows[0], rows[1], rows[2]
    all_charts = np.empty((_CHARTS, nodes, nodes, 1))
    todo = np.empty((6 * nodes, 3), dtype=np.int64)
    state = np.empty(1, dtype=np.uint64)
    for b in range(first, arcs.shape[0], stride):
        n, base = lengths[b], 0 if multiroot else 1  # base: the node that chart word 0 stands for
        last = n - base
        arc, charts = weight[:, :, 0], all_charts[:, : last + 1, : last + 1]
        chart = charts[:, :, :, 0]
        right, left = chart[_RIGHT], chart[_LEFT]
        open_right, open_left = chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
        load_weights(arcs[b], n, 1.0, arc, shift, LOG)
        _inside(weight, charts, base, log)
        total = _tops(arc, n, base, chart, tree, log)
        for s in range(heads.shape[0] if n > 0 and total > -np.inf else 0):
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
