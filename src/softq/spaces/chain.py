"""Linear-chain conditional random fields."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softq.checks import as_scores, check_scores
from softq.errors import DtypeError, ShapeError
from softq.kernels import chain
from softq.kernels.chain import kbest
from softq.rewards import PartReward
from softq.spaces.labels import LabelSequence
from softq.spaces.recursion import Recursion


class Chain(Recursion, LabelSequence):
    """A linear chain: label scores and scores of neighbouring labels.

    ===========  ==========================================================
    set          {0, …, K-1}^n, each example cut to its length
    parts        labels, ``emissions[*B, n, K]``; neighbours (from, to), ``transitions[K, K]`` for
                 all, or ``[*B, n-1, K, K]`` (or ``[n-1, K, K]``), where step t joins t and t+1
    output       labels, ``[*B, n]``
    cost         O(n K²) time; O(n K) memory beyond the scores
    paper        Appendix D.2.2 (sequence CRF), appendix eq. 5-6
    ===========  ==========================================================

    Args:
        emissions: scores of labels.
        transitions: scores of neighbouring labels.
        lengths: numbers of tokens ``[*B]``; all n if neither these nor a mask is given.
        mask: True on the tokens that count, ``[*B, n]``: the first ones of each row.
        start: scores of the first label, ``[K]``, added to the emissions there.
        end: scores of the last label, ``[K]``, added to the emissions there.
        validate: look at scores, lengths and outputs, and raise errors that name what is wrong.

    >>> p = Chain(torch.zeros(2, 3, 2), torch.zeros(2, 2), lengths=[3, 1])
    >>> p.log_partition.exp().round()  # eight sequences of length 3, two of length 1
    tensor([8., 2.])

    """

    transitions: Tensor
    _operator = chain.OPERATOR
    _decoder = chain.DECODER
    _several = staticmethod(kbest.topk)
    _widest_on_gpu = chain.MOST_LABELS_ON_GPU

    def __init__(
        self,
        emissions: Tensor,
        transitions: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        mask: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
        validate: bool = True,
    ) -> None:
        emissions = as_scores("emissions", emissions)
        transitions = as_scores("transitions", transitions)
        self.transitions = transitions
        super().__init__("emissions", emissions, lengths, mask, validate)
        size, labels = emissions.shape[-2:]
        steps = max(size - 1, 0)
        per_example = (*self.batch_shape, steps, labels, labels)
        if transitions.shape not in ((labels, labels), (steps, labels, labels), per_example):
            wanted = f"{[labels, labels]}, {[steps, labels, labels]} or {list(per_example)}"
            raise ShapeError(f"transitions must have shape {wanted}, got {list(transitions.shape)}")
        if transitions.dtype != emissions.dtype or transitions.device != emissions.device:
            wanted, got = (f"{x.dtype} on {x.device}" for x in (emissions, transitions))
            raise DtypeError(f"transitions must be like the emissions, {wanted}, got {got}")
        if validate:
            self._forbids |= check_scores("transitions", transitions, self._real_steps)
        for name, border, last in (("start", start, False), ("end", end, True)):
            if border is not None:
                self._add_border(name, border, last)

    def _real_steps(self) -> Tensor | None:
        if self.transitions.dim() == 2 or self.real is None:
            return None
        real = self.real[..., 1:, None, None]
        return real if self.transitions.dim() > 3 else real.flatten(0, -4).any(0)

    def _add_border(self, name: str, border: Tensor, last: bool) -> None:
        """Add the scores of the first or of the last label to the emissions there."""
        border = as_scores(name, border)
        if border.shape != self.scores.shape[-1:]:
            raise ShapeError(
                f"{name} must have shape {list(self.scores.shape[-1:])}, got {list(border.shape)}"
            )
        self._forbids |= self.validate and check_scores(name, border)
        place = self.all_lengths().unsqueeze(-1) - 1 if last else 0
        here = torch.arange(self.event_shape[0], device=self.device) == place
        added = self._scores + border.to(self._scores)
        self._scores = torch.where(here.unsqueeze(-1), added, self._scores)

    @property
    def emissions(self) -> Tensor:
        """Label scores, those of the borders added."""
        return self.scores

    def given(self) -> tuple[Tensor, ...]:
        return self.scores, self.transitions

    @property
    def pair_marginals(self) -> Tensor:
        """Probability of each pair of neighbouring labels, ``[*B, n-1, K, K]`` (0 on padding)."""
        if self.transitions.dim() > 2:
            return self._statistics()[1]
        # One table for all steps gives their sum: ask again step by step.
        steps = self.transitions.expand(max(self.event_shape[0] - 1, 0), -1, -1)
        return Chain(self.scores, steps, self.lengths, validate=False)._statistics()[1]

    def score(self, outputs: Tensor) -> Tensor:
        local = super().score(outputs)
        labels = self.zero_padding(outputs).long()
        pair = labels[..., :-1] * self.scores.shape[-1] + labels[..., 1:]
        table = self.transitions.flatten(-2).expand(*pair.shape, -1)
        pairs = table.gather(-1, pair.unsqueeze(-1)).squeeze(-1)
        if self.real is not None:
            pairs = pairs.masked_fill(~self.real[..., 1:], 0.0)
        return local + pairs.sum(-1)

    def part_counts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        labels = self.indicator(outputs)
        pairs = labels[..., :-1, :].unsqueeze(-1) * labels[..., 1:, :].unsqueeze(-2)
        return labels, pairs if self.transitions.dim() > 2 else pairs.sum(-3, keepdim=True)

    def _expected_pairs(self, *, summed: bool) -> Tensor:
        return self._statistics()[1].sum(-3, keepdim=True) if summed else self.pair_marginals

    @torch.no_grad()
    def mbr(self, reward: PartReward | None = None) -> Tensor:
        if self.constrained:  # per-position bests may not fit together
            return super().mbr(reward)
        return self.zero_padding(self.expected_rewards(reward).argmax(-1))

    def like(self, *given: Tensor) -> Chain:
        return type(self)(given[0], given[1], self.lengths, validate=False)

    def _arguments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Lengths ``[B]``, emissions ``[B,n,K]``, transitions ``[1 or B, 1 or n-1, K, K]``."""
        table = self.transitions
        shared = (1,) * (4 - table.dim()) + table.shape
        table = self.flat(table) if table.dim() > 3 else table.reshape(shared)
        return self.flat(self.all_lengths()), self.flat(self.scores), table
