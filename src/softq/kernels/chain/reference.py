"""Linear chains in plain torch: the forward algorithm as it stands in textbooks."""

from __future__ import annotations

import torch
from torch import Tensor

from softq.numerics import length_mask, logsumexp


def log_partition(lengths: Tensor, emissions: Tensor, transitions: Tensor) -> Tensor:
    """Log Z of ``emissions [B,n,K]`` and ``transitions [B or 1, n-1 or 1, K, K]``; O(n K²) each."""
    batch, size, _ = emissions.shape
    if size == 0:
        return emissions.exp().sum((1, 2))  # 0, with derivatives of any order
    real = length_mask(lengths, size)
    emissions = emissions.masked_fill(~real.unsqueeze(-1), 0.0)
    steps = transitions.expand(batch, max(size - 1, 0), -1, -1)
    steps = steps.masked_fill(~real[:, 1:, None, None], 0.0)
    alpha = emissions[:, 0]
    for t in range(1, size):
        # alpha_t(j) = logsumexp_i( alpha_{t-1}(i) + T_t(i, j) ) + e_t(j)
        moved = logsumexp(alpha.unsqueeze(-1) + steps[:, t - 1], 1) + emissions[:, t]
        alpha = torch.where(real[:, t].unsqueeze(-1), moved, alpha)
    return logsumexp(alpha, 1).masked_fill(lengths == 0, 0.0)
