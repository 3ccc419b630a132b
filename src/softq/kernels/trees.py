"""What both kinds of dependency trees share: arc weights, padding, whether heads form a tree."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.operator import Expected
from softq.kernels.semiring import LOW, fast_exp


def infer(
    kernel: Callable[..., None],
    operations: int,
    arcs: Tensor,
    lengths: Tensor,
    target: Expected,
    multiroot: bool,
    gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Run a kernel over the trees of a batch; see `softq.kernels.operator.Operator`."""
    batch, nodes = arcs.shape[:2]
    loss = torch.empty(batch, dtype=arcs.dtype)
    # room for one example where nobody asks for the gradient
    found = torch.empty(batch if gradient else 1, nodes, nodes, dtype=arcs.dtype)
    heads, weights, _, expected = target.arrays(arcs)
    arrays = [as_array(x) for x in (arcs, lengths, loss, found)]
    run_batch(
        kernel, batch, batch * operations, *arrays, heads, weights, expected, multiroot, gradient
    )
    return loss, found


@jit
def loss_of(
    b: int,
    log_z: float,
    arcs: Any,
    n: int,
    heads: Any,
    weights: Any,
    expected: Any,
    gradient: Any,
) -> float:
    """Log Z less the expected score under the target, whose parts are taken from the gradient."""
    if log_z == -np.inf and heads.shape[1] + expected.shape[0] > 0:
        return np.inf  # the model forbids every output
    total = 0.0
    for r in range(heads.shape[1]):
        weight = weights[b, r]
        if weight != 0.0:
            for d in range(1, n + 1):
                total += weight * arcs[heads[b, r, d - 1], d]
                gradient[heads[b, r, d - 1], d] -= weight
    if expected.shape[0] > 0:
        for h in range(n + 1):
            for d in range(1, n + 1):
                mass = expected[b, h, d]
                total += mass * (arcs[h, d] if mass != 0.0 else 0.0)
                gradient[h, d] -= mass
    return log_z - total


@jit
def load_weights(
    scores: Any, n: int, growth: float, weight: Any, shift: Any, log: bool | None
) -> bool:
    """Arc weights ``[n+1, n+1]``: exp(score - shift), or score - shift in log space.

    Returns False if one is too small to trust.

    Each word has one head, so Z' = Z · exp(-Σ shift). The shift takes off the best score and, where
    a word has many good heads, up to log ``growth``: by so much the number of trees grows with each
    word. That keeps Z' near 1. Nothing leads into the root, and no word heads itself.
    """
    shift[: n + 1] = -np.inf
    for h in range(n + 1):
        for d in range(n + 1):
            weight[h, d] = scores[h, d]
        weight[h, 0] = weight[h, h] = -np.inf
        for d in range(n + 1):
            shift[d] = max(shift[d], weight[h, d])
    for d in range(n + 1):
        shift[d] = 0.0 if shift[d] == -np.inf else shift[d]
    for h in range(n + 1):
        for d in range(n + 1):
            weight[h, d] -= shift[d]
    if log is not None:
        return True
    flat = weight.reshape(-1)  # one long loop: short ones are slow at their ends
    lost = 0
    for k in range(flat.size):
        score = flat[k]
        flat[k] = fast_exp(score)
        lost += (flat[k] < LOW) & (score > -np.inf)
    if growth > 1.0:
        total = np.zeros(n + 1)
        for h in range(n + 1):
            for d in range(n + 1):
                total[d] += weight[h, d]
        for d in range(1, n + 1):
            total[d] = 1.0 / min(max(total[d], 1.0), growth)
            shift[d] -= np.log(total[d])
        for h in range(n + 1):
            for d in range(n + 1):
                weight[h, d] *= total[d]
    return lost == 0


