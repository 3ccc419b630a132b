"""Looking through scores without making a mask of their size: the checks that every new distribution runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit
from softq.kernels.reference import possible_arcs
from softq.numerics import length_mask


def find_bad_row(lengths: Tensor | None, scores: Tensor) -> tuple[int, ...] | None:
    """Place (example, position) of a NaN or +inf among the real rows of ``scores [B, n, …]``; None if there is none."""
    if not scores.numel():
        return None
    if not scores.is_cpu or not scores.is_contiguous():
        bad = ~(scores.detach().flatten(2).amax(2) < math.inf)
        return _first(bad if lengths is None else bad & length_mask(lengths, scores.shape[1]))
    rows = as_array(scores)
    found = _scan_rows(as_array(lengths) if lengths is not None else _NO_LENGTHS, rows.reshape(*rows.shape[:2], -1))
    return divmod(found, rows.shape[1]) if found >= 0 else None


_NO_LENGTHS = np.empty(0, dtype=np.int64)


def find_bad_arc(lengths: Tensor, arcs: Tensor) -> tuple[int, ...] | None:
    """Place (example, head, dependent) of a NaN or +inf among the possible arcs of ``arcs [B, n+1, n+1]``."""
    if not arcs.is_cpu:
        return _first(~(arcs.detach() < math.inf) & possible_arcs(lengths, arcs.shape[1]))
    found = _scan_arcs(as_array(lengths), as_array(arcs))
    count = arcs.shape[1]
    return (found // count**2, found // count % count, found % count) if found >= 0 else None


def forbids(scores: Tensor) -> bool:
    """Whether any score is -inf (padding included)."""
    if not scores.is_cpu:
        return bool((scores.detach() == -math.inf).any())
    return _scan_forbidden(as_array(scores).reshape(-1))


def _first(bad: Tensor) -> tuple[int, ...] | None:
    return tuple(torch.nonzero(bad)[0].tolist()) if bool(bad.any()) else None


@jit
def _scan_rows(lengths: Any, scores: Any) -> Any:
    """Flat index of the first bad row, or -1; no lengths: all rows are real."""
    size = scores.shape[1]
    for b in range(scores.shape[0]):
        for t in range(lengths[b] if lengths.shape[0] > 0 else size):
            bad = 0
            for k in range(scores.shape[2]):
                bad += not scores[b, t, k] < np.inf  # NaN compares false
            if bad > 0:
                return b * size + t
    return -1


@jit
def _scan_arcs(lengths: Any, arcs: Any) -> Any:
    """Flat index of the first bad arc, or -1."""
    for b in range(arcs.shape[0]):
        n = lengths[b]
        for h in range(n + 1):
            bad = 0
            for d in range(1, n + 1):
                bad += not arcs[b, h, d] < np.inf
            if bad > 0:
                for d in range(1, n + 1):
                    if h != d and not arcs[b, h, d] < np.inf:
                        return (b * arcs.shape[1] + h) * arcs.shape[1] + d
    return -1


@jit
def _scan_forbidden(scores: Any) -> bool:
    found = 0
    for i in range(scores.shape[0]):
        found += scores[i] == -np.inf
    return found > 0
