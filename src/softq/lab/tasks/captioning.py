"""Captioning (paper §4.1.2, Table 1, Appendix C).

Images with several captions each, where SQDML and RAML differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from softq.errors import DataError
from softq.formats.captions import Split, features_beside, is_json, read_captions, read_features
from softq.lab.recipe import Objective, key
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
from softq.lab.worlds import Scene, SceneWorld
from softq.lab.worlds.scene_pictures import render, scene_features
from softq.metrics import CAPTION_METRICS, Metric, caption_statistics, reference_agreement
from softq.neural.generation import GeneratedText
from softq.neural.recipe import (
    CandidateSettings,
    Optimizer,
    SequenceTraining,
    check_objective,
)
from softq.neural.text_generator import CaptionDecoding, CaptionerSettings
from softq.rewards import SentenceBLEU

SCENES_ENCODER = "scenes"
"""What makes the features of the built-in world's pictures."""

_SPLITS: dict[str, Split] = {"train": "train", "dev": "val", "test": "test"}  # of Karpathy's JSON


@dataclass(frozen=True)
class CaptionData:
    """The data to train, choose and test on."""

    train: str = key(
        "",
        "captions to train on: image, tab, caption on each line (.gz, .xz), or Karpathy's JSON;"
        " empty: the built-in world of scenes",
    )
    train_features: str = key(
        "",
        "features of its images (softq data features); empty: train.features.npy for"
        " train.captions.tsv and so on",
    )
    dev: str = key(
        "",
        "captions that settings are chosen on, in the same form; empty: train, or"
        f" {MOST_OF_TRAIN:,} of its images at equal distances",
    )
    dev_features: str = key("", "features of its images")
    test: str = key("", "held-out captions, in the same form; empty: the development split again")
    test_features: str = key("", "features of its images")
    images: str = key(
        "",
        "a folder with the images themselves, for the pictures of the report; empty: none",
        identity=False,
    )
    encoder: str = key(
        "",
        "the encoder that made the features, stored with the model: a name of softq data features"
        " --encoder; empty: unknown",
    )
    halve_dev: bool = key(False, "choose on the even images of dev, and take its odd ones for test")
    merge: bool = key(
        True,
        "an image is one example of all its captions; else there is one of each, as the paper has"
        " it for raml",
    )
    max_length: int = key(
        50, "leave out training captions with more words than this; the number is reported"
    )
    scenes: int = key(400, "training scenes of the built-in world")
    dev_scenes: int = key(300, "development scenes of the built-in world, and test scenes")
    captions: int = key(5, "captions of each of its scenes")
    seed: int = key(0, "random seed of the built-in world's scenes")

    def __post_init__(self) -> None:
        """What goes together."""
        check_data(
            self,
            ("scenes", "dev_scenes", "captions"),
            "features",
            "{0}_features are of the images in {0}: name that file of captions as well",
        )

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        return self.train, self.dev, self.test, *map(self.features_of, _SPLITS)

    def features_of(self, split: str) -> str:
        """The file with the features of ``train``, ``dev`` or ``test``, named or beside its captions; "" where there is none."""
        captions, named = getattr(self, split), getattr(self, f"{split}_features")
        return named or (str(features_beside(Path(captions))) if captions else "")


@dataclass(frozen=True)
class CaptionVocabulary(VocabularySettings):
    """What counts as a word; of the training captions alone."""

    min_freq: int = key(5, "words that occur less often are unknown")
    lowercase: bool = key(True, "read and write everything in small letters")


@dataclass(frozen=True)
class CaptioningRecipe:
    """Everything that a run depends on."""

    data: CaptionData = field(default_factory=CaptionData)
    vocabulary: CaptionVocabulary = field(default_factory=CaptionVocabulary)
    model: CaptionerSettings = field(default_factory=CaptionerSettings)
    objective: Objective = field(default_factory=Objective)
    candidates: CandidateSettings = field(default_factory=CandidateSettings)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: SequenceTraining = field(default_factory=SequenceTraining)
    decoding: CaptionDecoding = field(default_factory=CaptionDecoding)

    def __post_init__(self) -> None:
        """What the sections say must fit together."""
        check_objective(self.objective, self.candidates, merge=self.data.merge)


@once(2)
def read_captioned(data: CaptionData) -> Splits:
    """Read the files, or sample from the built-in world.

    What does not fit is an error with file and line.
    """
    if not data.train:
        return _sample_world(data)

    def read(name: str) -> TextCorpus | None:
        if not getattr(data, name):
            return None
        path = Path(getattr(data, name))
        found = read_captions(path, _SPLITS[name] if is_json(path) else None)
        features = read_features(Path(data.features_of(name)), found)
        return TextCorpus(found.images, found.captions, features)

    splits = Splits(read("train") or TextCorpus([], []), read("dev"), read("test"))
    splits = splits.halved(data.dev) if data.halve_dev else splits
    corpora = (splits.train, splits.dev, splits.test)
    sizes = {np.asarray(corpus.features).shape[1] for corpus in corpora if corpus is not None}
    if len(sizes) > 1:
        raise DataError(
            "expected features of one size for all images, got"
            f" {', '.join(map(str, sorted(sizes)))}: were they made alike?"
        )
    return splits


def _sample_world(data: CaptionData) -> Splits:
    parts = []
    for part, size in enumerate((data.scenes, data.dev_scenes, data.dev_scenes)):
        drawn = SceneWorld().sample(size, seed=4 * data.seed + part, captions=data.captions)
        features = scene_features(np.stack([render(scene) for scene in drawn.scenes]))
        names = [scene.name for scene in drawn.scenes]
        parts.append(TextCorpus(names, drawn.captions, features))
    return Splits(*parts)


@once(2)
def _prepare(key: DataKey) -> SequenceData:
    return prepare(key, "captioner", read_captioned)


class Captioning(SequenceTask):
    """The task."""

    name: ClassVar[str] = "captioning"
    recipe_type: ClassVar[type[CaptioningRecipe]] = CaptioningRecipe
    metrics: ClassVar[Mapping[str, Metric]] = CAPTION_METRICS
    titles: ClassVar[Mapping[str, str]] = {
        "average_reward": "average reward",
        "corpus_bleu": "corpus BLEU",
        "cider_d": "CIDEr-D",
        "exact_match": "exact match",
    }

    def prepare(self, recipe: CaptioningRecipe) -> SequenceData:
        """Read and encode the data, or find it done."""
        images, start = recipe.data.images, recipe.training.start
        if images and not Path(images).is_dir():
            raise DataError(
                "images: expected a folder with the images, for the pictures of the report, got"
                f" {images}"
            )
        key = DataKey(recipe.data, recipe.vocabulary, start_file(start, self.name))
        data: SequenceData = _prepare(key)
        check_start(start, recipe.model, data)
        return data

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
            world, reward = SceneWorld(), SentenceBLEU()
            scenes = [Scene.from_name(name) for name in split.corpus.inputs]
            expected = [
                world.expected_reward(scene, text.words, reward)
                for scene, text in zip(scenes, found, strict=True)
            ]
            highest = [world.bayes(scene, reward).reward for scene in scenes]
            measures["test_expected_reward"] = math.fsum(expected) / len(expected)
            measures["test_ceiling"] = math.fsum(highest) / len(highest)
        return measures

    def facts(self, recipe: CaptioningRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """The number of training images."""
        return {"examples": {"train": len(read_captioned(recipe.data).train)}}

    def scored_by(self) -> str:
        """The sentence BLEU that captions are scored by against each reference."""
        return f"average of {SentenceBLEU().signature}"
