"""What a `TokenClassificationTrainer` trains toward, beside what every Trainer is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from softq.integrations.transformers.words.arguments import WordArguments
from softq.lab.recipe import Conflicts
from softq.linear.truth_loop import TruthModel


@dataclass
class TokenClassificationArguments(WordArguments):
    """`WordArguments` with what is particular to labels.

    Args:
        entity_weight: what a hit on any label but ``O`` earns, where a hit on ``O`` earns 1. The
            trainer's own ``reward`` takes any other reward over labels.
        annotators: a model of the annotators' errors, ``sequential``, in which a label depends on
            the annotator's previous one, or ``dawid-skene``. With ``ml`` the tagger is trained toward
            the probabilities of the true labels, and the model is learnt together with it; with
            ``sqdml`` toward the annotators' log-probabilities alone, at the temperature ``tau``,
            by a model that is estimated before training. None: annotators are references.
        temper: power of the annotators' evidence; below 1 since they err together.

    """

    entity_weight: float = field(
        default=1.0, metadata={"help": "what a hit on any label but O earns; on O 1"}
    )
    annotators: str | None = field(
        default=None, metadata={"help": "model of annotators: sequential or dawid-skene"}
    )
    temper: float = field(default=0.5, metadata={"help": "power of the annotators' evidence"})

    def conflicts(self) -> Conflicts:
        """What does not go together, and what cannot be set."""
        rewarded = self.objective != "ml" and self.annotators is None
        models = (None, *get_args(TruthModel))
        return (
            (
                self.annotators not in models,
                f"annotators must be one of {', '.join(map(str, models))}, got {self.annotators!r}",
            ),
            *super().conflicts(),
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
        )
