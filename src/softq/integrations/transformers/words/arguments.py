"""What trainers of models of words are told, beside what every Trainer is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from transformers import TrainingArguments

from softq.checks import check_count, check_tau
from softq.errors import RecipeError, TemperatureError
from softq.lab.recipe import Conflicts
from softq.options import check_choice, check_conflicts
from softq.targets import ObjectiveName


@dataclass
class WordArguments(TrainingArguments):  # type: ignore[misc]  # of no type that mypy knows
    """`transformers.TrainingArguments` with an objective over words.

    The loss of a batch is the sum of H(target, model) over its sentences, divided by the labelled
    words, so that learning rates for a softmax of each token carry over.

    Args:
        objective: ``ml``, ``raml`` or ``sqdml``; with one annotator the last two are the same.
        tau: temperature of RAML and SQDML, in right labels or heads (see `softq.temperature`).
        head_learning_rate: of the weights that are not the encoder's, which start at random and
            hardly move at the rate of an encoder; None: ``learning_rate``.
        max_length: most subwords of a window, special tokens included; None: as many as the
            encoder reads.
        stride: subwords that windows of a longer sentence share; None: a quarter.

    """

    objective: ObjectiveName = field(default="ml", metadata={"help": "ml, raml or sqdml"})
    tau: float | None = field(
        default=None, metadata={"help": "temperature of raml and sqdml, in right labels or heads"}
    )
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
        check_choice("objective", self.objective, get_args(ObjectiveName), RecipeError)
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
        check_conflicts(self.conflicts(), RecipeError)
        self.accelerator_config.dispatch_batches = False  # it would be True for streamed datasets

    def conflicts(self) -> Conflicts:
        """What does not go together, and what cannot be set."""
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
                rate is not None and not rate > 0,
                f"head_learning_rate must be positive, got {rate}",
            ),
        )
