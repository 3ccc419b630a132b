"""Progress on stderr, with rate and time left: bars on a terminal, elsewhere a line every ten seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Bar
from rich.text import Text

from softq.cli.shared import tell

_COUNTED = "models"  # take minutes each: how many are done says more than a rate
LOG_EVERY = 10.0
"""Seconds between lines of a log."""
COMPILATION_TOLD = threading.Event()
"""Whether this process has told that kernels are compiled."""
Item = TypeVar("Item")


class _Rate(ProgressColumn):
    def render(self, task: Bar) -> Text:
        """Like ``1.2M examples/s``, by this process alone; nothing at the end, to which a search that has converged jumps."""
        if not task.speed or task.finished or task.fields["unit"] == _COUNTED:
            return Text()
        size, prefix = pick_unit_and_suffix(int(task.speed), ["", "k", "M", "G"], 1000)
        rate = f"{task.speed / size:.3g}{prefix} {task.fields['unit']}/s"
        return Text(rate, style="progress.data.speed")


_RATE, _TIME_LEFT = _Rate(), TimeRemainingColumn()


def _log_line(task: Bar) -> str:
    """What is under way as one line of a log."""
    share = f"{task.percentage:.0f} %" if task.total else ""
    left = "" if task.time_remaining is None else f"{_TIME_LEFT.render(task).plain} left"
    shown = (share, str(task.fields["status"]), _RATE.render(task).plain, left)
    return f"{task.description}: {', '.join(filter(None, shown)) or 'at work'}"


if TYPE_CHECKING:
    from softq.lab.loop import Watcher
else:  # help must not wait for torch
    Watcher = object


class BarWatcher(Watcher):
    """Shows what is under way as a bar; what begins next takes its place."""

    def __init__(self, progress: Progress, label: str, unit: str = "examples") -> None:
        self._progress, self._label, self._unit = progress, label, unit
        self._bar: TaskID | None = None

    def begin(self, examples: int, done: int) -> None:
        """Show the bar; of 0 examples, it only shows that something goes on."""
        for before in self._progress.task_ids:
            self._progress.remove_task(before)
        self._bar = self._progress.add_task(
            self._label, total=examples or None, completed=done, status="", unit=self._unit
        )

    def advance(self, examples: int, status: str) -> None:
        """Move it."""
        if self._bar is not None:
            self._progress.update(self._bar, advance=examples, status=status)

    def show(self, total: int, done: int, status: str | None = None) -> None:
        """Show how many are done in all, at the start and then again and again."""
        if self._bar is None:
            self.begin(total, done)
        status = f"{done:,} of {total:,}" if status is None else status
        self._progress.update(cast(TaskID, self._bar), completed=done, status=status)

    def note(self, text: str) -> None:
        """Print it, above the bar if there is one."""
        self._progress.console.print(text, highlight=False, soft_wrap=True)

    def batches(self, items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
        """Items some at a time; the bar moves when each batch is done."""
        self.begin(len(items), 0)
        for first in range(0, len(items), size):
            some = items[first : first + size]
            yield some
            self.advance(len(some), "")


Watch = Callable[..., BarWatcher]
"""Makes a watcher of what is called so, ``watch(label, unit="examples")``, with the unit of its rate."""


@contextmanager
def progress_bars(*, silent: bool = False) -> Iterator[Watch]:
    """A maker of watchers, ``watch(label, unit="examples")``, each shown while the block lasts and until the next one begins.

    The unit is that of the rate; of models, those that are done are counted instead. ``silent`` shows nothing.
    """
    console = Console(stderr=True)
    bars = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}")
    progress = Progress(*bars, _RATE, _TIME_LEFT, console=console, transient=True)
    shown = nullcontext() if silent else progress if console.is_terminal else _logging(progress)
    with _announced_compilation(), shown:
        yield partial(BarWatcher, progress)


@contextmanager
def _logging(progress: Progress) -> Iterator[None]:
    """A line about what is under way every ten seconds."""
    over = threading.Event()

    def log() -> None:
        while not over.wait(LOG_EVERY):
            for task in progress.tasks:
                tell(_log_line(task))

    thread = threading.Thread(target=log, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _announced_compilation() -> Iterator[None]:
    """Tell once if numba compiles a kernel, which takes seconds and happens before its cache is filled."""
    from numba.core import event  # imported when work begins: help must not wait for it

    class Listener(event.Listener):
        def on_start(self, _event: Any) -> None:
            if not COMPILATION_TOLD.is_set():
                COMPILATION_TOLD.set()
                tell("compiling kernels (once, takes some seconds) …")

        def on_end(self, _event: Any) -> None:
            """Nothing to tell."""

    with event.install_listener("numba:compile", Listener()):
        yield
