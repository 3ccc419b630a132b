"""The recipe of the named-entity experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from softq.annotators.reliability import Ties
from softq.errors import RecipeError
from softq.formats.conll import Annotators
from softq.formats.tags import Scheme
from softq.lab.recipe import Objective, Training, at_least, check_positive, check_seed, key
from softq.lab.tasks.files import check_parts
from softq.lab.tasks.linear_learner import check_search
from softq.linear.features import FINKEL
from softq.linear.tagging import Constraints, Decoding


@dataclass(frozen=True)
class Data:
    """Files for training and evaluation."""

    train: str = key(
        "",
        "column file to train on (.conll, .gz, .xz; the label is its last column); empty: the"
        " built-in world",
    )
    dev: str = key(
        "",
        "column file that settings are chosen on; empty: folds of the training file, or without"
        " folds the file itself",
    )
    test: str = key("", "test set, a column file; empty: the development set again")
    halve_dev: bool = key(
        False, "choose on the even sentences of dev, and take its odd ones for test"
    )
    folds: int = key(
        0,
        "where there is no dev: cut the training file in so many parts, and judge each by a model"
        " of the others",
    )
    annotators: str = key(
        "0",
        "last columns of the training file that are annotators' labels: a number, or all; 0: one"
        " label, nobody's",
    )
    scheme: Literal["auto", "none", "iob1", "bio", "bioes"] = key(
        "auto",
        "tag scheme of the files; auto: the one that the training labels follow; none: labels of"
        " any kind",
    )
    train_scheme: Literal["same", "iob1", "bio", "bioes"] = key(
        "same", "tag scheme to train in; predictions are converted back"
    )
    sentences: int = key(6000, "of the built-in world's training part")
    dev_sentences: int = key(
        2000, "of its development part, with the true labels; its test part has as many"
    )
    seed: int = key(
        0, "of the built-in world's sentences and annotators, and of ties that chance breaks"
    )

    def __post_init__(self) -> None:
        """What goes together."""
        check_seed("seed", self.seed)
        self.annotator_columns()
        at_least("sentences", self.sentences, 1)
        at_least("dev_sentences", self.dev_sentences, 1)
        if self.folds == 1 or self.folds < 0:
            raise RecipeError(f"folds must be 0, or 2 and more, got {self.folds}")
        if self.folds and self.dev:
            raise RecipeError(
                "folds are for training without a development file: leave out folds or dev"
            )
        check_parts(self.train, self.dev, self.test, self.halve_dev)
        named = self.scheme not in ("auto", "none")
        if not self.train and (self.folds or self.annotators != "0" or named):
            raise RecipeError(
                "folds, annotators and scheme are of files: name one (train), or leave them out for"
                " the built-in world"
            )

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        return self.train, self.dev, self.test

    def annotator_columns(self) -> Annotators:
        """The value of ``annotators``."""
        if self.annotators == "all":
            return "all"
        if not self.annotators.isdigit():
            raise RecipeError(f"annotators is a number of columns, or all, got {self.annotators!r}")
        return int(self.annotators)


@dataclass(frozen=True)
class Features:
    """What the tagger sees of a word."""

    templates: tuple[str, ...] = key(
        FINKEL, "features of a word, each a template (docs/tagging.md)"
    )
    pos: int = key(
        0,
        "column of the parts of speech, the word's being 1; 0: none. The built-in templates then"
        " look at them too",
    )
    min_freq: int = key(1, "leave out features that occur on fewer tokens")
    hash_bits: int = key(
        0, "hash features into 2^bits columns instead of keeping a table of them; 0: keep the table"
    )

    def __post_init__(self) -> None:
        """Counts are counts."""
        at_least("min_freq", self.min_freq, 1)
        at_least("hash_bits", self.hash_bits, 0)
        if self.pos == 1 or self.pos < 0:
            raise RecipeError(f"pos must be 0, or a column from 2 on, got {self.pos}")


@dataclass(frozen=True)
class Model:
    """A linear chain over labels."""

    constraints: Constraints = key(
        "decode",
        "forbid sequences that break the tag scheme: none, decode, target (and decode), model (and"
        " both)",
    )
    all_possible_states: bool = key(
        False,
        "weights for every feature with every label, not only for those seen together; adagrad has"
        " them all in any case",
    )
    all_possible_transitions: bool = key(
        True, "weights for every two neighbouring labels, not only for those seen"
    )
    decoding: Decoding = key(
        "viterbi", "viterbi: the most probable sequence; mbr: the most right labels to be expected"
    )


@dataclass(frozen=True)
class Annotations:
    """How several annotators are used."""

    references: Literal["all", "vote", "dawid-skene"] = key(
        "all",
        "all: each annotator is a reference; vote: their majority vote is the only one;"
        " dawid-skene: the most likely labels by EM",
    )
    ties: Ties = key(
        "entity",
        "which label wins a tie of votes: entity, outside (O), first (annotator) or random",
    )
    weights: Literal["uniform", "one-coin", "dawid-skene"] = key(
        "uniform", "of annotators: the same, or estimated from what they wrote by EM"
    )
    sharpness: float = key(
        1.0,
        "power that estimated weights are raised to: more than 1 leaves more to the best"
        " annotators",
    )
    entity_weight: float = key(1.0, "reward of a right entity label, where a right O earns 1")
    type_credit: float = key(
        0.0,
        "share of that reward for the right type with the wrong prefix, such as I-PER for B-PER",
    )

    def __post_init__(self) -> None:
        """A reward is positive, and a near miss earns less than a hit."""
        if not 0 <= self.type_credit < 1:
            raise RecipeError(f"type_credit must lie in 0..1, below 1, got {self.type_credit}")
        at_least("sharpness", self.sharpness, 0)
        if math.isinf(self.sharpness):
            raise RecipeError("sharpness must be finite, got inf")
        check_positive("entity_weight", self.entity_weight)
        if self.references != "all" and self.weights != "uniform":
            raise RecipeError(
                f"weights are of annotators, and references = {self.references} leaves one"
                " reference: choose all, or uniform weights"
            )
        if self.sharpness != 1 and self.weights == "uniform":
            raise RecipeError(
                "sharpness is of estimated weights: choose weights = dawid-skene, or leave it out"
            )


@dataclass(frozen=True)
class Optimizer:
    """How the weights are found."""

    method: Literal["lbfgs", "adagrad"] = key(
        "lbfgs",
        "lbfgs: all data at once, to convergence; adagrad: a batch of sentences at a time, for as"
        " many epochs as you say",
    )
    c2: float = key(0.5, "penalty c2 · ‖weights‖², as in CRFsuite")
    iterations: int = key(1000, "of L-BFGS, at most")
    tolerance: float = key(
        1e-4, "L-BFGS has converged when the gradient's norm is this part of the first one"
    )
    memory: int = key(8, "steps that L-BFGS remembers")
    learning_rate: float = key(0.1, "of adagrad")

    def __post_init__(self) -> None:
        """Steps go somewhere."""
        check_search(self.c2, self.iterations, self.memory, self.tolerance)
        check_positive("learning_rate", self.learning_rate)


@dataclass(frozen=True)
class TaggerTraining(Training):
    """How long and where; only adagrad has epochs and batches."""

    epochs: int = key(
        1, "passes of adagrad over the training data, at most; lbfgs counts iterations"
    )
    patience: int = key(
        0, "epochs without a better development score before adagrad stops; 0: never stops early"
    )
    batch_size: int = key(64, "sentences of one step of adagrad")


@dataclass(frozen=True)
class NerRecipe:
    """Everything that a run depends on."""

    data: Data = field(default_factory=Data)
    features: Features = field(default_factory=Features)
    model: Model = field(default_factory=Model)
    objective: Objective = field(default_factory=Objective)
    annotations: Annotations = field(default_factory=Annotations)
    optimizer: Optimizer = field(default_factory=Optimizer)
    training: TaggerTraining = field(default_factory=TaggerTraining)

    def __post_init__(self) -> None:
        """What the sections say must fit together."""
        if self.objective.temperature_scaled:
            raise RecipeError(
                "ner has no temperature_scaled: with the penalty c2 · ‖weights‖² it changes the"
                " scale of the weights and of the loss and nothing else, so that the tagger is the"
                " same"
            )
        if self.optimizer.method == "lbfgs" and self.training.epochs != 1:
            raise RecipeError(
                "lbfgs counts iterations, not epochs: leave epochs = 1 and set iterations, got"
                f" epochs = {self.training.epochs}"
            )
        if self.optimizer.method == "adagrad" and self.data.folds:
            raise RecipeError("folds are for lbfgs: choose method = lbfgs, or name a dev file")
        if self.optimizer.method == "adagrad" and not self.model.all_possible_transitions:
            raise RecipeError(
                "adagrad has weights for all neighbouring labels: choose method = lbfgs, or leave"
                " all_possible_transitions"
            )
        if self.data.scheme == "none" and not isinstance(self, TagRecipe):
            raise RecipeError(
                "ner is scored by entities, whose tags follow a scheme: for labels of any kind take"
                " softq train tag"
            )
        if self.data.scheme == "none":
            self._check_free_labels()
        if self.features.pos and not self.data.train:
            raise RecipeError(
                "the built-in world has no parts of speech: leave pos = 0, or name a training file"
            )

    def _check_free_labels(self) -> None:
        """What is of entity tags alone has no meaning for other labels."""
        annotations = self.annotations
        if self.model.constraints != "none":
            raise RecipeError(
                "constraints are of tag schemes, and scheme is none: set constraints = none, got"
                f" {self.model.constraints}"
            )
        if self.data.train_scheme != "same":
            raise RecipeError(
                "scheme is none, so that labels cannot be converted to train_scheme ="
                f" {self.data.train_scheme}: leave it out"
            )
        if (annotations.entity_weight, annotations.type_credit) != (1.0, 0.0):
            raise RecipeError(
                "entity_weight and type_credit are of entity tags, and scheme is none: leave"
                " them out"
            )


@dataclass(frozen=True)
class TagData(Data):
    """What to learn from and what to be scored on."""

    scheme: Literal["auto", "none", "iob1", "bio", "bioes"] = key(
        "none", "tag scheme of the files; none: labels of any kind, such as parts of speech"
    )


@dataclass(frozen=True)
class TagModel(Model):
    """A linear chain over labels."""

    constraints: Constraints = key(
        "none",
        "forbid sequences that break the tag scheme, where there is one: none, decode, target (and"
        " decode), model (and both)",
    )


@dataclass(frozen=True)
class TagRecipe(NerRecipe):
    """Everything that a run depends on."""

    data: TagData = field(default_factory=TagData)
    model: TagModel = field(default_factory=TagModel)


def scheme_of(named: str) -> Scheme | None:
    """A scheme's name, None for "auto" and "same"."""
    return named if named in ("iob1", "bio", "bioes") else None  # type: ignore[return-value]
