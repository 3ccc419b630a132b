"""How captioners are judged: by their captions of the development and test images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from softq.lab.loop import Evaluation
from softq.lab.tasks.captioning_data import SCENES_ENCODER, Part, Prepared, prepare, scenes_of
from softq.lab.tasks.captioning_recipe import CaptioningRecipe
from softq.lab.worlds import SceneWorld
from softq.metrics import (
    average_reward,
    caption_statistics,
    reference_agreement,
    reference_rewards,
    translation_statistics,
)
from softq.metrics.counts import ExampleCounts
from softq.neural.captioner import Captioner
from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.modules.sequence import SequenceModel
from softq.neural.perplexity import perplexity
from softq.neural.search import Said
from softq.rewards import SentenceBLEU


@dataclass(frozen=True)
class CaptioningJudge:
    """A recipe with its data, by which models are judged; what `softq.neural.SequenceLearner` asks."""

    recipe: CaptioningRecipe
    prepared: Prepared

    @classmethod
    def of(cls, recipe: CaptioningRecipe) -> CaptioningJudge:
        """Read and number, or find it done."""
        return cls(
            recipe, prepare(recipe.data, recipe.vocabulary, recipe.model, recipe.training.start)
        )

    def captioner(self, model: SequenceModel) -> Captioner:
        """A model with its words."""
        if not isinstance(model, ImageCaptioner):
            raise TypeError(f"expected an ImageCaptioner, got {type(model).__name__}")
        data = self.recipe.data
        encoder = data.encoder if data.train else SCENES_ENCODER
        return Captioner(
            model, self.recipe.model, self.prepared.vocabulary, self.recipe.decoding, encoder
        )

    def caption(self, model: SequenceModel, part: Part, beam: int | None = None) -> list[Said]:
        """Captions of a part."""
        return self.captioner(model).caption(
            part.captioned.features, method="greedy" if beam == 1 else "beam", beam=beam
        )

    def score(self, model: SequenceModel) -> float:
        """Average reward of the development part, by the quick search that epochs are compared by."""
        found = self.caption(model, self.prepared.dev, self.recipe.decoding.dev_beam)
        rows = translation_statistics([said.words for said in found], self.prepared.dev.references)
        return float(average_reward(rows.sum(0)))

    def judge(self, model: SequenceModel) -> Evaluation:
        """Captions of both splits, and of the built-in world the exact expected reward, with the highest that there is."""
        splits = {"dev": self.prepared.dev}
        if self.prepared.test is not self.prepared.dev:
            splits["test"] = self.prepared.test
        found = {name: self.caption(model, part) for name, part in splits.items()}
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
        agreement = reference_agreement(self.prepared.test.references)
        if not math.isnan(agreement):  # as it is where every image has one caption
            measures["test_agreement"] = agreement
        if not self.recipe.data.train:
            measures |= _exact(self.prepared.test, tested)
        return {
            **measures,
            "test_perplexity": perplexity(model, self.prepared.test.examples),
            "examples": float(len(self.prepared.train)),
            "left_out": float(self.prepared.left_out),
            "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        }

    def notes(self, model: SequenceModel) -> dict[str, Tensor]:
        """What a captioner's file holds beside its parameters."""
        return self.captioner(model).notes()


def outputs(part: Part, found: list[Said]) -> list[dict[str, Any]]:
    """What a run stores of its outputs: image, references, caption, and its reward against each reference."""
    rewards = reference_rewards([said.words for said in found], part.references)
    named = part.captioned.captions
    return [
        {"image": image, "references": list(references), "text": said.text, "rewards": earned}
        for image, references, said, earned in zip(
            named.images, named.captions, found, rewards, strict=True
        )
    ]


def statistics(part: Part, found: list[Said]) -> Tensor:
    """Statistics of captions, `softq.metrics.caption_statistics`, a row for each image."""
    return caption_statistics([said.words for said in found], part.references)


def _exact(part: Part, found: list[Said]) -> dict[str, float]:
    """Means over the built-in world's scenes of the exact E[BLEU(caption, Y) | x], for these captions and for the consensus."""
    world, reward, scenes = SceneWorld(), SentenceBLEU(), scenes_of(part.captioned)
    expected = [
        world.expected_reward(scene, said.words, reward)
        for scene, said in zip(scenes, found, strict=True)
    ]
    highest = [world.bayes(scene, reward).reward for scene in scenes]
    return {
        "test_expected_reward": math.fsum(expected) / len(expected),
        "test_ceiling": math.fsum(highest) / len(highest),
    }
