"""The recipes of models of sentences: translation and captioning."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from softq.lab.recipe import Conflicts, Objective, RecipeSection, key
from softq.lab.tasks.files import MOST_OF_TRAIN, SPLITS, DataSection
from softq.neural.recipe import (
    CandidateSettings,
    CaptionDecoding,
    CaptionerSettings,
    Optimizer,
    SequenceTraining,
    TranslationDecoding,
    TranslatorSettings,
    objective_conflicts,
)

_BYTES = 256


class SequenceDataSection(DataSection):
    """What the sections ``[data]`` of models of sentences share: files beside those of each split."""

    merge: bool
    max_length: int
    beside: ClassVar[str]  # how the key of such files ends
    alone: ClassVar[str]  # what to say where they are named, and the split is not

    def conflicts(self) -> Conflicts:
        """What goes together."""
        return (
            *super().conflicts(),
            *(
                (
                    getattr(self, f"{split}_{self.beside}") and not getattr(self, split),
                    self.alone.format(split),
                )
                for split in SPLITS
            ),
        )


@dataclass(frozen=True)
class VocabularySettings(RecipeSection):
    """What counts as a word; vocabularies are of the training sentences alone."""

    kind: Literal["words", "subwords"] = key(
        "words", "whole words, the others unknown; or subwords, which spell any word (BPE)"
    )
    min_freq: int = key(1, "words that occur less often are unknown", least=1)
    size: int = key(
        32000,
        "most words or subwords of each language, of which 256 are the bytes that subwords spell"
        " with",
        least=1,
    )
    tokenizer: Literal["unicode", "space"] = key(
        "unicode",
        "words end at punctuation; or at white space alone, for text that is tokenized already",
    )
    lowercase: bool = key(False, "read and write everything in small letters")

    def conflicts(self) -> Conflicts:
        """Subwords are pieces of bytes, and have no other keys than their number."""
        subwords = self.kind == "subwords"
        return (
            (
                subwords and self.size < _BYTES,
                f"vocabulary.size must be at least {_BYTES} with kind = subwords, every byte being"
                f" one, got {self.size}",
            ),
            (
                subwords and (self.min_freq > 1 or self.tokenizer != "unicode" or self.lowercase),
                "min_freq, tokenizer and lowercase are of whole words: expected min_freq = 1,"
                " tokenizer = unicode and lowercase = false with kind = subwords, got"
                f" {self.min_freq}, {self.tokenizer} and {str(self.lowercase).lower()}",
            ),
        )


# --- translation ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TranslationData(SequenceDataSection):
    """The data to train, choose and test on."""

    beside: ClassVar[str] = "references"
    alone: ClassVar[str] = (
        "{0}_references are translations of the sources in {0}: name that file as well"
    )

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
        least=1,
    )
    sentences: int = key(4000, "training sentences of the built-in world", least=1)
    dev_sentences: int = key(
        500, "development sentences of the built-in world, and test sentences", least=1
    )
    references: int = key(
        3,
        "translations of each of its training sentences, sampled from all that are right",
        least=1,
    )
    dev_references_drawn: int = key(
        5, "translations of each of its development and test sentences", least=1
    )
    idiom: float = key(
        0.2,
        "share of its translations in formal language, in which a sentence has one translation"
        " only",
        least=0,
        most=1,
    )
    seed: int = key(0, "random seed of the built-in world's sentences", least=0, bits=64)

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        beside = *self.train_references, *self.dev_references, *self.test_references
        return *super().files, *beside


@dataclass(frozen=True)
class TranslationRecipe(RecipeSection):
    """Everything that a run depends on."""

    data: TranslationData = field(default_factory=TranslationData)
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    model: TranslatorSettings = field(default_factory=TranslatorSettings)
    objective: Objective = field(default_factory=Objective)
    candidates: CandidateSettings = field(default_factory=CandidateSettings)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: SequenceTraining = field(default_factory=SequenceTraining)
    decoding: TranslationDecoding = field(default_factory=TranslationDecoding)

    def conflicts(self) -> Conflicts:
        """What the sections say must fit together."""
        return (
            *objective_conflicts(self.objective, self.candidates, merge=self.data.merge),
            (
                "near" in self.candidates.samplers,
                "sampler = near needs inputs that have features, such as images: choose another one"
                " for sentences",
            ),
        )


# --- captioning -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CaptionData(SequenceDataSection):
    """The data to train, choose and test on."""

    unit: ClassVar[str] = "image"
    beside: ClassVar[str] = "features"
    alone: ClassVar[str] = (
        "{0}_features are of the images in {0}: name that file of captions as well"
    )

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
        50, "leave out training captions with more words than this; the number is reported", least=1
    )
    scenes: int = key(400, "training scenes of the built-in world", least=1)
    dev_scenes: int = key(300, "development scenes of the built-in world, and test scenes", least=1)
    captions: int = key(5, "captions of each of its scenes", least=1)
    seed: int = key(0, "random seed of the built-in world's scenes", least=0, bits=64)

    def sizes(self) -> tuple[int, int]:
        """Scenes of the built-in world."""
        return self.scenes, self.dev_scenes

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        return *super().files, *map(self.features_of, SPLITS)

    def features_of(self, split: str) -> str:
        """The file with the features of ``train``, ``dev`` or ``test``, named or beside its captions; "" where there is none."""
        from softq.formats.captions import features_beside

        captions, named = getattr(self, split), getattr(self, f"{split}_features")
        return named or (str(features_beside(Path(captions))) if captions else "")


@dataclass(frozen=True)
class CaptionVocabulary(VocabularySettings):
    """What counts as a word; of the training captions alone."""

    min_freq: int = key(5, "words that occur less often are unknown", least=1)
    lowercase: bool = key(True, "read and write everything in small letters")


@dataclass(frozen=True)
class CaptioningRecipe(RecipeSection):
    """Everything that a run depends on."""

    data: CaptionData = field(default_factory=CaptionData)
    vocabulary: CaptionVocabulary = field(default_factory=CaptionVocabulary)
    model: CaptionerSettings = field(default_factory=CaptionerSettings)
    objective: Objective = field(default_factory=Objective)
    candidates: CandidateSettings = field(default_factory=CandidateSettings)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: SequenceTraining = field(default_factory=SequenceTraining)
    decoding: CaptionDecoding = field(default_factory=CaptionDecoding)

    def conflicts(self) -> Conflicts:
        """What the sections say must fit together."""
        return objective_conflicts(self.objective, self.candidates, merge=self.data.merge)
