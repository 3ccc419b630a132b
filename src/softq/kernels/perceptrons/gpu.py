"""Grids of small networks on the GPU: one Triton launch trains them all, one program per network.

Each lane of a program takes one input at a time: the values of all units and the lane's share of
the gradient are in its registers, weights come as single numbers from the cache. The gradient is
added up across lanes once per batch, so that a program is a single warp and waits for nobody.
Registers are what limits the size of a network: `softq.kernels.perceptrons` sends no larger ones.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment, misc"
# ruff: noqa: N803, RUF005 -- constants are in capitals; the compiler unpacks no tuples

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.perceptrons.reference import centre, connections

_WARP = 32  # inputs at a time while training, one for each lane


def train_steps(
    networks: Tensor,
    velocity: Tensor,
    total: Tensor,
    losses: Tensor,
    sizes: tuple[int, ...],
    inputs: Tensor,
    patterns: Tensor,
    targets: Tensor,
    scales: Tensor,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """See `softq.kernels.perceptrons.train_steps`."""
    _train[(len(networks),)](
        networks,
        velocity,
        total,
        torch.empty_like(networks),
        losses,
        inputs.contiguous(),
        patterns.int().contiguous(),
        centre(targets, scales),
        scales.float(),
        len(inputs),
        losses.shape[1],
        batch_size,
        targets.shape[1],
        float(learning_rate),
        float(momentum),
        float(weight_decay),
        DECAYED=weight_decay > 0.0,
        PADDED=triton.next_power_of_2(networks.shape[1]),
        BLOCK=_WARP,
        num_warps=1,
        **_structure(sizes),
    )


def logits(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor) -> Tensor:
    """What every network answers to every input, ``[M, N, K]``."""
    answers = torch.empty(len(networks), len(inputs), sizes[-1], device=networks.device)
    _logits[(len(networks), triton.cdiv(len(inputs), 4 * _WARP))](
        networks.contiguous(),
        inputs.contiguous(),
        answers,
        len(inputs),
        BLOCK=4 * _WARP,
        num_warps=4,
        **_structure(sizes),
    )
    return answers


def _structure(sizes: tuple[int, ...]) -> dict[str, int | tuple[int, ...]]:
    """Constants of the kernels: how many inputs, classes, parameters, and what these connect."""
    sources, destinations = zip(*connections(sizes), strict=True)
    return {
        "WIDTH": sizes[0],
        "TOP": sum(sizes[:-1]),
        "CLASSES": sizes[-1],
        "PARAMETERS": len(sources),
        "SOURCES": sources,
        "DESTINATIONS": destinations,
    }


# --- kernels; a tuple holds one value [BLOCK] for each unit, or for each parameter ----------------


@triton.jit
def _replace(values, PLACE: tl.constexpr, value):
    return values[:PLACE] + (value,) + values[PLACE + 1 :]


@triton.jit
def _forward(
    inputs,
    row,
    real,
    weights,
    WIDTH: tl.constexpr,
    TOP: tl.constexpr,
    CLASSES: tl.constexpr,
    PARAMETERS: tl.constexpr,
    SOURCES: tl.constexpr,
    DESTINATIONS: tl.constexpr,
):
    """y_j = b_j + Σ_i w_ji x_i, and its positive part (NaN stays) where the unit is hidden."""
    values = ()
    for i in tl.static_range(WIDTH):
        values = values + (tl.load(inputs + row * WIDTH + i, mask=real, other=0.0),)
    zero = tl.zeros_like(values[0])
    values = values + (zero,) * (TOP + CLASSES - WIDTH) + (zero + 1.0,)
    for p in tl.static_range(PARAMETERS):
        y = values[DESTINATIONS[p]] + tl.load(weights + p) * values[SOURCES[p]]
        if DESTINATIONS[p] < TOP and SOURCES[p] == TOP + CLASSES:  # the bias comes last
            y = tl.where(y < 0.0, 0.0, y)
        values = _replace(values, DESTINATIONS[p], y)
    return values


@triton.jit
def _backward(
    values,
    slopes,
    weights,
    sums,
    TOP: tl.constexpr,
    CLASSES: tl.constexpr,
    PARAMETERS: tl.constexpr,
    SOURCES: tl.constexpr,
    DESTINATIONS: tl.constexpr,
):
    """Add d_j x_i to the sum of derivatives of each w_ji; d_i = Σ_j w_ji d_j where x_i > 0."""
    slopes = (tl.zeros_like(slopes[0]),) * TOP + slopes + (tl.zeros_like(slopes[0]),)
    added = ()
    for p in tl.static_range(PARAMETERS - 1, -1, -1):
        d = slopes[DESTINATIONS[p]]
        if DESTINATIONS[p] < TOP and SOURCES[p] == TOP + CLASSES:  # now d is complete
            d = tl.where(values[DESTINATIONS[p]] > 0.0, d, 0.0)
            slopes = _replace(slopes, DESTINATIONS[p], d)
        added = (sums[p] + d * values[SOURCES[p]],) + added
        slopes = _replace(slopes, SOURCES[p], slopes[SOURCES[p]] + tl.load(weights + p) * d)
    return added


@triton.jit
def _expm1(u):
    """e^u - 1 for u ≤ 0, as in `softq.kernels.perceptrons.cpu`."""
    x = tl.where(u < -20.0, -20.0, u) / 32
    series = 1 / 720 + x * (1 / 5040 + x / 40320)
    m = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * series)))))
    for _ in tl.static_range(5):
        m = m * (m + 2)
    return m


@triton.jit
def _loss(values, centred, real, scale, TOP: tl.constexpr, CLASSES: tl.constexpr):
    """H(t, softmax(z / s)), and the derivatives s · (softmax(z / s) - t) of the logits.

    With u_k = (z_k - max z) / s and m_k = exp(u_k) - 1, softmax(z / s)_k - 1/K is
    (m_k - mean m) / (K + Σ m): however small, it keeps its digits. Both are 0 where not ``real``.
    """
    peak = values[TOP]
    for k in tl.static_range(1, CLASSES):
        peak = tl.where(values[TOP + k] > peak, values[TOP + k], peak)
    total = tl.zeros_like(peak)
    loss = tl.zeros_like(peak)
    target = ()
    parts = ()
    for k in tl.static_range(CLASSES):
        u = (values[TOP + k] - peak) * (1.0 / scale)
        target = target + (tl.load(centred + k, mask=real, other=0.0),)
        loss -= (target[k] * (1.0 / scale) + 1.0 / CLASSES) * u
        parts = parts + (_expm1(u),)
        total += parts[k]
    slopes = ()
    for k in tl.static_range(CLASSES):
        slope = (parts[k] - total / CLASSES) * (scale / (CLASSES + total)) - target[k]
        slopes = slopes + (tl.where(real, slope, 0.0),)
    return tl.where(real, loss + tl.log(CLASSES + total), 0.0), slopes


@triton.jit(do_not_specialize=["count", "steps", "batch_size", "patterns_count"])
def _train(
    networks,
    velocities,
    totals,
    gradients,
    losses,
    inputs,
    patterns,
    centred,
    scales,
    count,
    steps,
    batch_size,
    patterns_count,
    learning_rate,
    momentum,
    weight_decay,
    DECAYED: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    TOP: tl.constexpr,
    CLASSES: tl.constexpr,
    PARAMETERS: tl.constexpr,
    SOURCES: tl.constexpr,
    DESTINATIONS: tl.constexpr,
):
    """Train one network through all steps."""
    m = tl.program_id(0).to(tl.int64)
    weights = networks + m * PARAMETERS
    scale = tl.load(scales + m)
    lane = tl.arange(0, BLOCK)
    zero = tl.zeros([BLOCK], dtype=tl.float32)
    there = tl.arange(0, PADDED) < PARAMETERS
    at = m * PARAMETERS + tl.arange(0, PADDED)
    for step in range(steps):
        begin = step * batch_size
        size = tl.minimum(count - begin, batch_size)
        sums = (zero,) * PARAMETERS
        loss = zero
        for start in range(0, size, BLOCK):
            real = start + lane < size
            row = (begin + start + lane).to(tl.int64)
            values = _forward(
                inputs, row, real, weights, WIDTH, TOP, CLASSES, PARAMETERS, SOURCES, DESTINATIONS
            )
            pattern = m * patterns_count + tl.load(patterns + row, mask=real, other=0)
            entropy, slopes = _loss(values, centred + pattern * CLASSES, real, scale, TOP, CLASSES)
            loss += entropy
            sums = _backward(
                values, slopes, weights, sums, TOP, CLASSES, PARAMETERS, SOURCES, DESTINATIONS
            )
        share = 1.0 / size
        tl.store(losses + m * steps + step, tl.sum(loss, axis=0) * share)
        for p in tl.static_range(PARAMETERS):
            gradient = tl.sum(sums[p], axis=0) * share
            if DECAYED and SOURCES[p] != TOP + CLASSES:  # a weight, not a bias
                gradient += weight_decay * tl.load(weights + p)
            tl.store(gradients + m * PARAMETERS + p, gradient)
        tl.debug_barrier()  # what one lane wrote, all lanes read
        v = momentum * tl.load(velocities + at, mask=there) + tl.load(gradients + at, mask=there)
        w = tl.load(networks + at, mask=there) - learning_rate * v
        tl.store(velocities + at, v, mask=there)
        tl.store(networks + at, w, mask=there)
        tl.store(totals + at, tl.load(totals + at, mask=there) + w, mask=there)
        tl.debug_barrier()  # likewise


@triton.jit(do_not_specialize=["count"])
def _logits(
    networks,
    inputs,
    answers,
    count,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    TOP: tl.constexpr,
    CLASSES: tl.constexpr,
    PARAMETERS: tl.constexpr,
    SOURCES: tl.constexpr,
    DESTINATIONS: tl.constexpr,
):
    """Logits of one network for one block of inputs."""
    m = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = _forward(
        inputs,
        row,
        row < count,
        networks + m * PARAMETERS,
        WIDTH,
        TOP,
        CLASSES,
        PARAMETERS,
        SOURCES,
        DESTINATIONS,
    )
    for k in tl.static_range(CLASSES):
        tl.store(answers + (m * count + row) * CLASSES + k, values[TOP + k], mask=row < count)
