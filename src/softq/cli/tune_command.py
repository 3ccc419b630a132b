"""`softq tune`: what a right entity label should earn in decoding, chosen on development data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softq.cli.kinds import TAGGER, find_kind
from softq.cli.predict_command import MODEL_HELP
from softq.cli.shared import AsJson, make_table, print_json, print_line, results_console
from softq.errors import DataError

if TYPE_CHECKING:
    from softq.linear.entity_weights import WeightChoice, WeightRow


def tune(
    model: Annotated[Path, typer.Argument(metavar="RUN", help=MODEL_HELP)],
    dev: Annotated[
        Path,
        typer.Argument(
            metavar="DEV",
            help=(
                "Column file of development sentences, the true label in the last column; not that"
                " of training. Plain, .gz or .xz."
            ),
        ),
    ],
    beta: Annotated[
        float,
        typer.Option(help="Weigh recall against precision: 1, as much; 2, recall; 0.5, precision."),
    ] = 1.0,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the table to this file, as CSV.", dir_okay=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose how a tagger of entities trades precision for recall, without training it again.

    The entity weight is what a right entity label earns where a right `O` earns 1; decoding looks for the labels of the highest expected
    reward. A larger weight finds more entities, of which fewer are right. Each of several weights labels the development sentences, and
    the one of the best F is chosen.

    **Examples**

    ```sh
    softq tune runs/names dev.conll
    softq tune runs/names dev.conll --beta 2 --out weights.csv
    softq predict runs/names new.conll --entity-weight 2 --out tagged.conll
    softq evaluate runs/names test.conll --entity-weight 2
    ```

    **Next.** `softq predict` and `softq evaluate` take the weight as `--entity-weight`; the model stays as it is.
    """
    kind = find_kind(model)
    if kind is not TAGGER:
        raise DataError(f"softq tune is for taggers of entities, and {model} is a {kind.name}")
    own, choice = kind.code.tune(model, dev, beta)
    if out is not None:
        _write(choice, out)
    if as_json:
        facts = {"model": str(model), "file": str(dev), "beta": beta, "out": out and str(out)}
        facts |= {"own": _scores(own), "best": choice.best._asdict()}
        print_json("tune", facts | {"weights": [row._asdict() for row in choice.rows]})
        return
    console = results_console()
    rows = [("as it is", own), *((f"{row.weight:g}", row) for row in choice.rows)]
    marks = ["", *("best" if row is choice.best else "" for row in choice.rows)]
    console.print(
        make_table(
            ("entity weight", "precision", "recall", f"F{beta:g}", ""),
            [
                (name, *(f"{value:.4f}" for value in row[1:]), mark)
                for (name, row), mark in zip(rows, marks, strict=True)
            ],
        )
    )
    print_line(
        console,
        f"best on {dev}: --entity-weight {choice.best.weight:g}"
        + (f" ({out} has the table)" if out is not None else ""),
    )


def _scores(row: WeightRow) -> dict[str, float]:
    """Scores of a row that has no weight."""
    return {name: value for name, value in row._asdict().items() if name != "weight"}


def _write(choice: WeightChoice, out: Path) -> None:
    from softq.cli.predict_command import opened_for_writing
    from softq.lab.report.content import Column, Table, to_csv

    columns = [Column(name) for name in type(choice.best)._fields]
    with opened_for_writing(out) as file:
        file.write(to_csv(Table("weights", "", columns, choice.rows)).encode())
