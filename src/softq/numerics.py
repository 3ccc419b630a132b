"""The few numerical rules everything else relies on.

Log-sum-exp, 0 · (-inf) = 0, full precision; intervals of shares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, Any]


def logsumexp(x: Tensor, dim: int) -> Tensor:
    """Log-sum-exp whose value is -inf and whose gradient is 0 (not NaN) where every term is -inf.

    >>> x = torch.full((2,), -torch.inf, requires_grad=True)
    >>> logsumexp(x, 0).item(), torch.autograd.grad(logsumexp(x, 0), x)[0].tolist()
    (-inf, [0.0, 0.0])
    """
    if x.shape[dim] == 0:
        return x.sum(dim) - math.inf
    peak = x.detach().amax(dim, keepdim=True)
    peak = peak.masked_fill(peak == -math.inf, 0.0)
    total = (x - peak).exp().sum(dim)
    empty = total == 0
    found = total.masked_fill(empty, 1.0).log() + peak.squeeze(dim)
    return found.masked_fill(empty, -math.inf)


def softmax(x: Tensor) -> Tensor:
    """Softmax over the last dimension; 0 where every score is -inf."""
    peak = x.detach().amax(-1, keepdim=True)
    weights = (x - peak.masked_fill(peak == -math.inf, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0.0, 1.0)


def inner(weights: Tensor, scores: Tensor, dims: Sequence[int]) -> Tensor:
    """Sum of weights · scores over ``dims``.

    A part with no mass counts nothing, whatever its score.

    So 0 · (-inf) = 0, padding may hold anything, and mass on a forbidden part gives -inf.

    >>> inner(torch.tensor([1.0, 0.0]), torch.tensor([2.0, -torch.inf]), (0,)).item()
    2.0
    """
    return (weights * scores.masked_fill(weights == 0, 0.0)).sum(list(dims))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """A @ b in the type of both, also where autocast would take a coarser one.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     matmul(torch.ones(1, 1), torch.full((1, 1), 1.001)).item()
    1.00100...
    """
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """``[*B]`` lengths to a ``[*B, size]`` mask that is True on real positions.

    >>> length_mask(torch.tensor([1, 2]), 3).int().tolist()
    [[1, 0, 0], [1, 1, 0]]
    """
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(-1)


def can_inspect(x: Tensor) -> bool:
    """Whether Python may look at values: not while a graph is traced, transformed or captured."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def wilson_interval(part: Array, whole: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Ends of Wilson's interval of a share; 0 and 1 where nothing was counted.

    >>> [ends.round(3).item() for ends in wilson_interval(np.array(9.0), np.array(10.0))]
    [0.596, 0.982]
    """
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    middle = part + z2 / 2
    spread = np.sqrt(z2 * (part * (whole - part) / np.maximum(whole, 1e-300) + z2 / 4))
    low, high = (np.clip((middle + side) / (whole + z2), 0.0, 1.0) for side in (-spread, spread))
    return low, high
