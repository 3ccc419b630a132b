"""Grids of small networks on the GPU: one Triton launch trains them all through all steps, one program per network.

Each lane of a program takes one input at a time: the values of all units and the lane's share of all derivatives are in its registers,
weights come as single numbers from the cache. The derivatives are added up across lanes once per batch, so that a program is a single
warp and waits for nobody. Registers are what limits the size of a network: see ``MOST_PARAMETERS``.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

from __future__ import annotations

from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_PARAMETERS = 256  # of a network: a lane has as many registers, and code unrolled over more takes minutes to compile

_LANES = 32  # inputs at a time while training: one for each lane of a warp
_WARPS = 1
_INPUTS_PER_PROGRAM = 4096  # when only answers are wanted
_ANSWER_LANES = 128


def train_steps(
    networks: Tensor,
    velocity: Tensor,
    total: Tensor | None,
    sizes: tuple[int, ...],
    inputs: Tensor,
    patterns: Tensor,
    targets: Tensor,
    scales: Tensor,
    batch_size: int,
    learning_rate: float,
    momentum: float,
) -> Tensor:
    """See `softq.kernels.perceptrons.train_steps`."""
    losses = torch.empty(len(networks), -(-len(inputs) // batch_size), device=networks.device)
    if losses.numel() == 0:
        return losses
    # s · (t - 1/K), rounded only now: at large s the first digits of t and 1/K are the same
    pulls = ((targets.double() - 1.0 / sizes[-1]) * scales.double()[:, None, None]).float()
    _train[(len(networks),)](
        networks,
        velocity,
        networks if total is None else total,
        inputs.contiguous(),
        patterns.int().contiguous(),
        pulls,
        scales.float(),
        losses,
        len(inputs),
        losses.shape[1],
        batch_size,
        targets.shape[1],
        float(learning_rate),
        float(momentum),
        SIZES=sizes,
        STARTS=_starts(sizes),
        TOTAL=total is not None,
        BLOCK=_LANES * _WARPS,
        num_warps=_WARPS,
    )
    return losses


def logits(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor) -> Tensor:
    """See `softq.kernels.perceptrons.logits`."""
    answers = torch.empty(len(networks), len(inputs), sizes[-1], device=networks.device)
    _run_forward(networks, sizes, inputs, answers, answers, "logits")
    return answers


def decisions(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor) -> Tensor:
    """See `softq.kernels.perceptrons.decisions`."""
    decided = torch.empty(len(networks), len(inputs), dtype=torch.uint8, device=networks.device)
    _run_forward(networks, sizes, inputs, decided, decided, "decisions")
    return decided


def mean_earned(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor, earned: Tensor) -> Tensor:
    """See `softq.kernels.perceptrons.mean_earned`."""
    parts = triton.cdiv(len(inputs), _INPUTS_PER_PROGRAM)
    sums = torch.empty(len(networks), parts, dtype=torch.float64, device=networks.device)
    _run_forward(networks, sizes, inputs, earned.contiguous(), sums, "earned")
    return sums.sum(1) / len(inputs)


def _run_forward(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor, earned: Tensor, found: Tensor, want: str) -> None:
    if found.numel() == 0:
        return
    _answer[(len(networks), triton.cdiv(len(inputs), _INPUTS_PER_PROGRAM))](
        networks.contiguous(),
        inputs.contiguous(),
        earned,
        found,
        len(inputs),
        SIZES=sizes,
        STARTS=_starts(sizes),
        WANT=want,
        PART=_INPUTS_PER_PROGRAM,
        BLOCK=_ANSWER_LANES,
        num_warps=_ANSWER_LANES // 32,
    )


def _starts(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Where the parameters of each layer start in a row, and where the row ends."""
    starts = [0]
    for before, after in pairwise(sizes):
        starts.append(starts[-1] + before * after + after)
    return tuple(starts)


# --- kernels; a tuple holds one value [BLOCK] for each unit, or for each parameter ----------------------------------------


@triton.jit
def _zeros(COUNT: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros([BLOCK], dtype=tl.float32),)  # noqa: RUF005
    return found


@triton.jit
def _read(inputs, row, real, SIZE: tl.constexpr):  # noqa: N803
    """Values of the input units; 0 where there is no input."""
    found = ()
    for i in tl.static_range(SIZE):
        found = found + (tl.load(inputs + row * SIZE + i, mask=real, other=0.0),)  # noqa: RUF005
    return found


