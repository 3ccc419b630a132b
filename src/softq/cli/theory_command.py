"""`softq theory`: the paper's four-class problem, and what a temperature means for given references."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

import softq
from softq.cli import curves
from softq.cli.curves import Objective
from softq.cli.shared import one_line_errors, results_console
from softq.errors import DataError
from softq.lab.ranges import parse_taus
from softq.rewards import Matrix
from softq.rewards.names import RewardName
from softq.theory import Problem, TheoryTable, four_class_problem, theory_table

DEFAULT_TAUS = ("0.5", "1", "1.5", "2", "2.4", "3")
CURVE_TAUS = ("0.05", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.8", "1", "1.5", "2")


def theory(
    context: typer.Context,
    tau: Annotated[
        list[str] | None,
        typer.Option(
            help="Temperature: a number, several as 0.5,1,2, or a range FROM:TO:STEP. Repeatable.",
            metavar="TAU",
        ),
    ] = None,
    grid: Annotated[
        int, typer.Option(min=1, max=5000, help="Inputs along each side of the square.")
    ] = 1000,
    references: Annotated[
        Path | None,
        typer.Option(
            help="Text file: an example per line, words by spaces, several references by tabs; plain, .gz or .xz.",
            dir_okay=False,
        ),
    ] = None,
    reward: Annotated[
        RewardName, typer.Option(help="Reward of a sentence against a reference.")
    ] = RewardName.bleu,
    objective: Annotated[
        Objective,
        typer.Option(help="RAML or SQDML; they differ where an example has several references."),
    ] = Objective.raml,
    mass: Annotated[
        list[float] | None,
        typer.Option(
            help="Suggest a temperature that leaves this mass on the references. Repeatable."
        ),
    ] = None,
    size: Annotated[
        int, typer.Option(min=2, help="Candidates per example, references included.")
    ] = 100,
    max_n: Annotated[int, typer.Option(min=1, help="Longest n-gram that candidates replace.")] = 4,
    examples: Annotated[int, typer.Option(min=1, help="Read at most so many lines.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the candidates.")] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the curves there (.svg, .png or .pdf; needs matplotlib).", dir_okay=False
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """See what a temperature does: the paper's theory in numbers, or your own references.

    **The paper's problem.** An input is a point of a square, each corner stands for a class, and a right answer earns more in some
    classes than in others. The Bayes rule earns the most that any decision can. Maximum likelihood (ML) ignores the rewards. SQDML learns
    Q ∝ exp(expected reward / tau), which decides like the Bayes rule at any temperature; RAML learns Q', a mean of such
    distributions that is easier to estimate. KL(Q‖Q') is the price of that ease: the table shows it beside four upper bounds, from the
    sharpest to Theorem 1 of the paper, and what each objective earns. As tau grows, the gap closes and RAML's reward climbs.

    ```sh
    # six temperatures, from near ML to near the Bayes rule
    softq theory
    # 0.5, 1, …, 3 on a coarser grid, in a moment
    softq theory --tau 0.5:3:0.5 --grid 200
    # for a program, such as jq .rows[0].kl
    softq theory --tau 0.1 --tau 10 --json
    ```

    **Your references.** A temperature means nothing by itself: with one reward it leaves nearly all mass on the references, with
    another nearly none. With `--references FILE` the table shows the target at each temperature, on candidates made by n-gram replacement:
    expected reward, mass on the references, entropy, edits, and how many candidates the weights are worth. Choose by the mass
    that stays on the references (`--mass`), before you train:

    ```sh
    softq theory --references refs.txt --reward bleu
    softq theory --references refs.tsv --objective sqdml --size 50 --max-n 3 --mass 0.2 --plot curve.svg
    softq train translation --train train.tsv --dev dev.tsv --objective raml --tau 0.2 --out runs/mt
    ```

    The reward `hamming` needs no candidates: its values are exact over all sentences of the reference's length, at the temperature of the
    paper's footnote, τ/(1 + log(V-1)), V being the number of different words in the lines that were read.

    **Next.** `softq sweep` chooses a temperature by development scores; docs/math.md has the mathematics.
    """
    with one_line_errors():
        _check_together(context, references)
    if references is not None:
        with one_line_errors():
            taus = [value for text in tau or CURVE_TAUS for value in parse_taus(text)]
            curves.show(
                references,
                reward,
                objective,
                taus,
                mass or [0.1, 0.5, 0.9],
                size,
                max_n,
                examples,
                seed,
                plot,
                as_json,
            )
        return
    with one_line_errors():
        taus = [value for text in tau or DEFAULT_TAUS for value in parse_taus(text)]
        problem = four_class_problem(grid)
        table = _compute(problem, taus)
    if as_json:
        typer.echo(json.dumps(_as_json(table, problem, grid)))
    else:
        _show(table, grid)


def _check_together(context: typer.Context, references: Path | None) -> None:
    """Options of the one table given for the other would be ignored, so they are refused."""
    wrong = (
        ("grid",)
        if references is not None
        else ("reward", "objective", "mass", "size", "max_n", "examples", "seed", "plot")
    )
    given = [
        name
        for name in wrong
        if getattr(context.get_parameter_source(name), "name", None) == "COMMANDLINE"
    ]
    if given:
        option = "--" + given[0].replace("_", "-")
        raise DataError(
            f"{option} needs --references FILE"
            if references is None
            else f"{option} is for the four-class problem, not for --references"
        )


def _compute(problem: Problem, taus: list[float]) -> TheoryTable:
    """Compute the table, one temperature at a time behind a progress bar where somebody watches."""
    watch = Console(stderr=True)
    pieces = [
        theory_table(problem, [tau])
        for tau in track(
            taus, "temperatures", console=watch, transient=True, disable=not watch.is_terminal
        )
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
    console = results_console()
    grown = Table(
        title=f"The paper's four-class problem on a {grid} × {grid} grid",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        title_justify="left",
    )
    for column in ("tau", "KL(Q‖Q')", "mean KL", "Hoeffding", "closed", "Thm 1", "RAML", "SQDML"):
        grown.add_column(column, justify="right", overflow="fold")
    for row in table.rows:
        bounds = (
            f"{value:.4f}" for value in (row.mean_kl, row.hoeffding, row.closed_form, row.theorem1)
        )
        grown.add_row(
            f"{row.tau:g}",
            f"{row.kl:.6f}",
            *bounds,
            f"{row.reward_raml:.5f}",
            f"{row.reward_sqdml:.5f}",
        )
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
