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
from softq.kernels.jit import add_scaled, as_array, choose, dot, draw_seeds, jit, log_add, next_random, run_batch
from softq.kernels.reference import spanning_log_partition
from softq.kernels.trees import prepare_arcs

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
    clean, shift, weights, floor = prepare_arcs(lengths, arcs, 0.0)
    log_z = torch.empty(batch, dtype=torch.float64)
    run_batch(
        _matrix_tree,
        batch,
        batch * count**3,
        *(as_array(x) for x in (clean, shift, weights, lengths, log_z)),
        floor,
        want_marginals,
        multiroot,
    )
    return log_z.to(arcs), (weights,) if want_marginals else ()


_SINGLE = Structure(
    lambda lengths, scores, want: _infer(lengths, scores, want, False),
    lambda lengths, arcs: spanning_log_partition(lengths, arcs, multiroot=False),
)
_MULTI = Structure(
    lambda lengths, scores, want: _infer(lengths, scores, want, True),
    lambda lengths, arcs: spanning_log_partition(lengths, arcs, multiroot=True),
)


@jit
def _matrix_tree(
    first: int, stride: int, scores: Any, shift: Any, weights: Any, lengths: Any, log_z: Any, floor: float, want: bool, multiroot: bool
) -> None:
    """`weights` holds exp(scores - shift) on entry and arc marginals on return."""
    count = scores.shape[1]
    w, a = np.empty((count, count)), np.empty((count, count))
    sums, share = np.empty(count), np.empty(count)
    word = np.empty(count, dtype=np.int64)
    for b in range(first, scores.shape[0], stride):
        log_z[b] = _solve(scores[b], shift[b], weights[b], lengths[b], floor, want, multiroot, w, a, sums, share, word)


@jit
def _solve(
    scores: Any, shift: Any, weights: Any, n: int, floor: float, want: bool, multiroot: bool, w: Any, a: Any, sums: Any, share: Any, word: Any
) -> float:
    """Log Z of one sentence; if wanted, its arc marginals replace `weights`."""
    log, in_range, dense, total = False, True, True, 0.0
    for h in range(n + 1):
        for d in range(1, n + 1):
            w[h, d] = weights[h, d]
            if w[h, d] < floor and h != d:
                dense = False
                in_range = in_range and scores[h, d] == -np.inf
    if in_range:
        total, in_range = _eliminate(w, n, sums, share, word, multiroot, False, dense)
    if not in_range:
        log = True
        for h in range(n + 1):
            for d in range(1, n + 1):
                w[h, d] = scores[h, d] - shift[d]
        total, _ = _eliminate(w, n, sums, share, word, multiroot, True, dense)
    if want:
        if total > -np.inf:
            _restore(w, n, sums, share, multiroot, log, a)
            for k in range(n + 1):
                for j in range(1, n + 1):
                    h, d = word[k], word[j]
                    if log:
                        weights[h, d] = np.exp(scores[h, d] - shift[d] + a[k, j])
                    else:
                        weights[h, d] *= a[k, j]
        else:
            weights[:] = 0.0
    for d in range(1, n + 1):
        total += shift[d]
    return total


@jit
def _eliminate(w: Any, n: int, sums: Any, share: Any, word: Any, multiroot: bool, log: bool, dense: bool) -> Any:
    """Eliminate words n..1 in place; returns log Z and whether the range held.

    `word[k]` is the word that stood at place k when it was eliminated, `sums[k]` its S.
    """
    zero = -np.inf if log else 0.0
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
        if log:
            log_z += s
        else:
            product *= s
            if product < _LOW or product > _HIGH:
                log_z += np.log(product)
                product = 1.0
        for h in range(k):
            share[h] = w[h, k] - s if log else w[h, k] / s
        for h in range(k):
            add_scaled(w, h, 1, share[h], w, k, 1, k - 1, log)
            w[h, h] = zero
        if not log:
            # A graph with all its arcs only ever gains weight; the root's row alone can grow without bound.
            for h in range(k if not dense else 1):
                for d in range(1, k):
                    if h != d and not (w[h, d] == 0.0 or _LOW <= w[h, d] <= _HIGH):
                        return 0.0, False
    return log_z + np.log(product), True


@jit
def _column_sum(w: Any, first: int, stop: int, column: int, log: bool) -> float:
    if not log:
        total = 0.0
        for h in range(first, stop):
            total += w[h, column]
        return total
    total = -np.inf
    for h in range(first, stop):
        total = log_add(total, w[h, column])
    return total


