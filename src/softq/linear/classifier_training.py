"""Training of `RewardClassifier`: by L-BFGS or gradient descent, with options by inner folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import ScoreError
from softq.kernels import perceptrons
from softq.kernels.perceptrons.reference import weights_among
from softq.linear.class_targets import Array, class_targets, expected_rewards, mean_rewards
from softq.linear.lbfgs import LBFGS
from softq.neural.modules.perceptron import first_weights
from softq.targets import ObjectiveName

Solver = Literal["auto", "lbfgs", "sgd"]
Layers = tuple[list[Array], list[Array]]
"""Weights ``[in, out]`` and biases ``[out]`` of each layer."""

# Hidden layers, penalties and temperatures (in units of the rewards' range) that inner folds choose
# from. At the coldest temperature the target of one label is nearly that of ML.
HIDDEN: tuple[tuple[int, ...], ...] = ((), (32,))
ALPHAS = (1.0, 3.0, 10.0)
TEMPERATURES = (0.005, 0.3, 1.0, 3.0)
_WARM = 0.3  # the first choice of SQDML where rows have several labels
_FOLDS = 5
_MOST_ROWS_TO_CHOOSE_BY = 5000
_SCORE_RANGE = 4.0  # of temperature-scaled scores, for the whole range of the rewards
_WORTH_THREADS = 1 << 25  # products of a row and the parameters, in one evaluation
_TOLERANCE = 1e-4  # of L-BFGS: the norm of the gradient, relative to the first one


class Schedule(NamedTuple):
    """Options of training."""

    solver: Solver  # by the time of training never "auto"
    learning_rate: float
    momentum: float
    batch_size: int | None  # None: a tenth of the rows, between 16 and 200
    max_epochs: int
    patience: int  # epochs without a better validation reward
    device: torch.device


class LabelledRows(NamedTuple):
    """Rows for training or evaluation."""

    inputs: Array  # [n, D] float64, standardised
    patterns: Array  # [n] int32, of the labels of each row
    weights: Array  # [n] float64, positive

    def at(self, rows: Array) -> LabelledRows:
        """Some of the rows."""
        return LabelledRows(*(values[rows] for values in self))


class PatternTask(NamedTuple):
    """What is to be learned for each pattern of labels."""

    objective: ObjectiveName
    tau: float
    shares: Array  # [U, K], of each class among the labels of a pattern
    table: Array  # [K, K] or [U, K, K], r[predicted, right]
    temperature_scaled: bool

    @property
    def targets(self) -> Tensor:
        """The exact target of each pattern, ``[U, K]`` float64 (eq. 2, 15, 18)."""
        return class_targets(self.objective, self.shares, self.table, self.tau)

    @property
    def scale(self) -> float:
        """The network's scores over this are log-probabilities.

        It is 1 except at large temperatures, whose log-odds are small.
        """
        if not self.temperature_scaled or self.objective == "ml":
            return 1.0
        return max(1.0, self.tau * _SCORE_RANGE / (float(np.ptp(self.table)) or 1.0))

    def rewards(self, layers: Layers, rows: LabelledRows) -> Array:
        """The reward of a network's decision on each row, ``[n]``."""
        table = self.table if self.table.ndim == 2 else self.table[rows.patterns]
        scores = forward(layers, rows.inputs)
        decided = expected_rewards(self.objective, scores, table, self.tau).argmax(1)
        return np.asarray(mean_rewards(self.table, self.shares)[rows.patterns, decided])

    def loss(self, layers: Layers, rows: LabelledRows) -> float:
        """Sum over the rows of their cross-entropy between target and network, weighted."""
        log_model = torch.from_numpy(forward(layers, rows.inputs)).log_softmax(1).numpy()
        by_row = -(self.targets.numpy()[rows.patterns] * log_model).sum(1)
        return float(by_row @ rows.weights)


class Trained(NamedTuple):
    """A network whose scores are log-probabilities up to a constant per row, and its epochs."""

    layers: Layers
    loss_curve: Array
    validation_rewards: Array


