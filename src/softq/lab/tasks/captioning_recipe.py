"""The recipe of the captioning experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from softq.errors import RecipeError
from softq.formats.captions import features_beside
from softq.lab.recipe import Objective, at_least, check_seed, key
from softq.lab.tasks.files import check_parts
from softq.lab.tasks.words import MOST_OF_TRAIN, VocabularySettings
from softq.neural.captioner import CaptionDecoding, CaptionerSettings
from softq.neural.recipe import Candidates, Optimizer, SequenceTraining, check_objective


@dataclass(frozen=True)
class CaptionData:
    """What to learn from and what to be judged by."""

    train: str = key(
        "",
        "captions to train on: image, tab, caption on each line (.gz, .xz), or Karpathy's JSON; empty: the built-in world of scenes",
    )
    train_features: str = key(
        "",
        "features of its images (softq data features); empty: train.features.npy for train.captions.tsv and so on",
    )
    dev: str = key(
        "",
        f"captions that settings are chosen on, in the same form; empty: train, or {MOST_OF_TRAIN:,} of its images at equal distances",
    )
    dev_features: str = key("", "features of its images")
    test: str = key(
        "", "captions of the final numbers, in the same form; empty: the development part again"
    )
    test_features: str = key("", "features of its images")
    images: str = key(
        "",
        "a folder with the images themselves, for the pictures of the report; empty: none",
        identity=False,
    )
    encoder: str = key(
        "",
        "what made the features, told to whoever uses the model: a name of softq data features --encoder; empty: unknown",
    )
    halve_dev: bool = key(False, "choose on the even images of dev, and take its odd ones for test")
    merge: bool = key(
        True,
        "an image is one example of all its captions; else there is one of each, as the paper has it for raml",
    )
    max_length: int = key(
        50, "training captions with more words than this are left out; the count is told"
    )
    scenes: int = key(400, "of the built-in world's training part")
    dev_scenes: int = key(300, "of its development part; its test part has as many")
    captions: int = key(5, "of each of its scenes")
    seed: int = key(0, "of the built-in world's scenes")

    def __post_init__(self) -> None:
        """What goes together."""
        check_seed("seed", self.seed)
        at_least("seed", self.seed, 0)
        for name in ("max_length", "scenes", "dev_scenes", "captions"):
            at_least(name, getattr(self, name), 1)
        check_parts(self.train, self.dev, self.test, self.halve_dev)
        for name in ("train", "dev", "test"):
            if getattr(self, f"{name}_features") and not getattr(self, name):
                raise RecipeError(
                    f"{name}_features are of the images in {name}: name that file of captions as well"
                )

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        return (
            self.train,
            self.dev,
            self.test,
            *(self.features_of(part) for part in ("train", "dev", "test")),
        )

    def features_of(self, part: str) -> str:
        """The file with the features of ``train``, ``dev`` or ``test``, named or beside its captions; "" where there is none."""
        captions, named = getattr(self, part), getattr(self, f"{part}_features")
        return named or (str(features_beside(Path(captions))) if captions else "")


@dataclass(frozen=True)
class CaptionVocabulary(VocabularySettings):
    """What counts as a word; of the training captions alone."""

    min_freq: int = key(5, "words that occur less often are unknown")
    lowercase: bool = key(True, "read and write everything in small letters")


@dataclass(frozen=True)
class CaptionDecodingSettings(CaptionDecoding):
    """How captions are found."""

    dev_beam: int = key(1, "beam of the captions that epochs are compared by; 1: greedy")

    def __post_init__(self) -> None:
        """Beams hold something."""
        super().__post_init__()
        at_least("dev_beam", self.dev_beam, 1)


@dataclass(frozen=True)
class CaptioningRecipe:
    """Everything that a run depends on."""

    data: CaptionData = field(default_factory=CaptionData)
    vocabulary: CaptionVocabulary = field(default_factory=CaptionVocabulary)
    model: CaptionerSettings = field(default_factory=CaptionerSettings)
    objective: Objective = field(default_factory=Objective)
    candidates: Candidates = field(default_factory=Candidates)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: SequenceTraining = field(default_factory=SequenceTraining)
    decoding: CaptionDecodingSettings = field(default_factory=CaptionDecodingSettings)

    def __post_init__(self) -> None:
        """What the sections say must fit together."""
        check_objective(self.objective, self.candidates, merge=self.data.merge)
