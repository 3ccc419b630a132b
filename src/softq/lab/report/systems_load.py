"""Sweep folders over corpora as results: models by seeds, statistics of their test sentences, where the numbers come from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from softq.errors import SoftqError
from softq.lab.report.sentence_results import Judged
from softq.lab.report.systems import R, SweepResults, System
from softq.lab.run import ENVIRONMENT, TIMINGS, RunFolder, read_json
from softq.lab.sweep import SWEEP, Sweep, SweepCell
from softq.lab.tasks import Task
from softq.lab.tasks.base import cell_recipe
from softq.metrics import Interval, PairedTest, paired_bootstrap, paired_test

Metric = Callable[[Tensor], Tensor]
Members = Mapping[str, Sequence[SweepCell]]  # the models of each system, by its name
S = TypeVar("S", bound=SweepResults[Any])
J = TypeVar("J")


def read_systems(
    base: R, sweep: Sweep, average: Callable[[Sequence[float]], Interval]
) -> tuple[list[System[R]], Members]:
    """Finished models, those that differ in their seed alone as one system, whose scores are averages over them."""
    groups: dict[tuple[str, float | None, str], list[SweepCell]] = {}
    for member in sweep.cells:
        groups.setdefault(
            (member.cell.objective, member.cell.tau, json.dumps(member.cell.settings)), []
        ).append(member)
    systems = [_system(base, members, average) for members in groups.values()]
    return systems, {members[0].cell.hash: members for members in groups.values()}


def _system(
    base: R, members: Sequence[SweepCell], average: Callable[[Sequence[float]], Interval]
) -> System[R]:
    cells = [member.cell for member in members]
    names = [name for name in cells[0].measures if all(name in cell.measures for cell in cells)]
    measured = {
        name: average([getattr(cell, name) for cell in cells]) for name in ("dev", "test", "epoch")
    }
    return System(
        name=cells[0].hash,
        grids=tuple(dict.fromkeys(grid for member in members for grid in member.grids)),
        recipe=cell_recipe(base, dataclasses.asdict(cells[0])),
        settings=cells[0].settings,
        scores=measured
        | {name: average([cell.measures[name] for cell in cells]) for name in names},
        seeds=tuple(cell.seed for cell in cells),
    )


def origin(
    base: R, systems: Sequence[System[R]], sweep: Sweep, folder: Path, scale: str
) -> dict[str, Any]:
    """The fields of `SweepResults` that are known without looking at the data."""
    recipes = [base, *(system.recipe for system in systems)]
    runs = [RunFolder(path) for path in sorted({member.run for member in sweep.cells})]
    environment = read_json(runs[0].path / ENVIRONMENT)
    place, threads = folder / SWEEP, environment.get("threads")
    return {
        "systems": systems,
        "recipe": base,
        "sentences": {},
        "signatures": [],
        "recipe_hash": hashlib.sha256(place.read_bytes()).hexdigest()[:12],
        "recipe_text": without_places(place.read_text(encoding="utf-8"), recipes),
        "command": f"softq sweep {shlex.quote(place.name if place.is_absolute() else str(place))} --out sweeps/again",
        "scale": scale,
        "seconds": sum(line["seconds"] for run in runs for line in run.lines(TIMINGS)),
        "device": environment.get("gpu")
        if environment.get("device") == "cuda"
        else f"{threads} CPU thread{'' if threads == 1 else 's'}",
        "version": str(environment.get("softq", "")),
        "date": datetime.now(UTC).date().isoformat(),
    }


def complete(task: Task, results: S, from_data: Callable[[S], Mapping[str, Any]]) -> S:
    """The results with their rewards and what needs the data; where its files are gone, they say so instead."""
    signatures = list(dict.fromkeys(task.signature(system.recipe) for system, _ in results.pairs()))
    results = dataclasses.replace(results, signatures=signatures)
    try:
        return dataclasses.replace(results, **from_data(results))
    except SoftqError as error:
        recipes = [results.recipe, *(system.recipe for system in results.systems)]
        return dataclasses.replace(results, missing=without_places(str(error), recipes))


def without_places(text: str, recipes: Sequence[Any]) -> str:
    """The text with the names of files in place of absolute paths: where they lie is of no use to others."""
    files = {path for recipe in recipes for path in recipe.data.files}
    for path in sorted(files, key=len, reverse=True):  # one may begin with another
        if Path(path).is_absolute():
            text = text.replace(path, Path(path).name)
    return text


def judge_all(
    results: SweepResults[R], members: Members, judge: Callable[[Tensor, Tensor | None], J]
) -> dict[str, J]:
    """What ``judge`` says of each system shown and what it is compared with, from their statistics ``[seeds, sentences, D]``."""
    statistics = test_rows([system for system, _ in results.pairs()], members)
    return {
        system.name: judge(
            statistics[system.name], None if against in (None, system) else statistics[against.name]
        )
        for system, against in results.pairs()
    }


def test_rows(systems: Sequence[System[R]], members: Members) -> dict[str, Tensor]:
    """Statistics ``[seeds, sentences, D]`` of each system's test sentences, by its name."""
    return {
        system.name: torch.stack([one.test_statistics() for one in members[system.name]])
        for system in systems
    }


def judge_by(metrics: Mapping[str, Metric], ours: Tensor, theirs: Tensor | None) -> Judged:
    """Scores of a system, and its gains over another, by these metrics, with intervals, from statistics ``[seeds, sentences, D]``."""
    scores = dict(zip(metrics, bootstrap(ours, None, list(metrics.values()), ()), strict=True))
    return Judged(scores, {} if theirs is None else tests_by(metrics, ours, theirs))


def tests_by(metrics: Mapping[str, Metric], ours: Tensor, theirs: Tensor) -> dict[str, PairedTest]:
    """How much better a system is than another by each metric, from statistics ``[seeds, sentences, D]``."""
    return {
        name: paired_test(
            ours.unsqueeze(0), theirs, metric, generator=torch.Generator().manual_seed(0)
        )[0]
        for name, metric in metrics.items()
    }


def bootstrap(
    ours: Tensor, theirs: Tensor | None, metrics: Sequence[Metric], fixed: Sequence[int]
) -> list[Interval]:
    """Scores of a system by each metric, then its gains over another, with 95 % intervals over test sentences.

    There are no gains over nothing, nor over a system that was judged on other sentences.

    Args:
        ours: statistics ``[seeds, sentences, D]``.
        theirs: the other system's, ``[seeds, sentences, D]``.
        metrics: of sums over sentences.
        fixed: columns that the test part decides alone, by which other sentences are known.

    """
    nothing = torch.zeros_like(ours[:1])  # scores 0, so that the gain over it is the score itself
    scores = [_gain(ours, nothing, metric) for metric in metrics]
    if (
        theirs is None
        or ours.shape[1:] != theirs.shape[1:]
        or not torch.equal(ours[0][:, fixed], theirs[0][:, fixed])
    ):
        return scores
    return scores + [_gain(ours, theirs, metric) for metric in metrics]


def _gain(ours: Tensor, theirs: Tensor, metric: Metric) -> Interval:
    return paired_bootstrap(
        ours.unsqueeze(0), theirs, metric, generator=torch.Generator().manual_seed(0)
    )[0]
