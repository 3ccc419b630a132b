"""Annotations of a sentence by several annotators, as lists of rows and as tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor

from softq.errors import DataError
from softq.integrations.text_rows import plain
from softq.integrations.transformers.tokens import IGNORED

Annotation = TypeVar("Annotation")


def read_annotations(
    given: Any, weights: Any, read: Callable[[Any], Annotation], *, noun: str, each: str
) -> list[tuple[int, float, Annotation]]:
    """Place, weight and annotation of each annotator who is not missing and has a weight above 0.

    Args:
        given: a list with an annotation, or None, of each annotator.
        weights: of the annotators, or None.
        read: makes an annotation of what is given.
        noun: what annotators gave, as errors name it.
        each: what each of them gave.

    >>> read_annotations([[0, 1], None, [0, 0]], [1, 1, 2], tuple, noun="labels", each="tuples")
    [(0, 1.0, (0, 1)), (2, 2.0, (0, 0))]

    """
    given, weights = plain(given), plain(weights)
    if not isinstance(given, list):
        raise DataError(
            f"'annotations' must be a list of {each}, None for a missing annotator, got"
            f" {type(given).__name__}"
        )
    if weights is None:
        weights = [1.0] * len(given)
    if len(weights) != len(given) or not all(_is_weight(weight) for weight in weights):
        raise DataError(
            f"'weights' must have a number from 0 for each of {len(given)} annotators, got"
            f" {weights}"
        )
    found = [
        (place, float(weight), read(plain(one)))
        for place, (one, weight) in enumerate(zip(given, weights, strict=True))
        if one is not None and weight
    ]
    if not found:
        raise DataError(
            f"expected {noun} of one annotator or more, with a weight above 0, got none: leave"
            " the row out, or predict it"
        )
    return found


def _is_weight(value: Any) -> bool:
    return isinstance(value, Real) and 0 <= float(value) < math.inf


def padded_references(rows: Sequence[Sequence[Sequence[int]]], width: int) -> Tensor:
    """Numbers of words ``[B, R, n]`` of the references of each row, -100 where there is none.

    >>> padded_references([[[1, 2]], [[3], [4]]], 2).tolist()
    [[[1, 2], [-100, -100]], [[3, -100], [4, -100]]]
    """
    values = torch.full((len(rows), max(map(len, rows)), width), IGNORED)
    for place, references in enumerate(rows):
        for which, reference in enumerate(references):
            values[place, which, : len(reference)] = torch.tensor(reference, dtype=torch.int64)
    return values


def padded_weights(weights: Sequence[Sequence[float]]) -> Tensor:
    """Weights of references ``[B, R]``, 0 of those that are missing."""
    rows = [torch.tensor(row, dtype=torch.float64) for row in weights]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Indicators ``[…, K]`` in float64, 0 where there is no label."""
    found = torch.nn.functional.one_hot(labels.clamp(min=0), classes).double()
    return found * (labels >= 0).unsqueeze(-1)


def fill(values: Tensor, weights: Tensor, classes: int, *, hard: bool) -> Tensor:
    """References in which a label that is left out is as those of the others.

    They are soft, ``[B, R, n, K]``: the mean over references is, for each word, that over those who
    labelled it. Or ``hard``, ``[B, R, n]``, with the label that has most of the weight. A word that
    nobody labelled stays so.

    >>> values = torch.tensor([[[1, -100], [-100, -100]]])
    >>> fill(values, torch.ones(1, 2), 2, hard=True)
    tensor([[[   1, -100],
             [   1, -100]]])
    """
    given = one_hot(values, classes)
    mean = (weights[..., None, None] * given).sum(1, keepdim=True)
    total = mean.sum(-1)
    if hard:
        others = mean.argmax(-1).masked_fill(total == 0, IGNORED)
        return torch.where(values == IGNORED, others, values)
    mean = mean / total.unsqueeze(-1).clamp(min=torch.finfo(mean.dtype).tiny)
    return torch.where((values == IGNORED).unsqueeze(-1), mean, given)
