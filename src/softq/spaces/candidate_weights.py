"""Weights on candidates, the components of their targets, and the model that is trained by them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from softq.errors import TemperatureError
from softq.numerics import inner, matmul
from softq.sentences import Sentences
from softq.spaces.base import Component, mixed

if TYPE_CHECKING:
    from softq.spaces.candidates import Candidates


@dataclass(frozen=True, eq=False)
class ModelOnCandidates:
    """A model by its log-probabilities of candidates, which are normalised: log Z = 0."""

    log_probs: Tensor
    has_kernel: ClassVar[bool] = False

    @property
    def log_partition(self) -> Tensor:
        """0 for each example."""
        return self.log_probs.new_zeros(len(self.log_probs))

    def expected_score(self, expected: Any) -> Tensor:
        """Σ_s w_s log P(y_s); a candidate without weight counts nothing, whatever the model."""
        return inner(expected[0].to(self.log_probs), self.log_probs, (1,))

    def tempered(self, temperature: float) -> ModelOnCandidates:
        """Not possible: raises an error."""
        raise TemperatureError(
            "temperature_scaled divides scores by tau, and log-probabilities of candidates are "
            "normalised already"
        )


@dataclass(frozen=True, eq=False)
class OnCandidates(Component):
    """Weights on candidates, one component for each reference, or one in all."""

    outputs: Candidates
    probabilities: Tensor
    """Float64 ``[B, R, K]``, or ``[B, K]``."""
    is_reference: Tensor
    """Bool ``[B, K]``."""
    log_base: Tensor | None
    """``[B, K]`` if the weights are estimates; None: they are a distribution."""

    def expected_parts(self, weights: Tensor | None, model: Any) -> tuple[Tensor, ...]:
        """Weights of the mixture, ``[B, K]``."""
        return (mixed(weights, self.probabilities),)

    def log_prob(self, outputs: Candidates | Sentences) -> Tensor:
        """Log of each component's weight on sentences ``[B, N, L]``; -inf off the candidates."""
        other: Any = getattr(outputs, "sentences", outputs)
        return matmul(self.probabilities, self.outputs.equals(other).double()).log()

    def mixture_log_prob(self, weights: Tensor | None, outputs: Candidates | Sentences) -> Tensor:
        """Log of the weight on each of these sentences, ``[B, N]``."""
        whole = mixed(weights, self.probabilities).unsqueeze(1)
        return replace(self, probabilities=whole).log_prob(outputs).squeeze(1)

    def reference_mass(self, weights: Tensor | None, references: Any) -> Tensor:
        """Share of the weight that lies on references, ``[B]``."""
        whole = mixed(weights, self.probabilities)
        return (whole * self.is_reference).sum(1) / whole.sum(1)

    def entropy(self) -> Tensor:
        """Entropy of each component on the set, or an estimate of it over all sentences."""
        p, base = self.probabilities, self.log_base
        if base is None:
            return -torch.xlogy(p, p).sum(-1)
        return inner(p, (base if p.dim() == 2 else base.unsqueeze(1)) - p.log(), (-1,))

    def mixture_entropy(self, weights: Tensor, references: Any) -> Tensor:
        whole = mixed(weights, self.probabilities)
        return -torch.xlogy(whole, whole).sum(-1)
