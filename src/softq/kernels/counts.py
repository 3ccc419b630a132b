"""From outputs to parts: which labels, pairs and arcs an output contains, as dense tensors.

One short loop each on the CPU. Torch would take several operations, and above a few ten thousand elements it would
wake its own threads for them, which then get in the way of the recursions that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, dot, jit, run_batch, zeros
from softq.numerics import matmul


def label_rows(table: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    """``table [K,M]``, ``labels [N,n]`` -> ``[N,n,M]``: the row of each label, 0 behind each length ``[N]``."""
    if not table.is_cpu:
        real = torch.arange(labels.shape[1], device=table.device) < lengths.unsqueeze(1)
        return table[labels.masked_fill(~real, 0)] * real.unsqueeze(-1)
    found = torch.empty(*labels.shape, table.shape[1], dtype=table.dtype)
    run_batch(_label_rows, labels.shape[0], found.numel(), *(as_array(x) for x in (table, labels, lengths, found)))
    return found


@jit
def _label_rows(first: int, stride: int, table: Any, labels: Any, lengths: Any, found: Any) -> None:
    width = table.shape[1]
    for b in range(first, labels.shape[0], stride):
        found[b, lengths[b] :] = 0.0
        for t in range(lengths[b]):
            row = np.uint64(labels[b, t])
            for k in range(width):
                found[b, t, k] = table[row, k]


def pair_counts(labels: Tensor, lengths: Tensor, count: int, dtype: torch.dtype, *, each_step: bool) -> Tensor:
    """Pairs of neighbouring ``labels [N,n]``: ``[N,n-1,K,K]``, or their sum over steps ``[N,1,K,K]``."""
    batch, size = labels.shape
    steps = max(size - 1, 0) if each_step else 1
    found = zeros((batch, steps, count, count), labels, dtype)
    if labels.is_cpu:
        run_batch(_pair_counts, batch, labels.numel(), *(as_array(x) for x in (labels, lengths, found)))
        return found
    real = torch.arange(1, size, device=labels.device) < lengths.unsqueeze(1)
    labels = labels.masked_fill(torch.arange(size, device=labels.device) >= lengths.unsqueeze(1), 0)
    chosen = (labels[:, :-1] * count + labels[:, 1:]).unsqueeze(-1 if each_step else -2)
    found.flatten(2).scatter_add_(-1, chosen, real.to(dtype).reshape(chosen.shape))
    return found


@jit
def _pair_counts(first: int, stride: int, labels: Any, lengths: Any, found: Any) -> None:
    for b in range(first, labels.shape[0], stride):
        for t in range(lengths[b] - 1):
            found[b, t if found.shape[1] > 1 else 0, labels[b, t], labels[b, t + 1]] += 1.0


def pair_products(marginals: Tensor) -> Tensor:
    """Σ_t μ_t(i) μ_{t+1}(j) of independent positions ``[N,n,K]`` (0 on padding): ``[N,1,K,K]``."""
    if not marginals.is_cpu:
        return matmul(marginals[:, :-1].transpose(1, 2), marginals[:, 1:]).unsqueeze(1)
    batch, size, count = marginals.shape
    found = torch.empty(batch, 1, count, count, dtype=marginals.dtype)
    run_batch(_pair_products, batch, batch * size * count * count, *(as_array(x) for x in (marginals, found)))
    return found


@jit
def _pair_products(first: int, stride: int, marginals: Any, found: Any) -> None:
    _, size, count = marginals.shape
    over_time = np.empty((count, size))  # one example by label, for contiguous sums over time
    for b in range(first, marginals.shape[0], stride):
        for t in range(size):
            for k in range(count):
                over_time[k, t] = marginals[b, t, k]
        for i in range(count):
            for j in range(count):
                found[b, 0, i, j] = dot(over_time, i, 0, over_time, j, 1, max(size - 1, 0), None)


def flat_off_diagonal(table: Tensor) -> bool:
    """Whether each row of ``[K,K]`` is one number but for its diagonal entry, as when a reward only tells right from wrong."""
    return table.is_cpu and table.shape[0] > 1 and bool(_flat_off_diagonal(as_array(table)))


@jit
def _flat_off_diagonal(table: Any) -> bool:
    count = table.shape[0]
    for i in range(count):
        for j in range(count):
            if j != i and table[i, j] != table[i, 1 if i == 0 else 0]:
                return False
    return True


def flat_pair_products(table: Tensor, labels: Tensor, lengths: Tensor) -> Tensor:
    """`pair_products` of the rows of a `flat_off_diagonal` table at ``labels [N,n]``, in O(n + K²) and not O(n K²) each.

    Row y is low(y) everywhere plus δ(y) at y, so a pair (a, b) adds low(a) low(b) everywhere, low(a) δ(b) to column b,
    δ(a) low(b) to row a, and δ(a) δ(b) at (a, b).
    """
    batch, count = labels.shape[0], table.shape[0]
    found = torch.empty(batch, 1, count, count, dtype=table.dtype)
    run_batch(_flat_pair_products, batch, found.numel() + labels.numel(), *(as_array(x) for x in (table, labels, lengths, found)))
    return found


@jit
def _flat_pair_products(first: int, stride: int, table: Any, labels: Any, lengths: Any, found: Any) -> None:
    count = table.shape[0]
    low, gap = np.empty(count), np.empty(count)
    for y in range(count):
        low[y] = table[y, 1 if y == 0 else 0]
        gap[y] = table[y, y] - low[y]
    row, column = np.empty(count), np.empty(count)
    for b in range(first, labels.shape[0], stride):
        everywhere = 0.0
        row[:] = 0.0
        column[:] = 0.0
        for t in range(lengths[b] - 1):
            here, following = labels[b, t], labels[b, t + 1]
            everywhere += low[here] * low[following]
            row[here] += gap[here] * low[following]
            column[following] += low[here] * gap[following]
        for i in range(count):
            for j in range(count):
                found[b, 0, i, j] = everywhere + row[i] + column[j]
        for t in range(lengths[b] - 1):
            here, following = labels[b, t], labels[b, t + 1]
            found[b, 0, here, following] += gap[here] * gap[following]


def softmax_rows(table: Tensor) -> Tensor:
    """Softmax of each row of a small table, without waking torch's threads for it."""
    if not table.is_cpu:
        return torch.softmax(table, -1)
    rows = as_array(table).astype(np.float64)
    weights = np.exp(rows - rows.max(-1, keepdims=True))
    return torch.from_numpy(weights / weights.sum(-1, keepdims=True)).to(table.dtype)


def arc_counts(heads: Tensor, lengths: Tensor, dtype: torch.dtype, value: float) -> Tensor:
    """``heads [N,n]`` -> ``[N,n+1,n+1]`` with ``value`` at [head, dependent] and 0 elsewhere."""
    batch, size = heads.shape
    found = zeros((batch, size + 1, size + 1), heads, dtype)
    if heads.is_cpu:
        run_batch(_arc_counts, batch, heads.numel(), *(as_array(x) for x in (heads, lengths, found)), value)
        return found
    real = torch.arange(size, device=heads.device) < lengths.unsqueeze(1)
    found[:, :, 1:].scatter_(1, heads.masked_fill(~real, 0).unsqueeze(1), (real * value).to(dtype).unsqueeze(1))
    return found


@jit
def _arc_counts(first: int, stride: int, heads: Any, lengths: Any, found: Any, value: float) -> None:
    for b in range(first, heads.shape[0], stride):
        for d in range(lengths[b]):
            found[b, heads[b, d], d + 1] = value
