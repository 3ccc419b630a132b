"""Distributions whose tokens choose independently: classes, and labels without neighbours."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softq.numerics import logsumexp, softmax
from softq.spaces.distribution import Distribution, draw_classes


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

    def mbr(self) -> Tensor:
        return self.mode()

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
