"""Files, or the built-in world, as what a tagger is trained on and judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from softq.annotators.reliability import Reliability, estimate, reference_weights, vote
from softq.errors import DataError, OutputError
from softq.formats.conll import MISSING, Sentence, find_scheme, read_conll
from softq.formats.tags import OUTSIDE, Scheme, convert, spans
from softq.kernels.features import crf as kernels
from softq.lab.tasks.files import halves, once
from softq.lab.tasks.ner_recipe import Data, Features, scheme_of
from softq.lab.worlds.entities import LABELS, EntityWorld
from softq.linear.features import FINKEL, FeatureMatrix, TemplateIndex
from softq.linear.tagging import References
from softq.metrics import span_statistics

Array = np.ndarray[Any, Any]


class Part(NamedTuple):
    """Sentences to be judged by: the true labels, in the files' scheme."""

    sentences: list[Sentence]
    gold: list[tuple[str, ...]]


class Corpora(NamedTuple):
    """What a recipe's data section names.

    Attributes:
        train: sentences to learn from, with the labels of one or several annotators.
        dev: to choose by; None: folds of train, or train itself.
        test: the test set; None: dev again.
        scheme: of the files; None: labels are of any kind.

    """

    train: list[Sentence]
    dev: Part | None
    test: Part | None
    scheme: Scheme | None


@once(2)
def read_corpora(data: Data) -> Corpora:
    """Read the files, or draw from the built-in world.

    What does not fit is an error with file and line.
    """
    if not data.train:
        world = EntityWorld()
        train = world.annotate(world.sample(data.sentences, seed=4 * data.seed), seed=data.seed)
        judged = [
            _part(world.sample(data.dev_sentences, seed=4 * data.seed + part)) for part in (1, 2)
        ]
        return Corpora(train, judged[0], judged[1], None if data.scheme == "none" else "bio")
    path = Path(data.train)
    train = read_conll(
        path, annotators=data.annotator_columns(), scheme=scheme_of(data.scheme)
    ).sentences
    scheme = scheme_of(data.scheme) or (None if data.scheme == "none" else find_scheme(train))
    if scheme is None and data.scheme != "none":
        labels = sorted(
            {label for sentence in train for labels in sentence.labels for label in labels}
        )
        raise DataError(
            f"{path}: expected entity tags such as B-PER and O in the last column, got"
            f" {', '.join(map(repr, labels[:5]))}; for labels of another kind take softq train tag"
        )
    if scheme is not None:
        check_tags(path, train, scheme)
    for sentence in train:
        if not sentence.references:
            raise DataError(
                f"{path}, line {sentence.line}: expected an annotator who labelled every token of"
                " the sentence, got none"
            )
    if data.folds and any(sentence.annotators for sentence in train):
        raise DataError(
            f"{path}: folds are judged by the labels they hold out, and these are annotators': name"
            " a file of true labels, dev"
        )
    if data.folds > len(train):
        raise DataError(
            f"{path}: expected {data.folds} sentences or more, one for each fold, got {len(train)}"
        )
    outside = {OUTSIDE} if scheme else set()
    known = outside.union(*(labels for sentence in train for labels in sentence.references))
    dev = _read_part(data.dev, scheme, known) if data.dev else None
    test = _read_part(data.test, scheme, known) if data.test else None
    if data.halve_dev and dev is not None:
        dev, test = map(_part, halves(data.dev, dev.sentences))
    return Corpora(train, dev, test, scheme)


def check_tags(path: Path, sentences: Sequence[Sentence], scheme: Scheme) -> None:
    """Every label must be a tag of the scheme.

    What may follow what is not asked here, for annotators err.
    """
    good: set[str] = set()
    for sentence in sentences:
        if sentence.annotators:
            good.add(MISSING)
        for label in sorted(set().union(*sentence.labels) - good):
            try:
                spans([label], scheme)
            except OutputError:
                place = min(labels.index(label) for labels in sentence.labels if label in labels)
                raise DataError(
                    f"{path}, line {sentence.line + place}: expected a tag of {scheme} such as"
                    f" B-PER or O, got {label!r}"
                ) from None
            good.add(label)


def _part(sentences: Sequence[Sentence]) -> Part:
    return Part(list(sentences), [sentence.labels[0] for sentence in sentences])


def _read_part(path: str, scheme: Scheme | None, known: set[str]) -> Part:
    """A file of true labels, which must be among those of the training file."""
    found = read_conll(Path(path), scheme=scheme).sentences
    for sentence in found:
        if sentence.annotators:
            raise DataError(
                f"{path}, line {sentence.line}: expected the true labels in the last column, got"
                " those of several annotators"
            )
        for token, label in enumerate(sentence.labels[0]):
            if label not in known:
                raise DataError(
                    f"{path}, line {sentence.line + token}: the label {label} does not occur in the"
                    " training file"
                )
    return _part(found)


class Whole(NamedTuple):
    """Features of all training sentences, by tokens and by features."""

    rows: FeatureMatrix
    columns: kernels.Columns


