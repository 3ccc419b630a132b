"""Segmentations on the GPU: two recursions side by side, then all marginals; O(n L K + n K²) each.

The sums are those of the CPU (see `cpu`), as logarithms in float64 whatever the scores' type, so
that no score is too large. One program runs a sequence in one direction; the second launch treats
stretches of tokens independently.

Read from the last token to the first, `after` and `ahead` take the places of `begun` and `ended`.
Step s of either direction sums over segments of d + 1 tokens, from what step s - d - 1 left: these
vectors, of the last L steps, are the rows of one tile in registers. In it step s has row s modulo
its height, so that nothing ever moves.

Decoding runs the first recursion, with the largest term in the place of a sum for the best
segmentation, and then chooses segments from the last to the first.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.operator import Expected, by_autograd, subtract_parts
from softq.kernels.segments import MOST_ON_GPU, reference
from softq.kernels.triton_math import (
    BEST,
    LOG,
    SIZES,
    choose,
    finite,
    load_seed,
    reference_weight,
    share_of,
    total,
)

_STRETCHES = 16  # into which the tokens of a sequence are divided, at most
_SHORTEST = 8  # tokens of a stretch, at least


def infer(
    segments: Tensor, transitions: Tensor, lengths: Tensor, target: Expected, gradient: bool
) -> tuple[Tensor, ...]:
    """See `softq.kernels.operator.Operator`."""
    batch, size, longest, labels = segments.shape
    scores = (segments, transitions)
    if max(longest, labels) > MOST_ON_GPU or segments.numel() == 0:
        target = target._replace(outputs=target.outputs if segments.numel() else None)
        return by_autograd(reference.log_partition, lengths, scores, target)
    outputs, weights, _ = target.pointers(segments)
    refs = 0 if target.outputs is None else target.outputs.shape[1]
    only_log_z = not (gradient or refs or target.parts)
    given, options, log_z = _recur(lengths, segments, transitions, 1 if only_log_z else 2, LOG)
    if only_log_z:
        return log_z.to(segments.dtype), *scores
    stretch = max(_SHORTEST, triton.cdiv(size, _STRETCHES))
    count = triton.cdiv(size, stretch)
    losses = log_z.new_empty(batch, count)
    d_segments = torch.empty_like(segments, memory_format=torch.contiguous_format)
    d_transitions = segments.new_empty(batch, count, labels, labels)
    _marginals[(batch, count)](
        *given, outputs, weights, refs, losses, d_segments, d_transitions, stretch,
        WEIGHTED=target.weights is not None, **options,
    )  # fmt: skip
    found = losses.sum(1).to(segments.dtype), d_segments, d_transitions.sum(1)
    return subtract_parts(found, scores, target)


def _recur(
    lengths: Tensor, segments: Tensor, transitions: Tensor, directions: int, kind: int
) -> tuple[Any, Any, Tensor]:
    """Run the recursions; returns arguments and options of what follows, and log Z."""
    batch, size, longest, labels = segments.shape
    transitions = transitions.expand(batch, -1, -1)
    states = torch.empty(2, 2, batch, size + 1, labels, dtype=torch.float64, device=segments.device)
    log_z = states.new_empty(batch)
    given = (
        segments, *segments.stride(), transitions, *transitions.stride(), lengths, states, log_z,
        size, longest, labels, batch,
    )  # fmt: skip
    block, rows = triton.next_power_of_2(labels), triton.next_power_of_2(longest)
    options = {"LABELS": block, "ROWS": rows}
    options["num_warps"] = min(max(block * max(block, rows) // 64, 1), 16)
    _recursions[(batch, directions)](*given, KIND=kind, **options)
    return given, options, log_z


def decode(
    found: Tensor,
    seeds: Tensor,
    lengths: Tensor,
    segments: Tensor,
    transitions: Tensor,
    sample: bool,
) -> None:
    """See `softq.kernels.operator.Decoder`."""
    given, options, _ = _recur(lengths, segments, transitions, 1, LOG if sample else BEST)
    options["num_warps"] = 1
    _trace[(seeds.numel(),)](*given, seeds, found, SAMPLE=sample, **options)


@triton.jit
def _label_pairs(table, table_from, table_to, label, labels):
    """Load the scores of neighbouring labels as a tile, -inf where there is no label."""
    both = (label < labels)[:, None] & (label < labels)[None, :]
    place = table + label[:, None] * table_from + label[None, :] * table_to
    return tl.load(place, mask=both, other=float("-inf")).to(tl.float64)


@triton.jit(do_not_specialize=SIZES)
def _recursions(
    segments,
    segment_batch,
    segment_step,
    segment_length,
    segment_label,
    table,
    table_batch,
    table_from,
    table_to,
    lengths,
    states,
    log_zs,
    size,
    longest,
    labels,
    batch,
    KIND: tl.constexpr,  # noqa: N803
    LABELS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    """Write `ended` and `begun`, and log Z; or `ahead` and `after`.

    Each step asks for the scores of the next before it computes.
    """
    b = tl.program_id(0).to(tl.int64)
    kind = tl.program_id(1)
    length = tl.load(lengths + b).to(tl.int32)
    label = tl.arange(0, LABELS)
    real = label < labels
    inward = tl.where(kind > 0, table_to, table_from)
    outward = tl.where(kind > 0, table_from, table_to)
    pairs = _label_pairs(table + b * table_batch, inward, outward, label, labels)
    row = tl.arange(0, ROWS)
    joined = states + ((kind.to(tl.int64) * 2 * batch + b) * (size + 1)) * labels + label
    cut = joined + batch.to(tl.int64) * (size + 1) * labels
    place = tl.where(kind > 0, length, 0)
    turn = tl.where(kind > 0, -1, 1)
    tl.store(cut + place * labels, tl.zeros([LABELS], dtype=tl.float64), mask=real)
    window = tl.where((row == 0)[:, None] & real[None, :], 0.0, float("-inf"))
    window = window.to(tl.float64)
    ending = tl.zeros([LABELS], dtype=tl.float64)
    own = segments + b * segment_batch + label[None, :] * segment_label
    ahead = _segments_of_step(
        own, segment_step, segment_length, kind, 0, row, length, longest, real, ROWS
    )
    for s in range(length):
        now = ahead
        ahead = _segments_of_step(
            own, segment_step, segment_length, kind, s + 1, row, length, longest, real, ROWS
        )
        # ended_{s+1}(k) = Σ_d begun_{s-d}(k) e^{s(s-d, d, k)}
        ending = total(window + now, 0, KIND)
        # begun_{s+1}(j) = Σ_i ended_{s+1}(i) e^{T(i, j)}
        begun = total(ending[:, None] + pairs, 0, KIND)
        place += turn
        # `ahead` of a token is that of the segments that begin there, `after` of those before
        tl.store(joined + place * labels, ending, mask=real)
        tl.store(cut + place * labels, begun, mask=real)
        window = tl.where((row == (s + 1) % ROWS)[:, None], begun[None, :], window)
    log_z = total(tl.where(real, ending, float("-inf")), 0, KIND)
    tl.store(log_zs + b, tl.where(length > 0, log_z, 0.0), mask=kind == 0)


@triton.jit
def _segments_of_step(
    own,
    segment_step,
    segment_length,
    kind,
    s,
    row,
    length,
    longest,
    real,
    ROWS: tl.constexpr,  # noqa: N803
):
    """Load the scores of the segments that step s sums over, where row s - d has those of d + 1."""
    d = (s + ROWS - row) % ROWS
    first = tl.where(kind > 0, length - 1 - s, s - d)
    there = ((d <= s) & (d < longest) & (s < length))[:, None] & real[None, :]
    place = own + first[:, None] * segment_step + d[:, None] * segment_length
    return tl.load(place, mask=there, other=float("-inf")).to(tl.float64)


@triton.jit(do_not_specialize=SIZES)
def _marginals(
    segments,
    segment_batch,
    segment_step,
    segment_length,
    segment_label,
    table,
    table_batch,
    table_from,
    table_to,
    lengths,
    states,
    log_zs,
    size,
    longest,
    labels,
    batch,
    outputs,
    weights,
    refs,
    loss,
    d_segments,
    d_transitions,
    stretch,
    WEIGHTED: tl.constexpr,  # noqa: N803
    LABELS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    """Write the gradient by segments and neighbours of one stretch of a sequence, and the loss."""
    b = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    length = tl.load(lengths + b).to(tl.int32)
    log_z = tl.load(log_zs + b)
    infeasible = log_z == float("-inf")
    length = tl.where(infeasible, 0, length)  # then marginals are 0
    lost = tl.where(infeasible & (refs > 0), float("inf"), log_z)
    lost = tl.where(part == 0, lost, 0.0)
    label = tl.arange(0, LABELS)
    d = tl.arange(0, ROWS)[:, None]
    real = label < labels
    both = real[:, None] & real[None, :]
    tile = (d < longest) & real[None, :]
    pairs = _label_pairs(table + b * table_batch, table_from, table_to, label, labels)
    area = batch.to(tl.int64) * (size + 1) * labels
    ended = states + b * (size + 1) * labels + label
    begun = ended + area
    ahead = begun + area
    after = ahead + area
    place = d * labels + label[None, :]
    summed = tl.zeros([LABELS, LABELS], dtype=tl.float64)
    for t in range(part * stretch, tl.minimum(part * stretch + stretch, size)):
        # P(segment t, d, k) = begun_t(k) e^{s(t, d, k)} after_{t+d+1}(k) / Z
        inside = tile & (t + d < length)
        given = tl.load(
            segments + b * segment_batch + t * segment_step
            + d * segment_length + label[None, :] * segment_label,
            mask=inside, other=float("-inf"),
        ).to(tl.float64)  # fmt: skip
        before = tl.load(begun + t * labels, mask=real & (t < length), other=float("-inf"))
        behind = tl.load(after[None, :] + (t + d + 1) * labels, mask=inside, other=float("-inf"))
        found = tl.exp(given + behind + before[None, :] - finite(log_z))
        # P(labels i, j meet at t) = ended_t(i) e^{T(i, j)} ahead_t(j) / Z
        meets = real & (t > 0) & (t < length)
        left = tl.load(ended + t * labels, mask=meets, other=float("-inf"))
        right = tl.load(ahead + t * labels, mask=meets, other=float("-inf"))
        summed += tl.exp(left[:, None] + pairs + right[None, :] - finite(log_z))
        for r in range(refs):
            values = outputs + (b * refs + r) * size + t
            weight = reference_weight(weights, b, refs, r, WEIGHTED)
            y = tl.load(values, mask=t < length, other=0).to(tl.int32)
            chosen = tile & (y > 0) & (place + labels == y)
            found -= tl.where(chosen, weight, 0.0)
            follows = (y > 0) & (t + y // labels < length)
            z = tl.load(values + y // labels, mask=follows, other=0).to(tl.int32)
            meet = (label == y % labels)[:, None] & (label == z % labels)[None, :]
            summed -= tl.where(meet & follows, weight, 0.0)
            score = tl.sum(tl.sum(tl.where(chosen, given, 0.0), axis=1), axis=0)
            score += tl.sum(tl.sum(tl.where(meet & follows, pairs, 0.0), axis=1), axis=0)
            lost -= share_of(weight, score)
        out = d_segments + (b * size + t) * longest * labels + place
        tl.store(out, found.to(d_segments.dtype.element_ty), mask=tile)
    tl.store(loss + b * tl.num_programs(1) + part, lost)
    out = d_transitions + (b * tl.num_programs(1) + part) * labels * labels
    out += label[:, None] * labels + label[None, :]
    tl.store(out, summed.to(d_transitions.dtype.element_ty), mask=both)


@triton.jit(do_not_specialize=SIZES)
def _trace(
    segments,
    segment_batch,
    segment_step,
    segment_length,
    segment_label,
    table,
    table_batch,
    table_from,
    table_to,
    lengths,
    states,
    log_zs,
    size,
    longest,
    labels,
    batch,
    seeds,
    found,
    SAMPLE: tl.constexpr,  # noqa: N803
    LABELS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    """Choose the segments of one sequence from the last to the first."""
    row = tl.program_id(0).to(tl.int64)
    b = row % batch
    length = tl.load(lengths + b).to(tl.int32)
    label = tl.arange(0, LABELS)
    real = label < labels
    d = tl.arange(0, ROWS)
    local = segments + b * segment_batch
    tile = table + b * table_batch + label * table_from
    ended = states + b * (size + 1) * labels
    begun = ended + batch.to(tl.int64) * (size + 1) * labels
    random = load_seed(seeds + row)
    place = length
    k = 0
    while place > 0:
        # P(k, d | what follows) ∝ ended_t(k) e^{T(k, next)} · begun_{t-d-1}(k) e^{s(t-d-1, d, k)}
        weight = tl.load(ended + place * labels + label, mask=real, other=float("-inf"))
        pair = tl.load(tile + k * table_to, mask=real & (place < length), other=0.0)
        k, random = choose(weight + pair.to(tl.float64), label, 0, random, SAMPLE)
        first = place - 1 - d
        there = (d < longest) & (first >= 0)
        weight = tl.load(begun + first * labels + k, mask=there, other=float("-inf"))
        score = local + first * segment_step + d * segment_length + k * segment_label
        weight += tl.load(score, mask=there, other=float("-inf")).to(tl.float64)
        more, random = choose(weight, d, 0, random, SAMPLE)
        place -= more + 1
        tl.store(found + row * size + place, (more + 1) * labels + k)
