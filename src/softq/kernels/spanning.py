"""Spanning (possibly crossing) dependency trees on the CPU: matrix-tree sums and exact samples; O(n³) each.

Words are eliminated one by one from the weighted graph, never subtracting (see `spanning_log_partition` in
the reference): w'(h,d) = w(h,d) + p(h) w(k,d) with p(h) = w(h,k) / S_k. Row and column k stay in place, so the
way back needs no copies: with a(h,d) = ∂ log Z / ∂ w(h,d),

    a(k,d) = Σ_h p(h) a(h,d)      g(h) = Σ_d w(k,d) a(h,d)      w(h,k) a(h,k) = p(h) (g(h) + 1 - Σ_h' p(h') g(h'))

where the part after g(h) belongs to the heads counted in S_k. All terms are expected numbers of arcs, at most n,
so marginals are exact to rounding however large the scores. Probability space if the range allows, else log space.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.autograd import Scores, Structure
from softq.kernels.jit import LOG, PLAIN, add_scaled, as_array, choose, dot, draw_seeds, jit, log_add, next_random, run_batch
from softq.kernels.reference import spanning_log_partition
from softq.kernels.trees import load_log_weights, load_weights

_LOW, _HIGH = 1e-100, 1e100


def structure(multiroot: bool) -> Structure:
    """Kernels of spanning trees, with one or any number of words under the root."""
    return _MULTI if multiroot else _SINGLE


def _infer(lengths: Tensor, scores: Scores, want_marginals: bool, multiroot: bool) -> tuple[Tensor, Scores]:
    (arcs,) = (s.detach() for s in scores)
    if arcs.is_cuda:
        from softq.kernels import spanning_gpu

        return spanning_gpu.infer(lengths, arcs, want_marginals, multiroot)
    batch, count = arcs.shape[:2]
    log_z = torch.empty(batch, dtype=arcs.dtype)
    found = torch.empty_like(arcs, memory_format=torch.contiguous_format) if want_marginals else arcs[:0]
    arrays = (as_array(x) for x in (arcs, lengths, log_z, found))
    run_batch(_matrix_tree, batch, batch * count**3, *arrays, want_marginals, multiroot)
    return log_z, (found,) if want_marginals else ()


_SINGLE = Structure(
    lambda lengths, scores, want: _infer(lengths, scores, want, False),
    lambda lengths, arcs: spanning_log_partition(lengths, arcs, multiroot=False),
)
_MULTI = Structure(
    lambda lengths, scores, want: _infer(lengths, scores, want, True),
    lambda lengths, arcs: spanning_log_partition(lengths, arcs, multiroot=True),
)


@jit
def _matrix_tree(first: int, stride: int, scores: Any, lengths: Any, log_z: Any, found: Any, want: bool, multiroot: bool) -> None:
    count = scores.shape[1]
    space = np.empty((3, count, count))
    vectors = np.empty((3, count))
    word = np.empty(count, dtype=np.int64)
    for b in range(first, scores.shape[0], stride):
        log_z[b] = _solve(scores[b], lengths[b], multiroot, space, vectors, word, want, found[b] if want else scores[b])


@jit
def _solve(scores: Any, n: int, multiroot: bool, space: Any, vectors: Any, word: Any, want: bool, found: Any) -> float:
    """Log Z of one sentence; if wanted, `found` gets its arc marginals."""
    w, a, given = space[0], space[1], space[2]
    sums, share, shift = vectors[0], vectors[1], vectors[2]
    total = 0.0
    if want:
        found[:] = 0.0
    in_range = load_weights(scores, n, 0.0, given, shift)
    absent = 0
    if in_range:
        for h in range(n + 1):
            for d in range(1, n + 1):
                w[h, d] = given[h, d]
                absent += (w[h, d] == 0.0) & (h != d)
        total, in_range = _eliminate(w, n, sums, share, word, multiroot, PLAIN, absent == 0)
    if in_range:
        if want and total > -np.inf:
            _restore(w, n, sums, share, multiroot, PLAIN, a)
            for k in range(n + 1):
                for j in range(1, n + 1):
                    found[word[k], word[j]] = given[word[k], word[j]] * a[k, j]
    else:
        load_log_weights(scores, n, given, shift)
        for h in range(n + 1):
            for d in range(1, n + 1):
                w[h, d] = given[h, d]
        total, _ = _eliminate(w, n, sums, share, word, multiroot, LOG, False)
        if want and total > -np.inf:
            _restore(w, n, sums, share, multiroot, LOG, a)
            for k in range(n + 1):
                for j in range(1, n + 1):
                    found[word[k], word[j]] = np.exp(given[word[k], word[j]] + a[k, j])
    for d in range(1, n + 1):
        total += shift[d]
    return total


@jit
def _eliminate(w: Any, n: int, sums: Any, share: Any, word: Any, multiroot: bool, log: bool | None, dense: bool) -> Any:
    """Eliminate words n..1 in place; returns log Z and whether the range held.

    `word[k]` is the word that stood at place k when it was eliminated, `sums[k]` its S.
    """
    zero = -np.inf if log is not None else 0.0
    log_z, product = 0.0, 1.0
    for k in range(n + 1):
        word[k] = k
        w[k, k] = zero
    for k in range(n, 0, -1):
        first = 0 if multiroot or k == 1 else 1
        s = _column_sum(w, first, k, k, log)
        place = k
        while s == zero and place > 1:  # a word that no other word may head has to wait until it is the last
            place -= 1
            s = _column_sum(w, first, k + 1, place, log)
        if s == zero:
            return -np.inf, True
        if place != k:
            word[place], word[k] = word[k], word[place]
            for i in range(n + 1):  # whole rows and columns: words eliminated before name heads by place as well
                w[i, place], w[i, k] = w[i, k], w[i, place]
            for i in range(n + 1):
                w[place, i], w[k, i] = w[k, i], w[place, i]
        sums[k] = s
        if log is not None:
            log_z += s
        else:
            product *= s
            if product < _LOW or product > _HIGH:
                log_z += np.log(product)
                product = 1.0
        for h in range(k):
            share[h] = w[h, k] - s if log is not None else w[h, k] / s
        for h in range(k):
            add_scaled(w, h, 1, share[h], w, k, 1, k - 1, log)
            w[h, h] = zero
        if log is None:
            # A graph with all its arcs only ever gains weight; the root's row alone can grow without bound.
            for h in range(k if not dense else 1):
                for d in range(1, k):
                    if h != d and not (w[h, d] == 0.0 or _LOW <= w[h, d] <= _HIGH):
                        return 0.0, False
    return log_z + np.log(product), True


@jit
def _column_sum(w: Any, first: int, stop: int, column: int, log: bool | None) -> float:
    if log is None:
        total = 0.0
        for h in range(first, stop):
            total += w[h, column]
        return total
    total = -np.inf
    for h in range(first, stop):
        total = log_add(total, w[h, column])
    return total


@jit
def _dot_and_add(w: Any, a: Any, row: int, other: int, factor: float) -> Any:
    """Product of w[row] and a[other] over columns 1..row-1, adding factor · a[other] to a[row] on the same pass."""
    r, o = np.uint64(row), np.uint64(other)
    total = 0.0
    for d in range(np.uint64(1), r):
        value = a[o, d]
        total += w[r, d] * value
        a[r, d] += factor * value
    return total


@jit
def _restore(w: Any, n: int, sums: Any, share: Any, multiroot: bool, log: bool | None, a: Any) -> None:
    """Walk the elimination backwards: a(h,d) = ∂ log Z / ∂ w(h,d), or its logarithm, by place."""
    zero = -np.inf if log is not None else 0.0
    a[0, 0] = zero
    for k in range(1, n + 1):
        first = 0 if multiroot or k == 1 else 1
        a[k, 1 : k + 1] = zero
        mean = 0.0
        for h in range(k):
            share[h] = w[h, k] - sums[k] if log is not None else w[h, k] / sums[k]
            # Expected number of arcs k → d on detours h → k → d; kept in a(h,k) until their sum is known.
            if log is not None:
                a[h, k] = np.exp(share[h] + dot(w, k, 1, a, h, 1, k - 1, log))
                add_scaled(a, k, 1, share[h], a, h, 1, k - 1, log)
            else:
                a[h, k] = share[h] * _dot_and_add(w, a, k, h, share[h])
            mean += a[h, k]
        for h in range(k):
            if w[h, k] == zero:  # neither an arc nor a detour runs here: nothing will ask for its derivative
                a[h, k] = zero
                continue
            direct = np.exp(share[h]) if log is not None else share[h]
            expected = max(a[h, k] + (direct * (1.0 - mean) if h >= first else 0.0), 0.0)
            a[h, k] = np.log(expected) - w[h, k] if log is not None else expected / w[h, k]


def sample(lengths: Tensor, arcs: Tensor, multiroot: bool, count: int, generator: torch.Generator | None) -> Tensor:
    """``count`` exact samples per sentence: heads ``[count,B,n]``.

    Wilson's loop-erased random walks. With a single root, the root's word is drawn from its marginal first;
    given it, the rest is a tree over the words. Given that word, the walk's length is independent of the tree it ends with
    (Propp and Wilson 1998), so giving up on a long walk and drawing the heads one after another from their
    exact conditional distribution (Colbourn's way, O(n⁴)) leaves the sample exact.
    """
    arcs, lengths = arcs.double().cpu(), lengths.cpu()
    batch, nodes = arcs.shape[:2]
    _, (marginals,) = _infer(lengths, (arcs,), True, multiroot)
    heads = torch.zeros(count, batch, nodes - 1, dtype=torch.int64)
    seeds = draw_seeds(count * batch, generator).reshape(count, batch)
    arrays = (as_array(x) for x in (arcs, marginals[:, 0], lengths, heads))
    run_batch(_wilson, batch, 10 * count * batch * nodes**2, *arrays, seeds, multiroot, _PATIENCE)
    return heads


# Steps of a random walk, per word squared, after which drawing one head after another is the better bet.
_PATIENCE = 50


@jit
def _wilson(first: int, stride: int, scores: Any, roots: Any, lengths: Any, heads: Any, seeds: Any, multiroot: bool, patience: int) -> None:
    count = scores.shape[1]
    weights = np.empty((count, count))
    shift = np.empty(count)
    weight = np.empty(count)
    done = np.empty(count, dtype=np.bool_)
    state = np.empty(1, dtype=np.uint64)
    for b in range(first, scores.shape[0], stride):
        n = lengths[b]
        exact = load_weights(scores[b], n, 0.0, weights, shift)
        low = 0 if multiroot else 1
        for s in range(heads.shape[0]):
            state[0] = seeds[s, b]
            head = heads[s, b]
            if n == 0:
                continue
            steps_left = patience * n * n if exact else 0  # a weight lost to underflow would never be drawn
            done[:] = False
            done[0] = True
            top = 0  # the word under the root; 0 if there may be several
            if not multiroot:
                for d in range(n):
                    weight[d] = np.log(roots[b, d + 1])
                top = choose(weight, n, state) + 1
                head[top - 1] = 0
                done[top] = True
            for start in range(1, n + 1):
                node = start
                while not done[node] and steps_left > 0:
                    head[node - 1] = _draw_head(weights, low, n, node, state)
                    node = head[node - 1]
                    steps_left -= 1
                node = start
                while not done[node] and steps_left > 0:
                    done[node] = True
                    node = head[node - 1]
            if steps_left == 0:
                _draw_heads_in_turn(scores[b], n, top, head, state)


@jit
def _draw_head(weights: Any, low: int, n: int, word: int, state: Any) -> int:
    total = 0.0
    for h in range(low, n + 1):
        total += weights[h, word]
    threshold = next_random(state) * total
    reached = 0.0
    last = low
    for h in range(low, n + 1):
        if weights[h, word] > 0.0:
            last = h
            reached += weights[h, word]
            if reached > threshold:
                break
    return last


@jit
def _draw_heads_in_turn(scores: Any, n: int, top: int, head: Any, state: Any) -> None:
    """Draw each head from its marginal given the heads before it, and given the word under the root if there is only one.

    That word stays as it was drawn: how soon a walk is given up depends on it.
    """
    count = n + 1
    given = scores[:count, :count].copy()
    space = np.empty((3, count, count))
    vectors = np.empty((3, count))
    word = np.empty(count, dtype=np.int64)
    marginals = np.empty((count, count))
    weight = np.empty(count)
    for d in range(1, count):
        if top > 0 and d != top:
            given[0, d] = -np.inf
    for d in range(1, count):
        _solve(given, n, top == 0, space, vectors, word, True, marginals)
        for h in range(count):
            weight[h] = np.log(marginals[h, d])
        h = choose(weight, count, state)
        head[d - 1] = h
        for other in range(count):
            if other != h:
                given[other, d] = -np.inf
