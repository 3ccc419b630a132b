"""Small runs for the tests of training.

Recipes, a learner and a task that do as they are told, folders to compare.
"""

import math
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from typer.testing import CliRunner

from softq import cli
from softq.lab.loop import Evaluation, train
from softq.lab.processes import Interrupts, Workers
from softq.lab.recipe import Objective, Training, build, parse_flags
from softq.lab.run import BEST, LAST, METRICS, RESULT, RunFolder, as_json
from softq.lab.tasks.base import Task
from softq.lab.tasks.classification_recipe import ClassificationRecipe
from softq.lab.torch_learner import TorchLearner, generator_for
from softq.metrics import ExampleCounts, mean_of_first

SMALL = [
    "--inputs",
    "300",
    "--dev",
    "200",
    "--test",
    "200",
    "--epochs",
    "3",
    "--burn-in",
    "0",
    "--batch-size",
    "100",
]
CPU = Workers(torch.device("cpu"))


def recipe(*flags):
    """A classification recipe that trains in an instant."""
    return build(
        ClassificationRecipe, parse_flags(ClassificationRecipe, [*SMALL, *map(str, flags)])
    )


def softq(*arguments, terminal="dumb"):
    """A command in this process, on a wide plain terminal, so that nothing wraps or is coloured."""
    return CliRunner().invoke(
        cli.app,
        list(map(str, arguments)),
        env={"COLUMNS": "300", "NO_COLOR": "1", "TERM": terminal},
    )


def contents(folder):
    """The files that two equal runs share to the last byte."""
    return {name: (folder / name).read_bytes() for name in (METRICS, RESULT, BEST, LAST)}


@contextmanager
def single_thread():
    """One thread.

    On tensors as small as these a second one only costs, and where others are at work it costs
    much.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def wait_for(what, seconds=120.0):
    """Wait until something is true; a machine may be slow, but not for ever."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def snapshot(folder):
    """Every file below a folder with the time it was last written."""
    return {
        str(path): os.stat(path).st_mtime_ns for path in sorted(folder.rglob("*")) if path.is_file()
    }


def new_run(path, recipe="", cells=()):
    """A folder with the beginnings of a run, which nobody keeps locked."""
    run = RunFolder(path)
    with run.locked():
        run.begin(recipe, cells, "cpu")
    return run


def go(learner, folder, watcher=None, workers=CPU, **training):
    """Train a learner into a folder, new or not; the outcome and the rows of its metrics."""
    run = RunFolder(folder)
    if not run.exists():
        run = new_run(folder)
    names = [f"cell {number}" for number in range(learner.cells)]
    options = {"epochs": 6, "patience": 0} | training

    with run.locked(), Interrupts(workers) as interrupts:
        outcome = train(
            learner,
            run,
            Training(**options),
            workers=workers,
            interrupts=interrupts,
            cell_names=names,
            watcher=watcher,
        )
    run.save_counts(outcome.evaluation.counts)
    result = {"epochs": outcome.epochs, "dev": outcome.dev}
    result["measures"] = list(outcome.evaluation.measures)
    run.write(RESULT, as_json(result))
    return result, run.lines(METRICS)


class Scripted:
    """A learner with development scores written down beforehand, ``dev[cell][epoch]``.

    It counts the steps it takes, as its weights.
    """

    steps, examples = 4, 40

    def __init__(self, dev, test=(0.0,)):
        self.dev, self.cells = dev, len(dev)
        scores = torch.tensor(test, dtype=torch.float64).expand(self.cells, -1)
        self.counts = ExampleCounts.of(torch.stack([scores, torch.ones_like(scores)], -1))
        self.weights, self.kept = (
            torch.zeros(self.cells, dtype=torch.float64),
            torch.zeros(self.cells, dtype=torch.float64),
        )
        self.place = 0  # steps so far, of all epochs: none may be left out or taken twice

    def train(self, epoch, first, last, active):
        assert epoch * self.steps + first == self.place
        self.place += last - first
        self.weights[torch.tensor(active)] += last - first

    def end_epoch(self, active):
        return {"loss": [1.0 / self.place if going else math.nan for going in active]}

    def evaluate(self, active):
        epoch = self.place // self.steps - 1
        return [
            scores[epoch] if going else math.nan
            for scores, going in zip(self.dev, active, strict=True)
        ]

    def keep_best(self, improved):
        self.kept = torch.where(torch.tensor(improved), self.weights, self.kept)

    def evaluate_best(self):
        return Evaluation({"test": self.counts}, [{}] * self.cells)

    def state(self):
        return {"weights": self.weights, "place": torch.tensor(self.place)}

    def load_state(self, state):
        self.weights, self.place = state["weights"].clone(), int(state["place"])

    def best(self):
        return {"weights": self.kept}

    def load_best(self, best):
        self.kept = best["weights"].clone()


@dataclass(frozen=True)
class ToyRecipe:
    """Only what every recipe has."""

    objective: Objective = field(default_factory=Objective)
    training: Training = field(
        default_factory=lambda: Training(epochs=2, patience=0, batch_size=10)
    )


class ToyTask(Task):
    """A task of one run per cell. Scores are functions of the recipe.

    ``dev`` a number, ``test`` one number for each example.
    """

    name, recipe_type = "toy", ToyRecipe
    metrics, titles = {"score": mean_of_first}, {"score": "score"}

    def __init__(self, dev, test):
        self._dev, self._test, self.trained = dev, test, []

    def learner(self, cells, workers):
        (cell,) = cells
        self.trained.append(cell)
        return Scripted([[self._dev(cell)] * cell.training.epochs], self._test(cell))

    def signature(self, recipe):
        return "toy"


def noisy_regression(*, average, optimizer=torch.optim.Adam, workers=CPU, scale=1.0):
    """A learner with all that a checkpoint may forget.

    Dropout, running statistics, moments, averaged weights.
    """
    generator = generator_for(0)
    inputs, outputs = torch.randn(50, 3, generator=generator), torch.randn(50, generator=generator)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 1)
            )
            with torch.no_grad():
                for parameter in self.net.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator))

        def forward(self, examples):
            return scale * (self.net(inputs[examples]).squeeze(-1) - outputs[examples]) ** 2

    model = Loss()
    return TorchLearner(
        model,
        optimizer(model.parameters(), lr=0.05),
        examples=50,
        batch_size=16,
        order=lambda epoch: torch.randperm(50, generator=generator_for(1, epoch)),
        seed=3,
        average=average,
        evaluate=lambda: -float(model(torch.arange(50)).mean()),
        evaluate_best=lambda: Evaluation({}, [{"loss": float(model(torch.arange(25)).mean())}]),
        workers=workers,
    )
