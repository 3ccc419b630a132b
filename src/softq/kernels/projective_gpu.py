"""Projective dependency trees on the GPU: Eisner's inside-outside in one Triton launch, one program per sentence; O(n³) each.

The recurrences are those of the CPU (see `projective`), in log space. They run over chart words 0..count-1, which
are the words alone with a single root, and the root and the words with several: then the root is one more word at
the left edge, and a tree is its complete span.

All spans of one width are worked on together, a block of them times a block of splits at a time, and all threads
meet before the next width, which reads what they wrote. A chart fills the upper triangle of its matrix and its
transpose the lower one, so every sum runs along two rows.
As on the CPU, each word's arcs are shifted by about the log of their sum. Charts then hold numbers near 0
whatever the scores and the length, and float32 is enough for float32 scores.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.autograd import Scores


def infer(lengths: Tensor, arcs: Tensor, want_marginals: bool, multiroot: bool) -> tuple[Tensor, Scores]:
    """Log Z ``[B]`` and, if wanted, arc marginals ``[B, n+1, n+1]``."""
    arcs = arcs.detach()
    batch, nodes = arcs.shape[:2]
    log_z = arcs.new_zeros(batch)
    found = arcs.new_zeros(arcs.shape) if want_marginals else log_z  # impossible arcs are never written
    if batch > 0 and nodes > 1:
        count = nodes if multiroot else nodes - 1
        charts = torch.empty(batch, 7 if want_marginals else 4, count, count, dtype=arcs.dtype, device=arcs.device)
        block = 16 if count <= 16 else 32
        _inside_outside[(batch,)](
            arcs,
            *arcs.stride(),
            lengths.contiguous(),
            log_z,
            found,
            arcs.new_empty(batch, nodes),
            charts,
            nodes,
            count,
            MULTIROOT=multiroot,
            WANT=want_marginals,
            NODES=triton.next_power_of_2(nodes),
            SPANS=block,
            SPLITS=block,
            num_warps=_warps(block, arcs.dtype),
        )
    return log_z, (found,) if want_marginals else ()


def _warps(block: int, dtype: torch.dtype) -> int:
    """Give each thread four float32 numbers of a tile or two of float64: with more, a dozen tiles do not fit in registers."""
    return block * block // (128 if dtype == torch.float32 else 64)


@triton.jit
def _normaliser(peak):
    """Find what to subtract before exp: the largest entry, or 0 where every entry is -inf (the difference would be NaN)."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def _log(total):
    """Take the logarithm with log 0 = -inf, also where log 0 is an error."""
    return tl.where(total > 0.0, tl.log(tl.where(total > 0.0, total, 1.0)), float("-inf"))


@triton.jit
def _log_add(a, b):
    """Compute log(e^a + e^b), with log 0 = -inf."""
    high = tl.maximum(a, b)
    top = _normaliser(high)
    return tl.where(high == float("-inf"), high, top + tl.log(1.0 + tl.exp(tl.minimum(a, b) - top)))


@triton.jit
def _log_dot(a, b, at, mask):
    """Compute logsumexp_k( a[k] + b[k] ) per row of one tile, as (largest term, sum of the others relative to it)."""
    terms = tl.load(a[:, None] + at, mask=mask, other=float("-inf")) + tl.load(b[:, None] + at, mask=mask, other=float("-inf"))
    peak = tl.max(terms, axis=1)
    return peak, tl.sum(tl.exp(terms - _normaliser(peak)[:, None]), axis=1)


@triton.jit
def _merge(peak, total, more_peak, more_total):
    """Join two partial sums, each (largest term, sum relative to it)."""
    high = tl.maximum(peak, more_peak)
    top = _normaliser(high)
    return high, total * tl.exp(peak - top) + more_total * tl.exp(more_peak - top)