@triton.jit
def _forward(values, weights, BEFORE: tl.constexpr, AFTER: tl.constexpr, HIDDEN: tl.constexpr):  # noqa: N803
    """Compute y_j = b_j + Σ_i w_ji x_i, and its positive part (NaN stays) in a hidden layer."""
    found = ()
    for j in tl.static_range(AFTER):
        y = tl.load(weights + BEFORE * AFTER + j) + tl.load(weights + j * BEFORE) * values[0]
        for i in tl.static_range(1, BEFORE):
            y += tl.load(weights + j * BEFORE + i) * values[i]
        if HIDDEN:
            y = tl.where(y < 0.0, 0.0, y)
        found = found + (y,)  # noqa: RUF005
    return found


@triton.jit
def _backward(values, pull, weights, BEFORE: tl.constexpr, AFTER: tl.constexpr):  # noqa: N803
    """Compute the derivative Σ_j w_ji d_j of each x_i, 0 where x_i is not positive."""
    found = ()
    for i in tl.static_range(BEFORE):
        d = tl.load(weights + i) * pull[0]
        for j in tl.static_range(1, AFTER):
            d += tl.load(weights + j * BEFORE + i) * pull[j]
        found = found + (tl.where(values[i] > 0.0, d, 0.0),)  # noqa: RUF005
    return found


@triton.jit
def _gather(sums, values, pull, START: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr):  # noqa: N803
    """Add to the sums of a layer's derivatives: d_j x_i for weights, d_j for biases."""
    found = ()
    for j in tl.static_range(AFTER):
        for i in tl.static_range(BEFORE):
            found = found + (sums[START + j * BEFORE + i] + pull[j] * values[i],)  # noqa: RUF005
    for j in tl.static_range(AFTER):
        found = found + (sums[START + BEFORE * AFTER + j] + pull[j],)  # noqa: RUF005
    return found


@triton.jit
def _add_up(sums, lane, FIRST: tl.constexpr, PARAMETERS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Sums over the lanes, one parameter to a lane from ``FIRST`` on: what follows is then done for all of them at once."""
    found = tl.zeros([BLOCK], dtype=tl.float32)
    for i in tl.static_range(BLOCK):
        if FIRST + i < PARAMETERS:
            found = tl.where(lane == i, tl.sum(sums[FIRST + i], axis=0), found)
    return found


@triton.jit
def _expm1(x):
    """Compute e^x - 1 for x ≤ 0, to rounding of the result also near 0: e^x = 2^power · e^rest with |rest| ≤ log(2)/2."""
    x = tl.where(x < -87.0, -87.0, x)
    power = tl.floor(x * 1.4426950408889634 + 0.5)
    rest = (x - power * 0.693359375) + power * 2.1219444005469057e-4  # log 2 in two parts, the first short
    p = rest * (1.0 / 5040.0) + (1.0 / 720.0)
    p = p * rest + (1.0 / 120.0)
    p = p * rest + (1.0 / 24.0)
    p = p * rest + (1.0 / 6.0)
    p = p * rest + 0.5
    p = p * (rest * rest) + rest
    factor = ((power.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return factor * p + (factor - 1.0)


@triton.jit
def _pull(answers, asks, row, real, scale, CLASSES: tl.constexpr):  # noqa: N803
    """Derivatives s · (softmax(z / s) - t) of the logits, and H(t, softmax(z / s)); 0 where there is no input.

    With m_k = exp((z_k - max z) / s) - 1, softmax(z / s)_k - 1/K = (m_k - mean m) / (K + Σ m): small as it may be, it keeps its digits.
    """
    peak = answers[0]
    for k in tl.static_range(1, CLASSES):
        peak = tl.where(answers[k] > peak, answers[k], peak)
    cooling = 1.0 / scale
    mass = tl.zeros_like(peak)
    agreement = tl.zeros_like(peak)  # Σ (s (t_k - 1/K) + s / K) u_k
    parts = ()
    asked = ()
    for k in tl.static_range(CLASSES):
        u = (answers[k] - peak) * cooling
        ask = tl.load(asks + row * CLASSES + k, mask=real, other=0.0)
        agreement += (ask + scale / CLASSES) * u
        m = _expm1(u)
        mass += m
        parts = parts + (m,)  # noqa: RUF005
        asked = asked + (ask,)  # noqa: RUF005
    factor = scale / (mass + CLASSES)
    found = ()
    for k in tl.static_range(CLASSES):
        found = found + (tl.where(real, (parts[k] - mass / CLASSES) * factor - asked[k], 0.0),)  # noqa: RUF005
    return found, tl.where(real, tl.log(mass + CLASSES) - agreement * cooling, 0.0)


@triton.jit(do_not_specialize=["count", "steps", "batch_size", "patterns_count"])
def _train(
    networks,
    velocities,
    totals,
    inputs,
    patterns,
    pulls,
    scales,
    losses,
    count,
    steps,
    batch_size,
    patterns_count,
    learning_rate,
    momentum,
    SIZES: tl.constexpr,  # noqa: N803
    STARTS: tl.constexpr,  # noqa: N803
    TOTAL: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Train one network through all steps."""
    LAYERS: tl.constexpr = len(SIZES) - 1  # noqa: N806
    PARAMETERS: tl.constexpr = STARTS[LAYERS]  # noqa: N806
    m = tl.program_id(0).to(tl.int64)
    weights = networks + m * PARAMETERS
    asks = pulls + m * patterns_count * SIZES[LAYERS]
    scale = tl.load(scales + m)
    lane = tl.arange(0, BLOCK)
    for step in range(steps):
        begin = step * batch_size
        size = tl.minimum(count - begin, batch_size)
        sums = _zeros(PARAMETERS, BLOCK)
        loss = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, size, BLOCK):
            real = start + lane < size
            row = (begin + start + lane).to(tl.int64)
            kept = (_read(inputs, row, real, SIZES[0]),)
            for layer in tl.static_range(LAYERS):
                values = _forward(kept[layer], weights + STARTS[layer], SIZES[layer], SIZES[layer + 1], layer < LAYERS - 1)
                kept = kept + (values,)  # noqa: RUF005
            pattern = tl.load(patterns + row, mask=real, other=0)
            pull, entropy = _pull(kept[LAYERS], asks, pattern, real, scale, SIZES[LAYERS])
            loss += entropy
            fresh = ()
            for layer in tl.static_range(LAYERS - 1, -1, -1):
                fresh = _gather(sums, kept[layer], pull, STARTS[layer], SIZES[layer], SIZES[layer + 1]) + fresh
                if layer > 0:
                    pull = _backward(kept[layer], pull, weights + STARTS[layer], SIZES[layer], SIZES[layer + 1])
            sums = fresh
        share = 1.0 / size.to(tl.float32)
        tl.store(losses + m * steps + step, tl.sum(loss, axis=0) * share)
        tl.debug_barrier()  # all lanes have read the weights
        for first in tl.static_range(0, PARAMETERS, BLOCK):
            there = first + lane < PARAMETERS
            place = m * PARAMETERS + first + lane
            v = momentum * tl.load(velocities + place, mask=there) + _add_up(sums, lane, first, PARAMETERS, BLOCK) * share
            w = tl.load(networks + place, mask=there) - learning_rate * v
            tl.store(velocities + place, v, mask=there)
            tl.store(networks + place, w, mask=there)
            if TOTAL:
                tl.store(totals + place, tl.load(totals + place, mask=there) + w, mask=there)
        tl.debug_barrier()  # what one lane wrote, all lanes read


