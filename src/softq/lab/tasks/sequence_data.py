"""Data of tasks whose outputs are sentences.

Splits of inputs and reference texts, vocabularies, and their token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from softq.errors import DataError, RunError
from softq.formats.vocabulary import SPECIALS, Vocabulary
from softq.lab.run import BEST
from softq.lab.tasks.files import MOST_OF_TRAIN, once
from softq.lab.tasks.sequence_recipe import SequenceDataSection, VocabularySettings
from softq.neural.examples import Array, Examples, Ragged, Vectors
from softq.neural.neighbours import NeighbourReferences, nearest
from softq.neural.recipe import NetworkSettings
from softq.neural.text_generator import TextGenerator


@dataclass(frozen=True)
class TextCorpus:
    """Inputs with reference texts.

    Attributes:
        inputs: source texts, or names of images.
        references: of each input, one or more.
        features: of images ``[N, D]``; None where inputs are texts.

    """

    inputs: list[str]
    references: list[list[str]]
    features: Array | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Sequence[int]) -> TextCorpus:
        """Some of the inputs."""
        features = None if self.features is None else self.features[np.asarray(index, np.int64)]
        inputs, references = [self.inputs[i] for i in index], [self.references[i] for i in index]
        return TextCorpus(inputs, references, features)

    def __getitem__(self, index: slice) -> TextCorpus:
        """Some of the inputs, as of a list."""
        return self.take(range(len(self))[index])

    def one_by_one(self) -> TextCorpus:
        """Pairs of a text and one of its references."""
        pairs = zip(self.inputs, self.references, strict=True)
        listed = [(text, [one]) for text, several in pairs for one in several]
        return TextCorpus([text for text, _ in listed], [one for _, one in listed])


class Splits(NamedTuple):
    """The data that a recipe names.

    Attributes:
        train: to learn from.
        dev: to choose by; None: some of train.
        test: held out; None: the development split again.

    """

    train: TextCorpus
    dev: TextCorpus | None
    test: TextCorpus | None

    @property
    def development(self) -> TextCorpus:
        """Dev, or as many inputs of train as are soon decoded, at equal distances.

        Files are often sorted.
        """
        return sample_evenly(self.train) if self.dev is None else self.dev

    @property
    def held_out(self) -> TextCorpus:
        """Test, or the development split."""
        return self.development if self.test is None else self.test


def sample_evenly(corpus: Any) -> Any:
    """A corpus, or `MOST_OF_TRAIN` of its inputs at equal distances."""
    size = len(corpus)
    if size <= MOST_OF_TRAIN:
        return corpus
    index = [place * size // MOST_OF_TRAIN for place in range(MOST_OF_TRAIN)]
    return [corpus[i] for i in index] if isinstance(corpus, list) else corpus.take(index)


class EvaluationSplit(NamedTuple):
    """Inputs to be scored on.

    With references as text, as words that metrics count, and as token ids.
    """

    corpus: TextCorpus
    references: list[list[list[str]]]
    examples: Examples


@dataclass(frozen=True)
class SequenceData:
    """All splits as token ids: made once, however many models are trained.

    Attributes:
        source: vocabulary of inputs; None where these are vectors.
        target: vocabulary of outputs.
        train: to train on.
        dev: to choose by.
        test: held out; the same object as dev where there is none.
        left_out: training references that were left out because they, or their source, are too
            long.
        merged: training inputs, each with all its references.
        start: the model whose parameters training starts from; None: random ones.

    """

    source: Vocabulary | None
    target: Vocabulary
    train: Examples
    dev: EvaluationSplit
    test: EvaluationSplit
    left_out: int
    merged: Examples
    start: TextGenerator | None = None

    @property
    def inputs(self) -> int:
        """The number of tokens of inputs, or of features of an image."""
        if self.source is not None:
            return len(self.source)
        return int(_vectors(self.merged).table.shape[1])

    def neighbours(self, count: int, device: torch.device) -> NeighbourReferences:
        """Samples from the references of the nearest training images."""
        table = torch.from_numpy(np.ascontiguousarray(_vectors(self.merged).table))
        rows = torch.from_numpy(_vectors(self.train).rows)
        return NeighbourReferences(self.merged, nearest(table, count, device=device)[rows])


def _vectors(examples: Examples) -> Vectors:
    if not isinstance(examples.inputs, Vectors):
        raise TypeError("expected vectors of features as inputs")
    return examples.inputs


class _Key(NamedTuple):
    """What `prepare` depends on."""

    data: SequenceDataSection
    vocabulary: VocabularySettings
    start: str  # a model's file, "" for none

    @property
    def files(self) -> tuple[str, ...]:
        """Every file."""
        return *self.data.files, self.start


def prepare(recipe: Any, task: str, kind: str, read: Callable[[Any], Splits]) -> SequenceData:
    """Read and encode the data of a recipe, or find it done.

    With the vocabularies of the model to start from, if there is one.
    """
    start = recipe.training.start
    data = _prepare(_Key(recipe.data, recipe.vocabulary, _start_file(start, task)), kind, read)
    _check_start(start, recipe.model, data)
    return data


@once(2)
def _prepare(key: _Key, kind: str, read: Callable[[Any], Splits]) -> SequenceData:
    data, settings, start = key
    begun = TextGenerator.load(start, kind) if start else None
    for vocabulary in (begun.source, begun.vocabulary) if begun else ():
        if vocabulary is not None:
            _check_vocabulary(settings, start, vocabulary)
    splits = read(data)
    train = splits.train
    if begun is not None:
        source, target = begun.source, begun.vocabulary
    else:
        source = None if train.features is not None else _fit_vocabulary(settings, train.inputs)
        references = [text for several in train.references for text in several]
        target = _fit_vocabulary(settings, references)
    merged, left_out = _encode_train(train, source, target, data)
    dev = _encode_split(splits.development, source, target)
    test = dev if splits.test is None else _encode_split(splits.test, source, target)
    examples = merged if data.merge else merged.one_by_one()
    return SequenceData(source, target, examples, dev, test, left_out, merged, begun)


def _fit_vocabulary(settings: VocabularySettings, texts: Sequence[str]) -> Vocabulary:
    """The vocabulary of texts."""
    size = SPECIALS + settings.size
    if settings.kind == "subwords":
        return Vocabulary.fit_subwords(texts, size)
    return Vocabulary.fit_words(
        texts, settings.min_freq, size, tokenizer=settings.tokenizer, lowercase=settings.lowercase
    )


def _check_vocabulary(settings: VocabularySettings, start: str, vocabulary: Vocabulary) -> None:
    """Refuse to start from a model whose vocabulary differs from these settings.

    How many words there are, and how rare, depends on the text that they are from: they may not
    exceed what a recipe sets, if it does.
    """
    both_words = settings.kind == vocabulary.kind == "words"
    names = ["kind", "tokenizer", "lowercase"] if both_words else ["kind"]
    wanted: dict[str, object] = {name: getattr(settings, name) for name in names}
    got: dict[str, object] = {name: getattr(vocabulary, name) for name in names}
    default, size = type(settings)(), len(vocabulary) - SPECIALS
    rarest = int(vocabulary.frequencies[SPECIALS:].min())
    if settings.size != default.size and size > settings.size:
        wanted["size"], got["size"] = f"at most {settings.size}", size
    if settings.min_freq != default.min_freq and rarest < settings.min_freq:
        wanted["min_freq"], got["min_freq"] = f"at least {settings.min_freq}", rarest
    differ = [name for name in wanted if wanted[name] != got[name]]
    if differ:
        expected, came = (
            ", ".join(f"{name} = {keys[name]}" for name in differ) for keys in (wanted, got)
        )
        raise RunError(
            f"cannot start from {start}, whose vocabulary stays: expected the recipe's"
            f" [vocabulary], {expected}, got {came}; give the model's own, or start from"
            " another one"
        )


def _encode_train(
    train: TextCorpus, source: Vocabulary | None, target: Vocabulary, data: Any
) -> tuple[Examples, int]:
    """Examples of what is short enough, and how many references are not."""
    kept: list[int] = []
    inputs, outputs, left_out = [], [], 0
    for place, (text, references) in enumerate(zip(train.inputs, train.references, strict=True)):
        tokens = [] if source is None else source.encode(text)
        short = [
            reference
            for reference in map(target.encode, references)
            if 0 < len(reference) <= data.max_length and len(tokens) <= data.max_length
        ]
        left_out += len(references) - len(short)
        if short:
            kept.append(place)
            inputs.append(tokens)
            outputs.append(short)
    if not kept:
        raise DataError(
            f"{data.train or 'the built-in world'}: expected a text of at most max_length ="
            f" {data.max_length} words, got none"
        )
    if train.features is None:
        return Examples(inputs, outputs), left_out
    table = train.features if len(kept) == len(train) else train.features[np.array(kept)]
    return Examples(Vectors(table), outputs), left_out


def _encode_split(
    corpus: TextCorpus, source: Vocabulary | None, target: Vocabulary
) -> EvaluationSplit:
    plain = [[target.plain(text) for text in several] for several in corpus.references]
    tokens = [[target.encode(text) for text in several] for several in corpus.references]
    inputs = (
        Vectors(np.asarray(corpus.features))
        if source is None
        else Ragged([source.encode(text) for text in corpus.inputs])
    )
    return EvaluationSplit(corpus, plain, Examples(inputs, tokens))


def _start_file(start: str, task: str) -> str:
    """The file of a model to start from: the best one of a run folder, or the file itself.

    "" for none.
    """
    if not start:
        return ""
    path = Path(start)
    if path.is_dir():
        path /= BEST
    if not path.is_file():
        raise RunError(
            f"cannot start from {start}: there is no {path}; expected a run folder of softq train"
            f" {task}, or a model. A run that began there needs it until it is finished: put it"
            " back, or let a new run --start from the folder of that run"
        )
    return str(path)


def _check_start(start: str, model: NetworkSettings, data: SequenceData) -> None:
    """Refuse to start from a model of another architecture, or of other features."""
    if data.start is None:
        return
    if str(data.start.settings) != str(model):
        raise RunError(
            f"cannot start from {start}: expected a model of the recipe's architecture, {model},"
            f" got {data.start.settings}"
        )
    if data.start.inputs != data.inputs:
        raise RunError(
            f"cannot start from {start}: expected a model of features of {data.inputs} numbers, as"
            f" the images have, got one of {data.start.inputs}"
        )
