"""Projective dependency trees on the CPU: Eisner's inside-outside, best tree and exact samples; O(n³) each.

Charts over words 0..n-1 (the root is kept apart), all ``[n, n]`` and indexed [left end, right end]:

    split(i,j) = Σ_k right(i,k) left(k+1,j)          two half-built spans that an arc between i and j joins
    open_right(i,j) = w(i→j) split(i,j)              open_left(i,j) = w(j→i) split(i,j)
    right(i,j) = Σ_k open_right(i,k) right(k,j)      i heads all of i..j
    left(i,j)  = Σ_k left(i,k) open_left(k,j)        j heads all of i..j

A chart whose sums run down a column is stored transposed as well, so that every inner loop is contiguous.
Sums run in probability space on arcs scaled per dependent (each word has one head, so Z scales with it) and
are redone in log space if any nonzero number leaves [1e-100, 1e100].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.autograd import Scores, Structure
from softq.kernels.jit import add_scaled, as_array, choose, dot, draw_seeds, jit, log_add, run_batch
from softq.kernels.reference import projective_log_partition
from softq.kernels.trees import prepare_arcs

_LOW, _HIGH = 1e-100, 1e100

# Each word adds about log(27/4) = 1.9 to the log of the number of projective trees; see `prepare_arcs`.
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
    clean, shift, weights, floor = prepare_arcs(lengths, arcs, _GROWTH_PER_WORD)
    log_z = torch.empty(batch, dtype=torch.float64)
    run_batch(
        _inside_outside,
        batch,
        2 * batch * count**3,
        *(as_array(x) for x in (clean, shift, weights, lengths, log_z)),
        floor,
        want_marginals,
        multiroot,
    )
    return log_z.to(arcs), (weights,) if want_marginals else ()


_SINGLE = Structure(
    lambda lengths, scores, want: _infer(lengths, scores, want, False),
    lambda lengths, arcs: projective_log_partition(lengths, arcs, multiroot=False),
)
_MULTI = Structure(
    lambda lengths, scores, want: _infer(lengths, scores, want, True),
    lambda lengths, arcs: projective_log_partition(lengths, arcs, multiroot=True),
)


@jit
def _inside_outside(
    first: int, stride: int, scores: Any, shift: Any, weights: Any, lengths: Any, log_z: Any, floor: float, want: bool, multiroot: bool
) -> None:
    """`weights` holds exp(scores - shift) on entry and arc marginals on return."""
    size = scores.shape[1] - 1
    chart = np.empty((7, size, size))
    grad = np.empty((6, size, size))
    arc = np.empty((size + 1, size + 1))
    root = np.empty((2, size + 1))
    root_grad = np.empty((2, size + 1))
    for b in range(first, scores.shape[0], stride):
        n = lengths[b]
        log_z[b] = 0.0
        if n > 0:
            log = not _load(scores[b], shift[b], weights[b], n, arc, floor)
            total, in_range = _inside(arc, n, chart, root, multiroot, log)
            if not in_range:
                log = True
                _load_log(scores[b], shift[b], n, arc)
                total, _ = _inside(arc, n, chart, root, multiroot, True)
            log_z[b] = total if log else np.log(total)
            for d in range(1, n + 1):
                log_z[b] += shift[b, d]
        if not want:
            continue
        weights[b] = 0.0
        if n > 0 and log_z[b] > -np.inf:
            _outside(arc, n, chart, grad, root, root_grad, total, multiroot, log, weights[b])


@jit
def _load(scores: Any, shift: Any, weights: Any, n: int, arc: Any, floor: float) -> bool:
    """Arc weights in probability space; if an exponential is too small to trust, log weights and False."""
    exact = True
    for h in range(n + 1):
        for d in range(1, n + 1):
            arc[h, d] = weights[h, d]
            if weights[h, d] < floor and scores[h, d] > -np.inf:
                exact = False
    if not exact:
        _load_log(scores, shift, n, arc)
    return exact


@jit
def _load_log(scores: Any, shift: Any, n: int, arc: Any) -> None:
    for h in range(n + 1):
        for d in range(1, n + 1):
            arc[h, d] = scores[h, d] - shift[d]


@jit
def _usable(x: float, log: bool) -> bool:
    return log or x == 0.0 or _LOW <= x <= _HIGH


@jit
def _inside(arc: Any, n: int, chart: Any, root: Any, multiroot: bool, log: bool) -> Any:
    """Fill the charts; returns Z (or log Z) and whether the range held. `arc` counts words from 1."""
    right, right_t, left, left_t, open_right, open_left_t, split = chart[0], chart[1], chart[2], chart[3], chart[4], chart[5], chart[6]
    one = 0.0 if log else 1.0
    in_range = True
    for i in range(n):
        right[i, i] = one
        right_t[i, i] = one
        left[i, i] = one
        left_t[i, i] = one
    for w in range(1, n):
        for i in range(n - w):
            j = i + w
            s = dot(right[i, i:], left_t[j, i + 1 :], w, log)
            split[i, j] = s
            to_right = s + arc[i + 1, j + 1] if log else s * arc[i + 1, j + 1]
            to_left = s + arc[j + 1, i + 1] if log else s * arc[j + 1, i + 1]
            open_right[i, j] = to_right
            open_left_t[j, i] = to_left
            r = dot(open_right[i, i + 1 :], right_t[j, i + 1 :], w, log)
            e = dot(left[i, i:], open_left_t[j, i:], w, log)
            right[i, j] = r
            right_t[j, i] = r
            left[i, j] = e
            left_t[j, i] = e
            in_range = in_range and _usable(s, log) and _usable(to_right, log) and _usable(to_left, log) and _usable(r, log) and _usable(e, log)
        if not in_range:
            return 0.0, False
    zero = -np.inf if log else 0.0
    if multiroot:
        # prefix(j): the root heads words 0..j-1;  open(r): its arc to word r closes over everything before r
        prefix, opened = root[0], root[1]
        prefix[0] = one
        for j in range(1, n + 1):
            s = dot(prefix, left_t[j - 1], j, log)
            opened[j - 1] = s + arc[0, j] if log else s * arc[0, j]
            prefix[j] = dot(opened, right_t[j - 1], j, log)
            in_range = in_range and _usable(opened[j - 1], log) and _usable(prefix[j], log)
        return prefix[n], in_range
    total = zero
    for r in range(n):
        if log:
            total = log_add(total, arc[0, r + 1] + left[0, r] + right[r, n - 1])
        else:
            # left · right ≥ 1e-200 and the arc ≥ 1e-100: representable, and checked below
            total += arc[0, r + 1] * left[0, r] * right[r, n - 1]
    return total, in_range and _usable(total, log)


@jit
def _outside(
    arc: Any, n: int, chart: Any, grad: Any, root: Any, root_grad: Any, total: float, multiroot: bool, log: bool, marginals: Any
) -> None:
    """Derivatives of log Z by every chart entry, widest spans first; arc marginal = its weight times its derivative."""
    right, right_t, left, left_t, open_right, open_left_t, split = chart[0], chart[1], chart[2], chart[3], chart[4], chart[5], chart[6]
    d_right, d_right_t, d_left, d_left_t, d_open_right, d_open_left_t = grad[0], grad[1], grad[2], grad[3], grad[4], grad[5]
    zero = -np.inf if log else 0.0
    for g in range(6):
        for i in range(n):
            grad[g, i, :n] = zero
    if multiroot:
        d_prefix, d_opened = root_grad[0], root_grad[1]
        prefix, opened = root[0], root[1]
        d_prefix[: n + 1] = zero
        d_opened[:n] = zero
        d_prefix[n] = -total if log else 1.0 / total
        for j in range(n, 0, -1):
            add_scaled(d_opened, d_prefix[j], right_t[j - 1], j, log)
            add_scaled(d_right_t[j - 1], d_prefix[j], opened, j, log)
            marginals[0, j] = _product(d_opened[j - 1], opened[j - 1], log)
            s = d_opened[j - 1] + arc[0, j] if log else d_opened[j - 1] * arc[0, j]
            add_scaled(d_prefix, s, left_t[j - 1], j, log)
            add_scaled(d_left_t[j - 1], s, prefix, j, log)
    else:
        for r in range(n):
            if log:
                a = arc[0, r + 1] - total
                marginals[0, r + 1] = np.exp(a + left[0, r] + right[r, n - 1])
                d_left[0, r] = a + right[r, n - 1]
                d_right[r, n - 1] = a + left[0, r]
            else:
                a = arc[0, r + 1] / total
                marginals[0, r + 1] = a * left[0, r] * right[r, n - 1]
                d_left[0, r] = a * right[r, n - 1]
                d_right[r, n - 1] = a * left[0, r]
    for w in range(n - 1, 0, -1):
        for i in range(n - w):
            j = i + w
            r = log_add(d_right[i, j], d_right_t[j, i]) if log else d_right[i, j] + d_right_t[j, i]
            e = log_add(d_left[i, j], d_left_t[j, i]) if log else d_left[i, j] + d_left_t[j, i]
            add_scaled(d_open_right[i, i + 1 :], r, right_t[j, i + 1 :], w, log)
            add_scaled(d_right_t[j, i + 1 :], r, open_right[i, i + 1 :], w, log)
            add_scaled(d_left[i, i:], e, open_left_t[j, i:], w, log)
            add_scaled(d_open_left_t[j, i:], e, left[i, i:], w, log)
            to_right, to_left = d_open_right[i, j], d_open_left_t[j, i]
            marginals[i + 1, j + 1] = _product(to_right, open_right[i, j], log)
            marginals[j + 1, i + 1] = _product(to_left, open_left_t[j, i], log)
            if log:
                s = log_add(to_right + arc[i + 1, j + 1], to_left + arc[j + 1, i + 1])
            else:
                s = to_right * arc[i + 1, j + 1] + to_left * arc[j + 1, i + 1]
            add_scaled(d_right[i, i:], s, left_t[j, i + 1 :], w, log)
            add_scaled(d_left_t[j, i + 1 :], s, right[i, i:], w, log)


@jit
def _product(derivative: float, value: float, log: bool) -> float:
    return np.exp(derivative + value) if log else derivative * value


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
    chart = np.empty((7, size, size))
    root = np.empty((2, size + 1))
    weight = np.empty(size + 1)
    todo = np.empty((6 * size + 6, 3), dtype=np.int32)
    state = np.empty(1, dtype=np.uint64)
    for b in range(first, arcs.shape[0], stride):
        n = lengths[b]
        if n == 0:
            continue
        arc = arcs[b]
        _inside(arc, n, chart, root, multiroot, True)
        right, right_t, left, left_t, open_right, open_left_t = chart[0], chart[1], chart[2], chart[3], chart[4], chart[5]
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
