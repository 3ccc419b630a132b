"""The elementwise part of a cross-entropy: one pass instead of several torch operations with their temporaries."""

from __future__ import annotations

from typing import Any

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
    batch, width = scores.shape[0], scores[0].numel() if scores.shape[0] else 0
    arrays = [as_array(x).reshape(batch, width) for x in (expected, scores, scores if marginals is None else marginals)]
    run_batch(_subtract, batch, batch * width, as_array(loss), *arrays, marginals is not None)


@jit
def _subtract(first: int, stride: int, loss: Any, expected: Any, scores: Any, marginals: Any, want: bool) -> None:
    for b in range(first, expected.shape[0], stride):
        total = 0.0
        for k in range(expected.shape[1]):
            if expected[b, k] != 0.0:
                total += expected[b, k] * scores[b, k]
        loss[b] -= total
        if want:
            for k in range(expected.shape[1]):
                marginals[b, k] -= expected[b, k]


# Below this torch uses one thread and is quick; above it, it wakes its own threads, which then get in the way of ours.
_SMALL = 32_768


def weigh(gradient: Tensor, weights: Tensor) -> Tensor:
    """``gradient [B, …]`` times a weight per example ``[B]``."""
    if not gradient.is_cpu or gradient.numel() < _SMALL:
        return gradient * weights.reshape(-1, *[1] * (gradient.dim() - 1))
    out = torch.empty_like(gradient)
    batch, width = gradient.shape[0], gradient[0].numel() if gradient.shape[0] else 0
    arrays = [as_array(x).reshape(batch, width) for x in (gradient, out)]
    run_batch(_weigh, batch, batch * width // 4, as_array(weights), *arrays)
    return out


@jit
def _weigh(first: int, stride: int, weights: Any, gradient: Any, out: Any) -> None:
    for b in range(first, gradient.shape[0], stride):
        for k in range(gradient.shape[1]):
            out[b, k] = weights[b] * gradient[b, k]