def close_padding(lengths: Tensor, arcs: Tensor) -> Tensor:
    """Arcs with -inf where impossible, and the padding as a chain that hangs off the last word.

    So trees over n words and trees over ``length`` words are in bijection and no recursion needs
    the lengths.
    """
    words = torch.arange(arcs.shape[1], device=arcs.device)
    arcs = arcs.masked_fill(~possible_arcs(lengths, arcs.shape[1]), -math.inf)
    # arc d-1 -> d for padded d
    hung = (words > lengths.reshape(-1, 1, 1)) & (words.unsqueeze(1) + 1 == words)
    return arcs.masked_fill(hung, 0.0)


def possible_arcs(lengths: Tensor, count: int) -> Tensor:
    """``[B, n+1, n+1]``: arcs between different real words, none into the root."""
    words = torch.arange(count, device=lengths.device)
    real = words <= lengths.unsqueeze(-1)
    return real.unsqueeze(-1) & real.unsqueeze(-2) & (words.unsqueeze(-1) != words) & (words > 0)


UNLABELLED = -100  # the head of a word that nobody gave, as in torch's losses

TREE_OK, HEAD_OUT_OF_RANGE, CYCLE, TWO_ROOTS, CROSSING = range(5)


def find_bad_tree(
    lengths: Tensor, heads: Tensor, multiroot: bool, projective: bool, partial: bool
) -> tuple[int, int, int]:
    """First of ``heads [N,n]`` that is no tree: example, word counted from 1, and fault.

    Without one, the fault is `TREE_OK`. If ``partial``, heads may be missing (then the fault is
    `UNLABELLED`, unless there is another), and the others must be free of faults among themselves.
    """
    return _check_trees(as_array(lengths), as_array(heads), multiroot, projective, partial)


@jit
def _spans_are_whole(heads: Any, n: int, spans: Any) -> bool:
    """Whether each word and all below it stand side by side, which is what projective means.

    Walking up from every word costs its depth, where comparing all pairs of arcs costs n.
    """
    for word in range(n + 1):
        spans[word] = word, word, 0  # first and last word below, and how many there are
    for word in range(1, n + 1):
        above = word
        while above > 0:
            spans[above, 0] = min(spans[above, 0], word)
            spans[above, 1] = max(spans[above, 1], word)
            spans[above, 2] += 1
            above = heads[above - 1]
    whole = True
    for word in range(1, n + 1):
        whole &= spans[word, 1] - spans[word, 0] + 1 == spans[word, 2]
    return whole


@jit
def _check_trees(
    lengths: Any, heads: Any, multiroot: bool, projective: bool, partial: bool
) -> tuple[int, int, int]:
    seen = np.zeros(heads.shape[1] + 1, dtype=np.int64)
    spans = np.empty((heads.shape[1] + 1, 3), dtype=np.int64)
    missing = False
    for b in range(heads.shape[0]):
        n = lengths[b]
        roots = 0
        for d in range(1, n + 1):
            h = heads[b, d - 1]
            if (h < 0 or h > n) and not (partial and h == UNLABELLED):
                return b, d, HEAD_OUT_OF_RANGE
            missing |= h == UNLABELLED
            roots += h == 0
            if roots > 1 and not multiroot:
                return b, d, TWO_ROOTS
        seen[: n + 1] = 0
        for d in range(1, n + 1):  # walk up until the root or a word already known to reach it
            node = d
            while node > 0 and seen[node] == 0:
                seen[node] = d
                node = heads[b, node - 1]
            if node > 0 and seen[node] == d:
                return b, node, CYCLE
        if not projective or (not missing and _spans_are_whole(heads[b], n, spans)):
            continue
        for d in range(1, n + 1):
            head = heads[b, d - 1]
            left, right = min(d, head), max(d, head)
            for e in range(
                left + 1, right if head >= 0 else left
            ):  # a missing head crosses nothing
                other = heads[b, e - 1]
                if other >= 0 and (other < left or other > right):
                    return b, d, CROSSING
    return 0, 0, UNLABELLED if missing else TREE_OK
