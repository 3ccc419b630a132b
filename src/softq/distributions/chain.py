"""Linear-chain conditional random fields."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from softq.checks import bad_score, check_scores_dtype
from softq.distributions.base import Distribution
from softq.distributions.labels import Independent, LabelSequence
from softq.errors import DtypeError, ShapeError
from softq.kernels import chain as kernels
from softq.kernels import cross_entropy, log_partition, marginals
from softq.kernels.counts import pair_counts
from softq.kernels.scan import find_bad_row


class Chain(LabelSequence):
    """A linear chain: label scores and scores of neighbouring labels.

    ===========  ==========================================================
    set          {0, …, K-1}^n, each example cut to its length
    parts        labels, ``emissions[*B, n, K]``; neighbours (from, to), ``transitions[K, K]`` for all, or
                 ``[*B, n-1, K, K]`` (or ``[n-1, K, K]``), where step t joins positions t and t+1
    output       labels, ``[*B, n]``
    cost         O(n K²) time; O(n K) memory beyond the scores
    paper        Appendix D.2.2 (sequence CRF), appendix eq. 5-6
    ===========  ==========================================================

    Scores at the borders go into the emissions: add them to ``emissions[..., 0, :]`` or at each last position.

    >>> p = Chain(torch.zeros(2, 3, 2), torch.zeros(2, 2), lengths=torch.tensor([3, 1]))
    >>> p.log_partition.exp().round()  # eight sequences of length 3, two of length 1
    tensor([8., 2.])
    """

    transitions: Tensor

    def __init__(self, emissions: Tensor, transitions: Tensor, lengths: Tensor | None = None, *, validate: bool = True) -> None:
        super().__init__("emissions", emissions, lengths, validate)
        check_scores_dtype("transitions", transitions)
        size, labels = emissions.shape[-2:]
        steps = max(size - 1, 0)
        per_example = (*self.batch_shape, steps, labels, labels)
        if transitions.shape not in ((labels, labels), (steps, labels, labels), per_example):
            wanted = f"{[labels, labels]}, {[steps, labels, labels]} or {list(per_example)}"
            raise ShapeError(f"transitions must have shape {wanted}, got {list(transitions.shape)}")
        if transitions.dtype != emissions.dtype or transitions.device != emissions.device:
            wanted, got = (f"{x.dtype} on {x.device}" for x in (emissions, transitions))
            raise DtypeError(f"transitions must be like the emissions, {wanted}, got {got}")
        if validate and transitions.numel():
            self._check_transitions(transitions, steps)
        self.transitions = transitions

    def _check_transitions(self, transitions: Tensor, steps: int) -> None:
        if transitions.dim() == 2:
            place = find_bad_row(None, transitions.unsqueeze(0))
            if place is not None:
                raise bad_score("transitions", transitions, place[1:])
            return
        per_example = transitions.expand(*self.batch_shape, *transitions.shape[-3:])
        self._check_rows("transitions", per_example, (self._flat_lengths() - 1).clamp(0, steps))

    @property
    def emissions(self) -> Tensor:
        """Label scores, as given."""
        return self.scores

    @property
    def log_partition(self) -> Tensor:
        return self._cached("log_partition", lambda: log_partition(kernels.STRUCTURE, *self._arguments()).reshape(self.batch_shape))

    @property
    def marginals(self) -> Tensor:
        return self._statistics()[0].reshape(self.scores.shape)

    @property
    def pair_marginals(self) -> Tensor:
        """Probability of each pair of neighbouring labels, ``[*B, n-1, K, K]`` (0 on padding)."""
        found = self._statistics()[1]
        if self.transitions.dim() == 2:  # one table for all steps gives their sum: ask again step by step
            lengths, emissions, table = self._arguments()
            steps = table.expand(-1, max(emissions.shape[1] - 1, 0), -1, -1).contiguous()
            found = marginals(kernels.STRUCTURE, lengths, emissions, steps)[1]
        return found.reshape(*self.batch_shape, *found.shape[1:])

    def score(self, outputs: Tensor) -> Tensor:
        local = super().score(outputs)
        if self.event_shape[0] < 2:
            return local
        labels = self.zero_padding(outputs).long()
        before, after = labels[..., :-1], labels[..., 1:]
        count = self.scores.shape[-1]
        if self.transitions.dim() == 2:
            pairs = self.transitions.reshape(-1).index_select(0, (before * count + after).reshape(-1)).reshape(before.shape)
        else:
            table = self.transitions.reshape(*self.transitions.shape[:-2], -1).expand(*before.shape, -1)
            pairs = table.gather(-1, (before * count + after).unsqueeze(-1)).squeeze(-1)
        if self.real is not None:
            pairs = pairs.masked_fill(~self.real[..., 1:], 0.0)
        return local + pairs.sum(-1)

    def parts(self) -> tuple[Tensor, ...]:
        if self.transitions.dim() > 2:
            return self.scores, self.transitions.expand(*self.batch_shape, *self.transitions.shape[-3:])
        return self.scores, self.transitions.expand(*self.batch_shape, 1, *self.transitions.shape)

    def part_counts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        flat = outputs.long().reshape(outputs.shape[:-1].numel(), outputs.shape[-1])
        pairs = pair_counts(flat, self._sample_lengths(outputs), self.scores.shape[-1], self.dtype, each_step=self.transitions.dim() > 2)
        return self.indicator(outputs), pairs.reshape(*outputs.shape[:-1], *pairs.shape[1:])

    def cross_entropy_from(self, expected: tuple[Tensor, ...]) -> Tensor:
        lengths, *scores = self._arguments()
        flat = tuple(e.detach().reshape(self.batch_shape.numel(), *e.shape[len(self.batch_shape) :]) for e in expected)
        return cross_entropy(kernels.STRUCTURE, lengths, flat, *scores).reshape(self.batch_shape)

    def _expected_pairs(self, *, each_step: bool) -> Tensor:
        if each_step:
            return self.pair_marginals
        found = self._statistics()[1]
        found = found.reshape(*self.batch_shape, *found.shape[1:])
        return found.sum(-3, keepdim=True)

    def mode(self) -> Tensor:
        self._check_feasible("decode")
        best, _ = kernels.mode(*self._arguments(detach=True))
        return best.reshape(self.batch_shape + self.event_shape)

    def mbr(self) -> Tensor:
        with torch.no_grad():
            self._check_feasible("decode")
            if not self.forbids_transitions:
                return self.zero_padding(self.marginals.argmax(-1))
            # Per-position bests may not fit together: best sequence under the marginals, among the allowed ones.
            return self._allowed(self._keep_forbidden(self.marginals)).mode()

    def with_scores(self, scores: Tensor) -> Distribution:
        scores = self._keep_forbidden(scores)
        if self.forbids_transitions:
            return self._allowed(scores)
        return Independent(scores, self._lengths_for(scores.shape[:-2]), validate=False)  # nothing joins the positions

    def _allowed(self, scores: Tensor) -> Chain:
        """Chain with these label scores in which every allowed transition scores 0."""
        pattern = torch.where(self.transitions.detach() == -torch.inf, -torch.inf, 0.0).to(scores)
        if pattern.dim() > 3:
            extra = scores.dim() - self.scores.dim()
            pattern = pattern.reshape(*self.batch_shape, *[1] * extra, *pattern.shape[-3:]).expand(*scores.shape[:-2], -1, -1, -1)
        return Chain(scores, pattern, self._lengths_for(scores.shape[:-2]), validate=False)

    def scaled(self, factor: float) -> Self:
        return type(self)(self.emissions * factor, self.transitions * factor, self.lengths, validate=False)

    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        return kernels.sample(*self._arguments(detach=True), count, generator)

    def _statistics(self) -> tuple[Tensor, ...]:
        return self._cached("statistics", lambda: marginals(kernels.STRUCTURE, *self._arguments()))

    def _arguments(self, *, detach: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Lengths ``[B]``, emissions ``[B,n,K]`` and transitions ``[1 or B, 1 or n-1, K, K]`` for the kernels."""
        size, labels = self.scores.shape[-2:]
        batch = self.batch_shape.numel()
        emissions, transitions = (self.scores.detach(), self.transitions.detach()) if detach else (self.scores, self.transitions)
        if transitions.dim() == 2:
            transitions = transitions.reshape(1, 1, labels, labels)
        elif transitions.dim() == 3:
            transitions = transitions.unsqueeze(0)
        else:
            transitions = transitions.reshape(batch, max(size - 1, 0), labels, labels)
        return self._flat_lengths(), emissions.reshape(batch, size, labels), transitions
