"""The loss of each sentence of a batch: H(target, model) for what is known of its labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softq.errors import IntractableError, OutputError
from softq.integrations.transformers.token_classification.model import TokenClassificationModel
from softq.integrations.transformers.token_classification.rows import one_hot
from softq.integrations.transformers.tokens import IGNORED
from softq.numerics import length_mask
from softq.objectives import cross_entropy
from softq.rewards import PartReward
from softq.spaces import Distribution
from softq.targets import ObjectiveName, target_of


@dataclass(frozen=True)
class SentenceLosses:
    """Losses of sentences by what is known of their labels.

    - **References**, label sequences of annotators: toward the target of the objective. A word that
      one annotator left out has the labels of the others. For a word that nobody labelled ML sums
      over its labels; RAML and SQDML take the model as the prior of such a sentence, which then
      decides it.
    - **Probabilities** of labels: the same with soft references.
    - Labels that are **allowed**: minus the log of the probability of all sequences of them.

    Attributes:
        objective: ML, RAML or SQDML.
        tau: temperature of the latter two.
        reward: over labels; token accuracy if None.

    """

    objective: ObjectiveName
    tau: float | None = None
    reward: PartReward | None = None

    def __call__(
        self,
        model: TokenClassificationModel,
        logits: Tensor,
        lengths: Tensor,
        targets: Mapping[str, Any],
    ) -> Tensor:
        """A number for each sentence, ``[B]``."""
        losses = logits.new_zeros(len(lengths))
        for kind in ("references", "probabilities", "allowed"):
            if kind not in targets:
                continue
            part = targets[kind]
            rows = part["rows"]
            loss = self._allowed if kind == "allowed" else self._toward
            found = loss(model, logits[rows], lengths[rows], part)
            losses = losses.index_copy(0, rows, found.to(losses))
        if bool((losses == torch.inf).any()):
            raise OutputError(
                f"sentence {int((losses == torch.inf).nonzero()[0])} of the batch (counted from 0)"
                f" has labels that break the tag scheme {model.config.scheme}, which"
                " constraints='model' forbids: mend them (softq.formats.tags.convert), or let"
                " constraints reach decoding only"
            )
        return losses

    def _toward(
        self,
        model: TokenClassificationModel,
        logits: Tensor,
        lengths: Tensor,
        part: Mapping[str, Any],
    ) -> Tensor:
        """Toward the target of the objective; see `softq.targets`."""
        values: Tensor = part["values"]
        soft = "weights" not in part
        if soft:
            given = values = values.unsqueeze(1)
            weights = values.new_ones(len(lengths), 1)
        else:
            given, weights = one_hot(values, logits.shape[2]), part["weights"]
        real = length_mask(lengths, logits.shape[1])
        labelled = given.sum(-1) > 0  # [b, R, n]
        if not soft and bool((~labelled & real.unsqueeze(1) & (weights > 0).unsqueeze(-1)).any()):
            values = fill(values, weights, logits.shape[2], hard=self.objective == "ml")
        # a word that nobody labelled: the model decides
        by_model = (real & ~(labelled & (weights > 0).unsqueeze(-1)).any(1)).any(-1)
        if self.objective == "ml":
            if soft and bool(by_model.any()) and model.crf is not None:
                raise IntractableError(
                    "soft labels with words that nobody labelled have a likelihood in closed form"
                    " only where labels are independent: use sqdml, where the model decides such"
                    " words, or head='independent'"
                )
            by_model = torch.zeros_like(by_model)
        losses = logits.new_zeros(len(lengths))
        for prior, which in ((False, ~by_model), (True, by_model)):
            rows = which.nonzero()[:, 0]
            if not len(rows):
                continue
            p = distribution(model, logits[rows], lengths[rows])
            space = target_space(model, p, logits[rows], lengths[rows])
            options: dict[str, Any] = {"ref_weights": weights[rows]}
            if prior:
                options["prior"] = p
            target = target_of(
                self.objective, space, values[rows], self.tau, self.reward, **options
            )
            losses = losses.index_copy(0, rows, cross_entropy(target, p).to(losses))
        return losses

    def _allowed(
        self,
        model: TokenClassificationModel,
        logits: Tensor,
        lengths: Tensor,
        part: Mapping[str, Any],
    ) -> Tensor:
        """-log P(allowed labels): log Z less that of the sequences that are allowed."""
        if self.objective != "ml":
            raise IntractableError(
                f"lists of allowed labels go with objective 'ml', got {self.objective!r}"
            )
        real = length_mask(lengths, logits.shape[1]).unsqueeze(-1)
        forbidden = (part["values"] == 0) & real
        whole = distribution(model, logits, lengths)
        allowed = distribution(model, logits.masked_fill(forbidden, -torch.inf), lengths)
        return whole.log_partition - allowed.log_partition


def distribution(model: TokenClassificationModel, logits: Tensor, lengths: Tensor) -> Distribution:
    """The distribution that is trained."""
    return model.distribution(logits, lengths, constrained=model.config.constraints == "model")


def target_space(
    model: TokenClassificationModel, p: Distribution, logits: Tensor, lengths: Tensor
) -> Distribution:
    """What targets are distributions over: what ``constraints`` allow in them."""
    if model.config.constraints != "target":
        return p
    return model.distribution(logits.detach(), lengths, constrained=True)


def fill(values: Tensor, weights: Tensor, classes: int, *, hard: bool) -> Tensor:
    """References in which a label that is left out is as those of the others.

    They are soft, ``[B, R, n, K]``: the mean over references is, for each word, that over those who
    labelled it. Or ``hard``, ``[B, R, n]``, with the label that has most of the weight. A word that
    nobody labelled stays so.

    >>> values = torch.tensor([[[1, -100], [-100, -100]]])
    >>> fill(values, torch.ones(1, 2), 2, hard=True)
    tensor([[[   1, -100],
             [   1, -100]]])
    """
    given = one_hot(values, classes)
    mean = (weights[..., None, None] * given).sum(1, keepdim=True)
    total = mean.sum(-1)
    if hard:
        others = mean.argmax(-1).masked_fill(total == 0, IGNORED)
        return torch.where(values == IGNORED, others, values)
    mean = mean / total.unsqueeze(-1).clamp(min=torch.finfo(mean.dtype).tiny)
    return torch.where((values == IGNORED).unsqueeze(-1), mean, given)
