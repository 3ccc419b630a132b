"""How translators are judged: by their translations of the development and test parts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from softq.errors import DependencyError
from softq.lab.loop import Evaluation
from softq.lab.tasks.translation_data import Part, Prepared, prepare, world_of
from softq.lab.tasks.translation_recipe import TranslationRecipe
from softq.lab.worlds import LanguageWorld
from softq.metrics import (
    SacreBLEU,
    reference_rewards,
    sacre_bleu,
    sentence_bleu,
    translation_statistics,
)
from softq.metrics.counts import ExampleCounts
from softq.neural.modules.sequence import SequenceModel
from softq.neural.perplexity import perplexity
from softq.neural.search import Said
from softq.neural.translator import Translator
from softq.rewards import SentenceBLEU


@dataclass(frozen=True)
class TranslationJudge:
    """A recipe with its data, by which models are judged; what `softq.neural.SequenceLearner` asks."""

    recipe: TranslationRecipe
    prepared: Prepared

    @classmethod
    def of(cls, recipe: TranslationRecipe) -> TranslationJudge:
        """Read and number, or find it done."""
        return cls(
            recipe, prepare(recipe.data, recipe.vocabulary, recipe.model, recipe.training.start)
        )

    def translator(self, model: SequenceModel) -> Translator:
        """A model with its words."""
        return Translator(
            model,
            self.recipe.model,
            self.prepared.source,
            self.prepared.target,
            self.recipe.decoding,
        )

    def translate(self, model: SequenceModel, part: Part, beam: int | None = None) -> list[Said]:
        """Translations of a part."""
        return self.translator(model).translate_numbers(
            part.sources, method="greedy" if beam == 1 else "beam", beam=beam
        )

    def score(self, model: SequenceModel) -> float:
        """Mean sentence BLEU of the development part, by the quick search that epochs are compared by."""
        found = self.translate(model, self.prepared.dev, self.recipe.decoding.dev_beam)
        return float(sentence_bleu(statistics(self.prepared.dev, found).sum(0)))

    def judge(self, model: SequenceModel) -> Evaluation:
        """Translations of both splits; sacreBLEU too, where it is installed, and of the built-in world the exact expected reward."""
        splits = {"dev": self.prepared.dev}
        if self.prepared.test is not self.prepared.dev:
            splits["test"] = self.prepared.test
        found = {name: self.translate(model, part) for name, part in splits.items()}
        counts = {
            name: ExampleCounts.of(statistics(part, found[name])[None])
            for name, part in splits.items()
        }
        tested = found.get("test", found["dev"])
        return Evaluation(
            counts, [self._measures(model, tested)], outputs(self.prepared.test, tested)
        )

    def _measures(self, model: SequenceModel, tested: list[Said]) -> dict[str, float]:
        measures = {}
        if (by_sacre := sacre(self.prepared.test, tested)) is not None:
            measures["test_sacrebleu"] = by_sacre.score
        if not self.recipe.data.train:
            measures["test_expected_reward"] = expected_reward(
                world_of(self.recipe.data), self.prepared.test, tested
            )
        return {
            **measures,
            "test_perplexity": perplexity(model, self.prepared.test.examples),
            "examples": float(len(self.prepared.train)),
            "left_out": float(self.prepared.left_out),
            "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        }

    def notes(self, model: SequenceModel) -> dict[str, Tensor]:
        """What a translator's file holds beside its parameters."""
        return self.translator(model).notes()


def outputs(part: Part, found: list[Said]) -> list[dict[str, Any]]:
    """What a run stores of its outputs: the text, and what it earns against each reference."""
    rewards = reference_rewards([said.words for said in found], part.references)
    return [
        {"text": said.text, "rewards": earned} for said, earned in zip(found, rewards, strict=True)
    ]


def statistics(part: Part, found: list[Said]) -> Tensor:
    """Statistics of translations, `softq.metrics.translation_statistics`, a row for each sentence."""
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
    rewards = [
        world.expected_reward(source, one.words, reward)
        for source, one in zip(part.text.sources, found, strict=True)
    ]
    return math.fsum(rewards) / len(rewards)
