"""Sections of recipes of models of sentences.

Their networks, their candidates, their optimizer, their training, how they generate. Nothing here
imports torch before a network is built.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from softq.lab.recipe import Conflicts, Objective, RecipeSection, Training, key
from softq.options import Smoothing

if TYPE_CHECKING:
    from torch import Tensor

    from softq.neural.modules.sequence import Inputs, SequenceModel

SamplerName = Literal["ngram", "hamming", "model", "near", "recombined"]
RewardName = Literal["bleu", "hamming"]
EstimatorName = Literal["set", "paper", "importance", "printed"]
Replacements = Literal["uniform", "frequencies"]
Schedule = Literal["plateau", "linear"]
Refresh = Literal["step", "epoch"]
Precision = Literal["float32", "tf32", "bf16"]


@dataclass(frozen=True)
class CandidateSettings(RecipeSection):
    """Candidates of raml and sqdml beside the references, sampled again in every step."""

    sampler: str = key(
        "ngram",
        "ngram: replace an n-gram of a reference; hamming: replace single words; model: sample from"
        " the model; near: take references of similar inputs; recombined: replace an n-gram of a"
        " reference by one of another reference of the input; or several joined by +, such as"
        " model+recombined, which share size equally",
    )
    reward: RewardName = key(
        "bleu", "bleu: sentence BLEU; hamming: minus the number of words that differ"
    )
    smoothing: Smoothing = key(
        "nltk3", "smoothing of sentence BLEU: nltk3 (the paper), mteval, sacrebleu, none"
    )
    size: int = key(
        10,
        "number of candidates of an example, at most half of them references; with hamming, model,"
        " near or several samplers: number of samples, beside all references",
    )
    k: int = key(0, "how many of the candidates a step uses; 0: all", least=0)
    max_n: int = key(4, "longest n-gram to replace", least=1)
    refresh: Refresh = key(
        "step",
        "how often to sample from the model, with sampler = model: in every step, or before every"
        " epoch",
    )
    neighbours: int = key(
        10, "number of nearest inputs whose references are candidates, with sampler = near", least=1
    )
    estimator: EstimatorName = key(
        "set",
        "set: softmax over the candidates; paper: the same, k of them, not renormalised;"
        " importance: divided by the probability of being sampled; printed: by exp(-distance/tau),"
        " as the paper prints it (hamming)",
    )
    rescale: bool = key(True, "sample hamming at tau / (1 + log(words - 1)), the paper's footnote")
    replacements: Replacements = key(
        "uniform",
        "sample replacement words uniformly, or by their frequency in the training text, with"
        " sampler = ngram",
    )

    def conflicts(self) -> Conflicts:
        """What goes together."""
        return (*self._of_candidates(), *self._of_weights())

    def _of_candidates(self) -> Conflicts:
        unknown = [name for name in self.samplers if name not in get_args(SamplerName)]
        fewest = 2 if self.alone and self.holds_references else len(self.samplers)
        made = self.share * len(self.samplers)
        return (
            (
                unknown or len(set(self.samplers)) < len(self.samplers),
                f"sampler must be one of {', '.join(get_args(SamplerName))}, or several joined by"
                f" +, got {self.sampler!r}",
            ),
            (self.size < fewest, f"size must be at least {fewest}, got {self.size}"),
            (
                not self.alone and "hamming" in self.samplers,
                "sampler = hamming samples from a distribution of its own: it cannot be joined"
                f" with others, got {self.sampler!r}",
            ),
            (
                self.k == 1,
                "k = 1 leaves no place beside a reference: choose k = 2 or more, or k = 0 for"
                " all candidates",
            ),
            (self.k > made, f"k must not exceed size, got k = {self.k} of {made}"),
            (
                self.refresh == "epoch" and "model" not in self.samplers,
                "refresh = epoch is for samples from the model, sampler = model, got sampler ="
                f" {self.sampler}",
            ),
        )

    def _of_weights(self) -> Conflicts:
        estimator, hamming = self.estimator, self.sampler == "hamming"
        return (
            (
                estimator == "paper" and not self.k,
                "estimator = paper needs k, how many candidates a step uses (the paper: 10 of"
                " size = 100)",
            ),
            (
                estimator in ("importance", "printed") and self.k > 0,
                f"estimator = {estimator} uses every sample: leave out k, and lower size instead",
            ),
            (
                estimator == "importance" and self.sampler not in ("ngram", "hamming", "model"),
                "estimator = importance needs the probability of a sample, which ngram, hamming"
                " and model alone have: choose one of them, or estimator = set, got sampler ="
                f" {self.sampler}",
            ),
            (
                estimator == "importance" and self.refresh == "epoch",
                "estimator = importance needs the probability of a sample, which is not kept for"
                " an epoch: choose refresh = step",
            ),
            (
                estimator == "printed" and not (hamming and self.reward == "bleu"),
                "estimator = printed is the paper's formula for sampler = hamming with reward ="
                " bleu",
            ),
            (
                self.reward == "hamming" and not hamming,
                "reward = hamming is between sentences of one length: sample them with sampler ="
                " hamming",
            ),
            (
                self.reward == "hamming" and estimator != "importance",
                "reward = hamming is sampled from its own target: choose estimator = importance,"
                " which gives every sample the same weight",
            ),
            (
                hamming and estimator == "paper",
                "estimator = paper chooses among candidates that include the references, and those"
                " of sampler = hamming do not",
            ),
        )

    @property
    def samplers(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.sampler.split("+"))

    @property
    def alone(self) -> bool:
        """Whether there is one."""
        return len(self.samplers) == 1

    @property
    def share(self) -> int:
        """What each of the samplers makes."""
        return self.size // len(self.samplers)

    @property
    def holds_references(self) -> bool:
        """Whether a sampler counts references among what it makes."""
        return "ngram" in self.samplers or "recombined" in self.samplers

    @property
    def max_references(self) -> int | None:
        """How many references of an example a step uses: half of the candidates are others."""
        limits = (self.k, self.size if self.alone and self.holds_references else 0)
        return min(filter(None, limits)) // 2 if any(limits) else None


@dataclass(frozen=True)
class Optimizer(RecipeSection):
    """Adam, with a rate that falls."""

    learning_rate: float = key(1e-3, "learning rate of Adam", positive=True)
    schedule: Schedule = key(
        "plateau",
        "plateau: the rate falls by decay when the development perplexity rises; linear: evenly"
        " to 0",
    )
    decay: float = key(
        0.5,
        "factor of the learning rate after an epoch without the lowest development perplexity so"
        " far; 1: never",
        above=0,
        most=1,
    )
    min_learning_rate: float = key(1e-5, "the rate does not fall below this", least=0)
    clip: float = key(5.0, "gradients are scaled down to this norm; 0: never", least=0)
    label_smoothing: float = key(
        0.0,
        "label smoothing: share of each word's target that is spread over all words",
        least=0,
        below=1,
    )


@dataclass(frozen=True)
class SequenceTraining(Training):
    """How long and where."""

    epochs: int = key(20, "passes over the training data, at most", least=1)
    patience: int = key(
        5,
        "epochs without a better development score before training stops; 0: never stops early",
        least=0,
    )
    batch_size: int = key(
        64, "inputs of one step, over all processes, with all their candidates", least=1
    )
    start: str = key(
        "",
        "a run folder or model file to start from, such as one trained by ml; empty: random"
        " parameters",
    )
    precision: Precision = key(
        "bf16",
        "precision of matrix products on a GPU: float32; tf32, coarser and faster; bf16: tf32, and"
        " bfloat16 factors in the output layer",
    )
    graphs: bool = key(
        True,
        "on a GPU, record a step once per shape and replay it, instead of launching it kernel by"
        " kernel",
        identity=False,
    )


def objective_conflicts(
    objective: Objective, candidates: CandidateSettings, *, merge: bool
) -> Conflicts:
    """Objectives that models of sentences have not.

    Without ``merge`` each reference is an example of its own.
    """
    return (
        (
            objective.temperature_scaled,
            "temperature_scaled divides scores by tau, and a model of sentences has none; leave"
            " it out",
        ),
        (
            objective.name == "sqdml" and not merge,
            "sqdml is for examples with several references, and merge = false makes one of each:"
            " leave it out, or choose raml",
        ),
        (
            "recombined" in candidates.samplers and not merge,
            "sampler = recombined takes n-grams of other references, and merge = false leaves an"
            " example with one: leave it out",
        ),
    )


class NetworkSettings(RecipeSection):
    """What the networks of translators and captioners share."""

    kind: str
    embedding: int
    hidden: int
    layers: int
    dropout: float
    tie: bool
    init: float

    def conflicts(self) -> Conflicts:
        """Weights that are tied have one size."""
        return (
            (
                self.kind == "lstm" and self.tie and self.embedding != self.hidden,
                f"tie needs embedding = hidden, got {self.embedding} and {self.hidden}",
            ),
        )

    def build(self, inputs: int, outputs: int, seed: int = 0) -> SequenceModel:
        """A new model for inputs and outputs of these sizes.

        Of a vocabulary, or of the vector of an image.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        """All that parameters depend on: those of one model fit another if this is the same."""
        tied = ", tied" if self.tie else ""
        return f"embedding {self.embedding}, hidden {self.hidden}, {self.layers} layers{tied}"


