"""The recipe of the translation experiment."""

from __future__ import annotations

from dataclasses import dataclass, field

from softq.errors import RecipeError
from softq.lab.recipe import Objective, at_least, check_seed, key
from softq.lab.tasks.files import check_parts
from softq.lab.tasks.words import MOST_OF_TRAIN, VocabularySettings
from softq.neural.recipe import Candidates, Optimizer, SequenceTraining, check_objective
from softq.neural.translator import Decoding, ModelSettings


@dataclass(frozen=True)
class Data:
    """What to learn from and what to be judged by."""

    train: str = key(
        "",
        "sentences to train on: source, tab, reference on each line; or sources alone (.gz, .xz); empty: the built-in world",
    )
    train_references: tuple[str, ...] = key(
        (), "files of their translations, line by line, where train holds sources alone"
    )
    dev: str = key(
        "",
        f"sentences that settings are chosen on, in the same form; empty: train, or {MOST_OF_TRAIN:,} of it at equal distances",
    )
    dev_references: tuple[str, ...] = key(
        (), "files of their translations, where dev holds sources alone"
    )
    test: str = key(
        "", "sentences of the final numbers, in the same form; empty: the development part again"
    )
    test_references: tuple[str, ...] = key(
        (), "files of their translations, where test holds sources alone"
    )
    halve_dev: bool = key(
        False, "choose on the even sources of dev, and take its odd ones for test"
    )
    merge: bool = key(
        True,
        "a training source that is there with several translations is one example of them all; else one of each",
    )
    max_length: int = key(
        50,
        "training sentences with more words or subwords than this, on either side, are left out; the count is told",
    )
    sentences: int = key(4000, "of the built-in world's training part")
    dev_sentences: int = key(500, "of its development part; its test part has as many")
    references: int = key(
        3, "translations of each of its training sentences, drawn from all that are right"
    )
    dev_references_drawn: int = key(5, "translations of each of its development and test sentences")
    idiom: float = key(
        0.2,
        "share of its translations that are in formal language, in which a sentence is said in one way only",
    )
    seed: int = key(0, "of the built-in world's sentences")

    def __post_init__(self) -> None:
        """What goes together."""
        check_seed("seed", self.seed)
        at_least("seed", self.seed, 0)
        for name in (
            "max_length",
            "sentences",
            "dev_sentences",
            "references",
            "dev_references_drawn",
        ):
            at_least(name, getattr(self, name), 1)
        if not 0 <= self.idiom <= 1:
            raise RecipeError(f"idiom must lie in 0..1, got {self.idiom}")
        check_parts(self.train, self.dev, self.test, self.halve_dev)
        for name in ("train", "dev", "test"):
            if getattr(self, f"{name}_references") and not getattr(self, name):
                raise RecipeError(
                    f"{name}_references are translations of the sources in {name}: name that file as well"
                )

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        return (
            self.train,
            self.dev,
            self.test,
            *self.train_references,
            *self.dev_references,
            *self.test_references,
        )


@dataclass(frozen=True)
class DecodingSettings(Decoding):
    """How translations are found."""

    dev_beam: int = key(1, "beam of the translations that epochs are compared by; 1: greedy")

    def __post_init__(self) -> None:
        """Beams hold something."""
        super().__post_init__()
        at_least("dev_beam", self.dev_beam, 1)


@dataclass(frozen=True)
class TranslationRecipe:
    """Everything that a run depends on."""

    data: Data = field(default_factory=Data)
    vocabulary: VocabularySettings = field(default_factory=VocabularySettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    objective: Objective = field(default_factory=Objective)
    candidates: Candidates = field(default_factory=Candidates)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: SequenceTraining = field(default_factory=SequenceTraining)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        """What the sections say must fit together."""
        check_objective(self.objective, self.candidates, merge=self.data.merge)
        if "near" in self.candidates.samplers:
            raise RecipeError(
                "sampler = near needs inputs that have features, such as images: choose another one for sentences"
            )
