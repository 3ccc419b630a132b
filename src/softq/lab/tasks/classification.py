"""Cost-sensitive classification on the paper's four-class problem (§4.1.1, Appendix B).

Inputs are uniform on a square, log P(y|x) = -‖x - x_y‖ + const, each training input has ten labels,
and a right answer earns more in some classes than in others. Ten labels in four classes make 286
different patterns, so a model's targets are a small table, exact for ML, RAML and SQDML alike; that
table is all in which the objectives differ. All models of a sweep are trained together on the same
batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from softq.errors import RecipeError
from softq.kernels import perceptrons
from softq.lab.loop import Evaluation, Learner, NonFiniteLossError
from softq.lab.processes import Workers
from softq.lab.tasks.base import Task
from softq.lab.tasks.classification_recipe import CLASSES, ClassificationData, ClassificationRecipe
from softq.lab.torch_learner import TorchLearner, generator_for
from softq.linear.class_targets import class_targets, target_of_shares
from softq.metrics import ExampleCounts, Metric, mean_of_first
from softq.metrics.counts import smallest_type
from softq.neural.modules import Perceptron, PerceptronGrid
from softq.objectives import cross_entropy
from softq.rewards import Matrix
from softq.theory import bayes_rule, four_classes_at


class Labelled(NamedTuple):
    """Inputs with the number of labels each class got: counts, not copies."""

    inputs: Tensor  # [N, 2] float32
    counts: Tensor  # [N, K] uint8

    def earned(self, rewards: Tensor) -> Tensor:
        """What deciding k earns on average over an input's labels, ``[N, K]``."""
        counts = self.counts.double()
        return (counts / counts.sum(-1, keepdim=True)) @ rewards.T

    def bayes_reward(self, rewards: Tensor) -> float:
        """What the Bayes rule earns on these labels (eq. 8)."""
        decided = bayes_rule(four_classes_at(self.inputs).p, rewards)
        return float(self.earned(rewards).gather(1, decided.unsqueeze(1)).mean())


class ClassSplits(NamedTuple):
    """Training, development and test data, and the rewards [predicted, right]."""

    train: Labelled
    dev: Labelled
    test: Labelled
    rewards: Tensor


@lru_cache(maxsize=2)
def make_data(data: ClassificationData) -> ClassSplits:
    """Draw the data of a recipe; the three sets are independent of each other's sizes.

    >>> make_data(ClassificationData(inputs=100, dev=50, test=50)).train.counts.sum(-1).unique()
    tensor([10])
    """
    sizes = ((data.inputs, data.outputs), (data.dev, 1), (data.test, 1))
    train, dev, test = (
        draw(inputs, outputs, generator_for(data.seed, number))
        for number, (inputs, outputs) in enumerate(sizes)
    )
    return ClassSplits(train, dev, test, four_classes_at(train.inputs[:1]).rewards)


def draw(inputs: int, outputs: int, generator: torch.Generator) -> Labelled:
    """Inputs uniform on [-1, 1]², each with independent labels from P(y|x) (eq. 22)."""
    x = torch.rand(inputs, 2, generator=generator) * 2 - 1
    below = four_classes_at(x).p.cumsum(-1)[
        :, :-1
    ]  # a label is how many of these its random number reaches
    counts = torch.zeros(inputs, CLASSES, dtype=torch.uint8 if outputs < 256 else torch.int32)
    one = torch.ones(inputs, 1, dtype=counts.dtype)
    for _ in range(outputs):
        label = (torch.rand(inputs, 1, dtype=torch.float64, generator=generator) >= below).sum(
            -1, keepdim=True
        )
        counts.scatter_add_(1, label, one)
    return Labelled(x, counts)


def visiting_order(data: ClassificationData, epoch: int) -> Tensor:
    """The training inputs in the order in which an epoch visits them, the same for every cell."""
    return torch.randperm(data.inputs, generator=generator_for(data.seed, 3, epoch))


def earned_counts(
    networks: Tensor, sizes: Sequence[int], inputs: Tensor, earned: Tensor
) -> ExampleCounts:
    """(reward, 1) of each input under the decision of each network.

    ``earned [N, K]`` is what each decision earns.

    What inputs can earn are few numbers, so that a byte holds what one of them earned.
    """
    rewards, which = torch.unique(earned.double().cpu(), return_inverse=True)
    which = which.to(smallest_type(len(rewards)))
    decided = perceptrons.decisions(networks, sizes=sizes, inputs=inputs).cpu()
    index = torch.stack([which.gather(1, row.long().unsqueeze(1)).squeeze(1) for row in decided])
    return ExampleCounts(torch.stack([rewards, torch.ones_like(rewards)], 1), index)


