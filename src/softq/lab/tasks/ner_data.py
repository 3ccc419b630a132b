"""Files, or the built-in world, as what a tagger is trained and scored on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from softq.errors import DataError, OutputError
from softq.formats.annotations import read_annotations
from softq.formats.conll import MISSING, Sentence, find_scheme
from softq.formats.partial_labels import alternatives, certain
from softq.formats.tags import OUTSIDE, Scheme, spans
from softq.kernels.features import crf as kernels
from softq.lab.tasks.files import once, read_splits
from softq.lab.tasks.ner_recipe import NerData, NerFeatures, NerRecipe, scheme_of
from softq.lab.worlds.entities import LABELS, EntityWorld
from softq.linear.features import FINKEL, FeatureMatrix, TemplateIndex
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
            return _read_gold(getattr(data, split), scheme, known)
        train, scheme = _read_train(data)
        known.update({OUTSIDE} if scheme else (), label_names(train, partial=data.partial_labels))
        return train

    return _Corpora(*read_splits(data, read, sample), scheme)


def label_names(sentences: Sequence[Sentence], *, partial: bool) -> set[str]:
    """All labels of sentences, or that may be right where they are known in part."""
    found = {label for sentence in sentences for row in sentence.labels for label in row}
    if partial:
        return set().union(*map(alternatives, found))
    return found - ({MISSING} if any(one.annotators for one in sentences) else set())


def gold(sentences: Sequence[Sentence]) -> list[tuple[str, ...]]:
    """The true labels of sentences to score on."""
    return [sentence.labels[0] for sentence in sentences]


def _read_train(data: NerData) -> tuple[list[Sentence], Scheme | None]:
    """The training file and its scheme."""
    path, partial, scheme = Path(data.train), data.partial_labels, scheme_of(data.scheme)
    checked = None if partial else scheme  # with labels that leave a choice, see `ner_labels`
    corpus = read_annotations(path, annotators=data.annotator_columns(), scheme=checked)
    train = (corpus.without(data.without) if data.without else corpus).sentences
    if partial:
        _check_partial(path, train)
    if data.scheme == "auto":
        scheme = find_scheme(map(certain, train) if partial else train)
        if scheme is None:
            labels = sorted(set().union(*(labels for one in train for labels in one.labels)))
            advice = (
                " or name the scheme of tags that are all uncertain (scheme)" if partial else ""
            )
            raise DataError(
                f"{path}: expected entity tags such as B-PER and O in the last column, got"
                f" {', '.join(map(repr, labels[:5]))}; for labels of another kind take softq train"
                f" tag{advice}"
            )
    if scheme is not None:
        check_tags(path, train, scheme, partial=partial)
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


def _check_partial(path: Path, train: Sequence[Sentence]) -> None:
    """Labels that are known in part are those of `softq.annotators.known`, one of each token."""
    good: set[str] = set()
    for sentence in train:
        if sentence.annotators:
            raise DataError(
                f"{path}, {sentence.where()}: partial_labels are of one column of labels, and"
                " these are annotators': leave out partial_labels, ? needs no option there"
            )
        for token, label in enumerate(sentence.labels[0]):
            if label in good:
                continue
            try:
                alternatives(label)
            except DataError as error:
                raise DataError(f"{path}, {sentence.where(token)}: {error}") from None
            good.add(label)


def check_tags(
    path: Path, sentences: Sequence[Sentence], scheme: Scheme, *, partial: bool = False
) -> None:
    """Every label must be a tag of the scheme, or each that may be right where it is ``partial``.

    What may follow what is not asked here, for annotators err.
    """
    good: set[str] = set()
    for sentence in sentences:
        if sentence.annotators:
            good.add(MISSING)
        for label in sorted(set().union(*sentence.labels) - good):
            advice = "" if partial else _advice_on(label, scheme)
            if advice or not _are_tags(alternatives(label) if partial else [label], scheme):
                place = min(labels.index(label) for labels in sentence.labels if label in labels)
                raise DataError(
                    f"{path}, {sentence.where(place)}: expected a tag of {scheme} such as"
                    f" B-PER or O, got {label!r}{advice}"
                )
            good.add(label)


def _advice_on(label: str, scheme: Scheme) -> str:
    """What to do about a label that leaves a choice; nothing if it does not."""
    parts = [part.rpartition("=")[0] or part for part in label.split("|")]
    if label == MISSING or (len(parts) > 1 and _are_tags(parts, scheme)):
        return "; only a training file may have such labels, with partial_labels"
    return ""


def _are_tags(labels: Iterable[str], scheme: Scheme) -> bool:
    try:
        spans([*labels], scheme)
    except OutputError:
        return False
    return True


def _read_gold(path: str, scheme: Scheme | None, known: set[str]) -> list[Sentence]:
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
    return extract(recipe.data, recipe.features, recipe.optimizer.method == "adagrad")


@once(2)
def extract(data: NerData, features: NerFeatures, in_batches: bool) -> _Prepared:
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
        columns=parts_of_speech(seen, features.pos, data.train),
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
        [sentence.tokens for sentence in sentences], parts_of_speech(sentences, pos, path)
    )


def parts_of_speech(
    sentences: Sequence[Sentence], pos: int, path: str
) -> dict[str, list[tuple[str, ...]]] | None:
    """Parts of speech of sentences of a file, in the column ``pos``; None where this is 0."""
    if not pos:
        return None
    for sentence in sentences:
        if len(sentence.extra) < pos - 1:
            raise DataError(
                f"{path}, {sentence.where()}: expected parts of speech in column {pos}, got"
                f" {1 + len(sentence.extra)} before the labels"
            )
    return {"pos": [sentence.extra[pos - 2] for sentence in sentences]}


@once(2)
def bayes_statistics(data: NerData) -> Tensor:
    """Counts for each test sentence of the built-in world under its Bayes rule.

    The most right labels that the words allow.
    """
    world, sentences = EntityWorld(), read_corpora(data).test or []
    decoded = [world.posterior(sentence.tokens).mbr().tolist() for sentence in sentences]
    predicted = [[LABELS[k] for k in labels] for labels in decoded]
    return span_statistics(gold(sentences), predicted, "bio").rows
