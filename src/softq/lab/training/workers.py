"""One process, or several through 🤗 Accelerate (``accelerate launch -m softq train …``). Nothing here is home-made distribution."""

from __future__ import annotations

import os
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from softq.errors import DependencyError, RunError


class Workers(Protocol):
    """The processes that train one model together; process 0, the main one, writes."""

    rank: int
    size: int
    is_main: bool
    device: torch.device

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Model and optimizer for joint training: gradients are averaged over the processes."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        ...

    def total(self, value: Tensor) -> Tensor:
        """Sum over processes."""
        ...

    def any(self, value: bool) -> bool:
        """Whether it is true in any process."""
        ...


class OneProcess:
    """No company."""

    rank, size, is_main = 0, 1, True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Nothing to prepare."""
        return model, optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def total(self, value: Tensor) -> Tensor:
        """The value."""
        return value

    def any(self, value: bool) -> bool:
        """The value."""
        return value


class AcceleratedWorkers:
    """Processes that ``accelerate launch`` (or torchrun) has started."""

    def __init__(self, device: str) -> None:
        try:
            from accelerate import Accelerator
        except ImportError:
            raise DependencyError(
                "training with several processes needs Accelerate: pip install 'softq[distributed]'"
            ) from None
        self._accelerator: Any = Accelerator(cpu=device == "cpu")
        self.rank, self.size = self._accelerator.process_index, self._accelerator.num_processes
        self.is_main = self.rank == 0
        self.device = self._accelerator.device

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Accelerate's wrappers."""
        prepared: tuple[nn.Module, torch.optim.Optimizer] = self._accelerator.prepare(
            model, optimizer
        )
        return prepared

    def backward(self, loss: Tensor) -> None:
        """Compute gradients and average them."""
        self._accelerator.backward(loss)

    def total(self, value: Tensor) -> Tensor:
        """Sum over processes."""
        summed: Tensor = self._accelerator.reduce(value, reduction="sum")
        return summed

    def any(self, value: bool) -> bool:
        """Whether it is true in any process."""
        return bool(self.total(torch.tensor(float(value), device=self.device)) > 0)


def find_workers(device: str = "auto") -> Workers:
    """The processes this one belongs to, on the device that a recipe names."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return AcceleratedWorkers(device)
    return OneProcess(find_device(device))


def find_device(name: str) -> torch.device:
    """The device that a recipe names; ``auto`` is a GPU if there is one.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise RunError(
            'the recipe asks for a GPU (device = "cuda") and torch finds none; use device = "auto" or "cpu"'
        )
    return torch.device(name)
