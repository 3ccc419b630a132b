"""The command line: `softq theory` and `softq bench`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import softq
from softq.checks import check_tau
from softq.errors import SoftqError, TemperatureError
from softq.rewards import Matrix
from softq.theory import Problem, TheoryTable, four_class_problem, theory_table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
app.add_typer(bench, name="bench")

DEFAULT_TAUS = ("0.5", "1", "1.5", "2", "2.4", "3")
MOST_TAUS = 10_000  # of one range; more is a slip of the pen


class Device(StrEnum):
    """Where a benchmark runs."""

    cpu = "cpu"
    cuda = "cuda"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softq {softq.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)] = False,
) -> None:
    """Train structured predictors toward the metric they are judged by.

    **First steps**

    - `softq theory`: what RAML and SQDML aim at, in numbers, on a problem small enough to solve exactly
    - `softq bench core`: how fast the losses are on this machine

    Every command has its own `--help`; with `--json` it prints one JSON object for other programs to read.
    """


@app.command()
def theory(
    tau: Annotated[
        list[str] | None,
        typer.Option(help="Temperature: a number, several as 0.5,1,2, or a range FROM:TO:STEP. Repeatable.", metavar="TAU"),
    ] = None,
    grid: Annotated[int, typer.Option(min=1, max=5000, help="Inputs along each side of the square.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Show the paper's theory, in exact numbers, on its four-class problem.

    An input is a point of a square, each corner stands for a class, and a right answer earns more in some classes than in
    others. The Bayes rule earns the most that any decision can. Maximum likelihood (ML) ignores the rewards. SQDML learns
    Q ∝ exp(expected reward / tau), which decides like the Bayes rule at any temperature; RAML learns Q', a mean of such
    distributions that is easier to estimate.

    KL(Q‖Q') is the price of that ease. The table shows it beside four upper bounds, from the sharpest to Theorem 1 of the
    paper, and what each objective earns: as tau grows, the gap closes and RAML's reward climbs from ML's towards the Bayes rule's.

    **Examples**

    - `softq theory`: six temperatures, from near ML to near the Bayes rule
    - `softq theory --tau 0.1 --tau 10`: two temperatures
    - `softq theory --tau 0.5:3:0.5 --grid 200`: 0.5, 1, …, 3 on a coarser grid, in a moment
    - `softq theory --json | jq .rows[0].kl`: one number for a program
    """
    with _one_line_errors():
        taus = [value for text in tau or DEFAULT_TAUS for value in parse_taus(text)]
        problem = four_class_problem(grid)
        table = _compute(problem, taus)
    if as_json:
        typer.echo(json.dumps(_as_json(table, problem, grid)))
    else:
        _show(table, grid)


def parse_taus(text: str) -> list[float]:
    """Temperatures of one ``--tau``: ``"2"``, ``"0.5,1"`` or the range ``"0.5:3:0.5"``, whose end is included.

    >>> parse_taus("0.5:2:0.5")
    [0.5, 1.0, 1.5, 2.0]
    """
    found = []
    for item in text.split(","):
        try:
            numbers = [float(number) for number in item.split(":")]
        except ValueError:
            raise TemperatureError(
                f"--tau must be a positive number, several as 0.5,1,2, or a range like 0.5:3:0.5, got {text!r}"
            ) from None
        if len(numbers) == 1:
            found.append(check_tau(numbers[0]))
        elif len(numbers) == 3:
            found.extend(_range(numbers[0], numbers[1], numbers[2], text))
        else:
            raise TemperatureError(f"a range of --tau must have three numbers, FROM:TO:STEP, got {len(numbers)} in {text!r}")
    return found


def _range(first: float, last: float, step: float, text: str) -> list[float]:
    for end in (first, last):
        check_tau(end)
    if not 0.0 < step < float("inf") or last < first:
        raise TemperatureError(f"a range of --tau must climb, FROM <= TO by a positive STEP, got {text!r}")
    steps = (last - first) / step + 1e-9  # a hair more, so that rounding does not lose the end
    if steps > MOST_TAUS:
        raise TemperatureError(f"a range of --tau must have at most {MOST_TAUS} steps, got {steps:.0f} in {text!r}")
    return [round(first + i * step, 12) for i in range(int(steps) + 1)]


def _compute(problem: Problem, taus: list[float]) -> TheoryTable:
    """Compute the table, one temperature at a time behind a progress bar where somebody watches."""
    watch = Console(stderr=True)
    pieces = [
        theory_table(problem, [tau]) for tau in track(taus, "temperatures", console=watch, transient=True, disable=not watch.is_terminal)
    ]
    return pieces[0]._replace(rows=[row for piece in pieces for row in piece.rows])


