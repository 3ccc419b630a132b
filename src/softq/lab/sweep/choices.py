"""What a sweep concludes.

The best cells on the development set, and what they earn on the test set.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softq.lab.run import RunFolder, damaged
from softq.lab.tasks.base import Cell, Task, cell_recipe
from softq.metrics import Interval, mean_interval, paired_bootstrap

RESAMPLES = 1000

_Group = tuple[str, str, bool]  # grid, objective, whether temperature-scaled


class SweepCell(NamedTuple):
    """A finished cell and the grids it belongs to."""

    grids: tuple[str, ...]
    cell: Cell
    run: Path


@dataclass(frozen=True)
class Choice:
    """The temperature and settings that an objective of a grid gets from the development set, and what they are worth."""

    grid: str
    objective: str
    temperature_scaled: bool
    tau: float | None
    settings: dict[str, Any]
    seeds: int
    dev: Interval
    test: Interval
    gain: Interval | None  # over ML on the test set; None where there is no ML on as many examples
    signature: str  # of the reward, which a grid may vary

    def recipe(self, base: Any) -> Any:
        """The recipe of the chosen cells, from that of the sweep, whose seed it keeps."""
        return cell_recipe(base, vars(self) | {"seed": base.training.seed})

    def as_json(self) -> dict[str, Any]:
        """Plain values.

        JSON has no NaN, so null stands for an interval's end that a single seed does not give.
        """
        intervals = {
            name: interval
            and {end: x if math.isfinite(x) else None for end, x in interval._asdict().items()}
            for name, interval in (("dev", self.dev), ("test", self.test), ("gain", self.gain))
        }
        return dataclasses.asdict(self) | intervals


def choose(task: Task, base: Any, cells: Sequence[SweepCell]) -> list[Choice]:
    """For each objective of each grid, the temperature and settings of the best mean development score, and the gain over ML."""
    groups: dict[_Group, dict[tuple[float | None, str], list[SweepCell]]] = {}
    for grid in dict.fromkeys(grid for member in cells for grid in member.grids):
        for member in cells:
            if grid in member.grids:
                cell = member.cell
                group = groups.setdefault((grid, cell.objective, cell.temperature_scaled), {})
                group.setdefault((cell.tau, json.dumps(cell.settings)), []).append(member)
    chosen = {
        name: max(
            group.values(), key=lambda members: sum(one.cell.dev for one in members) / len(members)
        )
        for name, group in groups.items()
    }
    gains = _gains(task, chosen)
    return [
        Choice(
            *name,
            tau=members[0].cell.tau,
            settings=members[0].cell.settings,
            seeds=len(members),
            dev=mean_interval([member.cell.dev for member in members]),
            test=mean_interval([member.cell.test for member in members]),
            gain=gains.get(name),
            signature=task.signature(cell_recipe(base, vars(members[0].cell))),
        )
        for name, members in chosen.items()
    ]


def _gains(task: Task, chosen: Mapping[_Group, Sequence[SweepCell]]) -> dict[_Group, Interval]:
    """Paired bootstrap of every choice against ML of its grid, or the first there is, on the same resampled test sets.

    Choices of the same number of seeds go at a time.
    """
    baselines = {
        grid: members for (grid, objective, _), members in chosen.items() if objective == "ml"
    }
    if not baselines:
        return {}
    first = next(iter(baselines))
    alike: dict[tuple[str, torch.Size], dict[_Group, Tensor]] = {}
    for name, members in chosen.items():
        if name[1] != "ml":
            ours = _statistics(members)
            alike.setdefault((name[0] if name[0] in baselines else first, ours.shape), {})[name] = (
                ours
            )
    theirs = {grid: _statistics(baselines[grid]) for grid, _ in alike}
    gains: dict[_Group, Interval] = {}
    for (grid, shape), others in alike.items():
        if shape[1:] != theirs[grid].shape[1:]:  # another test set
            continue
        generator = torch.Generator().manual_seed(0)  # the same resamples for all
        systems = torch.stack(list(others.values()))
        intervals = paired_bootstrap(
            systems,
            theirs[grid],
            task.metrics[task.chosen_by],
            resamples=RESAMPLES,
            generator=generator,
        )
        gains |= dict(zip(others, intervals, strict=True))
    return gains


def _statistics(members: Sequence[SweepCell]) -> Tensor:
    """Test statistics ``[seeds, examples, D]`` of cells, as their runs have stored them."""
    found = []
    for member in members:
        run = RunFolder(member.run)
        hashes = [row["hash"] for row in run.cells()]
        with damaged(str(member.run)):
            found.append(run.test_counts().model(hashes.index(member.cell.hash)))
    return torch.stack(found)
