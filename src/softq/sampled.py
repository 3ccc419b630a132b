"""Targets on candidate sets: weights on sentences that were sampled, for rewards that do not split over parts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from softq.checks import check_weights
from softq.distributions import Candidates
from softq.errors import EstimatorError, IntractableError, RewardError, WeightError
from softq.importance import Estimator, check_estimator, choose_subset, effective_sample_size, log_base_measure
from softq.rewards import Callable, Reward
from softq.sentences import MISSING, References, Sentences, aligned, as_references


class SampledTarget:
    """Weights on candidates to train toward: the loss is - Σ_s w_s log P(y_s|x) over ``outputs``.

    Made by `softq.ml`, `softq.raml` and `softq.sqdml` on a candidate set; ``signature`` names objective, temperature, reward and
    estimator. Everything is detached from the graph.
    """

    def __init__(
        self, outputs: Candidates, weights: Tensor, is_reference: Tensor, tau: float | None, signature: str, *, complete: bool
    ) -> None:
        self.outputs = outputs
        """Candidates to score with the model, ``[B, K, L]``: all, or the subset of this step."""
        self.weights = weights
        """float64 ``[B, K]``, 0 where a candidate is missing; they sum to one, on average where only k are used (except "paper")."""
        self.is_reference = is_reference
        """Which outputs are references, bool ``[B, K]``."""
        self.tau = tau
        self.signature = signature
        self._complete = complete  # a distribution on the set, not an estimate of one

    def effective_sample_size(self) -> Tensor:
        """(Σ w)² / Σ w², ``[B]``: how many equally weighted candidates this is worth."""
        return effective_sample_size(self.weights)

    def reference_mass(self) -> Tensor:
        """Share of the weight that lies on references, ``[B]``."""
        return (self.weights * self.is_reference).sum(1) / self.weights.sum(1)

    def log_prob(self, sentences: Candidates | Sentences) -> Tensor:
        """Log of the weight on each of these sentences ``[B, N, L]``, ``[B, N]``; -inf off the candidates."""
        other = sentences.sentences if isinstance(sentences, Candidates) else sentences
        return torch.einsum("bk,bkn->bn", self.weights, self.outputs.equals(other).double()).log()

    def entropy(self) -> Tensor:
        """Entropy of the target on its set in nats, ``[B]``."""
        if not self._complete:
            raise IntractableError(
                f"the weights of {self.signature} are an estimate, and their entropy is not the target's; "
                'estimator="set" without k is a distribution on the set and has one'
            )
        return -torch.xlogy(self.weights, self.weights).sum(1)

    def __repr__(self) -> str:
        return f"SampledTarget({self.signature}, {self.outputs!r})"


class ScoredCandidates:
    """Candidates, references and the reward of each pair: what the equations of `softq.targets` are written in."""

    def __init__(
        self, cands: Candidates, refs: References, reward: Reward | None, ref_weights: Tensor | None, estimator: Estimator, k: int | None
    ) -> None:
        check_estimator(estimator, k, cands)
        self.cands = cands
        self.estimator = estimator
        self.k = k
        self.references, self.ref_weights = candidate_references(cands, refs, ref_weights)
        self.equals = cands.equals(self.references)  # [B, S, R]
        self.reward = as_reward(reward)
        if not self.reward.pairwise and bool((self.ref_weights.amax(1) > self.references.present.sum(1).reciprocal() + 1e-9).any()):
            raise WeightError(
                f"{type(self.reward).__name__} takes all references together and cannot weigh them: ref_weights must be equal or 0"
            )
        # Both are checked already, so that the reward need not do it again as it does when it is called.
        self.rewards = self.reward.checked_score(*aligned(cands.sentences, self.references))  # r(y_s, y_i): [B, S, R]
        self._base = log_base_measure(cands, estimator)
        self._counted = self._base > -math.inf
        nonempty = self._counted.any(1)
        if not bool(nonempty.all()):
            raise EstimatorError(f"every example needs a candidate, example {int((~nonempty).nonzero()[0])} has none")

    def softmax(self, log_payoff: Tensor) -> Tensor:
        """exp(log_payoff) over the candidates, ``[B, S, …]``, normalised as the estimator has it."""
        return torch.softmax(log_payoff + self._base.unsqueeze(2), 1)

    def log_normaliser(self, log_payoff: Tensor) -> Tensor:
        """Log of Σ exp(log_payoff) over the set, or its estimate over all sentences, ``[B, …]``."""
        return torch.logsumexp(log_payoff + self._base.unsqueeze(2), 1)

    def target(self, weights: Tensor, tau: float, objective: str, generator: torch.Generator | None) -> SampledTarget:
        """The target with these weights ``[B, S]``, or k of them."""
        signature = f"{objective}:tau={tau:g}:{self.reward.signature}:estimator={self.estimator}"
        is_reference = self.equals.any(2)
        if self.k is None:
            return SampledTarget(self.cands, weights, is_reference, tau, signature, complete=self.estimator == "set")
        index, chance = choose_subset(is_reference, self._counted, self.k, generator)
        rows, nobody = index.clamp(min=0), index < 0
        chosen = is_reference.gather(1, rows) & ~nobody
        kept = weights.gather(1, rows).masked_fill(nobody, 0.0)
        if self.estimator == "set":  # each candidate stands for those that were not chosen, so that the mean is right
            if bool((chance == 0).any()):
                example = int((chance == 0).nonzero()[0])
                raise EstimatorError(f"k={self.k} leaves no place for candidates beside the references of example {example}; raise k")
            kept = torch.where(chosen, kept, kept / chance.unsqueeze(1))
        complete = self.estimator == "set" and bool((chance == 1).all())
        return SampledTarget(self.cands.select(index), kept, chosen, tau, f"{signature}:k={self.k}", complete=complete)


def point_masses(cands: Candidates, refs: References, ref_weights: Tensor | None) -> SampledTarget:
    """Each reference's weight on the candidate that equals it."""
    references, weights = candidate_references(cands, refs, ref_weights)
    equals = cands.equals(references) & ~cands.repeats().unsqueeze(2)
    missing = (weights > 0) & ~equals.any(1)
    if bool(missing.any()):
        b, r = missing.nonzero()[0].tolist()
        raise EstimatorError(f"reference {r} of example {b} is not among the candidates; add it with Candidates.with_references")
    return SampledTarget(cands, torch.einsum("bsr,br->bs", equals.double(), weights), equals.any(2), None, "ml", complete=True)


