"""Best spanning tree (Chu-Liu/Edmonds by contraction), with the single-root rule exact.

O(n²): a group is merged into a larger one at most once, and that takes O(n).

Arc weights are pairs (penalty, score), added entry by entry and compared in that order. The
algorithm only adds, subtracts and compares weights, so it is exact over such pairs. A root arc
costs one penalty and a forbidden arc more than all root arcs together: the best tree first avoids
forbidden arcs, then has as few words under the root as can be, then the highest score. No large
constant is added to any score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch


def mode(lengths: Tensor, arcs: Tensor, multiroot: bool) -> Tensor:
    """Best tree: heads ``[B,n]`` (0 on padding)."""
    batch, count = arcs.shape[:2]
    heads = torch.zeros(batch, count - 1, dtype=torch.int64)
    arrays = (as_array(x) for x in (arcs.double(), lengths, heads))
    run_batch(_best_trees, batch, 4 * batch * count**2, *arrays, multiroot)
    return heads.to(arcs.device)


@jit
def _best_trees(
    first: int, stride: int, arcs: Any, lengths: Any, heads: Any, multiroot: bool
) -> None:
    count = arcs.shape[1]
    # Of the arcs into a group from each head: the best one's weight, and the word that it ends in.
    score = np.empty((2 * count, count))
    penalty = np.empty((2 * count, count), dtype=np.int64)
    target = np.empty((2 * count, count), dtype=np.int64)
    for b in range(first, arcs.shape[0], stride):
        n = lengths[b]
        for d in range(1, n + 1):
            for h in range(n + 1):
                barred = arcs[b, h, d] == -np.inf
                score[d, h] = 0.0 if barred else arcs[b, h, d]
                penalty[d, h] = -(n + 1) if barred else -1 if h == 0 and not multiroot else 0
                target[d, h] = d
        _contract(score, penalty, target, n, heads[b])


@jit
def _contract(score: Any, penalty: Any, target: Any, n: int, head: Any) -> None:
    """Chu-Liu/Edmonds on nodes 0..n; writes the head of word d to head[d-1].

    Words are the first groups; a cycle of groups becomes one more, whose number is the next.
    """
    group = np.arange(n + 1)  # the outermost group that holds each word; the root stays alone
    parent = np.zeros(2 * n + 1, dtype=np.int64)  # the group that a group has become part of
    source = np.zeros(2 * n + 1, dtype=np.int64)  # the best head of a group
    reached_by = np.zeros(2 * n + 1, dtype=np.int64)
    groups = n + 1
    for d in range(1, n + 1):
        source[d] = _best_head(score, penalty, n, group, d)
    for start in range(1, n + 1):  # walk up until the root or a group already known to reach it
        g = group[start]
        while g > 0 and reached_by[g] == 0:
            reached_by[g] = start
            g = group[source[g]]
            if g > 0 and reached_by[g] == start:  # a cycle
                penalty[groups] = -(2**62)  # less than any
                while g != groups:
                    # An arc into the cycle replaces the cycle's own arc at the same group.
                    p, s = penalty[g, source[g]], score[g, source[g]]
                    parent[g] = groups
                    for h in range(n + 1):
                        group[h] = groups if group[h] == g else group[h]
                        q, t = penalty[g, h] - p, score[g, h] - s
                        if _higher(q, t, penalty[groups, h], score[groups, h]):
                            penalty[groups, h], score[groups, h] = q, t
                            target[groups, h] = target[g, h]
                    g = group[source[g]]
                source[g] = _best_head(score, penalty, n, group, g)
                groups += 1
    settled = np.zeros(2 * n + 1, dtype=np.bool_)
    for g in range(groups - 1, 0, -1):  # outermost first
        if not settled[g]:
            d = target[g, source[g]]
            head[d - 1] = source[g]
            while d != g:  # the groups inside g that hold the word are entered by this arc as well
                settled[d] = True
                d = parent[d]


@jit
def _best_head(score: Any, penalty: Any, n: int, group: Any, g: int) -> int:
    """Where the best arc into group g from outside comes from."""
    best = 0
    for h in range(1, n + 1):
        if group[h] != g and _higher(penalty[g, h], score[g, h], penalty[g, best], score[g, best]):
            best = h
    return best


@jit
def _higher(p: int, s: float, q: int, t: float) -> bool:
    return p > q or (p == q and s > t)
