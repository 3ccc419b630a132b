"""Grids of small networks on the CPU: compiled, each thread with networks of its own, sixteen inputs side by side.

A network passes through all batches while it stays in the first cache, together with a block of the inputs. Layers are filled up to
whole groups of units with weights of 0: those units are 0, and so are their derivatives.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, run_batch
from softq.kernels.lanes import WIDTH, add_up, kernel, load
from softq.kernels.perceptron_layers import (
    AFTER,
    BLOCK,
    ROWS_OUT,
    STRIDE,
    UNITS,
    aligned,
    ask,
    backward,
    choose_class,
    forward,
    gather,
    pull,
    read_block,
)
from softq.kernels.words import Array

WIDEST = 128  # units of a layer: twice as fast as torch's matrix products there, as fast at 256

# A unit that no input reaches has a velocity that only shrinks; left to itself it would end among the subnormal numbers, which take
# the processor a hundred times as long as others. From here on it is 0 (or NaN).
_FLUSH = np.float32(1e-30)


class _Plan(NamedTuple):
    layers: Array  # int64 [layers, 6], see `perceptron_layers`
    places: Array  # int64 [P], where the parameters stand when filled up
    parameters: int  # filled up
    rows: int
    operations: int  # multiplications and additions for one input, forward


def _plan(sizes: tuple[int, ...]) -> _Plan:
    widths = [sizes[0] + sizes[0] % 2, *(-(-size // UNITS) * UNITS for size in sizes[1:])]
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
    pulls = torch.nn.functional.pad(pulls, (0, -sizes[-1] % UNITS)).flatten(1)  # [M, U · filled up K]
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
    values = aligned(rows * STRIDE)
    asked = aligned(layers[-1, AFTER] * STRIDE)
    sums = aligned(parameters * WIDTH)  # of derivatives, by lane
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
            for start in range(begin, end, BLOCK):
                size = min(end - start, BLOCK)
                length = read_block(inputs, start, size, values)
                ask(asks, patterns, start, size, layers[-1, AFTER], asked)
                for layer in range(len(layers)):
                    forward(layers[layer], layer < len(layers) - 1, weights, length, values)
                loss += pull(layers[-1, ROWS_OUT], classes, scales[m], size, length, asked, values)
                for layer in range(len(layers) - 1, -1, -1):
                    gather(layers[layer], length, values, sums)
                    if layer > 0:
                        backward(layers[layer], weights, length, values)
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
    values = aligned(rows * STRIDE)
    weights = np.zeros(parameters, dtype=np.float32)
    choice = aligned(BLOCK)
    top = layers[-1, ROWS_OUT] * STRIDE
    for m in range(first, networks.shape[0], stride):
        for p in range(len(places)):
            weights[places[p]] = networks[m, p]
        total = 0.0
        for start in range(0, count, BLOCK):
            size = min(count - start, BLOCK)
            length = read_block(inputs, start, size, values)
            for layer in range(len(layers)):
                forward(layers[layer], layer < len(layers) - 1, weights, length, values)
            if answers is not None:
                for i in range(size):
                    for k in range(classes):
                        answers[m, start + i, k] = values[top + k * STRIDE + i]
            else:
                choose_class(top, classes, length, values, choice)
            if decided is not None:
                for i in range(size):
                    decided[m, start + i] = np.uint8(choice[i])
            if earned is not None:
                for i in range(size):
                    total += earned[start + i, np.int64(choice[i])]
        if means is not None:
            means[m] = total / count