@jit
def _restore(w: Any, n: int, sums: Any, share: Any, multiroot: bool, log: bool, a: Any) -> None:
    """Walk the elimination backwards: a(h,d) = ∂ log Z / ∂ w(h,d), or its logarithm, by place."""
    zero = -np.inf if log else 0.0
    a[0, 0] = zero
    for k in range(1, n + 1):
        first = 0 if multiroot or k == 1 else 1
        a[k, 1 : k + 1] = zero
        mean = 0.0
        for h in range(k):
            share[h] = w[h, k] - sums[k] if log else w[h, k] / sums[k]
            # Expected number of arcs k → d on detours h → k → d; kept in a(h,k) until their sum is known.
            g = dot(w, k, 1, a, h, 1, k - 1, log)
            a[h, k] = np.exp(share[h] + g) if log else share[h] * g
            mean += a[h, k]
            add_scaled(a, k, 1, share[h], a, h, 1, k - 1, log)
        for h in range(k):
            if w[h, k] == zero:  # neither an arc nor a detour runs here: nothing will ask for its derivative
                a[h, k] = zero
                continue
            direct = np.exp(share[h]) if log else share[h]
            expected = max(a[h, k] + (direct * (1.0 - mean) if h >= first else 0.0), 0.0)
            a[h, k] = np.log(expected) - w[h, k] if log else expected / w[h, k]


def sample(lengths: Tensor, arcs: Tensor, multiroot: bool, count: int, generator: torch.Generator | None) -> Tensor:
    """``count`` exact samples per sentence: heads ``[count,B,n]``.

    Wilson's loop-erased random walks. With a single root, the root's word is drawn from its marginal first;
    given it, the rest is a tree over the words. The walk's length is independent of the tree it ends with
    (Propp and Wilson 1998), so giving up on a long walk and drawing the heads one after another from their
    exact conditional distribution (Colbourn's way, O(n⁴)) leaves the sample exact.
    """
    arcs = arcs.double().cpu()
    batch, nodes = arcs.shape[:2]
    clean, shift, weights, _ = prepare_arcs(lengths.cpu(), arcs, 0.0)
    _, (marginals,) = _infer(lengths.cpu(), (arcs,), True, multiroot)
    heads = torch.zeros(count, batch, nodes - 1, dtype=torch.int64)
    seeds = draw_seeds(count * batch, generator).reshape(count, batch)
    arrays = (as_array(x) for x in (clean - shift.unsqueeze(1), weights, marginals[:, 0], lengths, heads))
    run_batch(_wilson, batch, 10 * count * batch * nodes**2, *arrays, seeds, multiroot)
    return heads


@jit
def _wilson(first: int, stride: int, scores: Any, weights: Any, roots: Any, lengths: Any, heads: Any, seeds: Any, multiroot: bool) -> None:
    count = scores.shape[1]
    weight = np.empty(count)
    done = np.empty(count, dtype=np.bool_)
    state = np.empty(1, dtype=np.uint64)
    for b in range(first, scores.shape[0], stride):
        n = lengths[b]
        exact = True  # every allowed arc has a weight that survived the exponential
        for h in range(n + 1):
            for d in range(1, n + 1):
                exact = exact and (weights[b, h, d] > 1e-250 or scores[b, h, d] == -np.inf)
        for s in range(heads.shape[0]):
            state[0] = seeds[s, b]
            head = heads[s, b]
            if n == 0:
                continue
            patience = 50 * n * n if exact else 0
            done[:] = False
            done[0] = True
            low = 0
            if not multiroot:
                for d in range(n):
                    weight[d] = np.log(roots[b, d + 1])
                top = choose(weight, n, state)
                head[top] = 0
                done[top + 1] = True
                low = 1
            for start in range(1, n + 1):
                node = start
                while not done[node] and patience > 0:
                    head[node - 1] = _draw_head(weights[b, low : n + 1, node], state) + low
                    node = head[node - 1]
                    patience -= 1
                node = start
                while not done[node] and patience > 0:
                    done[node] = True
                    node = head[node - 1]
            if patience == 0:
                _draw_heads_in_turn(scores[b], n, multiroot, head, state)


@jit
def _draw_head(weight: Any, state: Any) -> int:
    total = 0.0
    for h in range(weight.shape[0]):
        total += weight[h]
    threshold = next_random(state) * total
    reached = 0.0
    last = 0
    for h in range(weight.shape[0]):
        if weight[h] > 0.0:
            last = h
            reached += weight[h]
            if reached > threshold:
                break
    return last


@jit
def _draw_heads_in_turn(scores: Any, n: int, multiroot: bool, head: Any, state: Any) -> None:
    """Draw each head from its marginal given the heads before it."""
    count = n + 1
    given = scores[:count, :count].copy()
    shift = np.zeros(count)
    w, a = np.empty((count, count)), np.empty((count, count))
    sums, share = np.empty(count), np.empty(count)
    word = np.empty(count, dtype=np.int64)
    weight = np.empty(count)
    for d in range(1, count):
        marginals = np.exp(given)
        _solve(given, shift, marginals, n, 1e-100, True, multiroot, w, a, sums, share, word)
        for h in range(count):
            weight[h] = np.log(marginals[h, d]) if h != d else -np.inf
        h = choose(weight, count, state)
        head[d - 1] = h
        for other in range(count):
            if other != h:
                given[other, d] = -np.inf