def _layers_of(parameters: Tensor, sizes: Sequence[int], scale: float) -> Layers:
    """The layers of a network's parameters ``[P]``; the scores are divided by ``scale``."""
    weights, biases = [], []
    lengths = [count for before, after in pairwise(sizes) for count in (before * after, after)]
    parts = [part.numpy().copy() for part in torch.split(parameters, lengths)]
    for part, bias, (before, after) in zip(parts[::2], parts[1::2], pairwise(sizes), strict=True):
        weights.append(np.ascontiguousarray(part.reshape(after, before).T))
        biases.append(bias)
    weights[-1] /= scale
    biases[-1] /= scale
    return weights, biases


def forward(layers: Layers, values: Array) -> Array:
    """Scores ``[n, K]`` of standardised inputs ``[n, D]``."""
    for layer, (weight, bias) in enumerate(zip(*layers, strict=True)):
        values = (np.maximum(values, 0.0) if layer else values) @ weight + bias
    return values


def train(
    sizes: tuple[int, ...],
    training: LabelledRows,
    validation: LabelledRows | None,
    *,
    task: PatternTask,
    alpha: float,
    schedule: Schedule,
    random: np.random.RandomState,
) -> Trained:
    """Minimise the mean cross-entropy plus ``alpha`` / (2 · Σ row weights) · Σ network weights²."""
    first = first_weights(sizes, seed=random.randint(2**31))
    decay = alpha / float(training.weights.sum())
    if schedule.solver == "lbfgs":
        with _fitting_threads(len(training.inputs) * len(first)):
            return _minimise(sizes, training, task, first.double(), decay, schedule)
    return _descend(sizes, training, validation, task, first, decay, schedule, random)


