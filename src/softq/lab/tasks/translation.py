"""Translation (paper §4.2, Tables 4-6, 8 and 9, Appendix D.2.4).

An encoder-decoder trained by ML, RAML and SQDML with BLEU as reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from softq.errors import DependencyError, RecipeError
from softq.formats.bitext import read_bitext
from softq.lab.recipe import Objective, key
from softq.lab.tasks.facts import named_scores
from softq.lab.tasks.files import once
from softq.lab.tasks.sequence_data import (
    MOST_OF_TRAIN,
    DataKey,
    EvaluationSplit,
    SequenceData,
    Splits,
    TextCorpus,
    VocabularySettings,
    check_data,
    check_start,
    prepare,
    start_file,
)
from softq.lab.tasks.sequence_task import SequenceTask
from softq.lab.worlds import LanguageWorld
from softq.metrics import TRANSLATION_METRICS, Metric, sacre_bleu, translation_statistics
from softq.neural.generation import GeneratedText
from softq.neural.recipe import (
    CandidateSettings,
    Optimizer,
    SequenceTraining,
    check_objective,
)
from softq.neural.text_generator import TranslationDecoding, TranslatorSettings
from softq.rewards import MultiReferenceBLEU, SentenceBLEU


@dataclass(frozen=True)
class TranslationData:
    """The data to train, choose and test on."""

    train: str = key(
        "",
        "sentences to train on: source, tab, reference on each line; or sources alone (.gz, .xz);"
        " empty: the built-in world",
    )
    train_references: tuple[str, ...] = key(
        (), "files of their translations, line by line, where train holds sources alone"
    )
    dev: str = key(
        "",
        "sentences that settings are chosen on, in the same form; empty: train, or"
        f" {MOST_OF_TRAIN:,} of it at equal distances",
    )
    dev_references: tuple[str, ...] = key(
        (), "files of their translations, where dev holds sources alone"
    )
    test: str = key("", "held-out sentences, in the same form; empty: the development split again")
    test_references: tuple[str, ...] = key(
        (), "files of their translations, where test holds sources alone"
    )
    halve_dev: bool = key(
        False, "choose on the even sources of dev, and take its odd ones for test"
    )
    merge: bool = key(
        True,
        "a training source that is there with several translations is one example of them all; else"
        " one of each",
    )
    max_length: int = key(
        50,
        "leave out training sentences with more tokens than this, on either side; the number is"
        " reported",
    )
    sentences: int = key(4000, "training sentences of the built-in world")
    dev_sentences: int = key(500, "development sentences of the built-in world, and test sentences")
    references: int = key(
        3, "translations of each of its training sentences, sampled from all that are right"
    )
    dev_references_drawn: int = key(5, "translations of each of its development and test sentences")
    idiom: float = key(
        0.2,
        "share of its translations in formal language, in which a sentence has one translation"
        " only",
    )
    seed: int = key(0, "random seed of the built-in world's sentences")

    def __post_init__(self) -> None:
        """What goes together."""
        check_data(
            self,
            ("sentences", "dev_sentences", "references", "dev_references_drawn"),
            "references",
            "{0}_references are translations of the sources in {0}: name that file as well",
        )
        if not 0 <= self.idiom <= 1:
            raise RecipeError(f"idiom must lie in 0..1, got {self.idiom}")

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        beside = *self.train_references, *self.dev_references, *self.test_references
        return self.train, self.dev, self.test, *beside


@dataclass(frozen=True)
class TranslationRecipe:
    """Everything that a run depends on."""

    data: TranslationData = field(default_factory=TranslationData)
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    model: TranslatorSettings = field(default_factory=TranslatorSettings)
    objective: Objective = field(default_factory=Objective)
    candidates: CandidateSettings = field(default_factory=CandidateSettings)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: SequenceTraining = field(default_factory=SequenceTraining)
    decoding: TranslationDecoding = field(default_factory=TranslationDecoding)

    def __post_init__(self) -> None:
        """What the sections say must fit together."""
        check_objective(self.objective, self.candidates, merge=self.data.merge)
        if "near" in self.candidates.samplers:
            raise RecipeError(
                "sampler = near needs inputs that have features, such as images: choose another one"
                " for sentences"
            )


@once(2)
def read_translations(data: TranslationData) -> Splits:
    """Read the files, or sample from the built-in world.

    What does not fit is an error with file and line.

    In dev and test a source stands once, with all its references, so that halves of dev share none.
    """
    if not data.train:
        return _sample_world(data)

    def read(name: str, *, merge: bool = True) -> TextCorpus | None:
        path, references = getattr(data, name), getattr(data, f"{name}_references")
        if not path:
            return None
        text = read_bitext(Path(path), *map(Path, references), merge=merge)
        return TextCorpus(text.sources, text.references)

    train = read("train", merge=data.merge) or TextCorpus([], [])
    splits = Splits(train if data.merge else train.one_by_one(), read("dev"), read("test"))
    return splits.halved(data.dev) if data.halve_dev else splits


def world_of(data: TranslationData) -> LanguageWorld:
    """The built-in world."""
    return LanguageWorld(idiom=data.idiom)


def _sample_world(data: TranslationData) -> Splits:
    sizes = [(data.sentences, data.references)]
    sizes += [(data.dev_sentences, data.dev_references_drawn)] * 2
    texts = [
        world_of(data).sample(size, seed=4 * data.seed + part, references=references)
        for part, (size, references) in enumerate(sizes)
    ]
    train, dev, test = (TextCorpus(text.sources, text.references) for text in texts)
    return Splits(train if data.merge else train.one_by_one(), dev, test)


@once(2)
def _bayes(data: TranslationData) -> dict[str, float]:
    """Scores of the translations of the highest expected reward in the built-in world."""
    world, reward, test = world_of(data), SentenceBLEU(), read_translations(data).held_out
    best = [world.bayes(source, reward) for source in test.inputs]
    references = [[reference.split() for reference in several] for several in test.references]
    counts = translation_statistics([one.text.split() for one in best], references)
    expected = math.fsum(one.reward for one in best) / len(best)
    return named_scores(TRANSLATION_METRICS, counts) | {"test_expected_reward": expected}


@once(2)
def _prepare(key: DataKey) -> SequenceData:
    return prepare(key, "translator", read_translations)


class Translation(SequenceTask):
    """The task."""

    name: ClassVar[str] = "translation"
    recipe_type: ClassVar[type[TranslationRecipe]] = TranslationRecipe
    metrics: ClassVar[Mapping[str, Metric]] = TRANSLATION_METRICS
    titles: ClassVar[Mapping[str, str]] = {
        "sentence_bleu": "sentence BLEU",
        "corpus_bleu": "corpus BLEU",
        "average_reward": "average reward",
        "exact_match": "exact match",
    }

    def prepare(self, recipe: TranslationRecipe) -> SequenceData:
        """Read and encode the data, or find it done."""
        start = recipe.training.start
        key = DataKey(recipe.data, recipe.vocabulary, start_file(start, self.name))
        data: SequenceData = _prepare(key)
        check_start(start, recipe.model, data)
        return data

    def measures(
        self, recipe: TranslationRecipe, split: EvaluationSplit, found: Sequence[GeneratedText]
    ) -> dict[str, float]:
        """SacreBLEU where it is installed.

        On the built-in world the exact expected reward over all right translations.
        """
        measures = {}
        try:
            scored = sacre_bleu([text.text for text in found], split.corpus.references)
            measures["test_sacrebleu"] = scored.score
        except DependencyError:
            pass
        if not recipe.data.train:
            world, reward = world_of(recipe.data), SentenceBLEU()
            rewards = [
                world.expected_reward(source, text.words, reward)
                for source, text in zip(split.corpus.inputs, found, strict=True)
            ]
            measures["test_expected_reward"] = math.fsum(rewards) / len(rewards)
        return measures

    def facts(self, recipe: TranslationRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """The number of training sentences, and the Bayes rule of the built-in world."""
        facts: dict[str, Any] = {"examples": {"train": len(read_translations(recipe.data).train)}}
        return facts if recipe.data.train else facts | {"bayes": _bayes(recipe.data)}

    def scored_by(self) -> str:
        """The sentence BLEU that translations are scored by, and how sacreBLEU counts, where it is installed."""
        try:
            signature = sacre_bleu(["a"], [["a"]]).signature
        except DependencyError:
            return MultiReferenceBLEU().signature
        # the number of references comes first, and is the data's
        return f"{MultiReferenceBLEU().signature} sacrebleu:{signature.partition('|')[2]}"
