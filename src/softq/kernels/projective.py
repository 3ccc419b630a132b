"""Projective dependency trees on the CPU: Eisner's inside-outside, best tree and exact samples; O(n³) each.

Charts over words 0..n-1 (the root is kept apart), all ``[n, n]`` and indexed [left end, right end]:

    split(i,j) = Σ_k right(i,k) left(k+1,j)          two half-built spans that an arc between i and j joins
    open_right(i,j) = w(i→j) split(i,j)              open_left(i,j) = w(j→i) split(i,j)
    right(i,j) = Σ_k open_right(i,k) right(k,j)      i heads all of i..j
    left(i,j)  = Σ_k left(i,k) open_left(k,j)        j heads all of i..j

Every chart is stored by rows and by columns, so that each of these sums, and of those for the derivatives, is a
product of two contiguous stretches.
Sums run in probability space on arcs scaled per dependent (each word has one head, so Z scales with it) and
are redone in log space if any nonzero number leaves [1e-100, 1e100].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.autograd import Scores, Structure
from softq.kernels.jit import LOG, PLAIN, add_scaled, as_array, choose, dot, draw_seeds, jit, log_add, run_batch
from softq.kernels.reference import projective_log_partition
from softq.kernels.trees import load_log_weights, load_weights

_LOW, _HIGH = 1e-100, 1e100

# Each word adds about log(27/4) = 1.9 to the log of the number of projective trees; see `load_weights`.
_GROWTH_PER_WORD = 1.9


def structure(multiroot: bool) -> Structure:
    """Kernels of projective trees, with one or any number of words under the root."""
    return _MULTI if multiroot else _SINGLE


def _infer(lengths: Tensor, scores: Scores, want_marginals: bool, multiroot: bool) -> tuple[Tensor, Scores]:
    (arcs,) = (s.detach() for s in scores)
    if arcs.is_cuda:
        from softq.kernels import projective_gpu

        return projective_gpu.infer(lengths, arcs, want_marginals, multiroot)
    batch, count = arcs.shape[:2]
    log_z = torch.empty(batch, dtype=arcs.dtype)
    found = torch.empty_like(arcs, memory_format=torch.contiguous_format) if want_marginals else arcs[:0]
    arrays = (as_array(x) for x in (arcs, lengths, log_z, found))
    run_batch(_inside_outside, batch, 2 * batch * count**3, *arrays, want_marginals, multiroot)
    return log_z, (found,) if want_marginals else ()


_SINGLE = Structure(
    lambda lengths, scores, want: _infer(lengths, scores, want, False),
    lambda lengths, arcs: projective_log_partition(lengths, arcs, multiroot=False),
)
_MULTI = Structure(
    lambda lengths, scores, want: _infer(lengths, scores, want, True),
    lambda lengths, arcs: projective_log_partition(lengths, arcs, multiroot=True),
)


# A chart fills the upper triangle of its matrix, its transpose (named _t below) the lower one: half the memory.
_RIGHT, _LEFT, _OPEN_RIGHT, _OPEN_LEFT, _CHARTS = range(5)
_D_RIGHT, _D_LEFT, _D_SPLIT, _GRADIENTS = range(4)


@jit
def _inside_outside(first: int, stride: int, scores: Any, lengths: Any, log_z: Any, found: Any, want: bool, multiroot: bool) -> None:
    size = scores.shape[1] - 1
    chart = np.empty((_CHARTS, size, size))
    grad = np.empty((_GRADIENTS, size, size))
    arc = np.empty((size + 1, size + 1))
    shift = np.empty(size + 1)
    root = np.empty((2, size + 1))
    root_grad = np.empty((2, size + 1))
    for b in range(first, scores.shape[0], stride):
        n = lengths[b]
        value = 0.0
        if want:
            found[b] = 0.0
        if n > 0:
            total, in_range = 0.0, load_weights(scores[b], n, _GROWTH_PER_WORD, arc, shift)
            if in_range:
                total, in_range = _inside(arc, n, chart, root, multiroot, PLAIN)
            if in_range:
                value = np.log(total)
                if want and total > 0.0:
                    _outside(arc, n, chart, grad, root, root_grad, total, multiroot, PLAIN, found[b])
            else:
                load_log_weights(scores[b], n, arc, shift)
                value, _ = _inside(arc, n, chart, root, multiroot, LOG)
                if want and value > -np.inf:
                    _outside(arc, n, chart, grad, root, root_grad, value, multiroot, LOG, found[b])
            for d in range(1, n + 1):
                value += shift[d]
        log_z[b] = value


@jit
def _inside(arc: Any, n: int, chart: Any, root: Any, multiroot: bool, log: bool | None) -> Any:
    """Fill the charts; returns Z (or log Z) and whether the range held. `arc` counts words from 1."""
    right, left, open_right, open_left = chart[_RIGHT], chart[_LEFT], chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
    right_t, left_t, open_right_t, open_left_t = right, left, open_right, open_left
    one = 0.0 if log is not None else 1.0
    lost = 0
    for i in range(n):
        right[i, i] = one
        left[i, i] = one
    for w in range(1, n):
        for i in range(n - w):  # spans of one width do not wait for each other
            j = i + w
            # All three sums but for their last terms, right(i,j-1) left(j,j), open_right(i,j) right(j,j) and left(i,i) open_left(i,j)
            split = dot(right, i, i, left_t, j, i + 1, w - 1, log)
            rightward = dot(open_right, i, i + 1, right_t, j, i + 1, w - 1, log)
            leftward = dot(left, i, i + 1, open_left_t, j, i + 1, w - 1, log)
            split = log_add(split, right[i, j - 1]) if log is not None else split + right[i, j - 1]
            to_right = split + arc[i + 1, j + 1] if log is not None else split * arc[i + 1, j + 1]
            to_left = split + arc[j + 1, i + 1] if log is not None else split * arc[j + 1, i + 1]
            rightward = log_add(rightward, to_right) if log is not None else rightward + to_right
            leftward = log_add(leftward, to_left) if log is not None else leftward + to_left
            open_right[i, j], open_right_t[j, i] = to_right, to_right
            open_left[i, j], open_left_t[j, i] = to_left, to_left
            right[i, j], right_t[j, i] = rightward, rightward
            left[i, j], left_t[j, i] = leftward, leftward
            if log is None:
                lost += _lost(split) + _lost(to_right) + _lost(to_left) + _lost(rightward) + _lost(leftward)
        if lost > 0:
            return 0.0, False
    if multiroot:
        # root[0, j]: the root heads words 0..j-1;  root[1, r]: so, and its last arc goes to word r
        root[0, 0] = one
        for j in range(1, n + 1):
            split = dot(root, 0, 0, left_t, j - 1, 0, j, log)
            root[1, j - 1] = split + arc[0, j] if log is not None else split * arc[0, j]
            root[0, j] = dot(root, 1, 0, right_t, j - 1, 0, j, log)
            if log is None:
                lost += _lost(root[1, j - 1]) + _lost(root[0, j])
        return root[0, n], lost == 0
    total = -np.inf if log is not None else 0.0
    for r in range(n):
        if log is not None:
            total = log_add(total, arc[0, r + 1] + left[0, r] + right[r, n - 1])
        else:
            # left · right ≥ 1e-200 and the arc ≥ 1e-100: representable, and checked below
            total += arc[0, r + 1] * left[0, r] * right[r, n - 1]
    return total, log is not None or _lost(total) == 0


@jit
def _lost(x: float) -> int:
    """1 for a number so small or large that a product with another such might not be representable."""
    return int((x != 0.0) & ((x < _LOW) | (x > _HIGH)))


@jit
def _outside(
    arc: Any, n: int, chart: Any, grad: Any, root: Any, root_grad: Any, total: float, multiroot: bool, log: bool | None, marginals: Any
) -> None:
    """Derivatives of log Z by every chart entry, widest spans first; arc marginal = its weight times its derivative."""
    right, left, open_right, open_left = chart[_RIGHT], chart[_LEFT], chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
    right_t, left_t, open_right_t = right, left, open_right
    d_right, d_left, d_split = grad[_D_RIGHT], grad[_D_LEFT], grad[_D_SPLIT]
    d_right_t, d_left_t, d_split_t = d_right, d_left, d_split
    zero = -np.inf if log is not None else 0.0
    for i in range(n):
        d_right_t[i, :n] = zero
        d_left_t[i, :n] = zero
    # What the root's arcs contribute, left in the transposed derivatives.
    if multiroot:
        root_grad[0, : n + 1] = zero
        root_grad[1, :n] = zero
        root_grad[0, n] = -total if log is not None else 1.0 / total
        for j in range(n, 0, -1):
            add_scaled(root_grad, 1, 0, root_grad[0, j], right_t, j - 1, 0, j, log)
            add_scaled(d_right_t, j - 1, 0, root_grad[0, j], root, 1, 0, j, log)
            opened = root_grad[1, j - 1]
            marginals[0, j] = _product(opened, root[1, j - 1], log)
            split = opened + arc[0, j] if log is not None else opened * arc[0, j]
            add_scaled(root_grad, 0, 0, split, left_t, j - 1, 0, j, log)
            add_scaled(d_left_t, j - 1, 0, split, root, 0, 0, j, log)
    else:
        for r in range(n):
            if log is not None:
                a = arc[0, r + 1] - total
                marginals[0, r + 1] = np.exp(a + left[0, r] + right[r, n - 1])
                d_left_t[r, 0] = a + right[r, n - 1]
                d_right_t[n - 1, r] = a + left[0, r]
            else:
                a = arc[0, r + 1] / total
                marginals[0, r + 1] = a * left[0, r] * right[r, n - 1]
                d_left_t[r, 0] = a * right[r, n - 1]
                d_right_t[n - 1, r] = a * left[0, r]
    for w in range(n - 1, 0, -1):
        for i in range(n - w):
            j = i + w
            # right(i,j) stands in right(i',j) behind open_right(i',i), and in split(i,j') before left(j+1,j');
            # left(i,j) stands in left(i,j') before open_left(j,j'), and in split(i',j) behind right(i',i-1);
            # open_right(i,j) stands in right(i,j') before right(j,j'), open_left(i,j) in left(i',j) behind left(i',i)
            r = dot(d_right_t, j, 0, open_right_t, i, 0, i, log)
            following = dot(d_split, i, j + 1, left, min(j + 1, n - 1), j + 1, n - 1 - j, log)
            e = dot(d_left, i, j + 1, open_left, j, j + 1, n - 1 - j, log)
            before = dot(d_split_t, j, 0, right_t, max(i - 1, 0), 0, i, log)
            to_right = dot(d_right, i, j + 1, right, j, j + 1, n - 1 - j, log)
            to_left = dot(d_left_t, j, 0, left_t, i, 0, i, log)
            if log is not None:
                rightward = log_add(d_right_t[j, i], log_add(r, following))
                leftward = log_add(d_left_t[j, i], log_add(e, before))
                to_right, to_left = log_add(to_right, rightward), log_add(to_left, leftward)
                split = log_add(to_right + arc[i + 1, j + 1], to_left + arc[j + 1, i + 1])
            else:
                rightward = d_right_t[j, i] + r + following
                leftward = d_left_t[j, i] + e + before
                to_right, to_left = to_right + rightward, to_left + leftward
                split = to_right * arc[i + 1, j + 1] + to_left * arc[j + 1, i + 1]
            d_right[i, j], d_right_t[j, i] = rightward, rightward
            d_left[i, j], d_left_t[j, i] = leftward, leftward
            d_split[i, j], d_split_t[j, i] = split, split
            marginals[i + 1, j + 1] = _product(to_right, open_right[i, j], log)
            marginals[j + 1, i + 1] = _product(to_left, open_left[i, j], log)


@jit
def _product(derivative: float, value: float, log: bool | None) -> float:
    return np.exp(derivative + value) if log is not None else derivative * value


def mode(lengths: Tensor, arcs: Tensor, multiroot: bool) -> tuple[Tensor, Tensor]:
    """Best projective tree: heads ``[B,n]`` (0 on padding) and score ``[B]``; -inf if no tree is allowed."""
    batch, count = arcs.shape[:2]
    heads = torch.zeros(batch, count - 1, dtype=torch.int64)
    value = torch.empty(batch, dtype=torch.float64)
    arrays = (as_array(x) for x in (arcs.double(), lengths, heads, value))
    run_batch(_eisner, batch, batch * count**3, *arrays, multiroot)
    return heads.to(arcs.device), value.to(arcs)


@jit
def _eisner(first: int, stride: int, arcs: Any, lengths: Any, heads: Any, value: Any, multiroot: bool) -> None:
    """Max-product Eisner over the root (word 0) and the words; `at` keeps each span's best split."""
    count = arcs.shape[1]
    best = np.empty((4, count, count))  # open_right, open_left, right, left
    at = np.empty((4, count, count), dtype=np.int32)
    todo = np.empty((4 * count + 4, 3), dtype=np.int32)
    for b in range(first, arcs.shape[0], stride):
        n = lengths[b]
        for i in range(n + 1):
            best[2, i, i] = 0.0
            best[3, i, i] = 0.0
        for w in range(1, n + 1):
            for i in range(n + 1 - w):
                j = i + w
                s, k = -np.inf, i
                for m in range(i, j):
                    if i == 0 and m > 0 and not multiroot:
                        break  # a second arc from the root would start here
                    v = best[2, i, m] + best[3, m + 1, j]
                    if v > s:
                        s, k = v, m
                best[0, i, j], at[0, i, j] = s + arcs[b, i, j], k
                best[1, i, j], at[1, i, j] = (s + arcs[b, j, i] if i > 0 else -np.inf), k
                s, k = -np.inf, j
                for m in range(i + 1, j + 1):
                    v = best[0, i, m] + best[2, m, j]
                    if v > s:
                        s, k = v, m
                best[2, i, j], at[2, i, j] = s, k
                s, k = -np.inf, i
                for m in range(i, j):
                    v = best[3, i, m] + best[1, m, j]
                    if v > s:
                        s, k = v, m
                best[3, i, j], at[3, i, j] = s, k
        value[b] = best[2, 0, n]
        if value[b] == -np.inf:
            continue
        todo[0, 0], todo[0, 1], todo[0, 2] = 2, 0, n
        top = 1
        while top > 0:
            top -= 1
            kind, i, j = todo[top, 0], todo[top, 1], todo[top, 2]
            if i == j:
                continue
            k = at[kind, i, j]
            if kind < 2:
                heads[b, (j if kind == 0 else i) - 1] = i if kind == 0 else j
                todo[top, 0], todo[top, 1], todo[top, 2] = 2, i, k
                todo[top + 1, 0], todo[top + 1, 1], todo[top + 1, 2] = 3, k + 1, j
            elif kind == 2:
                todo[top, 0], todo[top, 1], todo[top, 2] = 0, i, k
                todo[top + 1, 0], todo[top + 1, 1], todo[top + 1, 2] = 2, k, j
            else:
                todo[top, 0], todo[top, 1], todo[top, 2] = 3, i, k
                todo[top + 1, 0], todo[top + 1, 1], todo[top + 1, 2] = 1, k, j
            top += 2


