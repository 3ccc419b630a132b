"""The processes that train one model, and how they are asked to stop.

Several processes are started by 🤗 Accelerate or torchrun (``accelerate launch -m softq train …``);
nothing here is home-made distribution.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from softq.errors import DependencyError, RunError


class Workers:
    """The processes that train one model together: here a single one.

    Process 0, the main one, writes.
    """

    rank, size = 0, 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @property
    def is_main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0

    def __str__(self) -> str:
        return self.device.type if self.size == 1 else f"{self.size} × {self.device.type}"

    def prepare(
        self, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Model and optimizer for joint training: gradients are averaged over the processes."""
        return model, optimizer

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, averaged over the processes."""
        loss.backward()  # type: ignore[no-untyped-call]

    def total(self, value: Tensor) -> Tensor:
        """Sum over processes."""
        return value

    def any(self, value: bool) -> bool:
        """Whether it is true in any process; the call waits for all of them."""
        return value


class AcceleratedWorkers(Workers):
    """Processes that ``accelerate launch`` (or torchrun) has started."""

    def __init__(self, device: str) -> None:
        try:
            from accelerate import Accelerator
        except ImportError:
            raise DependencyError(
                "training with several processes needs Accelerate: pip install 'softq[distributed]'"
            ) from None
        self._accelerator: Any = Accelerator(cpu=device == "cpu")
        super().__init__(self._accelerator.device)
        self.rank, self.size = self._accelerator.process_index, self._accelerator.num_processes

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
        """Whether it is true in any process; the call waits for all of them."""
        return bool(self.total(torch.tensor(float(value), device=self.device)) > 0)


def find_workers(device: str = "auto") -> Workers:
    """The processes this one belongs to, on the device that a recipe names."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return AcceleratedWorkers(device)
    return Workers(find_device(device))


def find_device(name: str) -> torch.device:
    """The device that a recipe names; ``auto`` is a GPU if there is one.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise RunError(
            f"the device is to be a GPU ({name}), and torch finds none: choose auto or cpu"
        )
    return torch.device(name)


class Interrupts:
    """Turns Ctrl-C and SIGTERM into a request to stop at the next step.

    Within the block the first signal is noted and, until `at_steps` is called, raised as a
    `KeyboardInterrupt` as well. It is noted because libraries lose exceptions that are raised
    inside their callbacks, such as numba while it loads a kernel. A second signal ends the process
    as it did before. A signal that the process ignores, as one that runs in the background ignores
    Ctrl-C, stays ignored.

    Args:
        workers: the processes; all of them stop if one is asked to.
        also: another reason to stop, looked at together with the signals.

    """

    def __init__(self, workers: Workers, also: Callable[[], bool] = lambda: False) -> None:
        self._workers, self._also = workers, also
        self._asked, self._at_steps = False, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # others cannot catch signals
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def at_steps(self, value: bool = True) -> None:
        """From now on signals are only noted: the caller looks at `asked` between its steps."""
        self._at_steps = value

    def asked(self) -> bool:
        """Whether any process was asked to stop."""
        return self._workers.any(self._asked or self._also())

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        self._restore()
        if not self._at_steps:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
