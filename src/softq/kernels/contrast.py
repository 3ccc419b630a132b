"""The elementwise part of a cross-entropy: one pass instead of several torch operations with their temporaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.numerics import inner


def subtract_expected(loss: Tensor, expected: Tensor, scores: Tensor, marginals: Tensor | None) -> None:
    """In place: loss -= <expected, scores> per example, and marginals -= expected. A part without mass counts nothing."""
    if not scores.is_cpu:
        loss -= inner(expected, scores, range(1, expected.dim()))
        if marginals is not None:
            marginals -= expected
        return
    batch = expected.shape[0]
    arrays = [as_array(x).reshape(x.shape[0], x.shape[1:].numel()) for x in (expected, scores, scores if marginals is None else marginals)]
    run_batch(_subtract, batch, expected.numel(), as_array(loss), *arrays, marginals is not None)


@jit
def _subtract(first: int, stride: int, loss: Any, expected: Any, scores: Any, marginals: Any, want: bool) -> None:
    for b in range(first, expected.shape[0], stride):
        total = 0.0
        row = b if scores.shape[0] > 1 else 0
        for k in range(expected.shape[1]):
            if expected[b, k] != 0.0:
                total += expected[b, k] * scores[row, k]
        loss[b] -= total
        if want:
            for k in range(expected.shape[1]):
                marginals[b, k] -= expected[b, k]


# Below this torch uses one thread and is quick; above it, it wakes its own threads, which then get in the way of ours.
_SMALL = 32_768


def weigh(gradient: Tensor, weights: Tensor, *, shared: bool) -> Tensor:
    """``gradient [B, …]`` times a weight per example ``[B]``; summed over the batch to ``[1, …]`` if ``shared``."""
    if not gradient.is_cpu or gradient.numel() < _SMALL:
        each = gradient * weights.reshape(-1, *[1] * (gradient.dim() - 1))
        return each.sum(0, keepdim=True) if shared else each
    batch, width = gradient.shape[0], gradient.shape[1:].numel()
    rows = as_array(gradient).reshape(batch, width)
    if shared:
        total = np.zeros(width)
        _weigh_and_sum(as_array(weights), rows, total)
        return torch.from_numpy(total).to(gradient.dtype).reshape(1, *gradient.shape[1:])
    out = torch.empty_like(gradient, memory_format=torch.contiguous_format)
    run_batch(_weigh, batch, batch * width // 4, as_array(weights), rows, as_array(out).reshape(batch, width))
    return out


@jit
def _weigh_and_sum(weights: Any, gradient: Any, total: Any) -> None:
    for b in range(gradient.shape[0]):
        for k in range(gradient.shape[1]):
            total[k] += weights[b] * gradient[b, k]


@jit
def _weigh(first: int, stride: int, weights: Any, gradient: Any, out: Any) -> None:
    for b in range(first, gradient.shape[0], stride):
        for k in range(gradient.shape[1]):
            out[b, k] = weights[b] * gradient[b, k]
