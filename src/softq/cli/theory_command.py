"""`softq theory`: the paper's four-class problem, and what a temperature means for given references."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import track

from softq.cli.options import option, refuse_others, takes_options
from softq.cli.shared import AsJson, make_table, print_json, print_line, results_console
from softq.options import RewardName

if TYPE_CHECKING:
    from softq.theory import TheoryTable

DEFAULT_TAUS = ("0.5", "1", "1.5", "2", "2.4", "3")
CURVE_TAUS = ("0.05", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.8", "1", "1.5", "2")
_SIDE = 1000  # inputs along each side of the square


@dataclass(frozen=True)
class TheoryOptions:
    """Options of one of the two tables."""

    grid: int | None = option(
        None,
        f"Set the number of inputs along each side of the square.  [default: {_SIDE}]",
        min=1,
        max=5000,
    )
    reward: RewardName = option(
        RewardName.bleu, "Choose the reward of a sentence against a reference.  [default: bleu]"
    )
    objective: Literal["raml", "sqdml"] = option(
        "raml",
        "Choose the objective; they differ where an example has several references.  [default:"
        " raml]",
    )
    mass: list[float] | None = option(
        None,
        "Suggest a temperature that leaves this mass on the references. Repeatable.  [default: 0.1,"
        " 0.5, 0.9]",
    )
    size: int = option(
        100, "Set the number of candidates per example, references included.  [default: 100]", min=2
    )
    max_n: int = option(4, "Set the longest n-gram that candidates replace.  [default: 4]", min=1)
    examples: int = option(1000, "Read at most this many lines.  [default: 1000]", min=1)
    seed: int = option(
        0, "Set the random seed of the candidates.  [default: 0]", min=0, max=2**63 - 1
    )
    plot: Path | None = option(
        None, "Draw the curves there (.svg, .png or .pdf; needs matplotlib).", dir_okay=False
    )


_OF_THE_PROBLEM = ("grid",)
_PANELS = {
    name: "The paper's problem" if name in _OF_THE_PROBLEM else "Your references"
    for name in TheoryOptions.__dataclass_fields__
}


@takes_options(TheoryOptions, _PANELS)
def theory(
    options: TheoryOptions,
    tau: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Set the temperature: a number, several as 0.5,1,2, or a range FROM:TO:STEP."
                " Repeatable."
            ),
            metavar="TAU",
        ),
    ] = None,
    references: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Read references from a text file: an example per line, words by spaces, several"
                " references by tabs; plain, .gz or .xz."
            ),
            dir_okay=False,
        ),
    ] = None,
    as_json: AsJson = False,
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
    from softq.lab.ranges import parse_taus

    given = tau or (DEFAULT_TAUS if references is None else CURVE_TAUS)
    taus = [value for text in given for value in parse_taus(text)]
    if references is None:
        refuse_others(
            options,
            _OF_THE_PROBLEM,
            lambda _: "your references",
            "none are given",
            "add --references FILE",
        )
        _show_problem(options.grid or _SIDE, taus, as_json=as_json)
        return
    from softq.cli import curves

    refuse_others(
        options,
        set(_PANELS) - {*_OF_THE_PROBLEM},
        lambda _: "the four-class problem",
        "--references asks for yours",
    )
    curves.show(references, taus, options, as_json=as_json)


def _show_problem(side: int, taus: list[float], *, as_json: bool) -> None:
    """The table, computed one temperature at a time behind a progress bar where somebody watches."""
    from softq.rewards import Matrix
    from softq.theory import four_class_problem, theory_table

    problem = four_class_problem(side)
    watch = Console(stderr=True)
    shown = track(
        taus, "temperatures", console=watch, transient=True, disable=not watch.is_terminal
    )
    pieces = [theory_table(problem, [tau]) for tau in shown]
    table = pieces[0]._replace(rows=[row for piece in pieces for row in piece.rows])
    if as_json:
        facts = {"problem": "four-class", "grid": side, "reward": Matrix(problem.rewards).signature}
        rows = [row._asdict() for row in table.rows]
        print_json("theory", facts | table._asdict() | {"rows": rows})
    else:
        _show(table, side)


def _show(table: TheoryTable, grid: int) -> None:
    console = results_console()
    rows = [
        (
            f"{row.tau:g}",
            f"{row.kl:.6f}",
            *(
                f"{value:.4f}"
                for value in (row.mean_kl, row.hoeffding, row.closed_form, row.theorem1)
            ),
            f"{row.reward_raml:.5f}",
            f"{row.reward_sqdml:.5f}",
        )
        for row in table.rows
    ]
    titles = ("tau", "KL(Q‖Q')", "mean KL", "Hoeffding", "closed", "Thm 1", "RAML", "SQDML")
    heading = f"The paper's four-class problem on a {grid} × {grid} grid"
    console.print(make_table(titles, rows, heading))
    lines = [
        (
            "KL(Q‖Q') is exact; then come its upper bounds, the sharpest first: E_Y KL(Q‖q(·|Y)),"
            " min(R/τ, R²/8τ²), min(R/τ, R²/2τ²), 2R/τ."
        ),
        "RAML and SQDML: expected reward of deciding by Q' and by Q.",
        (
            f"Expected reward of the Bayes rule {table.reward_bayes:.5f}, the best there is, and of"
            f" ML {table.reward_ml:.5f}, at any tau."
        ),
        (
            f"As tau → 0, KL(Q‖Q') → {table.theorem2_limit:.5f}. Theorem 2 bounds this limit;"
            " printed as 1/(1+e^cb), which never exceeds 1/2, it should read 1/(e^cb-1)"
            " (docs/math.md)."
        ),
    ]
    for line in lines:
        print_line(console, line)
