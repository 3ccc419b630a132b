"""What users give to estimators: options, sentences, and annotations of each sentence.

By scikit-learn's convention all of it is checked in ``fit``. An estimator declares a rule for each
of its options (`CheckedOptions`), a function of the option's name and value that returns the value
to use or raises an error.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, TypeVar, get_args

import numpy as np
import torch

from softq.checks import check_tau
from softq.errors import (
    DataError,
    EstimatorError,
    ShapeError,
    SoftqError,
    TemperatureError,
    WeightError,
)
from softq.options import FEWEST_BITS, MOST_BITS, ObjectiveName

Annotation = TypeVar("Annotation")
Kind = TypeVar("Kind", bound=str)
Random = np.random.RandomState | np.random.Generator
Rule = Callable[[str, Any], Any]

# --- options ----------------------------------------------------------------------------------------------


class CheckedOptions:
    """An estimator whose options are checked by its rules."""

    _rules: ClassVar[Mapping[str, Rule]]

    def _option(self, name: str) -> Any:
        """An option, checked."""
        return self._rules[name](name, getattr(self, name))

    def _options_of(self, fields: Iterable[str]) -> dict[str, Any]:
        """Options that have the names of these fields, checked."""
        return {name: self._option(name) for name in fields if name in self._rules}

    def _objective_and_tau(self) -> tuple[ObjectiveName, float | None]:
        """The objective, and its temperature, which all but ML need; None where none is set."""
        objective: ObjectiveName = self._option("objective")
        tau = getattr(self, "tau", None)
        if objective != "ml" and tau is None:
            raise TemperatureError(
                f"objective={objective!r} needs a temperature: set tau, such as 0.1"
            )
        return objective, None if tau is None else check_tau(tau)


def count(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral) or value < 1:
        raise EstimatorError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def bits(name: str, value: Any) -> int:
    """A power of two that is the size of a table of hashed features."""
    if count(name, value) not in range(FEWEST_BITS, MOST_BITS + 1):
        raise EstimatorError(
            f"{name} must be a whole number in {FEWEST_BITS}..{MOST_BITS}, got {value!r}"
        )
    return int(value)


def number(wanted: str, accept: Callable[[float], bool]) -> Rule:
    """A rule for numbers that are accepted; its error says what is ``wanted``."""

    def rule(name: str, value: Any) -> float:
        real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
        if not real or not accept(float(value)):
            raise EstimatorError(f"{name} must be {wanted}, got {value!r}")
        return float(value)

    return rule


positive = number("a positive number", lambda value: 0.0 < value < math.inf)
not_negative = number("a number from 0", lambda value: 0.0 <= value < math.inf)


def choice(names: Any) -> Rule:
    """A rule for one of the names of a `Literal`."""
    known = get_args(names)

    def rule(name: str, value: Any) -> str:
        if value not in known:
            near = difflib.get_close_matches(str(value).lower(), known, 1, cutoff=0.0)
            raise EstimatorError(
                f"{name} must be one of {', '.join(known)}, got {value!r}; did you mean"
                f" {near[0]!r}?"
            )
        return str(value)

    return rule


def none_or(rule: Rule) -> Rule:
    """The same rule, or None."""
    return lambda name, value: None if value is None else rule(name, value)


def auto_or(rule: Rule) -> Rule:
    """The same rule, or "auto", for which None stands."""
    return lambda name, value: (
        None if isinstance(value, str) and value == "auto" else rule(f'{name} (or "auto")', value)
    )


def device(name: str, value: Any) -> torch.device:
    """A device that torch can use here."""
    try:
        torch.empty(0, device=value)  # a name may be known, and the device not there
        return torch.device(value)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise EstimatorError(
            f"{name} must be one that torch can use here, such as 'cpu', got {value!r} ({error})"
        ) from None


def generator(name: str, value: Any) -> Random:
    """What draws random numbers.

    Numpy's generators themselves, or a fresh one from a seed, or from None.
    """
    if isinstance(value, (np.random.RandomState, np.random.Generator)):
        return value
    try:
        return np.random.default_rng(value)
    except (TypeError, ValueError):
        raise EstimatorError(
            f"{name} must be None, a seed from 0, or a generator of numpy, got {value!r}"
        ) from None


def plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


# --- sentences --------------------------------------------------------------------------------------------


def read_sequences(given: Any, each: str) -> list[Any]:
    """The sentences of X; ``each`` is what an error calls one."""
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        raise DataError(f"X must be a sequence of sentences, each {each}, got {shown(given)}")
    return list(given)


def check_sequence(sentence: Any, number: int, unit: str) -> None:
    """A sentence has a length, and is no text."""
    if isinstance(sentence, (str, bytes, Mapping)) or not hasattr(sentence, "__len__"):
        raise DataError(
            f"sentence {number} of X must be a sequence of {unit}s, got {shown(sentence)}; split it"
            f" into {unit}s first"
        )


def common_kind(
    sentences: Iterable[Iterable[Any]],
    kind_of: Callable[[Any], Kind | None],
    names: Mapping[Kind, str],
    unit: str,
) -> Kind | None:
    """The one kind of all words or tokens, None where there are none; else an error.

    Args:
        sentences: what to look at.
        kind_of: the kind of a word or token, None if it is of no kind that is known.
        names: how an error calls each kind.
        unit: "word" or "token".

    """
    first: Kind | None = None
    *names_before, last = names.values()
    for number, sentence in enumerate(sentences):
        for place, token in enumerate(sentence):
            kind = kind_of(token)
            if kind is None or kind != (first or kind):
                expected = (
                    f"{names[first]} like the {unit}s before"
                    if first
                    else f"{', '.join(names_before)}, or {last}"
                )
                raise DataError(
                    f"sentence {number}, {unit} {place}: expected {expected}, got {shown(token)}"
                )
            first = kind
    return first


@contextmanager
def held_out_data() -> Iterator[None]:
    """Errors in here say that they are of sentences to be scored."""
    try:
        yield
    except SoftqError as error:
        raise type(error)(f"X_dev and y_dev: {error}") from None


# --- annotations ------------------------------------------------------------------------------------------


def read_annotations(
    given: Any,
    lengths: Sequence[int],
    ref_weights: Any,
    read: Callable[[Any, int], list[Annotation | None]],
    check: Callable[[Annotation, int, str], None],
    what: str,
) -> Iterator[tuple[list[Annotation], np.ndarray[Any, Any], list[int], int]]:
    """The annotations of each sentence but those that are missing, or have the weight 0.

    With each sentence come their weights, their annotators' places in y, and how many places of
    annotators it has, missing ones too.

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
        else _as_long("ref_weights", ref_weights, len(lengths))
    )
    entries = _as_long("y", given, len(lengths))
    for number, (entry, length, share) in enumerate(zip(entries, lengths, shares, strict=True)):
        found = read(entry, number)
        weights = _weights(share, len(found), number)
        kept = {place: one for place, one in enumerate(found) if one is not None and weights[place]}
        if not kept:
            weighed = "" if share is None else " or has the weight 0"
            raise DataError(
                f"sentence {number} has no {what}: every annotator is missing{weighed}; leave it"
                " out"
            )
        for annotator, one in enumerate(found):
            who = f"annotator {annotator} of " if len(found) > 1 else ""
            if one is not None:
                check(one, length, f"{who}sentence {number}")
        places = list(kept)
        yield list(kept.values()), weights[places], places, len(found)


