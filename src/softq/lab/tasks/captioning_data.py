"""Captioned images, from files or from the built-in world, as what a captioner is trained on and judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from softq.errors import DataError, RunError
from softq.formats.captions import Captions, Split, is_json, read_captions, read_features
from softq.formats.vocabulary import Vocabulary
from softq.lab.tasks.captioning_recipe import CaptionData, CaptionVocabulary
from softq.lab.tasks.files import halves, once
from softq.lab.tasks.words import Parts, check_architecture, start_file
from softq.lab.worlds import Scene, SceneWorld
from softq.lab.worlds.scene_pictures import render, scene_features
from softq.neural.captioner import Captioner, CaptionerSettings
from softq.neural.examples import Examples, Vectors
from softq.neural.near import NearReferences, nearest

Array = np.ndarray[Any, Any]

SCENES_ENCODER = "scenes"
"""What makes the features of the built-in world's pictures."""

_SPLITS: dict[str, Split] = {"train": "train", "dev": "val", "test": "test"}  # of Karpathy's JSON


@dataclass(frozen=True)
class Captioned:
    """Images with captions, and a row of features for each."""

    captions: Captions
    features: Array

    def __len__(self) -> int:
        return len(self.captions)

    def take(self, numbers: Sequence[int]) -> Captioned:
        """Some of the images."""
        return Captioned(self.captions.take(numbers), self.features[np.asarray(numbers, np.int64)])


@once(2)
def read_parts(data: CaptionData) -> Parts[Captioned]:
    """Read the files, or draw from the built-in world; what does not fit is an error with file and line."""
    if not data.train:
        return _draw(data)
    train, dev, test = (
        _read(data, part) if getattr(data, part) else None for part in ("train", "dev", "test")
    )
    if train is None:
        raise ValueError("a training file was named")
    if data.halve_dev and dev is not None:
        chosen_on, tested_on = halves(data.dev, range(len(dev)))
        dev, test = dev.take(chosen_on), dev.take(tested_on)
    sizes = {part.features.shape[1] for part in (train, dev, test) if part is not None}
    if len(sizes) > 1:
        raise DataError(
            f"expected features of one size for all images, got {', '.join(map(str, sorted(sizes)))}: were they made alike?"
        )
    return Parts(train, dev, test)


def _read(data: CaptionData, part: str) -> Captioned:
    path = Path(getattr(data, part))
    captions = read_captions(path, _SPLITS[part] if is_json(path) else None)
    return Captioned(captions, read_features(Path(data.features_of(part)), captions))


def _draw(data: CaptionData) -> Parts[Captioned]:
    world = SceneWorld()
    parts = []
    for part, size in enumerate((data.scenes, data.dev_scenes, data.dev_scenes)):
        drawn = world.sample(size, seed=4 * data.seed + part, captions=data.captions)
        captions = Captions([scene.name for scene in drawn.scenes], drawn.captions)
        parts.append(
            Captioned(captions, scene_features(np.stack([render(scene) for scene in drawn.scenes])))
        )
    return Parts(*parts)


def scenes_of(part: Captioned) -> list[Scene]:
    """The built-in world's scenes, by the names of their pictures."""
    return [Scene.from_name(name) for name in part.captions.images]


class Part(NamedTuple):
    """Images to be judged by: with their captions as text, as words that metrics count, and as numbers."""

    captioned: Captioned
    references: list[list[list[str]]]
    examples: Examples


@dataclass(frozen=True)
class Prepared:
    """All parts as numbers: made once, however many models are trained.

    Attributes:
        vocabulary: the words of captions.
        train: to train on.
        dev: to choose by.
        test: of the final numbers; the same object as dev where there is none.
        left_out: training captions that were left out because they are too long.
        start: where the parameters begin, if not anew.
        images: training images, each with all its captions.

    """

    vocabulary: Vocabulary
    train: Examples
    dev: Part
    test: Part
    left_out: int
    images: Examples
    start: Captioner | None = None

    @property
    def features(self) -> int:
        """Size of an image's vector."""
        return int(_vectors(self.images).table.shape[1])

    def near(self, neighbours: int, device: torch.device) -> NearReferences:
        """What lends the captions of other training images that are alike."""
        table = torch.from_numpy(np.ascontiguousarray(_vectors(self.images).table))
        return NearReferences(
            self.images,
            nearest(table, neighbours, device=device)[torch.from_numpy(_vectors(self.train).rows)],
        )


