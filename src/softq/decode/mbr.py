"""Minimum Bayes risk: of several sentences, the one of the highest expected reward."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softq.errors import OutputError, RewardError, ShapeError, WeightError
from softq.numerics import inner
from softq.rewards import Reward
from softq.sentences import Sentences
from softq.spaces import Candidates


@dataclass(frozen=True, eq=False)
class Mbr:
    """What `mbr` chose for each of B examples."""

    index: Tensor
    """Which candidate, ``[B]``."""
    sentences: Sentences
    """Its tokens ``[B, L]`` and length ``[B]``."""
    expected_reward: Tensor
    """Σ_s w_s r(y, y_s), float64 ``[B]``."""
    expected_rewards: Tensor
    """The same of every candidate, float64 ``[B, S]``; -inf where one is missing."""


def mbr(
    candidates: Candidates,
    reward: Reward,
    *,
    evidence: Candidates | None = None,
    weights: Tensor | None = None,
) -> Mbr:
    """The candidate y of the highest expected reward Σ_s w_s r(y, y_s); the first of several such.

    With samples from P(y|x) as evidence this estimates the Bayes rule, argmax_y E[r(y, Y) | x], the
    decision that SQDML trains a model to make (paper, §3).

    Args:
        candidates: to choose from, ``[B, S, L]``.
        reward: one that is ``pairwise``.
        evidence: what may be right, ``[B, R, M]``; the candidates themselves if not given. A
            sentence that is there twice counts twice, one that is missing not at all.
        weights: w, ``[B, R]``, not negative, normalised per example over what is there; equal ones
            if not given.

    >>> from softq.rewards import TokenAccuracy
    >>> drawn = Candidates(*Sentences.pack([[[4, 5], [4, 6], [7, 6]]]))
    >>> found = mbr(drawn, TokenAccuracy())
    >>> found.index.tolist(), found.sentences.unpack()
    ([1], [[4, 6]])

    """
    if not reward.pairwise:
        raise RewardError(
            f"the expected reward needs one value per reference, and {reward!r} gives one for all "
            "together"
        )
    if evidence is None:
        evidence = candidates
    for what, sentences in (("candidate", candidates), ("sentence of evidence", evidence)):
        nothing = ~sentences.present.any(1)
        if bool(nothing.any()):
            raise OutputError(
                f"every example needs a {what}, example {int(nothing.nonzero()[0])} has none"
            )
    values = reward(candidates.tokens, candidates.lengths, evidence.tokens, evidence.lengths)
    shares = _shares(evidence.present, weights).to(values.device)
    expected = inner(shares.unsqueeze(1), values, (2,)).masked_fill(
        ~candidates.present.to(values.device), -math.inf
    )
    best = expected.argmax(1, keepdim=True)
    chosen = candidates.select(best.to(candidates.tokens.device))
    return Mbr(
        best.squeeze(1),
        Sentences(chosen.tokens.squeeze(1), chosen.lengths.squeeze(1)),
        expected.gather(1, best).squeeze(1),
        expected,
    )


def _shares(present: Tensor, weights: Tensor | None) -> Tensor:
    """Weights ``[B, R]`` in float64 that sum to one over what is there."""
    if weights is None:
        weights = torch.ones_like(present, dtype=torch.float64)
    if weights.shape != present.shape:
        raise ShapeError(
            f"weights must have shape {list(present.shape)}, one per sentence of evidence, "
            f"got {list(weights.shape)}"
        )
    weights = weights.to(present.device, torch.float64).masked_fill(~present, 0.0)
    total = weights.sum(1, keepdim=True)
    if bool((weights < 0).any()) or not bool(((total > 0) & (total < math.inf)).all()):
        raise WeightError(
            "weights must be finite and not negative, with a positive sum over the evidence of "
            "each example"
        )
    return weights / total
