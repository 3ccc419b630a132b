"""Captioning (paper §4.1.2, Table 1, Appendix C).

Images with several captions each, where SQDML and RAML differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from torch import Tensor

from softq.errors import DataError
from softq.formats.captions import Split, is_json, read_captions, read_features
from softq.lab.tasks.files import once, read_splits
from softq.lab.tasks.sequence_data import EvaluationSplit, SequenceData, Splits, TextCorpus
from softq.lab.tasks.sequence_recipe import CaptionData, CaptioningRecipe
from softq.lab.tasks.sequence_task import SequenceTask, expected_reward
from softq.lab.worlds import Scene, SceneWorld
from softq.lab.worlds.scene_pictures import render, scene_features
from softq.metrics import CAPTION_METRICS, Metric, caption_statistics, reference_agreement
from softq.neural.generation import GeneratedText
from softq.rewards import SentenceBLEU

SCENES_ENCODER = "scenes"
"""What makes the features of the built-in world's pictures."""

_SPLITS: dict[str, Split] = {"train": "train", "dev": "val", "test": "test"}  # of Karpathy's JSON


@once(2)
def read_captioned(data: CaptionData) -> Splits:
    """Read the files, or sample from the built-in world.

    What does not fit is an error with file and line.
    """

    def read(split: str) -> TextCorpus:
        path = Path(getattr(data, split))
        found = read_captions(path, _SPLITS[split] if is_json(path) else None)
        features = read_features(Path(data.features_of(split)), found)
        return TextCorpus(found.images, found.captions, features)

    def sample(split: str, size: int, seed: int) -> TextCorpus:
        drawn = SceneWorld().sample(size, seed=seed, captions=data.captions)
        features = scene_features(np.stack([render(scene) for scene in drawn.scenes]))
        return TextCorpus([scene.name for scene in drawn.scenes], drawn.captions, features)

    splits = Splits(*read_splits(data, read, sample))
    sizes = {np.asarray(corpus.features).shape[1] for corpus in splits if corpus is not None}
    if len(sizes) > 1:
        raise DataError(
            "expected features of one size for all images, got"
            f" {', '.join(map(str, sorted(sizes)))}: were they made alike?"
        )
    return splits


class Captioning(SequenceTask):
    """The task."""

    name: ClassVar[str] = "captioning"
    kind: ClassVar[str] = "captioner"
    recipe_type: ClassVar[type[CaptioningRecipe]] = CaptioningRecipe
    metrics: ClassVar[Mapping[str, Metric]] = CAPTION_METRICS
    titles: ClassVar[Mapping[str, str]] = {
        "average_reward": "average reward",
        "corpus_bleu": "corpus BLEU",
        "cider_d": "CIDEr-D",
        "exact_match": "exact match",
    }

    def read(self, data: CaptionData) -> Splits:
        """Files, or the built-in world."""
        return read_captioned(data)

    def prepare(self, recipe: CaptioningRecipe) -> SequenceData:
        """Read and encode the data, or find it done."""
        images = recipe.data.images
        if images and not Path(images).is_dir():
            raise DataError(
                "images: expected a folder with the images, for the pictures of the report, got"
                f" {images}"
            )
        return super().prepare(recipe)

    def statistics(self, split: EvaluationSplit, found: Sequence[GeneratedText]) -> Tensor:
        """Statistics of captions, `softq.metrics.caption_statistics`, one row for each image."""
        return caption_statistics([text.words for text in found], split.references)

    def encoder(self, recipe: CaptioningRecipe) -> str:
        """What made the features of the images."""
        return recipe.data.encoder if recipe.data.train else SCENES_ENCODER

    def measures(
        self, recipe: CaptioningRecipe, split: EvaluationSplit, found: Sequence[GeneratedText]
    ) -> dict[str, float]:
        """Agreement of the references.

        On the built-in world the exact expected reward, of these captions and the highest.
        """
        measures = {}
        agreement = reference_agreement(split.references)
        if not math.isnan(agreement):  # as it is where every image has one caption
            measures["test_agreement"] = agreement
        if not recipe.data.train:
            world = SceneWorld()
            scenes = [Scene.from_name(name) for name in split.corpus.inputs]
            highest = [world.bayes(scene, SentenceBLEU()).reward for scene in scenes]
            measures["test_expected_reward"] = expected_reward(world, scenes, found)
            measures["test_ceiling"] = math.fsum(highest) / len(highest)
        return measures

    def scored_by(self) -> str:
        """The sentence BLEU that captions are scored by against each reference."""
        return f"average of {SentenceBLEU().signature}"
