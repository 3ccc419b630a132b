"""Sections of recipes that all models of sentences share.

Their candidates, their optimizer, their training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from softq.errors import RecipeError
from softq.lab.recipe import Objective, Training, at_least, check_positive, key
from softq.rewards.bleu import Smoothing

SamplerName = Literal["ngram", "hamming", "model", "near", "recombined"]
RewardName = Literal["bleu", "hamming"]
EstimatorName = Literal["set", "paper", "importance", "printed"]
Replacements = Literal["uniform", "frequencies"]
Schedule = Literal["plateau", "linear"]
Refresh = Literal["step", "epoch"]
Precision = Literal["float32", "tf32", "bf16"]


@dataclass(frozen=True)
class CandidateSettings:
    """Candidates of raml and sqdml beside the references, sampled again in every step."""

    sampler: str = key(
        "ngram",
        "ngram: replace an n-gram of a reference; hamming: replace single words; model: sample from"
        " the model; near: take references of similar inputs; recombined: replace an n-gram of a"
        " reference by one of another reference of the input; or several joined by +, such as"
        " model+recombined, which share size equally",
    )
    reward: RewardName = key(
        "bleu", "bleu: of the sentence; hamming: minus the number of words that differ"
    )
    smoothing: Smoothing = key(
        "nltk3", "of the sentence's BLEU: nltk3 (the paper), mteval, sacrebleu, none"
    )
    size: int = key(
        10,
        "candidates of an example, references included, of which a step takes half as many at most;"
        " with hamming, model, near or several samplers, of draws beside all references",
    )
    k: int = key(0, "of these, how many a step uses; 0: all")
    max_n: int = key(4, "longest n-gram to replace")
    refresh: Refresh = key(
        "step",
        "how often to sample from the model, with sampler = model: in every step, or before every"
        " epoch",
    )
    neighbours: int = key(
        10, "number of nearest inputs whose references are candidates, with sampler = near"
    )
    estimator: EstimatorName = key(
        "set",
        "set: softmax over the candidates; paper: the same, k of them, not renormalised;"
        " importance: divided by the probability of being drawn; printed: by exp(-distance/tau), as"
        " the paper prints it (hamming)",
    )
    rescale: bool = key(True, "draw hamming at tau / (1 + log(words - 1)), the paper's footnote")
    replacements: Replacements = key(
        "uniform",
        "sample replacement words uniformly, or by their frequency in the training text, with"
        " sampler = ngram",
    )

    def __post_init__(self) -> None:
        """What goes together."""
        unknown = [name for name in self.samplers if name not in get_args(SamplerName)]
        if unknown or len(set(self.samplers)) < len(self.samplers):
            raise RecipeError(
                f"sampler must be one of {', '.join(get_args(SamplerName))}, or several joined by"
                f" +, got {self.sampler!r}"
            )
        at_least(
            "size", self.size, 2 if self.alone and self.holds_references else len(self.samplers)
        )
        for name, least in (("k", 0), ("max_n", 1), ("neighbours", 1)):
            at_least(name, getattr(self, name), least)
        made, estimator = self.share * len(self.samplers), self.estimator
        hamming = self.sampler == "hamming"
        conflicts = (
            (
                not self.alone and "hamming" in self.samplers,
                (
                    "sampler = hamming draws candidates by a law of its own: it cannot be joined"
                    f" with others, got {self.sampler!r}"
                ),
            ),
            (
                self.k == 1,
                (
                    "k = 1 leaves no place beside a reference: choose k = 2 or more, or k = 0 for"
                    " all candidates"
                ),
            ),
            (self.k > made, f"k must not exceed size, got k = {self.k} of {made}"),
            (
                estimator == "paper" and not self.k,
                (
                    "estimator = paper needs k, how many candidates a step uses (the paper: 10 of"
                    " size = 100)"
                ),
            ),
            (
                estimator in ("importance", "printed") and self.k > 0,
                f"estimator = {estimator} uses every draw: leave out k, and lower size instead",
            ),
            (
                estimator == "importance" and self.sampler not in ("ngram", "hamming", "model"),
                (
                    "estimator = importance needs the probability of a draw, which ngram, hamming"
                    " and model alone have: choose one of them, or estimator = set, got sampler ="
                    f" {self.sampler}"
                ),
            ),
            (
                estimator == "importance" and self.refresh == "epoch",
                (
                    "estimator = importance needs the probability of a draw, which is not kept for"
                    " an epoch: choose refresh = step"
                ),
            ),
            (
                self.refresh == "epoch" and "model" not in self.samplers,
                (
                    "refresh = epoch is for samples from the model, sampler = model, got sampler ="
                    f" {self.sampler}"
                ),
            ),
            (
                estimator == "printed" and not (hamming and self.reward == "bleu"),
                (
                    "estimator = printed is the paper's formula for sampler = hamming with reward ="
                    " bleu"
                ),
            ),
            (
                self.reward == "hamming" and not hamming,
                (
                    "reward = hamming is between sentences of one length: draw them with sampler ="
                    " hamming"
                ),
            ),
            (
                self.reward == "hamming" and estimator != "importance",
                (
                    "reward = hamming is drawn from itself: choose estimator = importance, which"
                    " gives every draw the same weight"
                ),
            ),
            (
                hamming and estimator == "paper",
                (
                    "estimator = paper chooses among candidates that hold the references; sampler ="
                    " hamming only draws"
                ),
            ),
        )
        for conflict, message in conflicts:
            if conflict:
                raise RecipeError(message)

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


@dataclass(frozen=True)
class Optimizer:
    """Adam, with a rate that falls."""

    learning_rate: float = key(1e-3, "of Adam")
    schedule: Schedule = key(
        "plateau",
        "plateau: the rate falls by decay when the development perplexity rises; linear: evenly"
        " to 0",
    )
    decay: float = key(
        0.5,
        "what the rate is multiplied by after an epoch without the lowest development perplexity so"
        " far; 1: never",
    )
    min_learning_rate: float = key(1e-5, "the rate does not fall below this")
    clip: float = key(5.0, "gradients are scaled down to this norm; 0: never")
    label_smoothing: float = key(
        0.0, "label smoothing: share of each word's target that is spread over all words"
    )

    def __post_init__(self) -> None:
        """Steps go somewhere."""
        check_positive("learning_rate", self.learning_rate)
        at_least("min_learning_rate", self.min_learning_rate, 0)
        at_least("clip", self.clip, 0)
        if not 0 < self.decay <= 1:
            raise RecipeError(f"decay must lie in (0, 1], got {self.decay}")
        if not 0 <= self.label_smoothing < 1:
            raise RecipeError(f"label_smoothing must lie in [0, 1), got {self.label_smoothing}")


@dataclass(frozen=True)
class SequenceTraining(Training):
    """How long and where."""

    epochs: int = key(20, "passes over the training data, at most")
    patience: int = key(
        5, "epochs without a better development score before training stops; 0: never stops early"
    )
    batch_size: int = key(64, "inputs of one step, over all processes, with all their candidates")
    start: str = key(
        "",
        "a run folder or model file to start from, such as one trained by ml; empty: random"
        " parameters",
    )
    precision: Precision = key(
        "bf16",
        "of matrix products on a GPU: float32; tf32, coarser and faster; bf16: tf32, and bfloat16"
        " factors in the output layer",
    )
    graphs: bool = key(
        True,
        "on a GPU, record a step once per shape and replay it, instead of launching it kernel by"
        " kernel",
        identity=False,
    )


def check_objective(objective: Objective, candidates: CandidateSettings, *, merge: bool) -> None:
    """Refuse objectives that models of sentences have not.

    Without ``merge`` each reference is an example of its own.
    """
    if objective.temperature_scaled:
        raise RecipeError(
            "temperature_scaled divides scores by tau, and a model of sentences has none; leave"
            " it out"
        )
    if objective.name == "sqdml" and not merge:
        raise RecipeError(
            "sqdml is of examples with several references, and merge = false makes one of each:"
            " leave it out, or choose raml"
        )
    if "recombined" in candidates.samplers and not merge:
        raise RecipeError(
            "sampler = recombined takes n-grams of other references, and merge = false leaves an"
            " example with one: leave it out"
        )
