"""Label sequences: what chains share with independent labels, and the independent labels."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.checks import as_scores
from softq.errors import ShapeError
from softq.kernels.chain import kbest
from softq.kernels.operator import Expected
from softq.numerics import matmul
from softq.rewards import PartReward, TokenAccuracy
from softq.spaces.base import Component
from softq.spaces.classes import Factorised
from softq.spaces.distribution import Distribution, versions
from softq.spaces.references import OutputReferences


class _LabelRewards(NamedTuple):
    """Rewards of the labels of a position by the reference's label there, for all positions."""

    rows: np.ndarray[Any, Any]
    """``[K + 1, K]``: r(·, y), and 0 for a label that is not known."""
    labels: Tensor
    """``[*B, *R, n]``; K where it is not known."""

    def squeeze(self, axis: int) -> _LabelRewards:
        """The same without a dimension of size 1 of the labels."""
        return self._replace(labels=self.labels.squeeze(axis))


class LabelSequence(Distribution):
    """A distribution over label sequences: a score for each position, and of neighbours if any."""

    natural_reward = TokenAccuracy
    transitions: Tensor | None = None
    """Scores of neighbours, which broadcast to ``[*B, n-1, K, K]``; None: they are independent."""

    def __init__(
        self,
        name: str,
        scores: Tensor,
        lengths: Tensor | Sequence[int] | None,
        mask: Tensor | None,
        validate: bool,
    ) -> None:
        if scores.dim() < 2 or scores.shape[-1] == 0:
            raise ShapeError(
                f"{name} must have shape [*B, n, K] with K >= 1, got {list(scores.shape)}"
            )
        shape, size = scores.shape[:-2], scores.shape[-2:-1]
        super().__init__(scores, shape, size, lengths, mask, validate=validate, name=name)

    def with_scores(self, local: Tensor, *others: Tensor) -> Distribution:
        from softq.spaces.chain import Chain  # a chain is a label sequence, too

        shape, between = local.shape[:-2], list(others)
        if self.constrained:
            local = self._keep_forbidden(local)
            if self.transitions is not None:  # 0 in the place of every score but -inf
                table = self.transitions.detach()
                between.append(torch.zeros_like(table).masked_fill(table == -math.inf, -math.inf))
        lengths = self._lengths_for(shape)
        if not between:
            return Independent(local, lengths, validate=False)
        per_example = len(self.batch_shape) + 3
        between = [self._for_batch(t, shape) if t.dim() == per_example else t for t in between]
        transitions = between[0] + between[1] if len(between) > 1 else between[0]
        return Chain(local, transitions, lengths, validate=False)

    def expectation(self, model: Distribution) -> tuple[Tensor, ...]:
        transitions = getattr(model, "transitions", None)
        if transitions is None:
            return (self.marginals,)
        return self.marginals, self._expected_pairs(summed=transitions.dim() == 2)

    @abstractmethod
    def _expected_pairs(self, *, summed: bool) -> Tensor:
        """Probability of each pair of neighbouring labels, ``[*B, n-1, K, K]``.

        If ``summed``, over the steps, ``[*B, 1, K, K]``.
        """

    # --- as a space of targets ----------------------------------------------------------------

    def point_masses(self, references: OutputReferences) -> Component:
        if not references.soft or references.partial:
            return super().point_masses(references)
        lengths = self._lengths_for(references.weights.shape)
        return Independent(references.values.log(), lengths, validate=False)

    def rewards(self, references: OutputReferences, reward: PartReward) -> Any:
        if references.soft or not reward.position_free or self.constrained:
            return super().rewards(references, reward)
        count, labels = self.scores.shape[-1], references.values
        rows = reward.on_parts(torch.eye(count + 1, count, dtype=torch.float64)).numpy()
        if references.partial is not False:
            labels = labels.masked_fill(labels < 0, count)
        return _LabelRewards(rows, labels)

    def gibbs(self, scores: Any, tau: float, prior: Any, prior_weight: float) -> Component:
        if isinstance(scores, _LabelRewards):
            if prior is None:
                return _RewardedLabels(self, scores._replace(rows=scores.rows / tau))
            scores = _RewardedLabels(self, scores).scores
        return super().gibbs(scores, tau, prior, prior_weight)