def _vectors(examples: Examples) -> Vectors:
    if not isinstance(examples.inputs, Vectors):
        raise TypeError("inputs of captions are vectors")
    return examples.inputs


class _Wanted(NamedTuple):
    """What `Prepared` depends on."""

    data: CaptionData
    vocabulary: CaptionVocabulary
    start: str  # a model's file, "" for none

    @property
    def files(self) -> tuple[str, ...]:
        return *self.data.files, self.start


def prepare(
    data: CaptionData, vocabulary: CaptionVocabulary, model: CaptionerSettings, start: str = ""
) -> Prepared:
    """Read and number, or find it done; with ``start``, a run folder or a model's file, by the words of that model."""
    if data.images and not Path(data.images).is_dir():
        raise DataError(
            f"images: expected a folder with the images, for the pictures of the report, got {data.images}"
        )
    prepared: Prepared = _prepare(_Wanted(data, vocabulary, start_file(start, "captioning")))
    if prepared.start is not None:
        check_architecture(
            start, model, prepared.start.settings, prepared.start.settings.same_parameters(model)
        )
        if prepared.start.features != prepared.features:
            raise RunError(
                f"{start} cannot be gone on from: expected a model of features of {prepared.features} numbers, as the images have, "
                f"got one of {prepared.start.features}"
            )
    return prepared


@once(2)
def _prepare(wanted: _Wanted) -> Prepared:
    data, settings, start = wanted
    begun = Captioner.load(start) if start else None
    if begun is not None:
        settings.check(start, begun.vocabulary)
    parts = read_parts(data)
    texts = [caption for captions in parts.train.captions.captions for caption in captions]
    vocabulary = settings.fit(texts) if begun is None else begun.vocabulary
    images, left_out = _number_train(parts.train, vocabulary, data)
    judged = _number(parts.judged, vocabulary)
    tested = judged if parts.test is None else _number(parts.test, vocabulary)
    return Prepared(
        vocabulary,
        images if data.merge else _one_by_one(images),
        judged,
        tested,
        left_out,
        images,
        begun,
    )


def _number_train(
    train: Captioned, vocabulary: Vocabulary, data: CaptionData
) -> tuple[Examples, int]:
    """Numbers of what is short enough, and how many captions are not."""
    rows, outputs, left_out = [], [], 0
    for row, captions in enumerate(train.captions.captions):
        kept = [
            words for words in map(vocabulary.encode, captions) if 0 < len(words) <= data.max_length
        ]
        left_out += len(captions) - len(kept)
        if kept:
            rows.append(row)
            outputs.append(kept)
    if not rows:
        raise DataError(
            f"{data.train or 'the built-in world'}: expected a caption of at most max_length = {data.max_length} words, got none"
        )
    table = train.features if len(rows) == len(train.features) else train.features[np.array(rows)]
    return Examples(Vectors(table), outputs), left_out


def _one_by_one(images: Examples) -> Examples:
    """The same with an example for every caption."""
    sentences = images.references
    each = [
        [sentences.words[begin:end].tolist()]
        for begin, end in zip(sentences.starts[:-1], sentences.starts[1:], strict=True)
    ]
    return Examples(
        Vectors(_vectors(images).table, np.repeat(np.arange(len(images)), images.counts)), each
    )


def _number(part: Captioned, vocabulary: Vocabulary) -> Part:
    plain = [
        [vocabulary.plain(caption) for caption in captions] for captions in part.captions.captions
    ]
    numbers = [
        [vocabulary.encode(caption) for caption in captions] for captions in part.captions.captions
    ]
    return Part(part, plain, Examples(Vectors(part.features), numbers))
