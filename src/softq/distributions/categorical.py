"""One class out of K."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from softq.checks import bad_score, check_classes, check_scores_dtype
from softq.distributions.base import Distribution, draw_classes, softmax
from softq.errors import ShapeError
from softq.kernels.scan import find_bad_row
from softq.numerics import logsumexp


class Categorical(Distribution):
    """A distribution over K classes.

    ===========  ==========================================================
    set          {0, …, K-1}
    parts        classes, ``scores[*B, K]``
    output       the class, ``[*B]``
    cost         O(K) time and memory
    paper        §4.1.1 (cost-sensitive classification)
    ===========  ==========================================================

    >>> p = Categorical(torch.tensor([1.0, 3.0]).log())
    >>> p.log_prob(torch.tensor(1)).exp()
    tensor(0.7500)
    """

    def __init__(self, scores: Tensor, *, validate: bool = True) -> None:
        check_scores_dtype("scores", scores)
        if scores.dim() < 1 or scores.shape[-1] == 0:
            raise ShapeError(f"scores must have shape [*B, K] with K >= 1, got {list(scores.shape)}")
        if validate:
            flat = scores.detach().reshape(scores.shape[:-1].numel(), 1, scores.shape[-1])
            place = find_bad_row(None, flat)
            if place is not None:
                raise bad_score("scores", flat.squeeze(1), place[:1])
        super().__init__(scores, scores.shape[:-1], torch.Size(), None, validate)

    @property
    def log_partition(self) -> Tensor:
        return self._cached("log_partition", lambda: logsumexp(self.scores, -1))

    @property
    def marginals(self) -> Tensor:
        return self._cached("marginals", lambda: softmax(self.scores))

    def score(self, outputs: Tensor) -> Tensor:
        if self.validate:
            self.check_outputs(outputs)
        return self.scores.expand(*outputs.shape, -1).gather(-1, outputs.long().unsqueeze(-1)).squeeze(-1)

    def expected_parts(self, model: Distribution) -> tuple[Tensor, ...]:
        return (self.marginals,)

    def mode(self) -> Tensor:
        self._check_feasible("decode")
        return self.scores.argmax(-1)

    def mbr(self) -> Tensor:
        return self.mode()

    def indicator(self, outputs: Tensor, value: float = 1.0) -> Tensor:
        return torch.nn.functional.one_hot(outputs.long(), self.scores.shape[-1]).to(self.dtype) * value

    def with_scores(self, scores: Tensor) -> Categorical:
        return Categorical(self._keep_forbidden(scores), validate=False)

    def scaled(self, factor: float) -> Self:
        return type(self)(self.scores * factor, validate=False)

    def check_outputs(self, outputs: Tensor) -> None:
        self._check_output_shape(outputs)
        check_classes("class", outputs, self.scores.shape[-1], None)

    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        return draw_classes(self.marginals.detach(), count, generator)