class Independent(Factorised, LabelSequence):
    """Label sequences whose positions are independent: a tagger with one softmax per token.

    ===========  ==========================================================
    set          {0, …, K-1}^n, each example cut to its length
    parts        labels, ``scores[*B, n, K]``
    output       labels, ``[*B, n]``
    cost         O(n K) time and memory
    paper        the payoff q of token accuracy factorises so (Appendix D.2.2)
    ===========  ==========================================================

    ``lengths [*B]`` are numbers of tokens, or ``mask [*B, n]`` is True on them.

    >>> p = Independent(torch.zeros(1, 3, 2), lengths=torch.tensor([2]))
    >>> p.entropy().item()  # two fair coins: log 4
    1.386...
    """

    def __init__(
        self,
        scores: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        mask: Tensor | None = None,
        validate: bool = True,
    ) -> None:
        super().__init__("scores", as_scores("scores", scores), lengths, mask, validate)

    def _expected_pairs(self, *, summed: bool) -> Tensor:
        # P(y_t = i, y_{t+1} = j) = μ_t(i) μ_{t+1}(j): no recursion
        before, after = self.marginals[..., :-1, :], self.marginals[..., 1:, :]
        if summed:
            return matmul(before.transpose(-1, -2), after).unsqueeze(-3)
        return before.unsqueeze(-1) * after.unsqueeze(-2)

    def _topk(self, k: int) -> tuple[Tensor, Tensor]:
        if self.scores.is_cuda:  # where modes need no copy of the scores
            return super()._topk(k)
        # Of the k best no position has a label beyond its own k best: a chain of few labels.
        scores, labels = self.flat(self.scores).topk(min(k, self.scores.shape[-1]), -1)
        joined = scores.new_zeros(1, 1, scores.shape[-1], scores.shape[-1])
        ranks, losses = kbest.topk(self.flat(self.all_lengths()), scores, joined, k)
        outputs = labels.unsqueeze(1).expand(-1, k, -1, -1).gather(-1, ranks.unsqueeze(-1))
        shape = (*self.batch_shape, k)
        return outputs.reshape(*shape, *self.event_shape), losses.reshape(shape)

    def like(self, *given: Tensor) -> Independent:
        return Independent(given[0], self.lengths, validate=False)


class _RewardedLabels(Independent):
    """Independent labels whose scores depend on the reference's label alone: q(·|y_i; τ).

    There are only K + 1 different rows of scores. Where such a row leaves one mass to all labels
    but the reference's, a chain's kernel takes it from there, and nothing of the size of the scores
    is made.
    """

    def __init__(self, space: LabelSequence, rewards: _LabelRewards) -> None:
        shape = rewards.labels.shape
        lengths = space._lengths_for(shape[:-1])
        Distribution.__init__(self, space.scores, shape[:-1], shape[-1:], lengths, validate=False)
        self._rewards = rewards

    @property
    def scores(self) -> Tensor:
        return self._cached(
            "scores", lambda: self._on_positions(torch.from_numpy(self._rewards.rows))
        )

    def _marginals(self) -> Tensor:
        return self._on_positions(torch.from_numpy(self._rewards.rows).softmax(1))

    def _on_positions(self, rows: Tensor) -> Tensor:
        """The row ``[K + 1, K]`` of each position's label, ``[*B, *R, n, K]``; 0 on padding."""
        found = rows.to(dtype=self.dtype, device=self.device)[self._rewards.labels]
        return found if self.real is None else found * self.real.unsqueeze(-1)

    def _versions(self) -> tuple[int, ...] | None:
        return versions(self._rewards.labels)  # which decide the scores

    def expected(self, weights: Tensor | None, model: Distribution) -> Expected | None:
        rows, labels = self._rewards
        peaks = _peaks(rows.tobytes(), rows.shape, self.device)
        if peaks is None:
            return super().expected(weights, model)
        if weights is None:
            return Expected(model.flat(labels).unsqueeze(1), None, peaks)
        return Expected(model.flat(labels), model.flat(weights), peaks)


@lru_cache(maxsize=64)
def _peaks(rows: bytes, shape: tuple[int, int], device: torch.device) -> Tensor | None:
    """`Expected.peaks` of rows of scores, made once for a reward and a temperature; None: none."""
    law = torch.from_numpy(np.frombuffer(rows).reshape(shape).copy()).softmax(1).numpy()
    own = np.eye(*shape, dtype=bool)
    lowest, highest = law.min(1, where=~own, initial=1.0), law.max(1, where=~own, initial=0.0)
    if not (lowest >= highest).all():
        return None
    more = (law - lowest[:, None]).sum(1, where=own)  # what the reference's label has beyond
    return torch.from_numpy(np.stack([lowest, more], 1)).to(device).unsqueeze(0)
