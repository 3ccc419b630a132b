"""What a `TokenClassificationTrainer` trains toward, beside what every Trainer is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from transformers import TrainingArguments

from softq.checks import check_count, check_tau
from softq.errors import RecipeError, TemperatureError
from softq.lab.recipe import Conflicts
from softq.linear.truth_loop import TruthModel
from softq.targets import ObjectiveName


@dataclass
class TokenClassificationArguments(TrainingArguments):  # type: ignore[misc]  # of no type that mypy knows
    """`transformers.TrainingArguments` with an objective over label sequences.

    The loss of a batch is the sum of H(target, model) over its sentences, divided by the labelled
    words, so that learning rates for a softmax of each token carry over.

    Args:
        objective: ``ml``, ``raml`` or ``sqdml``; with one annotator the last two are the same.
        tau: temperature of RAML and SQDML, in right labels (see `softq.temperature`).
        entity_weight: what a hit on any label but ``O`` earns, where a hit on ``O`` earns 1. The
            trainer's own ``reward`` takes any other reward over labels.
        annotators: a model of the annotators' errors, ``sequential``, in which a label depends on
            the annotator's previous one, or ``dawid-skene``. With ``ml`` the tagger is trained toward
            the probabilities of the true labels, and the model is learnt together with it; with
            ``sqdml`` toward the annotators' log-probabilities alone, at the temperature ``tau``,
            by a model that is estimated before training. None: annotators are references.
        temper: power of the annotators' evidence; below 1 since they err together.
        head_learning_rate: of the weights that are not the encoder's, which start at random and
            hardly move at the rate of an encoder; None: ``learning_rate``.
        max_length: most subwords of a window, special tokens included; None: as many as the
            encoder reads.
        stride: subwords that windows of a longer sentence share; None: a quarter.

    """

    objective: ObjectiveName = field(default="ml", metadata={"help": "ml, raml or sqdml"})
    tau: float | None = field(
        default=None, metadata={"help": "temperature of raml and sqdml, in right labels"}
    )
    entity_weight: float = field(
        default=1.0, metadata={"help": "what a hit on any label but O earns; on O 1"}
    )
    annotators: str | None = field(
        default=None, metadata={"help": "model of annotators: sequential or dawid-skene"}
    )
    temper: float = field(default=0.5, metadata={"help": "power of the annotators' evidence"})
    head_learning_rate: float | None = field(
        default=1e-3, metadata={"help": "of the weights that are not the encoder's"}
    )
    max_length: int | None = field(
        default=None, metadata={"help": "most subwords of a window; all that the encoder reads"}
    )
    stride: int | None = field(
        default=None, metadata={"help": "subwords that windows share; a quarter if not given"}
    )
    label_names: list[str] | None = field(
        default_factory=lambda: ["labels"], metadata={"help": "what a batch calls its labels"}
    )
    # rows have columns that no model knows: words and their labels
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "kept False: the columns are the collator's to read"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (
            ("objective", get_args(ObjectiveName)),
            ("annotators", (None, *get_args(TruthModel))),
        ):
            if getattr(self, name) not in choices:
                wanted = ", ".join(map(str, choices))
                raise RecipeError(f"{name} must be one of {wanted}, got {getattr(self, name)!r}")
        for name, least in (("max_length", 1), ("stride", 0)):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), RecipeError, least)
        if self.objective != "ml":
            if self.tau is None:
                raise TemperatureError(
                    f"{self.objective} needs a temperature: give tau, such as 0.2 (see"
                    " docs/temperature.md)"
                )
            check_tau(self.tau)
        for conflict, message in self._conflicts():
            if conflict:
                raise RecipeError(message)
        self.accelerator_config.dispatch_batches = False  # it would be True for streamed datasets

    def _conflicts(self) -> Conflicts:
        """What does not go together, and what cannot be set."""
        rewarded = self.objective != "ml" and self.annotators is None
        rate = self.head_learning_rate
        return (
            (
                self.remove_unused_columns,
                "remove_unused_columns must stay False: words and labels are columns that the model"
                " does not know",
            ),
            (
                self.accelerator_config.dispatch_batches,
                "accelerator_config must leave dispatch_batches False: sentences and windows of a"
                " batch are not equally many, so that it cannot be cut into pieces",
            ),
            (
                self.label_smoothing_factor,
                "label_smoothing_factor must stay 0: take raml, whose target is as smooth as its"
                " temperature says",
            ),
            (
                self.objective == "ml" and self.tau is not None,
                f"ml has no temperature, got tau={self.tau}: leave it out, or choose raml or sqdml",
            ),
            (
                not self.entity_weight > 0,
                f"entity_weight must be positive, got {self.entity_weight}",
            ),
            (
                self.entity_weight != 1 and not rewarded,
                "entity_weight is part of the reward of raml and sqdml, which"
                f" {'ml' if self.annotators is None else 'a model of annotators'} has not: leave it"
                " at 1",
            ),
            (
                self.annotators is not None and self.objective == "raml",
                "a model of annotators goes with ml (toward the true labels) or sqdml (toward what"
                " annotators say alone), got raml",
            ),
            (not 0 < self.temper <= 1, f"temper must lie in 0..1, got {self.temper}"),
            (
                rate is not None and not rate > 0,
                f"head_learning_rate must be positive, got {rate}",
            ),
        )
