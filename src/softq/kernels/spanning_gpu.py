"""Spanning dependency trees on the GPU: the matrix-tree theorem in one Triton launch, one program per sentence; O(n³) each.

Words are eliminated one by one without ever subtracting, and the way back gives the marginals: see `spanning` and, for
why this is right, `spanning_log_partition` in the reference. Everything is in log space and float64, whatever the
scores' type: sums of trees over crossing arcs lose too much in float32.

The weights are one tile in registers. A row or column of it is taken out by a masked reduction, and an eliminated
word's row and column become -inf, so nothing ever moves. Each stage eliminates the word with the largest S, the sum
of the arcs into it: a word that no other word may head has S = 0 and so waits until it is the last.
What the way back needs of a stage, the word, its S, its column and its row, goes through memory.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.autograd import Scores
from softq.kernels.reference import spanning_log_partition

# A tile of float64 lives in registers; beyond this it would not fit.
_MOST_NODES = 64


def infer(lengths: Tensor, arcs: Tensor, want_marginals: bool, multiroot: bool) -> tuple[Tensor, Scores]:
    """Log Z ``[B]`` and, if wanted, arc marginals ``[B, n+1, n+1]``."""
    arcs = arcs.detach()
    batch, nodes = arcs.shape[:2]
    if nodes > _MOST_NODES:
        return _infer_plainly(lengths, arcs, want_marginals, multiroot)
    log_z = arcs.new_zeros(batch)
    found = arcs.new_zeros(arcs.shape) if want_marginals else log_z  # impossible arcs are never written
    if batch > 0 and nodes > 1:
        block = triton.next_power_of_2(nodes)
        stages = (batch, nodes - 1) if want_marginals else (1, 1)
        _matrix_tree[(batch,)](
            arcs,
            *arcs.stride(),
            lengths.contiguous(),
            log_z,
            found,
            torch.empty(stages, dtype=torch.int32, device=arcs.device),
            torch.empty(stages, dtype=torch.float64, device=arcs.device),
            torch.empty(*stages, 2, block, dtype=torch.float64, device=arcs.device),
            nodes,
            MULTIROOT=multiroot,
            WANT=want_marginals,
            NODES=block,
            num_warps=_warps(block),
        )
    return log_z, (found,) if want_marginals else ()


def _warps(block: int) -> int:
    """Give each thread four numbers of the tile, or eight of the largest."""
    return min(max(block * block // 128, 1), 16)


def _infer_plainly(lengths: Tensor, arcs: Tensor, want_marginals: bool, multiroot: bool) -> tuple[Tensor, Scores]:
    """Differentiate the torch reference."""
    exact = arcs.double()
    with torch.set_grad_enabled(want_marginals):
        exact = exact.detach().requires_grad_(want_marginals)
        log_z = spanning_log_partition(lengths, exact, multiroot=multiroot)
        found = torch.autograd.grad(log_z.sum(), (exact,)) if want_marginals else ()
    return log_z.detach().to(arcs.dtype), tuple(m.to(arcs.dtype) for m in found)


@triton.jit
def _normaliser(peak):
    """Find what to subtract before exp: the largest entry, or 0 where every entry is -inf (the difference would be NaN)."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def _log(total):
    """Take the logarithm with log 0 = -inf, also where log 0 is an error."""
    return tl.where(total > 0.0, tl.log(tl.where(total > 0.0, total, 1.0)), float("-inf"))


@triton.jit
def _sum_over_heads(x):
    """Compute logsumexp over the rows of a tile: one number per dependent."""
    top = _normaliser(tl.max(x, axis=0))
    return _log(tl.sum(tl.exp(x - top[None, :]), axis=0)) + top


@triton.jit
def _sum_over_dependents(x):
    """Compute logsumexp over the columns of a tile: one number per head."""
    top = _normaliser(tl.max(x, axis=1))
    return _log(tl.sum(tl.exp(x - top[:, None]), axis=1)) + top


