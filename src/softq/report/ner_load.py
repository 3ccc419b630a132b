"""A sweep folder of the named-entity experiment as its results: scores, intervals, the Bayes rule, annotators."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softq.data.tags import convert
from softq.errors import SoftqError
from softq.evaluate import (
    SPAN_METRICS,
    Interval,
    KindScores,
    SpanScores,
    mean_interval,
    paired_bootstrap,
    span_f1,
    span_statistics,
    token_accuracy,
)
from softq.report.ner_results import Judged, Kind, NerResults, System
from softq.run import ENVIRONMENT, TIMINGS, RunFolder, read_json
from softq.sweep import SWEEP, Sweep, SweepCell, read_recipe
from softq.tagging import Tagger
from softq.tasks import Task
from softq.tasks.base import best_models, cell_recipe
from softq.tasks.ner_data import bayes_statistics, label, read_corpora
from softq.tasks.ner_learner import Problem
from softq.tasks.ner_recipe import Data, NerRecipe

_GOLD, _TOKENS = 2, 4  # columns of statistics that the test part decides alone


def ner_results(task: Task, sweep: Sweep, folder: Path, scale: str) -> NerResults:
    """What the finished models of a sweep found, at least one.

    Intervals, scores by type, the Bayes rule and annotators need the data; where its files are gone, the results say so.
    """
    base, _ = read_recipe(task, folder / SWEEP)
    groups = _groups(sweep)
    systems = [_system(base, members) for members in groups]
    runs = [RunFolder(path) for path in sorted({member.run for member in sweep.cells})]
    environment = read_json(runs[0].path / ENVIRONMENT)
    place = folder / SWEEP
    results = NerResults(
        kind=kind_of([system.recipe for system in systems]),
        systems=systems,
        choices=_choices(sweep, systems),
        recipe=base,
        sentences={},
        signatures=[],
        recipe_hash=hashlib.sha256(place.read_bytes()).hexdigest()[:12],
        recipe_text=_without_places(place.read_text(encoding="utf-8"), [base, *(system.recipe for system in systems)]),
        command=f"softq sweep {shlex.quote(place.name if place.is_absolute() else str(place))} --out sweeps/again",
        scale=scale,
        seconds=sum(line["seconds"] for run in runs for line in run.lines(TIMINGS)),
        device=f"{environment.get('threads')} CPU {'thread' if environment.get('threads') == 1 else 'threads'}",
        version=str(environment.get("softq", "")),
        date=datetime.now(UTC).date().isoformat(),
    )
    signatures = list(dict.fromkeys(task.signature(system.recipe) for system, _ in results.pairs()))
    results = dataclasses.replace(results, signatures=signatures)
    try:
        return dataclasses.replace(results, **_from_data(task, results, {members[0].cell.hash: members for members in groups}))
    except SoftqError as error:
        said = _without_places(str(error), [base, *(system.recipe for system in systems)])
        return dataclasses.replace(results, missing=said)


def kind_of(recipes: Sequence[NerRecipe]) -> Kind:
    """What a sweep is: of the built-in world, of files with annotators, or else of temperatures."""
    if any(not recipe.data.train for recipe in recipes):
        return "world"
    return "crowd" if any(recipe.data.annotator_columns() for recipe in recipes) else "temperatures"


# --- models ---------------------------------------------------------------------------------------------


def _groups(sweep: Sweep) -> list[list[SweepCell]]:
    """Finished models, those that differ in their seed alone together."""
    groups: dict[tuple[str, float | None, str], list[SweepCell]] = {}
    for member in sweep.cells:
        groups.setdefault((member.cell.objective, member.cell.tau, json.dumps(member.cell.settings)), []).append(member)
    return list(groups.values())


def _system(base: NerRecipe, members: Sequence[SweepCell]) -> System:
    cells = [member.cell for member in members]
    names = [name for name in cells[0].measures if all(name in cell.measures for cell in cells)]
    return System(
        name=cells[0].hash,
        grids=tuple(dict.fromkeys(grid for member in members for grid in member.grids)),
        recipe=cell_recipe(base, dataclasses.asdict(cells[0])),
        settings=cells[0].settings,
        scores={"dev": mean_interval([cell.dev for cell in cells]), "test": mean_interval([cell.test for cell in cells])}
        | {name: mean_interval([cell.measures[name] for cell in cells]) for name in names},
        seeds=tuple(cell.seed for cell in cells),
    )


def _choices(sweep: Sweep, systems: Sequence[System]) -> list[tuple[str, str]]:
    """The system of each choice of the sweep, with its grid."""
    return [
        (choice.grid, system.name)
        for choice in sweep.choices
        for system in systems
        if (choice.objective, choice.tau, choice.settings) == (system.recipe.objective.name, system.tau, system.settings)
    ]


def _without_places(text: str, recipes: Sequence[NerRecipe]) -> str:
    """The text with the names of files in place of absolute paths: where they lie is of no use to others."""
    files = {path for recipe in recipes for path in (recipe.data.train, recipe.data.dev, recipe.data.test)}
    for path in sorted(files, key=len, reverse=True):  # one may begin with another
        if Path(path).is_absolute():
            text = text.replace(path, Path(path).name)
    return text


# --- data -----------------------------------------------------------------------------------------------


def _from_data(task: Task, results: NerResults, members: Mapping[str, Sequence[SweepCell]]) -> dict[str, Any]:
    """The fields that need the data."""
    corpora = read_corpora(results.recipe.data)
    parts = {"train": corpora.train, "dev": corpora.dev and corpora.dev.sentences, "test": corpora.test and corpora.test.sentences}
    found: dict[str, Any] = {"sentences": {name: len(sentences) for name, sentences in parts.items() if sentences}}
    statistics = {system.name: _statistics(task, system, members[system.name]) for system, _ in results.pairs()}
    found["judged"] = {
        system.name: judge(statistics[system.name], None if against in (None, system) else statistics[against.name])
        for system, against in results.pairs()
    }
    if results.kind == "world":
        found["bayes"] = {data: _bayes(data) for data in dict.fromkeys(system.recipe.data for system, _ in results.pairs())}
    estimated = [system.recipe for system, _ in results.pairs() if system.recipe.annotations.weights != "uniform"]
    if results.kind != "temperatures" and estimated:
        annotations = estimated[0].annotations
        reliability = label(estimated[0].data, annotations.references, annotations.ties, annotations.weights, False).reliability
        if reliability is not None:
            found |= {"annotators": reliability.annotators, "annotator_model": annotations.weights}
    if results.best is not None:
        kinds = _by_kind(results.best.recipe, members[results.best.name][0])
        found |= {"kinds": kinds, "kinds_of": results.best.name if kinds else ""}
    return found


def _statistics(task: Task, system: System, members: Sequence[SweepCell]) -> Tensor:
    """Test statistics ``[seeds, sentences, 7]``."""
    return torch.cat([task.test_statistics([system.recipe], best_models(RunFolder(member.run)), [0]) for member in members])


def judge(ours: Tensor, theirs: Tensor | None) -> Judged:
    """Scores of a system and its gains over another, with intervals, from statistics ``[seeds, sentences, 7]``.

    There are no gains over nothing, nor over a system that was judged on other sentences.
    """
    nothing = torch.zeros_like(ours[:1])  # scores 0, so that the gain over it is the score itself
    scores = [_gain(ours, nothing, metric) for metric in (span_f1, token_accuracy)]
    shared = [_GOLD, _TOKENS]
    if theirs is None or ours.shape[1:] != theirs.shape[1:] or not torch.equal(ours[0][:, shared], theirs[0][:, shared]):
        return Judged(*scores)
    return Judged(*scores, *(_gain(ours, theirs, metric) for metric in (span_f1, token_accuracy)))


def _gain(ours: Tensor, theirs: Tensor, metric: Callable[[Tensor], Tensor]) -> Interval:
    return paired_bootstrap(ours.unsqueeze(0), theirs, metric, generator=torch.Generator().manual_seed(0))[0]


def _bayes(data: Data) -> dict[str, float]:
    sums = bayes_statistics(data).sum(0)
    return {name: float(metric(sums)) for name, metric in SPAN_METRICS.items()}


def _by_kind(recipe: NerRecipe, member: SweepCell) -> dict[str, KindScores]:
    """Scores of each type of entity, {} where there is no test part with true labels."""
    problem = Problem.of(recipe)
    corpora = problem.prepared.corpora
    part, matrix = (corpora.test, problem.prepared.test) if corpora.test is not None else (corpora.dev, problem.prepared.dev)
    if part is None or matrix is None:
        return {}
    tagger, _ = Tagger.from_tensors(best_models(RunFolder(member.run)))
    predicted = [convert(labels, problem.trained_scheme, corpora.scheme) for labels in tagger.decode(matrix, recipe.model.decoding)]
    return SpanScores.of(span_statistics(part.gold, predicted, corpora.scheme)).kinds