def sample(lengths: Tensor, arcs: Tensor, multiroot: bool, count: int, generator: torch.Generator | None) -> Tensor:
    """``count`` exact samples per sentence, drawn top-down through the inside chart: heads ``[count,B,n]``."""
    batch, nodes = arcs.shape[:2]
    heads = torch.zeros(count, batch, nodes - 1, dtype=torch.int64)
    seeds = draw_seeds(count * batch, generator).reshape(count, batch)
    arrays = (as_array(x) for x in (arcs.double(), lengths, heads))
    run_batch(_sample, batch, 20 * batch * nodes**3 + 10 * count * batch * nodes**2, *arrays, seeds, multiroot)
    return heads.to(arcs.device)


@jit
def _sample(first: int, stride: int, arcs: Any, lengths: Any, heads: Any, seeds: Any, multiroot: bool) -> None:
    size = arcs.shape[1] - 1
    chart = np.empty((_CHARTS, size, size))
    root = np.empty((2, size + 1))
    weight = np.empty(size + 1)
    todo = np.empty((6 * size + 6, 3), dtype=np.int32)
    state = np.empty(1, dtype=np.uint64)
    for b in range(first, arcs.shape[0], stride):
        n = lengths[b]
        if n == 0:
            continue
        arc = arcs[b]
        _inside(arc, n, chart, root, multiroot, LOG)
        right, left, open_right, open_left_t = chart[_RIGHT], chart[_LEFT], chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
        right_t, left_t = right, left
        for s in range(heads.shape[0]):
            state[0] = seeds[s, b]
            head = heads[s, b]
            top = 0
            if multiroot:
                j = n
                while j > 0:
                    for r in range(j):
                        weight[r] = root[1, r] + right_t[j - 1, r]
                    r = choose(weight, j, state)
                    head[r] = 0
                    todo[top, 0], todo[top, 1], todo[top, 2] = 2, r, j - 1
                    top += 1
                    for k in range(r + 1):
                        weight[k] = root[0, k] + left_t[r, k]
                    j = choose(weight, r + 1, state)
                    todo[top, 0], todo[top, 1], todo[top, 2] = 3, j, r
                    top += 1
            else:
                for r in range(n):
                    weight[r] = arc[0, r + 1] + left[0, r] + right[r, n - 1]
                r = choose(weight, n, state)
                head[r] = 0
                todo[0, 0], todo[0, 1], todo[0, 2] = 3, 0, r
                todo[1, 0], todo[1, 1], todo[1, 2] = 2, r, n - 1
                top = 2
            while top > 0:
                top -= 1
                kind, i, j = todo[top, 0], todo[top, 1], todo[top, 2]
                if i == j:
                    continue
                if kind == 2:  # right(i,j): choose i's last dependent k, whose own words end at j
                    for m in range(j - i):
                        weight[m] = open_right[i, i + 1 + m] + right_t[j, i + 1 + m]
                    k = i + 1 + choose(weight, j - i, state)
                    head[k] = i + 1
                    todo[top, 0], todo[top, 1], todo[top, 2] = 2, k, j
                    a, z = i, k
                else:
                    for m in range(j - i):
                        weight[m] = left[i, i + m] + open_left_t[j, i + m]
                    k = i + choose(weight, j - i, state)
                    head[k] = j + 1
                    todo[top, 0], todo[top, 1], todo[top, 2] = 3, i, k
                    a, z = k, j
                for m in range(z - a):  # the split under the new arc between a and z
                    weight[m] = right[a, a + m] + left_t[z, a + m + 1]
                k = a + choose(weight, z - a, state)
                todo[top + 1, 0], todo[top + 1, 1], todo[top + 1, 2] = 2, a, k
                todo[top + 2, 0], todo[top + 2, 1], todo[top + 2, 2] = 3, k + 1, z
                top += 3
