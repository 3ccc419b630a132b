"""The paper's three training targets, and what a target is.

Every objective is one cross-entropy H(target, model) (see `softq.objectives`); only the target
differs:

    ML      1/m on each reference                                   eq. 2
    RAML    mean over i of q(·|y_i; τ) ∝ exp( r(·, y_i) / τ )        eq. 4-5, 16-18
    SQDML   Q~(·|x; τ) ∝ exp( mean_i r(·, y_i) / τ )                 eq. 15

and all are one formula, target(y) ∝ prior(y)^a · base(y) · exp( Σ_i w_i r(y, y_i) / τ ). Where the
reward splits over the parts of an output, q and Q~ are distributions of the same kind as the model,
with rewards for scores, and nothing is sampled. Where it does not (BLEU), they are weights on
candidates, whose base measure says how they stand for all sentences (`Candidates.measure`).
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from softq.checks import check_tau
from softq.errors import IntractableError, TemperatureError
from softq.kernels.operator import Expected
from softq.options import ObjectiveName as ObjectiveName
from softq.spaces import Categorical, Component, Distribution, LabelSequence, Space


def ml(space: Space, refs: Any, *, ref_weights: Tensor | None = None) -> Target:
    """Maximum likelihood: all mass on the references (eq. 2).

    Args:
        space: a distribution, used only for its outputs; or candidates that hold the references.
        refs: outputs ``[*B, *E]``, or several per input ``[*B, R, *E]``. A token labelled -100 is
            not labelled, and the loss is then minus the log of the marginal likelihood of those
            that are (NaN where values cannot be inspected: in a traced graph, or without
            validation). Floats are soft references, probabilities of parts shaped like the unary
            ``marginals``: on classes and independent labels that is the usual soft cross-entropy;
            on chains the labels count as independent, and on trees only the expected arcs are
            matched. For candidates `Sentences`, nested lists or padded token ids.
        ref_weights: ``[*B, R]``, 0 for a missing reference; equal if not given.

    >>> import softq, torch
    >>> p = softq.Categorical(torch.zeros(1, 4))
    >>> softq.cross_entropy(softq.ml(p, torch.tensor([2])), p).exp().round()
    tensor([4.])
    >>> chain = softq.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2))
    >>> softq.cross_entropy(softq.ml(chain, torch.tensor([[1, -100, 0]])), chain).exp().round()
    tensor([4.])

    """
    references = space.references(refs, ref_weights, likelihood=True)
    return Target(space, space.point_masses(references), references, None, "ml", mixed=True)


def raml(
    space: Space,
    refs: Any,
    tau: float,
    reward: Any = None,
    *,
    ref_weights: Tensor | None = None,
    prior: Any = None,
    prior_weight: float = 1.0,
) -> Target:
    """Reward augmented maximum likelihood: the mean over references of q (eq. 4-5, 16-18).

    Args:
        space: a distribution, used only for its outputs (what it forbids by -inf stays forbidden);
            or a set of candidates.
        refs: as for `ml`. A token that is not labelled earns no reward, so that without a prior its
            target is uniform, which is hardly ever meant: give ``prior=model``.
        tau: temperature τ > 0; towards 0 the target becomes that of `ml`. On trees, and on chains
            that forbid labels, one so cold that sums of rewards over it lose their last digits is
            an error, which names the coldest that is right.
        reward: a reward over the parts of the space; the natural one if None (exact match for
            classes, token accuracy for label sequences, attachment for trees, each summed over
            tokens). For candidates any of `softq.rewards`, or a function of two token lists.
        ref_weights: ``[*B, R]``, 0 for a missing reference; equal if not given.
        prior: a distribution on the same outputs, or log-probabilities ``[B, S]`` of candidates;
            the target is multiplied by it.
        prior_weight: the power of the prior.

    >>> import softq, torch
    >>> p = softq.Chain(torch.zeros(1, 5, 3), torch.zeros(3, 3))
    >>> target = softq.raml(p, torch.tensor([[0, 1, 2, 1, 0]]), tau=0.2)
    >>> target.reference_mass().item()  # (e^5 / (e^5 + 2))^5
    0.935...

    >>> sampler = softq.samplers.NgramReplacement(1000, size=50)
    >>> refs = [[11, 12, 13, 14, 15, 16]]
    >>> cands = sampler(refs, generator=torch.Generator().manual_seed(0))
    >>> target = softq.raml(cands, refs, tau=0.2, reward=softq.rewards.SentenceBLEU())
    >>> target.weights.shape, target.reference_mass().item() > 0.2
    (torch.Size([1, 50]), True)

    """
    tau, reward = check_tau(tau), space.reward_or_natural(reward)
    references = space.references(refs, ref_weights)
    scores = space.rewards(references, reward)  # r(·, y_i)
    q = space.gibbs(scores, tau, prior, prior_weight)  # q(·|y_i; τ) ∝ exp( r(·, y_i) / τ )
    signature = _signature("raml", space, tau, reward, prior, prior_weight)
    return Target(space, q, references, tau, signature, mixed=True)


def sqdml(
    space: Space,
    refs: Any,
    tau: float,
    reward: Any = None,
    *,
    ref_weights: Tensor | None = None,
    prior: Any = None,
    prior_weight: float = 1.0,
) -> Target:
    """Softmax Q-distribution maximum likelihood: the softmax of the mean reward (eq. 15).

    Arguments as for `raml`. With one reference the two are the same; with several, the most
    probable output of this target is the one of highest mean reward (the Bayes rule, eq. 8 and 13)
    at any temperature.

    >>> import softq, torch
    >>> p = softq.Categorical(torch.zeros(1, 3))
    >>> reward = softq.rewards.Matrix(torch.diag(torch.tensor([1.0, 1.0, 5.0])))
    >>> votes = torch.tensor([[0, 0, 2]])
    >>> softq.sqdml(p, votes, tau=0.1, reward=reward).components.mode().tolist()  # one worth five
    [2]
    """
    tau, reward = check_tau(tau), space.reward_or_natural(reward)
    references = space.references(refs, ref_weights)
    scores = space.mean_reward(references, reward)  # Σ_i w_i r(·, y_i)
    q = space.gibbs(scores, tau, prior, prior_weight)  # Q~(·|x; τ) ∝ exp( Σ_i w_i r(·, y_i) / τ )
    signature = _signature("sqdml", space, tau, reward, prior, prior_weight)
    return Target(space, q, references, tau, signature, mixed=False)


def label_smoothing(
    space: Distribution, refs: Any, epsilon: float, *, ref_weights: Tensor | None = None
) -> Target:
    """Label smoothing by ε: each reference's label with 1 - ε + ε/K, each of the others with ε/K.

    That is RAML with exact match, or token accuracy, at τ = 1 / log(1 + K (1 - ε)/ε), and on
    classes the loss is that of ``torch.nn.functional.cross_entropy(…, label_smoothing=ε)``. What
    the space forbids stays so, and the rest is renormalised.

    Args:
        space: classes or label sequences; trees have no number of labels, see `raml`.
        refs: outputs, one or several per input; every token has a label.
        epsilon: ε, from 0 (`ml`) to less than 1.
        ref_weights: ``[*B, R]``, 0 for a missing reference; equal if not given.

    >>> import softq, torch
    >>> p = softq.Categorical(torch.zeros(1, 4))
    >>> softq.label_smoothing(p, torch.tensor([2]), 0.1).components.marginals.squeeze()
    tensor([0.0250, 0.0250, 0.9250, 0.0250])

    """
    if not isinstance(space, (Categorical, LabelSequence)):
        raise IntractableError(
            f"label smoothing is for classes and label sequences, got {type(space).__name__}; use"
            " softq.raml with a temperature"
        )
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 <= epsilon < 1:
        raise TemperatureError(f"epsilon must be a number from 0 to less than 1, got {epsilon!r}")
    space.references(refs, ref_weights).hard("cannot be smoothed")
    if epsilon == 0:
        return ml(space, refs, ref_weights=ref_weights)
    tau = 1.0 / math.log1p(space.scores.shape[-1] * (1.0 - epsilon) / epsilon)
    return raml(space, refs, tau, ref_weights=ref_weights)


def softmax_margin(
    model: Distribution, refs: Any, reward: Any = None, *, ref_weights: Tensor | None = None
) -> Distribution:
    """The model in which every output scores more by what it loses: score(y) - Σ_i w_i r(y, y_i).

    The cross-entropy of `ml` with it is the softmax-margin loss, a cost-augmented likelihood
    (Gimpel and Smith 2010), here to compare RAML with:

        -score(y*) + log Σ_y exp( score(y) + r(y*, y*) - r(y, y*) ),

    an upper bound on likelihood's loss that tells outputs apart by their cost. RAML puts the reward
    into the target, this into the model's partition function. To weigh the cost, scale the reward.

    Args:
        model: a distribution; unlike a target, the result has its gradient.
        refs: as for `ml`.
        reward: one over the parts of the space; the natural one if None.
        ref_weights: ``[*B, R]``, 0 for a missing reference; equal if not given.

    >>> import softq, torch
    >>> p, gold = softq.Categorical(torch.zeros(1, 3)), torch.tensor([2])
    >>> softq.cross_entropy(softq.ml(p, gold), softq.softmax_margin(p, gold))  # log(1 + 2 e)
    tensor([1.8620])

    """
    reward = model.reward_or_natural(reward)
    cost = model.mean_part_reward(model.references(refs, ref_weights), reward)
    local, *others = model.given()
    return model.like(local - cost, *others)


def target_of(
    objective: ObjectiveName,
    space: Space,
    refs: Any,
    tau: float | None,
    reward: Any = None,
    **options: Any,
) -> Target:
    """The target of an objective known by its name.

    ``"ml"`` uses neither temperature nor reward.
    """
    if objective == "ml":
        return ml(space, refs, ref_weights=options.get("ref_weights"))
    if tau is None:
        raise TemperatureError(f"{objective} needs a temperature tau")
    return (raml if objective == "raml" else sqdml)(space, refs, tau, reward, **options)


class Target:
    """A distribution to train toward: Σ_i w_i · component_i, or one component for each example.

    It is detached from the graph.

    Attributes:
        components: point masses or distributions, one for each reference or one for all.
        references: what the user gave, and their weights.
        mixture: weights of the components, ``[*B, R]``; None if there is one for all.
        outputs: the output space; candidates to score with the model, ``[B, K, L]``, are all of
            them, or the subset of this step.
        tau: temperature; None for ML.
        signature: objective, temperature, reward and base measure.

    """

    def __init__(
        self,
        space: Space,
        components: Component,
        references: Any,
        tau: float | None,
        signature: str,
        *,
        mixed: bool,
    ) -> None:
        self.outputs: Any = getattr(components, "outputs", space)
        self.components = components
        self.references = references
        self.mixture = references.weights if mixed else None
        self.tau = tau
        self.signature = signature

    @property
    def weights(self) -> Tensor:
        """Weights of ``outputs``, float64 ``[B, K]``, 0 where one is missing.

        They sum to one; with k, on average (except "paper").
        """
        if not hasattr(self.components, "outputs"):
            raise AttributeError(
                "only targets on candidates have weights; see expected_parts(model)"
            )
        (weights,) = self.components.expected_parts(self.mixture, None)
        return weights

    def expected(self, model: Any) -> Expected | None:
        """E_target[parts] in the form that kernels take; None where it depends on the model."""
        return self.components.expected(self.mixture, model)

    def expected_parts(self, model: Distribution) -> tuple[Tensor, ...]:
        """E_target[parts] for each kind of part the model scores, ``[*B, *parts]``."""
        return self.components.expected_parts(self.mixture, model)

    def expected_score(self, model: Any) -> Tensor:
        """< E_target[parts], scores of the model >, ``[*B]``."""
        return self.components.mean_score(self.mixture, model)

    def log_prob(self, outputs: Any) -> Tensor:
        """Log-probability of ``outputs [*S,*B,*E]`` under the target, ``[*S,*B]``.

        Of sentences ``[B, N, L]``, for candidates, ``[B, N]``.
        """
        return self.components.mixture_log_prob(self.mixture, outputs)

    def reference_mass(self) -> Tensor:
        """Probability that the target gives to its references together, ``[*B]``."""
        return self.components.reference_mass(self.mixture, self.references)

    def effective_sample_size(self) -> Tensor:
        """(Σ w)² / Σ w², ``[B]``: how many equally weighted candidates this is worth."""
        return self.weights.sum(-1) ** 2 / (self.weights**2).sum(-1)

    def component_entropy(self) -> Tensor:
        """Weighted mean of the components' entropies, ``[*B]``.

        It is the constant between eq. 4 and eq. 6, and a lower bound on the entropy.
        """
        return self.components.mean_entropy(self.mixture)

    def entropy(self) -> Tensor:
        """Entropy of the target in nats, ``[*B]``."""
        if getattr(self.components, "log_base", None) is not None:
            raise IntractableError(
                f"the weights of {self.signature} are an estimate, and their entropy is not the "
                'target\'s; measure("set") without k is a distribution on the set and has one'
            )
        if self.mixture is None:
            return self.component_entropy()
        return self.components.mixture_entropy(self.mixture, self.references)

    def __repr__(self) -> str:
        return f"Target({self.signature}, {self.outputs!r})"


def _signature(
    name: str, space: Space, tau: float, reward: Any, prior: Any, prior_weight: float
) -> str:
    by = "" if prior is None else f":prior={prior_weight:g}"
    return f"{name}:tau={tau:g}:{reward.signature}{space.signature}{by}"
