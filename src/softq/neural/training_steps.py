"""Training steps on weighted candidates: - Σ_s w_s log P(y_s|x), its gradient, Adam.

Eager, or recorded as CUDA graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softq.lab.processes import Workers
from softq.lab.torch_learner import load_optimizer, optimizer_state
from softq.neural.examples import round_width
from softq.neural.modules.sequence import Inputs, SequenceModel
from softq.neural.recipe import Optimizer, Precision
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


class TrainingSteps:
    """Takes steps with Adam.

    Each returns the sum of the batch's losses as a tensor on the device, without waiting for it.

    After a loss or a gradient that is not finite no parameter changes any more, and losses are NaN
    from then on. On a GPU, forward and backward sweep are recorded once for each shape of a batch
    and replayed, the update once for all; what is recorded is the same code that runs eagerly
    elsewhere.

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
        self._workers, self._precision, self._clip = workers, precision, optimizer.clip
        model.output.coarse = precision == "bf16"
        loss = _CandidateLoss(model.to(device), optimizer.label_smoothing)
        self._rate = torch.tensor(optimizer.learning_rate, device=device)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            loss.parameters(), lr=self._rate, fused=True, capturable=on_gpu
        )
        self._parameters = list(loss.parameters())
        self._loss, _ = workers.prepare(loss, self.optimizer)
        self._share = torch.zeros((), device=device)  # weight of each loss in the average
        self._stopped = torch.zeros((), device=device)  # 1 after something that is not finite
        self.graphs = on_gpu and graphs and workers.size == 1
        self._recorded: dict[
            tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, Tensor, Batch]
        ] = {}
        self._update_recorded: torch.cuda.CUDAGraph | None = None
        self._pool = torch.cuda.graph_pool_handle() if self.graphs else None
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)

    @property
    def learning_rate(self) -> float:
        """Of Adam, at present."""
        return float(self._rate)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._rate.fill_(rate)

    def state(self) -> dict[str, Tensor]:
        """Adam's tensors and the rate."""
        return optimizer_state(self.optimizer) | {"learning_rate": self._rate}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state."""
        load_optimizer(self.optimizer, state)
        self._rate.copy_(state["learning_rate"])
        for group in self.optimizer.param_groups:  # loading has made a copy
            group["lr"] = self._rate

    def __call__(self, batch: Batch, examples: int, seed: int) -> Tensor:
        """A step on this process's share of a batch of so many examples.

        The sum of the share's losses.

        ``seed`` is of the dropout. Where steps are recorded, batches must be `Batch.rounded`, or
        every one has a shape of its own.
        """
        self._share.fill_(self._workers.size / examples)  # gradients are averaged over processes
        with matrix_precision(self._precision):
            if self.graphs:
                return self._replay(batch, seed)
            torch.manual_seed(seed)
            total = self._sweep(batch.to(self._workers.device))
            self._update()
            return self._unless_stopped(total)

    def _sweep(self, batch: Batch) -> Tensor:
        """Forward and back: gradients of the mean loss; the sum of losses."""
        self.optimizer.zero_grad(set_to_none=False)
        total = self._loss(*batch).sum()
        self._workers.backward(total * self._share)
        self._note_finite(total.detach())
        return total.detach()  # type: ignore[no-any-return]

    def _unless_stopped(self, total: Tensor) -> Tensor:
        """The loss, or NaN after something that was not finite, be it a gradient alone."""
        return total.masked_fill(self._stopped > 0, math.nan)

    def _note_finite(self, value: Tensor) -> None:
        torch.maximum(self._stopped, (~value.isfinite()).to(self._stopped), out=self._stopped)

    def _update(self) -> None:
        """Adam, on gradients scaled down to the norm that they may have."""
        norm = nn.utils.get_total_norm(
            [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        )
        self._note_finite(norm)
        # what mixed precision hands to a fused Adam: gradients are divided by the one, and nothing
        # is done if the other is 1
        adam: Any = self.optimizer
        adam.grad_scale = (norm / self._clip).clamp(min=1.0) if self._clip else None
        adam.found_inf = self._stopped
        adam.step()

    def _replay(self, batch: Batch, seed: int) -> Tensor:
        shapes = tuple(part.shape for part in batch.tensors)
        if shapes not in self._recorded:
            static = batch._each(lambda part: part.to(self._workers.device, copy=True))
            self._recorded[shapes] = (*self._record(lambda: self._sweep(static)), static)
        if self._update_recorded is None:
            self._update_recorded = self._record_update()
        graph, total, static = self._recorded[shapes]
        for mine, given in zip(static.tensors, batch.tensors, strict=True):
            mine.copy_(given, non_blocking=True)
        torch.cuda.manual_seed(seed)
        graph.replay()
        found = total.clone()  # graphs share their memory: the next replay may write over it
        self._update_recorded.replay()
        return self._unless_stopped(found)

    def _record(self, function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        stopped = self._stopped.clone()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            function()  # what is made ready at a first call must not be recorded
        torch.cuda.current_stream().wait_stream(stream)
        self._stopped.copy_(stopped)
        graph = torch.cuda.CUDAGraph()
        # other threads may allocate page-locked memory meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            found = function()
        return graph, found

    def _record_update(self) -> torch.cuda.CUDAGraph:
        """The update as a graph.

        Its first call, which makes Adam's tensors, must not change a parameter.
        """
        begun = self._stopped.clone()
        self._stopped.fill_(1.0)
        graph, _ = self._record(self._update)
        self._stopped.copy_(begun)
        return graph


@contextmanager
def matrix_precision(precision: Precision) -> Iterator[None]:
    """Matrix products on a GPU in float32, or in the coarser tf32, until the block ends.

    Bf16 is for the output layer alone.
    """
    before, of_recurrences = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = of_recurrences
