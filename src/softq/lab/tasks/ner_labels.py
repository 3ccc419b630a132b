"""What training sentences say: references of several annotators, or the truth as it is estimated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from softq.annotators.known import KnownLabels
from softq.annotators.reliability import (
    Reliability,
    estimate,
    reference_weights,
    reliability_of,
    vote,
)
from softq.annotators.tables import TablePriors
from softq.annotators.truth import Posterior
from softq.errors import DataError, RecipeError
from softq.formats.conll import MISSING, Sentence
from softq.formats.tags import OUTSIDE, Scheme, allowed_transitions, convert, every_tag
from softq.lab.loop import tell
from softq.lab.tasks.files import once
from softq.lab.tasks.ner_data import extract, label_names, read_corpora
from softq.lab.tasks.ner_recipe import NerData, NerFeatures, NerRecipe, trained_scheme
from softq.linear.features import FeatureMatrix
from softq.linear.tagging import UNLABELLED, References
from softq.linear.truth_loop import LoopOptions, TruthLoop, find_truth

Array = np.ndarray[Any, Any]
_LEAST = float(np.finfo(np.float64).tiny)  # so that no annotator is lost where sharpness is large


class Labelled(NamedTuple):
    """What the training sentences say.

    Attributes:
        names: labels of the model.
        references: by their numbers; or the truth as a tagger is trained toward it.
        reliability: of the annotators, where it was estimated.
        truth: the most likely labels of each sentence, where they were estimated.

    """

    names: tuple[str, ...]
    references: References | Posterior
    reliability: Reliability | None
    truth: Sequence[Sequence[str]] = ()

    def best(self, sentence: int) -> list[str]:
        """What stands for the true labels of a sentence: the likeliest, or the heaviest reference."""
        if isinstance(self.references, References):
            return [self.names[k] for k in self.references.best(sentence)]
        return list(self.truth[sentence])


def label(recipe: NerRecipe) -> Labelled:
    """What training sentences say, in the scheme to train in."""
    data, options, objective = recipe.data, recipe.annotations, recipe.objective
    if options.annotator_model != "none" or data.partial_labels:
        loop, best, reliability = _truth(
            data, recipe.features, options.annotator_model, loop_options(recipe)
        )
        toward = loop.toward(objective.name, objective.tau)
        return Labelled(tuple(loop.labels), toward, reliability, best)
    mend = recipe.model.constraints in ("target", "model")
    fill = mend and objective.name == "ml"
    how = options.references, options.ties, options.weights, options.sharpness
    return _label(data, *how, mend, fill, recipe.max_segment is not None)


# --- annotators as references ----------------------------------------------------------------------------


@once(4)
def _label(
    data: NerData,
    references: str,
    ties: Any,
    weights: str,
    sharpness: float,
    mend: bool,
    fill: bool,
    spelled: bool,
) -> Labelled:
    """References with the weights that annotators are estimated to have.

    ``mend`` says whether sequences that break the scheme are mended, as they must be where the
    target forbids them; ``fill``, whether labels that are left out are filled in before;
    ``spelled``, whether labels spell segments, of which there must be all tags.
    """
    corpora = read_corpora(data)
    source, target = corpora.scheme, trained_scheme(data, corpora.scheme, spelled=spelled)
    reliability = _reliability_for(data, corpora.train, references, weights)
    # what is put together token by token belongs to nobody, and is mended in any case
    mend = mend or references != "all" or target != source
    sequences: list[list[Sequence[str]]] = []
    shares: list[Array] = []
    for number, sentence in enumerate(corpora.train):
        share = np.ones(1)
        if references == "vote":
            found: list[Sequence[str]] = [vote(sentence, ties, seed=data.seed)]
        elif references != "all" and reliability is not None:
            found = [reliability.best[number]]
        else:
            found = list(sentence.references)
            share = _shares(sentence, reliability, sharpness)
        if fill and sentence.annotators:
            found = _filled(found, share)
        if mend and source and target:
            found = [_converted(labels, source, target) for labels in found]
        sequences.append(found)
        shares.append(share)
    several = any(sentence.annotators for sentence in corpora.train)
    names, arrays = _number(sequences, target, spelled=spelled, several=several)
    return Labelled(names, References(arrays, shares), reliability)


def _reliability_for(
    data: NerData, train: Sequence[Sentence], references: str, weights: str
) -> Reliability | None:
    """That of the annotators, if references or their weights follow from it."""
    model = weights if references in ("all", "vote") else references
    if model != "uniform" or references == "vote":
        _check_annotated(data, train)
    reliability = None if model == "uniform" else _reliability(data, model)
    if references in ("all", "vote"):
        _check_labelled(data, train)
    return reliability


@once(2)
def _reliability(data: NerData, model: Any) -> Reliability:
    return estimate(read_corpora(data).train, model)


def _check_annotated(data: NerData, train: Sequence[Sentence]) -> None:
    if not any(sentence.annotators for sentence in train):
        raise DataError(
            f"{data.train}: votes, weights and models of annotators need annotators, and the file"
            " has none (annotators = N, or all)"
        )


def _check_labelled(data: NerData, train: Sequence[Sentence]) -> None:
    """References are of every token; a label may be missing with some annotators, not with all."""
    if all(sentence.labels and not sentence.annotators for sentence in train):
        return
    for sentence in train:
        given = zip(*sentence.labels, strict=True) if sentence.labels else [()]
        for token, labels in enumerate(given):
            if set(labels) <= {MISSING}:
                raise DataError(
                    f"{data.train}, {sentence.where(token)}: expected a label of one annotator"
                    f" or more for {sentence.tokens[token]!r}, got none; annotator_model ="
                    " sequential, or references = sequential or dawid-skene, can do without"
                )


def _shares(sentence: Sentence, reliability: Reliability | None, sharpness: float) -> Array:
    """Weights of the references of a sentence; without a model of annotators the same for all."""
    if reliability is None:
        return np.ones(len(sentence.references))
    weights: Array = np.array(reference_weights(sentence, reliability))
    weights = weights[weights > 0]
    shares: Array = np.maximum((weights / weights.max()) ** sharpness, _LEAST)
    return shares


def _filled(references: Sequence[Sequence[str]], weights: Array) -> list[Sequence[str]]:
    """References in which a label that is left out is the one of most weight, as ML takes it (`softq.linear.tagging.corpus_target`)."""
    best = []
    for given in zip(*references, strict=True):
        votes: Counter[str] = Counter()
        for label, weight in zip(given, weights, strict=True):
            votes[label] += weight
        del votes[MISSING]
        best.append(max(sorted(votes), key=votes.__getitem__))
    return [
        [other if label == MISSING else label for label, other in zip(labels, best, strict=True)]
        for labels in references
    ]


def _converted(labels: Sequence[str], source: Scheme, target: Scheme) -> list[str]:
    """Labels in another scheme; a missing one ends an entity."""
    found = [MISSING] * len(labels)
    for _, start, piece in Sentence((), (tuple(labels),), ("",)).pieces():
        found[start : start + len(piece)] = convert(piece, source, target)
    return found


def _number(
    sequences: Sequence[Sequence[Sequence[str]]],
    scheme: Scheme | None,
    *,
    spelled: bool,
    several: bool,
) -> tuple[tuple[str, ...], list[Array]]:
    """The names of all labels, and references by their numbers.

    O is always a tag: without it, labels such as B-PER and E-PER leave nothing that a sentence of
    one word can be. Tags that are ``spelled`` as segments are all that the scheme has for their
    types. With ``several`` annotators, ``?`` stands for no label.
    """
    shown: set[str] = set().union(*(labels for found in sequences for labels in found))
    shown -= {MISSING} if several else set()
    if scheme is not None:
        shown |= {*every_tag(shown, scheme)} if spelled else {OUTSIDE}
    names = tuple(sorted(shown))
    numbers = {name: k for k, name in enumerate(names)}
    if several:
        numbers[MISSING] = UNLABELLED
    arrays = [
        np.array([[numbers[name] for name in labels] for labels in found], np.int64)
        for found in sequences
    ]
    return names, arrays


# --- the truth with a tagger in the loop -----------------------------------------------------------------


def loop_options(recipe: NerRecipe) -> LoopOptions:
    """The options of the loop that a recipe names; the others are `LoopOptions`'s own."""
    names = {"loop_folds": "folds", "loop_c2": "c2", "tagger_weight": "weight"}
    given = {names.get(name, name): value for name, value in recipe.annotations.of_the_loop.items()}
    if "evidence_floor" in given:
        given["priors"] = TablePriors(floor=given.pop("evidence_floor"))
    # numpy takes no seed below 0
    own = {"c2": recipe.optimizer.c2 or LoopOptions.c2, "seed": recipe.training.seed % 2**64}
    return LoopOptions(**own | given)


