"""How `RewardClassifier` trains: exact targets, L-BFGS or steps of gradient descent, and the choice of options by inner folds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import ScoreError
from softq.linear.class_labels import Array
from softq.linear.expected_rewards import expected_rewards, mean_rewards
from softq.linear.lbfgs import LBFGS
from softq.neural import perceptrons
from softq.neural.modules.perceptron import first_weights
from softq.neural.perceptrons.reference import weights_among
from softq.targets import ObjectiveName

Solver = Literal["auto", "lbfgs", "sgd"]
Layers = tuple[list[Array], list[Array]]
"""Weights ``[in, out]`` and biases ``[out]`` of each layer."""

# Penalties and temperatures (in units of the rewards' range) that inner folds choose from. At the coldest, RAML's target is the labels.
ALPHAS = (0.1, 1.0, 10.0, 30.0)
TEMPERATURES = (0.005, 0.05, 0.3, 1.0, 3.0)
_WARM = 0.3  # where SQDML starts from if rows have several labels: its log-odds are then at most 1 / 0.3
_FOLDS = 5
_MOST_ROWS_TO_CHOOSE_BY = 5000
_SCORE_RANGE = 4.0  # of temperature-scaled scores, for the whole range of the rewards: where networks learn fastest
_TOLERANCE = 1e-4  # of L-BFGS: the norm of the gradient, as a part of the first one


class Schedule(NamedTuple):
    """Options of training."""

    solver: Solver  # "auto" no more
    learning_rate: float
    momentum: float
    batch_size: int | None  # None: a tenth of the rows, within limits
    max_epochs: int
    patience: int  # epochs without a better validation reward
    device: torch.device

    def rows_per_step(self, rows: int) -> int:
        """Rows of a batch where there are this many in all."""
        return self.batch_size or min(max(rows // 10, 16), 200)


class Examples(NamedTuple):
    """Rows to train on, or to judge by."""

    inputs: Array  # [n, D] float64, standardised
    patterns: Array  # [n] int32, of the labels of each row
    weights: Array  # [n] float64, positive

    def at(self, rows: Array) -> Examples:
        """Some of the rows."""
        return Examples(*(values[rows] for values in self))


class Task(NamedTuple):
    """What is to be learned for each pattern of labels."""

    objective: ObjectiveName
    tau: float
    shares: Array  # [U, K], of each class among the labels of a pattern
    table: Array  # [K, K] or [U, K, K], r[predicted, right]
    temperature_scaled: bool

    @property
    def targets(self) -> Tensor:
        """The exact target of each pattern, ``[U, K]`` float64 (eq. 2, 15, 18)."""
        return target_table(self.objective, self.shares, self.table, self.tau)

    @property
    def earned(self) -> Array:
        """What each decision earns on average over the labels of a pattern, ``[U, K]``."""
        return mean_rewards(self.table, self.shares)

    @property
    def scale(self) -> float:
        """The network's scores over this are log-probabilities: 1 but for large temperatures, whose log-odds are small."""
        if not self.temperature_scaled or self.objective == "ml":
            return 1.0
        return max(1.0, self.tau * _SCORE_RANGE / (float(np.ptp(self.table)) or 1.0))

    def rewards(self, layers: Layers, rows: Examples) -> Array:
        """What the decisions of a network of log-probabilities earn on each row, ``[n]``."""
        table = self.table if self.table.ndim == 2 else self.table[rows.patterns]
        decided = expected_rewards(
            self.objective, forward(layers, rows.inputs), table, self.tau
        ).argmax(1)
        return np.asarray(self.earned[rows.patterns, decided])

    def cross_entropy(self, layers: Layers, rows: Examples) -> float:
        """Mean cross-entropy between target and network on these rows."""
        log_model = torch.from_numpy(forward(layers, rows.inputs)).log_softmax(1)
        by_row = -(self.targets[torch.from_numpy(rows.patterns).long()] * log_model).sum(1).numpy()
        return float(np.average(by_row, weights=rows.weights))


class Trained(NamedTuple):
    """A network whose scores are log-probabilities up to a constant per row, and what each epoch brought."""

    layers: Layers
    loss_curve: Array
    validation_rewards: Array


def target_table(objective: ObjectiveName, shares: Array, table: Array, tau: float) -> Tensor:
    """The exact target of labels that are distributed by ``shares [U, K]``, ``[U, K]`` float64 (eq. 2, 15, 18).

    >>> target_table("raml", np.array([[1.0, 0.0]]), np.eye(2), tau=0.5).numpy().round(3).tolist()
    [[0.881, 0.119]]
    """
    if objective == "ml":
        return torch.from_numpy(shares)
    if objective == "raml":
        payoffs = torch.from_numpy(table / tau).softmax(-2)  # q(z|y): columns y sum to one over z
        return torch.from_numpy(mean_rewards(payoffs.numpy(), shares))
    return torch.from_numpy(mean_rewards(table, shares) / tau).softmax(-1)


