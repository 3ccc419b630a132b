"""What the four-class experiment found, as plain data, and what is computed from it for tables and figures alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from softq.evaluate import Interval, mean_interval
from softq.theory import TheoryRow, TheoryTable

Y = TypeVar("Y")

Objective = Literal["ml", "raml", "sqdml"]
Split = Literal["dev", "test"]


class Cell(NamedTuple):
    """One trained network: its rewards on the validation and test sets at the epoch that was best on the former."""

    sweep: str  # "short", "wide" or "wide-scaled"
    objective: Objective
    tau: float | None  # None for ML
    seed: int
    temperature_scaled: bool
    dev: float
    test: float
    epoch: int


class Comparison(NamedTuple):
    """Test reward of an objective minus that of ML, with the 95 % interval of a paired bootstrap over the test set."""

    objective: Objective
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
    inputs: int
    outputs_per_input: int
    seeds: Sequence[int]
    epochs: int
    recipe_hash: str
    signature: str  # of the reward
    command: str
    scale: str
    seconds: float
    device: str
    date: str
    version: str  # of softq
    differences: Sequence[str] = ()  # from the paper, besides those that the numbers above tell

    def rewards(self, sweep: str, objective: Objective, split: Split) -> list[tuple[float, Interval]]:
        """(τ, mean over seeds) of one curve, by rising τ."""
        found: dict[float, list[float]] = {}
        for cell in self.cells:
            if cell.sweep == sweep and cell.objective == objective and cell.tau is not None:
                found.setdefault(cell.tau, []).append(getattr(cell, split))
        return [(tau, mean_interval(values)) for tau, values in sorted(found.items())]

    def ml(self, split: Split) -> Interval | None:
        """Mean reward of ML over seeds, None where it was not trained."""
        by_seed = {cell.seed: getattr(cell, split) for cell in self.cells if cell.objective == "ml"}  # several sweeps may hold the same run
        return mean_interval([*by_seed.values()]) if by_seed else None

    def best(self, objective: Objective) -> Best | None:
        """The temperature of the short sweep with the highest mean validation reward; of equals, the smallest."""
        dev, test = (self.rewards("short", objective, split) for split in get_args(Split))
        points = [Best(tau, on_dev, on_test) for (tau, on_dev), (_, on_test) in zip(dev, test, strict=True)]
        return max(points, key=lambda point: (point.dev.value, -point.tau), default=None)

    def exact(self, tau: float) -> TheoryRow | None:
        """The population's row at τ."""
        return at(((row.tau, row) for row in self.population.rows), tau)

    def of_bayes(self, test: float) -> float:
        """Test reward in percent of the Bayes rule's on the same test set."""
        return 100 * test / self.bayes_test


def at(points: Iterable[tuple[float, Y]], tau: float) -> Y | None:
    """The value of a curve at τ, None where it has no point there."""
    return next((value for point, value in points if math.isclose(point, tau, rel_tol=1e-9)), None)