@dataclass(frozen=True)
class Prepared:
    """Features of all parts: made once, however many models are trained.

    Attributes:
        data: what was read.
        features: what was extracted.
        corpora: the sentences.
        index: from words to columns.
        whole: features of all training sentences; None where they are made a batch at a time.
        dev: features of the development part, if there is one.
        test: of the test part, if there is one.

    """

    data: Data
    features: Features
    corpora: Corpora
    index: TemplateIndex
    whole: Whole | None
    dev: FeatureMatrix | None
    test: FeatureMatrix | None

    def training(self, sentences: Array) -> FeatureMatrix:
        """Features of these training sentences."""
        if self.whole is not None:
            return self.whole.rows.take(sentences)
        chosen = [self.corpora.train[number] for number in sentences]
        return transform(self.index, chosen, self.features.pos, self.data.train)


@once(2)
def prepare(data: Data, features: Features, in_batches: bool) -> Prepared:
    """Read and extract.

    ``in_batches`` keeps no features of the training sentences, so that they need not fit into
    memory.
    """
    corpora = read_corpora(data)
    templates = None if features.templates == FINKEL else features.templates
    seen = (
        corpora.train if not (in_batches and features.hash_bits) else []
    )  # hashing has no table to make
    index, rows = TemplateIndex.fit(
        [sentence.tokens for sentence in seen],
        templates,
        columns=_columns(seen, features.pos, data.train),
        min_freq=features.min_freq,
        hash_bits=features.hash_bits or None,
    )
    dev, test = (
        None if part is None else transform(index, part.sentences, features.pos, path)
        for part, path in ((corpora.dev, data.dev), (corpora.test, data.test or data.dev))
    )
    whole = (
        None
        if in_batches
        else Whole(rows, kernels.transpose(rows.offsets, rows.indices, rows.values, rows.size))
    )
    return Prepared(data, features, corpora, index, whole, dev, test)


def transform(
    index: TemplateIndex, sentences: Sequence[Sentence], pos: int, path: str
) -> FeatureMatrix:
    """Features of sentences from a file.

    ``pos`` is the column of their parts of speech, 0 for none.
    """
    return index.transform(
        [sentence.tokens for sentence in sentences], _columns(sentences, pos, path)
    )


def _columns(
    sentences: Sequence[Sentence], pos: int, path: str
) -> dict[str, list[tuple[str, ...]]] | None:
    """Parts of speech, where there are any."""
    if not pos:
        return None
    for sentence in sentences:
        if len(sentence.extra) < pos - 1:
            raise DataError(
                f"{path}, line {sentence.line}: expected parts of speech in column {pos}, got"
                f" {1 + len(sentence.extra)} before the labels"
            )
    return {"pos": [sentence.extra[pos - 2] for sentence in sentences]}


class Labelled(NamedTuple):
    """What the training sentences say.

    Label names of the model, references by their numbers, and the annotators, where estimated.
    """

    names: tuple[str, ...]
    references: References
    reliability: Reliability | None


@once(4)
def label(data: Data, references: str, ties: Any, weights: str, mend: bool) -> Labelled:
    """The references of the training sentences, in the scheme to train in.

    Args:
        data: the corpus.
        references: as in the recipe.
        ties: of votes.
        weights: of annotators, as in the recipe.
        mend: whether sequences that break the scheme are mended, as they must be where the target
            forbids them.

    """
    corpora = read_corpora(data)
    target = scheme_of(data.train_scheme) or corpora.scheme
    several = any(sentence.annotators for sentence in corpora.train)
    if not several and (references != "all" or weights != "uniform"):
        raise DataError(
            f"{data.train or 'the training data'}: votes and weights need annotators, and the file"
            " has none (annotators = N, or all)"
        )
    model = references if references == "dawid-skene" else weights
    reliability = None if model == "uniform" else estimate(corpora.train, model)  # type: ignore[arg-type]
    sequences: list[list[Sequence[str]]] = []
    shares: list[Array] = []
    for number, sentence in enumerate(corpora.train):
        if references == "vote":
            found: list[Sequence[str]] = [vote(sentence, ties, seed=data.seed)]
        elif references == "dawid-skene" and reliability is not None:
            found = [[reliability.labels[k] for k in reliability.posteriors[number].argmax(1)]]
        else:
            found = list(sentence.references)
        share = np.ones(len(found))
        if references == "all" and reliability is not None:
            share = np.array(
                [weight for weight in reference_weights(sentence, reliability) if weight > 0]
            )
        # what is put together token by token belongs to nobody, and is mended in any case
        if corpora.scheme and target and (mend or references != "all" or target != corpora.scheme):
            found = [convert(labels, corpora.scheme, target) for labels in found]
        sequences.append(found)
        shares.append(share)
    # O is always there: without it, labels such as B-PER and E-PER leave nothing that a sentence of
    # one word can be
    outside = {OUTSIDE} if target else set()
    names = tuple(sorted(outside.union(*(labels for found in sequences for labels in found))))
    numbers = {name: k for k, name in enumerate(names)}
    arrays = [
        np.array([[numbers[name] for name in labels] for labels in found], np.int64)
        for found in sequences
    ]
    return Labelled(names, References(arrays, shares), reliability)


def bayes_statistics(data: Data) -> Tensor:
    """Counts for each test sentence of the built-in world under its Bayes rule.

    The most right labels that the words allow.
    """
    part = read_corpora(data).test
    if data.train or part is None:
        raise DataError("the Bayes rule is known of the built-in world alone")
    world = EntityWorld()
    decoded = [world.posterior(sentence.tokens).mbr().tolist() for sentence in part.sentences]
    predicted = [[LABELS[k] for k in labels] for labels in decoded]
    return span_statistics(part.gold, predicted, "bio").rows
