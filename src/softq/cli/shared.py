"""What commands share: errors in one line, tables and JSON. Nothing here imports torch, which takes seconds."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import softq
from softq.errors import ConvergenceWarning, DataWarning, SoftqError, StoppedError

if TYPE_CHECKING:
    from softq.lab.report import content

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
TaskOrRecipe = Annotated[
    str | None,
    typer.Argument(metavar="TASK|RECIPE", help="A task, a recipe of softq, or a .toml file."),
]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        help="Train this many runs at a time, each in a process of its own. Tasks that train all"
        " models as one ignore it.",
    ),
]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn a `SoftqError` into one line on stderr and exit code 2; Ctrl-C into a line and exit code 130, as shells do.

    A `ConvergenceWarning` or `DataWarning` is one line on stderr too.
    """
    try:
        with _one_line_warnings():
            yield
    except StoppedError as stop:
        tell(str(stop))
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        tell("stopped; a run that has begun keeps its checkpoints: add --resume to continue it")
        raise typer.Exit(130) from None
    except SoftqError as error:
        tell(str(error))
        raise typer.Exit(2) from None


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_in_one_line(
            message: Warning | str, category: type[Warning], *place: Any, **options: Any
        ) -> None:
            if issubclass(category, (ConvergenceWarning, DataWarning)):
                tell(str(message))
            else:
                show(message, category, *place, **options)

        warnings.showwarning = show_in_one_line
        warnings.simplefilter("always", ConvergenceWarning)  # each run of a sweep may have its own
        yield


def tell(message: str) -> None:
    """One line on stderr."""
    if os.environ.get("RANK", "0") == "0":  # of several processes, one speaks
        typer.echo(f"softq: {message}", err=True)


def print_json(command: str, facts: dict[str, Any]) -> None:
    """Print one JSON object with the command and the version first."""
    typer.echo(json.dumps({"command": command, "softq": softq.__version__, **facts}))


def number(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return None if math.isnan(value) else value


def results_console() -> Console:
    """Where tables go; wide where nobody's terminal says how wide it is."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def print_line(console: Console, line: str) -> None:
    """Print a line as it is: paths are not marked up, broken or coloured."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def make_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    left: Sequence[int] = (0,),
) -> Table:
    """A table whose first column is left-aligned (those of ``left``) and the others right-aligned; an empty row is a line between sections."""
    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        show_header=any(titles),
    )
    for place, heading in enumerate(titles):
        table.add_column(escape(heading), justify="left" if place in left else "right")
    for row in rows:
        if row:
            table.add_row(*map(escape, row))
        else:
            table.add_section()
    return table


def as_text(table: content.Table) -> Table:
    """A table of a report for the console, without its note."""
    from softq.lab.report.content import show  # numpy takes a moment

    return make_table(
        [column.title for column in table.columns],
        [
            [show(value, column.format) for value, column in zip(row, table.columns, strict=True)]
            for row in table.rows
        ],
        table.caption,
        [place for place, column in enumerate(table.columns) if not column.format],
    )
