"""How sure a model is, and what its decoding trades: small tables that a run keeps for its report.

They are computed once, when training has ended, from distributions over the outputs of the
development and test sets. The development set fits a temperature, thresholds and the entity weight;
the test set says what they are worth. Without a test set, every other development sentence does
what the development set does, and the rest what the test set does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from softq.calibration import (
    UNKNOWN,
    ReliabilityBin,
    batch_of,
    calibration_scores,
    fit_temperature,
    reliability_diagram,
)
from softq.conformal import ConformalSets, Unit, conformal_rank, coverage, mean_set_size
from softq.errors import ConvergenceWarning, DataWarning
from softq.formats.tags import Scheme, convert
from softq.formats.trees import is_projective
from softq.lab.run import Curves, PrecisionRecall, Reliability, SetsRow, WeightPoint
from softq.linear.entity_weights import WEIGHTS, choose_weight, weight_row
from softq.linear.segment_tags import SegmentTags
from softq.linear.tagging import entity_reward, label_marginals, written
from softq.linear.tempering import at_temperature
from softq.spaces import Distribution, ProjectiveTree, SpanningTree

Array = np.ndarray[Any, Any]
Batches = Sequence[tuple[Array, Distribution]]
"""Distributions over classes, labels or heads, each with the places of its sentences."""

LEVELS = (0.9, 0.95)
TRIED = WEIGHTS[::2]
"""Entity weights of a curve: 1/8 to 64, each twice the one before."""
_UNITS: tuple[Unit, ...] = ("token", "sentence")


class Believed(NamedTuple):
    """What a model believes of a split, and what is right.

    Attributes:
        batches: over the outputs of all sentences.
        right: the right labels or heads of each, ``[n]``; -1 of a label that the model has not.
        segments: what labels spell where the model's outputs are segments.

    """

    batches: Batches
    right: Sequence[Array]
    segments: SegmentTags | None = None

    def probabilities(self, temperature: float) -> list[Array]:
        """Tables ``[n, K]`` of the choices of each token, the model's scores divided by this."""
        found: dict[int, Array] = {}
        for numbers, given in self.batches:
            model = at_temperature(given, temperature)
            probabilities = (
                model.by_token(model.marginals)
                if self.segments is None
                else label_marginals(model, self.segments)
            )
            tables = probabilities.double().cpu().numpy()
            tables = tables.reshape(len(numbers), -1, tables.shape[-1])  # a class is one token
            of_heads = isinstance(model, ProjectiveTree | SpanningTree)
            for number, table in zip(numbers.tolist(), tables, strict=True):
                length = len(self.right[number])
                found[number] = table[:length, : length + 1 if of_heads else None]
        return [found[number] for number in range(len(self.right))]

    def temperature(self, fitted: Array) -> float:
        """The temperature at which these sentences have the highest likelihood."""
        models, outputs = [], []
        for numbers, model in self.batches:
            kept = np.isin(numbers, fitted)
            right = {
                number: self._output(number)
                if of_use and _is_possible(model, self.right[number])
                else np.full_like(self.right[number], UNKNOWN)  # is left out
                for number, of_use in zip(numbers.tolist(), kept.tolist(), strict=True)
            }
            output = batch_of(right, numbers, model)
            score = model.like(*model.given()).score(output.clamp(min=0))
            known = [bool((right[number] != UNKNOWN).all()) for number in numbers.tolist()]
            if bool((torch.tensor(known) & (score.cpu() > -math.inf)).any()):
                models.append(model)
                outputs.append(output)
        if not models:
            return 1.0
        with warnings.catch_warnings():
            for kind in (DataWarning, ConvergenceWarning):
                warnings.simplefilter("ignore", kind)
            return fit_temperature(models, outputs, precision=1e-3)

    def _output(self, number: int) -> Array:
        right = self.right[number]
        return right if self.segments is None else self.segments.output(right)


def _is_possible(model: Distribution, right: Array) -> bool:
    return not isinstance(model, ProjectiveTree) or is_projective(right.tolist())


def uncertainty(choices: str, dev: Believed, test: Believed | None) -> Curves | None:
    """Calibration before and after temperature scaling, and sets with a guarantee.

    Args:
        choices: what a model chooses, in words: ``"labels"``, ``"heads"``, ``"classes"``.
        dev: the development set.
        test: the test set, if there is one.

    """
    rows = np.arange(len(dev.right))
    fitted, measured = (
        (rows[::2], rows[1::2]) if test is None else (rows, np.arange(len(test.right)))
    )
    judged = test or dev
    right = [judged.right[i] for i in measured]
    if not sum(map(len, right)) or not sum(len(dev.right[i]) for i in fitted):
        return None
    temperature = dev.temperature(fitted)
    before, after = (judged.probabilities(one) for one in (1.0, temperature))
    calibrated = after if test is None else dev.probabilities(temperature)
    after = [after[i] for i in measured]
    return {
        "choices": choices,
        "temperature": temperature,
        "before": _reliability([before[i] for i in measured], right),
        "after": _reliability(after, right),
        "sets": _sets(
            [calibrated[i] for i in fitted], [dev.right[i] for i in fitted], after, right
        ),
    }


