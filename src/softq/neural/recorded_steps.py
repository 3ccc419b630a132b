"""Training steps that do not wait for the device: eager, or recorded as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from softq.neural.recipe import Precision


class RecordedSteps:
    """Takes steps with Adam or AdamW.

    A step is a *sweep*, which computes gradients, and an *update*, which first scales them down to
    the norm that they may have. After a loss or a gradient that is not finite no parameter changes
    any more. On a GPU each sweep is recorded once and replayed, the update once for all; what is
    recorded is the same code that runs eagerly elsewhere. Dropout follows from the seed of a step
    alone: a replay takes its random numbers from the generator as an eager sweep does.

    Args:
        optimizer: fused, of parameters that are on the device already; it has taken no step.
        device: where.
        clip: largest norm of a gradient; 0: any.
        graphs: record and replay, on a GPU.

    Attributes:
        stopped: 1 after something that was not finite, on the device.

    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        clip: float = 0.0,
        graphs: bool = True,
    ) -> None:
        on_gpu = device.type == "cuda"
        self.optimizer, self._clip = optimizer, clip
        self._parameters: list[nn.Parameter] = []
        self._rates = []
        for group in optimizer.param_groups:
            self._parameters += group["params"]
            self._rates.append(torch.tensor(float(group["lr"]), device=device))
            group |= {"lr": self._rates[-1], "capturable": on_gpu}
        self.stopped = torch.zeros((), device=device)
        self._found = torch.zeros(2, device=device)  # of the last step
        self.graphs = on_gpu and graphs
        self._sweeps: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._update_recorded: torch.cuda.CUDAGraph | None = None
        if self.graphs:
            self._pool = torch.cuda.graph_pool_handle()
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)

    @property
    def rates(self) -> list[float]:
        """Learning rates of the optimizer's groups, at present."""
        return [float(rate) for rate in self._rates]

    @rates.setter
    def rates(self, rates: Sequence[float]) -> None:
        for mine, rate in zip(self._rates, rates, strict=True):
            mine.fill_(rate)

    def optimizer_was_loaded(self) -> None:
        """Make the rates and the recorded update those of the optimizer's new tensors."""
        self._update_recorded = None
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate  # loading has made a copy

    def take(
        self, sweep: Callable[[], Tensor], seed: int, key: Hashable, *, record: bool = True
    ) -> Tensor:
        """Take a step; the sum of the batch's losses and the norm of the gradient, ``[2]``.

        Args:
            sweep: adds gradients to those of the parameters, and returns the sum of the losses.
                Where steps are recorded, what it reads must stay in place.
            seed: of its dropout.
            key: which of the sweeps this is: one that was recorded under it is replayed.
            record: whether it may be; else it runs eagerly in any case.

        """
        if not self.graphs:
            torch.manual_seed(seed)
            self._run(sweep)
            self._update()
            return self._found.clone()
        if record and key not in self._sweeps:
            self._sweeps[key] = self._record(lambda: self._run(sweep))
        if self._update_recorded is None:
            self._update_recorded = self._record_update()
        torch.cuda.manual_seed(seed)
        if record:
            self._sweeps[key].replay()
        else:
            self._run(sweep)
        self._update_recorded.replay()
        return self._found.clone()

    def _run(self, sweep: Callable[[], Tensor]) -> None:
        self.optimizer.zero_grad(set_to_none=False)
        self._note(0, sweep())

    def _note(self, place: int, value: Tensor) -> None:
        """A loss or a norm, and whether it is finite."""
        self._found[place].copy_(value)
        torch.maximum(self.stopped, (~value.isfinite()).to(self.stopped), out=self.stopped)

    def _update(self) -> None:
        """Adam, on gradients scaled down to the norm that they may have."""
        norm = nn.utils.get_total_norm(
            [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        )
        self._note(1, norm)
        # what mixed precision hands to a fused Adam: gradients are divided by the one, and nothing
        # is done if the other is 1
        adam: Any = self.optimizer
        adam.grad_scale = (norm / self._clip).clamp(min=1.0) if self._clip else None
        adam.found_inf = self.stopped
        adam.step()

    def _record(self, function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        stopped = self.stopped.clone()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()  # what is made ready at a first call must not be recorded
        torch.cuda.current_stream().wait_stream(self._stream)
        self.stopped.copy_(stopped)
        graph = torch.cuda.CUDAGraph()
        # other threads may allocate page-locked memory meanwhile
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            function()
        return graph

    def _record_update(self) -> torch.cuda.CUDAGraph:
        """The update as a graph.

        Its first call, which makes Adam's tensors, must not change a parameter.
        """
        begun = self.stopped.clone()
        self.stopped.fill_(1.0)
        graph = self._record(self._update)
        self.stopped.copy_(begun)
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