def layers_of(parameters: Array, sizes: Sequence[int], scale: float) -> Layers:
    """The layers of a row of parameters ``[P]``; the last one's scores are divided by ``scale``."""
    weights, biases, first = [], [], 0
    for before, after in pairwise(sizes):
        middle, last = first + before * after, first + before * after + after
        weights.append(np.ascontiguousarray(parameters[first:middle].reshape(after, before).T))
        biases.append(parameters[middle:last].copy())
        first = last
    weights[-1] /= scale
    biases[-1] /= scale
    return weights, biases


def forward(layers: Layers, values: Array) -> Array:
    """Scores ``[n, K]`` of standardised inputs ``[n, D]``."""
    for layer, (weight, bias) in enumerate(zip(*layers, strict=True)):
        values = (values if layer == 0 else np.maximum(values, 0.0)) @ weight + bias
    return values


def train(
    sizes: tuple[int, ...],
    training: Examples,
    validation: Examples | None,
    *,
    task: Task,
    alpha: float,
    schedule: Schedule,
    random: np.random.RandomState,
) -> Trained:
    """Minimise the mean cross-entropy plus ``alpha`` / (2 · Σ row weights) · Σ network weights²."""
    first = first_weights(sizes, seed=random.randint(2**31))
    decay = alpha / float(training.weights.sum())
    if schedule.solver == "lbfgs":
        return _minimise(sizes, training, task, first.double(), decay, schedule)
    return _descend(sizes, training, validation, task, first, decay, schedule, random)


def _minimise(
    sizes: tuple[int, ...],
    rows: Examples,
    task: Task,
    first: Tensor,
    decay: float,
    schedule: Schedule,
) -> Trained:
    """By L-BFGS, over all rows at once."""
    inputs = torch.from_numpy(rows.inputs)
    targets = task.targets[torch.from_numpy(rows.patterns).long()]
    weights = torch.from_numpy(rows.weights / rows.weights.sum()).unsqueeze(1)
    decays = decay * weights_among(sizes).double()
    lengths = [length for before, after in pairwise(sizes) for length in (before * after, after)]
    scale = task.scale
    losses: list[float] = []
    latest = 0.0

    def evaluate(point: Tensor, gradient: Tensor) -> float:
        nonlocal latest
        parts = torch.split(point, lengths)
        matrices = [
            part.view(after, before)
            for part, (before, after) in zip(parts[::2], pairwise(sizes), strict=True)
        ]
        values = [inputs]  # of each layer's units
        for matrix, bias in zip(matrices, parts[1::2], strict=True):
            values.append(
                torch.addmm(bias, values[-1] if len(values) == 1 else values[-1].relu_(), matrix.T)
            )
        log_model = (values[-1] / scale).log_softmax(1)
        latest = -float((weights * targets * log_model).sum())
        slope = weights * (log_model.exp() - targets) * scale
        slopes: list[Tensor] = []
        for matrix, below in zip(reversed(matrices), reversed(values[:-1]), strict=True):
            slopes = [(slope.T @ below).reshape(-1), slope.sum(0), *slopes]
            if below is not inputs:
                slope = (slope @ matrix) * (below > 0.0)
        torch.cat(slopes, out=gradient)
        gradient.addcmul_(decays, point)
        return scale**2 * latest + 0.5 * float(decays @ point**2)

    search = LBFGS(first, evaluate, tolerance=_TOLERANCE)
    while search.status == "going" and search.iterations < schedule.max_epochs:
        search.iterate()
        losses.append(latest)
    return Trained(layers_of(search.point.numpy(), sizes, scale), np.array(losses), np.array([]))


