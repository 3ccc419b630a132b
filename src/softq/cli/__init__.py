"""The command line."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import softq
from softq.cli.shared import one_line_errors


class _Listed(NamedTuple):
    """A command as `softq --help` lists it.

    Attributes:
        module: of this package, where a function or a group of the command's name is.
        summary: the first line of its own help.
        of_recipe: whether the keys of a task's recipe are flags of it.

    """

    module: str
    summary: str
    of_recipe: bool = False


COMMANDS = {
    "train": _Listed("train_command", "Train one model by ML, RAML or SQDML.", of_recipe=True),
    "sweep": _Listed(
        "sweep_command",
        "Train many models, choose the temperature on development data, and compare with ML.",
        of_recipe=True,
    ),
    "reproduce": _Listed(
        "report_command",
        "Run the paper's experiments and write one page of their results.",
        of_recipe=True,
    ),
    "report": _Listed("report_command", "Write one HTML page of runs and sweeps."),
    "predict": _Listed(
        "predict_command", "Use a model: label words, parse or translate sentences, caption images."
    ),
    "evaluate": _Listed(
        "evaluate_command",
        "Score a model, or the predictions of any program, on a file with the right answers.",
    ),
    "tune": _Listed(
        "tune_command",
        "Choose how a tagger of entities trades precision for recall, without training it again.",
    ),
    "theory": _Listed(
        "theory_command",
        "See what a temperature does: the paper's theory in numbers, or your own references.",
    ),
    "explore": _Listed(
        "explore_command",
        "Explore what a temperature does to RAML and SQDML, on a page in your browser.",
    ),
    "data": _Listed(
        "data_command",
        "Look at files before training: what they hold, what is wrong with them, images as"
        " vectors, samples as rows.",
    ),
    "bench": _Listed(
        "bench_command", "Measure how fast softq is on this machine, beside other packages."
    ),
}
"""Imported when they are called: that way help is there at once, and no command waits for what only others need."""


class _Commands(TyperGroup):
    """Those of `COMMANDS`, of which the summaries stand in until one is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: TyperCommand(name, help=listed.summary) for name, listed in COMMANDS.items()
        } | dict(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what is wrong with its input, and a signal to stop it, is one line."""
        with one_line_errors():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that arguments name, itself and not its summary."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, rest


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def load_command(name: str) -> Any:
    """The command, or the group of commands, of a name in `COMMANDS`."""
    listed = COMMANDS[name]
    found = getattr(import_module(f"softq.cli.{listed.module}"), name)
    if isinstance(found, typer.Typer):
        return get_command(found)
    alone = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    if listed.of_recipe:
        from softq.cli.recipe_help import RecipeCommand, list_tasks

        alone.command(name, cls=RecipeCommand, epilog=list_tasks(name))(found)
    else:
        alone.command(name)(found)
    return get_command(alone)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"softq {softq.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Train structured predictors toward the metric they are evaluated with.

    Likelihood ignores the metric. RAML and SQDML are trained as likelihood is, toward a target that favours outputs of a high reward;
    a temperature, tau, says how far.

    **Look around**, without data of your own; the first takes seconds, the second some minutes:

    ```sh
    softq theory     # what a temperature does, on a problem small enough to solve exactly
    softq reproduce  # the paper's experiments, small, and a page of their results
    ```

    **Your own data.** Check the files, train by likelihood and toward the metric, compare, use the better one. Taggers, parsers,
    translators and captioners all work this way:

    ```sh
    softq data check train.conll dev.conll test.conll
    softq train ner --train train.conll --dev dev.conll --out runs/ml
    softq train ner --train train.conll --dev dev.conll --objective raml --tau 0.1 --out runs/raml
    softq evaluate runs/raml test.conll --against runs/ml
    softq predict runs/raml new.conll --out tagged.conll
    ```

    **Which temperature?** Let development data choose it, over several seeds, and look at the result:

    ```sh
    softq sweep ner --train train.conll --dev dev.conll --test test.conll --objective ml,raml --tau 0.1:0.9:0.2 --out sweeps/names
    softq report runs sweeps --out report.html
    ```

    `softq COMMAND --help` is the guide to a command, and `softq train TASK --help` the one to a task, with all its flags. With `--json` a
    command prints one JSON object, for other programs. Errors are one line and exit code 2; a command that was stopped exits with 130.
    """
