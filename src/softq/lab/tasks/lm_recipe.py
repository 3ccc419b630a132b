"""The recipe of `softq train lm`: a model of 🤗 Transformers trained toward a reward.

It is no task of the paper: Transformers' Trainer has its own loop. Nothing here imports
Transformers, so that a recipe can be read without.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from softq.lab.recipe import Conflicts, Objective, RecipeSection, build, key, read_toml
from softq.lab.tasks.files import MOST_OF_TRAIN
from softq.options import (
    CandidateKind,
    Estimator,
    GenerationMode,
    LengthNormalization,
    PresetName,
    PriorName,
    RewardName,
)

TASK = "lm"
"""What ``task`` is in such a recipe."""
BEST = "best"
"""The folder in a run that its best model is in."""

Size = Literal["", "t5-tiny", "t5-mini", "t5-small-nl2", "t5-small", "t5-base"]
Schedule = Literal["linear", "cosine", "constant"]
Choice = Literal["reward", "bleu", "chrf", "loss"]
HeldOut = Literal["auto", "bleu", "chrf", "none"]
SAMPLERS = get_args(CandidateKind)
_REWARDS = [*RewardName]


@dataclass(frozen=True)
class LmData(RecipeSection):
    """The data to train and choose on."""

    train: str = key(
        "",
        "texts to train on: source, tab, references separated by tabs on each line; .txt, a prompt"
        " on each, without references; or .jsonl, an object on each with source (or prompt) and"
        " perhaps references, candidates and candidate_rewards (.gz, .xz too); empty: the built-in"
        " world",
    )
    dev: str = key(
        "",
        f"texts that the best model is chosen by, likewise; empty: train, or {MOST_OF_TRAIN:,} of"
        " it at equal distances",
    )
    template: str = key(
        "{}",
        r'what the model reads, {} for the source: "translate German to English: {}"; in the flag'
        r" \n is a new line",
    )
    max_source: int = key(128, "longest source, in tokens; the rest is cut off", least=2)
    max_target: int = key(128, "longest reference or candidate, in tokens", least=2)
    sentences: int = key(
        2000,
        "training sentences of the built-in world; its development split has a tenth as many",
        least=10,
    )
    references: int = key(3, "translations of each of its sentences", least=1)
    seed: int = key(0, "random seed of the built-in world's sentences", least=0, bits=64)

    def conflicts(self) -> Conflicts:
        """A template with a place for the source, and no split without the other."""
        return (
            (
                self.template.count("{}") != 1,
                f"template must have {{}} once, where the source goes, got {self.template!r}",
            ),
            (
                self.dev and not self.train,
                "name the training file as well (train), or leave out dev for the built-in world",
            ),
        )


@dataclass(frozen=True)
class LmModel(RecipeSection):
    """Which model to train."""

    name: str = key(
        "",
        "a model of Transformers to start from: a run folder of softq train lm, a folder of"
        " save_pretrained, or a hub's name",
    )
    from_scratch: Size = key(
        "",
        "a T5 of random weights instead, and of this size, with a tokenizer trained on the training"
        " texts",
    )
    vocabulary_size: int = key(
        8000, "how many pieces of words that tokenizer has, at most (BPE)", least=16
    )
    dropout: float | None = key(
        None, "dropout rate; the model's own if not given", least=0, below=1
    )
    dtype: Literal["float32", "bfloat16"] = key(
        "float32", "type of the weights; bf16 below keeps float32 weights and computes in bfloat16"
    )
    lora: int = key(
        0,
        "rank of low-rank adapters (PEFT) that are trained in place of all weights, and merged at"
        " the end; 0: none",
        least=0,
    )

    def conflicts(self) -> Conflicts:
        """One model or the other.

        None at all is an error when it is needed, so that a recipe can be printed and filled in.
        """
        return (
            (
                self.name and self.from_scratch,
                f"choose one: a model to start from ({self.name}), or one from scratch"
                f" ({self.from_scratch}), got both",
            ),
            (
                self.lora and self.from_scratch,
                "lora adapts a model that knows something already: give --model instead of"
                " --from-scratch",
            ),
        )


@dataclass(frozen=True)
class LmObjective(Objective):
    """What the model is trained toward: prior^prior_weight · exp(reward / tau)."""

    preset: PresetName | None = key(
        None,
        "a method by its name, which sets the keys below and tau, sampler, estimator,"
        " add_references and standardize_rewards where they are not given: raft, best-of-n, dpg,"
        " rwr or tpo",
    )
    prior: PriorName = key(
        "none",
        "what the target is multiplied by: base, the model that training started from (with lora"
        " the model without adapters, else a frozen copy); current, the model of this step",
    )
    prior_weight: float = key(1.0, "the power of the prior", finite=True)
    normalize_model: bool = key(
        False,
        "renormalise the model on the candidates of a source, as the target is: the gradient is 0"
        " where the two agree",
    )
    length_normalization: LengthNormalization = key(
        "none", "log-probabilities per token: in the prior, in the loss, or in both"
    )


@dataclass(frozen=True)
class LmCandidates(RecipeSection):
    """What raml and sqdml are trained on, and what it earns."""

    sampler: str = key(
        "ngram",
        "where they come from, several joined by +: ngram, hamming or edit change references;"
        " recombined puts references of one source together anew; model: the model's own samples;"
        " dataset: the column candidates of a .jsonl file",
    )
    add_references: bool = key(True, "references are candidates, too")
    reward: str = key(
        "",
        f"{', '.join(_REWARDS[:-1])} or {_REWARDS[-1]}, on tokens; or with words: before it, on the"
        " words of the text; several joined by +; empty: bleu, or none beside a function or a model",
    )
    reward_function: tuple[str, ...] = key(
        (),
        "rewards in Python, package.module:name or FILE.py:name, functions of two lists of texts"
        " (candidates, references), or of completions and prompts without references; several"
        " separated by commas",
    )
    reward_model: str = key(
        "",
        "a model of Transformers for sequence classification whose one output is a reward of prompt"
        " and completion: a folder, or a hub's name",
    )
    reward_label: int | None = key(
        None, "which output of a reward model with several is the good one, from 0", least=0
    )
    reward_weights: tuple[float, ...] = key(
        (),
        "of several rewards, names before functions before the model; all 1 if not given",
        finite=True,
    )
    standardize_rewards: bool = key(
        False, "shift and scale the rewards of a source to mean 0 and standard deviation 1"
    )
    size: int = key(8, "candidates of a source, from each sampler", least=1)
    k: int = key(0, "how many of the candidates a step uses; 0: all", least=0)
    estimator: Estimator = key(
        "set",
        "set: softmax over the candidates; paper: the same, k of them, not renormalised;"
        " importance: over their probability",
    )
    max_n: int = key(4, "longest n-gram that ngram and recombined change at once", least=1)
    temperature: float = key(1.0, "sampling temperature of the model's own samples", positive=True)
    top_p: float = key(
        1.0,
        "sample from the smallest set of tokens whose probability is at least this",
        above=0,
        most=1,
    )
    generation: GenerationMode = key(
        "eager",
        "how samples are generated: with a static cache, compiled, by continuous batching, or eager",
    )
    pad_to_multiple_of: int = key(
        0, "pad prompts and candidates to a multiple of so many tokens; 0: as needed", least=0
    )
    reuse_samples: int = key(1, "steps in succession that use the same samples", least=1)
    min_ess: float = key(
        0.3, "effective share of reused samples below which a warning is given", least=0, most=1
    )
    distill_samples: int = key(
        0,
        "train on what the model itself agrees on: in every epoch, so many samples of each source"
        " take the place of its references, the one of the highest mean reward against the others"
        " is the reference, and with sampler dataset all are candidates with these rewards; 0: no",
        least=0,
    )
    distill_reward: str = key(
        "", "reward of one sample against another; empty: the first name of reward, or bleu"
    )

    @property
    def names(self) -> list[str]:
        """The rewards that have names.

        >>> LmCandidates().names, LmCandidates(reward_model="judge").names
        (['bleu'], [])
        """
        if self.reward:
            return self.reward.split("+")
        return [] if self.reward_function or self.reward_model else [str(RewardName.bleu)]

    @property
    def pairwise_name(self) -> str:
        """A reward of two texts, for minimum Bayes risk."""
        return [*self.names, str(RewardName.bleu)][0]

    def conflicts(self) -> Conflicts:
        """Samplers are known, and rewards have a weight each."""
        rewards = len(self.names) + len(self.reward_function) + bool(self.reward_model)
        return (
            (
                not {*self.sampler.split("+")} <= {*SAMPLERS},
                f"sampler must be one of {', '.join(SAMPLERS)}, or several joined by +, got"
                f" {self.sampler!r}",
            ),
            (
                self.reward_weights and len(self.reward_weights) != rewards,
                f"reward_weights must have a number for each of {rewards} rewards, got"
                f" {len(self.reward_weights)}",
            ),
            (
                self.distill_reward and not self.distill_samples,
                "distill_reward is for distillation: set distill_samples, such as 32",
            ),
        )


@dataclass(frozen=True)
class LmTraining(RecipeSection):
    """How long, how fast and where."""

    epochs: int = key(3, "passes over the training data, at most", least=1)
    batch_size: int = key(16, "sources of one step, with all their candidates", least=1)
    accumulate: int = key(1, "such batches that make one step of the optimizer", least=1)
    optimizer: Literal["adamw", "adafactor"] = key(
        "adamw",
        "adafactor moves weights in proportion to their size, without which the large embeddings of"
        " a T5 from scratch learn slowly; its rate is never more than 1 / √step",
    )
    learning_rate: float = key(
        1e-4,
        "at its highest; a model from scratch wants more: with adamw about 1e-3, with adafactor"
        " 0.03",
        positive=True,
    )
    schedule: Schedule = key("linear", "learning-rate schedule: linear or cosine to 0, or constant")
    warmup: int = key(0, "first steps, in which the rate rises", least=0)
    weight_decay: float = key(0.0, "by which weights shrink in each step, times the rate", least=0)
    clip: float = key(1.0, "gradients are scaled down to this norm; 0: never", least=0)
    bf16: bool = key(False, "compute in bfloat16 where it is safe; for GPUs")
    group_by_length: bool = key(
        False, "put sources of similar length into one batch: less padding, so faster"
    )
    gradient_checkpointing: bool = key(
        False, "compute activations twice instead of keeping them: less memory, more time"
    )
    eval_every: int = key(
        0,
        "steps between evaluations on dev, each with a checkpoint; 0: one after each epoch",
        least=0,
    )
    patience: int = key(
        0, "evaluations without a better score before training stops; 0: never stops early", least=0
    )
    seed: int = key(0, "random seed", bits=64)
    device: Literal["auto", "cpu", "cuda"] = key(
        "auto", "where to train; auto: a GPU if there is one", identity=False
    )


@dataclass(frozen=True)
class LmEvaluation(RecipeSection):
    """How texts are found and models compared."""

    best_by: Choice = key(
        "reward",
        "the score on dev that the best model is chosen by: reward, sacreBLEU's bleu or chrf, or"
        " loss",
    )
    held_out: HeldOut = key(
        "auto",
        "a corpus score on dev that is not trained on, which reports draw beside the reward:"
        " sacreBLEU's bleu or chrf, or none; auto: best_by if it is one of them, else chrf, or bleu"
        " where the reward is chrf",
    )
    track_base: bool = key(
        True,
        "measure how far the model has moved from the one that training started from (kl_base):"
        " a frozen copy, but for lora, and another pass in each step of raml and sqdml",
    )
    dev_beams: int = key(
        1, "beams of the texts that models are compared by while they train; 1: greedy", least=1
    )
    beams: int = key(4, "beams of the final scores, and of softq predict and evaluate", least=1)
    mbr_samples: int = key(
        0,
        "samples of which, at the end, the one of the highest expected reward is chosen as well; 0:"
        " none",
        least=0,
    )
    max_new_tokens: int = key(128, "longest text that is generated, in candidates too", least=1)
    batch_size: int = key(64, "sources at a time", identity=False, least=1)

    def conflicts(self) -> Conflicts:
        """Models are chosen by a score that is computed."""
        return (
            (
                self.best_by in ("bleu", "chrf") and self.held_out not in ("auto", self.best_by),
                f"best_by = {self.best_by} needs held_out = {self.best_by} or auto, got"
                f" {self.held_out}",
            ),
        )


@dataclass(frozen=True)
class LmRecipe(RecipeSection):
    """Everything that a run depends on."""

    data: LmData = field(default_factory=LmData)
    model: LmModel = field(default_factory=LmModel)
    objective: LmObjective = field(default_factory=LmObjective)
    candidates: LmCandidates = field(default_factory=LmCandidates)
    training: LmTraining = field(default_factory=LmTraining)
    evaluation: LmEvaluation = field(default_factory=LmEvaluation)

    def conflicts(self) -> Conflicts:
        """What the sections say must fit together."""
        return (
            (
                self.objective.temperature_scaled,
                "temperature_scaled divides scores by tau, and a model of sentences has none; leave"
                " it out",
            ),
        )


def read_recipe(folder: Path) -> LmRecipe | None:
    """The recipe of a run folder, or of the run whose ``best`` a folder is.

    None where there is none.
    """
    from softq.lab.run import RECIPE

    place = folder.resolve()
    for path in (
        (place / RECIPE, place.parent / RECIPE) if place.name == BEST else (place / RECIPE,)
    ):
        if path.is_file():
            table = read_toml(path)
            if table.pop("task", None) == TASK:
                return build(LmRecipe, table, str(path))
    return None
