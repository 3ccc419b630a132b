"""Sentences with translations, from files or from the built-in world, as what a translator is trained on and judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from softq.errors import DataError
from softq.formats.bitext import Bitext, read_bitext
from softq.formats.vocabulary import Vocabulary
from softq.lab.tasks.files import halves, once
from softq.lab.tasks.translation_recipe import Data
from softq.lab.tasks.words import Parts, VocabularySettings, check_architecture, start_file
from softq.lab.worlds import LanguageWorld
from softq.neural.examples import Examples
from softq.neural.translator import ModelSettings, Translator


@once(2)
def read_corpora(data: Data) -> Parts[Bitext]:
    """Read the files, or draw from the built-in world; what does not fit is an error with file and line.

    In dev and test a source stands once, with all its references, so that halves of dev share none.
    """
    if not data.train:
        return _draw(data)
    train = _read(data.train, data.train_references, merge=data.merge)
    dev = _read(data.dev, data.dev_references) if data.dev else None
    test = _read(data.test, data.test_references) if data.test else None
    if data.halve_dev and dev is not None:
        chosen_on, tested_on = halves(data.dev, range(len(dev)))
        dev, test = dev.take(chosen_on), dev.take(tested_on)
    return Parts(train if data.merge else _one_by_one(train), dev, test)


def _read(path: str, references: Sequence[str], *, merge: bool = True) -> Bitext:
    return read_bitext(Path(path), *map(Path, references), merge=merge)


def world_of(data: Data) -> LanguageWorld:
    """The built-in world."""
    return LanguageWorld(idiom=data.idiom)


def _draw(data: Data) -> Parts[Bitext]:
    world = world_of(data)
    sizes = (
        (data.sentences, data.references),
        *[(data.dev_sentences, data.dev_references_drawn)] * 2,
    )
    train, dev, test = (
        world.sample(size, seed=4 * data.seed + part, references=references)
        for part, (size, references) in enumerate(sizes)
    )
    return Parts(train if data.merge else _one_by_one(train), dev, test)


def _one_by_one(text: Bitext) -> Bitext:
    """The same with an example for every reference."""
    pairs = [
        (number, reference)
        for number, references in enumerate(text.references)
        for reference in references
    ]
    lines = [text.lines[number] for number, _ in pairs] if text.lines else []
    return Bitext(
        [text.sources[number] for number, _ in pairs],
        [[reference] for _, reference in pairs],
        lines,
        text.name,
    )


class Part(NamedTuple):
    """Sentences to be judged by: as text, as words that metrics count, and as numbers."""

    text: Bitext
    references: list[list[list[str]]]
    examples: Examples
    sources: list[list[int]]


@dataclass(frozen=True)
class Prepared:
    """All parts as numbers: made once, however many models are trained.

    Attributes:
        source: the source language's words.
        target: the target language's.
        train: to train on.
        dev: to choose by.
        test: of the final numbers; the same object as dev where there is none.
        left_out: training references that were left out because they, or their source, are too long.
        start: where the parameters begin, if not anew.

    """

    source: Vocabulary
    target: Vocabulary
    train: Examples
    dev: Part
    test: Part
    left_out: int
    start: Translator | None = None


class _Wanted(NamedTuple):
    """What `Prepared` depends on."""

    data: Data
    vocabulary: VocabularySettings
    start: str  # a model's file, "" for none

    @property
    def files(self) -> tuple[str, ...]:
        return *self.data.files, self.start


def prepare(
    data: Data, vocabulary: VocabularySettings, model: ModelSettings, start: str = ""
) -> Prepared:
    """Read and number, or find it done; with ``start``, a run folder or a model's file, by the words of that model."""
    prepared: Prepared = _prepare(_Wanted(data, vocabulary, start_file(start, "translation")))
    if prepared.start is not None:
        check_architecture(
            start, model, prepared.start.settings, prepared.start.settings.same_parameters(model)
        )
    return prepared


@once(2)
def _prepare(wanted: _Wanted) -> Prepared:
    data, settings, start = wanted
    begun = Translator.load(start) if start else None
    if begun is not None:
        for vocabulary in (begun.source, begun.target):
            settings.check(start, vocabulary)
    corpora = read_corpora(data)
    train = corpora.train
    if begun is None:
        source = settings.fit(train.sources)
        target = settings.fit(
            [reference for references in train.references for reference in references]
        )
    else:
        source, target = begun.source, begun.target
    examples, left_out = _number_train(train, source, target, data)
    judged = _number(corpora.judged, source, target)
    tested = judged if corpora.test is None else _number(corpora.test, source, target)
    return Prepared(source, target, examples, judged, tested, left_out, begun)


def _number_train(
    train: Bitext, source: Vocabulary, target: Vocabulary, data: Data
) -> tuple[Examples, int]:
    """Numbers of what is short enough, and how many references are not."""
    inputs, outputs, left_out = [], [], 0
    for text, references in zip(train.sources, train.references, strict=True):
        numbers = source.encode(text)
        kept = [
            words
            for words in map(target.encode, references)
            if len(words) <= data.max_length and len(numbers) <= data.max_length
        ]
        left_out += len(references) - len(kept)
        if kept:
            inputs.append(numbers)
            outputs.append(kept)
    if not inputs:
        raise DataError(
            f"{data.train or 'the built-in world'}: expected a sentence of at most max_length = {data.max_length} words, got none"
        )
    return Examples(inputs, outputs), left_out


def _number(text: Bitext, source: Vocabulary, target: Vocabulary) -> Part:
    sources = [source.encode(sentence) for sentence in text.sources]
    plain = [[target.plain(sentence) for sentence in references] for references in text.references]
    return Part(
        text,
        plain,
        Examples(
            sources,
            [[target.encode(sentence) for sentence in several] for several in text.references],
        ),
        sources,
    )