@triton.jit(do_not_specialize=["count"])
def _answer(
    networks,
    inputs,
    earned,
    found,
    count,
    SIZES: tl.constexpr,  # noqa: N803
    STARTS: tl.constexpr,  # noqa: N803
    WANT: tl.constexpr,  # noqa: N803
    PART: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Logits, decisions, or the sum of what they earn, of one network for one part of the inputs."""
    LAYERS: tl.constexpr = len(SIZES) - 1  # noqa: N806
    CLASSES: tl.constexpr = SIZES[LAYERS]  # noqa: N806
    m = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    weights = networks + m * STARTS[LAYERS]
    lane = tl.arange(0, BLOCK)
    summed = tl.zeros([BLOCK], dtype=tl.float64)
    for start in range(0, tl.minimum(count - part * PART, PART), BLOCK):
        row = part * PART + start + lane
        real = row < count
        values = _read(inputs, row, real, SIZES[0])
        for layer in tl.static_range(LAYERS):
            values = _forward(values, weights + STARTS[layer], SIZES[layer], SIZES[layer + 1], layer < LAYERS - 1)
        if WANT == "logits":
            for k in tl.static_range(CLASSES):
                tl.store(found + (m * count + row) * CLASSES + k, values[k], mask=real)
        else:
            best = values[0]
            chosen = tl.zeros([BLOCK], dtype=tl.int32)
            for k in tl.static_range(1, CLASSES):
                chosen = tl.where(values[k] > best, k, chosen)
                best = tl.where(values[k] > best, values[k], best)
            if WANT == "decisions":
                tl.store(found + m * count + row, chosen.to(tl.uint8), mask=real)
            else:
                summed += tl.load(earned + row * CLASSES + chosen, mask=real, other=0.0).to(tl.float64)
    if WANT == "earned":
        tl.store(found + m * tl.num_programs(1) + part, tl.sum(summed, axis=0))
