"""Ctrl-C and SIGTERM as a wish to stop at the next step, not as an accident."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from softq.errors import SoftqError
from softq.lab.training.workers import Workers


class StoppedError(SoftqError):
    """Training was asked to stop, and did so with a checkpoint."""


class Interrupts:
    """Within the block, the first signal asks to stop; a second one ends the process as it always did."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # elsewhere signals cannot be caught
            self._before = {
                number: signal.signal(number, self._ask)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def stop_if_asked(self, save: Callable[[], None], message: str) -> None:
        """Save and raise `StoppedError` if any process was asked to stop."""
        if self._workers.any(self._asked):
            save()
            raise StoppedError(message)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
