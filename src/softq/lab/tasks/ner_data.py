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
from softq.formats.annotations import read_annotations
from softq.formats.conll import MISSING, Sentence, find_scheme
from softq.formats.tags import OUTSIDE, Scheme, convert, spans
from softq.kernels.features import crf as kernels
from softq.lab.tasks.files import once, read_splits
from softq.lab.tasks.ner_recipe import NerData, NerFeatures, NerRecipe, scheme_of
from softq.lab.worlds.entities import LABELS, EntityWorld
from softq.linear.features import FINKEL, FeatureMatrix, TemplateIndex
from softq.linear.tagging import References
from softq.metrics import span_statistics

Array = np.ndarray[Any, Any]


class _Corpora(NamedTuple):
    """What a recipe's data section names.

    Attributes:
        train: sentences to learn from, with the labels of one or several annotators.
        dev: to choose by, with the true labels; None: folds of train, or train itself.
        test: the test set, likewise; None: dev again.
        scheme: of the files; None: labels are of any kind.

    """

    train: list[Sentence]
    dev: list[Sentence] | None
    test: list[Sentence] | None
    scheme: Scheme | None


@once(2)
def read_corpora(data: NerData) -> _Corpora:
    """Read the files, or draw from the built-in world.

    What does not fit is an error with file and line.
    """
    world, known = EntityWorld(), set[str]()
    scheme = scheme_of(data.scheme) or (None if data.scheme == "none" or data.train else "bio")

    def sample(split: str, size: int, seed: int) -> list[Sentence]:
        drawn = world.sample(size, seed=seed)
        return world.annotate(drawn, seed=data.seed) if split == "train" else drawn

    def read(split: str) -> list[Sentence]:
        nonlocal scheme
        if split != "train":
            return _read_judged(getattr(data, split), scheme, known)
        train, scheme = _read_train(data)
        labels = (labels for sentence in train for labels in sentence.references)
        known.update({OUTSIDE} if scheme else (), *labels)
        return train

    return _Corpora(*read_splits(data, read, sample), scheme)


def gold(sentences: Sequence[Sentence]) -> list[tuple[str, ...]]:
    """The true labels of sentences to be judged by."""
    return [sentence.labels[0] for sentence in sentences]


def _read_train(data: NerData) -> tuple[list[Sentence], Scheme | None]:
    """The training file and its scheme."""
    path, named = Path(data.train), scheme_of(data.scheme)
    train = read_annotations(path, annotators=data.annotator_columns(), scheme=named).sentences
    scheme = named
    if data.scheme == "auto":
        scheme = find_scheme(train)
        if scheme is None:
            labels = sorted(set().union(*(labels for one in train for labels in one.labels)))
            raise DataError(
                f"{path}: expected entity tags such as B-PER and O in the last column, got"
                f" {', '.join(map(repr, labels[:5]))}; for labels of another kind take softq train"
                " tag"
            )
    if scheme is not None:
        check_tags(path, train, scheme)
    for sentence in train:
        if not sentence.references:
            raise DataError(
                f"{path}, {sentence.where()}: expected an annotator who labelled every token of"
                " the sentence, got none"
            )
    if data.folds:
        _check_folds(path, train, data.folds)
    return train, scheme


def _check_folds(path: Path, train: Sequence[Sentence], folds: int) -> None:
    """Folds need true labels and a sentence each."""
    if any(sentence.annotators for sentence in train):
        raise DataError(
            f"{path}: folds are judged by the labels they hold out, and these are annotators': name"
            " a file of true labels, dev"
        )
    if folds > len(train):
        raise DataError(
            f"{path}: expected {folds} sentences or more, one for each fold, got {len(train)}"
        )


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
                    f"{path}, {sentence.where(place)}: expected a tag of {scheme} such as"
                    f" B-PER or O, got {label!r}"
                ) from None
            good.add(label)


def _read_judged(path: str, scheme: Scheme | None, known: set[str]) -> list[Sentence]:
    """A file of true labels, which must be among those of the training file."""
    found = read_annotations(Path(path), scheme=scheme).sentences
    for sentence in found:
        if sentence.annotators:
            raise DataError(
                f"{path}, {sentence.where()}: expected the true labels in the last column, got"
                " those of several annotators"
            )
        for token, label in enumerate(sentence.labels[0]):
            if label not in known:
                raise DataError(
                    f"{path}, {sentence.where(token)}: the label {label} does not occur in the"
                    " training file"
                )
    return found


@dataclass(frozen=True)
class _Prepared:
    """Features of all splits: made once, however many models are trained.

    Attributes:
        data: what was read.
        pos: the column of the parts of speech, 0 for none.
        corpora: the sentences.
        index: from words to columns.
        train: features of all training sentences; None where they are made a batch at a time.
        columns: the same by features.
        dev: features of the development split, if there is one.
        test: of the test split, if there is one.

    """

    data: NerData
    pos: int
    corpora: _Corpora
    index: TemplateIndex
    train: FeatureMatrix | None
    columns: kernels.Columns | None
    dev: FeatureMatrix | None
    test: FeatureMatrix | None

    def training(self, sentences: Array) -> FeatureMatrix:
        """Features of these training sentences."""
        if self.train is not None:
            return self.train.take(sentences)
        chosen = [self.corpora.train[number] for number in sentences]
        return transform(self.index, chosen, self.pos, self.data.train)


