"""Projective dependency trees on the GPU: Eisner's inside-outside, one program per sentence; O(n³).

The recurrences are those of the CPU (see `cpu`). They run over chart words 0..count-1, which are
the words alone with a single root, and the root and the words with several: then the root is one
more word at the left edge, and a tree is its complete span.

All spans of one width are worked on together, a block of them times a block of splits at a time,
and all threads meet before the next width, which reads what they wrote. A chart fills the upper
triangle of its matrix and its transpose the lower one, so every sum runs along two rows. Arcs are
scaled per dependent, so that charts hold numbers near 1, in float64; a sentence whose numbers leave
the range is done again in log space.

Decoding fills the charts in log space, with the largest term in the place of a sum for the best
tree, and then chooses splits from the widest span down, one program for each tree.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.operator import Expected, subtract_parts
from softq.kernels.triton_math import (
    BEST,
    LOG,
    SIZES,
    choose,
    finite,
    load_seed,
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
    loss = arcs.new_zeros(batch)
    found = arcs.new_zeros(arcs.shape)  # impossible arcs are never written
    if batch == 0 or nodes == 1:
        return loss, found
    weighted, charts, options = _room(arcs, multiroot, 7)
    heads, weights, _ = target.pointers(arcs)
    _inside_outside[(batch,)](
        arcs, *arcs.stride(), lengths, loss, found, weighted, charts, heads, weights,
        0 if target.outputs is None else heads.shape[1], nodes, charts.shape[2],
        WANT=gradient or target.outputs is not None, WEIGHTED=target.weights is not None, **options,
    )  # fmt: skip
    return subtract_parts((loss, found), (arcs,), target)


def _room(arcs: Tensor, multiroot: bool, charts: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Scratch for arc weights and charts, and the options of a kernel that fills them."""
    batch, nodes = arcs.shape[:2]
    count = nodes if multiroot else nodes - 1
    weighted = torch.empty(batch, nodes, nodes, dtype=torch.float64, device=arcs.device)
    block = 16 if count <= 16 else 32
    options = {
        "MULTIROOT": multiroot,
        "NODES": triton.next_power_of_2(nodes),
        "SPANS": block,
        "SPLITS": block,
        "num_warps": block * block // 128,
    }
    return weighted, weighted.new_empty(batch, charts, count, count), options


def decode(
    found: Tensor, seeds: Tensor, lengths: Tensor, arcs: Tensor, multiroot: bool, sample: bool
) -> None:
    """See `softq.kernels.operator.Decoder`."""
    batch, nodes = arcs.shape[:2]
    weighted, charts, options = _room(arcs, multiroot, 4)
    _charts[(batch,)](
        arcs, *arcs.stride(), lengths, weighted, charts, nodes, charts.shape[2],
        KIND=LOG if sample else BEST, **options,
    )  # fmt: skip
    waiting = torch.empty(*seeds.shape, 2 * nodes, dtype=torch.int32, device=arcs.device)
    _trace[(seeds.numel(),)](
        weighted, charts, lengths, seeds, found, waiting, nodes, charts.shape[2], batch,
        MULTIROOT=multiroot, SAMPLE=sample, NODES=options["NODES"], num_warps=1,
    )  # fmt: skip


@triton.jit
def _add_dot(found, a, b, at, mask, LOG: tl.constexpr):  # noqa: N803
    """Add the sum of a[k] · b[k] over one block of splits, for a block of spans."""
    zero: tl.constexpr = float("-inf") if LOG else 0.0
    first = tl.load(a[:, None] + at, mask=mask, other=zero)
    second = tl.load(b[:, None] + at, mask=mask, other=zero)
    return plus(found, total(times(first, second, LOG), 1, LOG), LOG)


@triton.jit
def _scores_of(arc, arc_head, arc_dependent, head, dependent, n):
    """Load a block of arc scores, -inf where there is no such arc."""
    is_arc = (dependent > 0) & (dependent <= n) & (dependent != head) & (head <= n)
    place = arc + head * arc_head + dependent * arc_dependent
    return tl.load(place, mask=is_arc, other=float("-inf")).to(tl.float64)