class GridLearner:
    """Trains all cells at once: one batch of inputs, every network."""

    def __init__(self, cells: Sequence[ClassificationRecipe], device: torch.device) -> None:
        recipe = cells[0]
        splits = make_data(recipe.data)
        self._recipe, self._names, self._device = (
            recipe,
            [f"{cell.objective} seed={cell.training.seed}" for cell in cells],
            device,
        )
        self.cells, self.examples = len(cells), recipe.data.inputs
        self.steps = math.ceil(self.examples / recipe.training.batch_size)
        counts, patterns = torch.unique(splits.train.counts, dim=0, return_inverse=True)
        self._inputs, self._patterns, self._counts = (
            splits.train.inputs.to(device),
            patterns.int().to(device),
            counts,
        )
        objectives = {
            cell.objective for cell in cells
        }  # far fewer than cells where there are many seeds
        tables = {
            objective: class_targets(objective.name, counts, splits.rewards, objective.tau)
            for objective in objectives
        }
        scales = [
            cell.objective.tau if cell.objective.temperature_scaled else 1.0 for cell in cells
        ]
        self._grid = PerceptronGrid(
            recipe.model.sizes,
            [cell.training.seed for cell in cells],
            torch.stack([tables[cell.objective] for cell in cells]),
            torch.tensor(scales),
            device,
        )
        self._dev = (splits.dev.inputs.to(device), splits.dev.earned(splits.rewards).to(device))
        self._test = (splits.test.inputs.to(device), splits.test.earned(splits.rewards).to(device))
        self._best = self._grid.networks.clone()
        self._losses = torch.zeros(
            self.cells, dtype=torch.float64
        )  # sums over the examples of the epoch so far
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Take steps first..last-1 of an epoch."""
        if self._order[0] != epoch:
            self._order = (epoch, visiting_order(self._recipe.data, epoch).to(self._device))
        if first == 0:
            self._grid.total.zero_()
        size = self._recipe.training.batch_size
        visited = self._order[1][first * size : last * size]
        going = torch.tensor(active).nonzero().squeeze(1).to(self._device)
        inputs, patterns = self._inputs[visited], self._patterns[visited]
        optimizer = self._recipe.optimizer
        losses = self._grid.train_steps(
            inputs,
            patterns,
            going,
            batch_size=size,
            learning_rate=optimizer.learning_rate,
            momentum=optimizer.momentum,
        )
        bad = ~torch.isfinite(losses)
        if bool(bad.any()):
            network, step = (int(i) for i in bad.nonzero()[bad.nonzero()[:, 1].argmin()])
            batch = slice(step * size, (step + 1) * size)
            raise NonFiniteLossError(
                f"the loss of {self._names[int(going[network])]} is not finite in epoch"
                f" {epoch + 1}, step {first + step}; try a smaller learning_rate",
                {"inputs": inputs[batch], "counts": self._counts[patterns[batch].cpu()]},
            )
        going = going.cpu()
        sums = self._losses[going]
        # one by one: where an epoch is cut must not change the rounding
        for step, step_losses in enumerate(losses.cpu().double().unbind(1)):
            sums += step_losses * min(size, len(visited) - step * size)
        self._losses[going] = sums

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """Mean cross-entropy over the epoch's examples, in nats.

        Where the loss is temperature-scaled, without its τ².
        """
        means = (self._losses / self.examples).masked_fill(~torch.tensor(active), math.nan)
        self._losses.zero_()
        return {"loss": means.tolist()}

    def _present(self) -> Tensor:
        return (
            self._grid.total / self.steps if self._recipe.optimizer.average else self._grid.networks
        )

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """Mean reward on the development set."""
        going = torch.tensor(active)
        rewards = torch.full((self.cells,), math.nan, dtype=torch.float64)
        inputs, earned = self._dev
        networks = self._present()[going.to(self._device)]
        rewards[going] = perceptrons.mean_earned(
            networks, sizes=self._grid.sizes, inputs=inputs, earned=earned
        ).cpu()
        return rewards.tolist()

    def keep_best(self, improved: Sequence[bool]) -> None:
        """Copy the networks that improved."""
        better = torch.tensor(improved, device=self._device)
        self._best[better] = self._present()[better]

    def evaluate_best(self) -> Evaluation:
        """The best networks on the test set.

        The development set would take as much room again, and is not looked at twice.
        """
        counts = earned_counts(self._best, self._grid.sizes, *self._test)
        return Evaluation({"test": counts}, [{}] * self.cells)

    def state(self) -> dict[str, Tensor]:
        """Networks, momentum, sums of the epoch so far."""
        grid = self._grid
        return {
            "networks": grid.networks,
            "velocity": grid.velocity,
            "total": grid.total,
            "losses": self._losses,
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state."""
        for name in ("networks", "velocity", "total"):
            getattr(self._grid, name).copy_(state[name])
        self._losses = state["losses"].clone()

    def best(self) -> dict[str, Tensor]:
        """The best networks, a row each."""
        return {"networks": self._best}

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take these for the best ones."""
        self._best = best["networks"].to(self._device)


class Classification(Task):
    """The task."""

    name: ClassVar[str] = "classification"
    recipe_type: ClassVar[type[ClassificationRecipe]] = ClassificationRecipe
    metrics: ClassVar[Mapping[str, Metric]] = {"reward": mean_of_first}
    titles: ClassVar[Mapping[str, str]] = {"reward": "reward"}
    together: ClassVar[bool] = True

    def learner(self, cells: Sequence[ClassificationRecipe], workers: Workers) -> Learner:
        """The grid; in several processes a plain torch module for the one cell."""
        if workers.size == 1:
            return GridLearner(cells, workers.device)
        if len(cells) > 1:
            raise RecipeError(
                f"several processes train one model at a time, got {len(cells)} cells; start the"
                " sweep in one process"
            )
        return torch_learner(cells[0], workers)

    def facts(self, recipe: ClassificationRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """What the Bayes rule earns on the same development and test sets."""
        splits = make_data(recipe.data)
        earned = {
            f"{split}_reward": getattr(splits, split).bayes_reward(splits.rewards)
            for split in ("dev", "test")
        }
        return {"examples": {"train": recipe.data.inputs}, "bayes": earned}

    def signature(self, recipe: ClassificationRecipe) -> str:
        """The table of rewards, by its hash."""
        return Matrix(four_classes_at(torch.zeros(1, 2)).rewards).signature


def torch_learner(recipe: ClassificationRecipe, workers: Workers) -> TorchLearner:
    """The same model, data and steps in plain torch.

    For several processes, and to compare the grid with.
    """
    splits, sizes = make_data(recipe.data), recipe.model.sizes
    model = _PerceptronLoss(recipe, splits).to(workers.device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.optimizer.learning_rate, momentum=recipe.optimizer.momentum
    )

    def networks() -> Tensor:
        return nn.utils.parameters_to_vector(model.parameters()).unsqueeze(0)

    def on_device(split: Labelled) -> tuple[Tensor, Tensor]:
        return split.inputs.to(workers.device), split.earned(splits.rewards).to(workers.device)

    def reward(split: Labelled) -> float:
        inputs, earned = on_device(split)
        return float(perceptrons.mean_earned(networks(), sizes=sizes, inputs=inputs, earned=earned))

    return TorchLearner(
        model,
        optimizer,
        examples=recipe.data.inputs,
        batch_size=recipe.training.batch_size,
        order=lambda epoch: visiting_order(recipe.data, epoch),
        seed=recipe.training.seed,
        average=recipe.optimizer.average,
        loss_unit=(
            (recipe.objective.tau or 1.0) ** 2 if recipe.objective.temperature_scaled else 1.0
        ),
        evaluate=lambda: reward(splits.dev),
        evaluate_best=lambda: Evaluation(
            {"test": earned_counts(networks(), sizes, *on_device(splits.test))}, [{}]
        ),
        workers=workers,
    )


class _PerceptronLoss(nn.Module):
    """Losses of training inputs by their numbers."""

    def __init__(self, recipe: ClassificationRecipe, splits: ClassSplits) -> None:
        super().__init__()
        self.perceptron = Perceptron(recipe.model.sizes, recipe.training.seed)
        self._objective, self._train, self._rewards = recipe.objective, splits.train, splits.rewards

    def forward(self, examples: Tensor) -> Tensor:
        """H(target, model), one each."""
        device = next(self.perceptron.parameters()).device
        model = self.perceptron(self._train.inputs[examples].to(device))
        counts = self._train.counts[examples].to(device)
        name, tau = self._objective.name, self._objective.tau
        target = target_of_shares(name, model, counts, self._rewards, tau)
        return cross_entropy(target, model, temperature_scaled=self._objective.temperature_scaled)
