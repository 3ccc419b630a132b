"""Linear chains on the GPU: two recursions side by side, then all marginals at once; O(n K²) each.

With s_t(j) = e_t(j) + logsumexp_i( s_{t-1}(i) + T(i,j) ) forwards and the same backwards, on the
transposed table, the marginals are

    P(y_t = j) ∝ exp( s_t(j) + s'_t(j) - e_t(j) )
    P(y_{t-1} = i, y_t = j) ∝ exp( s_{t-1}(i) + T(i,j) + s'_t(j) )

One program runs a sequence in one direction, so that only n steps follow each other, a third scores
its references, and the second launch treats stretches of positions independently. Everything stays
in log space, so no score is too large, and each step subtracts its largest entry c_t, so float32 is
enough for float32 scores: what is carried from step to step is never far from 0, and the sum of
what was subtracted, log Z, is kept in float64. Label marginals are softmaxes, which rounding cannot
make sum to anything but one, and the sum behind those of a pair is e^{c_t} times that behind those
of its second label: no step needs a sum over K² entries, but the c_t are as rough as the scores
are.

Decoding runs the first recursion, with the largest term in the place of a sum for the best labels,
and then chooses labels from the last to the first, one program for each sequence that is asked for.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.chain import MOST_LABELS_ON_GPU, reference
from softq.kernels.operator import Expected, by_autograd, subtract_parts
from softq.kernels.triton_math import (
    BEST,
    LOG,
    SIZES,
    choose,
    finite,
    load_seed,
    log_sum,
    reference_weight,
    share_of,
    total,
)

_TILE = 16  # positions whose label marginals are computed together
_STRETCHES = 16  # into which the positions of a sequence are divided, at most


def infer(
    emissions: Tensor, transitions: Tensor, lengths: Tensor, target: Expected, gradient: bool
) -> tuple[Tensor, ...]:
    """See `softq.kernels.operator.Operator`."""
    batch, size, labels = emissions.shape
    scores = (emissions, transitions)
    if emissions.numel() == 0:
        target = target._replace(outputs=None)  # without labels
    if labels > MOST_LABELS_ON_GPU or emissions.numel() == 0:
        return by_autograd(reference.log_partition, lengths, scores, target)
    transitions = transitions.expand(batch, -1, -1, -1)
    shared = transitions.shape[1] == 1
    block = triton.next_power_of_2(labels)
    refs = 0 if target.outputs is None else target.outputs.shape[1]
    outputs, weights, peaks = target.pointers(emissions)
    options = {
        "SHARED": shared,
        "PEAKED": target.peaks is not None,
        "WEIGHTED": target.weights is not None,
        "BLOCK": block,
    }
    states = emissions.new_empty(2, batch, size, labels)
    sums = torch.empty(batch, size + 2, dtype=torch.float64, device=emissions.device)
    given = (
        emissions, *emissions.stride(), transitions, *transitions.stride(), lengths,
        outputs, weights, peaks, 0 if peaks.shape[0] == 1 else peaks.stride(0), refs,
        states, sums, size, labels, batch,
    )  # fmt: skip
    only_log_z = not (gradient or refs or target.parts)
    _recursions[(batch, 1 if only_log_z else 3 if refs else 2)](
        *given, **options, KIND=LOG, TILE=_TILE, num_warps=_warps(block)
    )
    if only_log_z:
        return sums[:, size].to(emissions.dtype), *scores
    stretch = max(_TILE, triton.cdiv(triton.cdiv(size, _STRETCHES), _TILE) * _TILE)
    count = triton.cdiv(size, stretch)
    loss = emissions.new_empty(batch)
    d_emissions = emissions.new_empty(emissions.shape)
    steps = count if shared else transitions.shape[1]
    d_transitions = emissions.new_empty(batch, steps, labels, labels)
    _marginals[(batch, count)](
        *given, loss, d_emissions, d_transitions, stretch, **options, TILE=_TILE, num_warps=2
    )
    if shared and count > 1:
        d_transitions = d_transitions.sum(1, keepdim=True)
    return subtract_parts((loss, d_emissions, d_transitions), scores, target)


def _warps(block: int) -> int:
    return min(max(block * block // 32, 1), 16 if block == 64 else 8)


def decode(
    found: Tensor,
    seeds: Tensor,
    lengths: Tensor,
    emissions: Tensor,
    transitions: Tensor,
    sample: bool,
) -> None:
    """See `softq.kernels.operator.Decoder`."""
    batch, size, labels = emissions.shape
    emissions, table = emissions.double(), transitions.double().expand(batch, -1, -1, -1)
    block, shared = triton.next_power_of_2(labels), table.shape[1] == 1
    states = emissions.new_empty(batch, size, labels)
    sums = emissions.new_empty(batch, size + 2)
    _recursions[(batch, 1)](
        emissions, *emissions.stride(), table, *table.stride(), lengths, lengths, sums, sums, 0, 0,
        states, sums, size, labels, batch,
        SHARED=shared, PEAKED=False, WEIGHTED=False, BLOCK=block, KIND=LOG if sample else BEST,
        TILE=_TILE, num_warps=_warps(block),
    )  # fmt: skip
    _trace[(seeds.numel(),)](
        states, table, *table.stride(), lengths, seeds, found, size, labels, batch,
        SHARED=shared, SAMPLE=sample, BLOCK=block, num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=SIZES)
def _recursions(
    emissions,
    emission_batch,
    emission_step,
    emission_label,
    table,
    table_batch,
    table_step,
    table_from,
    table_to,
    lengths,
    outputs,
    weights,
    peaks,
    peaks_batch,
    refs,
    states,
    sums,
    size,
    labels,
    batch,
    SHARED: tl.constexpr,  # noqa: N803
    PEAKED: tl.constexpr,  # noqa: N803
    WEIGHTED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    KIND: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """Write s_t of all positions, forwards or backwards, or the score of the references.

    `sums` holds c_t of each position, then log Z, then that score. Each step asks for the scores of
    the next before it computes: a read takes longer than a step.
    """
    b = tl.program_id(0).to(tl.int64)
    kind = tl.program_id(1)
    length = tl.load(lengths + b).to(tl.int32)
    label = tl.arange(0, BLOCK)
    real = label < labels
    both = real[:, None] & real[None, :]
    local = emissions + b * emission_batch + label * emission_label
    own_sums = sums + b * (size + 2)
    if kind == 2:
        tile = table + b * table_batch + label[:, None] * table_from + label[None, :] * table_to
        score = tl.zeros([1], dtype=tl.float64)
        for r in range(refs):
            y = outputs + (b * refs + r) * size
            found = _score(
                local, emission_step, tile, table_step, y, peaks + b * peaks_batch, length, label,
                real, both, SHARED, PEAKED, BLOCK, TILE,
            )  # fmt: skip
            score += found * reference_weight(weights, b, refs, r, WEIGHTED)
        tl.store(own_sums + size + 1, tl.sum(score, axis=0))
    else:
        stride_in = tl.where(kind > 0, table_to, table_from)
        stride_out = tl.where(kind > 0, table_from, table_to)
        tile = table + b * table_batch + label[:, None] * stride_in + label[None, :] * stride_out
        start = tl.where(kind > 0, length - 1, 0)
        turn = tl.where(kind > 0, -1, 1)  # position s of the recursion is start + turn · s
        first_step = 0 if SHARED else tl.where(kind > 0, length - 2, 0)
        local += start * emission_step
        out = states + ((kind.to(tl.int64) * batch + b) * size + start) * labels + label

        now = tl.load(local, mask=real & (length > 0), other=float("-inf"))
        step = tl.load(
            tile + first_step * table_step, mask=both & (length > 1), other=float("-inf")
        )
        peak = tl.max(now, axis=0)
        state = now - finite(peak)
        sum_of_peaks = peak.to(tl.float64)
        tl.store(out, state, mask=real & (length > 0))
        now = tl.load(local + turn * emission_step, mask=real & (length > 1), other=float("-inf"))
        for s in range(1, length):
            more = s + 1 < length
            ahead = tl.load(
                local + turn * (s + 1) * emission_step, mask=real & more, other=float("-inf")
            )
            moved = state[:, None] + step
            if not SHARED:
                place = tile + (first_step + turn * s) * table_step
                step = tl.load(place, mask=both & more, other=float("-inf"))
            state = total(moved, 0, KIND) + now
            peak = tl.max(state, axis=0)
            state = state - finite(peak)
            sum_of_peaks += peak.to(tl.float64)
            tl.store(out + turn * s * labels, state, mask=real)
            tl.store(own_sums + s, peak.to(tl.float64), mask=kind == 0)
            now = ahead
        log_z = sum_of_peaks + log_sum(state.to(tl.float64), 0)
        tl.store(own_sums + size, tl.where(length > 0, log_z, 0.0), mask=kind == 0)


@triton.jit(do_not_specialize=SIZES)
def _trace(
    states,
    table,
    table_batch,
    table_step,
    table_from,
    table_to,
    lengths,
    seeds,
    found,
    size,
    labels,
    batch,
    SHARED: tl.constexpr,  # noqa: N803
    SAMPLE: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Choose the labels of one sequence from the last to the first, given `states` s_t."""
    row = tl.program_id(0).to(tl.int64)
    b = row % batch
    length = tl.load(lengths + b).to(tl.int32)
    label = tl.arange(0, BLOCK)
    real = label < labels
    tile = table + b * table_batch + label * table_from
    random = load_seed(seeds + row)
    after = 0
    for back in range(length):
        # P(y_t = i | y_{t+1}, x) ∝ exp( s_t(i) + T(i, y_{t+1}) )
        t = length - 1 - back
        weight = tl.load(states + (b * size + t) * labels + label, mask=real, other=float("-inf"))
        step = tile + after * table_to
        if not SHARED:
            step += t * table_step
        weight += tl.load(step, mask=real & (back > 0), other=0.0)
        after, random = choose(weight, label, 0, random, SAMPLE)
        tl.store(found + row * size + t, after)