@triton.jit
def _store_both(chart, upper, lower, value, mask):
    """Write an entry of a chart and of its transpose."""
    tl.store(chart + upper, value, mask=mask)
    tl.store(chart + lower, value, mask=mask)


@triton.jit
def _inside(
    arc,
    arc_head,
    arc_dependent,
    weight,
    right,
    n,
    nodes,
    size,
    LOG: tl.constexpr,  # noqa: N803
    MULTIROOT: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """Fill `weight` and the four charts from `right` on.

    Returns how many numbers have left the range, and the sum of what scores were shifted by.
    """
    first: tl.constexpr = 0 if MULTIROOT else 1  # the node that chart word 0 stands for
    zero: tl.constexpr = float("-inf") if LOG else 0.0
    one: tl.constexpr = 0.0 if LOG else 1.0
    count = n + 1 - first
    area = size * size
    left = right + area
    open_right = left + area
    open_left = open_right + area
    split_at = tl.arange(0, SPLITS)
    span_at = tl.arange(0, SPANS)
    odd = tl.zeros([SPANS], dtype=tl.int32)  # numbers out of range

    # shift(d): the log of the sum of d's arcs, but at most 1.9 above the best of them. By so much
    # the log of the number of projective trees grows with each word.
    node = tl.arange(0, NODES)
    is_word = (node > 0) & (node <= n)
    peak = tl.full([NODES], float("-inf"), dtype=tl.float64)
    mass = tl.zeros([NODES], dtype=tl.float64)
    for block in range(0, n + 1, SPLITS):
        h = (block + split_at)[:, None]
        score = _scores_of(arc, arc_head, arc_dependent, h, node[None, :], n)
        higher = tl.maximum(peak, tl.max(score, axis=0))
        top = finite(higher)
        mass = mass * tl.exp(peak - top) + tl.sum(tl.exp(score - top[None, :]), axis=0)
        peak = higher
    shift = finite(peak) + tl.minimum(tl.log(tl.maximum(mass, 1.0)), 1.9)
    shifted = tl.sum(tl.where(is_word, shift, 0.0), axis=0)
    for block in range(0, n + 1, SPLITS):
        h = (block + split_at)[:, None]
        score = _scores_of(arc, arc_head, arc_dependent, h, node[None, :], n)
        value = score - shift[None, :]
        if not LOG:
            value = tl.exp(value)
            # what underflows to 0 is lost as well, unless it is forbidden
            gone = (score > float("-inf")) & (value < 1.0e-100)
            odd += tl.max(tl.max(gone.to(tl.int32), axis=0), axis=0)
        tl.store(weight + h * nodes + node[None, :], value, mask=(h <= n) & (node[None, :] <= n))

    own = node < count
    ones = tl.full([NODES], one, dtype=tl.float64)
    tl.store(right + node * (size + 1), ones, mask=own)
    tl.store(left + node * (size + 1), ones, mask=own)
    tl.debug_barrier()

    for w in range(1, count):
        for start in range(0, count - w, SPANS):
            i = start + span_at
            j = i + w
            here = i < count - w
            # split(i,j) = Σ_k right(i,k) left(k+1,j), and but for their last terms, which need the
            # split, right(i,j) = Σ_k open_right(i,k) right(k,j), left(i,j) = Σ_k left(i,k)
            # open_left(k,j)
            split = tl.full([SPANS], zero, dtype=tl.float64)
            rightward = split
            leftward = split
            row_i = i * (size + 1)  # place of (i, i)
            row_j = j * size + i  # place of (j, i), in the transposed half
            for block in range(0, w, SPLITS):
                at = (block + split_at)[None, :]
                mask = here[:, None] & (at < w)
                short = here[:, None] & (at < w - 1)
                split = _add_dot(split, right + row_i, left + row_j + 1, at, mask, LOG)
                rightward = _add_dot(
                    rightward, open_right + row_i + 1, right + row_j + 1, at, short, LOG
                )
                leftward = _add_dot(
                    leftward, left + row_i + 1, open_left + row_j + 1, at, short, LOG
                )
            i_node = i + first
            j_node = j + first
            into_j = tl.load(weight + i_node * nodes + j_node, mask=here, other=zero)
            into_i = tl.load(weight + j_node * nodes + i_node, mask=here & (i_node > 0), other=zero)
            to_right = times(split, into_j, LOG)
            to_left = times(split, into_i, LOG)
            rightward = plus(rightward, to_right, LOG)
            leftward = plus(leftward, to_left, LOG)
            if not LOG:
                odd += strange(split) + strange(to_right) + strange(to_left)
                odd += strange(rightward) + strange(leftward)
            upper = i * size + j
            lower = j * size + i
            _store_both(open_right, upper, lower, to_right, here)
            _store_both(open_left, upper, lower, to_left, here)
            _store_both(right, upper, lower, rightward, here)
            _store_both(left, upper, lower, leftward, here)
        tl.debug_barrier()
    return tl.max(odd, axis=0), shifted


@triton.jit
def _solve(
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    lengths,
    loss,
    found,
    weighted,
    charts,
    heads,
    weights,
    refs,
    nodes,
    size,
    LOG: tl.constexpr,  # noqa: N803
    MULTIROOT: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803
    WEIGHTED: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """Write loss and gradient, unless numbers leave the range; returns whether they do."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    first: tl.constexpr = 0 if MULTIROOT else 1  # the node that chart word 0 stands for
    zero: tl.constexpr = float("-inf") if LOG else 0.0
    count = n + 1 - first
    arc = arcs + b * arc_batch
    weight = weighted + b * nodes * nodes  # [head, dependent]
    marginals = found + b * nodes * nodes
    area = size * size
    right = charts + b * area * 7
    left = right + area
    open_right = left + area
    open_left = open_right + area
    split_at = tl.arange(0, SPLITS)
    span_at = tl.arange(0, SPANS)
    node = tl.arange(0, NODES)
    own = node < count
    odd, shifted = _inside(
        arc, arc_head, arc_dependent, weight, right, n, nodes, size, LOG, MULTIROOT, NODES, SPANS,
        SPLITS,
    )  # fmt: skip
    last = tl.maximum(count - 1, 0)
    if MULTIROOT:
        value = tl.load(right + last)  # the root heads everything
    else:
        # Z = Σ_r w(0→r) left(0,r) right(r,count-1), by chart word
        tree = tl.load(weight + node + 1, mask=own, other=zero)
        tree = times(tree, tl.load(left + node, mask=own, other=zero), LOG)
        tree = times(tree, tl.load(right + last * size + node, mask=own, other=zero), LOG)
        value = total(tree, 0, LOG)
    bad = 0
    if LOG:
        log_z = value
    else:
        log_z = log(value)
        bad = odd + strange(value)
    log_z = tl.where(n > 0, log_z + shifted, 0.0)
    done = (bad == 0) & (log_z > float("-inf"))

    if WANT:
        # Derivatives of log Z by every chart entry, widest spans first.
        d_right = open_left + area
        d_left = d_right + area
        d_split = d_left + area
        stop = tl.where(done, count, 0)  # if no tree is allowed, marginals stay 0
        if LOG:
            inverse = -finite(value)
        else:
            inverse = 1.0 / tl.where(value > 0.0, value, 1.0)
        if not MULTIROOT:
            under_root = number(times(tree, inverse, LOG), LOG)
            tl.store(marginals + node + 1, under_root, mask=own & (stop > 0))
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
                corner = j * (size + 1) + 1  # place of (j, j+1)
                # What the root's arcs contribute: d_right(r,last) and d_left(0,r), or the one span
                # that is the tree.
                if MULTIROOT:
                    rightward = tl.where(
                        j - i == last, tl.zeros([SPANS], tl.float64) + inverse, zero
                    )
                    leftward = tl.full([SPANS], zero, dtype=tl.float64)
                else:
                    at_end = here & (j == last)
                    at_start = here & (i == 0)
                    a = times(tl.load(weight + i_node, mask=at_end, other=zero), inverse, LOG)
                    rightward = times(a, tl.load(left + i, mask=at_end, other=zero), LOG)
                    a = times(tl.load(weight + j_node, mask=at_start, other=zero), inverse, LOG)
                    leftward = times(
                        a, tl.load(right + last * size + j, mask=at_start, other=zero), LOG
                    )
                # right(i,j) stands in right(i',j) behind open_right(i',i), and in split(i,j')
                # before left(j+1,j'); left(i,j) in left(i,j') before open_left(j,j'), and in
                # split(i',j) behind right(i',i-1); open_right(i,j) in right(i,j') before
                # right(j,j'), and open_left(i,j) in left(i',j) behind left(i',i)
                to_right = tl.full([SPANS], zero, dtype=tl.float64)
                to_left = to_right
                for block in range(0, count - 1 - w, SPLITS):
                    at = (block + split_at)[None, :]
                    before = here[:, None] & (at < i[:, None])  # i' = k
                    after = here[:, None] & (at < last - j[:, None])  # j' = j + 1 + k
                    rightward = _add_dot(
                        rightward, d_right + j * size, open_right + i * size, at, before, LOG
                    )
                    rightward = _add_dot(
                        rightward, d_split + upper + 1, left + corner + size, at, after, LOG
                    )
                    leftward = _add_dot(
                        leftward, d_left + upper + 1, open_left + corner, at, after, LOG
                    )
                    leftward = _add_dot(
                        leftward, d_split + j * size, right + (i - 1) * size, at, before, LOG
                    )
                    to_right = _add_dot(
                        to_right, d_right + upper + 1, right + corner, at, after, LOG
                    )
                    to_left = _add_dot(to_left, d_left + j * size, left + i * size, at, before, LOG)
                to_right = plus(to_right, rightward, LOG)
                to_left = plus(to_left, leftward, LOG)
                into_j = tl.load(weight + i_node * nodes + j_node, mask=here, other=zero)
                into_i = tl.load(
                    weight + j_node * nodes + i_node, mask=here & (i_node > 0), other=zero
                )
                split = plus(times(to_right, into_j, LOG), times(to_left, into_i, LOG), LOG)
                _store_both(d_right, upper, lower, rightward, here)
                _store_both(d_left, upper, lower, leftward, here)
                _store_both(d_split, upper, lower, split, here)
                opened = tl.load(open_right + upper, mask=here, other=zero)
                share = number(times(to_right, opened, LOG), LOG)
                tl.store(marginals + i_node * nodes + j_node, share, mask=here)
                opened = tl.load(open_left + upper, mask=here, other=zero)
                share = number(times(to_left, opened, LOG), LOG)
                tl.store(marginals + j_node * nodes + i_node, share, mask=here & (i_node > 0))
            tl.debug_barrier()
        log_z -= take_heads(
            b, tl.where(done, n, 0), node, arc, arc_head, arc_dependent, heads, weights, refs,
            marginals, nodes, WEIGHTED,
        )  # fmt: skip
    log_z = tl.where((log_z == float("-inf")) & (refs > 0), float("inf"), log_z)
    tl.store(loss + b, log_z.to(loss.dtype.element_ty), mask=bad == 0)
    return bad


@triton.jit(do_not_specialize=SIZES)
def _inside_outside(
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    lengths,
    loss,
    found,
    weighted,
    charts,
    heads,
    weights,
    refs,
    nodes,
    size,
    MULTIROOT: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803
    WEIGHTED: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """Write the loss and, if wanted, its gradient to `found`.

    `weighted` and `charts` are scratch.
    """
    bad = _solve(
        arcs, arc_batch, arc_head, arc_dependent, lengths, loss, found, weighted, charts, heads,
        weights, refs, nodes, size, False, MULTIROOT, WANT, WEIGHTED, NODES, SPANS, SPLITS,
    )  # fmt: skip
    if bad > 0:
        tl.debug_barrier()
        _solve(
            arcs, arc_batch, arc_head, arc_dependent, lengths, loss, found, weighted, charts, heads,
            weights, refs, nodes, size, True, MULTIROOT, WANT, WEIGHTED, NODES, SPANS, SPLITS,
        )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def _charts(
    arcs,
    arc_batch,
    arc_head,
    arc_dependent,
    lengths,
    weighted,
    charts,
    nodes,
    size,
    KIND: tl.constexpr,  # noqa: N803
    MULTIROOT: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
    SPANS: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """Fill the arc weights and the charts that trees are chosen from, as logarithms."""
    b = tl.program_id(0).to(tl.int64)
    n = tl.load(lengths + b).to(tl.int32)
    _inside(
        arcs + b * arc_batch, arc_head, arc_dependent, weighted + b * nodes * nodes,
        charts + b * size * size * 4, n, nodes, size, KIND, MULTIROOT, NODES, SPANS, SPLITS,
    )  # fmt: skip


@triton.jit
def _splits(chart, row, other, other_row, node, low, stop, size):
    """Load the log-weights of the splits low..stop-1 of a span, -inf elsewhere."""
    inside = (node >= low) & (node < stop)
    weight = tl.load(chart + row * size + node, mask=inside, other=float("-inf"))
    return weight + tl.load(other + other_row * size + node, mask=inside, other=float("-inf"))


@triton.jit
def _push(waiting, depth, kind, i, j, size):
    """Put a span on the stack unless it is a single word; returns the height."""
    tl.store(waiting + depth, (kind * size + i) * size + j, mask=i < j)
    return depth + (i < j).to(tl.int32)


@triton.jit(do_not_specialize=SIZES)
def _trace(
    weighted,
    charts,
    lengths,
    seeds,
    heads,
    waiting,
    nodes,
    size,
    batch,
    MULTIROOT: tl.constexpr,  # noqa: N803
    SAMPLE: tl.constexpr,  # noqa: N803
    NODES: tl.constexpr,  # noqa: N803
):
    """Choose one tree's splits from the widest span down; `waiting` are the spans to split."""
    tree = tl.program_id(0).to(tl.int64)
    b = tree % batch
    n = tl.load(lengths + b).to(tl.int32)
    first: tl.constexpr = 0 if MULTIROOT else 1  # the node that chart word 0 stands for
    last = n - first
    area = size * size
    right = charts + b * area * 4  # behind it the charts of left, open right and open left spans
    node = tl.arange(0, NODES)
    random = load_seed(seeds + tree)
    waiting += tree * 2 * nodes
    heads += tree * (nodes - 1) + first - 1
    # the word at the top, by w(0→r) left(0,r) right(r,last)
    if MULTIROOT:
        top = tl.where(node == 0, 0.0, float("-inf"))
    else:
        under_root = weighted + b * nodes * nodes + node + 1
        top = tl.load(under_root, mask=node <= last, other=float("-inf"))
        top += _splits(right + area, 0, right, tl.maximum(last, 0), node, 0, last + 1, size)
    r, random = choose(top, node, 0, random, SAMPLE)
    depth = _push(waiting, 0, 1, 0, r, size)
    depth = _push(waiting, depth, 0, r, last, size)
    for _ in range(last):  # arcs, each from a span of several words
        tl.debug_barrier()  # what follows reads what other threads wrote
        depth -= 1
        span = tl.load(waiting + depth)
        j = span % size
        i = span // size % size
        left = span // size // size
        # i's last dependent k, by open_right(i,k) right(k,j); or, if j is the head of the span, its
        # first dependent k, by left(i,k) open_left(k,j)
        low = i + 1 - left
        one, other = right + (2 - left) * area, right + 3 * left * area
        weight = _splits(one, i, other, j, node, low, j + 1 - left, size)
        k, random = choose(weight, node, low, random, SAMPLE)
        depth = _push(
            waiting, depth, left, tl.where(left > 0, i, k), tl.where(left > 0, k, j), size
        )
        low = tl.where(left > 0, k, i)
        high = tl.where(left > 0, j, k)
        tl.store(heads + k, low + high - k + first)
        # the split under the new arc between low and high
        weight = _splits(right, low, right + area + 1, high, node, low, high, size)
        m, random = choose(weight, node, low, random, SAMPLE)
        depth = _push(waiting, depth, 0, low, m, size)
        depth = _push(waiting, depth, 1, m + 1, high, size)
