"""A sweep folder of the captioning experiment as its results: scores, intervals, examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softq.lab.report.captioning_examples import study_of
from softq.lab.report.captioning_results import CaptioningResults, CaseStudy, best_of_each
from softq.lab.report.parsing_load import mean_and_range
from softq.lab.report.runs import RunSummary
from softq.lab.report.systems_load import (
    Members,
    complete,
    judge_by,
    origin,
    read_systems,
    test_rows,
    tests_by,
)
from softq.lab.sweep import SWEEP, Sweep, read_recipe
from softq.lab.tasks import Task
from softq.lab.tasks.captioning import read_captioned
from softq.metrics import CAPTION_METRICS

JUDGED = {
    name: CAPTION_METRICS[name]
    for name in ("average_reward", "max_reward", "corpus_bleu", "rouge_l", "cider_d", "exact_match")
}
"""Metrics that have intervals."""


def captioning_results(
    task: Task, sweep: Sweep, folder: Path, scale: str, runs: Sequence[RunSummary]
) -> CaptioningResults:
    """What the finished models of a sweep found, at least one.

    Intervals and examples need the data; where its files are gone, the results say so.
    """
    base, _ = read_recipe(task, folder / SWEEP)
    systems, members = read_systems(base, sweep, mean_and_range)
    known = origin(base, systems, sweep, folder, scale)
    images = base.data.images
    if Path(images).is_absolute():  # where it lies is of no use to others
        known["recipe_text"] = known["recipe_text"].replace(images, Path(images).name)
    results = CaptioningResults(runs=runs, **known)
    results = complete(task, results, lambda found: _from_data(found, members))
    return (
        dataclasses.replace(results, no_study="its images and captions cannot be read here")
        if results.missing
        else results
    )


def _from_data(results: CaptioningResults, members: Members) -> dict[str, Any]:
    """The fields that need the data."""
    parts = read_captioned(results.recipe.data)
    chosen = results.chosen()
    rows = test_rows([system for system, _ in chosen], members)
    rivals = [
        best
        for variant in results.variants()
        if {"RAML", "SQDML"} <= (best := best_of_each(variant)).keys()
    ]
    study = study_of(results, members, rows)
    return {
        "sentences": {name: len(part) for name, part in vars(parts).items() if part is not None},
        "judged": {
            system.name: judge_by(JUDGED, rows[system.name], None if ml is None else rows[ml.name])
            for system, ml in chosen
        },
        "over_raml": {
            best["SQDML"].name: tests_by(JUDGED, rows[best["SQDML"].name], rows[best["RAML"].name])
            for best in rivals
        },
        "study": study,
        "no_study": _why_no_study(study),
    }


def _why_no_study(study: CaseStudy | None) -> str:
    if study is None:
        return "it compares SQDML or RAML with another objective, and the sweep has no two of them so far"
    return (
        ""
        if study.ahead or study.behind
        else f"captions by {study.ours} and by {study.other} earn the same on every test image"
    )
