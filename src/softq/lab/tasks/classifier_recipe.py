"""The recipe of classifiers of your own data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from softq.lab.recipe import Conflicts, Objective, RecipeSection, Training, key


@dataclass(frozen=True)
class ClassifierData(RecipeSection):
    """Files for training and evaluation."""

    train: str = key("", "file to train on (.csv, with a header): columns of numbers and a label")
    dev: str = key("", "file that scores are told of; empty: the training file itself")
    test: str = key("", "test set; empty: dev again")
    label_column: str = key("", "name of the column of labels; empty: the last one")
    costs: str = key(
        "",
        "file of what each decision costs (.csv: a row for each decision, a column for each right"
        " class; or .toml); empty: every error costs 1",
    )


@dataclass(frozen=True)
class ClassifierModel(RecipeSection):
    """What is trained: `softq.RewardClassifier`."""

    hidden: tuple[int, ...] = key(
        (), "units of each hidden layer; none: inner folds choose between none and 32", least=1
    )
    alpha: float = key(0.0, "L2 penalty; 0: inner folds choose", least=0)
    reward: Literal["", "absolute", "squared", "quadratic-kappa"] = key(
        "", "reward of classes that are numbers, in place of costs"
    )


@dataclass(frozen=True)
class ClassifierRecipe(RecipeSection):
    """Everything that a run depends on."""

    data: ClassifierData = field(default_factory=ClassifierData)
    model: ClassifierModel = field(default_factory=ClassifierModel)
    objective: Objective = field(default_factory=lambda: Objective("ml"))
    training: Training = field(default_factory=lambda: Training(epochs=1))

    def conflicts(self) -> Conflicts:
        """Costs are given once."""
        return (
            (
                self.data.costs and self.model.reward,
                "costs and reward say the same with opposite signs: give one of them",
            ),
        )
