"""What a `RewardAugmentedTrainer` trains toward, beside what every Trainer is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from transformers import TrainingArguments

from softq.checks import check_count, check_tau
from softq.errors import RecipeError, TemperatureError
from softq.integrations.text_rows import is_number
from softq.integrations.transformers.presets import DRAWN, resolve
from softq.lab.recipe import Conflicts
from softq.options import (
    CandidateKind,
    GenerationMode,
    LengthNormalization,
    PresetName,
    PriorName,
    check_choice,
    check_conflicts,
)
from softq.spaces.candidates import Estimator
from softq.targets import ObjectiveName

CorpusMetric = Literal["bleu", "chrf", "none"]


@dataclass
class RewardAugmentedArguments(TrainingArguments):  # type: ignore[misc]  # of no type that mypy knows
    """`transformers.TrainingArguments` with an objective.

    The loss of a row is - Σ_s w_s log P(y_s | x) over candidates y_s, divided by the label tokens
    of the batch as Trainer does it, so that learning rates for plain fine-tuning carry over. The
    weights w are those of ML (eq. 2 of the paper), RAML (eq. 4-5) or SQDML (eq. 14-15), times a
    prior. Rows without references have one reward for each completion, and RAML and SQDML are the
    same. Such a row counts as ``max_new_tokens`` label tokens.

    Args:
        objective: ``ml`` is Transformers' own loss where a row has one reference.
        preset: a method by its name: ``raft``, ``best-of-n``, ``dpg``, ``rwr`` or ``tpo``
            (`softq.integrations.transformers.presets`); it sets ``prior``, ``tau``, ``candidates``,
            ``estimator``, ``add_references``, ``standardize_rewards`` and ``normalize_model`` where
            they are not given.
        tau: temperature of RAML and SQDML, in units of the reward; see `softq.temperature`.
        prior: what the target is multiplied by: ``none``, the model that training started from
            (``base``; with adapters the model without them, else a frozen copy), or the model of
            this step (``current``).
        prior_weight: the power of the prior.
        normalize_model: whether the model's probabilities are renormalised on the candidates of a
            row, as the target is: the gradient is then 0 where the two agree, as it is on average
            over all outputs. Else the loss has the model's own log-probabilities.
        reward: name of a reward on token ids (``bleu``, ``chrf``, ``rouge-l``, ``edit``,
            ``hamming``, ``accuracy``, ``exact``), or with ``words:`` before it on the words of the
            decoded text. Any other reward, and several, are given to the trainer itself.
        reward_weights: of several rewards, one number each; all 1 if not given.
        standardize_rewards: whether the rewards of a row's candidates are shifted and scaled to
            mean 0 and standard deviation 1; where all are equal they become 0.
        candidates: where they come from, several joined by ``+``: changed references (``ngram``,
            ``hamming``, ``edit``), references of one row put together anew (``recombined``), the
            model's own samples (``model``), or the column ``candidates`` of the dataset
            (``dataset``).
        add_references: whether references are candidates, too. They are not where the dataset's
            candidates come with rewards and nothing else is asked for; ``ngram`` and ``recombined``
            include them in any case.
        candidate_size: how many for a row, from each source; of more references than half of these
            a step draws as many (``ml``: all these).
        k: how many of them a step uses; all if not given.
        estimator: how they are weighed: ``set``, ``paper`` or ``importance``
            (`softq.Candidates.measure`).
        max_n: longest n-gram that ``ngram`` and ``recombined`` change at once.
        length_normalization: divides log-probabilities by the number of tokens: of the prior, so
            that the target does not prefer short texts; of the ``loss``, so that a long text counts
            no more than a short one (its log-probability is then that of one token, times the label
            tokens of the row); or ``both``.
        reuse_samples: for how many optimizer steps in succession a batch and the samples for it are
            used. An epoch then has as many times the steps. With ``estimator="importance"`` the
            weights stay exact: they have the probability at sampling time.
        min_ess: a warning is given once if the effective share of reused samples falls below it.
        sampling_temperature: of the model's own samples, for ``model`` and for MBR.
        sampling_top_p: likewise; 1: from the whole distribution.
        generation: how samples are generated: ``eager``, with a ``static`` cache, ``compiled`` with
            a static cache, or by ``continuous`` batching; eager with a warning where the model or
            the installed Transformers cannot.
        pad_to_multiple_of: prompts and candidates of a step are padded to a multiple of so many
            tokens, so that compiled steps see few shapes; no more than needed if not given.
        track_base: whether ``kl_base`` is logged even if that needs a frozen copy of the model;
            with ``prior="base"`` and with adapters it is always.
        max_new_tokens: longest text that is generated, in candidates and in evaluation.
        eval_generate: whether evaluation generates texts and scores them.
        eval_num_beams: beams of the search for the model's most probable text; 1: greedy.
        eval_mbr_samples: samples of which evaluation chooses the one of highest expected reward,
            beside the most probable text; 0: none.
        corpus_metric: of the generated texts, by sacreBLEU: ``bleu``, ``chrf`` or ``none``.

    """

    objective: ObjectiveName = field(default="raml", metadata={"help": "ml, raml or sqdml"})
    preset: PresetName | None = field(
        default=None,
        metadata={"help": "a method by its name: raft, best-of-n, dpg, rwr or tpo"},
    )
    tau: float | None = field(
        default=None, metadata={"help": "temperature of raml and sqdml, in units of the reward"}
    )
    prior: PriorName = field(
        default=None,  # type: ignore[arg-type]  # here and below: found when all are known
        metadata={"help": "none, base or current; none if not given"},
    )
    prior_weight: float = field(default=1.0, metadata={"help": "the power of the prior"})
    normalize_model: bool = field(
        default=None,  # type: ignore[assignment]
        metadata={"help": "whether the model is renormalised on the candidates"},
    )
    reward: str = field(
        default="bleu",
        metadata={"help": "reward by name, on token ids, or on words with words: before it"},
    )
    reward_weights: list[float] | None = field(
        default=None, metadata={"help": "of several rewards; all 1 if not given"}
    )
    standardize_rewards: bool = field(
        default=None,  # type: ignore[assignment]
        metadata={"help": "whether rewards of a row have mean 0 and standard deviation 1"},
    )
    candidates: str = field(
        default=None,  # type: ignore[assignment]
        metadata={
            "help": "ngram (if not given), hamming, edit, recombined, model, dataset, or several"
            " joined by +"
        },
    )
    add_references: bool = field(
        default=None,  # type: ignore[assignment]
        metadata={"help": "whether references are candidates, too"},
    )
    candidate_size: int = field(
        default=8, metadata={"help": "candidates of a row, from each source"}
    )
    k: int | None = field(
        default=None, metadata={"help": "candidates that a step uses; all if not given"}
    )
    estimator: Estimator = field(
        default=None,  # type: ignore[arg-type]
        metadata={"help": "set (if not given), paper or importance"},
    )
    max_n: int = field(default=4, metadata={"help": "longest n-gram that is changed at once"})
    length_normalization: LengthNormalization = field(
        default="none", metadata={"help": "log-probabilities per token: none, prior, loss or both"}
    )
    reuse_samples: int = field(
        default=1, metadata={"help": "optimizer steps with the same samples"}
    )
    min_ess: float = field(
        default=0.3, metadata={"help": "effective share of reused samples that a warning is below"}
    )
    sampling_temperature: float = field(
        default=1.0, metadata={"help": "of the model's own samples"}
    )
    sampling_top_p: float = field(
        default=1.0, metadata={"help": "of the model's own samples; 1: from the whole distribution"}
    )
    generation: GenerationMode = field(
        default="eager", metadata={"help": "eager, static, compiled or continuous"}
    )
    pad_to_multiple_of: int | None = field(
        default=None, metadata={"help": "tokens of prompts and candidates; as needed if not given"}
    )
    track_base: bool = field(
        default=False, metadata={"help": "log kl_base even if that needs a copy of the model"}
    )
    max_new_tokens: int = field(default=128, metadata={"help": "longest text that is generated"})
    eval_generate: bool = field(
        default=True, metadata={"help": "whether evaluation generates texts and scores them"}
    )
    eval_num_beams: int = field(default=1, metadata={"help": "beams in evaluation; 1: greedy"})
    eval_mbr_samples: int = field(
        default=0, metadata={"help": "samples for minimum Bayes risk in evaluation; 0: none"}
    )
    corpus_metric: CorpusMetric = field(default="bleu", metadata={"help": "bleu, chrf or none"})
    # Trainer does not find it out behind every adapter
    label_names: list[str] | None = field(
        default_factory=lambda: ["labels"], metadata={"help": "what a batch calls its labels"}
    )
    # rows have columns that no model knows: references and candidates
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "kept False: the columns are the collator's to read"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in resolve(self.preset, vars(self)).items():
            setattr(self, name, value)
        for name, choices in (
            ("objective", ObjectiveName),
            ("prior", PriorName),
            ("estimator", Estimator),
            ("length_normalization", LengthNormalization),
            ("generation", GenerationMode),
            ("corpus_metric", CorpusMetric),
        ):
            check_choice(name, getattr(self, name), get_args(choices), RecipeError)
        if not isinstance(self.candidates, str):
            raise RecipeError(
                "candidates must be a text, several joined by + as in 'ngram+model', got"
                f" {self.candidates!r}"
            )
        for kind in self.candidate_kinds:
            check_choice("candidates", kind, get_args(CandidateKind), RecipeError)
        self._check_numbers()
        check_conflicts(
            (*self._conflicts(), *self._importance_conflicts(), *self._prior_conflicts()),
            RecipeError,
        )
        self.accelerator_config.dispatch_batches = False  # it would be True for streamed datasets

    def _check_numbers(self) -> None:
        for name, least in (
            ("candidate_size", 1),
            ("max_n", 1),
            ("max_new_tokens", 1),
            ("reuse_samples", 1),
            ("eval_num_beams", 1),
            ("eval_mbr_samples", 0),
        ):
            check_count(name, getattr(self, name), RecipeError, least)
        for name in ("k", "pad_to_multiple_of"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), RecipeError)
        for name, values in (
            ("prior_weight", [self.prior_weight]),
            ("reward_weights", self.reward_weights or []),
        ):
            if not all(is_number(value) for value in values):
                raise RecipeError(f"{name} must be finite, got {getattr(self, name)!r}")
        if self.objective != "ml" and self.tau is None:
            raise TemperatureError(
                f"{self.objective} needs a temperature: give tau, such as 0.2 for BLEU (see"
                " docs/temperature.md)"
            )
        if self.objective != "ml":
            check_tau(self.tau)

    @property
    def candidate_kinds(self) -> tuple[str, ...]:
        """Where candidates come from.

        >>> RewardAugmentedArguments(tau=0.2, candidates="ngram+model", report_to=[]).candidate_kinds
        ('ngram', 'model')
        """
        return tuple(self.candidates.split("+"))

    def _conflicts(self) -> Conflicts:
        """What cannot be set."""
        return (
            (
                len(set(self.candidate_kinds)) < len(self.candidate_kinds),
                f"candidates must name each source once, got {self.candidates!r}",
            ),
            (
                self.remove_unused_columns,
                "remove_unused_columns must stay False: references and candidates are columns that"
                " the model does not know",
            ),
            (
                not 0 < self.sampling_top_p <= 1,
                f"sampling_top_p must lie in 0..1, got {self.sampling_top_p}",
            ),
            (
                not self.sampling_temperature > 0,
                f"sampling_temperature must be positive, got {self.sampling_temperature}",
            ),
            (not 0 <= self.min_ess <= 1, f"min_ess must lie in 0..1, got {self.min_ess}"),
            (
                self.accelerator_config.dispatch_batches,
                "accelerator_config must leave dispatch_batches False: a batch holds its target,"
                " which cannot be sent about",
            ),
            (
                self.objective != "ml" and self.label_smoothing_factor,
                f"label_smoothing_factor is for ml: {self.objective} has a smooth target of its"
                " own; leave it at 0",
            ),
            (
                self.reuse_samples > 1 and "model" not in self.candidate_kinds,
                "reuse_samples is for the model's own samples: add candidates 'model', or use more"
                " epochs",
            ),
        )

    def _importance_conflicts(self) -> Conflicts:
        """What does not go together with how candidates are weighed."""
        estimator = self.estimator if self.objective != "ml" else ""
        importance = estimator == "importance"
        unchanged = self.sampling_temperature == 1 and self.sampling_top_p == 1
        return (
            (
                estimator == "paper" and self.k is None,
                "estimator 'paper' needs k, how many candidates a step uses (the paper: 10 of 100)",
            ),
            (
                importance and self.candidates not in DRAWN,
                "importance weights need one source of known probability"
                f" ({', '.join(DRAWN)}), got {self.candidates!r}",
            ),
            (
                importance and self.k is not None,
                "importance weights use every candidate: leave out k",
            ),
            (
                importance and self.candidates == "model" and not unchanged,
                "importance weights of the model's samples need sampling_temperature 1 and"
                " sampling_top_p 1",
            ),
        )

    def _prior_conflicts(self) -> Conflicts:
        """What does not go together with a prior and with the model on candidates."""
        likelihood = self.objective == "ml"
        return (
            (
                likelihood and self.preset is not None,
                f"preset {self.preset!r} is for raml and sqdml: ml trains on the references alone",
            ),
            (
                likelihood and self.prior != "none",
                f"prior {self.prior!r} is for raml and sqdml: ml has all its mass on references",
            ),
            (
                self.normalize_model and (likelihood or self.k is not None),
                "normalize_model needs raml or sqdml and all candidates: leave out k",
            ),
            (
                self.length_normalization in ("prior", "both") and self.prior == "none",
                f"length_normalization {self.length_normalization!r} needs a prior",
            ),
            (
                likelihood and self.length_normalization != "none",
                "length_normalization is for raml and sqdml",
            ),
        )
