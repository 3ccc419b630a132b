"""The k best spanning trees: k times the best trees that depart from one, O(k n³) per sentence.

The trees of a set other than its best one, y, fall into n sets: those that share the heads of words
1..t-1 with y and have another one for word t (Lawler 1972). The best tree of each is found as in
`softq.kernels.spanning.arborescence`, whose penalties leave the single-root rule exact; where the
best heads that are left, tree or not, lose too much, none is looked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.kbest import put, room
from softq.kernels.spanning.arborescence import _contract


def topk(lengths: Tensor, arcs: Tensor, multiroot: bool, k: int) -> tuple[Tensor, Tensor]:
    """Heads ``[B,k,n]``, best first, and what each loses, ``[B,k]``: inf where it is missing."""
    batch, nodes = arcs.shape[:2]
    heads = torch.zeros(batch, k, nodes - 1, dtype=torch.int64)
    losses = torch.full((batch, k), torch.inf, dtype=torch.float64)
    arrays = (as_array(x) for x in (arcs.double(), lengths, heads, losses))
    run_batch(_deviate, batch, batch * k * nodes**3, *arrays, multiroot)
    return heads.to(arcs.device), losses.to(arcs.device)


@jit
def _deviate(
    first: int, stride: int, arcs: Any, lengths: Any, heads: Any, losses: Any, multiroot: bool
) -> None:
    nodes, k = arcs.shape[1], heads.shape[1]
    # see `softq.kernels.spanning.arborescence`
    score = np.empty((2 * nodes, nodes))
    penalty = np.empty((2 * nodes, nodes), dtype=np.int64)
    target = np.empty((2 * nodes, nodes), dtype=np.int64)
    allowed = np.empty((nodes, nodes))  # scores [word, head] before a set leaves some out
    fixed = np.empty((nodes, nodes), dtype=np.int64)  # their penalties
    best_from = np.zeros(nodes + 1)  # the best heads of the words from each one on
    trees = np.zeros((k, nodes - 1), dtype=np.int64)  # in the order in which they were found
    tree = np.zeros(nodes - 1, dtype=np.int64)
    loss = np.empty(k)
    # Place among the trees; word from which on the heads are free; row that it departs from.
    origin = np.empty((k, 3), dtype=np.int64)
    for b in range(first, arcs.shape[0], stride):
        n = lengths[b]
        best_from[n + 1 :] = 0.0
        for d in range(n, 0, -1):
            highest = -np.inf
            for h in range(n + 1):
                barred = arcs[b, h, d] == -np.inf
                allowed[d, h] = 0.0 if barred else arcs[b, h, d]
                fixed[d, h] = -(n + 1) if barred else -1 if h == 0 and not multiroot else 0
                target[d, h] = d
                if h != d and not barred:
                    highest = max(highest, allowed[d, h])
            best_from[d] = highest + best_from[d + 1]
        score[: n + 1], penalty[: n + 1] = allowed[: n + 1], fixed[: n + 1]
        _contract(score, penalty, target, n, trees[0])
        best = _value(allowed, fixed, n, trees[0])
        if best == -np.inf:
            continue
        count = put(loss, origin, 0, 0.0, 0, 1, 0)
        s = 0
        while s < count:
            made, free = heads[b, s], origin[s, 1]
            made[:n] = trees[origin[s, 0], :n]
            penalty[: n + 1] = fixed[: n + 1]
            kept = 0.0  # score of the words whose heads are those of tree s
            for d in range(1, free):
                kept += _keep(penalty, allowed, n, d, made[d - 1])
            row = s  # the set leaves out what the better trees of the same sets have here
            while row > 0 and origin[row, 1] == free:
                row = origin[row, 2]
                penalty[free, heads[b, row, free - 1]] = -(n + 1)
            for d in range(free, n + 1):
                head = made[d - 1]
                penalty[d, head] = -(n + 1)
                other = -np.inf
                for h in range(n + 1):
                    if h != d and penalty[d, h] > -(n + 1):
                        other = max(other, allowed[d, h])
                limit = room(loss, count, s) + loss[s]
                if best - (kept + other + best_from[d + 1]) < limit:
                    _contract(score, penalty, target, n, tree)
                    less = best - _value(allowed, penalty, n, tree)
                    if less < limit:
                        place = count if count < k else origin[k - 1, 0]
                        trees[place, :n] = tree[:n]
                        count = put(loss, origin, count, max(less, loss[s]), place, d, s)
                penalty[d, head] = fixed[d, head]
                kept += _keep(penalty, allowed, n, d, head)
            s += 1
        losses[b, :count] = loss[:count]


@jit
def _keep(penalty: Any, allowed: Any, n: int, d: int, head: int) -> float:
    """Leave a word no head but this one; returns the score of the arc."""
    for h in range(n + 1):
        if h != head:
            penalty[d, h] = -(n + 1)
    return allowed[d, head]  # type: ignore[no-any-return]


@jit
def _value(allowed: Any, penalty: Any, n: int, tree: Any) -> float:
    """Score of a tree; -inf if it has an arc that is left out, or two words under a single root."""
    total, cost = 0.0, 0
    for d in range(1, n + 1):
        total += allowed[d, tree[d - 1]]
        cost += penalty[d, tree[d - 1]]
    return total if cost >= -1 else -np.inf
