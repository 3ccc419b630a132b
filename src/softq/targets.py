"""The paper's three training targets, and what a target is.

Every objective is one cross-entropy H(target, model) (see `softq.objectives`); only the target differs:

    ML      1/m on each reference                                   eq. 2
    RAML    mean over i of q(·|y_i; τ) ∝ exp( r(·, y_i) / τ )        eq. 4-5, 16-18
    SQDML   Q~(·|x; τ) ∝ exp( mean_i r(·, y_i) / τ )                 eq. 15

Where the reward splits over the parts of an output, q and Q~ are distributions of the same kind as the model, with
rewards for scores, and nothing is sampled. Where it does not (BLEU), they live on a set of candidates (`softq.sampled`).
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor

from softq.checks import check_tau, check_weights
from softq.distributions import Candidates, Categorical, Distribution, LabelSequence
from softq.errors import DtypeError, EstimatorError, IntractableError, RewardError, ShapeError, TemperatureError
from softq.importance import Estimator
from softq.numerics import logsumexp
from softq.rewards import Attachment, ExactMatch, PartReward, Reward, TokenAccuracy
from softq.sampled import SampledTarget, ScoredCandidates, point_masses
from softq.sentences import References

ObjectiveName = Literal["ml", "raml", "sqdml"]  # as recipes and options spell them


@overload
def ml(space: Distribution, refs: Tensor, *, ref_weights: Tensor | None = None) -> Target: ...
@overload
def ml(space: Candidates, refs: References, *, ref_weights: Tensor | None = None) -> SampledTarget: ...
def ml(space: Distribution | Candidates, refs: Any, *, ref_weights: Tensor | None = None) -> Target | SampledTarget:
    """Maximum likelihood: all mass on the references (eq. 2).

    Args:
        space: a distribution, used only for its output space; or candidates that hold the references.
        refs: outputs ``[*B, *E]``, or several per input ``[*B, R, *E]``; for candidates also `Sentences` or nested lists.
        ref_weights: ``[*B, R]``, 0 for a missing reference; equal if not given.

    >>> import softq
    >>> p = softq.Categorical(torch.zeros(1, 4))
    >>> softq.cross_entropy(softq.ml(p, torch.tensor([2])), p).exp().round()
    tensor([4.])

    """
    if isinstance(space, Candidates):
        return point_masses(space, refs, ref_weights)
    refs, weights = _references(space, refs, ref_weights)
    return Target(space, _PointMass(space, refs), refs, weights, tau=None, signature="ml")


@overload
def raml(space: Distribution, refs: Tensor, tau: float, reward: Reward | None = None, *, ref_weights: Tensor | None = None) -> Target: ...
@overload
def raml(
    space: Candidates,
    refs: References,
    tau: float,
    reward: Any = None,
    *,
    ref_weights: Tensor | None = None,
    estimator: Estimator = "set",
    k: int | None = None,
    generator: torch.Generator | None = None,
) -> SampledTarget: ...
def raml(
    space: Distribution | Candidates,
    refs: Any,
    tau: float,
    reward: Any = None,
    *,
    ref_weights: Tensor | None = None,
    estimator: Estimator | None = None,
    k: int | None = None,
    generator: torch.Generator | None = None,
) -> Target | SampledTarget:
    """Reward augmented maximum likelihood: the mean over references of the exponentiated payoff q (eq. 4-5, 16-18).

    Args:
        space: a distribution, used only for its output space (what it forbids by -inf stays forbidden); or a set of candidates.
        refs: outputs ``[*B, *E]``, or several per input ``[*B, R, *E]``; for candidates also `Sentences` or nested lists.
        tau: temperature τ > 0; towards 0 the target becomes that of `ml`.
        reward: a reward over the parts of the space; the natural one if None (exact match for classes, token
            accuracy for label sequences, attachment for trees, each summed over tokens). For candidates any of `softq.rewards`,
            or a function of two token lists.
        ref_weights: ``[*B, R]``, 0 for a missing reference; equal if not given.
        estimator: for candidates, how they stand for all sentences: ``"set"`` (default), ``"paper"`` or ``"importance"``; see
            `softq.importance`.
        k: for candidates, use the references and a random choice of the rest, up to k in all.
        generator: randomness of that choice.

    >>> import softq
    >>> p = softq.Chain(torch.zeros(1, 5, 3), torch.zeros(3, 3))
    >>> target = softq.raml(p, torch.tensor([[0, 1, 2, 1, 0]]), tau=0.2)
    >>> target.reference_mass().item()  # (e^5 / (e^5 + 2))^5
    0.935...

    >>> cands = softq.samplers.NgramReplacement(1000, size=50)([[11, 12, 13, 14, 15, 16]], generator=torch.Generator().manual_seed(0))
    >>> target = softq.raml(cands, [[11, 12, 13, 14, 15, 16]], tau=0.2, reward=softq.rewards.SentenceBLEU())
    >>> target.weights.shape, target.reference_mass().item() > 0.2
    (torch.Size([1, 50]), True)

    """
    tau = check_tau(tau)
    if isinstance(space, Candidates):
        scored = ScoredCandidates(space, refs, reward, ref_weights, estimator or "set", k)
        if not scored.reward.pairwise:
            raise RewardError(
                f"RAML needs the reward against each reference, {type(scored.reward).__name__} has one for all; use softq.sqdml"
            )
        payoffs = scored.softmax(scored.rewards / tau)  # q(y_s|y_i; τ): [B, S, R]
        return scored.target(torch.einsum("br,bsr->bs", scored.ref_weights, payoffs), tau, "raml", generator)
    _check_exact(estimator, k)
    refs, weights = _references(space, refs, ref_weights)
    reward = _reward_for(space, reward)
    if isinstance(space, LabelSequence) and reward.position_free:  # q factorises over positions unless neighbours are forbidden
        labels = torch.eye(space.scores.shape[-1], dtype=space.dtype, device=space.device)
        payoff = space.payoff(refs, reward.on_parts(labels / tau))
    else:
        payoff = space.with_scores(_part_rewards(space, refs, reward, tau))  # r(·, y_i) / τ: [*B, R, *parts]
    return Target(space, payoff, refs, weights, tau, f"raml:tau={tau:g}:{reward.signature}")


@overload
def sqdml(space: Distribution, refs: Tensor, tau: float, reward: Reward | None = None, *, ref_weights: Tensor | None = None) -> Target: ...
@overload
def sqdml(
    space: Candidates,
    refs: References,
    tau: float,
    reward: Any = None,
    *,
    ref_weights: Tensor | None = None,
    estimator: Estimator = "set",
    k: int | None = None,
    generator: torch.Generator | None = None,
) -> SampledTarget: ...
def sqdml(
    space: Distribution | Candidates,
    refs: Any,
    tau: float,
    reward: Any = None,
    *,
    ref_weights: Tensor | None = None,
    estimator: Estimator | None = None,
    k: int | None = None,
    generator: torch.Generator | None = None,
) -> Target | SampledTarget:
    """Softmax Q-distribution maximum likelihood: the softmax of the mean reward over references (eq. 15).

    Arguments as for `raml`. With one reference the two are the same; with several, the most probable output
    of this target is the one of highest mean reward (the Bayes rule, eq. 8 and 13) at any temperature.

    >>> import softq
    >>> p = softq.Categorical(torch.zeros(1, 3))
    >>> reward = softq.rewards.Matrix(torch.diag(torch.tensor([1.0, 1.0, 5.0])))
    >>> votes = torch.tensor([[0, 0, 2]])
    >>> softq.sqdml(p, votes, tau=0.1, reward=reward).components.mode().tolist()  # one vote worth five
    [[2]]
    """
    tau = check_tau(tau)
    if isinstance(space, Candidates):
        scored = ScoredCandidates(space, refs, reward, ref_weights, estimator or "set", k)
        ref_weight = scored.ref_weights if scored.reward.pairwise else torch.ones_like(scored.ref_weights[:, :1])
        mean_reward = torch.einsum("br,bsr->bs", ref_weight, scored.rewards)
        return scored.target(scored.softmax(mean_reward.unsqueeze(2) / tau).squeeze(2), tau, "sqdml", generator)
    _check_exact(estimator, k)
    refs, weights = _references(space, refs, ref_weights)
    reward = _reward_for(space, reward)
    rewards = _part_rewards(space, refs, reward, tau)  # r(·, y_i) / τ: [*B, R, *parts]
    batch = len(space.batch_shape)
    mean = (weights.reshape(*weights.shape, *[1] * (rewards.dim() - weights.dim())) * rewards).sum(batch, keepdim=True)
    return Target(space, space.with_scores(mean), refs, weights, tau, f"sqdml:tau={tau:g}:{reward.signature}")


def target_of(
    objective: ObjectiveName, space: Distribution, refs: Tensor, tau: float | None, reward: Reward, *, ref_weights: Tensor
) -> Target:
    """The target of an objective that is known by its name; ``"ml"`` uses neither temperature nor reward."""
    if objective == "ml":
        return ml(space, refs, ref_weights=ref_weights)
    if tau is None:
        raise TemperatureError(f"{objective} needs a temperature tau")
    return (raml if objective == "raml" else sqdml)(space, refs, tau, reward, ref_weights=ref_weights)


class Target:
    """A distribution to train toward: Σ_i w_i · component_i, one component per reference (a single one for SQDML).

    It is detached from the graph. ``tau`` is None for ML; ``signature`` names objective, temperature and reward.
    """

    def __init__(
        self, space: Distribution, components: Component, refs: Tensor, weights: Tensor, tau: float | None, signature: str
    ) -> None:
        self.space = space
        self.components = components  # batch [*B, R] or [*B, 1]
        self.references = refs  # [*B, R, *E], padding and missing references filled in
        self.reference_weights = weights  # [*B, R], summing to one
        self.tau = tau
        self.signature = signature

    @property
    def mixture_weights(self) -> Tensor:
        """Weight of each component, ``[*B, R]`` or ``[*B, 1]``."""
        one = self.components.batch_shape[-1] == 1
        return torch.ones_like(self.reference_weights[..., :1]) if one else self.reference_weights

    def expected_parts(self, model: Distribution) -> tuple[Tensor, ...]:
        """E_target[parts] for each kind of part the model scores, ``[*B, *parts]``: all that a cross-entropy asks of a target."""
        batch = len(model.batch_shape)
        with torch.no_grad():
            per_component = self.components.expected_parts(model)  # [*B, R, *parts]
            if self.components.batch_shape[-1] == 1:
                return tuple(e.squeeze(batch) for e in per_component)
            weights = self.reference_weights
            return tuple((weights.reshape(*weights.shape, *[1] * (e.dim() - batch - 1)) * e).sum(batch) for e in per_component)

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Log-probability of ``outputs [*S,*B,*E]`` under the target, ``[*S,*B]``."""
        events = len(self.space.event_shape)
        beside = outputs.unsqueeze(outputs.dim() - events)
        shape = list(beside.shape)
        shape[beside.dim() - events - 1] = self.components.batch_shape[-1]
        return logsumexp(self.components.log_prob(beside.expand(shape)) + self.mixture_weights.log(), -1)

    def reference_mass(self) -> Tensor:
        """Probability that the target gives to its references together, ``[*B]``."""
        batch = len(self.space.batch_shape)
        mass = torch.stack([self.log_prob(self.references.select(batch, i)) for i in range(self.references.shape[batch])], -1).exp()
        first = ~torch.tril(self._same(), -1).any(-1)  # a reference that repeats an earlier one counts once
        return (mass * first).sum(-1)

    def component_entropy(self) -> Tensor:
        """Weighted mean of the components' entropies, ``[*B]``: the constant between eq. 4 and eq. 6, and a lower bound on the entropy."""
        return _mean(self.mixture_weights, self.components.entropy())

    def entropy(self) -> Tensor:
        """Entropy of the target in nats, ``[*B]``."""
        same = self._same()
        alone = self.mixture_weights.shape[-1] == 1 or bool((same | (self.reference_weights == 0).unsqueeze(-1)).all())
        if alone:
            return self.component_entropy()
        if isinstance(self.components, Categorical):
            mixture = (self.mixture_weights.unsqueeze(-1) * self.components.marginals).sum(-2)
            return -torch.xlogy(mixture, mixture).sum(-1)
        if isinstance(self.components, _PointMass):
            together = (same * self.reference_weights.unsqueeze(-2)).sum(-1)  # weight of all copies of each reference
            return -torch.xlogy(self.reference_weights, together).sum(-1)
        raise IntractableError(
            "the entropy of a mixture over several different references has no closed form on "
            f"a {type(self.space).__name__}. component_entropy() bounds it from below and is the constant of eq. 6: "
            "cross_entropy(target, model) - target.component_entropy() is the RAML objective as a mean of KL divergences"
        )

    def _same(self) -> Tensor:
        """``[*B, R, R]``: whether references i and j are the same output."""
        batch = len(self.space.batch_shape)
        a, b = self.references.unsqueeze(batch), self.references.unsqueeze(batch + 1)
        return (a == b).flatten(batch + 2).all(-1) if self.space.event_shape else a == b

    def __repr__(self) -> str:
        return f"Target({self.signature}, {self.space!r}, references={self.references.shape[len(self.space.batch_shape)]})"


