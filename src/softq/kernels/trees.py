"""What both kinds of dependency trees share: scaled arc weights, and the check that heads form a tree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit
from softq.kernels.reference import possible_arcs


def prepare_arcs(lengths: Tensor, arcs: Tensor, growth: float) -> tuple[Tensor, Tensor, Tensor, float]:
    """Scores with impossible arcs at -inf, a shift per dependent, exp(scores - shift), and the smallest value to trust.

    Each word has one head, so Z' = Z · exp(-Σ shift). The shift takes off the best score and, where a word
    has many good heads, up to ``growth``: by so much the number of trees grows with each word. That keeps Z' near 1.
    """
    clean = arcs.masked_fill(~possible_arcs(lengths, arcs.shape[1]), -math.inf)
    peak = clean.amax(1)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    weights = (clean - peak.unsqueeze(1)).exp_()
    choices = weights.sum(1).clamp_(1.0, math.exp(growth))
    weights.div_(choices.unsqueeze(1))
    return clean, peak + choices.log_(), weights, 1e-100 if arcs.dtype == torch.float64 else 1e-35


TREE_OK, HEAD_OUT_OF_RANGE, CYCLE, NO_ROOT, TWO_ROOTS, CROSSING = range(6)


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
