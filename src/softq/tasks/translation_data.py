"""Sentences with translations, from files or from the built-in world, as what a translator is trained on and judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from softq.data.bitext import Bitext, read_bitext
from softq.data.language_world import LanguageWorld
from softq.data.vocabulary import SPECIALS, SubwordVocabulary, Vocabulary, WordVocabulary
from softq.errors import DataError, RunError
from softq.generation.examples import Examples
from softq.generation.translator import ModelSettings, Translator
from softq.run import BEST
from softq.tasks.files import halves, once
from softq.tasks.translation_recipe import MOST_OF_TRAIN, Data, VocabularySettings


class Corpora(NamedTuple):
    """What a recipe's data section names.

    Attributes:
        train: to learn from; with ``merge`` a source is there once.
        dev: to choose by; None: some of train.
        test: of the final numbers; None: dev again.

    """

    train: Bitext
    dev: Bitext | None
    test: Bitext | None

    @property
    def judged(self) -> Bitext:
        """Dev, or as many sentences of train as are decoded in little time, at equal distances: files are often sorted."""
        if self.dev is not None:
            return self.dev
        most, there = MOST_OF_TRAIN, len(self.train)
        return self.train if there <= most else _take(self.train, [place * there // most for place in range(most)])

    @property
    def tested(self) -> Bitext:
        """Test, or what the development scores are of."""
        return self.judged if self.test is None else self.test


@once(2)
def read_corpora(data: Data) -> Corpora:
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
        dev, test = _take(dev, chosen_on), _take(dev, tested_on)
    return Corpora(train if data.merge else _one_by_one(train), dev, test)


def _read(path: str, references: Sequence[str], *, merge: bool = True) -> Bitext:
    return read_bitext(Path(path), *map(Path, references), merge=merge)


def world_of(data: Data) -> LanguageWorld:
    """The built-in world."""
    return LanguageWorld(idiom=data.idiom)


def _draw(data: Data) -> Corpora:
    world = world_of(data)
    sizes = (data.sentences, data.references), *[(data.dev_sentences, data.dev_references_drawn)] * 2
    train, dev, test = (world.draw(size, seed=4 * data.seed + part, references=references) for part, (size, references) in enumerate(sizes))
    return Corpora(train if data.merge else _one_by_one(train), dev, test)


def _one_by_one(text: Bitext) -> Bitext:
    """The same with an example for every reference."""
    pairs = [(number, reference) for number, references in enumerate(text.references) for reference in references]
    lines = [text.lines[number] for number, _ in pairs] if text.lines else []
    return Bitext([text.sources[number] for number, _ in pairs], [[reference] for _, reference in pairs], lines, text.name)


def _take(text: Bitext, numbers: Sequence[int]) -> Bitext:
    lines = [text.lines[number] for number in numbers] if text.lines else []
    return Bitext([text.sources[number] for number in numbers], [text.references[number] for number in numbers], lines, text.name)


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


def number_test(data: Data, source: Vocabulary, target: Vocabulary) -> Part:
    """The test part, or what stands for it, in the numbers of these words."""
    return _number(read_corpora(data).tested, source, target)


def prepare(data: Data, vocabulary: VocabularySettings, model: ModelSettings, start: str = "") -> Prepared:
    """Read and number, or find it done; with ``start``, a run folder or a model's file, by the words of that model."""
    prepared: Prepared = _prepare(_Wanted(data, vocabulary, str(_model_file(start)) if start else ""))
    if prepared.start is not None and not prepared.start.settings.same_parameters(model):
        raise RunError(
            f"{start} cannot be gone on from: expected a model of the recipe's architecture, {_shown(model)}, "
            f"got {_shown(prepared.start.settings)}"
        )
    return prepared


def _model_file(start: str) -> Path:
    path = Path(start)
    if path.is_dir():
        path /= BEST
    if not path.is_file():
        raise RunError(
            f"{start} cannot be gone on from: there is no {path}; expected a run folder of softq train translation, or a model. "
            "A run that began there needs it until it is finished: put it back, or let a new run --start from the folder of that run"
        )
    return path


def _check_words(start: str, vocabulary: Vocabulary, settings: VocabularySettings) -> None:
    """Refuse a model to start from that has other words than the recipe says.

    How many words there are, and how rare, depends on the text that they are from: they may not exceed what a recipe sets, if it does.
    """
    wanted: dict[str, object] = {"kind": settings.kind}
    got: dict[str, object] = {"kind": "words" if isinstance(vocabulary, WordVocabulary) else "subwords"}
    if isinstance(vocabulary, WordVocabulary) and settings.kind == "words":
        wanted |= {"tokenizer": settings.tokenizer, "lowercase": settings.lowercase}
        got |= {"tokenizer": vocabulary.tokenizer, "lowercase": vocabulary.lowercase}
    usual, size, rarest = VocabularySettings(), len(vocabulary) - SPECIALS, int(vocabulary.frequencies[SPECIALS:].min())
    if settings.size != usual.size and size > settings.size:
        wanted["size"], got["size"] = f"at most {settings.size}", size
    if settings.min_freq != usual.min_freq and rarest < settings.min_freq:
        wanted["min_freq"], got["min_freq"] = f"at least {settings.min_freq}", rarest
    differ = [name for name in wanted if wanted[name] != got[name]]
    if differ:
        expected, came = (", ".join(f"{name} = {keys[name]}" for name in differ) for keys in (wanted, got))
        raise RunError(
            f"{start} cannot be gone on from, because its words stay: expected the recipe's [vocabulary], {expected}, got {came}; "
            "give the model's own, or start from another one"
        )


def _shown(model: ModelSettings) -> str:
    special = f"embedding {model.embedding}" if model.kind == "lstm" else f"{model.heads} heads"
    return f"{model.kind} with {special}, hidden {model.hidden}, {model.layers} layers{', tied' if model.tie else ''}"


@once(2)
def _prepare(wanted: _Wanted) -> Prepared:
    data, settings, start = wanted
    begun = Translator.load(start) if start else None
    if begun is not None:
        for vocabulary in (begun.source, begun.target):
            _check_words(start, vocabulary, settings)
    corpora = read_corpora(data)
    train = corpora.train
    if begun is None:
        source = _fit(train.sources, settings)
        target = _fit([reference for references in train.references for reference in references], settings)
    else:
        source, target = begun.source, begun.target
    examples, left_out = _number_train(train, source, target, data)
    judged = _number(corpora.judged, source, target)
    tested = judged if corpora.test is None else _number(corpora.test, source, target)
    return Prepared(source, target, examples, judged, tested, left_out, begun)


def _fit(texts: Sequence[str], settings: VocabularySettings) -> Vocabulary:
    size = SPECIALS + settings.size
    if settings.kind == "subwords":
        return SubwordVocabulary.fit(texts, size)
    return WordVocabulary.fit(texts, settings.min_freq, size, tokenizer=settings.tokenizer, lowercase=settings.lowercase)


def _number_train(train: Bitext, source: Vocabulary, target: Vocabulary, data: Data) -> tuple[Examples, int]:
    """Numbers of what is short enough, and how many references are not."""
    inputs, outputs, left_out = [], [], 0
    for text, references in zip(train.sources, train.references, strict=True):
        numbers = source.encode(text)
        kept = [words for words in map(target.encode, references) if len(words) <= data.max_length and len(numbers) <= data.max_length]
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
    return Part(text, plain, Examples(sources, [[target.encode(sentence) for sentence in several] for several in text.references]), sources)
