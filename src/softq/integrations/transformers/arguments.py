"""What a `RewardAugmentedTrainer` trains toward, beside what every Trainer is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from transformers import TrainingArguments

from softq.checks import check_count, check_tau
from softq.errors import RecipeError, TemperatureError
from softq.lab.recipe import Conflicts
from softq.options import check_choice, check_conflicts
from softq.spaces.candidates import Estimator
from softq.targets import ObjectiveName

CandidateKind = Literal["ngram", "hamming", "edit", "recombined", "model", "dataset"]
CorpusMetric = Literal["bleu", "chrf", "none"]

# candidates whose probability is known, as importance weights need it
_DRAWN = (
    "hamming",
    "edit",
    "model",
)


@dataclass
class RewardAugmentedArguments(TrainingArguments):  # type: ignore[misc]  # of no type that mypy knows
    """`transformers.TrainingArguments` with an objective.

    The loss of a row is - Σ_s w_s log P(y_s | x) over candidates y_s, divided by the label tokens
    of the batch as Trainer does it, so that learning rates for plain fine-tuning carry over. The
    weights w are those of ML (eq. 2 of the paper), RAML (eq. 4-5) or SQDML (eq. 14-15).

    Args:
        objective: ``ml`` is Transformers' own loss where a row has one reference.
        tau: temperature of RAML and SQDML, in units of the reward; see `softq.temperature`.
        reward: name of a reward on token ids (``bleu``, ``chrf``, ``rouge-l``, ``edit``,
            ``hamming``, ``accuracy``, ``exact``), or with ``words:`` before it on the words of the
            decoded text. Any other reward is given to the trainer itself.
        candidates: where they come from, several joined by ``+``: changed references (``ngram``,
            ``hamming``, ``edit``), references of one row put together anew (``recombined``), the
            model's own samples (``model``), or the column ``candidates`` of the dataset
            (``dataset``). References are always among them, except where the dataset's come with
            rewards and nothing else is asked for.
        candidate_size: how many for a row, from each source; of more references than half of these
            a step draws as many (``ml``: all these).
        k: how many of them a step uses; all if not given.
        estimator: how they are weighed: ``set``, ``paper`` or ``importance``
            (`softq.Candidates.measure`).
        max_n: longest n-gram that ``ngram`` and ``recombined`` change at once.
        sampling_temperature: of the model's own samples, for ``model`` and for MBR.
        sampling_top_p: likewise; 1: from the whole distribution.
        max_new_tokens: longest text that is generated, in candidates and in evaluation.
        eval_generate: whether evaluation generates texts and scores them.
        eval_num_beams: beams of the search for the model's most probable text; 1: greedy.
        eval_mbr_samples: samples of which evaluation chooses the one of highest expected reward,
            beside the most probable text; 0: none.
        corpus_metric: of the generated texts, by sacreBLEU: ``bleu``, ``chrf`` or ``none``.

    """

    objective: ObjectiveName = field(default="raml", metadata={"help": "ml, raml or sqdml"})
    tau: float | None = field(
        default=None, metadata={"help": "temperature of raml and sqdml, in units of the reward"}
    )
    reward: str = field(
        default="bleu",
        metadata={"help": "reward by name, on token ids, or on words with words: before it"},
    )
    candidates: str = field(
        default="ngram",
        metadata={
            "help": "ngram, hamming, edit, recombined, model, dataset, or several joined by +"
        },
    )
    candidate_size: int = field(
        default=8, metadata={"help": "candidates of a row, from each source"}
    )
    k: int | None = field(
        default=None, metadata={"help": "candidates that a step uses; all if not given"}
    )
    estimator: Estimator = field(default="set", metadata={"help": "set, paper or importance"})
    max_n: int = field(default=4, metadata={"help": "longest n-gram that is changed at once"})
    sampling_temperature: float = field(
        default=1.0, metadata={"help": "of the model's own samples"}
    )
    sampling_top_p: float = field(
        default=1.0, metadata={"help": "of the model's own samples; 1: from the whole distribution"}
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
        for name, choices in (
            ("objective", ObjectiveName),
            ("estimator", Estimator),
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
        for name, least in (
            ("candidate_size", 1),
            ("max_n", 1),
            ("max_new_tokens", 1),
            ("eval_num_beams", 1),
            ("eval_mbr_samples", 0),
        ):
            check_count(name, getattr(self, name), RecipeError, least)
        if self.k is not None:
            check_count("k", self.k, RecipeError)
        if self.objective != "ml" and self.tau is None:
            raise TemperatureError(
                f"{self.objective} needs a temperature: give tau, such as 0.2 for BLEU (see"
                " docs/temperature.md)"
            )
        if self.objective != "ml":
            check_tau(self.tau)
        check_conflicts(self._conflicts(), RecipeError)
        self.accelerator_config.dispatch_batches = False  # it would be True for streamed datasets

    @property
    def candidate_kinds(self) -> tuple[str, ...]:
        """Where candidates come from.

        >>> RewardAugmentedArguments(tau=0.2, candidates="ngram+model", report_to=[]).candidate_kinds
        ('ngram', 'model')
        """
        return tuple(self.candidates.split("+"))

    def _conflicts(self) -> Conflicts:
        """What does not go together, and what cannot be set."""
        kinds, estimator = self.candidate_kinds, self.estimator if self.objective != "ml" else ""
        importance = estimator == "importance"
        unchanged = self.sampling_temperature == 1 and self.sampling_top_p == 1
        return (
            (
                len(set(kinds)) < len(kinds),
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
                estimator == "paper" and self.k is None,
                "estimator 'paper' needs k, how many candidates a step uses (the paper: 10 of 100)",
            ),
            (
                importance and self.candidates not in _DRAWN,
                "importance weights need one source of known probability"
                f" ({', '.join(_DRAWN)}), got {self.candidates!r}",
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
