"""Distributions whose sums over all outputs are a recursion: chains and trees."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from softq.kernels.operator import Decoder, Expected, Operator
from softq.spaces.distribution import Distribution


class Recursion(Distribution):
    """A distribution that a kernel sums over: loss and gradient come out of one sweep.

    A structure names its operator and its decoder, and supplies `_arguments`.
    """

    _operator: ClassVar[Operator]
    _decoder: ClassVar[Decoder]
    _several: ClassVar[Callable[..., tuple[Tensor, Tensor]] | None] = None
    """Decoder of the k best, if there is one of its own."""
    _widest_on_gpu: ClassVar[float] = math.inf
    """Size up to which the scores' dimensions behind that of tokens have a GPU kernel."""
    _flags: tuple[bool, ...] = ()
    """Options of the operator."""

    @abstractmethod
    def _arguments(self) -> tuple[Any, ...]:
        """Lengths ``[B]``, and scores of every kind ``[B, …]``."""

    def _infer(
        self, target: Expected | None = None, *, gradient: bool = False
    ) -> tuple[Tensor, ...]:
        lengths, *scores = self._arguments()
        return self._operator(lengths, scores, *self._flags, target=target, gradient=gradient)

    @property
    def log_partition(self) -> Tensor:
        return self._cached("log_partition", lambda: self._infer()[0].reshape(self.batch_shape))

    @property
    def marginals(self) -> Tensor:
        return self._statistics()[0]

    def _statistics(self) -> tuple[Tensor, ...]:
        """E[parts] for each kind of part, ``[*B, *parts]``."""
        return self._cached(
            "statistics",
            lambda: tuple(
                part.reshape(*self.batch_shape, *part.shape[1:])
                for part in self._infer(gradient=True)[1:]
            ),
        )

    @property
    def has_kernel(self) -> bool:  # type: ignore[override]
        sizes = self.scores.shape[len(self.batch_shape) + 1 :]
        return not self.scores.is_cuda or max(sizes) <= self._widest_on_gpu

    def fused_loss(self, expected: Expected) -> Tensor:
        """Log Z - <E_target[parts], scores>, ``[*B]``."""
        return self._infer(expected)[0].reshape(self.batch_shape)

    def mode(self) -> Tensor:
        self._check_feasible("decode")
        best = self._decoder.mode(*self._arguments(), *self._flags)
        return best.reshape(self.batch_shape + self.event_shape)

    def _topk(self, k: int) -> tuple[Tensor, Tensor]:
        if self._several is None or self.scores.is_cuda:  # where modes need no copy of the scores
            return super()._topk(k)
        outputs, losses = self._several(*self._arguments(), *self._flags, k)
        shape = (*self.batch_shape, k)
        return outputs.reshape(*shape, *self.event_shape), losses.reshape(shape)

    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        return self._decoder.sample(*self._arguments(), *self._flags, count, generator)
