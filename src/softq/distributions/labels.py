"""Label sequences: what chains share with independent labels, and the independent labels themselves."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor

from softq.checks import bad_score, check_classes, check_lengths, check_scores_dtype
from softq.distributions.base import Distribution, draw_classes, softmax
from softq.errors import ShapeError
from softq.kernels.counts import flat_off_diagonal, flat_pair_products, label_rows, pair_products, softmax_rows
from softq.kernels.scan import find_bad_row, forbids
from softq.numerics import logsumexp, matmul


class LabelSequence(Distribution):
    """A distribution over label sequences whose score is a sum over positions, and over neighbours if there are transitions."""

    transitions: Tensor | None  # broadcasts to [*B, n-1, K, K]; None if positions are independent

    def __init__(self, name: str, scores: Tensor, lengths: Tensor | None, validate: bool) -> None:
        check_scores_dtype(name, scores)
        if scores.dim() < 2 or scores.shape[-1] == 0:
            raise ShapeError(f"{name} must have shape [*B, n, K] with K >= 1, got {list(scores.shape)}")
        size = scores.shape[-2]
        if validate:
            lengths = check_lengths(lengths, scores.shape[:-2], size, scores.device)
        super().__init__(scores, scores.shape[:-2], scores.shape[-2:-1], lengths, validate)
        if validate:
            self._check_rows(name, scores, None if lengths is None else lengths.reshape(-1))

    def _check_rows(self, name: str, rows: Tensor, lengths: Tensor | None) -> None:
        """Scores ``[*B, n, …]`` hold neither NaN nor +inf on the first ``lengths`` rows of each example."""
        batch = len(self.batch_shape)
        flat = rows.detach().reshape(self.batch_shape.numel(), *rows.shape[batch:])
        place = find_bad_row(lengths, flat)
        if place is not None:
            raise bad_score(name, flat, place)

    @abstractmethod
    def _expected_pairs(self, *, each_step: bool) -> Tensor:
        """Expected number of each pair of neighbouring labels, ``[*B, n-1, K, K]``, or summed over steps ``[*B, 1, K, K]``."""

    def score(self, outputs: Tensor) -> Tensor:
        if self.validate:
            self.check_outputs(outputs)
        labels = self.zero_padding(outputs).long()
        local = self.scores.expand(*labels.shape, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return self.zero_padding(local).sum(-1)

    def expected_parts(self, model: Distribution) -> tuple[Tensor, ...]:
        transitions = model.transitions if isinstance(model, LabelSequence) else None
        return (self.marginals,) if transitions is None else (self.marginals, self._expected_pairs(each_step=transitions.dim() > 2))

    def indicator(self, outputs: Tensor, value: float = 1.0) -> Tensor:
        return self._rows(torch.eye(self.scores.shape[-1], dtype=self.dtype, device=self.device) * value, outputs)

    def _rows(self, table: Tensor, outputs: Tensor) -> Tensor:
        """The row of ``table [K,K]`` at each label of ``outputs [*S,*B,n]``, ``[*S,*B,n,K]``; 0 on padding."""
        flat = outputs.long().reshape(outputs.shape[:-1].numel(), outputs.shape[-1])
        return label_rows(table, flat, self._sample_lengths(outputs)).reshape(*outputs.shape, table.shape[1])

    def payoff(self, refs: Tensor, table: Tensor) -> Distribution:
        """Distribution over these outputs, one per reference ``[*B, R, n]``: its labels' rows of ``table [K,K]`` are the scores."""
        if self.forbids_transitions or forbids(self.scores):
            batch = len(self.batch_shape)
            return self.with_scores(self._rows(table, refs.movedim(batch, 0)).movedim(0, batch))
        return _RowLabels(table, refs, self._lengths_for(refs.shape[:-1]))

    @property
    def forbids_transitions(self) -> bool:
        """Whether some pair of neighbouring labels is forbidden (-inf)."""
        table = self.transitions
        return table is not None and self._cached("forbids", lambda: forbids(table))

    def check_outputs(self, outputs: Tensor) -> None:
        self._check_output_shape(outputs)
        check_classes("label", outputs, self.scores.shape[-1], self.real)


