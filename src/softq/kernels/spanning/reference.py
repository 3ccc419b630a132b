"""Spanning trees in plain torch: the matrix-tree theorem by elimination without subtraction."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softq.kernels.trees import close_padding
from softq.numerics import logsumexp


def log_partition(lengths: Tensor, arcs: Tensor, multiroot: bool) -> Tensor:
    """Log Z of ``arcs [B,n+1,n+1]``, in log space; O(n³) each.

    Eliminating word k from the Laplacian leaves the Laplacian of a smaller graph (its Schur
    complement): w'(h,d) = w(h,d) + w(h,k) w(k,d) / S_k with S_k = Σ_h w(h,k), and Z = S_k Z'. Only
    sums, products and quotients of positive numbers occur, so no scores are too large (Grassmann,
    Taksar and Heyman 1985). With a single root, S_k leaves out the root until one word is left: the
    part of Z linear in the root's arcs.
    """
    w = close_padding(lengths, arcs)
    batch, count = w.shape[0], w.shape[1]
    rows = torch.arange(batch, device=w.device)
    node = torch.arange(count, device=w.device)
    root = (node == 0).unsqueeze(1)
    gone = (node == 0).expand(batch, count)  # the root is never eliminated
    log_z = w[:, :0].exp().sum((1, 2))  # 0, with derivatives also where there are no words
    for remaining in range(count - 1, 0, -1):
        heads = w if multiroot or remaining == 1 else w.masked_fill(root, -math.inf)
        sums = logsumexp(heads, 1)
        # A word that no other word may head has to wait until it is the last.
        rank = sums.detach().clamp_min(torch.finfo(w.dtype).min).masked_fill(gone, -math.inf)
        k = rank.argmax(1)
        total = sums[rows, k]
        log_z = log_z + total
        column, row = w[rows, :, k], w[rows, k]  # arcs into k, arcs out of k
        none = (total == -math.inf).unsqueeze(1)
        share = (column - total.unsqueeze(1).masked_fill(none, 0.0)).masked_fill(none, -math.inf)
        w = logsumexp(torch.stack([w, share.unsqueeze(2) + row.unsqueeze(1)], -1), -1)
        removed = node == k.unsqueeze(1)
        gone = gone | removed
        barred = removed.unsqueeze(1) | removed.unsqueeze(2) | (node == node.unsqueeze(1))
        w = w.masked_fill(barred, -math.inf)
    return log_z
