"""Translation (paper §4.2, Tables 4-6, 8 and 9, Appendix D.2.4).

An encoder-decoder trained by ML, RAML and SQDML with BLEU as reward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from softq.errors import DependencyError
from softq.formats.bitext import read_bitext
from softq.lab.tasks.base import named_scores
from softq.lab.tasks.files import once, read_splits
from softq.lab.tasks.sequence_data import EvaluationSplit, Splits, TextCorpus
from softq.lab.tasks.sequence_recipe import TranslationData, TranslationRecipe
from softq.lab.tasks.sequence_task import SequenceTask, expected_reward
from softq.lab.worlds import LanguageWorld
from softq.metrics import TRANSLATION_METRICS, Metric, sacre_bleu, translation_statistics
from softq.neural.generation import GeneratedText
from softq.rewards import MultiReferenceBLEU, SentenceBLEU


@once(2)
def read_translations(data: TranslationData) -> Splits:
    """Read the files, or sample from the built-in world.

    What does not fit is an error with file and line.

    In dev and test a source stands once, with all its references, so that halves of dev share none.
    """
    world = LanguageWorld(idiom=data.idiom)

    def read(split: str) -> TextCorpus:
        files = (getattr(data, split), *getattr(data, f"{split}_references"))
        text = read_bitext(*map(Path, files), merge=split != "train" or data.merge)
        return TextCorpus(text.sources, text.references)

    def sample(split: str, size: int, seed: int) -> TextCorpus:
        references = data.references if split == "train" else data.dev_references_drawn
        text = world.sample(size, seed=seed, references=references)
        return TextCorpus(text.sources, text.references)

    train, dev, test = read_splits(data, read, sample)
    return Splits(train if data.merge else train.one_by_one(), dev, test)


@once(2)
def _bayes(data: TranslationData) -> dict[str, float]:
    """Scores of the translations of the highest expected reward in the built-in world."""
    world, reward = LanguageWorld(idiom=data.idiom), SentenceBLEU()
    test = read_translations(data).held_out
    best = [world.bayes(source, reward) for source in test.inputs]
    references = [[reference.split() for reference in several] for several in test.references]
    counts = translation_statistics([one.text.split() for one in best], references)
    expected = math.fsum(one.reward for one in best) / len(best)
    return named_scores(TRANSLATION_METRICS, counts) | {"test_expected_reward": expected}


class Translation(SequenceTask):
    """The task."""

    name: ClassVar[str] = "translation"
    kind: ClassVar[str] = "translator"
    recipe_type: ClassVar[type[TranslationRecipe]] = TranslationRecipe
    metrics: ClassVar[Mapping[str, Metric]] = TRANSLATION_METRICS
    titles: ClassVar[Mapping[str, str]] = {
        "sentence_bleu": "sentence BLEU",
        "corpus_bleu": "corpus BLEU",
        "average_reward": "average reward",
        "exact_match": "exact match",
    }

    def read(self, data: TranslationData) -> Splits:
        """Files, or the built-in world."""
        return read_translations(data)

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
            world = LanguageWorld(idiom=recipe.data.idiom)
            measures["test_expected_reward"] = expected_reward(world, split.corpus.inputs, found)
        return measures

    def facts(self, recipe: TranslationRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """The number of training sentences, and the Bayes rule of the built-in world."""
        facts = super().facts(recipe, outputs)
        return facts if recipe.data.train else facts | {"bayes": _bayes(recipe.data)}

    def scored_by(self) -> str:
        """The sentence BLEU that translations are scored by, and how sacreBLEU counts, where it is installed."""
        try:
            signature = sacre_bleu(["a"], [["a"]]).signature
        except DependencyError:
            return MultiReferenceBLEU().signature
        # the number of references comes first, and is the data's
        return f"{MultiReferenceBLEU().signature} sacrebleu:{signature.partition('|')[2]}"
