"""Projective trees in plain torch: Eisner's inside algorithm, all spans of one width at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from softq.kernels.trees import close_padding
from softq.numerics import logsumexp


def log_partition(lengths: Tensor, arcs: Tensor, multiroot: bool) -> Tensor:
    """Log Z of ``arcs [B,n+1,n+1]``; O(n³) each.

    ``right[w][:, i]`` is the complete span of width w headed by its left end i, ``left[w][:, i]``
    the one headed by its right end i+w.
    """
    size = arcs.shape[1] - 1
    if size == 0:
        return arcs[:, :0].exp().sum((1, 2))  # 0, with derivatives of any order
    arcs = close_padding(lengths, arcs)
    first = 0 if multiroot else 1  # with several roots, the root is one more word at the left edge
    words = arcs[:, first:, first:]
    count = words.shape[1]
    right, left = ([words.new_zeros(words.shape[0], count)] for _ in range(2))
    open_right, open_left = [right[0]], [left[0]]  # index 0 is never used

    def summed(terms: list[Tensor]) -> Tensor:
        return logsumexp(torch.stack(terms, -1), -1)

    for w in range(1, count):
        m = count - w
        # split(i, j) = logsumexp_k right(i, k) + left(k+1, j)
        split = summed([right[k][:, :m] + left[w - 1 - k][:, k + 1 : k + 1 + m] for k in range(w)])
        open_right.append(split + words.diagonal(w, 1, 2))
        open_left.append(split + words.diagonal(-w, 1, 2))
        # right(i, j) = logsumexp_k open_right(i, k) + right(k, j)
        # left(i, j)  = logsumexp_k left(i, k) + open_left(k, j)
        right.append(
            summed([open_right[k][:, :m] + right[w - k][:, k : k + m] for k in range(1, w + 1)])
        )
        left.append(summed([left[k][:, :m] + open_left[w - k][:, k : k + m] for k in range(w)]))
    if multiroot:
        return right[size][:, 0]
    # log Z = logsumexp_r  arc(0, r) + left(1, r) + right(r, n)
    return summed(
        [arcs[:, 0, r + 1] + left[r][:, 0] + right[size - 1 - r][:, r] for r in range(size)]
    )