def _reliability(tables: Sequence[Array], right: Sequence[Array]) -> Reliability:
    scores = calibration_scores(tables, right)
    bins: list[ReliabilityBin] = reliability_diagram(tables, right)
    return {
        "error": scores.error,
        "error_mass": scores.error_mass,
        "brier": scores.brier,
        "bins": [
            {"confidence": one.confidence, "accuracy": one.accuracy, "predictions": one.predictions}
            for one in bins
        ],
    }


def _sets(
    tables: Sequence[Array],
    right: Sequence[Array],
    new: Sequence[Array],
    new_right: Sequence[Array],
) -> list[SetsRow]:
    """Coverage and size at each level that there are enough sentences for."""
    found: list[SetsRow] = []
    single = all(len(one) == 1 for one in (*right, *new_right))
    for unit in _UNITS[:1] if single else _UNITS:
        count = sum(map(len, right)) if unit == "token" else sum(len(one) > 0 for one in right)
        levels = [level for level in LEVELS if conformal_rank(count, 1 - level) <= count]
        if not levels:
            continue
        rule = ConformalSets.calibrate(tables, right, 1 - levels[0], unit=unit)
        for level in levels:
            sets = rule._replace(alpha=1 - level).predict(new)
            covered = coverage(sets, new_right, unit=unit).value
            size = mean_set_size(sets)
            found.append({"level": level, "unit": unit, "coverage": covered, "size": size})
    return found


# --- precision against recall --------------------------------------------------------------------


class Tagged(NamedTuple):
    """Distributions over the labels of a split, and its true labels in the scheme of the data."""

    batches: Batches
    true: Sequence[Sequence[str]]


class EntityCurve(NamedTuple):
    """What decoding by entity weights needs beside the distributions.

    Attributes:
        labels: of the model, in its order.
        own: their scheme.
        scheme: that of the data.
        segments: what labels spell where the model's outputs are segments.

    """

    labels: Sequence[str]
    own: Scheme
    scheme: Scheme
    segments: SegmentTags | None = None

    def precision_recall(self, dev: Tagged, test: Tagged | None) -> PrecisionRecall:
        """Decoding by each entity weight: F1 of dev, which chooses, and what test has."""
        here = slice(None, None, 2) if test is None else slice(None)
        there = slice(1, None, 2) if test is None else slice(None)
        measured = dev if test is None else test
        choice = choose_weight(
            lambda weight: self.decode(dev, weight)[here],
            dev.true[here],
            self.scheme,
            1.0,
            TRIED,
        )
        points: list[WeightPoint] = []
        for row in choice.rows:
            labels = self.decode(measured, row.weight)[there]
            point = weight_row(labels, measured.true[there], self.scheme, 1.0, row.weight)
            points.append(
                {
                    "weight": point.weight,
                    "precision": _number(point.precision),
                    "recall": _number(point.recall),
                    "f1": point.f,
                    "dev_f1": row.f,
                }
            )
        return {"chosen": points[choice.rows.index(choice.best)], "points": points}

    def decode(self, split: Tagged, weight: float) -> list[list[str]]:
        """The labels that are expected to earn most with an entity weight."""
        segments, same = self.segments, self.own == self.scheme
        reward = segments.reward(weight) if segments else entity_reward(self.labels, weight)
        found: list[list[str]] = [[] for _ in split.true]
        for numbers, model in split.batches:
            best = written(model.mbr(reward), model.all_lengths(), self.labels, segments)
            for number, tags in zip(numbers.tolist(), best, strict=True):
                found[number] = tags if same else convert(tags, self.own, self.scheme)
        return found


def tagger_curves(
    labels: Sequence[str],
    own: Scheme | None,
    scheme: Scheme | None,
    dev: Tagged,
    test: Tagged | None,
    segments: SegmentTags | None = None,
) -> Curves | None:
    """All tables of a tagger with these labels, whose scheme may be another than that of the data."""
    number = {label: k for k, label in enumerate(labels)}
    own, theirs = own or scheme, scheme or own

    def believed(split: Tagged) -> Believed:
        true = split.true
        if own is not None and theirs is not None and own != theirs:
            true = [convert(one, theirs, own) for one in true]
        ids = [[number.get(label, UNKNOWN) for label in one] for one in true]
        return Believed(split.batches, [np.array(one, np.int64) for one in ids], segments)

    found = uncertainty("labels", believed(dev), None if test is None else believed(test))
    if found is not None and scheme is not None:
        curve = EntityCurve(labels, own or scheme, scheme, segments)
        found["precision_recall"] = curve.precision_recall(dev, test)
    return found


def _number(value: float) -> float | None:
    """JSON has no NaN, which precision is where nothing is predicted."""
    return None if math.isnan(value) else value