@triton.jit
def _inside_outside(
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    lengths,
    log_z,
    found,
    shifts,
    charts,
    nodes,
    size,
    MULTIROOT: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """Write `log_z` and, if wanted, arc marginals to `found`. `shifts` and `charts` are scratch."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    first: tl.constexpr = 0 if MULTIROOT else 1  # the node that chart word 0 stands for
    count = n + 1 - first
    dtype: tl.constexpr = arcs.dtype.element_ty
    arc = arcs + b * arc_batch
    shift = shifts + b * nodes
    found_here = found + b * nodes * nodes
    area = size * size
    right = charts + b * area * (7 if WANT else 4)
    left = right + area
    open_right = left + area
    open_left = open_right + area
    split_at = tl.arange(0, SPLITS)
    span_at = tl.arange(0, SPANS)

    # shift(d): the log of the sum of d's arcs, but at most 1.9 above the best of them. That is by how much the log of
    # the number of projective trees grows with each word.
    node = tl.arange(0, NODES)
    is_word = (node > 0) & (node <= n)
    peak = tl.full([NODES], float("-inf"), dtype=dtype)
    total = tl.zeros([NODES], dtype=dtype)
    for block in range(0, n + 1, SPLITS):
        h = (block + split_at)[:, None]
        mask = is_word[None, :] & (node[None, :] != h) & (h <= n)
        score = tl.load(arc + h * arc_head + node[None, :] * arc_dependent, mask=mask, other=float("-inf"))
        more = tl.max(score, axis=0)
        peak, total = _merge(peak, total, more, tl.sum(tl.exp(score - _normaliser(more)[None, :]), axis=0))
    excess = tl.minimum(tl.log(tl.maximum(total, 1.0)), 1.9)
    off = _normaliser(peak) + excess
    tl.store(shift + node, tl.where(is_word, off, 0.0), mask=node <= n)
    shifted = tl.sum(tl.where(is_word, off, 0.0).to(tl.float64), axis=0)

    # right(i,i) = left(i,i) = 1, in logarithms
    own = node < count
    tl.store(right + node * (size + 1), tl.zeros([NODES], dtype=dtype), mask=own)
    tl.store(left + node * (size + 1), tl.zeros([NODES], dtype=dtype), mask=own)
    tl.debug_barrier()

    for w in range(1, count):
        for start in range(0, count - w, SPANS):
            i = start + span_at
            j = i + w
            here = i < count - w
            # split(i,j) = Σ_k right(i,k) left(k+1,j), and but for their last terms, which need the split,
            # right(i,j) = Σ_k open_right(i,k) right(k,j) and left(i,j) = Σ_k left(i,k) open_left(k,j)
            split_peak = tl.full([SPANS], float("-inf"), dtype=dtype)
            right_peak = split_peak
            left_peak = split_peak
            split_sum = tl.zeros([SPANS], dtype=dtype)
            right_sum = split_sum
            left_sum = split_sum
            row_i = i * (size + 1)  # place of (i, i)
            row_j = j * size + i  # place of (j, i), in the transposed half
            for block in range(0, w, SPLITS):
                k = block + split_at
                at = k[None, :]
                mask = here[:, None] & (at < w)
                short = here[:, None] & (at < w - 1)
                p, s = _log_dot(right + row_i, left + row_j + 1, at, mask)
                split_peak, split_sum = _merge(split_peak, split_sum, p, s)
                p, s = _log_dot(open_right + row_i + 1, right + row_j + 1, at, short)
                right_peak, right_sum = _merge(right_peak, right_sum, p, s)
                p, s = _log_dot(left + row_i + 1, open_left + row_j + 1, at, short)
                left_peak, left_sum = _merge(left_peak, left_sum, p, s)
            split = _log(split_sum) + _normaliser(split_peak)
            i_node = i + first
            j_node = j + first
            into_j = tl.load(arc + i_node * arc_head + j_node * arc_dependent, mask=here, other=float("-inf"))
            into_i = tl.load(arc + j_node * arc_head + i_node * arc_dependent, mask=here & (i_node > 0), other=float("-inf"))
            to_right = split + into_j - tl.load(shift + j_node, mask=here, other=0.0)
            to_left = split + into_i - tl.load(shift + i_node, mask=here, other=0.0)
            rightward = _log_add(_log(right_sum) + _normaliser(right_peak), to_right)
            leftward = _log_add(_log(left_sum) + _normaliser(left_peak), to_left)
            upper = i * size + j
            lower = j * size + i
            tl.store(open_right + upper, to_right, mask=here)
            tl.store(open_right + lower, to_right, mask=here)
            tl.store(open_left + upper, to_left, mask=here)
            tl.store(open_left + lower, to_left, mask=here)
            tl.store(right + upper, rightward, mask=here)
            tl.store(right + lower, rightward, mask=here)
            tl.store(left + upper, leftward, mask=here)
            tl.store(left + lower, leftward, mask=here)
        tl.debug_barrier()

    last = tl.maximum(count - 1, 0)
    if MULTIROOT:
        value = tl.load(right + last)  # the root heads everything
    else:
        # Z = Σ_r w(0→r) left(0,r) right(r,count-1), by chart word
        tree = tl.load(arc + (node + 1) * arc_dependent, mask=own, other=float("-inf")) - tl.load(shift + node + 1, mask=own, other=0.0)
        tree = tree + tl.load(left + node, mask=own, other=float("-inf"))
        tree = tree + tl.load(right + last * size + node, mask=own, other=float("-inf"))
        best = _normaliser(tl.max(tree, axis=0))
        value = _log(tl.sum(tl.exp(tree - best), axis=0)) + best
    tl.store(log_z + b, tl.where(n > 0, value.to(tl.float64) + shifted, 0.0).to(dtype))

    if WANT:
        # Derivatives of log Z by every chart entry, widest spans first, in logarithms.
        d_right = open_left + area
        d_left = d_right + area
        d_split = d_left + area
        stop = tl.where(value > float("-inf"), count, 0)  # nothing to do where no tree is allowed: marginals stay 0
        if not MULTIROOT:
            tl.store(found_here + node + 1, tl.exp(tree - _normaliser(value)), mask=own & (stop > 0))
        for back in range(1, stop):
            w = count - back
            for start in range(0, count - w, SPANS):
                i = start + span_at
                j = i + w
                here = i < count - w
                i_node = i + first
                j_node = j + first
                upper = i * size + j
                lower = j * size + i
                # What the root's arcs contribute: d_right(r,count-1) and d_left(0,r), or the one span that is the tree.
                if MULTIROOT:
                    rightward = tl.where(j - i == last, tl.zeros([SPANS], dtype=dtype) - value, float("-inf"))
                    leftward = tl.full([SPANS], float("-inf"), dtype=dtype)
                else:
                    at_end = here & (j == last)
                    at_start = here & (i == 0)
                    a = tl.load(arc + i_node * arc_dependent, mask=at_end, other=float("-inf"))
                    a = a - tl.load(shift + i_node, mask=at_end, other=0.0) - value
                    rightward = a + tl.load(left + i, mask=at_end, other=float("-inf"))
                    a = tl.load(arc + j_node * arc_dependent, mask=at_start, other=float("-inf"))
                    a = a - tl.load(shift + j_node, mask=at_start, other=0.0) - value
                    leftward = a + tl.load(right + last * size + j, mask=at_start, other=float("-inf"))
                # right(i,j) stands in right(i',j) behind open_right(i',i), and in split(i,j') before left(j+1,j');
                # left(i,j) stands in left(i,j') before open_left(j,j'), and in split(i',j) behind right(i',i-1);
                # open_right(i,j) stands in right(i,j') before right(j,j'), open_left(i,j) in left(i',j) behind left(i',i)
                r_peak = tl.full([SPANS], float("-inf"), dtype=dtype)
                l_peak = r_peak
                open_r_peak = r_peak
                open_l_peak = r_peak
                r_sum = tl.zeros([SPANS], dtype=dtype)
                l_sum = r_sum
                open_r_sum = r_sum
                open_l_sum = r_sum
                for block in range(0, count - 1 - w, SPLITS):
                    k = block + split_at
                    at = k[None, :]
                    before = here[:, None] & (at < i[:, None])  # i' = k
                    after = here[:, None] & (at < last - j[:, None])  # j' = j + 1 + k
                    p, s = _log_dot(d_right + j * size, open_right + i * size, at, before)
                    r_peak, r_sum = _merge(r_peak, r_sum, p, s)
                    p, s = _log_dot(d_split + upper + 1, left + (j + 1) * (size + 1), at, after)
                    r_peak, r_sum = _merge(r_peak, r_sum, p, s)
                    p, s = _log_dot(d_left + upper + 1, open_left + j * (size + 1) + 1, at, after)
                    l_peak, l_sum = _merge(l_peak, l_sum, p, s)
                    p, s = _log_dot(d_split + j * size, right + (i - 1) * size, at, before)
                    l_peak, l_sum = _merge(l_peak, l_sum, p, s)
                    p, s = _log_dot(d_right + upper + 1, right + j * (size + 1) + 1, at, after)
                    open_r_peak, open_r_sum = _merge(open_r_peak, open_r_sum, p, s)
                    p, s = _log_dot(d_left + j * size, left + i * size, at, before)
                    open_l_peak, open_l_sum = _merge(open_l_peak, open_l_sum, p, s)
                rightward = _log_add(rightward, _log(r_sum) + _normaliser(r_peak))
                leftward = _log_add(leftward, _log(l_sum) + _normaliser(l_peak))
                to_right = _log_add(rightward, _log(open_r_sum) + _normaliser(open_r_peak))
                to_left = _log_add(leftward, _log(open_l_sum) + _normaliser(open_l_peak))
                into_j = tl.load(arc + i_node * arc_head + j_node * arc_dependent, mask=here, other=float("-inf"))
                into_i = tl.load(arc + j_node * arc_head + i_node * arc_dependent, mask=here & (i_node > 0), other=float("-inf"))
                into_j = into_j - tl.load(shift + j_node, mask=here, other=0.0)
                into_i = into_i - tl.load(shift + i_node, mask=here, other=0.0)
                split = _log_add(to_right + into_j, to_left + into_i)
                tl.store(d_right + upper, rightward, mask=here)
                tl.store(d_right + lower, rightward, mask=here)
                tl.store(d_left + upper, leftward, mask=here)
                tl.store(d_left + lower, leftward, mask=here)
                tl.store(d_split + upper, split, mask=here)
                tl.store(d_split + lower, split, mask=here)
                opened = tl.load(open_right + upper, mask=here, other=float("-inf"))
                tl.store(found_here + i_node * nodes + j_node, tl.exp(to_right + opened), mask=here)
                opened = tl.load(open_left + upper, mask=here, other=float("-inf"))
                tl.store(found_here + j_node * nodes + i_node, tl.exp(to_left + opened), mask=here)
            tl.debug_barrier()

        # Each word has one head: what rounding left over, which grows with the scores, is taken out here.
        tl.debug_barrier()
        mass = tl.zeros([NODES], dtype=dtype)
        for block in range(0, n + 1, SPLITS):
            h = (block + split_at)[:, None]
            place = found_here + h * nodes + node[None, :]
            mass += tl.sum(tl.load(place, mask=is_word[None, :] & (h <= n), other=0.0), axis=0)
        mass = tl.where(mass > 0.0, mass, 1.0)
        for block in range(0, n + 1, SPLITS):
            h = (block + split_at)[:, None]
            place = found_here + h * nodes + node[None, :]
            mask = is_word[None, :] & (h <= n)
            tl.store(place, tl.load(place, mask=mask, other=0.0) / mass[None, :], mask=mask)