@dataclass(frozen=True)
class CaptionerSettings(NetworkSettings):
    """The network of a captioner."""

    kind: ClassVar[str] = "lstm"  # type: ignore[misc]
    embedding: int = key(256, "size of word vectors", least=1)
    hidden: int = key(512, "size of states", least=1)
    layers: int = key(1, "layers of the decoder", least=1)
    dropout: float = key(0.3, "dropout rate", least=0, below=1)
    tie: bool = key(False, "share the weights of the word embeddings and the output layer")
    init: float = key(0.1, "initial parameters are uniform in ± init", positive=True)

    def build(self, inputs: int, outputs: int, seed: int = 0) -> SequenceModel:
        """A new model for vectors of ``inputs`` features and a vocabulary of ``outputs`` tokens."""
        from softq.neural.modules import ImageCaptioner

        return ImageCaptioner(inputs, outputs, **dataclasses.asdict(self), seed=seed)


@dataclass(frozen=True)
class TranslatorSettings(NetworkSettings):
    """The network of a translator."""

    kind: Literal["lstm", "transformer"] = key(
        "lstm", "lstm: the paper's, with attention and input feeding; or transformer"
    )
    embedding: int = key(256, "size of word vectors of an lstm", least=1)
    hidden: int = key(
        256,
        "size of states, and of all vectors of a transformer, whose feed-forward layers are four"
        " times as wide",
        least=1,
    )
    layers: int = key(1, "layers of the encoder and of the decoder", least=1)
    heads: int = key(4, "attention heads of a transformer", least=1)
    dropout: float = key(0.2, "dropout rate", least=0, below=1)
    tie: bool = key(False, "share the weights of the target embeddings and the output layer")
    init: float = key(0.1, "initial parameters of an lstm are uniform in ± init", positive=True)

    def conflicts(self) -> Conflicts:
        """Sizes that fit each other."""
        odd = self.kind == "transformer" and (self.hidden % self.heads or self.hidden % 2)
        sizes = f"{self.hidden} and {self.heads}"
        return (
            *super().conflicts(),
            (odd, f"hidden must be even and a multiple of heads, got {sizes}"),
        )

    def build(self, inputs: int, outputs: int, seed: int = 0) -> SequenceModel:
        """A new model for vocabularies of ``inputs`` and ``outputs`` tokens."""
        from softq.neural.modules import AttentionalTranslator, TransformerTranslator

        shared: Any = {"layers": self.layers, "dropout": self.dropout, "tie": self.tie}
        sizes: dict[str, Any]
        if self.kind == "transformer":
            sizes = {"size": self.hidden, "heads": self.heads, "feed_forward": 4 * self.hidden}
            return TransformerTranslator(inputs, outputs, **sizes, **shared, seed=seed)
        sizes = {"embedding": self.embedding, "hidden": self.hidden}
        return AttentionalTranslator(inputs, outputs, **sizes, **shared, init=self.init, seed=seed)

    def __str__(self) -> str:
        """All that parameters depend on."""
        if self.kind == "lstm":
            return f"lstm with {super().__str__()}"
        tied = ", tied" if self.tie else ""
        return (
            f"transformer with {self.heads} heads, hidden {self.hidden}, {self.layers} layers{tied}"
        )