@triton.jit
def _matrix_tree(
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    lengths,
    log_z,
    found,
    pivots,
    sums,
    vectors,
    nodes,
    MULTIROOT: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
):
    """Write `log_z` and, if wanted, arc marginals to `found`. `pivots`, `sums` and `vectors` are scratch, one entry per stage."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    node = tl.arange(0, NODES)
    head = node[:, None]
    dependent = node[None, :]
    possible = (head <= n) & (dependent <= n) & (dependent > 0) & (head != dependent)
    given = tl.load(arcs + b * arc_batch + head * arc_head + dependent * arc_dependent, mask=possible, other=float("-inf")).to(tl.float64)
    # Each word has one head, so its arcs may be scaled together: Z scales with them and marginals stay.
    shift = _normaliser(tl.max(given, axis=0))
    given = given - shift[None, :]
    total = tl.sum(shift, axis=0)
    stage = b * (nodes - 1)

    w = given
    alive = tl.where((node > 0) & (node <= n), 1, 0)
    for k in range(n):
        # S(d) = Σ_h w(h,d); with a single root, without the root until one word is left
        into = _sum_over_heads(w if MULTIROOT else tl.where((head > 0) | (k == n - 1), w, float("-inf")))
        rank = tl.where(alive > 0, tl.maximum(into, -1.0e300), float("-inf"))  # a word without heads still comes before one that is gone
        best = tl.max(rank, axis=0)
        word = tl.min(tl.where(rank == best, node, NODES), axis=0)
        s = tl.max(tl.where(node == word, into, float("-inf")), axis=0)
        total += s
        column = tl.max(tl.where(dependent == word, w, float("-inf")), axis=1)
        row = tl.max(tl.where(head == word, w, float("-inf")), axis=0)
        if WANT:
            tl.store(pivots + stage + k, word)
            tl.store(sums + stage + k, s)
            tl.store(vectors + (stage + k) * 2 * NODES + node, column)
            tl.store(vectors + (stage + k) * 2 * NODES + NODES + node, row)
        # w'(h,d) = w(h,d) + w(h,k) w(k,d) / S_k; without S_k there is no tree, and any finite number does for it
        detour = (column - _normaliser(s))[:, None] + row[None, :]
        high = tl.maximum(w, detour)
        top = _normaliser(high)
        w = tl.where(high == float("-inf"), high, top + tl.log(1.0 + tl.exp(tl.minimum(w, detour) - top)))
        w = tl.where((head == word) | (dependent == word) | (head == dependent), float("-inf"), w)
        alive = tl.where(node == word, 0, alive)
    tl.store(log_z + b, total.to(log_z.dtype.element_ty))

    if WANT:
        tl.debug_barrier()  # what a stage left is read by other threads than wrote it
        # a(h,d) = ∂ log Z / ∂ w(h,d) in logarithms, with p(h) = w(h,k) / S_k:
        # a(k,d) = Σ_h p(h) a(h,d)      g(h) = Σ_d w(k,d) a(h,d)      w(h,k) a(h,k) = p(h) (g(h) + 1 - Σ_h' p(h') g(h'))
        # where the part after g(h) belongs to the heads counted in S_k.
        stop = tl.where(total > float("-inf"), n, 0)  # nothing to do where no tree is allowed: marginals stay 0
        a = tl.full([NODES, NODES], float("-inf"), dtype=tl.float64)
        for back in range(stop):
            k = n - 1 - back
            word = tl.load(pivots + stage + k)
            s = tl.load(sums + stage + k)
            column = tl.load(vectors + (stage + k) * 2 * NODES + node)
            row = tl.load(vectors + (stage + k) * 2 * NODES + NODES + node)
            p = column - s
            through = tl.exp(p + _sum_over_dependents(a + row[None, :]))
            mean = tl.sum(through, axis=0)
            direct = tl.exp(p if MULTIROOT else tl.where((node > 0) | (back == 0), p, float("-inf")))
            expected = through + direct * (1.0 - mean)
            out = _sum_over_heads(a + p[:, None])
            # Where neither an arc nor a detour runs, nothing will ask for the derivative.
            inward = tl.where(column == float("-inf"), float("-inf"), _log(expected) - _normaliser(column))
            a = tl.where(dependent == word, inward[:, None], a)
            a = tl.where(head == word, out[None, :], a)
        place = found + b * nodes * nodes + head * nodes + dependent
        tl.store(place, tl.exp(given + a).to(found.dtype.element_ty), mask=possible & (stop > 0))
