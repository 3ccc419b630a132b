"""The few numerical rules everything else relies on: log-sum-exp, 0 · (-inf) = 0, products in full precision, masks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def logsumexp(x: Tensor, dim: int, *, keepdim: bool = False) -> Tensor:
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
    found = (total.masked_fill(empty, 1.0).log() + peak.squeeze(dim)).masked_fill(empty, -math.inf)
    return found.unsqueeze(dim) if keepdim else found


def or_inf(loss: Tensor) -> Tensor:
    """A cross-entropy log Z - E[score], and +inf where the model forbids every output, so that log Z is -inf."""
    # elsewhere than on the CPU the look at it would wait for the device; a minimum is NaN if anything is
    if loss.device.type == "cpu" and loss.numel() and loss.detach().min().item() > -math.inf:
        return loss
    return loss.masked_fill(~(loss > -math.inf), math.inf)  # also NaN, where the expected score is -inf as well


def inner(weights: Tensor, scores: Tensor, dims: Sequence[int]) -> Tensor:
    """Sum of weights · scores over ``dims``; a part with no mass counts nothing, whatever its score.

    So 0 · (-inf) = 0, padding may hold anything, and mass on a forbidden part gives -inf.

    >>> inner(torch.tensor([1.0, 0.0]), torch.tensor([2.0, -torch.inf]), (0,)).item()
    2.0
    """
    dims = list(dims)
    if scores.device.type == "cpu":  # elsewhere the look at the total would wait for the device
        total = (weights * scores).sum(dims)
        if not torch.isnan(total).any():
            return total
    return (weights * scores.masked_fill(weights == 0, 0.0)).sum(dims)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """A @ b in the type of both, also where autocast would take a coarser one: rewards and probabilities need all their digits.

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
