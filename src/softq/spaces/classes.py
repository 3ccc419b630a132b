"""One class out of K, and what tokens that choose independently have in common with it."""

from __future__ import annotations

import math
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.checks import as_scores
from softq.errors import ShapeError
from softq.numerics import logsumexp, softmax
from softq.rewards import ExactMatch, PartReward
from softq.spaces.base import Component, mixed
from softq.spaces.distribution import Distribution, draw_classes
from softq.spaces.references import OutputReferences


class Factorised(Distribution):
    """A distribution that is one softmax for each token, or one in all for a class."""

    independent_tokens = True

    @property
    def log_partition(self) -> Tensor:
        return self._cached("log_partition", self._log_partition)

    def _log_partition(self) -> Tensor:
        found = self.sum_tokens(logsumexp(self._clean(), -1))
        return found.masked_fill(found == -math.inf, -math.inf)  # there its gradient is 0

    @property
    def marginals(self) -> Tensor:
        return self._cached("marginals", self._marginals)

    def _marginals(self) -> Tensor:
        found = softmax(self._clean())
        if self.event_shape and self.constrained:  # a token without labels forbids every output
            found = found * (self.log_partition > -math.inf)[..., None, None]
        return found if self.real is None else found.masked_fill(~self.real.unsqueeze(-1), 0.0)

    def mode(self) -> Tensor:
        self._check_feasible("decode")
        return self.zero_padding(self.scores.argmax(-1))

    def mbr(self, reward: PartReward | None = None) -> Tensor:
        return self.mode() if reward is None else super().mbr(reward)

    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        # Padding needs some distribution to draw from, too.
        return self.zero_padding(draw_classes(softmax(self._clean()).detach(), count, generator))

    def _clean(self) -> Tensor:
        """Scores whose padding adds nothing: label 0 is the only one possible there, at score 0."""
        if self.real is None:
            return self.scores
        only = torch.full_like(self.scores[..., :1, :], -math.inf)
        only[..., 0] = 0.0
        return torch.where(self.real.unsqueeze(-1), self.scores, only)


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

    def _topk(self, k: int) -> tuple[Tensor, Tensor]:
        best = self.scores.topk(min(k, self.scores.shape[-1]), -1)
        losses = best.values[..., :1] - best.values
        missing = (0, k - losses.shape[-1])
        return pad(best.indices, missing), pad(losses, missing, value=math.inf)

    def point_masses(self, references: OutputReferences) -> Component:
        if not references.soft or references.partial:
            return super().point_masses(references)
        return Categorical(references.values.log(), validate=False)

    def mixture_entropy(self, weights: Tensor, references: OutputReferences) -> Tensor:
        mixture = mixed(weights, self.marginals)
        return -torch.xlogy(mixture, mixture).sum(-1)
