"""One class out of K."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from softq.checks import as_scores
from softq.errors import ShapeError
from softq.rewards import ExactMatch
from softq.spaces.base import Component, mixed
from softq.spaces.factorised import Factorised
from softq.spaces.references import OutputReferences


class Categorical(Factorised):
    """A distribution over K classes.

    ===========  ==========================================================
    set          {0, …, K-1}
    parts        classes, ``scores[*B, K]``
    output       the class, ``[*B]``
    cost         O(K) time and memory
    paper        §4.1.1 (cost-sensitive classification)
    ===========  ==========================================================

    >>> p = Categorical(torch.tensor([1.0, 3.0]).log())
    >>> p.log_prob(torch.tensor(1)).exp()
    tensor(0.7500)
    """

    natural_reward = ExactMatch

    def __init__(self, scores: Tensor, *, validate: bool = True) -> None:
        scores = as_scores("scores", scores)
        if scores.dim() < 1 or scores.shape[-1] == 0:
            raise ShapeError(
                f"scores must have shape [*B, K] with K >= 1, got {list(scores.shape)}"
            )
        super().__init__(scores, scores.shape[:-1], torch.Size(), validate=validate)

    def with_scores(self, local: Tensor, *others: Tensor) -> Categorical:
        return Categorical(self._keep_forbidden(local), validate=False)

    def like(self, *given: Tensor) -> Self:
        return type(self)(*given, validate=False)

    def point_masses(self, references: OutputReferences) -> Component:
        if not references.soft or references.partial:
            return super().point_masses(references)
        return Categorical(references.values.log(), validate=False)

    def mixture_entropy(self, weights: Tensor, references: OutputReferences) -> Tensor:
        mixture = mixed(weights, self.marginals)
        return -torch.xlogy(mixture, mixture).sum(-1)
