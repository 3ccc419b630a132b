"""Training steps on weighted candidates: - Σ_s w_s log P(y_s|x), its gradient, Adam.

Eager, or recorded as CUDA graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softq.lab.processes import Workers
from softq.lab.torch_learner import load_optimizer, optimizer_state
from softq.neural.examples import round_width
from softq.neural.modules.sequence import Inputs, SequenceModel
from softq.neural.recipe import Optimizer, Precision
from softq.neural.recorded_steps import RecordedSteps, matrix_precision
from softq.sentences import Sentences
from softq.targets import Target


class Batch(NamedTuple):
    """Inputs with candidates and their weights.

    Attributes:
        inputs: of B examples, as the model takes them.
        tokens: of candidates, ``[B, K, L]``.
        lengths: ``[B, K]``, 0 where a candidate is missing.
        weights: float32 ``[B, K]``, 0 where a candidate is missing.

    """

    inputs: Inputs
    tokens: Tensor
    lengths: Tensor
    weights: Tensor

    @classmethod
    def of(cls, inputs: Inputs, target: Target) -> Batch:
        """A batch of inputs and the target made for their references."""
        outputs = target.outputs
        return cls(inputs, outputs.tokens, outputs.lengths.clamp(min=0), target.weights.float())

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them."""
        return *self.inputs, self.tokens, self.lengths, self.weights

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same with every tensor changed."""
        return Batch(tuple(map(change, self.inputs)), *map(change, self[1:]))

    def share(self, rank: int, size: int) -> Batch:
        """What one of several processes trains on.

        Every ``size``-th input from ``rank`` on, or one that counts nothing.
        """
        if size == 1:
            return self
        if rank < len(self.tokens):
            return self._each(lambda part: part[rank::size])
        return self._each(lambda part: part[:1])._replace(
            weights=torch.zeros_like(self.weights[:1])
        )

    def rounded(self, inputs: int) -> Batch:
        """The same with inputs that count nothing up to ``inputs`` of them, and with a width that most batches share.

        >>> batch = Batch((torch.ones(2, 3),), torch.ones(2, 3, 5), torch.ones(2, 3), torch.ones(2, 3))
        >>> [list(part.shape) for part in batch.rounded(4).tensors]
        [[4, 3], [4, 3, 6], [4, 3], [4, 3]]
        """
        more, wider = (
            inputs - len(self.tokens),
            round_width(self.tokens.shape[2]) - self.tokens.shape[2],
        )
        batch = (
            self._replace(tokens=pad(self.tokens, (0, wider, 0, 0, 0, more)))
            if wider or more
            else self
        )
        if not more:  # nearly always, and inputs may be large
            return batch
        return Batch(
            tuple(
                torch.cat([part, part[:1].expand(more, *part.shape[1:])]) for part in self.inputs
            ),
            batch.tokens,
            pad(self.lengths, (0, 0, 0, more)),
            pad(self.weights, (0, 0, 0, more)),
        )

    def pinned(self) -> Batch:
        """The same in page-locked memory, from which a GPU copies without waiting, as long as it is in one piece."""
        return self._each(lambda part: part.contiguous().pin_memory())

    def to(self, device: torch.device) -> Batch:
        """The same on another device."""
        return self._each(lambda part: part.to(device, non_blocking=True))


class _CandidateLoss(nn.Module):
    """- Σ_s w_s log P(y_s|x) of each input of a batch (the loss of `softq.cross_entropy` on candidates), ``[B]``."""

    def __init__(self, model: SequenceModel, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, inputs: Inputs, tokens: Tensor, lengths: Tensor, weights: Tensor) -> Tensor:
        """Losses of a `Batch`."""
        log_probs = self.model.log_prob(
            inputs, Sentences(tokens, lengths), smoothing=self.smoothing
        )
        return -(weights.to(log_probs.dtype) * log_probs).sum(1)


class TrainingSteps(RecordedSteps):
    """Takes steps with Adam on weighted candidates.

    Each returns the sum of the batch's losses as a tensor on the device, without waiting for it.
    Losses are NaN after a loss or a gradient that is not finite. On a GPU a sweep is recorded once
    for each shape of a batch.

    Args:
        model: to train.
        optimizer: settings.
        workers: processes and device.
        precision: of matrix products on a GPU.
        graphs: record and replay, on a GPU in one process.

    """

    def __init__(
        self,
        model: SequenceModel,
        optimizer: Optimizer,
        workers: Workers,
        *,
        precision: Precision = "float32",
        graphs: bool = True,
    ) -> None:
        device = workers.device
        self._workers, self._precision = workers, precision
        model.output.coarse = precision == "bf16"
        loss = _CandidateLoss(model.to(device), optimizer.label_smoothing)
        adam = torch.optim.Adam(loss.parameters(), lr=optimizer.learning_rate, fused=True)
        super().__init__(adam, device, clip=optimizer.clip, graphs=graphs and workers.size == 1)
        self._loss, _ = workers.prepare(loss, self.optimizer)
        self._share = torch.zeros((), device=device)  # weight of each loss in the average
        self._static: dict[tuple[torch.Size, ...], Batch] = {}  # what recorded sweeps read

    @property
    def learning_rate(self) -> float:
        """Of Adam, at present."""
        return self.rates[0]

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.rates = [rate]

    def state(self) -> dict[str, Tensor]:
        """Adam's tensors and the rate."""
        return optimizer_state(self.optimizer) | {"learning_rate": self._rates[0]}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state."""
        load_optimizer(self.optimizer, state)
        self.learning_rate = float(state["learning_rate"])
        self.optimizer_was_loaded()

    def __call__(self, batch: Batch, examples: int, seed: int) -> Tensor:
        """A step on this process's share of a batch of so many examples.

        The sum of the share's losses.

        ``seed`` is of the dropout. Where steps are recorded, batches must be `Batch.rounded`, or
        every one has a shape of its own.
        """
        self._share.fill_(self._workers.size / examples)  # gradients are averaged over processes
        shapes = tuple(part.shape for part in batch.tensors)
        if not self.graphs:
            given = batch.to(self._workers.device)
        elif (kept := self._static.get(shapes)) is None:
            given = batch._each(lambda part: part.to(self._workers.device, copy=True))
            self._static[shapes] = given
        else:
            given = kept
            for mine, new in zip(given.tensors, batch.tensors, strict=True):
                mine.copy_(new, non_blocking=True)
        with matrix_precision(self._precision):
            total = self.take(partial(self._sweep, given), seed, shapes)[0]
        return total.masked_fill(self.stopped > 0, math.nan)

    def _sweep(self, batch: Batch) -> Tensor:
        """Forward and back: gradients of the mean loss; the sum of losses."""
        total = self._loss(*batch).sum()
        self._workers.backward(total * self._share)
        return total.detach()  # type: ignore[no-any-return]
