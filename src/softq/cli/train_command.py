"""`softq train`: one model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from softq.annotators.reliability import Reliability
from softq.cli.progress import progress_bars
from softq.cli.shared import (
    crossing_trees,
    find_recipe,
    of_files,
    one_line_errors,
    parts_of,
    results_console,
    split_flags,
    tell,
    too_long,
)
from softq.cli.train_lm import names_lm, train_lm_command
from softq.errors import DataError, RecipeError, RunError
from softq.lab.processes import find_workers
from softq.lab.recipe import recipe_hash, to_toml
from softq.lab.run import RECIPE
from softq.lab.tasks import train_cells
from softq.lab.tasks.captioning import CaptioningRecipe
from softq.lab.tasks.ner_data import label
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.lab.tasks.translation import TranslationRecipe

_BEST_AND_WORST = 5  # annotators that are shown of each


def train(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(metavar="TASK|RECIPE", help="A task, a recipe of softq, or a .toml file."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder.  [default: runs/TASK-OBJECTIVE-HASH]", file_okay=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out; it needs no recipe.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the resolved recipe, with its explanations, and stop."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Train one model by ML, RAML or SQDML.

    Name a task and the files to learn from; without files a task makes its own data from a seed. `--objective ml` is plain likelihood,
    `raml` aims at the reward of one reference, `sqdml` at the mean reward of several; both need a temperature, `--tau`, and
    `softq sweep` finds a good one.

    Out comes a run folder: the resolved recipe, the environment, metrics (JSON lines and, with `softq[tensorboard]`, TensorBoard events),
    and the best and last checkpoints. The best is kept by its score on `--dev`. Ctrl-C, or a kill, leaves a run that `--resume` ends with
    the same numbers.

    **Examples**

    ```sh
    # nothing but this is needed
    softq train classification --objective raml --tau 2.4 --out runs/raml
    softq train ner --train train.conll --dev dev.conll --objective raml --tau 0.2 --out runs/names
    # go on with it, if it was stopped
    softq train --resume --out runs/names
    softq predict runs/names new.conll --out tagged.conll
    ```

    A recipe is a TOML file; every key of it is also a flag, and flags win:

    ```sh
    softq train ner --dry-run > mine.toml
    softq train mine.toml --train train.conll --dev dev.conll --c2 0.3 --out runs/mine
    ```

    Several processes or GPUs, with `softq[distributed]`:

    ```sh
    accelerate launch -m softq train classification --objective sqdml --tau 1.1
    ```

    **Next.** `softq evaluate` scores a model on other files, `softq report` shows runs side by side, `softq sweep` compares many.
    """
    with one_line_errors():
        what, flags = split_flags(what, context.args)
        if what is None:
            if not resume or out is None:
                raise RecipeError(
                    "name a task or a recipe, such as softq train classification; only --resume --out RUN needs none"
                )
            if not (out / RECIPE).is_file():
                raise RunError(f"{out} holds no run to go on with: there is no {RECIPE} in it")
            what = str(out / RECIPE)
        if names_lm(what):
            train_lm_command(what, flags, out, resume=resume, dry_run=dry_run, as_json=as_json)
            return
        task, recipe, _ = find_recipe(what, flags)
        if dry_run:
            typer.echo(to_toml(recipe, task=task.name, explain=True), nl=False)
            return
        out = (
            out
            or Path("runs")
            / f"{task.name}-{recipe.objective.name}-{recipe_hash(recipe, task=task.name)}"
        )
        workers = find_workers(recipe.training.device)
        with progress_bars() as watch:
            watcher = watch(str(recipe.objective)) if workers.is_main else None
            result = train_cells(
                task, [recipe], out, resume=resume, watcher=watcher, workers=workers
            )
        if not workers.is_main:
            return
        cell, reliability = result["cells"][0], _reliability(recipe)
        if as_json:
            listed = (
                {"annotators": [row._asdict() for row in reliability.annotators]}
                if reliability
                else {}
            )
            typer.echo(json.dumps(result | listed | {"run": str(out)}))
            return
        found = (
            f"{task.metric} {cell['dev']:.4f} dev, {cell['test']:.4f} test (epoch {cell['epoch']})"
        )
        if of_files(recipe):
            found = _scores_of_parts(recipe, cell)
        typer.echo(f"{recipe.objective}, seed {cell['seed']}: {found}")
        if reliability:
            _show_annotators(reliability, results_console())
        for told in filter(None, (crossing_trees(cell), too_long(cell))):
            typer.echo(told)
        typer.echo(f"reward: {result['signature']}\nrun: {out}")


def _scores_of_parts(recipe: Any, cell: Mapping[str, Any]) -> str:
    """Scores of both parts of a tagger, parser or translator, and what the parts are."""
    shown = {"uas": "UAS", "las": "LAS"}
    if isinstance(recipe, NerRecipe):
        shown = {"f1": "F1", "token_accuracy": "token accuracy"}
    elif isinstance(recipe, CaptioningRecipe):
        shown = {
            "average_reward": "average reward",
            "corpus_bleu": "corpus BLEU",
            "cider_d": "CIDEr-D",
        }
    elif isinstance(recipe, TranslationRecipe):
        shown = {
            "sentence_bleu": "sentence BLEU",
            "corpus_bleu": "corpus BLEU",
            "average_reward": "average reward",
        }
    shown |= {"exact_match": "exact match"}
    return "; ".join(
        f"{part} "
        + ", ".join(f"{title} {cell[f'{part}_{name}']:.4f}" for name, title in shown.items())
        + f" ({of})"
        for part, of in zip(("dev", "test"), parts_of(recipe.data), strict=True)
    )


def _reliability(recipe: Any) -> Reliability | None:
    """What training has found of a tagger's annotators, None where it has not asked."""
    if not isinstance(recipe, NerRecipe) or (
        recipe.annotations.weights == "uniform" and recipe.annotations.references != "dawid-skene"
    ):
        return None
    annotations, mend = recipe.annotations, recipe.model.constraints in ("target", "model")
    try:
        return label(
            recipe.data, annotations.references, annotations.ties, annotations.weights, mend
        ).reliability
    except (
        DataError
    ) as error:  # a run that was finished long ago has its scores even where the data are gone
        tell(f"the annotators are estimated from the training data: {error}")
        return None


def _show_annotators(reliability: Reliability, console: Console) -> None:
    """The best and the worst, or all of a few, heaviest first."""
    rows = sorted(reliability.annotators, key=lambda row: -row.weight)
    few = len(rows) <= 2 * _BEST_AND_WORST
    how_many = f"{len(rows)}" if few else f"best and worst {_BEST_AND_WORST} of {len(rows):,}"
    table = Table(
        title=f"annotators: {how_many}, estimated by {reliability.model}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("annotator")
    for title in ("tokens", "accuracy", "precision", "recall", "weight"):
        table.add_column(title, justify="right")
    for place, (name, tokens, *shares) in enumerate(rows):
        if few or not _BEST_AND_WORST <= place < len(rows) - _BEST_AND_WORST:
            at_the_gap = not few and place == _BEST_AND_WORST - 1
            table.add_row(
                escape(name),
                f"{tokens:,}",
                *(f"{share:.4f}" for share in shares),
                end_section=at_the_gap,
            )
    console.print(table)
