"""The recipes of taggers: named entities, and labels of any kind."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from softq.lab.recipe import Conflicts, Objective, RecipeSection, Training, key
from softq.lab.tasks.encoder_recipe import (
    ModelKind,
    ModelSection,
    TaggerEncoder,
    not_of_this_kind,
)
from softq.lab.tasks.files import DataSection
from softq.linear.finkel import FINKEL
from softq.neural.tagger_settings import TaggerSettings
from softq.options import Constraints, LabelDecoding, Scheme, TaggerSpace, Ties


@dataclass(frozen=True)
class NerData(DataSection):
    """Files for training and evaluation."""

    train: str = key(
        "",
        "column file to train on (.conll, .gz, .xz; the label is its last column), or labels in"
        " JSON (.json, .jsonl); empty: the built-in world",
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
        " label, of no annotator in particular",
    )
    without: tuple[str, ...] = key(
        (),
        "annotators to leave out, by their names in the file, or by the numbers of their columns",
    )
    partial_labels: bool = key(
        False,
        "labels of the training file may be ?, which nobody knows, B-PER|B-ORG, one of which is"
        " right, or B-PER=0.7|O=0.3; a tagger in the loop fills in the rest",
    )
    scheme: Literal["auto", "none", "iob1", "bio", "bioes"] = key(
        "auto",
        "tag scheme of the files; auto: the one that the training labels follow; none: labels of"
        " any kind",
    )
    train_scheme: Literal["same", "iob1", "bio", "bioes"] = key(
        "same", "tag scheme to train in; predictions are converted back"
    )
    sentences: int = key(6000, "training sentences of the built-in world", least=1)
    dev_sentences: int = key(
        2000, "development sentences of it, with the true labels, and as many for testing", least=1
    )
    seed: int = key(
        0,
        "random seed of the built-in world's sentences and annotators, and of random ties",
        bits=64,
    )

    def annotator_columns(self) -> int | Literal["all"]:
        """The value of ``annotators``."""
        return "all" if self.annotators == "all" else int(self.annotators)

    def conflicts(self) -> Conflicts:
        """What goes together."""
        named = self.scheme not in ("auto", "none")
        return (
            (
                self.annotators != "all" and not self.annotators.isdigit(),
                f"annotators is a number of columns, or all, got {self.annotators!r}",
            ),
            (
                self.folds == 1 or self.folds < 0,
                f"folds must be 0, or 2 and more, got {self.folds}",
            ),
            (
                self.folds and self.dev,
                "folds are for training without a development file: leave out folds or dev",
            ),
            *super().conflicts(),
            (
                self.partial_labels and self.annotators != "0",
                "partial_labels are of one column of labels: leave out annotators, or partial_labels"
                " where annotators left out labels, for which ? needs no option",
            ),
            (
                self.partial_labels and self.folds,
                "folds are scored by the labels they hold out, and partial_labels are not all"
                " known: name a file of true labels, dev",
            ),
            (
                self.partial_labels and not self.train,
                "partial_labels are of files: name one (train)",
            ),
            (
                not self.train and (self.folds or self.annotators != "0" or named),
                "folds, annotators and scheme are of files: name one (train), or leave them out for"
                " the built-in world",
            ),
        )


@dataclass(frozen=True)
class NerFeatures(RecipeSection):
    """What the tagger sees of a word."""

    templates: tuple[str, ...] = key(
        FINKEL, "features of a word, each a template (docs/tagging.md)"
    )
    pos: int = key(
        0,
        "column of the parts of speech, the word's being 1; 0: none. The built-in templates then"
        " look at them too",
    )
    min_freq: int = key(1, "leave out features that occur on fewer tokens", least=1)
    hash_bits: int = key(
        0,
        "hash features into 2^bits columns instead of keeping a table of them; 0: keep the table",
        least=0,
    )

    def conflicts(self) -> Conflicts:
        """Column 1 is the word."""
        return (
            (
                self.pos == 1 or self.pos < 0,
                f"pos must be 0, or a column from 2 on, got {self.pos}",
            ),
        )


@dataclass(frozen=True)
class NerModel(ModelSection):
    """A linear chain over labels."""

    name: str = key(
        "linear",
        "what scores labels: linear, sparse features of words; neural, a bidirectional LSTM over"
        " vectors of words and their characters (section network); transformers:PATH, an encoder of"
        " Transformers (section encoder)",
    )
    space: TaggerSpace = key(
        "chain",
        "chain: labels, each of which depends on the one before; segments: whole entities, a"
        " semi-Markov model, whose rewards count exact entities",
    )
    max_segment: int = key(
        8, "words of the longest segment; longer entities to train on are cut", least=1
    )
    constraints: Constraints = key(
        "decode",
        "forbid sequences that break the tag scheme: none, decode, target (and decode), model (and"
        " both); segments keep to it in any case",
    )
    all_possible_states: bool = key(
        False,
        "weights for every feature with every label, not only for those seen together; adagrad has"
        " them all in any case",
    )
    all_possible_transitions: bool = key(
        True, "weights for every two neighbouring labels, not only for those seen"
    )
    decoding: LabelDecoding = key(
        "viterbi", "viterbi: the most probable sequence; mbr: the most right labels to be expected"
    )


@dataclass(frozen=True)
class NerNetwork(TaggerSettings):
    """The encoder of a neural tagger."""

    word_size: int = key(0, "size of the vector of a word; 0: that of vectors, or 100", least=0)
    vectors: str = key(
        "",
        "pretrained vectors of words: text with a word and its numbers on each line (.gz, .xz too),"
        " or x.npy with the words in x.words.txt; empty: none",
    )
    graphs: bool = key(
        True,
        "on a GPU, record the step of each batch and replay it, instead of launching it kernel by"
        " kernel",
        identity=False,
    )


LOOP = ("rounds", "loop_folds", "loop_c2", "temper", "evidence_floor", "tagger_weight")
"""Keys of the tagger in the loop."""


@dataclass(frozen=True)
class NerAnnotations(RecipeSection):
    """How several annotators are used."""

    references: Literal["all", "vote", "dawid-skene", "sequential"] = key(
        "all",
        "all: each annotator is a reference; vote: their majority vote is the only one;"
        " dawid-skene, sequential: the most likely labels by EM with this model of the annotators",
    )
    ties: Ties = key(
        "entity",
        "which label wins a tie of votes: entity, outside (O), first (annotator) or random",
    )
    weights: Literal["uniform", "one-coin", "dawid-skene"] = key(
        "uniform", "of annotators: the same, or estimated from their labels by EM"
    )
    sharpness: float = key(
        1.0,
        "power that estimated weights are raised to: more than 1 leaves more to the best"
        " annotators",
        least=0,
        finite=True,
    )
    entity_weight: float = key(
        1.0, "reward of a right entity label, where a right O earns 1", positive=True
    )
    type_credit: float = key(
        0.0,
        "share of that reward for the right type with the wrong prefix, such as I-PER for B-PER",
        least=0,
        below=1,
    )
    annotator_model: Literal["none", "dawid-skene", "sequential"] = key(
        "none",
        "estimate the truth from all annotators, with a tagger in the loop; sequential: their labels"
        " depend on their previous ones, too. ml is then trained toward the probabilities of the"
        " true labels, sqdml toward the annotators' log-probabilities alone",
    )
    rounds: int | None = key(
        None, "of the tagger in the loop (annotator_model or partial_labels)", least=1
    )
    loop_folds: int | None = key(
        None,
        "parts of the sentences in the loop, each scored by a tagger of the others; the training"
        " seed cuts them",
        least=2,
    )
    loop_c2: float | None = key(
        None, "penalty of the loop's taggers; none: c2", least=0, finite=True
    )
    temper: float | None = key(
        None,
        "power of the annotators' labels in the loop, below 1 since annotators err together",
        positive=True,
    )
    evidence_floor: float | None = key(
        None,
        "lowest log-probability of an annotator's label in the loop, so that one label cannot"
        " decide alone",
        below=0,
        finite=True,
    )
    tagger_weight: float | None = key(None, "power of the tagger in the loop", least=0, finite=True)

    @property
    def of_the_loop(self) -> dict[str, Any]:
        """The keys of the tagger in the loop that have a value."""
        return {name: value for name in LOOP if (value := getattr(self, name)) is not None}

    def conflicts(self) -> Conflicts:
        """What goes together."""
        modelled = self.annotator_model != "none"
        return (
            (
                modelled and (self.references != "all" or self.weights != "uniform"),
                "annotator_model estimates the truth from the labels of all annotators: leave out"
                " references and weights",
            ),
            (
                modelled and (self.entity_weight, self.type_credit) != (1.0, 0.0),
                "with annotator_model the reward is the annotators' log-probability: leave out"
                " entity_weight and type_credit",
            ),
            (
                not modelled and (self.temper, self.evidence_floor) != (None, None),
                "temper and evidence_floor are of annotators' labels in the loop: choose an"
                " annotator_model, or leave them out",
            ),
            (
                self.references != "all" and self.weights != "uniform",
                f"weights are of annotators, and references = {self.references} leaves one"
                " reference: choose all, or uniform weights",
            ),
            (
                self.sharpness != 1 and self.weights == "uniform",
                "sharpness is of estimated weights: choose weights = dawid-skene, or leave it out",
            ),
        )


@dataclass(frozen=True)
class NerOptimizer(RecipeSection):
    """How the weights are found."""

    method: Literal["lbfgs", "adagrad"] = key(
        "lbfgs",
        "lbfgs: all data at once, to convergence; adagrad: a batch of sentences at a time, for as"
        " many epochs as you say",
    )
    c2: float = key(0.5, "penalty c2 · ‖weights‖², as in CRFsuite", least=0, finite=True)
    iterations: int = key(1000, "most iterations of L-BFGS", least=1)
    tolerance: float = key(
        1e-4,
        "L-BFGS has converged when the gradient's norm is this part of the first one",
        positive=True,
    )
    memory: int = key(8, "steps that L-BFGS remembers", least=1)
    learning_rate: float = key(
        0.0,
        "of adagrad, or of the Adam that trains neural taggers and encoders of Transformers and"
        " lowers it to 0 by the end; 0: 0.1 of adagrad, 0.002 and 3e-5 of Adam",
        least=0,
        finite=True,
    )


@dataclass(frozen=True)
class TaggerTraining(Training):
    """How long and where; lbfgs has no epochs and batches."""

    epochs: int = key(
        0,
        "passes over the training data, at most; lbfgs counts iterations; 0: 30 of a neural tagger,"
        " 5 of an encoder of Transformers, else 1",
        least=0,
    )
    patience: int = key(
        0,
        "epochs without a better development score before training in batches stops; 0: never stops"
        " early",
        least=0,
    )
    batch_size: int = key(
        0,
        "sentences of one step; 0: 32 of a neural tagger, 16 of an encoder of Transformers, else 64",
        least=0,
    )


_USUAL: dict[ModelKind, tuple[float, int, int]] = {
    "linear": (0.1, 1, 64),
    "neural": (0.002, 30, 32),
    "transformers": (3e-5, 5, 16),
}
"""Learning rate, epochs and batch size of each kind of model."""


@dataclass(frozen=True)
class NerRecipe(RecipeSection):
    """Everything that a run depends on."""

    data: NerData = field(default_factory=NerData)
    features: NerFeatures = field(default_factory=NerFeatures)
    model: NerModel = field(default_factory=NerModel)
    network: NerNetwork = field(default_factory=NerNetwork)
    encoder: TaggerEncoder = field(default_factory=TaggerEncoder)
    objective: Objective = field(default_factory=Objective)
    annotations: NerAnnotations = field(default_factory=NerAnnotations)
    optimizer: NerOptimizer = field(default_factory=NerOptimizer)
    training: TaggerTraining = field(default_factory=TaggerTraining)

    def __post_init__(self) -> None:
        """Fill in what depends on the kind of model, so that a recipe says all of it."""
        rate, epochs, size = _USUAL[self.model.kind]
        training, optimizer = self.training, self.optimizer
        filled: dict[str, RecipeSection] = {
            "optimizer": replace(optimizer, learning_rate=optimizer.learning_rate or rate),
            "training": replace(
                training, epochs=training.epochs or epochs, batch_size=training.batch_size or size
            ),
        }
        for name, section in filled.items():
            object.__setattr__(self, name, section)
        super().__post_init__()

    @property
    def max_segment(self) -> int | None:
        """Words of the longest segment of a model of segments; None: a chain."""
        return self.model.max_segment if self.model.space == "segments" else None

    def _segment_conflicts(self, looped: str) -> Conflicts:
        """What segments do not go with."""
        if self.max_segment is None:
            return (
                (
                    self.model.max_segment != NerModel.max_segment,
                    "max_segment is of segments: add space = segments (--space segments), or leave"
                    " it out",
                ),
            )
        return (
            (
                self.data.scheme == "none",
                "segments are entities, whose tags follow a scheme: name it (--scheme), or leave"
                " out space = segments",
            ),
            (
                self.data.train_scheme == "iob1",
                "segments are trained in bio or bioes: leave out train_scheme = iob1",
            ),
            (looped, f"{looped} estimates the truth label by label: leave out space = segments"),
            (
                self.annotations.type_credit,
                "segments are right as a whole, and type_credit is for labels: leave it out",
            ),
            (
                self.model.kind == "transformers",
                "space = segments works with linear and neural taggers only: leave it out, or choose"
                " model = neural",
            ),
            (not self.network.crf, "segments have scores of neighbouring types: leave out no-crf"),
        )

    def _of_other_kinds(self, looped: str) -> Conflicts:
        """Keys of another kind of model."""
        kind, optimizer = self.model.kind, self.optimizer
        linear = kind == "linear"
        others = replace(optimizer, learning_rate=NerOptimizer.learning_rate)
        return (
            *not_of_this_kind(
                kind, "taggers", self.network != NerNetwork(), self.encoder != TaggerEncoder()
            ),
            (
                not linear and others != NerOptimizer(),
                "method, c2, iterations, tolerance and memory are of linear taggers, and a neural"
                " one is trained by Adam: leave them out"
                + (" (loop_c2 is the penalty of the tagger in the loop)" if looped else ""),
            ),
            (
                not linear and self.features != NerFeatures() and not looped,
                "templates and the other keys of features are of linear taggers, and a neural one"
                " reads words and characters: leave them out",
            ),
            (
                not linear
                and (self.model.all_possible_states or not self.model.all_possible_transitions),
                "all_possible_states and all_possible_transitions are of linear taggers: leave them"
                " out (a neural one has crf, an encoder of Transformers head)",
            ),
            (
                not linear and self.data.folds,
                "folds are for linear taggers: name a dev file (dev), or leave them out",
            ),
        )

    def _loop_conflicts(self) -> Conflicts:
        """What a tagger in the loop does not go with."""
        annotations, partial = self.annotations, self.data.partial_labels
        modelled, looped = annotations.annotator_model != "none", self._looped
        return (
            (
                modelled and partial,
                "annotator_model and partial_labels do not go together: labels that an annotator"
                " left out are ? in their columns, with annotator_model alone",
            ),
            (
                annotations.of_the_loop and not looped,
                f"{', '.join(annotations.of_the_loop)}: of the tagger in the loop, and there is"
                " none: choose an annotator_model, or partial_labels",
            ),
            (
                modelled and self.objective.name == "raml",
                "annotator_model goes with ml, which is trained toward the probabilities of the true"
                " labels, or sqdml, toward the annotators' log-probabilities, got raml",
            ),
            (
                partial and self.objective.name != "ml",
                "partial_labels go with ml, which is trained toward the probabilities of the true"
                f" labels, got {self.objective.name}",
            ),
            (
                looped and self.optimizer.method == "adagrad",
                f"{looped} needs method = lbfgs, got adagrad",
            ),
        )

    def _scheme_conflicts(self) -> Conflicts:
        """What labels that follow no tag scheme do not go with."""
        data, annotations, free = self.data, self.annotations, self.data.scheme == "none"
        return (
            (
                free and not isinstance(self, TagRecipe),
                "ner is scored by entities, whose tags follow a scheme: for labels of any kind take"
                " softq train tag",
            ),
            (
                free and self.model.constraints != "none",
                "constraints are of tag schemes, and scheme is none: set constraints = none, got"
                f" {self.model.constraints}",
            ),
            (
                free and data.train_scheme != "same",
                "scheme is none, so that labels cannot be converted to train_scheme ="
                f" {data.train_scheme}: leave it out",
            ),
            (
                free and (annotations.entity_weight, annotations.type_credit) != (1.0, 0.0),
                "entity_weight and type_credit are of entity tags, and scheme is none: leave"
                " them out",
            ),
        )

    @property
    def _looped(self) -> str:
        """The key that puts a tagger in the loop; empty if none does."""
        if self.annotations.annotator_model != "none":
            return "annotator_model"
        return "partial_labels" if self.data.partial_labels else ""

    def conflicts(self) -> Conflicts:
        """What the sections say must fit together."""
        data, adagrad = self.data, self.optimizer.method == "adagrad"
        return (
            *self._of_other_kinds(self._looped),
            *self._segment_conflicts(self._looped),
            *self._loop_conflicts(),
            (
                self.objective.temperature_scaled,
                "ner has no temperature_scaled: with the penalty c2 · ‖weights‖² it changes the"
                " scale of the weights and of the loss and nothing else, so that the tagger is the"
                " same, and so it is of other models up to the scale of their scores",
            ),
            (
                not adagrad and self.model.kind == "linear" and self.training.epochs != 1,
                "lbfgs counts iterations, not epochs: leave epochs = 1 and set iterations, got"
                f" epochs = {self.training.epochs}",
            ),
            (
                adagrad and data.folds,
                "folds are for lbfgs: choose method = lbfgs, or name a dev file",
            ),
            (
                adagrad and not self.model.all_possible_transitions,
                "adagrad has weights for all neighbouring labels: choose method = lbfgs, or leave"
                " all_possible_transitions",
            ),
            *self._scheme_conflicts(),
            (
                self.features.pos and not data.train,
                "the built-in world has no parts of speech: leave pos = 0, or name a training file",
            ),
        )


@dataclass(frozen=True)
class TagData(NerData):
    """What to learn from and what to be scored on."""

    scheme: Literal["auto", "none", "iob1", "bio", "bioes"] = key(
        "none", "tag scheme of the files; none: labels of any kind, such as parts of speech"
    )


@dataclass(frozen=True)
class TagModel(NerModel):
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


def trained_scheme(data: NerData, of_files: Scheme | None, *, spelled: bool) -> Scheme | None:
    """The tag scheme to train in: that of the files unless said, but BIO of segments in IOB1."""
    found = scheme_of(data.train_scheme) or of_files
    return "bio" if spelled and found == "iob1" else found
