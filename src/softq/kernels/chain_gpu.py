"""Linear chains on the GPU: forward-backward in one Triton launch, one program per sequence; O(n K²) each.

Everything stays in log space, so no score is too large, and each step subtracts its largest entry, so float32
is enough for float32 scores: what is carried from step to step is never far from 0, and the sum of what was
subtracted, log Z, is kept in float64. Marginals are softmaxes of alpha + beta, so the common factors of alpha and
beta need not agree, and rounding cannot make a position's marginals sum to anything but one.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.autograd import Scores
from softq.kernels.reference import chain_log_partition

# A [K, K] tile lives in registers; beyond this it would not fit.
_MOST_LABELS = 64


def infer(lengths: Tensor, scores: Scores, want_marginals: bool) -> tuple[Tensor, Scores]:
    """Log Z ``[B]`` and, if wanted, label and transition marginals shaped like the scores."""
    emissions, transitions = (s.detach() for s in scores)
    batch, size, labels = emissions.shape
    if labels > _MOST_LABELS:
        return _infer_plainly(lengths, emissions, transitions, want_marginals)
    log_z = emissions.new_zeros(batch)
    # Padding is never written, so it has to start at 0.
    found: Scores = (emissions.new_zeros(emissions.shape), emissions.new_zeros(transitions.shape)) if want_marginals else ()
    if emissions.numel() == 0:
        return log_z, found
    unary, pairs, alphas = (*found, torch.empty_like(found[0])) if want_marginals else (log_z, log_z, log_z)
    block = triton.next_power_of_2(labels)
    _forward_backward[(batch,)](
        emissions,
        *emissions.stride(),
        transitions,
        *transitions.stride(),
        lengths.contiguous(),
        log_z,
        unary,
        pairs,
        alphas,
        size,
        labels,
        transitions.shape[1] if want_marginals else 1,
        SHARED=transitions.shape[1] == 1,
        WANT=want_marginals,
        BLOCK=block,
        num_warps=1 if block <= 16 else 2 if block == 32 else 8,  # a step of few labels is over before two warps have met
    )
    return log_z, found


def _infer_plainly(lengths: Tensor, emissions: Tensor, transitions: Tensor, want_marginals: bool) -> tuple[Tensor, Scores]:
    """Differentiate the torch reference. A table shared by the batch gets its derivatives per example all the same."""
    if not want_marginals:
        with torch.no_grad():
            return chain_log_partition(lengths, emissions, transitions), ()
    with torch.enable_grad():
        leaves = (emissions.requires_grad_(), transitions.requires_grad_())
        log_z = chain_log_partition(lengths, *leaves)
        found = torch.autograd.grad(log_z.sum(), leaves, allow_unused=True)
    shaped = (torch.zeros_like(s) if m is None else m for m, s in zip(found, leaves, strict=True))
    return log_z.detach(), tuple(m.detach().clone(memory_format=torch.contiguous_format) for m in shaped)


@triton.jit
def _normaliser(peak):
    """Find what to subtract before exp: the largest entry, or 0 where every entry is -inf (the difference would be NaN)."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def _log(total):
    """Take the logarithm with log 0 = -inf, also where log 0 is an error."""
    return tl.where(total > 0.0, tl.log(tl.where(total > 0.0, total, 1.0)), float("-inf"))


