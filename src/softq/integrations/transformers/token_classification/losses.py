"""The loss of each sentence of a batch: H(target, model) for what is known of its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from softq.errors import IntractableError, OutputError
from softq.integrations.transformers.token_classification.model import TokenClassificationModel
from softq.integrations.transformers.words.annotators import fill
from softq.integrations.transformers.words.losses import Rows, WordLosses, unlabelled
from softq.numerics import length_mask
from softq.spaces import Distribution


@dataclass(frozen=True)
class SentenceLosses(WordLosses):
    """Losses of sentences by what is known of their labels.

    - **References**, label sequences of annotators: toward the target of the objective. A word that
      one annotator left out has the labels of the others. For a word that nobody labelled ML sums
      over its labels; RAML and SQDML take the model as the prior of such a sentence, which then
      decides it.
    - **Probabilities** of labels: the same with soft references.
    - Labels that are **allowed**: minus the log of the probability of all sequences of them.
    """

    kinds: ClassVar = ("references", "partial", "probabilities", "allowed")

    def __call__(
        self, model: Any, scores: Tensor, lengths: Tensor, targets: Mapping[str, Any]
    ) -> Tensor:
        """A number for each sentence, ``[B]``."""
        losses = super().__call__(model, scores, lengths, targets)
        if model.config.constraints == "model" and bool((losses == torch.inf).any()):
            raise OutputError(
                f"sentence {int((losses == torch.inf).nonzero()[0])} of the batch (counted from 0)"
                f" has labels that break the tag scheme {model.config.scheme}, which"
                " constraints='model' forbids: mend them (softq.formats.tags.convert), or let"
                " constraints reach decoding only"
            )
        return losses

    def of(
        self, kind: str, model: Any, scores: Tensor, lengths: Tensor, part: Mapping[str, Any]
    ) -> Tensor:
        """Losses of sentences of which the same kind of thing is known."""
        if kind == "allowed":
            return self._allowed(model, scores, lengths, part["values"])
        values, ml = part["values"], self.objective == "ml"
        if kind == "probabilities":
            values = values.unsqueeze(1)
            labelled, weights = values.sum(-1) > 0, values.new_ones(len(lengths), 1)
            if ml and model.crf is not None and bool(unlabelled(labelled, lengths).any()):
                raise IntractableError(
                    "soft labels with words that nobody labelled have a likelihood in closed form"
                    " only where labels are independent: use sqdml, where the model decides such"
                    " words, or head='independent'"
                )
        else:
            labelled, weights = values >= 0, part["weights"]
        # the model decides words that nobody labelled
        by_model = None if ml or kind == "references" else unlabelled(labelled, lengths)
        if kind == "partial":
            values = fill(values, weights, scores.shape[2], hard=ml)

        def distributions(rows: Rows) -> tuple[Distribution, Distribution]:
            # labels were checked when they were read; to look at values waits for a GPU
            checked = kind == "references"
            p = distribution(model, scores[rows], lengths[rows], validate=not checked)
            return p, target_space(model, p, scores[rows], lengths[rows])

        return self.toward(distributions, values, weights, by_model)

    def _allowed(
        self, model: TokenClassificationModel, logits: Tensor, lengths: Tensor, values: Tensor
    ) -> Tensor:
        """-log P(allowed labels): log Z less that of the sequences that are allowed."""
        if self.objective != "ml":
            raise IntractableError(
                f"lists of allowed labels go with objective 'ml', got {self.objective!r}"
            )
        real = length_mask(lengths, logits.shape[1]).unsqueeze(-1)
        forbidden = (values == 0) & real
        whole = distribution(model, logits, lengths)
        allowed = distribution(model, logits.masked_fill(forbidden, -torch.inf), lengths)
        return whole.log_partition - allowed.log_partition


def distribution(
    model: TokenClassificationModel, logits: Tensor, lengths: Tensor, *, validate: bool = True
) -> Distribution:
    """The distribution that is trained."""
    constrained = model.config.constraints == "model"
    return model.distribution(logits, lengths, constrained=constrained, validate=validate)


def target_space(
    model: TokenClassificationModel, p: Distribution, logits: Tensor, lengths: Tensor
) -> Distribution:
    """What targets are distributions over: what ``constraints`` allow in them."""
    if model.config.constraints != "target":
        return p
    return model.distribution(logits.detach(), lengths, constrained=True)