class Component(Protocol):
    """What a target asks of its components: a `Distribution`, or point masses."""

    batch_shape: torch.Size

    def expected_parts(self, model: Distribution) -> tuple[Tensor, ...]:
        """Expected parts of each component, ``[*B, R, *parts]``."""
        ...

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Log-probability under each component, ``[*S, *B, R]``."""
        ...

    def entropy(self) -> Tensor:
        """Entropy of each component, ``[*B, R]``."""
        ...


class _PointMass:
    """All mass on one output per reference."""

    def __init__(self, space: Distribution, refs: Tensor) -> None:
        self.space = space
        self.refs = refs
        self.batch_shape = refs.shape[: refs.dim() - len(space.event_shape)]

    def expected_parts(self, model: Distribution) -> tuple[Tensor, ...]:
        batch = len(model.batch_shape)
        return tuple(e.movedim(0, batch) for e in model.part_counts(self.refs.movedim(batch, 0)))

    def log_prob(self, outputs: Tensor) -> Tensor:
        axis = outputs.dim() - len(self.space.event_shape) - 1  # of the references
        outputs = self.space.zero_padding(outputs.movedim(axis, 0)).movedim(0, axis)
        equal = (outputs == self.refs).all(-1) if self.space.event_shape else outputs == self.refs
        return torch.zeros(equal.shape, dtype=self.space.dtype, device=self.space.device).masked_fill(~equal, -torch.inf)

    def entropy(self) -> Tensor:
        return torch.zeros(self.batch_shape, dtype=self.space.dtype, device=self.space.device)


def _references(space: Distribution, refs: Tensor, ref_weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """References ``[*B, R, *E]`` with nothing left to chance in padding or missing ones, and their weights."""
    batch, events = len(space.batch_shape), len(space.event_shape)
    given = refs
    if not isinstance(refs, Tensor):
        raise DtypeError(f"refs must be an int64 tensor, got {type(refs).__name__}")
    if refs.dim() == batch + events and ref_weights is None:
        refs = refs.unsqueeze(batch)
    right_sizes = refs.shape[:batch] == space.batch_shape and refs.shape[batch + 1 :] == space.event_shape
    if refs.dim() != batch + events + 1 or not right_sizes or refs.shape[batch] == 0:
        want = [*space.batch_shape, *space.event_shape]
        several = [*space.batch_shape, "R", *space.event_shape]
        raise ShapeError(f"refs must have shape {want}, or {several} for several references, got {list(given.shape)}".replace("'", ""))
    count = refs.shape[batch]
    if ref_weights is None:
        weights = torch.full((), 1.0 / count, dtype=space.dtype, device=space.device).expand(*space.batch_shape, count)
    else:
        weights = check_weights(ref_weights, torch.Size((*space.batch_shape, count))).to(dtype=space.dtype, device=space.device).detach()
        # A missing reference may hold anything: let it repeat one that is there.
        present = weights.argmax(-1, keepdim=True)
        index = torch.where(weights > 0, torch.arange(count, device=weights.device), present)
        refs = refs.gather(batch, index.reshape(*index.shape, *[1] * events).expand(refs.shape))
    in_front = refs.movedim(batch, 0)  # references as a sample dimension
    if space.validate:
        space.check_outputs(in_front)
    return space.zero_padding(in_front).movedim(0, batch).long(), weights


def _check_exact(estimator: str | None, k: int | None) -> None:
    if estimator is not None or k is not None:
        raise EstimatorError("estimator and k are for candidate sets; on a distribution the target is exact, and nothing is estimated")


def _reward_for(space: Distribution, reward: Reward | None) -> PartReward:
    """The reward, or the natural one; an error if it does not split over the parts of the space."""
    natural: PartReward = (
        ExactMatch() if isinstance(space, Categorical) else TokenAccuracy() if isinstance(space, LabelSequence) else Attachment()
    )
    if reward is None:
        return natural
    if not isinstance(reward, PartReward):
        raise RewardError(
            f"exact targets need a reward that splits over the {natural.parts} of a {type(space).__name__}, got {type(reward).__name__}; "
            "other rewards need candidates from softq.samplers"
        )
    if reward.parts != natural.parts:
        raise RewardError(
            f"{type(reward).__name__} is a reward over {reward.parts} and does not split over the {natural.parts} of "
            f"a {type(space).__name__}; exact targets need a reward over {natural.parts}, such as {type(natural).__name__}()"
        )
    return reward


def _part_rewards(space: Distribution, refs: Tensor, reward: PartReward, tau: float) -> Tensor:
    """r(part, y_i) / τ for all parts of the space and each reference, ``[*B, R, *parts]``: linear in the indicator of the reference's."""
    batch = len(space.batch_shape)
    right = space.indicator(refs.movedim(batch, 0), 1.0 / tau).movedim(0, batch)
    found = reward.on_parts(right)
    if reward.position_free:  # one of softq's own
        return found
    if not isinstance(found, Tensor) or found.shape != right.shape:
        got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise RewardError(f"{type(reward).__name__}.on_parts must return a tensor shaped like its argument, {list(right.shape)}, got {got}")
    if not bool(found.isfinite().all()):
        raise RewardError(f"{type(reward).__name__}.on_parts must return finite numbers; forbid outputs by -inf scores instead")
    return found.detach().to(right)


def _mean(weights: Tensor, values: Tensor) -> Tensor:
    """Weighted sum over the last dimension in which a weight of 0 silences any value."""
    return (weights * values.masked_fill(weights == 0, 0.0)).sum(-1)
