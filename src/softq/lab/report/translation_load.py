"""A sweep folder of the translation experiment as its results: scores, intervals, the Bayes rule."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from softq.lab.report.parsing_load import mean_and_range
from softq.lab.report.runs import RunSummary
from softq.lab.report.systems_load import (
    Members,
    complete,
    judge_by,
    origin,
    read_systems,
    test_rows,
)
from softq.lab.report.translation_results import Judged, TranslationResults
from softq.lab.sweep import SWEEP, Sweep, read_recipe
from softq.lab.tasks import Task
from softq.lab.tasks.sequence_data import TextCorpus
from softq.lab.tasks.translation import TranslationData, read_translations, world_of
from softq.metrics import TRANSLATION_METRICS, translation_statistics
from softq.rewards import SentenceBLEU

JUDGED = ("sentence_bleu", "corpus_bleu", "average_reward", "exact_match")
"""Metrics that have intervals."""


def translation_results(
    task: Task, sweep: Sweep, folder: Path, scale: str, runs: Sequence[RunSummary]
) -> TranslationResults:
    """What the finished models of a sweep found, at least one.

    Intervals and the Bayes rule need the data; where its files are gone, the results say so.
    """
    base, _ = read_recipe(task, folder / SWEEP)
    systems, members = read_systems(base, sweep, mean_and_range)
    results = TranslationResults(runs=runs, **origin(base, systems, sweep, folder, scale))
    return complete(task, results, lambda found: _from_data(found, members))


def _from_data(results: TranslationResults, members: Members) -> dict[str, Any]:
    """The fields that need the data."""
    corpora = read_translations(results.recipe.data)
    parts = {"train": corpora.train, "dev": corpora.dev, "test": corpora.test}
    chosen = results.chosen()
    rows = test_rows([system for system, _ in chosen], members)
    worlds = dict.fromkeys(
        system.recipe.data for system, _ in chosen if not system.recipe.data.train
    )
    return {
        "sentences": {name: len(part) for name, part in parts.items() if part is not None},
        "judged": {
            system.name: judge(rows[system.name], None if ml is None else rows[ml.name])
            for system, ml in chosen
        },
        "bayes": {
            data: _bayes(data, test)
            for data in worlds
            if (test := read_translations(data).test) is not None
        },
    }


def judge(ours: Tensor, theirs: Tensor | None) -> Judged:
    """Scores of a system, and its gains over ML, with intervals, from statistics ``[seeds, sentences, 14]``."""
    return judge_by({name: TRANSLATION_METRICS[name] for name in JUDGED}, ours, theirs)


def _bayes(data: TranslationData, test: TextCorpus) -> dict[str, float]:
    """What the translations of the highest expected reward are worth, by the metrics and by that reward."""
    world, reward = world_of(data), SentenceBLEU()
    best = [world.bayes(source, reward) for source in test.inputs]
    references = [[reference.split() for reference in several] for several in test.references]
    sums = translation_statistics([one.text.split() for one in best], references).sum(0)
    scores = {name: float(metric(sums)) for name, metric in TRANSLATION_METRICS.items()}
    return scores | {"expected_reward": statistics.fmean(one.reward for one in best)}
