"""Progress bars on stderr, with rate and time left; nothing where stderr is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Task as Bar
from rich.text import Text

from softq.train import Watcher


class _Rate(ProgressColumn):
    """Examples per second, of this process alone: what a resumed run had seen before does not count."""

    def render(self, task: Bar) -> Text:
        """Like ``1.2M examples/s``."""
        if not task.speed:
            return Text("")
        speed, unit = task.speed, ""
        for larger in ("k", "M", "G"):
            if speed < 1000:
                break
            speed, unit = speed / 1000, larger
        return Text(f"{speed:.3g}{unit} examples/s", style="progress.data.speed")


class _Watcher:
    """Shows one run as a bar of its own."""

    def __init__(self, progress: Progress, label: str) -> None:
        self._progress, self._label = progress, label
        self._bar: TaskID | None = None

    def begin(self, examples: int, done: int) -> None:
        """Show the bar."""
        self._bar = self._progress.add_task(self._label, total=examples, completed=done, status="")

    def advance(self, examples: int, status: str) -> None:
        """Move it."""
        if self._bar is not None:
            self._progress.update(self._bar, advance=examples, status=status)


@contextmanager
def progress_bars() -> Iterator[Callable[[str], Watcher]]:
    """A maker of watchers, each with a bar of its own while the block lasts."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield lambda label: _Watcher(progress, label)
