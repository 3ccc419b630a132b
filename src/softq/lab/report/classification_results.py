"""What the four-class experiment found, as plain data, and what is computed from it for tables and figures alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from softq.lab.report.paper import ClassificationSetup
from softq.metrics import Interval, mean_interval
from softq.targets import ObjectiveName
from softq.theory import TheoryRow, TheoryTable

Y = TypeVar("Y")


Split = Literal["dev", "test"]
Sweep = Literal[
    "short", "wide", "short-scaled", "wide-scaled"
]  # the paper's Figures 1 and 2; scaled: with logits divided by τ


class Cell(NamedTuple):
    """One trained network: its rewards on the validation and test sets at the epoch that was best on the former."""

    sweep: Sweep
    objective: ObjectiveName
    tau: float | None  # None for ML
    seed: int
    temperature_scaled: bool
    dev: float
    test: float
    epoch: int


class Comparison(NamedTuple):
    """Test reward of an objective minus that of ML, with the 95 % interval of a paired bootstrap over the test set."""

    objective: ObjectiveName
    tau: float
    difference: float
    low: float
    high: float
    temperature_scaled: bool = False


class Best(NamedTuple):
    """A temperature chosen on the validation set, and the rewards there."""

    tau: float
    dev: Interval
    test: Interval
    temperature_scaled: bool


@dataclass(frozen=True)
class ClassificationResults:
    """What the experiment found. Any sweep may be missing or thinned; the section leaves out what cannot be shown.

    ``population`` has a row for every τ of the sweeps. ``regions`` maps the title of a panel to the classes decided over
    [-1, 1]², an integer array ``[G, G]`` whose entry ``[i, j]`` belongs to the i-th value of x₀ and the j-th of x₁ (as in
    ``four_class_problem(G).inputs.reshape(G, G, 2)``); "Bayes rule" is the one that the others are compared with.
    """

    cells: Sequence[Cell]
    population: TheoryTable
    bayes_dev: float  # reward of the Bayes rule on the same validation set
    bayes_test: float
    regions: Mapping[str, NDArray[np.integer[Any]]]
    comparisons: Sequence[Comparison]
    setup: ClassificationSetup
    recipe_hash: str  # of the recipe with its grids
    signature: str  # of the reward
    scale: str
    seconds: float  # of training steps
    device: str
    date: str  # of the report
    version: str  # of softq
    differences: Sequence[str] = ()  # from the paper, besides those that the numbers above tell

    def rewards(
        self, sweep: Sweep, objective: ObjectiveName, split: Split
    ) -> list[tuple[float, Interval]]:
        """(τ, mean over seeds) of one curve, by rising τ."""
        found: dict[float, list[float]] = {}
        for cell in self.cells:
            if cell.sweep == sweep and cell.objective == objective and cell.tau is not None:
                found.setdefault(cell.tau, []).append(getattr(cell, split))
        return [(tau, mean_interval(values)) for tau, values in sorted(found.items())]

    def ml(self, split: Split) -> Interval | None:
        """Mean reward of ML over seeds, None where it was not trained."""
        by_seed = {
            cell.seed: getattr(cell, split) for cell in self.cells if cell.objective == "ml"
        }  # several sweeps may hold the same run
        return mean_interval([*by_seed.values()]) if by_seed else None

    def best(self, objective: ObjectiveName) -> Best | None:
        """The temperature with the highest mean validation reward, of equals the smallest, in the first of the sweeps there are."""
        for sweep in get_args(Sweep):
            dev, test = (self.rewards(sweep, objective, split) for split in get_args(Split))
            if dev:
                (tau, best), (_, on_test) = max(
                    zip(dev, test, strict=True), key=lambda pair: (pair[0][1].value, -pair[0][0])
                )
                return Best(tau, best, on_test, sweep.endswith("scaled"))
        return None

    def repetitions(self) -> str:
        """With how many seeds each objective and temperature was trained: "5", or "2 to 5" where that differs."""
        seeds: dict[tuple[Any, ...], set[int]] = {}
        for cell in self.cells:
            seeds.setdefault((cell.objective, cell.tau, cell.temperature_scaled), set()).add(
                cell.seed
            )
        counts = sorted(map(len, seeds.values())) or [0]
        return f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"

    def exact(self, tau: float) -> TheoryRow | None:
        """The population's row at τ."""
        return at(((row.tau, row) for row in self.population.rows), tau)

    def of_bayes(self, test: float) -> float:
        """Test reward in percent of the Bayes rule's on the same test set."""
        return 100 * test / self.bayes_test


def at(points: Iterable[tuple[float, Y]], tau: float) -> Y | None:
    """The value of a curve at τ, None where it has no point there."""
    return next((value for point, value in points if math.isclose(point, tau, rel_tol=1e-9)), None)