def _as_long(name: str, given: Any, count: int) -> list[Any]:
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


def _weights(given: Any, count: int, number: int) -> np.ndarray[Any, Any]:
    if given is None:
        return np.ones(count)
    if not hasattr(given, "__len__") or len(given) != count:
        raise ShapeError(
            f"ref_weights of sentence {number} must be {count} numbers, one for each annotation of"
            f" it, got {shown(given)}"
        )
    for weight in given:
        if (
            isinstance(weight, bool)
            or not isinstance(weight, (int, float, np.number))
            or not 0 <= weight < math.inf
        ):
            raise WeightError(
                f"ref_weights of sentence {number} must be finite numbers from 0, got"
                f" {shown(weight)}"
            )
    return np.array([float(weight) for weight in given])


def check_single(outputs: Sequence[Any], what: str) -> None:
    """Raise an error where a sentence has the outputs of several annotators."""
    for number, found in enumerate(outputs):
        if len(found) != 1:
            raise DataError(
                f"expected one {what} for each sentence, the right one: sentence {number} has"
                f" {len(found)}"
            )


def may_be_annotator(entry: Any) -> bool:
    """Whether an entry for a sentence can be what one of several annotators gave, None for one who is missing."""
    return entry is None or (
        hasattr(entry, "__len__") and not isinstance(entry, (str, bytes, Mapping))
    )


def shown(value: Any) -> str:
    """A value and its type, for an error, shortened."""
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
