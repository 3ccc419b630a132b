"""Segmentations in plain torch: the semi-Markov forward algorithm (Sarawagi and Cohen 2004)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softq.numerics import logsumexp


def log_partition(lengths: Tensor, segments: Tensor, transitions: Tensor) -> Tensor:
    """Log Z of ``segments [B,n,L,K]`` and ``transitions [B or 1,K,K]``; O(n L K + n K²) each."""
    batch, size, longest, labels = segments.shape
    if size == 0:
        return segments.exp().sum((1, 2, 3))  # 0, with derivatives of any order
    places = torch.arange(size, device=segments.device).unsqueeze(-1)
    spans = torch.arange(longest, device=segments.device)
    inside = places + spans < lengths.reshape(-1, 1, 1)
    segments = segments.masked_fill(~inside.unsqueeze(-1), 0.0)
    # by their last tokens; one that would begin before the first token is told by `begun`
    ending = segments[:, (places - spans).clamp(min=0), spans]  # [B, n, L, K]
    begun = segments.new_full((batch, longest, labels), -math.inf)  # at t, t-1, …, t-L+1
    now = segments.new_zeros(batch, labels)
    ended = []
    for t in range(size):
        # ended_{t+1}(k) = logsumexp_d( begun_{t-d}(k) + s(t-d, d, k) )
        # begun_t(j) = logsumexp_i( ended_t(i) + T(i, j) )
        begun = torch.cat([now.unsqueeze(1), begun[:, :-1]], 1)
        ended.append(logsumexp(begun + ending[:, t], 1))
        now = logsumexp(ended[-1].unsqueeze(-1) + transitions, 1)
    last = (lengths - 1).clamp(min=0).reshape(-1, 1, 1).expand(-1, 1, labels)
    total = logsumexp(torch.stack(ended, 1).gather(1, last).squeeze(1), 1)
    return total.masked_fill(lengths == 0, 0.0)