class Independent(LabelSequence):
    """Label sequences whose positions are independent: a tagger with one softmax per token.

    ===========  ==========================================================
    set          {0, …, K-1}^n, each example cut to its length
    parts        labels, ``scores[*B, n, K]``
    output       labels, ``[*B, n]``
    cost         O(n K) time and memory
    paper        the payoff q of token accuracy factorises so (Appendix D.2.2)
    ===========  ==========================================================

    >>> p = Independent(torch.zeros(1, 3, 2), lengths=torch.tensor([2]))
    >>> p.entropy().item()  # two fair coins: log 4
    1.386...
    """

    transitions = None

    def __init__(self, scores: Tensor, lengths: Tensor | None = None, *, validate: bool = True) -> None:
        super().__init__("scores", scores, lengths, validate)

    @property
    def log_partition(self) -> Tensor:
        return self._cached("log_partition", lambda: logsumexp(self._clean(), -1).sum(-1))

    @property
    def marginals(self) -> Tensor:
        return self._cached("marginals", self._marginals)

    def _marginals(self) -> Tensor:
        found = softmax(self._clean())
        return found if self.real is None else found.masked_fill(~self.real.unsqueeze(-1), 0.0)

    def _expected_pairs(self, *, each_step: bool) -> Tensor:
        # P(y_t = i, y_{t+1} = j) = μ_t(i) μ_{t+1}(j): no recursion
        before, after = self.marginals[..., :-1, :], self.marginals[..., 1:, :]
        if each_step:
            return before.unsqueeze(-1) * after.unsqueeze(-2)
        if self.marginals.requires_grad:
            return matmul(before.transpose(-1, -2), after).unsqueeze(-3)
        found = pair_products(self.marginals.reshape(self.batch_shape.numel(), *self.marginals.shape[-2:]))
        return found.reshape(*self.batch_shape, *found.shape[1:])

    def mode(self) -> Tensor:
        self._check_feasible("decode")
        return self.zero_padding(self.scores.argmax(-1))

    def mbr(self) -> Tensor:
        return self.mode()

    def with_scores(self, scores: Tensor) -> Independent:
        return Independent(self._keep_forbidden(scores), self._lengths_for(scores.shape[:-2]), validate=False)

    def scaled(self, factor: float) -> Self:
        return type(self)(self.scores * factor, self.lengths, validate=False)

    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        weights = self.marginals.detach()
        if self.real is not None:  # padding still needs some distribution to draw from
            weights = torch.where(self.real.unsqueeze(-1), weights, 1.0)
        return self.zero_padding(draw_classes(weights, count, generator))

    def _clean(self) -> Tensor:
        """Scores whose padding adds nothing: label 0 is the only one possible there, at score 0."""
        if self.real is None:
            return self.scores
        only = torch.full_like(self.scores[..., :1, :], -torch.inf)
        only[..., 0] = 0.0
        return torch.where(self.real.unsqueeze(-1), self.scores, only)


class _RowLabels(Independent):
    """Independent labels whose scores are rows of one table: the payoff of a token reward, a row per reference label.

    There are only K different positions, so the rows are normalised and not the positions; and the scores themselves
    are not made unless someone asks for them.
    """

    def __init__(self, table: Tensor, refs: Tensor, lengths: Tensor | None) -> None:
        Distribution.__init__(self, table, refs.shape[:-1], refs.shape[-1:], lengths, False)
        self._table = table  # [K, K]
        self._normalised = softmax_rows(table)
        self._refs = refs

    @property
    def scores(self) -> Tensor:
        return self._cached("scores", lambda: self._rows(self._table, self._refs))

    @property
    def dtype(self) -> torch.dtype:
        return self._table.dtype

    @property
    def device(self) -> torch.device:
        return self._table.device

    def _marginals(self) -> Tensor:
        return self._rows(self._normalised, self._refs)

    def _expected_pairs(self, *, each_step: bool) -> Tensor:
        if each_step or not flat_off_diagonal(self._table):
            return super()._expected_pairs(each_step=each_step)
        flat = self._refs.reshape(self.batch_shape.numel(), self._refs.shape[-1])
        found = flat_pair_products(self._normalised, flat, self._flat_lengths())
        return found.reshape(*self.batch_shape, *found.shape[1:])
