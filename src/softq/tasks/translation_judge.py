"""How translators are judged: by their translations of the development and test parts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from softq.data.language_world import LanguageWorld
from softq.errors import DependencyError
from softq.evaluate import TRANSLATION_METRICS, SacreBLEU, sacre_bleu, sentence_bleu, translation_statistics
from softq.generation.perplexity import perplexity
from softq.generation.search import Said
from softq.generation.translator import Translator
from softq.models.sequence import SequenceModel
from softq.rewards import SentenceBLEU
from softq.tasks.translation_data import Part, Prepared, prepare, world_of
from softq.tasks.translation_recipe import TranslationRecipe


@dataclass(frozen=True)
class TranslationJudge:
    """A recipe with its data, by which models are judged; what `softq.generation.SequenceLearner` asks."""

    recipe: TranslationRecipe
    prepared: Prepared

    @classmethod
    def of(cls, recipe: TranslationRecipe) -> TranslationJudge:
        """Read and number, or find it done."""
        return cls(recipe, prepare(recipe.data, recipe.vocabulary, recipe.model, recipe.training.start))

    def translator(self, model: SequenceModel) -> Translator:
        """A model with its words."""
        return Translator(model, self.recipe.model, self.prepared.source, self.prepared.target, self.recipe.decoding)

    def translate(self, model: SequenceModel, part: Part, beam: int | None = None) -> list[Said]:
        """Translations of a part."""
        return self.translator(model).translate_numbers(part.sources, method="greedy" if beam == 1 else "beam", beam=beam)

    def score(self, model: SequenceModel) -> float:
        """Mean sentence BLEU of the development part, by the quick search that epochs are compared by."""
        found = self.translate(model, self.prepared.dev, self.recipe.decoding.dev_beam)
        return float(sentence_bleu(statistics(self.prepared.dev, found).sum(0)))

    def measures(self, model: SequenceModel) -> dict[str, float]:
        """Every metric of both parts; of test sacreBLEU too, where it is installed, and of the built-in world the exact expected reward."""
        parts = {"dev": self.prepared.dev, "test": self.prepared.test}
        found = {name: self.translate(model, part) for name, part in parts.items() if name == "dev" or part is not self.prepared.dev}
        found.setdefault("test", found["dev"])
        sums = {name: statistics(part, found[name]).sum(0) for name, part in parts.items()}
        measures = {f"{part}_{name}": float(metric(sums[part])) for part in parts for name, metric in TRANSLATION_METRICS.items()}
        if (by_sacre := sacre(self.prepared.test, found["test"])) is not None:
            measures["test_sacrebleu"] = by_sacre.score
        if not self.recipe.data.train:
            measures["test_expected_reward"] = expected_reward(world_of(self.recipe.data), self.prepared.test, found["test"])
        return {
            "test": measures["test_sentence_bleu"],
            **measures,
            "test_perplexity": perplexity(model, self.prepared.test.examples),
            "examples": float(len(self.prepared.train)),
            "left_out": float(self.prepared.left_out),
            "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        }

    def notes(self, model: SequenceModel) -> dict[str, Tensor]:
        """What a translator's file holds beside its parameters."""
        return self.translator(model).notes()


def statistics(part: Part, found: list[Said]) -> Tensor:
    """Statistics of translations, `softq.evaluate.translation_statistics`, a row for each sentence."""
    return translation_statistics([translation.words for translation in found], part.references)


def sacre(part: Part, found: list[Said]) -> SacreBLEU | None:
    """SacreBLEU's score of translations, None where it is not installed."""
    try:
        return sacre_bleu([translation.text for translation in found], part.text.references)
    except DependencyError:
        return None


def expected_reward(world: LanguageWorld, part: Part, found: list[Said]) -> float:
    """Mean over the built-in world's sentences of the exact E[BLEU(translation, Y) | x], over all right translations Y."""
    reward = SentenceBLEU()
    rewards = [world.expected_reward(source, one.words, reward) for source, one in zip(part.text.sources, found, strict=True)]
    return math.fsum(rewards) / len(rewards)
