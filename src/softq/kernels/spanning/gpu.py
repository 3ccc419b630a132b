"""Spanning dependency trees on the GPU: the matrix-tree theorem, one program per sentence.

O(n³) each.

Words are eliminated one by one without ever subtracting, and the way back gives the marginals: see
`cpu` and, for why this is right, `reference`. The weights are one tile of float64 in registers,
whatever the scores' type: sums of trees over crossing arcs lose too much in float32. A row or
column is taken out by a masked reduction, and an eliminated word's row and column become 0, so
nothing ever moves. What the way back needs of a stage, the word, its S, its column and its row,
goes through memory.

In probability space words go in their order; a sentence in which one of them has no head left, or
whose numbers leave the range, is done again in log space. There each stage eliminates the word with
the largest S: a word that no other word may head has S = 0 and so waits until it is the last.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.operator import Expected, by_autograd, subtract_parts
from softq.kernels.spanning import MOST_NODES_ON_GPU, reference
from softq.kernels.triton_math import (
    SIZES,
    finite,
    log,
    number,
    plus,
    strange,
    take_heads,
    times,
    total,
)


def infer(
    arcs: Tensor, lengths: Tensor, target: Expected, multiroot: bool, gradient: bool
) -> tuple[Tensor, ...]:
    """See `softq.kernels.operator.Operator`."""
    batch, nodes = arcs.shape[:2]
    if nodes > MOST_NODES_ON_GPU:
        return by_autograd(reference.log_partition, lengths, (arcs,), target, multiroot)
    loss = arcs.new_zeros(batch)
    found = arcs.new_zeros(arcs.shape)  # impossible arcs are never written
    if batch == 0 or nodes == 1:
        return loss, found
    block = triton.next_power_of_2(nodes)
    pivots = torch.empty(batch, nodes, dtype=torch.int32, device=arcs.device)
    stages = torch.empty(batch, nodes, 2 * block + 1, dtype=torch.float64, device=arcs.device)
    heads, weights, _ = target.pointers(arcs)
    _matrix_tree[(batch,)](
        arcs, *arcs.stride(), lengths, loss, found, pivots, stages, heads, weights,
        0 if target.outputs is None else heads.shape[1], nodes,
        MULTIROOT=multiroot, WANT=gradient or target.outputs is not None,
        WEIGHTED=target.weights is not None, NODES=block,
        num_warps=min(max(block * block // 128, 1), 16),
    )  # fmt: skip
    return subtract_parts((loss, found), (arcs,), target)


@triton.jit
def _solve(
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    lengths,
    loss,
    found,
    pivots,
    stages,
    heads,
    weights,
    refs,
    nodes,
    LOG: tl.constexpr,  # noqa: N803
    MULTIROOT: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803
    WEIGHTED: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
):
    """Write loss and gradient, unless numbers leave the range; returns whether they do."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    zero: tl.constexpr = float("-inf") if LOG else 0.0
    node = tl.arange(0, NODES)
    head = node[:, None]
    dependent = node[None, :]
    possible = (head <= n) & (dependent <= n) & (dependent > 0) & (head != dependent)
    arc = arcs + b * arc_batch
    score = tl.load(
        arc + head * arc_head + dependent * arc_dependent, mask=possible, other=float("-inf")
    )
    score = score.to(tl.float64)
    # Each word has one head, so its arcs may be scaled together: Z scales with them, marginals
    # stay.
    shift = finite(tl.max(score, axis=0))
    given = score - shift[None, :]
    odd = tl.zeros([NODES, NODES], dtype=tl.int32)  # numbers out of range
    if not LOG:
        given = tl.exp(given)
        odd = ((score > float("-inf")) & (given < 1.0e-100)).to(tl.int32)
    log_z = tl.sum(shift, axis=0)
    bad = 0
    pivot = pivots + b * nodes
    stage = stages + b * nodes * (2 * NODES + 1)

    w = given
    alive = tl.where((node > 0) & (node <= n), 1, 0)
    for k in range(n):
        if LOG:
            # S(d) = Σ_h w(h,d); with a single root, without the root until one word is left
            counted = w if MULTIROOT else tl.where((head > 0) | (k == n - 1), w, zero)
            rank = tl.where(alive > 0, tl.maximum(total(counted, 0, LOG), -1.0e300), float("-inf"))
            word = tl.min(tl.where(rank == tl.max(rank, axis=0), node, NODES), axis=0)
        else:
            word = n - k
        column = total(tl.where(dependent == word, w, zero), 1, LOG)
        row = total(tl.where(head == word, w, zero), 0, LOG)
        s = total(
            column if MULTIROOT else tl.where((node > 0) | (k == n - 1), column, zero), 0, LOG
        )
        if LOG:
            log_z += s
            inverse = -finite(s)  # without S there is no tree, and any finite number does
        else:
            bad += (s == 0.0).to(tl.int32)
            inverse = 1.0 / tl.where(s > 0.0, s, 1.0)
            log_z += tl.log(tl.where(s > 0.0, s, 1.0))
        if WANT:
            tl.store(pivot + k, word)
            tl.store(stage + k * (2 * NODES + 1) + node, column)
            tl.store(stage + k * (2 * NODES + 1) + NODES + node, row)
            tl.store(stage + k * (2 * NODES + 1) + 2 * NODES, inverse)
        # w'(h,d) = w(h,d) + w(h,k) w(k,d) / S_k
        w = plus(w, times(times(column, inverse, LOG)[:, None], row[None, :], LOG), LOG)
        w = tl.where((head == word) | (dependent == word) | (head == dependent), zero, w)
        if not LOG:
            odd += strange(w)
        alive = tl.where(node == word, 0, alive)
    if not LOG:
        bad += tl.max(tl.max(odd, axis=1), axis=0)
    done = (bad == 0) & (log_z > float("-inf"))

    if WANT:
        tl.debug_barrier()  # what a stage left is read by other threads than wrote it
        # a(h,d) = ∂ log Z / ∂ w(h,d), with p(h) = w(h,k) / S_k: a(k,d) = Σ_h p(h) a(h,d),
        # g(h) = Σ_d w(k,d) a(h,d), and w(h,k) a(h,k) = p(h) (g(h) + 1 - Σ_h' p(h') g(h')), where
        # the part after g(h) belongs to the heads counted in S_k.
        stop = tl.where(done, n, 0)  # if no tree is allowed, marginals stay 0
        a = tl.full([NODES, NODES], zero, dtype=tl.float64)
        for back in range(stop):
            k = n - 1 - back
            word = tl.load(pivot + k)
            column = tl.load(stage + k * (2 * NODES + 1) + node)
            row = tl.load(stage + k * (2 * NODES + 1) + NODES + node)
            p = times(column, tl.load(stage + k * (2 * NODES + 1) + 2 * NODES), LOG)
            through = number(times(p, total(times(a, row[None, :], LOG), 1, LOG), LOG), LOG)
            direct = number(p if MULTIROOT else tl.where((node > 0) | (back == 0), p, zero), LOG)
            expected = through + direct * (1.0 - tl.sum(through, axis=0))
            out = total(times(a, p[:, None], LOG), 0, LOG)
            # Where neither an arc nor a detour runs, nothing will ask for the derivative.
            if LOG:
                inward = tl.where(column == zero, zero, log(expected) - finite(column))
            else:
                inward = tl.where(
                    column == zero, zero, expected / tl.where(column == zero, 1.0, column)
                )
            a = tl.where(dependent == word, inward[:, None], a)
            a = tl.where(head == word, out[None, :], a)
        share = number(times(given, a, LOG), LOG)
        place = found + b * nodes * nodes + head * nodes + dependent
        tl.store(place, share, mask=possible & (stop > 0))
        log_z -= take_heads(
            b, tl.where(done, n, 0), node, arc, arc_head, arc_dependent, heads, weights, refs,
            found + b * nodes * nodes, nodes, WEIGHTED,
        )  # fmt: skip
    log_z = tl.where((log_z == float("-inf")) & (refs > 0), float("inf"), log_z)
    tl.store(loss + b, log_z.to(loss.dtype.element_ty), mask=bad == 0)
    return bad


@triton.jit(do_not_specialize=SIZES)
def _matrix_tree(
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    lengths,
    loss,
    found,
    pivots,
    stages,
    heads,
    weights,
    refs,
    nodes,
    MULTIROOT: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803
    WEIGHTED: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
):
    """Write the loss and, if wanted, its gradient to `found`; `pivots` and `stages` are scratch."""
    bad = _solve(
        arcs, arc_batch, arc_head, arc_dependent, lengths, loss, found, pivots, stages, heads,
        weights, refs, nodes, False, MULTIROOT, WANT, WEIGHTED, NODES,
    )  # fmt: skip
    if bad > 0:
        tl.debug_barrier()
        _solve(
            arcs, arc_batch, arc_head, arc_dependent, lengths, loss, found, pivots, stages, heads,
            weights, refs, nodes, True, MULTIROOT, WANT, WEIGHTED, NODES,
        )  # fmt: skip
