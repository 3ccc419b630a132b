"""A trained captioner: from features of images to text, many at a time; one file on the disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from softq.checks import check_count
from softq.errors import DataError, RecipeError
from softq.formats.vocabulary import Vocabulary, vocabulary_from_tensors
from softq.lab.recipe import at_least, at_most, build, key
from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.recipe import check_network
from softq.neural.saved_model import SavedModel, about_tensor, build_from
from softq.neural.search import BeamSettings, Said, Search, evaluating, on_device

Array = np.ndarray[Any, Any]

_LONGEST = 1000  # words of a caption: a model that never ends one would go on for as long as it may


@dataclass(frozen=True)
class CaptionerSettings:
    """What the model is."""

    embedding: int = key(256, "size of word vectors")
    hidden: int = key(512, "size of states")
    layers: int = key(1, "of the decoder")
    dropout: float = key(0.3, "share of what is dropped in training")
    tie: bool = key(False, "one weight for the embeddings of words and for the output layer")
    init: float = key(0.1, "parameters begin uniform in ± this")

    def __post_init__(self) -> None:
        """Sizes are sizes."""
        check_network(
            embedding=self.embedding,
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            init=self.init,
        )
        if self.tie and self.embedding != self.hidden:
            raise RecipeError(
                f"tie needs embedding = hidden, got {self.embedding} and {self.hidden}"
            )

    def build(self, features: int, words: int, seed: int = 0) -> ImageCaptioner:
        """A new model for vectors and a vocabulary of these sizes."""
        return ImageCaptioner(
            features,
            words,
            embedding=self.embedding,
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            tie=self.tie,
            init=self.init,
            seed=seed,
        )

    def same_parameters(self, other: CaptionerSettings) -> bool:
        """Whether parameters of one fit the other: dropout and how they began do not matter."""
        return self._shape() == other._shape()

    def _shape(self) -> tuple[Any, ...]:
        return self.embedding, self.hidden, self.layers, self.tie

    def __str__(self) -> str:
        return f"embedding {self.embedding}, hidden {self.hidden}, {self.layers} layers{', tied' if self.tie else ''}"


@dataclass(frozen=True)
class CaptionDecoding(BeamSettings):
    """How captions are found, if nobody says otherwise."""

    max_words: int = key(40, "a caption has at most so many")

    def __post_init__(self) -> None:
        """Beams hold something."""
        super().__post_init__()
        at_least("max_words", self.max_words, 1)
        at_most("max_words", self.max_words, _LONGEST)


@dataclass(frozen=True)
class Captioner(SavedModel):
    """A model of captions, and what gives words their numbers.

    Attributes:
        model: log P(y|x).
        settings: what it was built by.
        vocabulary: words of captions.
        decoding: how it decodes unless told otherwise.
        encoder: what made the features of its images, a name of `softq.neural.images.load_encoder`; "" if nobody said.

    """

    format: ClassVar[str] = "softq captioner 1"
    kind: ClassVar[str] = "captioner"
    model: ImageCaptioner
    settings: CaptionerSettings
    vocabulary: Vocabulary
    decoding: CaptionDecoding = dataclasses.field(default_factory=CaptionDecoding)
    encoder: str = ""

    @property
    def features(self) -> int:
        """Size of the vectors that it takes."""
        return self.model.features

    def caption(self, features: Array, **options: Any) -> list[Said]:
        """Captions of images with these features ``[N, D]``; ``options`` are those of `softq.neural.search.Search`."""
        if features.ndim != 2 or features.shape[1] != self.features:
            of = f" of {self.encoder}" if self.encoder else ""
            raise DataError(
                f"expected features{of} of {self.features} numbers for each image, got {list(features.shape)}"
            )
        if "generator" not in options:
            options["generator"] = torch.Generator().manual_seed(0)
        search, found = Search(**options), []
        at_a_time = search.at_a_time(self.model)
        with evaluating(self.model):
            for first in range(0, len(features), at_a_time):
                part = torch.from_numpy(np.array(features[first : first + at_a_time], np.float32))
                numbers = range(first, first + len(part))
                inputs = on_device((part,), self.model)
                found += search.say(
                    self.model,
                    inputs,
                    self.vocabulary,
                    self.decoding,
                    self.decoding.max_words,
                    numbers,
                )
        return found

    def notes(self) -> dict[str, Tensor]:
        """Settings and words."""
        decoding = {
            field.name: getattr(self.decoding, field.name)
            for field in dataclasses.fields(CaptionDecoding)
        }
        about = {
            "format": self.format,
            "model": dataclasses.asdict(self.settings),
            "features": self.features,
        }
        return {
            "about": about_tensor(about | {"decoding": decoding, "encoder": self.encoder}),
            **self.vocabulary.tensors("words."),
        }

    @classmethod
    def from_notes(cls, about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """From settings and words."""
        settings = build(CaptionerSettings, about["model"], "model")
        decoding = build(CaptionDecoding, about["decoding"], "decoding")
        vocabulary = vocabulary_from_tensors(tensors, "words.")
        features = check_count("features", about["features"], DataError)
        model = build_from(
            tensors, settings.layers, lambda: settings.build(features, len(vocabulary))
        )
        return cls(model, settings, vocabulary, decoding, str(about["encoder"]))