@once(4)
def _truth(
    data: NerData, features: NerFeatures, model: Any, options: LoopOptions
) -> tuple[TruthLoop, Sequence[tuple[str, ...]], Reliability | None]:
    """The truth behind the training labels, the most likely ones, and the annotators, if there are any.

    It is found once, however many models are trained toward it.
    """
    corpora, several = read_corpora(data), model != "none"
    path, train, scheme = data.train or "the built-in world", corpora.train, corpora.scheme
    if data.train_scheme not in ("same", scheme):
        raise RecipeError(
            f"the truth is estimated in the scheme of the files, {scheme}: leave out train_scheme,"
            f" got {data.train_scheme}"
        )
    names = tuple(
        sorted(label_names(train, partial=data.partial_labels) | ({OUTSIDE} if scheme else set()))
    )
    if several:
        _check_annotated(data, train)
    else:
        _check_possible(data, train, names, scheme)
    matrix = cast(FeatureMatrix, extract(data, features, False).train)
    try:
        loop = find_truth(
            train, matrix, names, model if several else None, scheme, options, tell=tell
        )
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    reliability = reliability_of(loop) if several else None
    return loop, reliability.best if reliability else loop.best(), reliability


def _check_possible(
    data: NerData, train: Sequence[Sentence], names: tuple[str, ...], scheme: Scheme | None
) -> None:
    """Labels that are known in part must leave a sequence that keeps to the scheme."""
    if not names:
        raise DataError(f"{data.train}: expected labels, got ? alone")
    if scheme is None:
        return
    between, first, last = (table.numpy() for table in allowed_transitions(names, scheme))
    for sentence in train:
        (labels,) = sentence.labels
        possible = first
        for token, row in enumerate(KnownLabels([labels], names).evidence() > -np.inf):
            possible = possible & row & (last if token == len(labels) - 1 else True)
            if not possible.any():
                raise DataError(
                    f"{data.train}, {sentence.where(token)}: expected a label that can stand"
                    f" here in a sequence of {scheme}, got {labels[token]!r}"
                )
            possible = possible @ between