@triton.jit
def _forward_backward(
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
    log_z,
    unary,
    pairs,
    alphas,
    size,
    labels,
    steps,
    SHARED: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write `log_z` and, if wanted, label marginals to `unary` and pair marginals to `pairs`.

    Each step asks for the scores of the next one before it computes: a read from memory takes longer than a step.
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + b).to(tl.int32)
    label = tl.arange(0, BLOCK)
    real = label < labels
    both = real[:, None] & real[None, :]
    scores = emissions + b * emission_batch + label * emission_label  # + t · emission_step
    tile = table + b * table_batch + label[:, None] * table_from + label[None, :] * table_to  # + step · table_step
    rows = b * size * labels + label  # + t · labels: where alphas and label marginals of this sequence stand

    # alpha_t(j) = logsumexp_i( alpha_{t-1}(i) + T_t(i,j) ) + e_t(j), less its largest entry
    local = tl.load(scores, mask=real & (length > 0), other=float("-inf"))
    step = tl.load(tile, mask=both & (length > 1), other=float("-inf"))
    peak = tl.max(local, axis=0)
    alpha = local - _normaliser(peak)
    total = peak.to(tl.float64)
    if WANT:
        tl.store(alphas + rows, alpha, mask=real & (length > 0))
    local = tl.load(scores + emission_step, mask=real & (length > 1), other=float("-inf"))
    for t in range(1, length):
        ahead = tl.load(scores + (t + 1) * emission_step, mask=real & (t + 1 < length), other=float("-inf"))
        moved = alpha[:, None] + step
        if not SHARED:
            step = tl.load(tile + t * table_step, mask=both & (t + 1 < length), other=float("-inf"))
        top = _normaliser(tl.max(moved, axis=0))
        alpha = _log(tl.sum(tl.exp(moved - top[None, :]), axis=0)) + top + local
        peak = tl.max(alpha, axis=0)
        alpha = alpha - _normaliser(peak)
        total += peak.to(tl.float64)
        if WANT:
            tl.store(alphas + rows + t * labels, alpha, mask=real)
        local = ahead
    total += _log(tl.sum(tl.exp(alpha), axis=0)).to(tl.float64)
    tl.store(log_z + b, tl.where(length > 0, total, 0.0).to(log_z.dtype.element_ty))

    if WANT:
        tl.debug_barrier()  # alphas are read by other threads than wrote them
        stop = tl.where(total > float("-inf"), length, 0)
        last = tl.maximum(length - 1, 0)
        weight = tl.exp(alpha)
        mass = tl.sum(weight, axis=0)
        tl.store(unary + rows + last * labels, weight / tl.where(mass > 0.0, mass, 1.0), mask=real & (stop > 0))
        # ahead(j) = e_t(j) + beta_t(j);  beta_{t-1}(i) = logsumexp_j( T_t(i,j) + ahead(j) ), less its largest entry
        beta = tl.zeros_like(alpha)
        summed = tl.zeros([BLOCK, BLOCK], dtype=alpha.dtype)
        local = tl.load(scores + last * emission_step, mask=real & (length > 1), other=float("-inf"))
        alpha = tl.load(alphas + rows + (last - 1) * labels, mask=real & (length > 1), other=float("-inf"))
        if not SHARED:
            step = tl.load(tile + (last - 1) * table_step, mask=both & (length > 1), other=float("-inf"))
        for back in range(1, stop):
            t = length - back
            more = t > 1
            next_local = tl.load(scores + (t - 1) * emission_step, mask=real & more, other=float("-inf"))
            next_alpha = tl.load(alphas + rows + (t - 2) * labels, mask=real & more, other=float("-inf"))
            coming = step + (local + beta)[None, :]
            if not SHARED:
                step = tl.load(tile + (t - 2) * table_step, mask=both & more, other=float("-inf"))
            top = _normaliser(tl.max(coming, axis=1))
            share = tl.exp(coming - top[:, None])
            sums = tl.sum(share, axis=1)
            beta = _log(sums) + top
            beta = beta - _normaliser(tl.max(beta, axis=0))
            # P(y_{t-1} = i) is a softmax; P(i, j) = P(i) times j's share of what comes after i
            joint = alpha + beta
            weight = tl.exp(joint - _normaliser(tl.max(joint, axis=0)))
            marginal = weight / tl.sum(weight, axis=0)
            tl.store(unary + rows + (t - 1) * labels, marginal, mask=real)
            pair = share * (marginal / tl.where(sums > 0.0, sums, 1.0))[:, None]
            if SHARED:
                summed += pair
            else:
                place = ((b * steps + t - 1) * labels + label[:, None]) * labels + label[None, :]
                tl.store(pairs + place, pair, mask=both)
            local = next_local
            alpha = next_alpha
        if SHARED:
            tl.store(pairs + (b * labels + label[:, None]) * labels + label[None, :], summed, mask=both)
