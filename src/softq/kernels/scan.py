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
    scores = scores.detach()
    if scores.device.type != "cpu" or not scores.is_contiguous():
        bad = ~(scores.flatten(2).amax(2) < math.inf) if scores.numel() else torch.zeros(scores.shape[:2], dtype=torch.bool)
        return _first(bad if lengths is None else bad & length_mask(lengths, scores.shape[1]))
    place = np.full(2, -1)
    size = scores[0, 0].numel() if scores.shape[0] and scores.shape[1] else 0
    full = torch.full(scores.shape[:1], scores.shape[1]) if lengths is None else lengths
    _scan_rows(as_array(full), as_array(scores).reshape(*scores.shape[:2], size), place)
    return (int(place[0]), int(place[1])) if place[0] >= 0 else None


def find_bad_arc(lengths: Tensor, arcs: Tensor) -> tuple[int, ...] | None:
    """Place (example, head, dependent) of a NaN or +inf among the possible arcs of ``arcs [B, n+1, n+1]``."""
    arcs = arcs.detach()
    if arcs.device.type != "cpu":
        return _first(~(arcs < math.inf) & possible_arcs(lengths, arcs.shape[1]))
    place = np.full(3, -1)
    _scan_arcs(as_array(lengths), as_array(arcs), place)
    return (int(place[0]), int(place[1]), int(place[2])) if place[0] >= 0 else None


def forbids(scores: Tensor) -> bool:
    """Whether any score is -inf (padding included)."""
    scores = scores.detach()
    if scores.device.type != "cpu":
        return bool((scores == -math.inf).any())
    return _scan_forbidden(as_array(scores).reshape(-1))


def _first(bad: Tensor) -> tuple[int, ...] | None:
    return tuple(torch.nonzero(bad)[0].tolist()) if bool(bad.any()) else None


@jit
def _scan_rows(lengths: Any, scores: Any, place: Any) -> None:
    for b in range(scores.shape[0]):
        for t in range(lengths[b]):
            bad = 0
            for k in range(scores.shape[2]):
                bad += not scores[b, t, k] < np.inf  # NaN compares false
            if bad > 0:
                place[0], place[1] = b, t
                return


@jit
def _scan_arcs(lengths: Any, arcs: Any, place: Any) -> None:
    for b in range(arcs.shape[0]):
        n = lengths[b]
        for h in range(n + 1):
            bad = 0
            for d in range(1, n + 1):
                bad += not arcs[b, h, d] < np.inf
            if bad > 0:
                for d in range(1, n + 1):
                    if h != d and not arcs[b, h, d] < np.inf:
                        place[0], place[1], place[2] = b, h, d
                        return


@jit
def _scan_forbidden(scores: Any) -> bool:
    found = 0
    for i in range(scores.shape[0]):
        found += scores[i] == -np.inf
    return found > 0
