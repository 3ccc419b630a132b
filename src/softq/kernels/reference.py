"""The plain torch reference: each log-partition as its textbook recursion in log space, differentiable at will.

Slow and simple on purpose. The fast kernels are tested against it, and second derivatives run through it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softq.numerics import length_mask, logsumexp


def chain_log_partition(lengths: Tensor, emissions: Tensor, transitions: Tensor) -> Tensor:
    """Forward algorithm. ``emissions [B,n,K]``, ``transitions [B,n-1 or 1,K,K]``; O(n K²) each."""
    size = emissions.shape[1]
    if size == 0:
        return emissions.sum((1, 2))
    real = length_mask(lengths, size)
    emissions = emissions.masked_fill(~real.unsqueeze(-1), 0.0)
    steps = transitions.expand(emissions.shape[0], max(size - 1, 0), -1, -1).masked_fill(~real[:, 1:, None, None], 0.0)
    alpha = emissions[:, 0]
    for t in range(1, size):
        # alpha_t(j) = logsumexp_i( alpha_{t-1}(i) + T_t(i, j) ) + e_t(j)
        moved = logsumexp(alpha.unsqueeze(-1) + steps[:, t - 1], 1) + emissions[:, t]
        alpha = torch.where(real[:, t].unsqueeze(-1), moved, alpha)
    return logsumexp(alpha, 1).masked_fill(lengths == 0, 0.0)


def projective_log_partition(lengths: Tensor, arcs: Tensor, *, multiroot: bool) -> Tensor:
    """Eisner's inside algorithm over ``arcs [B,n+1,n+1]``; O(n³) each.

    ``right[w][:, i]`` is the complete span headed by its left end i, ``left[w][:, i]`` by its right end i+w.
    """
    size = arcs.shape[1] - 1
    if size == 0:
        return arcs[:, :0].sum((1, 2))
    arcs = close_padding(lengths, arcs)
    offset = 0 if multiroot else 1  # with several roots, the root is one more word at the left edge
    words = arcs[:, offset:, offset:]
    count = words.shape[1]
    right = [words.new_zeros(words.shape[0], count)]
    left = [words.new_zeros(words.shape[0], count)]
    open_right, open_left = [right[0]], [left[0]]  # index 0 is never used
    for w in range(1, count):
        m = count - w
        # split(i, j) = logsumexp_k right(i, k) + left(k+1, j)
        split = logsumexp(torch.stack([right[k][:, :m] + left[w - 1 - k][:, k + 1 : k + 1 + m] for k in range(w)], -1), -1)
        open_right.append(split + words.diagonal(w, 1, 2))
        open_left.append(split + words.diagonal(-w, 1, 2))
        # right(i, j) = logsumexp_k open_right(i, k) + right(k, j),   left(i, j) = logsumexp_k left(i, k) + open_left(k, j)
        right.append(logsumexp(torch.stack([open_right[k][:, :m] + right[w - k][:, k : k + m] for k in range(1, w + 1)], -1), -1))
        left.append(logsumexp(torch.stack([left[k][:, :m] + open_left[w - k][:, k : k + m] for k in range(w)], -1), -1))
    if multiroot:
        return right[size][:, 0]
    # log Z = logsumexp_r  arc(0, r) + left(1, r) + right(r, n)
    return logsumexp(torch.stack([arcs[:, 0, r + 1] + left[r][:, 0] + right[size - 1 - r][:, r] for r in range(size)], -1), -1)


def spanning_log_partition(lengths: Tensor, arcs: Tensor, *, multiroot: bool) -> Tensor:
    """Matrix-tree theorem by elimination without subtraction, in log space; O(n³) each.

    Eliminating word k from the Laplacian leaves the Laplacian of a smaller graph (its Schur complement):
    w'(h,d) = w(h,d) + w(h,k) w(k,d) / S_k with S_k = Σ_h w(h,k), and Z = S_k Z'. Only sums, products and
    quotients of positive numbers occur, so no scores are too large (Grassmann, Taksar and Heyman 1985).
    With a single root, S_k leaves out the root until one word is left: the part of Z linear in the root's arcs.
    """
    w = close_padding(lengths, arcs)
    batch, count = w.shape[0], w.shape[1]
    rows = torch.arange(batch, device=w.device)
    own = torch.eye(count, dtype=torch.bool, device=w.device)
    w = w.masked_fill(own, -math.inf)
    gone = torch.zeros(batch, count, dtype=torch.bool, device=w.device)
    gone[:, 0] = True  # the root is never eliminated
    log_z = w.new_zeros(batch)
    for left in range(count - 1, 0, -1):
        heads = w if multiroot or left == 1 else torch.cat([w[:, :1].new_full((batch, 1, count), -math.inf), w[:, 1:]], 1)
        sums = logsumexp(heads, 1)
        # A word that no other word may head has to wait until it is the last.
        k = sums.detach().clamp_min(torch.finfo(w.dtype).min).masked_fill(gone, -math.inf).argmax(1)
        total = sums[rows, k]
        log_z = log_z + total
        column, row = w[rows, :, k], w[rows, k]  # arcs into k, arcs out of k
        share = torch.where((total == -math.inf).unsqueeze(1), -math.inf, column - total.masked_fill(total == -math.inf, 0.0).unsqueeze(1))
        w = logsumexp(torch.stack([w, share.unsqueeze(2) + row.unsqueeze(1)], -1), -1)
        gone = gone.clone()
        gone[rows, k] = True
        removed = torch.zeros_like(gone)
        removed[rows, k] = True
        w = w.masked_fill(own | removed.unsqueeze(1) | removed.unsqueeze(2), -math.inf)
    return log_z


def close_padding(lengths: Tensor, arcs: Tensor) -> Tensor:
    """Arcs with every impossible one at -inf, and the padding a chain that hangs off the last word in one way.

    So trees over n words and trees over ``length`` words are in bijection and no recursion needs the lengths.
    """
    words = torch.arange(arcs.shape[1], device=arcs.device)
    pad = words > lengths.unsqueeze(-1)  # [B, n+1]
    arcs = arcs.masked_fill(possible_arcs(lengths, arcs.shape[1]).logical_not(), -math.inf)
    hung = pad.unsqueeze(1) & (words.unsqueeze(1) + 1 == words)  # arc d-1 -> d for padded d
    return arcs.masked_fill(hung, 0.0)


def possible_arcs(lengths: Tensor, count: int) -> Tensor:
    """``[B, n+1, n+1]`` mask of arcs head -> dependent between different real words, none into the root."""
    words = torch.arange(count, device=lengths.device)
    real = words <= lengths.unsqueeze(-1)
    inside = real.unsqueeze(-1) & real.unsqueeze(-2)
    return inside & (words.unsqueeze(-1) != words) & (words > 0)
