"""The k best projective trees, O(n³ + k n²) per sentence; k is small.

Choices run from the widest span down, as in `softq.kernels.projective.cpu`: the word at the top,
the last dependent of a span's head, and the split under their arc. The chart of the best spans says
what each loses against the best one (see `softq.kernels.kbest`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.kbest import depart, put
from softq.kernels.projective.cpu import (
    _CHARTS,
    _LEFT,
    _OPEN_LEFT,
    _OPEN_RIGHT,
    _RIGHT,
    _inside,
    _tops,
)
from softq.kernels.semiring import BEST, LOG
from softq.kernels.trees import load_weights


def topk(lengths: Tensor, arcs: Tensor, multiroot: bool, k: int) -> tuple[Tensor, Tensor]:
    """Heads ``[B,k,n]``, best first, and what each loses, ``[B,k]``: inf where it is missing."""
    batch, nodes = arcs.shape[:2]
    heads = torch.zeros(batch, k, nodes - 1, dtype=torch.int64)
    losses = torch.full((batch, k), torch.inf, dtype=torch.float64)
    arrays = (as_array(x) for x in (arcs.double(), lengths, heads, losses))
    run_batch(_deviate, batch, batch * nodes**2 * (nodes + k), *arrays, multiroot)
    return heads.to(arcs.device), losses.to(arcs.device)


@jit
def _deviate(
    first: int, stride: int, arcs: Any, lengths: Any, heads: Any, losses: Any, multiroot: bool
) -> None:
    nodes, most = arcs.shape[1], heads.shape[1]
    weight = np.empty((nodes, nodes, 1))
    rows = np.empty((3, nodes))
    shift, tree, value = rows[0], rows[1], rows[2]
    all_charts = np.empty((_CHARTS, nodes, nodes, 1))
    todo = np.empty((6 * nodes, 3), dtype=np.int64)
    loss = np.empty(most)
    origin = np.empty((most, 3), dtype=np.int64)  # the better tree, step, choice there
    choices = np.empty((most, 2 * nodes + 1), dtype=np.int64)
    for b in range(first, arcs.shape[0], stride):
        n, base = lengths[b], 0 if multiroot else 1  # base: the node that chart word 0 stands for
        last = n - base
        arc, charts = weight[:, :, 0], all_charts[:, : last + 1, : last + 1]
        chart = charts[:, :, :, 0]
        right, left = chart[_RIGHT], chart[_LEFT]
        open_right, open_left = chart[_OPEN_RIGHT], chart[_OPEN_LEFT]
        load_weights(arcs[b], n, 1.0, arc, shift, LOG)
        _inside(weight, charts, base, BEST)
        if _tops(arc, n, base, chart, tree, BEST) == -np.inf:
            continue
        count = put(loss, origin, 0, 0.0, 0, -1, 0)  # the best tree
        s = 0
        while s < count:
            made = choices[s]
            before, turn = choices[origin[s, 0]], origin[s, 1]
            made[: turn + 1] = before[: turn + 1]
            if turn >= 0:
                made[turn] = origin[s, 2]
            step = size = 0
            if n > 0:
                value[: last + 1] = tree[: last + 1]
                count = _choose(value, last + 1, step, turn, s, made, loss, origin, count)
                r = made[0]
                todo[0, 0], todo[0, 1], todo[0, 2] = _LEFT, 0, r
                todo[1, 0], todo[1, 1], todo[1, 2] = _RIGHT, r, last
                step, size = 1, 2
            while size > 0:
                size -= 1
                kind, i, j = todo[size, 0], todo[size, 1], todo[size, 2]
                if i == j:
                    continue
                if kind == _RIGHT:  # choose i's last dependent k, whose own words end at j
                    for m in range(i + 1, j + 1):
                        value[m - i - 1] = open_right[i, m] + right[j, m]
                else:  # j's first dependent k, whose own words begin at i
                    for m in range(i, j):
                        value[m - i] = left[i, m] + open_left[j, m]
                count = _choose(value, j - i, step, turn, s, made, loss, origin, count)
                if kind == _RIGHT:
                    k = i + 1 + made[step]
                    heads[b, s, base + k - 1] = base + i
                    todo[size, 0], todo[size, 1], todo[size, 2] = _RIGHT, k, j
                    low, high = i, k
                else:
                    k = i + made[step]
                    heads[b, s, base + k - 1] = base + j
                    todo[size, 0], todo[size, 1], todo[size, 2] = _LEFT, i, k
                    low, high = k, j
                for m in range(low, high):  # the split under the new arc between low and high
                    value[m - low] = right[low, m] + left[high, m + 1]
                count = _choose(value, high - low, step + 1, turn, s, made, loss, origin, count)
                k = low + made[step + 1]
                todo[size + 1, 0], todo[size + 1, 1], todo[size + 1, 2] = _RIGHT, low, k
                todo[size + 2, 0], todo[size + 2, 1], todo[size + 2, 2] = _LEFT, k + 1, high
                step += 2
                size += 3
            s += 1
        losses[b, :count] = loss[:count]


@jit
def _choose(
    value: Any,
    size: int,
    step: int,
    turn: int,
    s: int,
    made: Any,
    loss: Any,
    origin: Any,
    count: int,
) -> int:
    """Beyond its turn, tree s takes the best choice, from which others depart."""
    if step > turn:
        made[step] = np.argmax(value[:size])
        count = depart(value, size, made[step], s, step, loss, origin, count)
    return count