def _descend(
    sizes: tuple[int, ...],
    training: Examples,
    validation: Examples | None,
    task: Task,
    first: Tensor,
    decay: float,
    schedule: Schedule,
    random: np.random.RandomState,
) -> Trained:
    """By gradient descent; the network of an epoch is the mean over its steps.

    Where weights of rows differ, an epoch draws rows in proportion to them. With ``validation`` training stops after ``patience`` epochs
    that earned no more on it, and the best epoch's network is kept.
    """
    network = first.to(schedule.device).unsqueeze(0)  # [1, P]
    velocity = torch.zeros_like(network)
    count, batch_size = len(training.inputs), schedule.rows_per_step(len(training.inputs))
    inputs = torch.from_numpy(training.inputs.astype(np.float32)).to(schedule.device)
    patterns = torch.from_numpy(training.patterns).to(schedule.device)
    table = task.targets.unsqueeze(0).to(schedule.device)
    scales = torch.tensor([task.scale], dtype=torch.float64, device=schedule.device)
    weighted = float(np.ptp(training.weights)) > 0.0
    batch_sizes = (count - torch.arange(0, count, batch_size)).clamp_max(batch_size).double()
    losses: list[float] = []
    rewards: list[float] = []
    best_epoch = 0
    for epoch in range(schedule.max_epochs):
        drawn = (
            random.choice(count, count, p=training.weights / training.weights.sum())
            if weighted
            else random.permutation(count)
        )
        order = torch.from_numpy(drawn).to(schedule.device)
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
            batch_size=batch_size,
            learning_rate=schedule.learning_rate,
            momentum=schedule.momentum,
            weight_decay=decay,
        )
        mean = total[0].cpu() / by_batch.shape[1]
        losses.append(float(by_batch[0].cpu().double() @ batch_sizes / count))
        if not (math.isfinite(losses[-1]) and bool(torch.isfinite(mean).all())):
            raise ScoreError(
                f"training diverged in epoch {epoch + 1}: the cross-entropy is {losses[-1]}. Lower learning_rate "
                f"({schedule.learning_rate:g}) or momentum ({schedule.momentum:g}), or raise batch_size ({batch_size})"
            )
        if validation is None:
            kept = mean
            continue
        layers = layers_of(mean.numpy(), sizes, task.scale)
        rewards.append(
            float(np.average(task.rewards(layers, validation), weights=validation.weights))
        )
        if epoch == 0 or rewards[-1] > rewards[best_epoch]:
            kept, best_epoch = mean, epoch
        elif epoch - best_epoch >= schedule.patience:
            break
    return Trained(layers_of(kept.numpy(), sizes, task.scale), np.array(losses), np.array(rewards))


# --- options that inner folds choose ------------------------------------------------------------------


def choose(
    sizes: tuple[int, ...],
    rows: Examples,
    task: Task,
    *,
    alpha: float | None,
    tau: float | None,
    schedule: Schedule,
    random: np.random.RandomState,
) -> tuple[float, float]:
    """The penalty and the temperature, where they are None, that do best on held-out rows.

    The penalty is the one whose P(y|x) has the least cross-entropy, whatever the objective. The temperature is the one whose decisions
    earn most, if they earn more than those of the first one by a standard error: differences below are mostly luck.
    """
    unit = float(np.ptp(task.table)) or 1.0
    start = _WARM if task.objective == "sqdml" else TEMPERATURES[0]
    if len(rows.inputs) < 2:
        return (1.0 if alpha is None else alpha), (start * unit if tau is None else tau)
    if len(rows.inputs) > _MOST_ROWS_TO_CHOOSE_BY:
        rows = rows.at(random.permutation(len(rows.inputs))[:_MOST_ROWS_TO_CHOOSE_BY])
    folds = list(_folds(rows, task.shares, random))
    seed = random.randint(2**31)

    def networks(task: Task, alpha: float) -> Iterator[tuple[Layers, Examples]]:
        """A network of each fold, and the rows that it has not seen."""
        for kept, held_out in folds:
            state = np.random.RandomState(seed)
            yield (
                train(
                    sizes, kept, None, task=task, alpha=alpha, schedule=schedule, random=state
                ).layers,
                held_out,
            )

    if alpha is None:
        labels = task._replace(objective="ml")
        losses = [
            sum(
                labels.cross_entropy(*pair) * pair[1].weights.sum()
                for pair in networks(labels, option)
            )
            for option in ALPHAS
        ]
        alpha = ALPHAS[int(np.argmin(losses))]
    if tau is None:
        weights = np.concatenate([held_out.weights for _, held_out in folds])
        earned = {}
        for factor in (start, *(other for other in TEMPERATURES if other != start)):
            candidate = task._replace(tau=factor * unit)
            earned[factor] = np.concatenate(
                [candidate.rewards(*pair) for pair in networks(candidate, alpha)]
            )
        best = max(earned, key=lambda factor: float(np.average(earned[factor], weights=weights)))
        more = earned[best] - earned[start]
        mean = float(np.average(more, weights=weights))
        error = math.sqrt(float(weights**2 @ (more - mean) ** 2)) / float(weights.sum())
        tau = (best if mean > error else start) * unit
    return alpha, tau


def _folds(
    rows: Examples, shares: Array, random: np.random.RandomState
) -> Iterator[tuple[Examples, Examples]]:
    """Rows to train on and rows to judge by, each class dealt out evenly."""
    count = len(rows.inputs)
    order = np.lexsort((random.permutation(count), shares.argmax(1)[rows.patterns]))
    fold = np.empty(count, dtype=np.int64)
    fold[order] = np.arange(count) % min(_FOLDS, count)
    for number in range(fold.max() + 1):
        yield rows.at(fold != number), rows.at(fold == number)
