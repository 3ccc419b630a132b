"""A trained translator: from text to text, many sentences at a time; one file on the disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from softq.errors import RecipeError
from softq.formats.vocabulary import Vocabulary, vocabulary_from_tensors
from softq.lab.recipe import at_most, build, check_positive, key
from softq.neural.modules.sequence import SequenceModel
from softq.neural.modules.transformer import TransformerTranslator
from softq.neural.modules.translator import AttentionalTranslator
from softq.neural.recipe import check_network
from softq.neural.saved_model import SavedModel, about_tensor, build_from
from softq.neural.search import BeamSettings, Said, Search, evaluating, on_device
from softq.sentences import Sentences

_WINDOW = 1024  # texts that are sorted by length together
_LARGEST_RATIO = 100  # a model that never ends a sentence would go on for as long as it may
_MORE_WORDS = 10  # that a translation may have beyond max_ratio times those of its source


@dataclass(frozen=True)
class ModelSettings:
    """What the model is."""

    kind: Literal["lstm", "transformer"] = key(
        "lstm", "lstm: the paper's, with attention and input feeding; or a transformer"
    )
    embedding: int = key(256, "size of word vectors of an lstm")
    hidden: int = key(
        256,
        "size of states, and of all vectors of a transformer, whose feed-forward layers are four times as wide",
    )
    layers: int = key(1, "of encoder and decoder")
    heads: int = key(4, "of a transformer's attention")
    dropout: float = key(0.2, "share of what is dropped in training")
    tie: bool = key(
        False, "one weight for the embeddings of the target's words and for the output layer"
    )
    init: float = key(0.1, "parameters of an lstm begin uniform in ± this")

    def __post_init__(self) -> None:
        """Sizes are sizes."""
        sizes = {
            "embedding": self.embedding,
            "hidden": self.hidden,
            "layers": self.layers,
            "heads": self.heads,
        }
        check_network(**sizes, dropout=self.dropout, init=self.init)
        if self.kind == "lstm" and self.tie and self.embedding != self.hidden:
            raise RecipeError(
                f"tie needs embedding = hidden, got {self.embedding} and {self.hidden}"
            )
        if self.kind == "transformer" and (self.hidden % self.heads or self.hidden % 2):
            raise RecipeError(
                f"hidden must be even and a multiple of heads, got {self.hidden} and {self.heads}"
            )

    def build(self, source_words: int, target_words: int, seed: int = 0) -> SequenceModel:
        """A new model for vocabularies of these sizes."""
        if self.kind == "transformer":
            return TransformerTranslator(
                source_words,
                target_words,
                size=self.hidden,
                heads=self.heads,
                layers=self.layers,
                feed_forward=4 * self.hidden,
                dropout=self.dropout,
                tie=self.tie,
                seed=seed,
            )
        return AttentionalTranslator(
            source_words,
            target_words,
            embedding=self.embedding,
            hidden=self.hidden,
            layers=self.layers,
            dropout=self.dropout,
            tie=self.tie,
            init=self.init,
            seed=seed,
        )

    def same_parameters(self, other: ModelSettings) -> bool:
        """Whether parameters of one fit the other: dropout and how they began do not matter."""
        return self._shape() == other._shape()

    def __str__(self) -> str:
        special = f"embedding {self.embedding}" if self.kind == "lstm" else f"{self.heads} heads"
        return f"{self.kind} with {special}, hidden {self.hidden}, {self.layers} layers{', tied' if self.tie else ''}"

    def _shape(self) -> tuple[Any, ...]:
        special = self.embedding if self.kind == "lstm" else self.heads
        return self.kind, special, self.hidden, self.layers, self.tie


@dataclass(frozen=True)
class Decoding(BeamSettings):
    """How translations are found, if nobody says otherwise."""

    max_ratio: float = key(
        2.0, "a translation has at most this many times the words of its source, and ten"
    )

    def __post_init__(self) -> None:
        """Beams hold something."""
        super().__post_init__()
        check_positive("max_ratio", self.max_ratio)
        at_most("max_ratio", self.max_ratio, _LARGEST_RATIO)


_EMPTY = Said("", (), 0.0)  # of an empty text, for certain


@dataclass(frozen=True)
class Translator(SavedModel):
    """A model of sentences, and what gives the words of both languages their numbers.

    Attributes:
        model: log P(y|x).
        settings: what it was built by.
        source: words of inputs.
        target: words of translations.
        decoding: how it decodes unless told otherwise.

    """

    format: ClassVar[str] = "softq translator 1"
    kind: ClassVar[str] = "translator"
    model: SequenceModel
    settings: ModelSettings
    source: Vocabulary
    target: Vocabulary
    decoding: Decoding = dataclasses.field(default_factory=Decoding)

    def translate(self, texts: Iterable[str], **options: Any) -> Iterator[Said]:
        """Translations of texts, one for each and in their order, while the texts still come.

        Texts are taken a thousand at a time and sorted by their length, so that little of a batch is padding. An empty text has an empty
        translation. ``options`` are those of `softq.neural.search.Search`.
        """
        if "generator" not in options:
            options["generator"] = torch.Generator().manual_seed(0)
        waiting = iter(texts)
        while window := list(islice(waiting, _WINDOW)):
            yield from self.translate_numbers(
                [self.source.encode(text) for text in window], **options
            )

    def translate_numbers(self, sources: Sequence[Sequence[int]], **options: Any) -> list[Said]:
        """Translations of sentences that have their numbers already; ``options`` are those of `softq.neural.search.Search`."""
        search = Search(**options)
        found = [_EMPTY] * len(sources)
        order = sorted(
            (number for number, words in enumerate(sources) if len(words)),
            key=lambda number: len(sources[number]),
        )
        at_a_time = search.at_a_time(self.model)
        with evaluating(self.model):
            for first in range(0, len(order), at_a_time):
                batch = order[first : first + at_a_time]
                source = Sentences(
                    *on_device(
                        Sentences.pack([list(sources[number]) for number in batch]), self.model
                    )
                )
                limits = (source.lengths * self.decoding.max_ratio).ceil().long() + _MORE_WORDS
                for number, said in zip(
                    batch,
                    search.say(self.model, source, self.target, self.decoding, limits, batch),
                    strict=True,
                ):
                    found[number] = said
        return found

    def notes(self) -> dict[str, Tensor]:
        """Settings and words."""
        decoding = {
            field.name: getattr(self.decoding, field.name) for field in dataclasses.fields(Decoding)
        }
        about = {
            "format": self.format,
            "model": dataclasses.asdict(self.settings),
            "decoding": decoding,
        }
        return {
            "about": about_tensor(about),
            **self.source.tensors("source."),
            **self.target.tensors("target."),
        }

    @classmethod
    def from_notes(cls, about: dict[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """From settings and words."""
        settings = build(ModelSettings, about["model"], "model")
        decoding = build(Decoding, about["decoding"], "decoding")
        source, target = (
            vocabulary_from_tensors(tensors, prefix) for prefix in ("source.", "target.")
        )
        model = build_from(
            tensors, settings.layers, lambda: settings.build(len(source), len(target))
        )
        return cls(model, settings, source, target, decoding)