@triton.jit
def _score(
    local,
    emission_step,
    tile,
    table_step,
    outputs,
    law,
    length,
    label,
    real,
    both,
    SHARED: tl.constexpr,  # noqa: N803
    PEAKED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """Compute the expected score of a reference's law."""
    score = tl.zeros([BLOCK], dtype=tl.float64)
    pairs = tl.zeros([BLOCK, BLOCK], dtype=tl.float64)
    step = tl.load(tile, mask=both & (length > 1), other=0.0)
    for begin in range(0, length, TILE):
        t = (begin + tl.arange(0, TILE))[:, None]
        inside = (t < length) & real[None, :]
        y = tl.load(outputs + t, mask=t < length, other=0)
        expected = tl.where(inside, _law(label[None, :], y, law, PEAKED), 0.0)
        given = tl.load(local[None, :] + t * emission_step, mask=inside, other=0.0)
        score += tl.sum(share_of(expected, given), axis=0)
    for here in range(1, length):
        first = _law(label, tl.load(outputs + here - 1), law, PEAKED)
        expected_pair = first[:, None] * _law(label, tl.load(outputs + here), law, PEAKED)[None, :]
        expected_pair = tl.where(both, expected_pair, 0.0).to(tl.float64)
        if SHARED:
            pairs += expected_pair
        else:
            step = tl.load(tile + (here - 1) * table_step, mask=both, other=0.0)
            pairs += share_of(expected_pair, step)
    if SHARED:
        pairs = share_of(pairs, step)
    return tl.sum(score, axis=0) + tl.sum(tl.sum(pairs, axis=1), axis=0)


@triton.jit(do_not_specialize=SIZES)
def _marginals(
    emissions,
    emission_batch,
    emission_step,
    emission_label,
    table,
    table_batch,
    table_step,
    table_from,
    table_to,
    lengths,
    outputs,
    weights,
    peaks,
    peaks_batch,
    refs,
    states,
    sums,
    size,
    labels,
    batch,
    loss,
    unary,
    pairs,
    stretch,
    SHARED: tl.constexpr,  # noqa: N803
    PEAKED: tl.constexpr,  # noqa: N803
    WEIGHTED: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
):
    """Write the gradient by labels and by neighbours of one stretch of a sequence, and the loss."""
    b = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    length = tl.load(lengths + b).to(tl.int32)
    own_sums = sums + b * (size + 2)
    log_z = tl.load(own_sums + size)
    infeasible = log_z == float("-inf")
    length = tl.where(infeasible, 0, length)  # then marginals are 0
    score = tl.load(own_sums + size + 1, mask=refs > 0, other=0.0)
    value = tl.where(infeasible & (refs > 0), float("inf"), log_z - score)
    tl.store(loss + b, value.to(loss.dtype.element_ty), mask=part == 0)
    label = tl.arange(0, BLOCK)
    real = label < labels
    both = real[:, None] & real[None, :]
    local = emissions + b * emission_batch + label[None, :] * emission_label
    tile = table + b * table_batch + label[:, None] * table_from + label[None, :] * table_to
    forwards = states + b * size * labels
    backwards = forwards + batch.to(tl.int64) * size * labels
    law = peaks + b * peaks_batch
    at = label[:, None] * labels + label[None, :]
    step = tl.load(tile, mask=both & SHARED, other=float("-inf"))
    summed = tl.zeros([BLOCK, BLOCK], dtype=unary.dtype.element_ty)
    for begin in range(part * stretch, tl.minimum(part * stretch + stretch, size), TILE):
        # label marginals of several positions
        t = (begin + tl.arange(0, TILE))[:, None]
        inside = (t < length) & real[None, :]
        place = t * labels + label[None, :]
        given = tl.load(local + t * emission_step, mask=inside, other=float("-inf"))
        joint = tl.load(forwards + place, mask=inside, other=float("-inf"))
        joint += tl.load(backwards + place, mask=inside, other=float("-inf")) - finite(given)
        found = tl.exp(joint - finite(log_sum(joint, 1))[:, None])
        found = tl.where(inside, found, 0.0)
        for r in range(refs):
            y = tl.load(outputs + (b * refs + r) * size + t, mask=t < length, other=0)
            expected = _law(label[None, :], y, law, PEAKED) * reference_weight(
                weights, b, refs, r, WEIGHTED
            )
            found -= tl.where(inside, expected, 0.0).to(found.dtype)
        tl.store(unary + b * size * labels + place, found, mask=(t < size) & real[None, :])
        # pairs of neighbours, one step after the other
        for here in range(tl.maximum(begin, 1), tl.minimum(begin + TILE, size)):
            there = real & (here < length)
            before = tl.load(
                forwards + (here - 1) * labels + label, mask=there, other=float("-inf")
            )
            after = tl.load(backwards + here * labels + label, mask=there, other=float("-inf"))
            ended = tl.load(forwards + here * labels + label, mask=there, other=float("-inf"))
            own = tl.load(
                emissions + b * emission_batch + here * emission_step + label * emission_label,
                mask=there, other=0.0,
            )  # fmt: skip
            sum_behind = finite(log_sum(ended + after - finite(own), 0))
            sum_behind += tl.load(own_sums + here, mask=here < length, other=0.0).to(own.dtype)
            if not SHARED:
                step_place = tile + (here - 1) * table_step
                step = tl.load(step_place, mask=both & (here < length), other=float("-inf"))
            pair = tl.exp(before[:, None] + step + (after - sum_behind)[None, :])
            for r in range(refs):
                row = outputs + (b * refs + r) * size + here
                i = tl.load(row - 1, mask=here < length, other=0)
                j = tl.load(row, mask=here < length, other=0)
                first = _law(label, i, law, PEAKED) * reference_weight(
                    weights, b, refs, r, WEIGHTED
                )
                expected_pair = first[:, None] * _law(label, j, law, PEAKED)[None, :]
                pair -= tl.where(both & (here < length), expected_pair, 0.0).to(pair.dtype)
            if SHARED:
                summed += pair
            else:
                pair_place = pairs + (b * (size - 1) + here - 1) * labels * labels + at
                tl.store(pair_place, pair, mask=both)
    if SHARED:
        pair_place = pairs + (b * tl.num_programs(1) + part) * labels * labels + at
        tl.store(pair_place, summed, mask=both)


@triton.jit
def _law(label, y, peaks, PEAKED: tl.constexpr):  # noqa: N803
    """Find the target's mass of labels where the reference has label y."""
    own = tl.where(label == y, 1.0, 0.0)
    if PEAKED:
        own = tl.load(peaks + 2 * y) + tl.load(peaks + 2 * y + 1) * own
    return own
