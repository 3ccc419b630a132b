"""`softq report` and `softq reproduce`: results that people can look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from softq.cli.shared import AsJson, Jobs

Scale = Literal["small", "paper"]
"""How large an experiment is."""


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUNS", help="Run folders, sweep folders, or folders of them."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="Write the page to this file; figures and numbers go to a folder beside it.",
            dir_okay=False,
        ),
    ] = Path("report.html"),
    as_json: AsJson = False,
) -> None:
    """Write one HTML page of runs and sweeps.

    Give run folders, sweep folders, or folders of them, of any tasks. The page holds tables beside the paper's numbers, figures, examples,
    and the commands to run all of it again. It is one file that opens without a network; figures are also saved as PNG and SVG, numbers as
    CSV, in a folder beside it. Unfinished runs are shown with what they have so far. Needs `softq[plot]`.

    **Examples**

    ```sh
    softq train classification --objective sqdml --tau 1.1 --out runs/first
    softq report runs --out report.html
    # the files that were written, for a program
    softq report runs/first --out first.html --json
    ```

    **Next.** Open the page in a browser; print it from there for a PDF.
    """
    from softq.cli.reproduction import write_page

    write_page(runs, out, as_json=as_json)


def reproduce(
    context: typer.Context,
    task: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="Run this experiment.  [default: all of them]"),
    ] = None,
    scale: Annotated[
        Scale,
        typer.Option(help="Choose small (minutes on two cores) or paper (the sizes of the paper)."),
    ] = "small",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=(
                "Read the files of an experiment from this folder: train.tsv, dev.tsv and test.tsv of"
                " translation, .conllu of parsing, .conll of "
                "ner, .captions.tsv of captioning with .features.npy; names such as en-train.tsv.gz"
                " will do. Without a test file, half of dev "
                "is kept for testing."
            ),
        ),
    ] = None,
    jobs: Jobs = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the results to this folder.  [default: reproduction/SCALE]", file_okay=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the paper's experiments and write one page of their results.

    It is a sweep of each experiment with the settings of `recipes/`, and a report of them all beside the paper's numbers. Small ones take
    minutes on two cores and need no data; those at the paper's scale are meant for a GPU and for corpora that you name. Run again, it
    resumes. Needs `softq[plot]`.

    **Examples**

    ```sh
    # every experiment, small
    softq reproduce
    # one of them, two runs at a time
    softq reproduce ner --jobs 2
    # flags of the recipe work here, too
    softq reproduce classification --inputs 10000 --out reproduction/quick
    ```

    At the paper's scale, with files named one by one or as a folder that holds train.tsv, dev.tsv and test.tsv:

    ```sh
    softq reproduce classification --scale paper
    softq reproduce translation --scale paper --train train.tsv --dev dev.tsv --test test.tsv
    softq reproduce translation --scale paper --data DIR --out reproduction/folder
    ```

    **Next.** Open report.html in the folder of the results; `softq sweep` does the same with grids of your own.
    """
    from softq.cli.reproduction import run_experiments

    run_experiments(task, context.args, scale, data, jobs, out, as_json=as_json)
