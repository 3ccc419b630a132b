"""A task with keys to sweep over that other processes can import, slow or failing where a test wants it."""

import os
import signal
import time
from dataclasses import dataclass, field
from typing import Literal

import torch

from small_runs import Scripted, ToyTask
from softq.errors import RecipeError, RunError
from softq.lab.recipe import Objective, Training, key
from softq.lab.tasks.classification import Classification

EXAMPLES = 30


@dataclass(frozen=True)
class Penalty:
    c2: float = key(1.0, "")
    ties: Literal["token", "entity"] = key("token", "")
    weights: tuple[int, ...] = key((1,), "")
    entity_weight: int = key(1, "")

    def __post_init__(self):
        if self.c2 < 0:
            raise RecipeError(f"c2 must not be negative, got {self.c2}")


@dataclass(frozen=True)
class OverRecipe:
    penalty: Penalty = field(default_factory=Penalty)
    objective: Objective = field(default_factory=Objective)
    training: Training = field(default_factory=lambda: Training(epochs=6, patience=0))


class Behaved(Scripted):
    """As $BEHAVIOUR says: slow, or failing in some way; it measures one thing more."""

    def __init__(self, cell):
        super().__init__([[dev_score(cell)] * cell.training.epochs], earned(cell))
        self.cell = cell

    def train(self, epoch, first, last, active):
        behaviour = os.environ.get("BEHAVIOUR", "")
        if behaviour == "slow":
            time.sleep(0.5)
        elif (self.cell.objective.name, self.cell.training.seed, epoch) == ("raml", 0, 2):
            if behaviour == "refuse":
                raise RunError("no more")
            if behaviour == "fault":
                raise KeyError("a slip")
            if behaviour == "signal":
                signal.raise_signal(signal.SIGTERM)
            if behaviour == "die once" and not os.path.exists(os.environ["DEATH"]):
                open(os.environ["DEATH"], "w").close()
                behaviour = "die"
            if behaviour == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        super().train(epoch, first, last, active)

    def evaluate_best(self):
        return super().evaluate_best()._replace(measures=[{"recall": self.cell.penalty.c2 / 10}])


class OverTask(ToyTask):
    """Its development score is best at c2 = 0.3 and τ = 2.

    On the test set, c2 = 1 and τ = 1 would be.
    """

    name, recipe_type = "over", OverRecipe

    def __init__(self):
        super().__init__(dev_score, earned)

    def signature(self, recipe):
        return f"weight={recipe.penalty.entity_weight}"

    def learner(self, cells, workers):
        (cell,) = cells
        self.trained.append(cell)
        return Behaved(cell)


def dev_score(cell):
    return -abs(cell.penalty.c2 - 0.3) - abs((cell.objective.tau or 1) - 2) - cell.training.seed / 8


def earned(cell):
    noise = torch.randn(EXAMPLES, generator=torch.Generator().manual_seed(cell.training.seed))
    level = (
        {"ml": 0, "raml": 1, "sqdml": 2}[cell.objective.name]
        + cell.penalty.c2
        + 10 * (cell.penalty.ties == "entity")
    )
    return (noise + level).tolist()


class Alone(Classification):
    """The same networks, a run for each."""

    together = False
