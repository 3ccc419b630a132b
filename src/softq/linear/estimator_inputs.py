"""What users give to estimators of sentences.

Entries for each sentence, one or several annotations of it, their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from softq.errors import DataError, ShapeError, WeightError

Annotation = TypeVar("Annotation")


class Kept(NamedTuple, Generic[Annotation]):
    """An annotation of a sentence, its weight, and its annotator's place in y."""

    annotation: Annotation
    weight: float
    place: int


class Annotated(NamedTuple, Generic[Annotation]):
    """The annotations of a sentence, and how many places of annotators it has, missing ones too."""

    kept: list[Kept[Annotation]]
    places: int


def as_long(name: str, given: Any, count: int) -> list[Any]:
    """Entries for each of so many sentences."""
    if given is None or isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise DataError(
            f"{name} must be a sequence with an entry for each sentence of X, got {shown(given)}"
        )
    entries = list(given)
    if len(entries) != count:
        raise ShapeError(
            f"{name} must have an entry for each of the {count} sentences of X, got {len(entries)}"
        )
    return entries


def read_annotations(
    given: Any,
    lengths: Sequence[int],
    ref_weights: Any,
    read: Callable[[Any, int], list[Annotation | None]],
    check: Callable[[Annotation, int, str], None],
    what: str,
) -> Iterator[Annotated[Annotation]]:
    """The annotations of each sentence; those that are missing, or have the weight 0, are left out.

    Args:
        given: y, an entry for each sentence.
        lengths: of the sentences.
        ref_weights: an entry for each sentence, or None: all alike.
        read: the annotations in an entry, None for an annotator who is missing; the second argument
            is the sentence's number.
        check: raises an error where an annotation does not fit a length; the third argument says
            whose it is.
        what: how an error calls annotations.

    """
    shares = (
        [None] * len(lengths)
        if ref_weights is None
        else as_long("ref_weights", ref_weights, len(lengths))
    )
    entries = as_long("y", given, len(lengths))
    for number, (entry, length, share) in enumerate(zip(entries, lengths, shares, strict=True)):
        found = read(entry, number)
        kept = kept_annotators(found, share, number, what)
        for annotator, one in enumerate(found):
            who = f"annotator {annotator} of " if len(found) > 1 else ""
            if one is not None:
                check(one, length, f"{who}sentence {number}")
        yield Annotated(kept, len(found))


def may_be_annotator(entry: Any) -> bool:
    """Whether an entry for a sentence can be what one of several annotators gave, None for one who is missing."""
    return entry is None or (
        hasattr(entry, "__len__") and not isinstance(entry, (str, bytes, Mapping))
    )


def kept_annotators(
    found: Sequence[Annotation | None], shares: Any, number: int, what: str
) -> list[Kept[Annotation]]:
    """Annotations of a sentence but those that are missing, or have the weight 0.

    ``shares`` are their weights, None: all alike.
    """
    weights = _weights(shares, len(found), number)
    kept = [
        Kept(one, weight, place)
        for place, (one, weight) in enumerate(zip(found, weights, strict=True))
        if one is not None and weight
    ]
    if not kept:
        missing = (
            "every annotator is missing"
            if shares is None
            else "every annotator is missing or has the weight 0"
        )
        raise DataError(f"sentence {number} has no {what}: {missing}; leave it out")
    return kept


def _weights(given: Any, count: int, number: int) -> list[float]:
    if given is None:
        return [1.0] * count
    if not hasattr(given, "__len__") or len(given) != count:
        raise ShapeError(
            f"ref_weights of sentence {number} must be {count} numbers, one for each annotation of"
            f" it, got {shown(given)}"
        )
    weights = list(given)
    for weight in weights:
        if (
            isinstance(weight, bool)
            or not isinstance(weight, (int, float, np.number))
            or not 0 <= weight < math.inf
        ):
            raise WeightError(
                f"ref_weights of sentence {number} must be finite numbers from 0, got"
                f" {shown(weight)}"
            )
    return [float(weight) for weight in weights]


def shown(value: Any) -> str:
    """A value and its type, for an error, shortened."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