@contextmanager
def _fitting_threads(products: int) -> Iterator[None]:
    """One thread for products of small matrices: several wait for each other most of the time.

    On a machine of two busy cores a fit of the breast cancer data at the defaults, 4,000
    evaluations of half a millisecond, takes 46 s of CPU time by two threads and 2 s by one.
    """
    before = torch.get_num_threads()
    if products < _WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _minimise(
    sizes: tuple[int, ...],
    rows: LabelledRows,
    task: PatternTask,
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
        for layer, (matrix, bias) in enumerate(zip(matrices, parts[1::2], strict=True)):
            below = values[-1].relu_() if layer else inputs
            values.append(torch.addmm(bias, below, matrix.T))
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
    return Trained(_layers_of(search.point, sizes, scale), np.array(losses), np.array([]))


def _descend(
    sizes: tuple[int, ...],
    training: LabelledRows,
    validation: LabelledRows | None,
    task: PatternTask,
    first: Tensor,
    decay: float,
    schedule: Schedule,
    random: np.random.RandomState,
) -> Trained:
    """By gradient descent; the network of an epoch is the mean over its steps.

    Where weights of rows differ, an epoch samples rows in proportion to them. With ``validation``
    training stops after ``patience`` epochs without a higher reward on it, and the best epoch's
    network is kept.
    """
    network = first.to(schedule.device).unsqueeze(0)  # [1, P]
    velocity = torch.zeros_like(network)
    count = len(training.inputs)
    batch_size = schedule.batch_size or min(max(count // 10, 16), 200)
    inputs = torch.from_numpy(training.inputs.astype(np.float32)).to(schedule.device)
    patterns = torch.from_numpy(training.patterns).to(schedule.device)
    table = task.targets.unsqueeze(0).to(schedule.device)
    scales = torch.tensor([task.scale], dtype=torch.float64, device=schedule.device)
    batch_sizes = (count - torch.arange(0, count, batch_size)).clamp_max(batch_size).double()
    chances = training.weights / training.weights.sum() if np.ptp(training.weights) else None
    losses: list[float] = []
    rewards: list[float] = []
    best_epoch = 0
    for epoch in range(schedule.max_epochs):
        visited = (
            random.permutation(count) if chances is None else random.choice(count, count, p=chances)
        )
        order = torch.from_numpy(visited).to(schedule.device)
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
                f"training diverged in epoch {epoch + 1}: the cross-entropy is {losses[-1]}. "
                f"Lower learning_rate ({schedule.learning_rate:g}) or momentum "
                f"({schedule.momentum:g}), or raise batch_size ({batch_size})"
            )
        if validation is None:
            kept = mean
            continue
        earned = task.rewards(_layers_of(mean, sizes, task.scale), validation)
        rewards.append(float(np.average(earned, weights=validation.weights)))
        if epoch == 0 or rewards[-1] > rewards[best_epoch]:
            kept, best_epoch = mean, epoch
        elif epoch - best_epoch >= schedule.patience:
            break
    return Trained(_layers_of(kept, sizes, task.scale), np.array(losses), np.array(rewards))


def choose(
    given: tuple[tuple[int, ...] | None, float | None, float | None],
    rows: LabelledRows,
    task: PatternTask,
    *,
    schedule: Schedule,
    random: np.random.RandomState,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[int, ...], float, float]:
    """Sizes of the layers, penalty and temperature: as given, or where None the best on held-out rows.

    Layers and penalty are those whose P(y|x) has the least cross-entropy, whatever the objective.
    The temperature is the one whose decisions earn most, if they earn more than those of the first
    choice by two standard errors: with three others to try, less is mostly luck. ``tell`` is
    called with a line for each that was tried.
    """
    hidden, alpha, tau = given
    unit = float(np.ptp(task.table)) or 1.0
    start = _WARM if task.objective == "sqdml" else TEMPERATURES[0]
    settings = [
        ((rows.inputs.shape[1], *layers, task.shares.shape[1]), penalty)
        for layers in (HIDDEN if hidden is None else [hidden])
        for penalty in (ALPHAS if alpha is None else [alpha])
    ]
    if len(rows.inputs) < 2 or (len(settings) == 1 and tau is not None):
        return *settings[-1], start * unit if tau is None else tau
    if len(rows.inputs) > _MOST_ROWS_TO_CHOOSE_BY:
        rows = rows.at(random.permutation(len(rows.inputs))[:_MOST_ROWS_TO_CHOOSE_BY])
    folds = _folds(rows, task.shares, random)
    seed = random.randint(2**31)

    def networks(
        task: PatternTask, sizes: tuple[int, ...], alpha: float
    ) -> Iterator[tuple[Layers, LabelledRows]]:
        """A network of each fold, and the rows that it has not seen."""
        for kept, held_out in folds:
            state = np.random.RandomState(seed)
            trained = train(
                sizes, kept, None, task=task, alpha=alpha, schedule=schedule, random=state
            )
            yield trained.layers, held_out

    best = settings[-1]
    if len(settings) > 1:
        labels = task._replace(objective="ml")
        losses = []
        for one in settings:
            losses.append(sum(labels.loss(*pair) for pair in networks(labels, *one)))
            mean = losses[-1] / float(rows.weights.sum())
            tell(f"hidden {one[0][1:-1]}, alpha {one[1]:g}: held-out cross-entropy {mean:.4f}")
        best = settings[int(np.argmin(losses))]
    if tau is not None:
        return *best, tau
    earned = {}
    weights = np.concatenate([held_out.weights for _, held_out in folds])
    for factor in TEMPERATURES:
        candidate = task._replace(tau=factor * unit)
        earned[factor] = np.concatenate(
            [candidate.rewards(*pair) for pair in networks(candidate, *best)]
        )
        mean = float(np.average(earned[factor], weights=weights))
        tell(f"tau {candidate.tau:g}: held-out reward {mean:.4f}")
    return *best, unit * _clearly_best(earned, start, weights)


def _clearly_best(earned: dict[float, Array], start: float, weights: Array) -> float:
    """The temperature that earns most, if that is two standard errors more than the first choice."""
    best = max(earned, key=lambda factor: float(weights @ (earned[factor] - earned[start])))
    more = earned[best] - earned[start]
    mean = float(np.average(more, weights=weights))
    error = math.sqrt(float(weights**2 @ (more - mean) ** 2)) / float(weights.sum())
    return best if mean > 2.0 * error else start


def _folds(
    rows: LabelledRows, shares: Array, random: np.random.RandomState
) -> list[tuple[LabelledRows, LabelledRows]]:
    """Rows to train on and rows to evaluate on; each class is spread evenly over the folds."""
    count = len(rows.inputs)
    order = np.lexsort((random.permutation(count), shares.argmax(1)[rows.patterns]))
    fold = np.empty(count, dtype=np.int64)
    fold[order] = np.arange(count) % min(_FOLDS, count)
    return [(rows.at(fold != one), rows.at(fold == one)) for one in range(fold.max() + 1)]
