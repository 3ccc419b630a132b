"""Grids of small networks in plain torch, and the layout of a network that all paths share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def connections(sizes: tuple[int, ...]) -> list[tuple[int, int]]:
    """For each parameter (i, j): it multiplies the value of unit i and adds to that of unit j.

    Units are counted from the inputs to the classes; behind them stands a unit that is always 1,
    which biases multiply. So a unit's parameters come before those of the units that read it, its
    bias last.

    >>> connections((2, 1, 2))
    [(0, 2), (1, 2), (5, 2), (2, 3), (2, 4), (5, 3), (5, 4)]
    """
    pairs, first = [], 0
    for before, after in pairwise(sizes):
        units = range(first + before, first + before + after)
        pairs += [(first + i, unit) for unit in units for i in range(before)]
        pairs += [(sum(sizes), unit) for unit in units]
        first += before
    return pairs


def weights_among(sizes: Sequence[int]) -> Tensor:
    """Which parameters are weights and not biases, ``[P]`` bool.

    >>> weights_among((2, 1, 2)).int()
    tensor([1, 1, 0, 1, 1, 0, 0], dtype=torch.int32)
    """
    pairs = [(before * after, after) for before, after in pairwise(sizes)]
    return torch.cat([torch.arange(weights + biases) < weights for weights, biases in pairs])


def centre(targets: Tensor, scales: Tensor) -> Tensor:
    """Targets for the fast paths, s · (t - 1/K), float32 ``[M, U, K]``.

    Rounded at the end, because at large s the first digits of t and 1/K are the same.
    """
    return ((targets.double() - 1.0 / targets.shape[-1]) * scales.double()[:, None, None]).float()


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
    """See `softq.kernels.perceptrons.train_steps`; by batched matrix products and autograd."""
    targets, scales = targets.double(), scales.double()
    decay = weight_decay * weights_among(sizes).to(networks)
    for step in range(losses.shape[1]):
        rows = slice(step * batch_size, (step + 1) * batch_size)
        with torch.enable_grad():
            leaf = networks.detach().requires_grad_()
            # float64, because at large s softmax and target agree in most of float32's digits
            scaled = logits(leaf, sizes, inputs[rows]).double() / scales[:, None, None]
            chosen = targets[:, patterns[rows]] * torch.log_softmax(scaled, -1)
            loss = -chosen.sum(-1).mean(-1)  # [M]
            (gradient,) = torch.autograd.grad((scales**2 * loss).sum(), leaf)
        velocity.mul_(momentum).add_(gradient).addcmul_(decay, networks)
        networks.sub_(velocity, alpha=learning_rate)
        total.add_(networks)
        losses[:, step] = loss.detach()


def logits(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor) -> Tensor:
    """What every network answers to every input, ``[M, N, K]``; by batched matrix products."""
    counts = [count for before, after in pairwise(sizes) for count in (before * after, after)]
    parts = iter(torch.split(networks, counts, 1))
    values = inputs.expand(len(networks), -1, -1)  # [M, N, D]
    for layer, (weights, biases) in enumerate(zip(parts, parts, strict=True)):
        weights = weights.reshape(-1, sizes[layer + 1], sizes[layer])  # [M, out, in]
        values = torch.baddbmm(biases.unsqueeze(1), values.relu() if layer else values, weights.mT)
    return values
