"""How `RewardClassifier` trains: a table of exact targets, steps of gradient descent, the best or the last epoch."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.distributions import Categorical
from softq.errors import ScoreError
from softq.estimators.labels import Array, Patterns
from softq.kernels import perceptrons
from softq.models.perceptron import first_weights
from softq.rewards import Matrix
from softq.targets import ObjectiveName, target_of

_CELLS_AT_ONCE = 1 << 22  # pattern × reference × class, in the table of targets


class Schedule(NamedTuple):
    """Options of gradient descent."""

    learning_rate: float
    momentum: float
    batch_size: int
    max_epochs: int
    patience: int  # epochs without a better validation reward


class Examples(NamedTuple):
    """Standardised inputs ``[n, D]`` float32, and the pattern of labels of each, ``[n]`` int32."""

    inputs: Array
    patterns: Array


class Trained(NamedTuple):
    """A network as one row of parameters ``[P]``, and what each epoch brought."""

    parameters: Array
    loss_curve: Array
    validation_rewards: Array


def target_table(objective: ObjectiveName, patterns: Patterns, table: Array, tau: float) -> Tensor:
    """The exact target of each pattern of labels, ``[U, K]`` float64 (eq. 2, 15, 18); ``table [K, K]`` is r[predicted, right]."""
    classes = len(table)
    reward = Matrix(torch.from_numpy(table))
    references, weights = torch.from_numpy(patterns.references), torch.from_numpy(patterns.weights)
    rows = max(1, _CELLS_AT_ONCE // (classes * references.shape[1]))

    def target(refs: Tensor, ref_weights: Tensor) -> Tensor:
        space = Categorical(torch.zeros(len(refs), classes, dtype=torch.float64))
        return target_of(objective, space, refs, tau, reward, ref_weights=ref_weights).expected_parts(space)[0]

    return torch.cat([target(*part) for part in zip(torch.split(references, rows), torch.split(weights, rows), strict=True)])


def layers_of(parameters: Array, sizes: tuple[int, ...]) -> tuple[list[Array], list[Array]]:
    """Weights ``[in, out]`` and biases ``[out]`` of each layer, in the shapes of scikit-learn's ``coefs_`` and ``intercepts_``."""
    weights, biases, first = [], [], 0
    for before, after in pairwise(sizes):
        middle, last = first + before * after, first + before * after + after
        weights.append(np.ascontiguousarray(parameters[first:middle].reshape(after, before).T))
        biases.append(parameters[middle:last].copy())
        first = last
    return weights, biases


def train(
    sizes: tuple[int, ...],
    training: Examples,
    validation: Examples | None,
    targets: Tensor,
    earned: Array,
    scale: float,
    schedule: Schedule,
    device: torch.device,
    random: np.random.RandomState,
) -> Trained:
    """Train one network; ``targets [U, K]`` and ``earned [U, K]`` are by pattern.

    An epoch's network is the mean of the parameters after each of its steps, which is steadier than the last of them.
    With ``validation``, training ends after ``patience`` epochs that earned no more on it, and the best epoch's network is kept.
    """
    network = first_weights(sizes, seed=random.randint(2**31)).to(device).unsqueeze(0)  # [1, P]
    velocity = torch.zeros_like(network)
    inputs, patterns = (torch.from_numpy(values).to(device) for values in training)
    table, scales = targets.unsqueeze(0).to(device), torch.tensor([scale], dtype=torch.float64, device=device)
    if validation is not None:
        held_out = torch.from_numpy(validation.inputs).to(device)
        held_out_earned = torch.from_numpy(earned[validation.patterns]).to(device)
    starts = torch.arange(0, len(inputs), schedule.batch_size)
    batch_sizes = (len(inputs) - starts).clamp_max(schedule.batch_size).double()
    kept = network
    losses: list[float] = []
    rewards: list[float] = []
    best_epoch = 0
    for epoch in range(schedule.max_epochs):
        order = torch.from_numpy(random.permutation(len(inputs))).to(device)
        total = torch.zeros_like(network)
        by_batch = perceptrons.train_steps(
            network,
            velocity,
            total,
            sizes=sizes,
            inputs=inputs[order],
            patterns=patterns[order],
            targets=table,
            scales=scales,
            batch_size=schedule.batch_size,
            learning_rate=schedule.learning_rate,
            momentum=schedule.momentum,
        )
        mean = total / by_batch.shape[1]
        losses.append(float(by_batch[0].cpu().double() @ batch_sizes / len(inputs)))
        if not (math.isfinite(losses[-1]) and bool(torch.isfinite(mean).all())):
            raise ScoreError(
                f"training diverged in epoch {epoch + 1}: the cross-entropy is {losses[-1]}. Lower learning_rate "
                f"({schedule.learning_rate:g}) or momentum ({schedule.momentum:g}), or raise batch_size ({schedule.batch_size})"
            )
        if validation is None:
            kept = mean
            continue
        rewards.append(float(perceptrons.mean_earned(mean, sizes=sizes, inputs=held_out, earned=held_out_earned)))
        if epoch == 0 or rewards[-1] > rewards[best_epoch]:
            kept, best_epoch = mean, epoch
        elif epoch - best_epoch >= schedule.patience:
            break
    return Trained(kept[0].cpu().numpy(), np.array(losses), np.array(rewards))
