"""Point masses on references: the components of likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softq.errors import IntractableError
from softq.kernels.operator import Expected
from softq.numerics import inner, logsumexp
from softq.spaces.base import Component, mixed
from softq.spaces.references import OutputReferences

if TYPE_CHECKING:
    from softq.spaces.distribution import Distribution


@dataclass(frozen=True, eq=False)
class PointMasses(Component):
    """All mass on each reference; if only some tokens are labelled, on outputs that agree there.

    Soft references of trees stand for their expected parts: there need be no tree distribution of
    independent words that has them.
    """

    space: Distribution
    references: OutputReferences
    event_shape: torch.Size

    def expected_parts(self, weights: Tensor | None, model: Distribution) -> tuple[Tensor, ...]:
        refs, batch = self.references, len(model.batch_shape)
        if refs.partial:
            raise IntractableError(
                "references labelled in part have no expected parts of their own"
            )
        if refs.soft:
            return (mixed(refs.weights, refs.values),)
        counts = model.part_counts(refs.values.movedim(batch, 0))  # [R, *B, *parts]
        if refs.given_weights is None:
            return tuple(count.mean(0) for count in counts)
        return tuple(mixed(refs.weights, count.movedim(0, batch)) for count in counts)

    def expected(self, weights: Tensor | None, model: Distribution) -> Expected | None:
        refs = self.references
        if refs.partial:
            return None
        if refs.soft:
            return super().expected(weights, model)
        given = refs.given_weights
        return Expected(model.flat(refs.values), None if given is None else model.flat(given))

    def mean_score(self, weights: Tensor | None, model: Distribution) -> Tensor:
        """Where only some tokens are labelled, log Σ exp(score) over the outputs that agree there.

        So log Z less this is minus the log of the marginal likelihood; a mean over references.
        """
        refs, batch = self.references, len(model.batch_shape)
        if not refs.partial:
            return super().mean_score(weights, model)
        if not refs.soft:
            each = [model.restricted(y).log_partition for y in refs.values.unbind(batch)]
            return (refs.weights * torch.stack(each, -1)).sum(-1)
        if not model.independent_tokens:
            raise IntractableError(
                "soft references with tokens that nobody labelled have a likelihood in closed form "
                f"only where tokens are independent, not on a {type(model).__name__}; use "
                "softq.sqdml(model, refs, tau, prior=model), where the prior decides those tokens"
            )
        scores = model.scores.unsqueeze(batch)  # [*B, 1, *tokens, K]
        known = inner(refs.values, scores.expand_as(refs.values), (-1,))
        score = torch.where(model.token_mass(refs.values) == 0.0, logsumexp(scores, -1), known)
        if model.real is not None:
            score = score.masked_fill(~model.real.unsqueeze(batch), 0.0)
        return (refs.weights * score.reshape(*refs.weights.shape, -1).sum(-1)).sum(-1)

    def log_prob(self, outputs: Tensor) -> Tensor:
        """0 for the reference itself and -inf for any other output, ``[*S, *B, R]``."""
        refs, real = self.references.hard("give no probabilities to outputs"), self.space.real
        if real is not None:
            outputs = outputs.masked_fill(~real.unsqueeze(-2), 0)
        equal = (outputs == refs).all(-1) if self.event_shape else outputs == refs
        return torch.where(equal, 0.0, -torch.inf).to(self.space.dtype)

    def entropy(self) -> Tensor:
        """0: there is nothing else, ``[*B, R]``."""
        if self.references.soft:
            raise IntractableError(
                "soft references of trees are expected parts, which have no entropy"
            )
        return torch.zeros_like(self.references.weights)

    def mixture_entropy(self, weights: Tensor, references: OutputReferences) -> Tensor:
        """Entropy of the weights, all copies of a reference taken together, ``[*B]``."""
        together = (references.same() * weights.unsqueeze(-2)).sum(-1)
        return self.mean_entropy(weights) - torch.xlogy(weights, together).sum(-1)