def candidate_references(cands: Candidates, refs: References, ref_weights: Tensor | None) -> tuple[Sentences, Tensor]:
    """References ``[B, R, M]`` on the candidates' device, and their weights ``[B, R]``, which sum to one."""
    references = as_references(refs)
    if len(references.tokens) != len(cands.tokens):
        raise EstimatorError(
            f"references must be those of the {len(cands.tokens)} examples of the candidates, got {len(references.tokens)}"
        )
    references = Sentences(references.tokens.to(cands.tokens.device), references.lengths.to(cands.tokens.device))
    if ref_weights is None:
        present = references.present.double()
        return references, present / present.sum(1, keepdim=True)
    weights = check_weights(ref_weights, references.lengths.shape).to(cands.tokens.device).double()
    if bool(((weights > 0) & ~references.present).any()):
        b, r = ((weights > 0) & ~references.present).nonzero()[0].tolist()
        raise WeightError(f"ref_weights must be 0 for a missing reference, got {float(weights[b, r]):g} for reference {r} of example {b}")
    # A reference without weight is one that is missing: it must not clip, fill a subset or count as a reference.
    return references._replace(lengths=references.lengths.masked_fill(weights == 0, MISSING)), weights


def as_reward(reward: object) -> Reward:
    """A reward from itself or from a plain function of two token lists."""
    if isinstance(reward, Reward):
        return reward
    if callable(reward) and not isinstance(reward, type):
        return Callable(reward)
    if reward is None:
        raise RewardError("candidate sets have no natural reward: give one, such as softq.rewards.SentenceBLEU()")
    raise RewardError(f"reward must be one of softq.rewards or a function of two token lists, got {reward!r}")
