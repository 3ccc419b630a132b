"""Spanning (possibly crossing) dependency trees on the CPU: matrix-tree sums, samples; O(n³) each.

Words are eliminated one by one from the weighted graph, never subtracting (see `reference`):
w'(h,d) = w(h,d) + p(h) w(k,d) with p(h) = w(h,k) / S_k. Row k stays in place and column k is kept
apart, so that four columns may be worked on at once and those beyond k are free. On the way back,
with a(h,d) = ∂ log Z / ∂ w(h,d),

    a(k,d) = Σ_h p(h) a(h,d)                    g(h) = Σ_d w(k,d) a(h,d)
    w(h,k) a(h,k) = p(h) (g(h) + 1 - Σ_h' p(h') g(h'))

where the part after g(h) belongs to the heads counted in S_k. All terms are expected numbers of
arcs, at most n, so marginals are exact to rounding however large the scores. Probability space if
the range allows, else log space.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.random import choose_weight, draw_seeds
from softq.kernels.semiring import (
    HIGH,
    LOG,
    LOW,
    PLAIN,
    add_scaled,
    dot,
    inverse,
    lost,
    number,
    plus,
    times,
)
from softq.kernels.simd import WIDTHS, vectors
from softq.kernels.trees import load_weights, loss_of

_WIDTH = WIDTHS["float64"]


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
        log_z = _solve(scores[b], n, multiroot, want, marginals)
        loss[b] = loss_of(b, log_z, scores[b], n, heads, weights, expected, marginals)


@jit
def _solve(scores: Any, n: int, multiroot: bool, want: bool, marginals: Any) -> Any:
    """Log Z of one sentence; if wanted, `marginals` gets those of its arcs."""
    log_z, in_range = _solve_by(scores, n, multiroot, want, marginals, PLAIN)
    if not in_range:
        log_z, _ = _solve_by(scores, n, multiroot, want, marginals, LOG)
    return log_z


@jit
def _solve_by(
    scores: Any, n: int, multiroot: bool, want: bool, marginals: Any, log: bool | None
) -> Any:
    """The same, and whether the range held."""
    size = (n // _WIDTH + 1) * _WIDTH  # columns, a multiple of four
    weights = np.full((3, n + 1, size), -np.inf if log is not None else 0.0)
    w, column, a = weights[0], weights[1], weights[2]
    rows = np.empty((3, n + 1))
    word, given = np.arange(n + 1), np.empty((n + 1, n + 1))
    shift, sums, share = rows[0], rows[1], rows[2]
    marginals[:] = 0.0
    log_z, in_range = 0.0, load_weights(scores, n, 1.0, given, shift, log)
    if in_range:
        log_z, in_range = _eliminate(given, n, w, column, sums, share, word, multiroot, log)
    if in_range and want and log_z > -np.inf:
        _restore(given, n, w, column, sums, share, word, multiroot, log, a, marginals)
    return log_z + shift[1:].sum(), in_range


@jit
def _eliminate(
    given: Any,
    n: int,
    w: Any,
    column: Any,
    sums: Any,
    share: Any,
    word: Any,
    multiroot: bool,
    log: bool | None,
) -> Any:
    """Eliminate words n..1 in a copy `w`; returns log Z and whether the range held.

    `word[k]` is the word that stood at place k when it was eliminated, `sums[k]` its S, and
    `column[k, h]` the weight of the arc from h to it.
    """
    zero = -np.inf if log is not None else 0.0
    log_z, product, four = 0.0, 1.0, vectors(w, log)
    absent = 0
    for h in range(n + 1):
        for d in range(n + 1):
            w[h, d] = given[h, d]
            absent += w[h, d] == 0.0
    dense = absent == 2 * n + 1  # only those into the root and from words to themselves
    for k in range(n, 0, -1):
        first = 0 if multiroot or k == 1 else 1
        s, place = zero, k + 1
        while s == zero and place > 1:  # a word that no other word may head waits until it is last
            place -= 1
            s = _column_sum(w, first, k + 1, place, log)
        if s == zero:
            return -np.inf, True
        if place != k:
            _swap(w, column, word, n, place, k)
        sums[k] = s
        if log is not None:
            log_z += s
        else:
            product *= s
            if product < LOW or product > HIGH:  # one logarithm for many words
                log_z += np.log(product)
                product = 1.0
        factor = inverse(s, log)
        for h in range(k):  # apart from the next loop, which would be half as fast with it
            column[k, h] = w[h, k]
            share[h] = times(w[h, k], factor, log)
        for h in range(k):
            to, of = np.uint64(h), np.uint64(k)
            if log is None:
                for d in range(np.uint64(0), of, np.uint64(_WIDTH)):
                    four[to, d] = four[to, d] + four[of, d] * share[h]
            else:
                add_scaled(w, h, 1, share[h], w, k, 1, k - 1, log)
            w[h, h] = zero
        # A graph with all its arcs only ever gains weight; the root's row alone can grow without
        # end.
        for h in range(0 if log is not None else 1 if dense else k):
            strange = 0
            for d in range(1, k):
                strange += lost(w[h, d])
            if strange > 0:
                return 0.0, False
    return log_z + np.log(product), True


@jit
def _swap(w: Any, column: Any, word: Any, n: int, place: int, k: int) -> None:
    """Exchange two places, also in what was eliminated before, which names heads by place."""
    word[place], word[k] = word[k], word[place]
    for i in range(n + 1):
        w[i, place], w[i, k] = w[i, k], w[i, place]
        column[i, place], column[i, k] = column[i, k], column[i, place]
    for i in range(n + 1):
        w[place, i], w[k, i] = w[k, i], w[place, i]


@jit
def _column_sum(w: Any, first: int, stop: int, column: int, log: bool | None) -> float:
    total = -np.inf if log is not None else 0.0
    for h in range(first, stop):
        total = plus(total, w[h, column], log)
    return total


@jit
def _restore(
    given: Any,
    n: int,
    w: Any,
    column: Any,
    sums: Any,
    share: Any,
    word: Any,
    multiroot: bool,
    log: bool | None,
    a: Any,
    marginals: Any,
) -> None:
    """Walk the elimination backwards: a(h,d) = ∂ log Z / ∂ w(h,d) by place, and the marginals."""
    zero = -np.inf if log is not None else 0.0
    partial = np.empty((n + 1, _WIDTH))
    four, four_a, sums_of_four = vectors(w, log), vectors(a, log), vectors(partial, log)
    for k in range(1, n + 1):
        first = 0 if multiroot or k == 1 else 1
        factor = inverse(sums[k], log)
        mean, of = 0.0, np.uint64(k)
        for h in range(k):
            share[h] = times(column[k, h], factor, log)
        if log is None:  # a(k,d) and, for each h, the detours h → k → d, four d at a time
            partial[:k] = 0.0
            for d in range(np.uint64(0), of, np.uint64(_WIDTH)):
                total, through = four_a[of, d], four[of, d]
                for h in range(of):
                    total = total + four_a[h, d] * share[h]
                    sums_of_four[h, 0] = sums_of_four[h, 0] + through * four_a[h, d]
                four_a[of, d] = total
        for h in range(k):
            p = share[h]
            if log is None:
                through = partial[h, 0] + partial[h, 1] + partial[h, 2] + partial[h, 3]
            else:
                through = dot(w, k, 1, a, h, 1, k - 1, log)
                add_scaled(a, k, 1, p, a, h, 1, k - 1, log)
            # Expected number of arcs k → d on detours h → k → d, kept in a(h,k) for the moment.
            a[h, k] = number(times(p, through, log), log)
            mean += a[h, k]
        for h in range(k):
            if (
                column[k, h] == zero
            ):  # neither an arc nor a detour runs here: nobody will ask for it
                a[h, k] = zero
                continue
            direct = number(share[h], log) * (1.0 - mean) if h >= first else 0.0
            expected = max(a[h, k] + direct, 0.0)
            a[h, k] = (
                np.log(expected) - column[k, h] if log is not None else expected / column[k, h]
            )
    for k in range(n + 1):
        for j in range(1, n + 1):
            h, d = word[k], word[j]
            marginals[h, d] = number(times(given[h, d], a[k, j], log), log)


def sample(
    lengths: Tensor, arcs: Tensor, multiroot: bool, count: int, generator: torch.Generator | None
) -> Tensor:
    """``count`` exact samples per sentence: heads ``[count,B,n]``.

    Wilson's loop-erased random walks. With a single root, the root's word is drawn from its
    marginal first; given it, the rest is a tree over the words. Given that word, the walk's length
    is independent of the tree it ends with (Propp and Wilson 1998), so giving up on a long walk and
    drawing the heads one after another from their exact conditional distribution (Colbourn's way,
    O(n⁴)) leaves the sample exact.
    """
    seeds = draw_seeds(count * len(lengths), generator).reshape(count, len(lengths))
    return sample_by(seeds, lengths, arcs, multiroot, PATIENCE)


def sample_by(seeds: Any, lengths: Tensor, arcs: Tensor, multiroot: bool, patience: int) -> Tensor:
    """The same for ``seeds [count,B]``; walks are given up as ``patience`` says."""
    batch, nodes = arcs.shape[:2]
    heads = torch.zeros(*seeds.shape, nodes - 1, dtype=torch.int64)
    operations = batch * nodes**2 * (nodes + 10 * len(seeds))
    arrays = (as_array(x) for x in (arcs.double(), lengths, heads))
    run_batch(_wilson, batch, operations, *arrays, seeds, multiroot, patience)
    return heads.to(arcs.device)


# Steps of a random walk, per word squared, after which drawing one head after another is better.
PATIENCE = 50


@jit
def _wilson(
    first: int,
    stride: int,
    scores: Any,
    lengths: Any,
    heads: Any,
    seeds: Any,
    multiroot: bool,
    patience: int,
) -> None:
    count = scores.shape[1]
    marginals = np.empty((count, count))
    shift = np.empty(count)
    done = np.empty(count, dtype=np.bool_)
    state = np.empty(1, dtype=np.uint64)
    low = 0 if multiroot else 1
    for b in range(first, scores.shape[0], stride):
        n = lengths[b]
        if n == 0:
            continue
        _solve(scores[b], n, multiroot, True, marginals)
        given = np.empty((n + 1, n + 1))
        exact = load_weights(scores[b], n, 1.0, given, shift, PLAIN)
        weights = given.T.copy()  # [dependent, head]
        total = weights[:, low:].sum(1)
        for s in range(heads.shape[0]):
            state[0] = seeds[s, b]
            head = heads[s, b]
            steps_left = patience * n * n if exact else 0  # a lost weight would never be drawn
            done[:] = False
            done[0] = True
            top = 0  # the word under the root; 0 if there may be several
            if not multiroot:
                top = choose_weight(marginals[0], 1.0, 1, n + 1, state)
                done[top] = True  # its head is 0 as it stands
            for start in range(1, n + 1):
                node = start
                while not done[node] and steps_left > 0:
                    head[node - 1] = choose_weight(weights[node], total[node], low, n + 1, state)
                    node = head[node - 1]
                    steps_left -= 1
                node = start
                while not done[node] and steps_left > 0:
                    done[node] = True
                    node = head[node - 1]
            if steps_left == 0:
                _draw_heads_in_turn(scores[b], n, top, head, state)


@jit
def _draw_heads_in_turn(scores: Any, n: int, top: int, head: Any, state: Any) -> None:
    """Draw each head from its marginal given the heads before it.

    If there is only one word under the root, it stays as it was drawn: how soon a walk is given up
    depends on it.
    """
    given = scores[: n + 1, : n + 1].copy()
    marginals = np.empty((n + 1, n + 1))
    if top > 0:
        given[0] = -np.inf
        given[0, top] = scores[0, top]
    for d in range(1, n + 1):
        _solve(given, n, top == 0, True, marginals)
        head[d - 1] = h = choose_weight(marginals[:, d], marginals[:, d].sum(), 0, n + 1, state)
        given[:, d] = -np.inf
        given[h, d] = scores[h, d]
