"""Progress bars on stderr, with rate and time left; nothing where stderr is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
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

from softq.lab.loop import Watcher

_COUNTED = "models"  # take minutes each: how many are done says more than a rate


class _Rate(ProgressColumn):
    """What is done per second, by this process alone: what a resumed run had seen before does not count."""

    def render(self, task: Bar) -> Text:
        """Like ``1.2M examples/s``; nothing at the end, to which a search that has converged jumps."""
        if not task.speed or task.finished or task.fields["unit"] == _COUNTED:
            return Text("")
        speed, prefix = task.speed, ""
        for larger in ("k", "M", "G"):
            if speed < 1000:
                break
            speed, prefix = speed / 1000, larger
        return Text(f"{speed:.3g}{prefix} {task.fields['unit']}/s", style="progress.data.speed")


class _Watcher(Watcher):
    """Shows what is under way as a bar; what begins next takes its place."""

    def __init__(self, progress: Progress, label: str, unit: str) -> None:
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

    def note(self, text: str) -> None:
        """Print it above the bar."""
        self._progress.console.print(text)


@contextmanager
def progress_bars() -> Iterator[Callable[..., Watcher]]:
    """A maker of watchers, ``watch(label, unit="examples")``, each with a bar while the block lasts and until the next one begins.

    The unit is that of the rate; of models, those that are done are counted instead.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        _Rate(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, disable=not console.is_terminal, transient=True
    ) as progress:

        def watch(label: str, unit: str = "examples") -> Watcher:
            return _Watcher(progress, label, unit)

        yield watch