def _as_json(table: TheoryTable, problem: Problem, grid: int) -> dict[str, object]:
    fields = table._asdict() | {"rows": [row._asdict() for row in table.rows]}
    return {
        "command": "theory",
        "softq": softq.__version__,
        "problem": "four-class",
        "grid": grid,
        "reward": Matrix(problem.rewards).signature,
        **fields,
    }


def _show(table: TheoryTable, grid: int) -> None:
    console = Console()
    grown = Table(
        title=f"The paper's four-class problem on a {grid} × {grid} grid", box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left"
    )
    for column in ("tau", "KL(Q‖Q')", "mean KL", "Hoeffding", "closed", "Thm 1", "RAML", "SQDML"):
        grown.add_column(column, justify="right")
    for row in table.rows:
        bounds = (f"{value:.4f}" for value in (row.mean_kl, row.hoeffding, row.closed_form, row.theorem1))
        grown.add_row(f"{row.tau:g}", f"{row.kl:.6f}", *bounds, f"{row.reward_raml:.5f}", f"{row.reward_sqdml:.5f}")
    console.print(grown)
    lines = [
        "KL(Q‖Q') is exact; then come its upper bounds, the sharpest first: E_Y KL(Q‖q(·|Y)), min(R/τ, R²/8τ²), min(R/τ, R²/2τ²), 2R/τ.",
        "RAML and SQDML: expected reward of deciding by Q' and by Q.",
        f"Expected reward of the Bayes rule {table.reward_bayes:.5f}, the best there is, and of ML {table.reward_ml:.5f}, at any tau.",
        f"As tau → 0, KL(Q‖Q') → {table.theorem2_limit:.5f}. Theorem 2 bounds this limit; printed as 1/(1+e^cb), which never exceeds 1/2, "
        "it should read 1/(e^cb-1) (docs/math.md).",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


@bench.callback()
def _bench() -> None:
    """Measure softq on this machine, beside other packages where they are installed."""


@bench.command()
def core(
    rounds: Annotated[int, typer.Option(min=1, help="Turns that every contender gets; the figure is the median.")] = 15,
    device: Annotated[Device | None, typer.Option(help="Where to run; the GPU if there is one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Time loss and gradient of chains and trees against pytorch-crf, torch-struct and SuPar.

    Contenders take turns in one process, so that a slow spell of the machine hits all of them, and their losses are
    checked to agree before they are timed. The peers are optional: `make bench` installs them, and one that is
    missing is left out. The benchmarks come with the source tree, not with the installed package.

    **Examples**

    - `softq bench core`: the whole table, in a few minutes
    - `softq bench core --rounds 3 --device cpu`: a quick look
    - `softq bench core --json > core.json`: for a program
    """
    _run_benchmark("core", rounds, as_json, *(["--device", device.value] if device else []))


@bench.command()
def rewards(
    rounds: Annotated[int, typer.Option(min=1, help="Turns that every contender gets; the figure is the median.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Time rewards and samplers against sacreBLEU, fast-bleu, rapidfuzz and a copy of memory, on two CPU threads.

    Contenders take turns in one process, and what they compute is checked to agree before it is timed. The table says
    which bars are reached; they are meant for a machine that does nothing else.

    The peers are optional: `make bench` installs them, and one that is missing is left out. The benchmarks come with the
    source tree, not with the installed package.

    **Examples**

    - `softq bench rewards`: the whole table, in a minute or two
    - `softq bench rewards --rounds 3`: a quick look
    - `softq bench rewards --json > rewards.json`: for a program
    """
    _run_benchmark("rewards", rounds, as_json)


def _run_benchmark(name: str, rounds: int, as_json: bool, *options: str) -> NoReturn:
    """Run a script of the source tree in a process of its own, and exit as it does."""
    script = Path(softq.__file__).parents[2] / "benchmarks" / f"{name}.py"
    if not script.is_file():
        typer.echo(
            f"softq: the benchmarks come with the source tree, expected {script}; install with `pip install -e .` from a checkout", err=True
        )
        raise typer.Exit(2)
    command = [sys.executable, str(script), "--rounds", str(rounds), *options, *(["--json"] if as_json else [])]
    # The script's own folder leads its import path, which is where its neighbours are.
    raise typer.Exit(subprocess.run(command, check=False, env=os.environ | {"PYTHONUNBUFFERED": "1"}).returncode)  # noqa: S603


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn a SoftqError into one line on stderr and exit code 2."""
    try:
        yield
    except SoftqError as error:
        typer.echo(f"softq: {error}", err=True)
        raise typer.Exit(2) from None
