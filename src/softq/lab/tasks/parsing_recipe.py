"""The recipe of the parsing experiment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from softq.lab.recipe import Conflicts, Objective, RecipeSection, Training, key
from softq.lab.tasks.encoder_recipe import (
    EncoderSettings,
    ModelKind,
    ModelSection,
    not_of_this_kind,
)
from softq.lab.tasks.files import DataSection
from softq.neural.parser_settings import ParserSettings
from softq.options import FEWEST_BITS, MOST_BITS, TreeDecoding

Nonprojective = Literal["lift", "skip"]


@dataclass(frozen=True)
class ParsingData(DataSection):
    """Files for training and evaluation."""

    train: str = key(
        "", "file of trees to train on (.conllu, .conllx, .gz, .xz); empty: the built-in world"
    )
    dev: str = key("", "file of trees that settings are chosen on; empty: the training file itself")
    test: str = key("", "test set, a file of trees; empty: the development set again")
    halve_dev: bool = key(
        False, "choose on the even sentences of dev, and take its odd ones for test"
    )
    references: tuple[str, ...] = key(
        (), "further files of the training sentences, each with the trees of another annotator"
    )
    nonprojective: Nonprojective = key(
        "lift",
        "training trees that cross, where spanning is false: lift arcs until none does, or skip the"
        " sentence; the count is told",
    )
    sentences: int = key(4000, "training sentences of the built-in world", least=1)
    dev_sentences: int = key(
        1000, "development sentences of it, with the true trees, and as many for testing", least=1
    )
    annotators: int = key(
        3,
        "annotators of the built-in world, who give each training sentence a tree each; 0: the true"
        " tree",
        least=0,
    )
    carelessness: float = key(
        0.5, "share of the sentences that such an annotator is careless with", least=0, most=1
    )
    crossing: float = key(
        0.1, "share of the built-in world's trees that may cross", least=0, most=1
    )
    seed: int = key(
        0, "random seed of the built-in world's sentences and annotators", least=0, bits=64
    )

    def conflicts(self) -> Conflicts:
        """What goes together."""
        return (
            *super().conflicts(),
            (
                self.references and not self.train,
                "references are of files: name the training file as well (train), or leave them out"
                " for the built-in world",
            ),
        )

    @property
    def files(self) -> tuple[str, ...]:
        """Every file, "" where there is none."""
        return self.train, self.dev, self.test, *self.references


@dataclass(frozen=True)
class ParsingFeatures(RecipeSection):
    """What the parser sees of an arc."""

    templates: tuple[str, ...] = key(
        (),
        "features of an arc, each a template (docs/parsing.md); none: those that the files have"
        " columns for",
    )
    relation_templates: tuple[str, ...] = key((), "features of an arc's relation, likewise")
    bits: int = key(
        22, "features of arcs are hashed into 2^bits weights", least=FEWEST_BITS, most=MOST_BITS
    )
    relation_bits: int = key(
        17,
        "features of relations into 2^bits rows, with a weight for each relation",
        least=FEWEST_BITS,
        most=MOST_BITS,
    )
    min_freq: int = key(
        2, "words, lemmas and affixes that occur less often are as good as unknown", least=1
    )


@dataclass(frozen=True)
class ParsingModel(ModelSection):
    """Trees that score each arc on its own."""

    name: str = key(
        "linear",
        "what scores arcs: linear, sparse features; neural, biaffine forms over a bidirectional LSTM"
        " (section network); transformers:PATH, the same over an encoder of Transformers (section"
        " encoder)",
    )
    spanning: bool = key(
        False,
        "all trees, by the matrix-tree theorem; else those whose arcs do not cross, by"
        " inside-outside",
    )
    decoding: Literal["auto", "mode", "mbr"] = key(
        "auto",
        "mode: the most probable tree; mbr: the tree of the most right heads to be expected; auto:"
        " mode of a linear parser, else mbr",
    )


@dataclass(frozen=True)
class ParsingNetwork(ParserSettings):
    """The encoder of a neural parser."""

    word_size: int = key(0, "size of the vector of a word; 0: that of vectors, or 128", least=0)
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


OF_EVERY_PARSER = ("arc_size", "relation_size")
"""Keys of the network that encoders of Transformers have a use for."""


@dataclass(frozen=True)
class ParserEncoder(EncoderSettings):
    """How an encoder of Transformers reads words, and how it is trained further."""

    head_dropout: float = key(
        0.33,
        "share dropped of the vectors of words and of what arcs and relations are scored by, the same"
        " at all words of a sentence; the encoder has its own",
        least=0,
        below=1,
    )


@dataclass(frozen=True)
class ParsingOptimizer(RecipeSection):
    """How the weights are found."""

    method: Literal["adagrad", "lbfgs"] = key(
        "adagrad",
        "adagrad: a batch of sentences at a time, with averaged weights; lbfgs: arcs by all data at"
        " once, relations by adagrad",
    )
    learning_rate: float = key(
        0.0,
        "learning rate of adagrad, or of the AdamW that trains neural parsers and encoders of"
        " Transformers, where it rises at first and falls to 0; 0: 0.1 of adagrad, 0.002 and 3e-5 of"
        " AdamW",
        least=0,
        finite=True,
    )
    relation_learning_rate: float = key(
        0.2, "learning rate of adagrad, for relations", positive=True
    )
    c2: float = key(1.0, "penalty c2 · ‖weights‖² of lbfgs", least=0, finite=True)
    iterations: int = key(
        200, "most iterations of L-BFGS, shared out evenly among the epochs", least=1
    )
    tolerance: float = key(
        1e-3,
        "L-BFGS has converged when the gradient's norm is this part of the first one",
        positive=True,
    )
    memory: int = key(8, "steps that L-BFGS remembers", least=1)


@dataclass(frozen=True)
class ParserTraining(Training):
    """How long and where."""

    epochs: int = key(
        0,
        "passes over the training data, at most; with lbfgs, over its relations, and only the last"
        " one's model is evaluated; 0: 40 of a neural parser, 10 of an encoder of Transformers,"
        " else 6",
        least=0,
    )
    patience: int = key(
        0,
        "epochs without a better development score before adagrad stops; 0: never stops early",
        least=0,
    )
    batch_size: int = key(
        0,
        "sentences of one step, but of lbfgs; 0: batch_words of a neural parser, else 32",
        least=0,
    )
    batch_words: int = key(
        0, "words of one step of a neural parser, about, where batch_size is 0; 0: 4000", least=0
    )


_USUAL: dict[ModelKind, tuple[float, int, int, int, TreeDecoding]] = {
    "linear": (0.1, 6, 32, 0, "mode"),
    "neural": (0.002, 40, 0, 4000, "mbr"),
    "transformers": (3e-5, 10, 32, 0, "mbr"),
}
"""Learning rate, epochs, batch size in sentences or words, and decoding of each kind of model."""


@dataclass(frozen=True)
class ParsingRecipe(RecipeSection):
    """Everything that a run depends on."""

    data: ParsingData = field(default_factory=ParsingData)
    features: ParsingFeatures = field(default_factory=ParsingFeatures)
    model: ParsingModel = field(default_factory=ParsingModel)
    network: ParsingNetwork = field(default_factory=ParsingNetwork)
    encoder: ParserEncoder = field(default_factory=ParserEncoder)
    objective: Objective = field(default_factory=Objective)
    optimizer: ParsingOptimizer = field(default_factory=ParsingOptimizer)
    training: ParserTraining = field(default_factory=ParserTraining)

    def __post_init__(self) -> None:
        """Fill in what depends on the kind of model, so that a recipe says all of it."""
        optimizer, training = self.optimizer, self.training
        rate, epochs, size, words, _ = _USUAL[self.model.kind]
        if training.batch_size:
            words = 0
        filled: dict[str, RecipeSection] = {
            "optimizer": replace(optimizer, learning_rate=optimizer.learning_rate or rate),
            "training": replace(
                training,
                epochs=training.epochs or epochs,
                batch_size=training.batch_size or size,
                batch_words=training.batch_words or words,
            ),
            "model": replace(self.model, decoding=self.decoding),
        }
        for name, section in filled.items():
            object.__setattr__(self, name, section)
        super().__post_init__()

    @property
    def decoding(self) -> TreeDecoding:
        """How trees are chosen."""
        return _USUAL[self.model.kind][-1] if self.model.decoding == "auto" else self.model.decoding

    def conflicts(self) -> Conflicts:
        """What the sections say must fit together."""
        neural = self.model.kind != "linear"
        others = replace(self.optimizer, learning_rate=ParsingOptimizer.learning_rate)
        network = self.network
        if self.model.pretrained:
            own = {name: getattr(ParsingNetwork, name) for name in OF_EVERY_PARSER}
            network = replace(network, **own)
        return (
            *not_of_this_kind(
                self.model.kind,
                "parsers",
                network != ParsingNetwork(),
                self.encoder != ParserEncoder(),
            ),
            (
                neural and others != ParsingOptimizer(),
                "method, relation_learning_rate, c2, iterations, tolerance and memory are of linear"
                " parsers, and a neural one is trained by AdamW: leave them out",
            ),
            (
                neural and self.features != ParsingFeatures(),
                "templates and the other keys of features are of linear parsers, and a neural one"
                " reads words, characters and tags: leave them out",
            ),
            (
                self.training.batch_words and self.training.batch_size,
                "batch_words is of a neural parser, in the place of batch_size: leave one of them"
                " out",
            ),
            (
                self.objective.temperature_scaled,
                "parsing has no temperature_scaled: it changes the scale of the weights and of the"
                " loss and nothing else, as learning_rate and c2 do; leave it out",
            ),
            (
                self.optimizer.method == "lbfgs" and self.training.patience,
                "lbfgs goes on until it has converged: leave patience = 0, or choose method ="
                " adagrad",
            ),
        )
