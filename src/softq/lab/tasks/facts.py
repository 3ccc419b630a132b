"""Facts about a task's data that a run stores in ``result.json``, so that a report needs the run folder alone.

A task states them in its method ``facts(recipe, outputs)``; ``outputs`` are the predictions for the test set. The report knows these keys:

=====================  ==============================================================================
``examples``           number of examples by split, where counts do not tell it (``train``)
``bayes``              scores of the Bayes rule of a built-in world, by the names of measures
``types``              span scores of the test set by type of entity
``annotators``         how reliable each annotator seems
``annotator_model``    the model that estimated it
``annotator_scores``   UAS of each annotator against the true trees of a built-in world
=====================  ==============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from softq.lab.tasks import ner_data, parsing_data
from softq.lab.tasks.files import once
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.lab.tasks.parsing_recipe import ParsingRecipe
from softq.metrics import (
    ATTACHMENT_METRICS,
    SPAN_METRICS,
    Metric,
    SpanScores,
    span_statistics,
)

Facts = dict[str, Any]


def ner_facts(recipe: NerRecipe, outputs: Sequence[Any]) -> Facts:
    """Scores by type, annotators, and the Bayes rule of the built-in world."""
    corpora = ner_data.read_corpora(recipe.data)
    facts: Facts = {"examples": {"train": len(corpora.train)}}
    part = corpora.test or corpora.dev
    if corpora.scheme and part is not None and len(outputs) == len(part.gold):
        scores = SpanScores.of(span_statistics(part.gold, outputs, corpora.scheme))
        facts["types"] = {name: one._asdict() for name, one in scores.kinds.items()}
    options = recipe.annotations
    if options.weights != "uniform":
        labelled = ner_data.label(
            recipe.data, options.references, options.ties, options.weights, False
        )
        if labelled.reliability is not None:
            facts["annotators"] = [row._asdict() for row in labelled.reliability.annotators]
            facts["annotator_model"] = options.weights
    if not recipe.data.train:
        facts["bayes"] = _ner_bayes(recipe.data)
    return facts


def parsing_facts(recipe: ParsingRecipe, outputs: Sequence[Any]) -> Facts:
    """How far annotators are right, and the Bayes rule, in the built-in world."""
    corpora = parsing_data.read_corpora(recipe.data)
    facts: Facts = {"examples": {"train": len(corpora.train)}}
    if not recipe.data.train:
        facts["bayes"] = _parsing_bayes(recipe.data)
        pairs = zip(corpora.train, corpora.trees.heads, strict=True)
        right = np.sum([(trees == one.heads).sum(1) for one, trees in pairs], 0)
        words = sum(len(sentence.heads) for sentence in corpora.train)
        if (right < words).any():
            facts["annotator_scores"] = (right / words).tolist()
    return facts


@once(2)
def _ner_bayes(data: Any) -> dict[str, float]:
    return named_scores(SPAN_METRICS, ner_data.bayes_statistics(data))


@once(2)
def _parsing_bayes(data: Any) -> dict[str, float]:
    return named_scores(ATTACHMENT_METRICS, parsing_data.bayes_statistics(data))


def named_scores(metrics: Mapping[str, Metric], counts: Tensor) -> dict[str, float]:
    """Metrics of counts ``[N, C]`` by the names of measures of the test set."""
    sums = counts.sum(0)
    found = {f"test_{name}": float(metric(sums)) for name, metric in metrics.items()}
    return {name: value for name, value in found.items() if value == value}  # JSON has no NaN
