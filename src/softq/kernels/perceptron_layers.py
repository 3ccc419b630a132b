"""Layers of a small network on a block of inputs, forward and back: the inner loops of `softq.kernels.perceptrons_cpu`.

The values of a block are rows of one array, one row for each unit, inputs first and classes last; sixteen inputs are side by side in a
value of `softq.kernels.lanes`. The way back overwrites the values of a layer with their derivatives as soon as its weights have theirs.
A layer is a row of the plan: how many units it reads and writes, filled up to whole groups, and where its weights and rows stand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softq.kernels.lanes import WIDTH, add_up, expm1, fill, kernel, larger, load, log, spread, store, where_greater

BLOCK = 256  # inputs that pass through a network together: all their values stay in the first cache
STRIDE = BLOCK + WIDTH  # between rows; a power of two would put all rows into the same few lines of the cache
UNITS = 4  # of a layer that are computed together, for two times sixteen inputs: eight sums fill the pipelines

BEFORE, AFTER, WEIGHTS, BIASES, ROWS_IN, ROWS_OUT = range(6)  # columns of a plan


@kernel
def choose_class(top: int, classes: int, length: int, values: Any, choice: Any) -> None:
    """Class of the largest logit, the first of equals."""
    for at in range(0, length, WIDTH):
        best = load(values, top + at)
        chosen = fill(np.float32(0.0))
        for k in range(1, classes):
            value = load(values, top + k * STRIDE + at)
            chosen = where_greater(value, best, fill(np.float32(k)), chosen)
            best = larger(best, value)
        store(choice, at, chosen)


@kernel
def aligned(size: int) -> Any:
    """Zeros that start at a line of the cache, so that sixteen numbers never lie in two."""
    room = np.zeros(size + WIDTH, dtype=np.float32)
    skip = (-(room.ctypes.data // 4)) % WIDTH
    return room[skip : skip + size]


@kernel
def read_block(inputs: Any, start: int, size: int, values: Any) -> int:
    """Copy a block of inputs ``[D, N]`` to the first rows, filled up with zeros; returns its length as filled up."""
    length = (size + 2 * WIDTH - 1) // (2 * WIDTH) * (2 * WIDTH)
    for d in range(inputs.shape[0]):
        for i in range(np.uint64(size)):
            values[np.uint64(d * STRIDE) + i] = inputs[np.uint64(d), np.uint64(start) + i]
        for i in range(np.uint64(size), np.uint64(length)):
            values[np.uint64(d * STRIDE) + i] = np.float32(0.0)
    return length


@kernel
def ask(pulls: Any, patterns: Any, start: int, size: int, classes: int, asked: Any) -> None:
    """What the targets of a block ask for, s · (t - 1/K), as rows; ``classes`` as filled up."""
    for i in range(np.uint64(size)):
        row = np.uint64(patterns[np.uint64(start) + i]) * np.uint64(classes)
        for k in range(np.uint64(0), np.uint64(classes), np.uint64(UNITS)):
            place = k * np.uint64(STRIDE) + i
            for unit in range(np.uint64(UNITS)):
                asked[place + unit * np.uint64(STRIDE)] = pulls[row + k + unit]


@kernel
def forward(layer: Any, rectify: bool, weights: Any, length: int, values: Any) -> None:
    """y_j = b_j + Σ_i w_ji x_i, and its positive part where the layer is hidden."""
    before, after = layer[BEFORE], layer[AFTER]
    floor = fill(np.float32(0.0)) if rectify else fill(np.float32(-np.inf))
    for j in range(0, after, UNITS):
        bias = layer[BIASES] + j
        row = layer[WEIGHTS] + j * before
        out = (layer[ROWS_OUT] + j) * STRIDE
        for at in range(0, length, 2 * WIDTH):
            a0 = b0 = spread(weights, bias)
            a1 = b1 = spread(weights, bias + 1)
            a2 = b2 = spread(weights, bias + 2)
            a3 = b3 = spread(weights, bias + 3)
            source = layer[ROWS_IN] * STRIDE + at
            for i in range(before):
                a, b = load(values, source + i * STRIDE), load(values, source + i * STRIDE + WIDTH)
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
            store(values, out + STRIDE + at, larger(a1, floor))
            store(values, out + STRIDE + at + WIDTH, larger(b1, floor))
            store(values, out + 2 * STRIDE + at, larger(a2, floor))
            store(values, out + 2 * STRIDE + at + WIDTH, larger(b2, floor))
            store(values, out + 3 * STRIDE + at, larger(a3, floor))
            store(values, out + 3 * STRIDE + at + WIDTH, larger(b3, floor))


@kernel
def pull(row: int, classes: int, scale: float, size: int, length: int, asked: Any, values: Any) -> Any:
    """Overwrite the logits by the derivatives s · (softmax(z / s) - t); returns the sum of H(t, softmax(z / s)).

    With m_k = exp((z_k - max z) / s) - 1, softmax(z / s)_k - 1/K = (m_k - mean m) / (K + Σ m): small as it may be, it keeps its digits.
    """
    share = np.float32(1.0) / np.float32(classes)
    cooling = np.float32(1.0) / scale
    total = fill(np.float32(0.0))
    for at in range(0, length, WIDTH):
        peak = load(values, row * STRIDE + at)
        for k in range(1, classes):
            peak = larger(peak, load(values, (row + k) * STRIDE + at))
        mass = fill(np.float32(0.0))
        level = fill(np.float32(0.0))  # Σ u_k
        agreement = fill(np.float32(0.0))  # Σ s (t_k - 1/K) u_k
        for k in range(classes):
            u = (load(values, (row + k) * STRIDE + at) - peak) * cooling
            level = level + u
            agreement = agreement + load(asked, k * STRIDE + at) * u
            m = expm1(u)
            mass = mass + m
            store(values, (row + k) * STRIDE + at, m)
        mean = mass * share
        mass = mass + np.float32(classes)
        factor = fill(scale) / mass
        for k in range(classes):
            m = load(values, (row + k) * STRIDE + at)
            store(values, (row + k) * STRIDE + at, (m - mean) * factor - load(asked, k * STRIDE + at))
        loss = log(mass) - (agreement * cooling + level * share)
        if at + WIDTH > size:  # what fills up the block counts for nothing
            store(asked, at, loss)
            for i in range(max(size, at), at + WIDTH):
                asked[i] = np.float32(0.0)
                for k in range(classes):
                    values[(row + k) * STRIDE + i] = np.float32(0.0)
            loss = load(asked, at)
        total = total + loss
    return add_up(total)


@kernel
def gather(layer: Any, length: int, values: Any, sums: Any) -> None:
    """Add to the sums of derivatives: Σ d_j x_i for weights, Σ d_j for biases."""
    before, after = layer[BEFORE], layer[AFTER]
    for j in range(0, after, UNITS):
        source = (layer[ROWS_OUT] + j) * STRIDE
        place = (layer[BIASES] + j) * WIDTH
        s0, s1, s2, s3 = load(sums, place), load(sums, place + WIDTH), load(sums, place + 2 * WIDTH), load(sums, place + 3 * WIDTH)
        for at in range(source, source + length, WIDTH):
            s0 = s0 + load(values, at)
            s1 = s1 + load(values, at + STRIDE)
            s2 = s2 + load(values, at + 2 * STRIDE)
            s3 = s3 + load(values, at + 3 * STRIDE)
        store(sums, place, s0)
        store(sums, place + WIDTH, s1)
        store(sums, place + 2 * WIDTH, s2)
        store(sums, place + 3 * WIDTH, s3)
        for i in range(0, before, 2):
            p0 = (layer[WEIGHTS] + j * before + i) * WIDTH
            p1, p2, p3 = p0 + before * WIDTH, p0 + 2 * before * WIDTH, p0 + 3 * before * WIDTH
            a0, b0, a1, b1 = load(sums, p0), load(sums, p0 + WIDTH), load(sums, p1), load(sums, p1 + WIDTH)
            a2, b2, a3, b3 = load(sums, p2), load(sums, p2 + WIDTH), load(sums, p3), load(sums, p3 + WIDTH)
            other = (layer[ROWS_IN] + i) * STRIDE
            for at in range(0, length, WIDTH):
                a, b = load(values, other + at), load(values, other + STRIDE + at)
                d = load(values, source + at)
                a0, b0 = a0 + d * a, b0 + d * b
                d = load(values, source + STRIDE + at)
                a1, b1 = a1 + d * a, b1 + d * b
                d = load(values, source + 2 * STRIDE + at)
                a2, b2 = a2 + d * a, b2 + d * b
                d = load(values, source + 3 * STRIDE + at)
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
def backward(layer: Any, weights: Any, length: int, values: Any) -> None:
    """Overwrite what the layer read, x_i, by its derivative Σ_j w_ji d_j where x_i > 0, else by 0."""
    before, after = layer[BEFORE], layer[AFTER]
    zero = fill(np.float32(0.0))
    for i in range(0, before, UNITS):
        out = (layer[ROWS_IN] + i) * STRIDE
        for at in range(0, length, 2 * WIDTH):
            a0 = b0 = a1 = b1 = a2 = b2 = a3 = b3 = zero
            source = layer[ROWS_OUT] * STRIDE + at
            column = layer[WEIGHTS] + i
            for j in range(after):
                a, b = load(values, source + j * STRIDE), load(values, source + j * STRIDE + WIDTH)
                w = spread(weights, column + j * before)
                a0, b0 = a0 + w * a, b0 + w * b
                w = spread(weights, column + j * before + 1)
                a1, b1 = a1 + w * a, b1 + w * b
                w = spread(weights, column + j * before + 2)
                a2, b2 = a2 + w * a, b2 + w * b
                w = spread(weights, column + j * before + 3)
                a3, b3 = a3 + w * a, b3 + w * b
            _keep_positive(values, out + at, a0, b0)
            _keep_positive(values, out + STRIDE + at, a1, b1)
            _keep_positive(values, out + 2 * STRIDE + at, a2, b2)
            _keep_positive(values, out + 3 * STRIDE + at, a3, b3)


@kernel
def _keep_positive(values: Any, at: int, a: Any, b: Any) -> None:
    zero = fill(np.float32(0.0))
    store(values, at, where_greater(load(values, at), zero, a, zero))
    store(values, at + WIDTH, where_greater(load(values, at + WIDTH), zero, b, zero))
