"""The command line."""

from __future__ import annotations

from typing import Annotated

import typer

import softq
from softq.cli.bench_command import bench
from softq.cli.data_command import data
from softq.cli.evaluate_command import evaluate
from softq.cli.predict_command import predict
from softq.cli.report_command import report, reproduce
from softq.cli.shared import list_flags
from softq.cli.sweep_command import sweep
from softq.cli.theory_command import theory
from softq.cli.train_command import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
FLAGS_OF_RECIPES = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command(context_settings=FLAGS_OF_RECIPES, epilog=list_flags())(train)
app.command(context_settings=FLAGS_OF_RECIPES, epilog=list_flags(sweep=True))(sweep)
app.command(context_settings=FLAGS_OF_RECIPES, epilog=list_flags(sweep=True))(reproduce)
app.command()(predict)
app.command()(evaluate)
app.command()(report)
app.command()(theory)
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")


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

    - `softq reproduce`: the paper's experiments, small enough for a laptop, and a page of the results
    - `softq train classification --objective sqdml --tau 1.1`: one model; `softq sweep` trains many, `softq report` shows them
    - `softq train ner --train FILE --dev FILE --out runs/ner`: a tagger of your own
    - `softq train parsing --train FILE --dev FILE --out runs/trees`: a dependency parser of your own treebank (CoNLL-U)
    - `softq train translation --train FILE --dev FILE --out runs/mt`, `softq train captioning --train FILE --dev FILE --out runs/captions`
    - `softq predict runs/ner FILES`, `softq evaluate runs/ner FILE`: labels or trees, and how good they are
    - `softq data check FILES`, `softq data stats FILES`: faults and counts of column files and treebanks, and how far annotators agree
    - `softq theory`: what RAML and SQDML aim at, in numbers, on a problem small enough to solve exactly
    - `softq theory --references FILE --reward bleu`: what a temperature means for your own references
    - `softq bench core`, `softq bench rewards`: how fast losses and rewards are on this machine
    - `softq bench estimators`: what sampled candidates cost in accuracy

    Every command has its own `--help`; with `--json` it prints one JSON object for other programs to read.
    """