def prepare(recipe: NerRecipe) -> _Prepared:
    """Read and extract, or find it done."""
    return _prepare(recipe.data, recipe.features, recipe.optimizer.method == "adagrad")


@once(2)
def _prepare(data: NerData, features: NerFeatures, in_batches: bool) -> _Prepared:
    """Read and extract.

    ``in_batches`` keeps no features of the training sentences, so that they need not fit into
    memory.
    """
    corpora = read_corpora(data)
    hashed = in_batches and features.hash_bits  # hashing has no table to make
    seen = [] if hashed else corpora.train
    index, rows = TemplateIndex.fit(
        [sentence.tokens for sentence in seen],
        None if features.templates == FINKEL else features.templates,
        columns=_columns(seen, features.pos, data.train),
        min_freq=features.min_freq,
        hash_bits=features.hash_bits or None,
    )
    dev, test = (
        None if sentences is None else transform(index, sentences, features.pos, path)
        for sentences, path in ((corpora.dev, data.dev), (corpora.test, data.test or data.dev))
    )
    columns = (
        None
        if in_batches
        else kernels.transpose(rows.offsets, rows.indices, rows.values, rows.size)
    )
    train = None if in_batches else rows
    return _Prepared(data, features.pos, corpora, index, train, columns, dev, test)


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
                f"{path}, {sentence.where()}: expected parts of speech in column {pos}, got"
                f" {1 + len(sentence.extra)} before the labels"
            )
    return {"pos": [sentence.extra[pos - 2] for sentence in sentences]}


class _Labelled(NamedTuple):
    """What the training sentences say.

    Label names of the model, references by their numbers, and the annotators, where estimated.
    """

    names: tuple[str, ...]
    references: References
    reliability: Reliability | None


def label(recipe: NerRecipe) -> _Labelled:
    """The references of the training sentences, in the scheme to train in."""
    options = recipe.annotations
    mend = recipe.model.constraints in ("target", "model")
    found = _label(recipe.data, options.references, options.ties, options.weights, mend)
    if options.weights == "uniform":
        return found
    labels, weights = found.references
    shares = [(share / share.max()) ** options.sharpness for share in weights]
    return found._replace(references=References(labels, shares))


@once(4)
def _label(data: NerData, references: str, ties: Any, weights: str, mend: bool) -> _Labelled:
    """The same with the weights that annotators are estimated to have.

    ``mend`` says whether sequences that break the scheme are mended, as they must be where the
    target forbids them.
    """
    corpora = read_corpora(data)
    source, target = corpora.scheme, scheme_of(data.train_scheme) or corpora.scheme
    reliability = _estimate(data, corpora.train, references, weights)
    # what is put together token by token belongs to nobody, and is mended in any case
    mend = mend or references != "all" or target != source
    sequences: list[list[Sequence[str]]] = []
    shares: list[Array] = []
    for number, sentence in enumerate(corpora.train):
        if references == "vote":
            found: list[Sequence[str]] = [vote(sentence, ties, seed=data.seed)]
        elif references == "dawid-skene" and reliability is not None:
            found = [[reliability.labels[k] for k in reliability.posteriors[number].argmax(1)]]
        else:
            found = list(sentence.references)
        if mend and source and target:
            found = [convert(labels, source, target) for labels in found]
        sequences.append(found)
        shares.append(_shares(sentence, reliability if references == "all" else None, len(found)))
    names, arrays = _number(sequences, {OUTSIDE} if target else set())
    return _Labelled(names, References(arrays, shares), reliability)


def _estimate(
    data: NerData, train: Sequence[Sentence], references: str, weights: str
) -> Reliability | None:
    """How reliable the annotators are, where references or weights depend on it."""
    several = any(sentence.annotators for sentence in train)
    if not several and (references != "all" or weights != "uniform"):
        raise DataError(
            f"{data.train or 'the training data'}: votes and weights need annotators, and the file"
            " has none (annotators = N, or all)"
        )
    model = references if references == "dawid-skene" else weights
    return None if model == "uniform" else estimate(train, model)  # type: ignore[arg-type]


def _shares(sentence: Sentence, reliability: Reliability | None, count: int) -> Array:
    """Weights of the references of a sentence; without a model of annotators the same for all."""
    if reliability is None:
        return np.ones(count)
    weights = np.array(reference_weights(sentence, reliability))
    return weights[weights > 0]


def _number(
    sequences: Sequence[Sequence[Sequence[str]]], always: set[str]
) -> tuple[tuple[str, ...], list[Array]]:
    """The names of all labels, and references by their numbers.

    O is always there: without it, labels such as B-PER and E-PER leave nothing that a sentence of
    one word can be.
    """
    names = tuple(sorted(always.union(*(labels for found in sequences for labels in found))))
    numbers = {name: k for k, name in enumerate(names)}
    arrays = [
        np.array([[numbers[name] for name in labels] for labels in found], np.int64)
        for found in sequences
    ]
    return names, arrays


@once(2)
def bayes_statistics(data: NerData) -> Tensor:
    """Counts for each test sentence of the built-in world under its Bayes rule.

    The most right labels that the words allow.
    """
    world, sentences = EntityWorld(), read_corpora(data).test or []
    decoded = [world.posterior(sentence.tokens).mbr().tolist() for sentence in sentences]
    predicted = [[LABELS[k] for k in labels] for labels in decoded]
    return span_statistics(gold(sentences), predicted, "bio").rows
