"""What a training step is trained toward: candidates as the model generates them, and their weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.integrations.transformers.arguments import RewardAugmentedArguments
from softq.integrations.transformers.scoring import ScoredCandidates
from softq.integrations.transformers.step_statistics import statistics_of
from softq.integrations.transformers.tokens import Ends
from softq.neural.target_maker import RewardedCandidates
from softq.sentences import MISSING, Sentences
from softq.spaces import Candidates


@dataclass(frozen=True)
class StepTarget:
    """What a step is trained toward."""

    scored: ScoredCandidates
    weights: Tensor
    """float32 ``[B, K]``, 0 where a candidate is missing."""
    signature: str
    log_base: Tensor | None = None
    """float32 ``[B, K]``: the base measure by which the model is renormalised on the candidates;
    -inf: left out. None: the model has its own probabilities."""
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    """Of each row, ``[B]``, to be logged; NaN where there is nothing to say."""

    def to(self, device: torch.device | str) -> StepTarget:
        """The same on another device."""
        base = self.log_base
        return replace(
            self,
            scored=self.scored.to(device),
            weights=self.weights.to(device, non_blocking=True),
            log_base=None if base is None else base.to(device, non_blocking=True),
        )

    def cross_entropy(self, log_probs: Tensor) -> Tensor:
        """- Σ_s w_s log P(y_s), summed over rows, of the model's log-probabilities ``[B, K]``.

        With ``log_base``, P is renormalised on the candidates: P(y_s) base_s / Σ P(y_t) base_t.
        """
        if self.log_base is not None:
            scores = log_probs.masked_fill(self.log_base == -math.inf, 0.0) + self.log_base
            nothing = (self.log_base == -math.inf).all(1, keepdim=True)
            total = scores.masked_fill(nothing, 0.0).logsumexp(1, keepdim=True)
            log_probs = (scores - total).masked_fill(self.log_base == -math.inf, 0.0)
        return -(self.weights * log_probs).sum()


class WeightRules(NamedTuple):
    """Of `RewardAugmentedArguments`, those that weights follow from, to be sent to a worker and back."""

    prior_weight: float
    per_token: bool
    """Whether the prior counts per token."""
    normalize_model: bool
    standardized: bool
    multiple: int | None
    """Of the number of tokens."""

    @classmethod
    def of(cls, given: RewardAugmentedArguments) -> WeightRules:
        """Those of a trainer's arguments."""
        return cls(
            given.prior_weight,
            given.length_normalization in ("prior", "both"),
            given.normalize_model,
            given.standardize_rewards,
            given.pad_to_multiple_of,
        )


@dataclass(frozen=True)
class PreparedStep:
    """What a step is trained toward, but for the prior, which only the model can tell."""

    rewarded: RewardedCandidates
    ends: Sequence[Ends]
    rules: WeightRules
    sampled: Candidates | None
    """The model's own samples, if there are any."""

    @property
    def scored(self) -> ScoredCandidates:
        """All candidates as the model generates them, in their order; those of no base measure, such as repetitions, are missing."""
        cands = self.rewarded.candidates
        lengths = cands.lengths.masked_fill(cands.log_base() == -math.inf, MISSING)
        return self._with_ends(Sentences(cands.tokens, lengths))

    def _with_ends(self, texts: Sentences) -> ScoredCandidates:
        return add_ends(texts, self.ends, self.rules.multiple)

    @property
    def known_log_probs(self) -> Tensor | None:
        """Log-probabilities ``[B, S]`` under the model that sampled all of them; None otherwise."""
        cands = self.rewarded.candidates
        found = cands.log_model
        if found is None or bool((found.isnan() & cands.present).any()):
            return None
        return found.nan_to_num()

    def weigh(self, log_prior: Tensor | None = None, *, keep_all: bool = False) -> StepTarget:
        """The target.

        Args:
            log_prior: log-probabilities ``[B, S]`` of all candidates under the prior, on the CPU.
            keep_all: keeps candidates that weigh nothing in their places.

        """
        rewarded, rules = self.rewarded, self.rules
        if log_prior is not None and rules.per_token:
            log_prior = log_prior / self.scored.lengths.clamp(min=1)
        target = rewarded.target(log_prior, rules.prior_weight)
        weights = target.weights.masked_fill(rewarded.idle.unsqueeze(1), 0.0)
        outputs, kept, base = target.outputs, weights > 0, None
        if rules.normalize_model:
            base = outputs.log_base().masked_fill(rewarded.idle.unsqueeze(1), -math.inf)
            kept = base > -math.inf
        statistics = statistics_of(rewarded, self.sampled)
        if rewarded.reward is not None:
            ess = target.effective_sample_size() / (outputs.log_base() > -math.inf).sum(1)
            statistics["ess"] = ess.masked_fill(rewarded.idle, math.nan)
        signature = target.signature + ":standardized" * rules.standardized
        if keep_all:
            kept = torch.ones_like(kept)
        # with the first in place, so that a batch without anything to learn can be run, too
        kept[:, 0] |= ~kept.any() & outputs.present[:, 0]
        order = (~kept).long().argsort(dim=1, stable=True)[:, : max(1, int(kept.sum(1).max()))]
        missing = ~kept.gather(1, order)
        texts = outputs.select(order.masked_fill(missing, -1)).sentences
        weights = weights.gather(1, order).float()
        if base is not None:
            base = base.gather(1, order).masked_fill(missing, -math.inf).float()
        return StepTarget(self._with_ends(texts), weights, signature, base, statistics)


def add_ends(
    texts: Sentences, ends: Sequence[Ends], multiple: int | None = None
) -> ScoredCandidates:
    """Texts ``[B, K, L]`` with special tokens around those of each row, perhaps as wide as a multiple of a width."""
    before, after = (
        Sentences.pack([list(part) for part in side]) for side in zip(*ends, strict=True)
    )
    starts = before.lengths.unsqueeze(1)  # of the text, [B, 1]
    stops = starts + texts.lengths.clamp(min=0)  # [B, K]
    full = (stops + after.lengths.unsqueeze(1)).masked_fill(~texts.present, MISSING)
    copies = texts.lengths.shape[1]
    head, tail = (side.tokens.unsqueeze(1).expand(-1, copies, -1) for side in (before, after))
    together = pad(torch.cat([head, texts.tokens, tail], 2), (0, 1))  # one place at least
    # where each token of a candidate stands in there, [B, K, T]
    width = max(1, int(full.max()))
    place = torch.arange(width + -width % (multiple or 1)).expand(*full.shape, -1)
    first_of_text, first_of_tail = head.shape[2], head.shape[2] + texts.tokens.shape[2]
    of_text = first_of_text + place - starts.unsqueeze(2)
    of_tail = first_of_tail + place - stops.unsqueeze(2)
    behind = torch.where(place < stops.unsqueeze(2), of_text, of_tail)
    at = torch.where(place < starts.unsqueeze(2), place, behind)
    return ScoredCandidates(together.gather(2, at.clamp(max=together.shape[2] - 1)), full)
