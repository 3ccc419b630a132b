"""A sweep folder of the parsing experiment as its results: scores, intervals, the Bayes rule."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from softq.lab.report.parsing_results import Judged, ParsingResults
from softq.lab.report.runs import RunSummary
from softq.lab.report.systems_load import (
    Members,
    bootstrap,
    complete,
    judge_all,
    origin,
    read_systems,
)
from softq.lab.sweep import SWEEP, Sweep, read_recipe
from softq.lab.tasks import Task
from softq.lab.tasks.parsing_data import Corpora, bayes_statistics, read_corpora
from softq.lab.tasks.parsing_recipe import Data
from softq.metrics import ATTACHMENT_METRICS, ATTACHMENT_STATISTICS, Interval

_METRICS = [ATTACHMENT_METRICS[name] for name in ("uas", "las", "exact_match")]
_FIXED = (ATTACHMENT_STATISTICS.index("words"),)  # what the test part decides alone


def parsing_results(
    task: Task, sweep: Sweep, folder: Path, scale: str, runs: Sequence[RunSummary]
) -> ParsingResults:
    """What the finished models of a sweep found, at least one.

    Intervals, the Bayes rule and annotators need the data; where its files are gone, the results say so.
    """
    base, _ = read_recipe(task, folder / SWEEP)
    systems, members = read_systems(base, sweep, mean_and_range)
    results = ParsingResults(runs=runs, **origin(base, systems, sweep, folder, scale))
    return complete(task, results, lambda found: _from_data(found, members))


def mean_and_range(values: Sequence[float]) -> Interval:
    """Mean over seeds between the least and the largest; a single value has no range.

    >>> mean_and_range([0.5, 0.75, 1.0])
    Interval(value=0.75, low=0.5, high=1.0)
    """
    mean = statistics.fmean(values)
    return Interval(mean, min(values), max(values)) if len(values) > 1 else Interval(mean)


def _from_data(results: ParsingResults, members: Members) -> dict[str, Any]:
    """The fields that need the data."""
    corpora = read_corpora(results.recipe.data)
    parts = {"train": corpora.train, "dev": corpora.dev, "test": corpora.test}
    worlds = dict.fromkeys(
        system.recipe.data for system, _ in results.pairs() if not system.recipe.data.train
    )
    return {
        "sentences": {name: len(sentences) for name, sentences in parts.items() if sentences},
        "judged": judge_all(results, members, judge),
        "bayes": {data: _bayes(data) for data in worlds},
        "annotators": [] if results.recipe.data.train else _annotators(corpora),
    }


def judge(ours: Tensor, theirs: Tensor | None) -> Judged:
    """Scores of a system and its gains over ML, with intervals, from statistics ``[seeds, sentences, 10]``."""
    return Judged(*bootstrap(ours, theirs, _METRICS, _FIXED))


def _bayes(data: Data) -> dict[str, float]:
    sums = bayes_statistics(data).sum(0)
    return {name: float(metric(sums)) for name, metric in ATTACHMENT_METRICS.items()}


def _annotators(corpora: Corpora) -> list[float]:
    """UAS of each annotator's training trees, [] where the true trees are what is learnt."""
    right = np.sum(
        [
            (trees == sentence.heads).sum(1)
            for sentence, trees in zip(corpora.train, corpora.trees.heads, strict=True)
        ],
        0,
    )
    words = sum(len(sentence.heads) for sentence in corpora.train)
    return [] if (right == words).all() else (right / words).tolist()
