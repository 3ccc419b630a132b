"""A sweep folder of the named-entity experiment as its results: scores, intervals, the Bayes rule, annotators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from softq.lab.report.ner_results import Judged, Kind, NerResults, NerSystem
from softq.lab.report.systems_load import (
    Members,
    bootstrap,
    complete,
    judge_all,
    origin,
    read_systems,
)
from softq.lab.run import RunFolder
from softq.lab.sweep import SWEEP, Sweep, SweepCell, read_recipe
from softq.lab.tasks import Task
from softq.lab.tasks.ner_data import bayes_statistics, label, read_corpora
from softq.lab.tasks.ner_recipe import Data, NerRecipe
from softq.metrics import (
    SPAN_METRICS,
    KindScores,
    SpanScores,
    mean_interval,
    span_f1,
    span_statistics,
    token_accuracy,
)

_FIXED = (2, 4)  # columns of statistics that the test part decides alone: entities and tokens


def ner_results(task: Task, sweep: Sweep, folder: Path, scale: str) -> NerResults:
    """What the finished models of a sweep found, at least one.

    Intervals, scores by type, the Bayes rule and annotators need the data; where its files are gone, the results say so.
    """
    base, _ = read_recipe(task, folder / SWEEP)
    systems, members = read_systems(base, sweep, mean_interval)
    results = NerResults(
        kind=kind_of([system.recipe for system in systems]),
        choices=_choices(sweep, systems),
        **origin(base, systems, sweep, folder, scale),
    )
    return complete(task, results, lambda found: _from_data(found, members))


def kind_of(recipes: Sequence[NerRecipe]) -> Kind:
    """What a sweep is: of the built-in world, of files with annotators, or else of temperatures."""
    if any(not recipe.data.train for recipe in recipes):
        return "world"
    return "crowd" if any(recipe.data.annotator_columns() for recipe in recipes) else "temperatures"


def _choices(sweep: Sweep, systems: Sequence[NerSystem]) -> list[tuple[str, str]]:
    """The system of each choice of the sweep, with its grid."""
    return [
        (choice.grid, system.name)
        for choice in sweep.choices
        for system in systems
        if (choice.objective, choice.tau, choice.settings)
        == (system.recipe.objective.name, system.tau, system.settings)
    ]


# --- data -----------------------------------------------------------------------------------------------


def _from_data(results: NerResults, members: Members) -> dict[str, Any]:
    """The fields that need the data."""
    corpora = read_corpora(results.recipe.data)
    parts = {
        "train": corpora.train,
        "dev": corpora.dev and corpora.dev.sentences,
        "test": corpora.test and corpora.test.sentences,
    }
    found: dict[str, Any] = {
        "sentences": {name: len(sentences) for name, sentences in parts.items() if sentences}
    }
    found["judged"] = judge_all(results, members, judge)
    if results.kind == "world":
        found["bayes"] = {
            data: _bayes(data)
            for data in dict.fromkeys(system.recipe.data for system, _ in results.pairs())
        }
    estimated = [
        system.recipe
        for system, _ in results.pairs()
        if system.recipe.annotations.weights != "uniform"
    ]
    if results.kind != "temperatures" and estimated:
        annotations = estimated[0].annotations
        reliability = label(
            estimated[0].data, annotations.references, annotations.ties, annotations.weights, False
        ).reliability
        if reliability is not None:
            found |= {"annotators": reliability.annotators, "annotator_model": annotations.weights}
    if results.best is not None:
        kinds = _by_kind(results.best.recipe, members[results.best.name][0])
        found |= {"kinds": kinds, "kinds_of": results.best.name if kinds else ""}
    return found


def judge(ours: Tensor, theirs: Tensor | None) -> Judged:
    """Scores of a system and its gains over another, with intervals, from statistics ``[seeds, sentences, 7]``."""
    return Judged(*bootstrap(ours, theirs, (span_f1, token_accuracy), _FIXED))


def _bayes(data: Data) -> dict[str, float]:
    sums = bayes_statistics(data).sum(0)
    return {name: float(metric(sums)) for name, metric in SPAN_METRICS.items()}


def _by_kind(recipe: NerRecipe, member: SweepCell) -> dict[str, KindScores]:
    """Scores of each type of entity, {} where there is no test part with true labels."""
    corpora = read_corpora(recipe.data)
    part = corpora.test or corpora.dev
    if part is None:
        return {}
    predicted = RunFolder(member.run).outputs()
    return SpanScores.of(span_statistics(part.gold, predicted, corpora.scheme)).kinds
