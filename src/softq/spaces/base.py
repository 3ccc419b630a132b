"""What an output space offers to targets, and what the components of a target offer to losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from softq.errors import IntractableError, RewardError
from softq.kernels.operator import Expected
from softq.numerics import can_inspect, logsumexp
from softq.rewards import Reward


class Space(ABC):
    """A set of outputs on which targets live: a distribution, used for its outputs, or candidates.

    A target is made in three steps: `references` reads what the user gave, `rewards` or
    `mean_reward` scores every output against them, and `gibbs` turns scores into the distribution
    ∝ prior^a · base · exp(score / τ). What the first two return is for the next step alone.
    """

    natural_reward: ClassVar[type[Reward] | None] = None
    """The reward that is meant where none is given."""

    @property
    def signature(self) -> str:
        """What the signature of a target says of its space: how candidates stand for sentences."""
        return ""

    def reward_or_natural(self, reward: Any) -> Any:
        """The reward, if it fits this space; the natural one for None."""
        if reward is not None:
            return reward
        if self.natural_reward is None:
            raise RewardError(
                f"{type(self).__name__} has no natural reward: give one as reward=, such as "
                "softq.rewards.SentenceBLEU() for sentences"
            )
        return self.natural_reward()

    @abstractmethod
    def references(self, refs: Any, ref_weights: Tensor | None, *, likelihood: bool = False) -> Any:
        """The references of each example, checked, and their weights, which sum to one.

        For a likelihood the weights are NaN where a token may prove to have no label.
        """

    @abstractmethod
    def point_masses(self, references: Any) -> Component:
        """All mass on each reference (eq. 2)."""

    @abstractmethod
    def rewards(self, references: Any, reward: Any) -> Any:
        """r(·, y_i) of every output against each reference."""

    @abstractmethod
    def mean_reward(self, references: Any, reward: Any) -> Any:
        """Σ_i w_i r(·, y_i) of every output."""

    @abstractmethod
    def gibbs(self, scores: Any, tau: float, prior: Any, prior_weight: float) -> Component:
        """The distribution ∝ prior^a · base · exp(score / τ); what is forbidden here stays so."""

    @abstractmethod
    def as_model(self, model: Any) -> Any:
        """The model of a cross-entropy, if it is one of this space."""


class Component(ABC):
    """What a target is a mixture of: distributions or point masses, one for each reference.

    Weights of the mixture are ``[*B, R]``; None stands for one component per example.
    """

    event_shape: torch.Size

    @abstractmethod
    def expected_parts(self, weights: Tensor | None, model: Any) -> tuple[Tensor, ...]:
        """E[parts] of the mixture for each kind of part that the model scores, ``[*B, *parts]``."""

    def expected(self, weights: Tensor | None, model: Any) -> Expected | None:
        """The same in the form that kernels take; None where it depends on the model."""
        parts = self.expected_parts(weights, model)
        return Expected(parts=tuple(model.flat(part) for part in parts))

    def mean_score(self, weights: Tensor | None, model: Any) -> Tensor:
        """<E[parts] of the mixture, scores of the model>, ``[*B]``."""
        return cast(Tensor, model.expected_score(self.expected_parts(weights, model)))

    @abstractmethod
    def log_prob(self, outputs: Any) -> Tensor:
        """Log-probability of ``outputs [*S, *B, R, *E]`` under each component, ``[*S, *B, R]``."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Entropy of each component in nats, ``[*B, R]``."""

    def mixture_log_prob(self, weights: Tensor | None, outputs: Any) -> Tensor:
        """Log-probability of ``outputs [*S, *B, *E]`` under the mixture, ``[*S, *B]``."""
        if weights is None:
            return self.log_prob(outputs)
        axis = outputs.dim() - len(self.event_shape)
        beside = torch.stack([outputs] * weights.shape[-1], axis)
        return logsumexp(self.log_prob(beside) + weights.log(), -1)

    def reference_mass(self, weights: Tensor | None, references: Any) -> Tensor:
        """Probability that the mixture gives to the references together, ``[*B]``."""
        outputs = references.hard("have no mass").movedim(references.weights.dim() - 1, 0)
        probability = self.mixture_log_prob(weights, outputs).exp()  # [R, *B]
        first = ~torch.tril(references.same(), -1).any(-1)  # one that repeats another counts once
        return (probability.movedim(0, -1) * first).sum(-1)

    def mean_entropy(self, weights: Tensor | None) -> Tensor:
        """Weighted mean of the components' entropies, ``[*B]``."""
        entropy = self.entropy()
        if weights is None:
            return entropy
        return (weights * entropy.masked_fill(weights == 0, 0.0)).sum(-1)

    def mixture_entropy(self, weights: Tensor, references: Any) -> Tensor:
        """Entropy of the mixture in nats, ``[*B]``."""
        if references.alike():
            return self.mean_entropy(weights)
        raise IntractableError(
            "the entropy of a mixture over several different references has no closed form on a "
            f"{type(self).__name__}. component_entropy() bounds it from below and is the constant "
            "of eq. 6: cross_entropy(target, model) - target.component_entropy() is the objective "
            "as a mean of KL divergences"
        )


def mixed(weights: Tensor | None, values: Tensor) -> Tensor:
    """Σ_i w_i x_i for weights ``[*B, R]`` and values ``[*B, R, …]``; x for weights of None."""
    if weights is None:
        return values
    shaped = weights.reshape(*weights.shape, *[1] * (values.dim() - weights.dim()))
    return (shaped * values).sum(weights.dim() - 1)


def constant(shape: torch.Size, value: float, dtype: torch.dtype, like: Tensor) -> Tensor:
    """``shape`` times the same value on the device of another tensor, made once."""
    make = _constant if can_inspect(like) else _constant.__wrapped__
    return make(shape, value, dtype, like.device)


@lru_cache(maxsize=64)
def _constant(shape: torch.Size, value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, value, dtype=dtype, device=device)
