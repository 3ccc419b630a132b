"""Best spanning tree (Chu-Liu/Edmonds by contraction), with the single-root rule exact; O(n³) worst case.

Arc weights are pairs (penalty, score), added entry by entry and compared in that order. The algorithm only
adds, subtracts and compares weights, so it is exact over such pairs. A root arc costs one penalty and a
forbidden arc more than all root arcs together: the best tree first avoids forbidden arcs, then has as few
words under the root as can be, then the highest score. No large constant is added to any score.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch


def mode(lengths: Tensor, arcs: Tensor, multiroot: bool) -> tuple[Tensor, Tensor]:
    """Best tree: heads ``[B,n]`` (0 on padding) and score ``[B]``; -inf if no tree is allowed."""
    batch, count = arcs.shape[:2]
    heads = torch.zeros(batch, count - 1, dtype=torch.int64)
    value = torch.empty(batch, dtype=torch.float64)
    arrays = (as_array(x) for x in (arcs.double(), lengths, heads, value))
    run_batch(_best_trees, batch, 4 * batch * count**2, *arrays, multiroot)
    return heads.to(arcs.device), value.to(arcs)


@jit
def _best_trees(first: int, stride: int, arcs: Any, lengths: Any, heads: Any, value: Any, multiroot: bool) -> None:
    count = arcs.shape[1]
    for b in range(first, arcs.shape[0], stride):
        n = lengths[b]
        score = np.zeros((count, count))
        penalty = np.zeros((count, count), dtype=np.int64)
        for h in range(n + 1):
            for d in range(1, n + 1):
                if arcs[b, h, d] == -np.inf:
                    penalty[h, d] = -(n + 1)
                else:
                    score[h, d] = arcs[b, h, d]
                    penalty[h, d] = -1 if h == 0 and not multiroot else 0
        _contract(score, penalty, n, heads[b])
        total, roots = 0.0, 0
        for d in range(1, n + 1):
            total += arcs[b, heads[b, d - 1], d]
            roots += heads[b, d - 1] == 0
        value[b] = total if multiroot or roots <= 1 else -np.inf
        if value[b] == -np.inf:
            heads[b] = 0


@jit
def _contract(score: Any, penalty: Any, n: int, head: Any) -> None:
    """Chu-Liu/Edmonds on nodes 0..n, in place; writes the head of word d to head[d-1]."""
    # Arc u → v between (contracted) nodes stands for the original arc source[u, v] → target[u, v].
    source = np.empty((n + 1, n + 1), dtype=np.int64)
    target = np.empty((n + 1, n + 1), dtype=np.int64)
    for u in range(n + 1):
        for v in range(n + 1):
            source[u, v], target[u, v] = u, v
    alive = np.ones(n + 1, dtype=np.bool_)
    best = np.zeros(n + 1, dtype=np.int64)
    mark = np.zeros(n + 1, dtype=np.int64)
    node_of = np.arange(n + 1)  # the node that holds each word now
    # Level l of contraction: which cycle member held each word (-1 outside; a member is named after one of
    # its words and holds it), and the cycle's own arcs.
    member_of = np.empty((n, n + 1), dtype=np.int64)
    cycle_source = np.empty((n, n + 1), dtype=np.int64)
    cycle_target = np.empty((n, n + 1), dtype=np.int64)
    levels = 0
    while True:
        for v in range(1, n + 1):
            if alive[v]:
                b = -1
                for u in range(n + 1):
                    if alive[u] and u != v and (b < 0 or _better(penalty, score, u, b, v)):
                        b = u
                best[v] = b
        on_cycle = _find_cycle(best, alive, mark)
        if on_cycle < 0:
            break
        member_of[levels] = -1
        in_cycle = np.zeros(n + 1, dtype=np.bool_)
        v = on_cycle
        while not in_cycle[v]:
            in_cycle[v] = True
            cycle_source[levels, v] = source[best[v], v]
            cycle_target[levels, v] = target[best[v], v]
            v = best[v]
        for w in range(n + 1):
            if in_cycle[node_of[w]]:
                member_of[levels, w] = node_of[w]
                node_of[w] = on_cycle
        levels += 1
        # An arc into the cycle replaces the cycle's own arc at the same node.
        for v in range(1, n + 1):
            if in_cycle[v]:
                s, p = score[best[v], v], penalty[best[v], v]
                for u in range(n + 1):
                    if alive[u] and not in_cycle[u]:
                        score[u, v] -= s
                        penalty[u, v] -= p
        for v in range(1, n + 1):
            if in_cycle[v] and v != on_cycle:
                for u in range(n + 1):
                    if alive[u] and not in_cycle[u]:
                        if _higher(penalty[u, v], score[u, v], penalty[u, on_cycle], score[u, on_cycle]):
                            _move(score, penalty, source, target, u, v, u, on_cycle)
                        if u > 0 and _higher(penalty[v, u], score[v, u], penalty[on_cycle, u], score[on_cycle, u]):
                            _move(score, penalty, source, target, v, u, on_cycle, u)
                alive[v] = False
    entered = np.zeros(n + 1, dtype=np.bool_)  # words whose head is settled
    for v in range(1, n + 1):
        if alive[v]:
            head[target[best[v], v] - 1] = source[best[v], v]
            entered[target[best[v], v]] = True
    for level in range(levels - 1, -1, -1):
        # The arc that enters this cycle ends in one of its members, which gives up its own cycle arc.
        inside = -1
        for w in range(1, n + 1):
            if entered[w] and member_of[level, w] >= 0:
                inside = member_of[level, w]
        for v in range(1, n + 1):
            if member_of[level, v] == v and v != inside:
                head[cycle_target[level, v] - 1] = cycle_source[level, v]
                entered[cycle_target[level, v]] = True


@jit
def _higher(p: int, s: float, q: int, t: float) -> bool:
    return p > q or (p == q and s > t)


@jit
def _better(penalty: Any, score: Any, u: int, b: int, v: int) -> bool:
    return _higher(penalty[u, v], score[u, v], penalty[b, v], score[b, v])


@jit
def _move(score: Any, penalty: Any, source: Any, target: Any, u: int, v: int, to_u: int, to_v: int) -> None:
    score[to_u, to_v], penalty[to_u, to_v] = score[u, v], penalty[u, v]
    source[to_u, to_v], target[to_u, to_v] = source[u, v], target[u, v]


@jit
def _find_cycle(best: Any, alive: Any, mark: Any) -> int:
    """A node on a cycle of the best heads, or -1."""
    mark[:] = 0
    for start in range(1, best.shape[0]):
        if not alive[start]:
            continue
        v = start
        while v != 0 and mark[v] == 0:
            mark[v] = start
            v = best[v]
        if v != 0 and mark[v] == start:
            return v
    return -1
