"""The recipe of cost-sensitive classification."""

from __future__ import annotations

from dataclasses import dataclass, field

from softq.lab.recipe import Objective, RecipeSection, Training, key

CLASSES = 4


@dataclass(frozen=True)
class ClassificationData(RecipeSection):
    """How much data to draw."""

    inputs: int = key(100_000, "training inputs; the paper has 1,000,000", least=1)
    outputs: int = key(10, "labels drawn for each training input", least=1)
    dev: int = key(100_000, "development pairs (x, y)", least=1)
    test: int = key(100_000, "test pairs (x, y)", least=1)
    seed: int = key(
        0, "random seed of the data, and of the order in which the inputs are visited", bits=64
    )


@dataclass(frozen=True)
class ClassificationModel(RecipeSection):
    """A feed-forward network from two coordinates to four classes."""

    hidden: tuple[int, ...] = key((8, 8), "units of each hidden layer", least=1)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of every layer."""
        return (2, *self.hidden, CLASSES)


@dataclass(frozen=True)
class ClassificationOptimizer(RecipeSection):
    """Stochastic gradient descent with momentum."""

    learning_rate: float = key(0.1, "step size", positive=True)
    momentum: float = key(0.9, "share of the last step that is taken again", least=0, below=1)
    average: bool = key(
        True,
        "judge the mean of the weights over an epoch's steps; false: the weights after its last"
        " step",
    )


@dataclass(frozen=True)
class ClassificationRecipe(RecipeSection):
    """Everything that a run depends on."""

    data: ClassificationData = field(default_factory=ClassificationData)
    model: ClassificationModel = field(default_factory=ClassificationModel)
    objective: Objective = field(default_factory=Objective)
    optimizer: ClassificationOptimizer = field(default_factory=ClassificationOptimizer)
    training: Training = field(default_factory=lambda: Training(burn_in=10))