# limits of a model's own settings, which come with a file; `softq.neural.generation.DecodingOptions` may ask for more
_WIDEST_BEAM, _LARGEST_PENALTY, _LARGEST_RATIO, _LONGEST = 1000, 10.0, 100, 1000
_MORE_WORDS = 10  # that a translation may have beyond max_ratio times those of its source


@dataclass(frozen=True)
class Decoding(RecipeSection):
    """How outputs are generated by default: the section ``[decoding]`` of a recipe."""

    beam: int = key(5, "beam size: the number of unfinished hypotheses", least=1, most=_WIDEST_BEAM)
    length_penalty: float = key(
        1.0,
        "rank hypotheses by log P / length^length_penalty; 0: by log P",
        least=0,
        most=_LARGEST_PENALTY,
    )
    dev_beam: int = key(
        1,
        "beam size for the development scores of epochs; 1: greedy search",
        least=1,
        most=_WIDEST_BEAM,
    )

    def max_length(self, inputs: Inputs) -> int | Tensor:
        """The longest output, for all inputs or for each of them ``[B]``, in tokens."""
        raise NotImplementedError


@dataclass(frozen=True)
class TranslationDecoding(Decoding):
    """How translations are generated by default."""

    max_ratio: float = key(
        2.0,
        "a translation has at most max_ratio times the tokens of its source, and ten more",
        above=0,
        most=_LARGEST_RATIO,
    )

    def max_length(self, inputs: Inputs) -> Tensor:
        """The longest translation of each source, ``[B]``."""
        return (inputs[1] * self.max_ratio).ceil().long() + _MORE_WORDS


@dataclass(frozen=True)
class CaptionDecoding(Decoding):
    """How captions are generated by default."""

    max_words: int = key(40, "the most words of a caption", least=1, most=_LONGEST)

    def max_length(self, inputs: Inputs) -> int:
        """The longest caption."""
        return self.max_words
