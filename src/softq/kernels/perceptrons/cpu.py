"""Grids of small networks on the CPU: compiled, each thread with networks of its own.

A network passes through all batches while it stays in the first cache, together with a block of
inputs. The values of a block are one row for each unit (see `reference.connections`), so that
innermost loops run over inputs that lie side by side, and vectorise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.perceptrons.reference import centre, connections

# Units of a layer: with as many, a grid takes as long as by matrix products (with 8, a seventh of
# that), a single network half as long.
WIDEST = 128

_BLOCK = 256  # inputs that pass through a network together

# The velocity of a unit that no input reaches only shrinks, down to subnormal numbers, which take
# the processor a hundred times as long as others. Below this it becomes 0 (or stays NaN).
_FLUSH = 1e-30


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
    _run(
        _train,
        3 * len(inputs),
        networks,
        sizes,
        as_array(inputs),
        as_array(patterns.int()),
        as_array(centre(targets, scales)),
        as_array(scales.double()),
        as_array(velocity),
        as_array(total),
        as_array(losses),
        batch_size,
        learning_rate,
        momentum,
        weight_decay,
    )


def logits(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor) -> Tensor:
    """What every network answers to every input, ``[M, N, K]``."""
    answers = torch.empty(len(networks), len(inputs), sizes[-1])
    _run(_logits, len(inputs), networks, sizes, as_array(inputs), as_array(answers))
    return answers


def _run(kernel: Any, passes: int, networks: Tensor, sizes: tuple[int, ...], *args: Any) -> None:
    """Split over networks; kernels are told which units a parameter connects, and the first class.

    ``passes`` is how many times the networks' parameters are gone through.
    """
    ends = np.array(connections(sizes)).T.copy()
    run_batch(
        kernel,
        len(networks),
        2 * networks.numel() * passes,
        *ends,
        sum(sizes[:-1]),
        as_array(networks),
        *args,
    )


@jit
def _train(
    first: int,
    stride: int,
    sources: Any,
    destinations: Any,
    top: int,
    networks: Any,
    inputs: Any,
    patterns: Any,
    centred: Any,
    scales: Any,
    velocities: Any,
    totals: Any,
    losses: Any,
    batch_size: int,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """Train every ``stride``-th network from ``first`` on, one after another through all steps."""
    values = np.ones((max(sources) + 1, _BLOCK), np.float32)
    slopes = np.zeros_like(values)  # derivatives of the loss with respect to the values
    gradient = np.empty(len(sources), np.float32)
    for m in range(first, len(networks), stride):
        for step in range(losses.shape[1]):
            begin = step * batch_size
            end = min(begin + batch_size, len(inputs))
            gradient[:] = 0.0
            loss = 0.0
            for start in range(begin, end, _BLOCK):
                stop = min(start + _BLOCK, end)
                target = centred[m][patterns[start:stop]].T.copy()  # [K, inputs]
                _forward(networks[m], sources, destinations, top, inputs[start:stop], values)
                slopes[:] = 0.0
                loss += _loss(values[top:-1], target, scales[m], slopes[top:-1])
                _backward(
                    networks[m], sources, destinations, top, stop - start, values, slopes, gradient
                )
            losses[m, step] = loss / (end - begin)
            for p in range(len(gradient)):
                v = momentum * velocities[m, p] + gradient[p] / (end - begin)
                if sources[p] < len(values) - 1:  # a weight, not a bias
                    v += weight_decay * networks[m, p]
                velocities[m, p] = v if abs(v) >= _FLUSH else v * 0.0
                networks[m, p] -= learning_rate * velocities[m, p]
                totals[m, p] += networks[m, p]


@jit
def _logits(
    first: int,
    stride: int,
    sources: Any,
    destinations: Any,
    top: int,
    networks: Any,
    inputs: Any,
    answers: Any,
) -> None:
    values = np.ones((max(sources) + 1, _BLOCK), np.float32)
    for m in range(first, len(networks), stride):
        for start in range(0, len(inputs), _BLOCK):
            x = inputs[start : start + _BLOCK]
            _forward(networks[m], sources, destinations, top, x, values)
            answers[m, start : start + _BLOCK] = values[top:-1, : len(x)].T


@jit
def _forward(
    weights: Any, sources: Any, destinations: Any, top: int, inputs: Any, values: Any
) -> None:
    """y_j = b_j + Σ_i w_ji x_i, and its positive part (NaN stays) where the unit is hidden."""
    size, width = inputs.shape
    values[:width, :size] = inputs.T
    values[width:-1] = 0.0
    for p in range(len(weights)):
        w, x, y = weights[p], values[sources[p]], values[destinations[p]]
        for n in range(size):
            y[n] += w * x[n]
        if destinations[p] < top and sources[p] == len(values) - 1:  # the bias comes last
            for n in range(size):
                y[n] = 0.0 if y[n] < 0.0 else y[n]


@jit
def _backward(
    weights: Any,
    sources: Any,
    destinations: Any,
    top: int,
    size: int,
    values: Any,
    slopes: Any,
    gradient: Any,
) -> None:
    """Add Σ_n d_j x_i to the gradient of each w_ji; d_i = Σ_j w_ji d_j where x_i > 0, else 0."""
    for p in range(len(weights) - 1, -1, -1):
        w, x, y = weights[p], values[sources[p]], values[destinations[p]]
        below, d = slopes[sources[p]], slopes[destinations[p]]
        if destinations[p] < top and sources[p] == len(values) - 1:  # now d is complete
            for n in range(size):
                d[n] = d[n] if y[n] > 0.0 else 0.0
        total = np.float32(0.0)
        for n in range(size):
            total += d[n] * x[n]
            below[n] += w * d[n]
        gradient[p] += total


@jit
def _loss(z: Any, centred: Any, scale: float, slopes: Any) -> Any:
    """Σ_n H(t, softmax(z / s)); the slopes of the logits become s · (softmax(z / s) - t).

    With u_k = (z_k - max z) / s and m_k = exp(u_k) - 1, softmax(z / s)_k - 1/K is
    (m_k - mean m) / (K + Σ m): however small, it keeps its digits.
    """
    classes, size = centred.shape
    inverse, share = 1.0 / scale, 1.0 / classes
    peak, total = z[0].copy(), np.zeros(size)
    for k in range(1, classes):
        peak = np.maximum(peak, z[k])
    loss = 0.0
    for k in range(classes):
        for n in range(size):
            u = (z[k, n] - peak[n]) * inverse
            loss -= (centred[k, n] * inverse + share) * u
            slopes[k, n] = m = _expm1(u)
            total[n] += m
    factor = scale / (classes + total)
    for k in range(classes):
        for n in range(size):
            slopes[k, n] = (slopes[k, n] - total[n] * share) * factor[n] - centred[k, n]
    return loss + np.log(classes + total).sum()


@jit
def _expm1(u: float) -> float:
    """e^u - 1 for u ≤ 0 to 1e-8 of itself, without a call that would not vectorise.

    A Taylor series for u / 32, then five times e^2x - 1 = m · (m + 2) with m = e^x - 1. Below -20
    the result is -1 in float32.
    """
    x = (-20.0 if u < -20.0 else u) / 32
    series = 1 / 720 + x * (1 / 5040 + x / 40320)
    m = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * series)))))
    for _ in range(5):
        m *= m + 2
    return m
