"""From the rewards of candidates to the weights they are trained with: three estimators of a target over all sentences.

The target is q(y) ∝ exp(g(y)), with g = r(y, y_i)/τ for RAML and the mean of that over references for SQDML. Given candidates y_s,

    set          w_s = exp(g_s) / Σ_u exp(g_u): the softmax over the set, as if it were the whole space (paper, Appendix C)
    paper        the same weights, of which a step uses the references and a uniform subset up to k, not renormalised
    importance   w_s ∝ exp(g_s) / (expected number of times that y_s is proposed): self-normalised importance sampling (Appendix D.2.4)

`docs/estimators.md` measures how far each is from the target over all sentences.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from softq.distributions import Candidates
from softq.errors import EstimatorError

Estimator = Literal["set", "paper", "importance"]


def check_estimator(estimator: str, k: int | None, cands: Candidates) -> None:
    """The estimator exists, and its options fit the candidates."""
    size = cands.tokens.shape[1]
    if estimator not in get_args(Estimator):
        raise EstimatorError(f"estimator must be one of {', '.join(get_args(Estimator))}, got {estimator!r}")
    if estimator == "paper" and k is None:
        raise EstimatorError(
            'estimator="paper" needs k, how many candidates a step uses (the paper: 10 of 100 for RAML, 50 of 500 for SQDML)'
        )
    if estimator == "importance" and k is not None:
        raise EstimatorError('estimator="importance" uses every draw; ask the sampler for fewer instead of giving k')
    if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
        raise EstimatorError(f"k must be a whole number from 1, got {k!r}")
    if k is not None and k > size:
        raise EstimatorError(f"k must not exceed the number of candidates, got k={k} for a size of {size}")
    if estimator == "importance" and cands.log_proposal is None:
        raise EstimatorError(
            'estimator="importance" needs candidates with log_proposal, which lists and beams do not have; use estimator="set"'
        )


def log_base_measure(cands: Candidates, estimator: Estimator) -> Tensor:
    """What to add to g before the softmax over candidates, ``[B, S]``: -inf for those that do not count.

    For a set, 0 on each different sentence. For importance weights, minus the log of how often the sentence is expected among the
    candidates: once if it is certain, else the number of draws times its probability per draw.
    """
    if estimator == "importance" and cands.log_proposal is not None:
        draws = cands.present.sum(1) if cands.draws is None else cands.draws
        drawn = cands.log_proposal + draws.clamp(min=1).to(cands.log_proposal.dtype).log().unsqueeze(1)
        bad = cands.present & ~cands.certain & ~torch.isfinite(drawn)
        if bool(bad.any()):
            b, s = bad.nonzero()[0].tolist()
            raise EstimatorError(f"log_proposal must be finite, got {float(cands.log_proposal[b, s])} for candidate {s} of example {b}")
        expected = torch.where(cands.certain, 0.0, drawn)
        return (-expected).masked_fill(~cands.present, -math.inf)
    left_out = ~cands.present | cands.repeats()
    return torch.zeros(left_out.shape, dtype=torch.float64, device=left_out.device).masked_fill_(left_out, -math.inf)


def effective_sample_size(weights: Tensor) -> Tensor:
    """(Σ w)² / Σ w² over the last dimension: how many equally weighted candidates are worth as much.

    >>> effective_sample_size(torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]))
    tensor([4., 1.])
    """
    return weights.sum(-1) ** 2 / (weights**2).sum(-1)


def choose_subset(is_reference: Tensor, counted: Tensor, k: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """References and a uniform choice of the rest, up to k in all.

    Returns:
        index ``[B, k]`` into the candidates, -1 where there are fewer than k, and the chance ``[B]`` that a candidate which is no
        reference was chosen.

    """
    must = is_reference & counted
    fixed = must.sum(1)
    if bool((fixed > k).any()):
        example = int((fixed > k).nonzero()[0])
        raise EstimatorError(f"k must hold all references, got k={k} for the {int(fixed[example])} references of example {example}")
    device = generator.device if generator is not None else counted.device
    rank = torch.rand(counted.shape, dtype=torch.float64, generator=generator, device=device).to(counted.device)
    rank, index = rank.masked_fill_(must, 2.0).masked_fill_(~counted, -1.0).topk(k, dim=1)
    rest = counted.sum(1) - fixed
    chance = ((k - fixed) / rest.clamp(min=1)).clamp(max=1.0).double()
    return index.masked_fill(rank < 0, -1), torch.where(rest == 0, 1.0, chance)
