"""What both kinds of dependency trees share: scaled arc weights, and the check that heads form a tree."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from softq.kernels.jit import as_array, fast_exp, jit

FLOOR = 1e-100  # a nonzero weight below this is not trusted in probability space


@jit
def load_weights(scores: Any, n: int, growth: float, weight: Any, shift: Any) -> bool:
    """Arc weights exp(score - shift) in probability space; False if one of them is too small to trust.

    Each word has one head, so Z' = Z · exp(-Σ shift). The shift takes off the best score and, where a word
    has many good heads, up to ``growth``: by so much the number of trees grows with each word. That keeps Z' near 1.
    """
    total = np.zeros(n + 1)
    shift[: n + 1] = -np.inf
    for h in range(n + 1):
        for d in range(1, n + 1):
            weight[h, d] = scores[h, d]
        weight[h, h] = -np.inf
        for d in range(1, n + 1):
            shift[d] = max(shift[d], weight[h, d])
    for d in range(n + 1):
        shift[d] = 0.0 if shift[d] == -np.inf else shift[d]
    lost = 0
    for h in range(n + 1):
        for d in range(1, n + 1):
            score = weight[h, d] - shift[d]
            value = fast_exp(score)
            weight[h, d] = value
            total[d] += value
            lost += (value < FLOOR) & (score > -np.inf)
    if growth > 0.0:
        for d in range(1, n + 1):
            excess = min(max(np.log(total[d]), 0.0), growth) if total[d] > 0.0 else 0.0
            shift[d] += excess
            total[d] = np.exp(-excess)
        for h in range(n + 1):
            for d in range(1, n + 1):
                weight[h, d] *= total[d]
    return lost == 0


@jit
def load_log_weights(scores: Any, n: int, weight: Any, shift: Any) -> None:
    """Arc weights score - shift, with -inf for a word as its own head."""
    for h in range(n + 1):
        for d in range(1, n + 1):
            weight[h, d] = scores[h, d] - shift[d] if h != d else -np.inf


TREE_OK, HEAD_OUT_OF_RANGE, CYCLE, TWO_ROOTS, CROSSING = range(5)


def find_bad_tree(lengths: Tensor, heads: Tensor, multiroot: bool, projective: bool) -> tuple[int, int, int] | None:
    """First of ``heads [N,n]`` that is no tree, as (example, word counted from 1, fault); None if all are trees."""
    fault = np.zeros(3, dtype=np.int64)
    _check_trees(as_array(lengths), as_array(heads), multiroot, projective, fault)
    return (int(fault[0]), int(fault[1]), int(fault[2])) if fault[2] != TREE_OK else None


@jit
def _check_trees(lengths: Any, heads: Any, multiroot: bool, projective: bool, fault: Any) -> None:
    size = heads.shape[1]
    seen = np.zeros(size + 1, dtype=np.int64)
    for b in range(heads.shape[0]):
        n = lengths[b]
        fault[0] = b
        roots = 0
        for d in range(1, n + 1):
            h = heads[b, d - 1]
            fault[1] = d
            if h < 0 or h > n:
                fault[2] = HEAD_OUT_OF_RANGE
                return
            roots += h == 0
            if roots > 1 and not multiroot:
                fault[2] = TWO_ROOTS
                return
        seen[: n + 1] = 0
        for d in range(1, n + 1):  # walk up until the root or a word already known to reach it
            node = d
            while node != 0 and seen[node] == 0:
                seen[node] = d
                node = heads[b, node - 1]
            if node != 0 and seen[node] == d:
                fault[1], fault[2] = node, CYCLE
                return
        if projective:
            for d in range(1, n + 1):
                low, high = min(d, heads[b, d - 1]), max(d, heads[b, d - 1])
                for e in range(low + 1, high):
                    if heads[b, e - 1] < low or heads[b, e - 1] > high:
                        fault[1], fault[2] = d, CROSSING
                        return
    fault[2] = TREE_OK
