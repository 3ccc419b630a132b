"""Grids of small networks on the CPU: compiled, each thread with networks of its own, sixteen inputs side by side.

A batch passes in blocks that stay in the first cache together with the network. The values of a block are rows, one for each unit,
inputs first and classes last, and the way back overwrites the values of a layer with their derivatives as soon as its weights
have theirs. Layers are filled up to whole groups of units with weights of 0: those units are 0, and so are their derivatives.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, run_batch
from softq.kernels.lanes import WIDTH, add_up, expm1, fill, kernel, larger, load, log, spread, store, where_greater
from softq.kernels.words import Array

WIDEST = 128  # units of a layer: twice as fast as torch's matrix products there, as fast at 256

_BLOCK = 256  # inputs that pass through a network together
_STRIDE = _BLOCK + WIDTH  # between rows; a power of two would put all rows into the same few lines of the cache
_UNITS = 4  # of a layer that are computed together, for two times sixteen inputs: eight sums fill the pipelines

# A unit that no input reaches has a velocity that only shrinks; left to itself it would end among the subnormal numbers, which take
# the processor a hundred times as long as others. From here on it is 0 (or NaN).
_FLUSH = np.float32(1e-30)

# Columns of a plan: what each layer reads, writes and weighs with, as filled up.
_BEFORE, _AFTER, _WEIGHTS, _BIASES, _ROWS_IN, _ROWS_OUT = range(6)


class _Plan(NamedTuple):
    layers: Array  # int64 [layers, 6]
    places: Array  # int64 [P], where the parameters stand when filled up
    parameters: int  # filled up
    rows: int
    operations: int  # multiplications and additions for one input, forward


def _plan(sizes: tuple[int, ...]) -> _Plan:
    widths = [sizes[0] + sizes[0] % 2, *(-(-size // _UNITS) * _UNITS for size in sizes[1:])]
    layers, places = [], []
    parameters, row = 0, 0
    for (before, after), (real_before, real_after) in zip(pairwise(widths), pairwise(sizes), strict=True):
        biases = parameters + after * before
        layers.append([before, after, parameters, biases, row, row + before])
        weights = parameters + np.arange(real_after)[:, None] * before + np.arange(real_before)
        places += [weights.ravel(), biases + np.arange(real_after)]
        parameters = biases + after
        row += before
    operations = sum(2 * before * after for before, after in pairwise(widths))
    return _Plan(np.array(layers, dtype=np.int64), np.concatenate(places), parameters, row + widths[-1], operations)


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
    plan = _plan(sizes)
    losses = torch.empty(len(networks), -(-len(inputs) // batch_size))
    # s · (t - 1/K), rounded only now: at large s the first digits of t and 1/K are the same
    pulls = ((targets.double() - 1.0 / sizes[-1]) * scales.double()[:, None, None]).float()
    pulls = torch.nn.functional.pad(pulls, (0, -sizes[-1] % _UNITS)).flatten(1)  # [M, U · filled up K]
    run_batch(
        _train,
        len(networks),
        3 * plan.operations * len(inputs) * len(networks),
        plan.layers,
        plan.places,
        plan.parameters,
        plan.rows,
        sizes[-1],
        as_array(inputs.T),
        as_array(patterns.int()),
        as_array(pulls),
        as_array(scales.float()),
        batch_size,
        np.float32(learning_rate),
        np.float32(momentum),
        *(as_array(x) for x in (networks, velocity, networks[:0] if total is None else total, losses)),
    )
    return losses


def logits(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor) -> Tensor:
    """See `softq.kernels.perceptrons.logits`."""
    answers = torch.empty(len(networks), len(inputs), sizes[-1])
    _run_forward(networks, sizes, inputs, as_array(answers), None, None, None)
    return answers


def decisions(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor) -> Tensor:
    """See `softq.kernels.perceptrons.decisions`."""
    decided = torch.empty(len(networks), len(inputs), dtype=torch.uint8)
    _run_forward(networks, sizes, inputs, None, as_array(decided), None, None)
    return decided


def mean_earned(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor, earned: Tensor) -> Tensor:
    """See `softq.kernels.perceptrons.mean_earned`."""
    means = torch.empty(len(networks), dtype=torch.float64)
    _run_forward(networks, sizes, inputs, None, None, as_array(earned), as_array(means))
    return means


def _run_forward(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor, *outputs: Array | None) -> None:
    plan = _plan(sizes)
    operations = plan.operations * len(inputs) * len(networks)
    arrays = as_array(inputs.T), as_array(networks)
    run_batch(_answer, len(networks), operations, plan.layers, plan.places, plan.parameters, plan.rows, sizes[-1], *arrays, *outputs)


@kernel
def _train(
    first: int,
    stride: int,
    layers: Any,
    places: Any,
    parameters: int,
    rows: int,
    classes: int,
    inputs: Any,
    patterns: Any,
    pulls: Any,
    scales: Any,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    networks: Any,
    velocities: Any,
    totals: Any,
    losses: Any,
) -> None:
    """Train every ``stride``-th network from ``first`` on, one after another through all steps."""
    count = inputs.shape[1]
    values = _aligned(rows * _STRIDE)
    asked = _aligned(layers[-1, _AFTER] * _STRIDE)
    sums = _aligned(parameters * WIDTH)  # of derivatives, by lane
    weights = np.empty(parameters, dtype=np.float32)
    speed = np.empty(parameters, dtype=np.float32)
    summed = np.empty(parameters, dtype=np.float32)
    for m in range(first, networks.shape[0], stride):
        weights[:] = speed[:] = summed[:] = np.float32(0.0)  # what fills up the layers, after a network that diverged
        for p in range(len(places)):
            weights[places[p]] = networks[m, p]
            speed[places[p]] = velocities[m, p]
        if len(totals):
            for p in range(len(places)):
                summed[places[p]] = totals[m, p]
        asks = pulls[m]
        for step in range(losses.shape[1]):
            begin = step * batch_size
            end = min(begin + batch_size, count)
            sums[:] = np.float32(0.0)
            loss = np.float32(0.0)
            for start in range(begin, end, _BLOCK):
                size = min(end - start, _BLOCK)
                length = _read(inputs, start, size, values)
                _ask(asks, patterns, start, size, layers[-1, _AFTER], asked)
                for layer in range(len(layers)):
                    _forward(layers[layer], layer < len(layers) - 1, weights, length, values)
                loss += _pull(layers[-1, _ROWS_OUT], classes, scales[m], size, length, asked, values)
                for layer in range(len(layers) - 1, -1, -1):
                    _gather(layers[layer], length, values, sums)
                    if layer > 0:
                        _backward(layers[layer], weights, length, values)
            share = np.float32(1.0) / np.float32(end - begin)
            losses[m, step] = loss * share
            for p in range(parameters):
                pushed = momentum * speed[p] + add_up(load(sums, p * WIDTH)) * share
                speed[p] = pushed if abs(pushed) >= _FLUSH else pushed * np.float32(0.0)
                weights[p] -= learning_rate * speed[p]
                summed[p] += weights[p]
        for p in range(len(places)):
            networks[m, p] = weights[places[p]]
            velocities[m, p] = speed[places[p]]
        if len(totals):
            for p in range(len(places)):
                totals[m, p] = summed[places[p]]


@kernel
def _answer(
    first: int,
    stride: int,
    layers: Any,
    places: Any,
    parameters: int,
    rows: int,
    classes: int,
    inputs: Any,
    networks: Any,
    answers: Any,
    decided: Any,
    earned: Any,
    means: Any,
) -> None:
    """Logits to ``answers``, or decisions to ``decided``, or the mean of what they earn to ``means``; what is not wanted is None."""
    count = inputs.shape[1]
    values = _aligned(rows * _STRIDE)
    weights = np.zeros(parameters, dtype=np.float32)
    choice = _aligned(_BLOCK)
    top = layers[-1, _ROWS_OUT] * _STRIDE
    for m in range(first, networks.shape[0], stride):
        for p in range(len(places)):
            weights[places[p]] = networks[m, p]
        total = 0.0
        for start in range(0, count, _BLOCK):
            size = min(count - start, _BLOCK)
            length = _read(inputs, start, size, values)
            for layer in range(len(layers)):
                _forward(layers[layer], layer < len(layers) - 1, weights, length, values)
            if answers is not None:
                for i in range(size):
                    for k in range(classes):
                        answers[m, start + i, k] = values[top + k * _STRIDE + i]
            else:
                _choose(top, classes, length, values, choice)
            if decided is not None:
                for i in range(size):
                    decided[m, start + i] = np.uint8(choice[i])
            if earned is not None:
                for i in range(size):
                    total += earned[start + i, np.int64(choice[i])]
        if means is not None:
            means[m] = total / count


@kernel
def _choose(top: int, classes: int, length: int, values: Any, choice: Any) -> None:
    """Class of the largest logit, the first of equals."""
    for at in range(0, length, WIDTH):
        best = load(values, top + at)
        chosen = fill(np.float32(0.0))
        for k in range(1, classes):
            value = load(values, top + k * _STRIDE + at)
            chosen = where_greater(value, best, fill(np.float32(k)), chosen)
            best = larger(best, value)
        store(choice, at, chosen)


@kernel
def _aligned(size: int) -> Any:
    """Zeros that start at a line of the cache, so that sixteen numbers never lie in two."""
    room = np.zeros(size + WIDTH, dtype=np.float32)
    skip = (-(room.ctypes.data // 4)) % WIDTH
    return room[skip : skip + size]


@kernel
def _read(inputs: Any, start: int, size: int, values: Any) -> int:
    """Copy a block of inputs ``[D, N]`` to the first rows, filled up with zeros; returns its length as filled up."""
    length = (size + 2 * WIDTH - 1) // (2 * WIDTH) * (2 * WIDTH)
    for d in range(inputs.shape[0]):
        for i in range(np.uint64(size)):
            values[np.uint64(d * _STRIDE) + i] = inputs[np.uint64(d), np.uint64(start) + i]
        for i in range(np.uint64(size), np.uint64(length)):
            values[np.uint64(d * _STRIDE) + i] = np.float32(0.0)
    return length


@kernel
def _ask(pulls: Any, patterns: Any, start: int, size: int, classes: int, asked: Any) -> None:
    """What the targets of a block ask for, s · (t - 1/K), as rows; ``classes`` as filled up."""
    for i in range(np.uint64(size)):
        row = np.uint64(patterns[np.uint64(start) + i]) * np.uint64(classes)
        for k in range(np.uint64(0), np.uint64(classes), np.uint64(_UNITS)):
            place = k * np.uint64(_STRIDE) + i
            for unit in range(np.uint64(_UNITS)):
                asked[place + unit * np.uint64(_STRIDE)] = pulls[row + k + unit]


@kernel
def _forward(layer: Any, rectify: bool, weights: Any, length: int, values: Any) -> None:
    """y_j = b_j + Σ_i w_ji x_i, and its positive part where the layer is hidden."""
    before, after = layer[_BEFORE], layer[_AFTER]
    floor = fill(np.float32(0.0)) if rectify else fill(np.float32(-np.inf))
    for j in range(0, after, _UNITS):
        bias = layer[_BIASES] + j
        row = layer[_WEIGHTS] + j * before
        out = (layer[_ROWS_OUT] + j) * _STRIDE
        for at in range(0, length, 2 * WIDTH):
            a0 = b0 = spread(weights, bias)
            a1 = b1 = spread(weights, bias + 1)
            a2 = b2 = spread(weights, bias + 2)
            a3 = b3 = spread(weights, bias + 3)
            source = layer[_ROWS_IN] * _STRIDE + at
            for i in range(before):
                a, b = load(values, source + i * _STRIDE), load(values, source + i * _STRIDE + WIDTH)
                w = spread(weights, row + i)
                a0, b0 = a0 + w * a, b0 + w * b
                w = spread(weights, row + before + i)
                a1, b1 = a1 + w * a, b1 + w * b
                w = spread(weights, row + 2 * before + i)
                a2, b2 = a2 + w * a, b2 + w * b
                w = spread(weights, row + 3 * before + i)
                a3, b3 = a3 + w * a, b3 + w * b
            store(values, out + at, larger(a0, floor))
            store(values, out + at + WIDTH, larger(b0, floor))
            store(values, out + _STRIDE + at, larger(a1, floor))
            store(values, out + _STRIDE + at + WIDTH, larger(b1, floor))
            store(values, out + 2 * _STRIDE + at, larger(a2, floor))
            store(values, out + 2 * _STRIDE + at + WIDTH, larger(b2, floor))
            store(values, out + 3 * _STRIDE + at, larger(a3, floor))
            store(values, out + 3 * _STRIDE + at + WIDTH, larger(b3, floor))


@kernel
def _pull(row: int, classes: int, scale: float, size: int, length: int, asked: Any, values: Any) -> Any:
    """Overwrite the logits by the derivatives s · (softmax(z / s) - t); returns the sum of H(t, softmax(z / s)).

    With m_k = exp((z_k - max z) / s) - 1, softmax(z / s)_k - 1/K = (m_k - mean m) / (K + Σ m): small as it may be, it keeps its digits.
    """
    share = np.float32(1.0) / np.float32(classes)
    cooling = np.float32(1.0) / scale
    total = fill(np.float32(0.0))
    for at in range(0, length, WIDTH):
        peak = load(values, row * _STRIDE + at)
        for k in range(1, classes):
            peak = larger(peak, load(values, (row + k) * _STRIDE + at))
        mass = fill(np.float32(0.0))
        level = fill(np.float32(0.0))  # Σ u_k
        agreement = fill(np.float32(0.0))  # Σ s (t_k - 1/K) u_k
        for k in range(classes):
            u = (load(values, (row + k) * _STRIDE + at) - peak) * cooling
            level = level + u
            agreement = agreement + load(asked, k * _STRIDE + at) * u
            m = expm1(u)
            mass = mass + m
            store(values, (row + k) * _STRIDE + at, m)
        mean = mass * share
        mass = mass + np.float32(classes)
        factor = fill(scale) / mass
        for k in range(classes):
            m = load(values, (row + k) * _STRIDE + at)
            store(values, (row + k) * _STRIDE + at, (m - mean) * factor - load(asked, k * _STRIDE + at))
        loss = log(mass) - (agreement * cooling + level * share)
        if at + WIDTH > size:  # what fills up the block counts for nothing
            store(asked, at, loss)
            for i in range(max(size, at), at + WIDTH):
                asked[i] = np.float32(0.0)
                for k in range(classes):
                    values[(row + k) * _STRIDE + i] = np.float32(0.0)
            loss = load(asked, at)
        total = total + loss
    return add_up(total)


@kernel
def _gather(layer: Any, length: int, values: Any, sums: Any) -> None:
    """Add to the sums of derivatives: Σ d_j x_i for weights, Σ d_j for biases."""
    before, after = layer[_BEFORE], layer[_AFTER]
    for j in range(0, after, _UNITS):
        source = (layer[_ROWS_OUT] + j) * _STRIDE
        place = (layer[_BIASES] + j) * WIDTH
        s0, s1, s2, s3 = load(sums, place), load(sums, place + WIDTH), load(sums, place + 2 * WIDTH), load(sums, place + 3 * WIDTH)
        for at in range(source, source + length, WIDTH):
            s0 = s0 + load(values, at)
            s1 = s1 + load(values, at + _STRIDE)
            s2 = s2 + load(values, at + 2 * _STRIDE)
            s3 = s3 + load(values, at + 3 * _STRIDE)
        store(sums, place, s0)
        store(sums, place + WIDTH, s1)
        store(sums, place + 2 * WIDTH, s2)
        store(sums, place + 3 * WIDTH, s3)
        for i in range(0, before, 2):
            p0 = (layer[_WEIGHTS] + j * before + i) * WIDTH
            p1, p2, p3 = p0 + before * WIDTH, p0 + 2 * before * WIDTH, p0 + 3 * before * WIDTH
            a0, b0, a1, b1 = load(sums, p0), load(sums, p0 + WIDTH), load(sums, p1), load(sums, p1 + WIDTH)
            a2, b2, a3, b3 = load(sums, p2), load(sums, p2 + WIDTH), load(sums, p3), load(sums, p3 + WIDTH)
            other = (layer[_ROWS_IN] + i) * _STRIDE
            for at in range(0, length, WIDTH):
                a, b = load(values, other + at), load(values, other + _STRIDE + at)
                d = load(values, source + at)
                a0, b0 = a0 + d * a, b0 + d * b
                d = load(values, source + _STRIDE + at)
                a1, b1 = a1 + d * a, b1 + d * b
                d = load(values, source + 2 * _STRIDE + at)
                a2, b2 = a2 + d * a, b2 + d * b
                d = load(values, source + 3 * _STRIDE + at)
                a3, b3 = a3 + d * a, b3 + d * b
            store(sums, p0, a0)
            store(sums, p0 + WIDTH, b0)
            store(sums, p1, a1)
            store(sums, p1 + WIDTH, b1)
            store(sums, p2, a2)
            store(sums, p2 + WIDTH, b2)
            store(sums, p3, a3)
            store(sums, p3 + WIDTH, b3)


@kernel
def _backward(layer: Any, weights: Any, length: int, values: Any) -> None:
    """Overwrite what the layer read, x_i, by its derivative Σ_j w_ji d_j where x_i > 0, else by 0."""
    before, after = layer[_BEFORE], layer[_AFTER]
    zero = fill(np.float32(0.0))
    for i in range(0, before, _UNITS):
        out = (layer[_ROWS_IN] + i) * _STRIDE
        for at in range(0, length, 2 * WIDTH):
            a0 = b0 = a1 = b1 = a2 = b2 = a3 = b3 = zero
            source = layer[_ROWS_OUT] * _STRIDE + at
            column = layer[_WEIGHTS] + i
            for j in range(after):
                a, b = load(values, source + j * _STRIDE), load(values, source + j * _STRIDE + WIDTH)
                w = spread(weights, column + j * before)
                a0, b0 = a0 + w * a, b0 + w * b
                w = spread(weights, column + j * before + 1)
                a1, b1 = a1 + w * a, b1 + w * b
                w = spread(weights, column + j * before + 2)
                a2, b2 = a2 + w * a, b2 + w * b
                w = spread(weights, column + j * before + 3)
                a3, b3 = a3 + w * a, b3 + w * b
            _keep_positive(values, out + at, a0, b0)
            _keep_positive(values, out + _STRIDE + at, a1, b1)
            _keep_positive(values, out + 2 * _STRIDE + at, a2, b2)
            _keep_positive(values, out + 3 * _STRIDE + at, a3, b3)


@kernel
def _keep_positive(values: Any, at: int, a: Any, b: Any) -> None:
    zero = fill(np.float32(0.0))
    store(values, at, where_greater(load(values, at), zero, a, zero))
    store(values, at + WIDTH, where_greater(load(values, at + WIDTH), zero, b, zero))
