"""`softq train`: one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softq.cli.progress import progress_bars
from softq.cli.shared import AsJson, make_table, results_console, tell
from softq.errors import DataError, RecipeError, RunError

if TYPE_CHECKING:
    from rich.table import Table

    from softq.annotators.reliability import Reliability
    from softq.lab.tasks import Task
    from softq.lab.tasks.lm_recipe import LmRecipe

_BEST_AND_WORST = 5  # annotators that are shown of each


def train(
    context: typer.Context,
    what: Annotated[
        str | None,
        typer.Argument(metavar="TASK|RECIPE", help="A task, a recipe of softq, or a .toml file."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the run to this folder.  [default: runs/TASK-OBJECTIVE-HASH]",
            file_okay=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in --out; it needs no recipe.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the resolved recipe, with its explanations, and stop."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train one model by ML, RAML or SQDML.

    Name a task and the files to learn from; without files a task makes its own data from a seed. `--objective ml` is plain likelihood,
    `raml` aims at the reward of one reference, `sqdml` at the mean reward of several; both need a temperature, `--tau`, and
    `softq sweep` finds a good one.

    The run folder holds the resolved recipe, the environment, metrics (JSON lines and, with `softq[tensorboard]`, TensorBoard events),
    and the best and last checkpoints. The best is kept by its score on `--dev`. Ctrl-C, or a kill, leaves a run that `--resume` ends with
    the same numbers.

    **Examples**

    ```sh
    # nothing but this is needed
    softq train classification --objective raml --tau 2.4 --out runs/raml
    softq train ner --train train.conll --dev dev.conll --objective raml --tau 0.1 --out runs/names
    # resume it, if it was stopped
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
    from softq.cli.recipes import (
        crossing_trees,
        find_lm_recipe,
        find_recipe,
        names_lm,
        split_flags,
        too_long,
    )
    from softq.lab.recipe import recipe_hash, to_toml
    from softq.lab.run import RECIPE
    from softq.lab.tasks.lm_recipe import BEST
    from softq.lab.tasks.lm_recipe import TASK as LM

    what, flags = split_flags(what, context.args)
    if what is None:
        if not resume or out is None:
            raise RecipeError(
                "name a task or a recipe, such as softq train classification; only --resume --out"
                " RUN needs none"
            )
        if not (out / RECIPE).is_file():
            raise RunError(f"{out} holds no run to resume: there is no {RECIPE} in it")
        what = str(out / RECIPE)
    note = ""
    if names_lm(what):
        (recipe, note), name = find_lm_recipe(what, flags), LM
    else:
        task, recipe, _ = find_recipe(what, flags)
        name = task.name
    if dry_run:
        typer.echo(to_toml(recipe, task=name, explain=True), nl=False)
        return
    out = out or Path("runs") / f"{name}-{recipe.objective.name}-{recipe_hash(recipe, task=name)}"
    if note and not as_json:
        typer.echo(note)
    result = (
        _train_text_model(recipe, out, resume=resume)
        if name == LM
        else _train_task(task, recipe, out, resume=resume)
    )
    if result is None:  # another process tells
        return
    reliability = _reliability(recipe)
    if as_json:
        listed = [row._asdict() for row in reliability.annotators] if reliability else None
        extra = {} if listed is None else {"annotators": listed}
        typer.echo(json.dumps({**result, **extra, "run": str(out)}))
        return
    (cell,) = result["cells"]
    if name == LM:
        typer.echo(
            f"{recipe.objective}, seed {cell['seed']}: best by {recipe.evaluation.best_by} after"
            f" epoch {cell['epoch']:g}"
        )
        results_console().print(_text_model_table(cell, recipe))
        typer.echo(f"reward: {result['signature']}\nrun: {out} (model: {out / BEST})")
        return
    typer.echo(f"{recipe.objective}, seed {cell['seed']}: {_scores_of_splits(task, recipe, cell)}")
    if reliability:
        results_console().print(_annotator_table(reliability))
    for told in filter(None, (crossing_trees(cell), too_long(cell))):
        typer.echo(told)
    typer.echo(f"reward: {result['signature']}\nrun: {out}")


def _train_task(task: Task, recipe: Any, out: Path, *, resume: bool) -> Mapping[str, Any] | None:
    """Train a model of a task; None in a process that is not the main one of several."""
    from softq.lab.processes import find_workers
    from softq.lab.tasks import train_cells

    workers = find_workers(recipe.training.device)
    with progress_bars() as watch:
        watcher = watch(str(recipe.objective)) if workers.is_main else None
        result = train_cells(task, [recipe], out, resume=resume, watcher=watcher, workers=workers)
    return result if workers.is_main else None


def _train_text_model(recipe: LmRecipe, out: Path, *, resume: bool) -> Mapping[str, Any]:
    """Train a text model, by the Trainer of Transformers."""
    from softq.lab.tasks.lm import train_lm

    with progress_bars() as watch:
        return train_lm(recipe, out, resume=resume, watcher=watch(str(recipe.objective)))


def _text_model_table(cell: Mapping[str, Any], recipe: LmRecipe) -> Table:
    from softq.cli.recipes import LM_TITLES

    samples = recipe.evaluation.mbr_samples
    of = Path(recipe.data.dev or recipe.data.train).name or "built-in world"
    titles = [f"dev ({of})", f"beam of {recipe.evaluation.beams}"]
    titles += [f"MBR, {samples} samples", "gap"] if samples else []
    rows = []
    for name, title in LM_TITLES.items():
        if name in cell:
            digits = 2 if name.startswith(("sacrebleu", "seconds")) else 4
            row = [title, f"{cell[name]:.{digits}f}"]
            if samples:
                mbr = cell[f"mbr_{name}"]
                row += [f"{mbr:.{digits}f}", f"{mbr - cell[name]:+.{digits}f}"]
            rows.append(row)
    return make_table(titles, rows)


_SHOWN = {  # scores of each split, by the task
    "ner": {"f1": "F1", "token_accuracy": "token accuracy"},
    "tag": {"token_accuracy": "token accuracy"},
    "parsing": {"uas": "UAS", "las": "LAS"},
    "translation": {
        "sentence_bleu": "sentence BLEU",
        "corpus_bleu": "corpus BLEU",
        "average_reward": "average reward",
    },
    "captioning": {
        "average_reward": "average reward",
        "corpus_bleu": "corpus BLEU",
        "cider_d": "CIDEr-D",
    },
}


def _scores_of_splits(task: Task, recipe: Any, cell: Mapping[str, Any]) -> str:
    """Scores of the development and the test split, and what these splits are."""
    from softq.cli.recipes import of_files, parts_of

    if not of_files(recipe):
        return (
            f"{task.metric} {cell['dev']:.4f} dev, {cell['test']:.4f} test (epoch {cell['epoch']})"
        )
    shown = _SHOWN[task.name] | {"exact_match": "exact match"}
    told = []
    for split, of in zip(("dev", "test"), parts_of(recipe.data), strict=True):
        scores = (f"{title} {cell[f'{split}_{name}']:.4f}" for name, title in shown.items())
        told.append(f"{split} {', '.join(scores)} ({of})")
    return "; ".join(told)


def _reliability(recipe: Any) -> Reliability | None:
    """The annotators of a tagger as training has estimated them, None where it has not."""
    annotations = getattr(recipe, "annotations", None)
    if annotations is None or (
        annotations.weights == "uniform" and annotations.references != "dawid-skene"
    ):
        return None
    from softq.lab.tasks.ner_data import label

    mend = recipe.model.constraints in ("target", "model")
    try:
        return label(
            recipe.data, annotations.references, annotations.ties, annotations.weights, mend
        ).reliability
    except DataError as error:  # a finished run has its scores even where the data are gone
        tell(f"the annotators are estimated from the training data: {error}")
        return None


def _annotator_table(reliability: Reliability) -> Table:
    """The best and the worst, or all of a few, heaviest first."""
    ordered = sorted(reliability.annotators, key=lambda row: -row.weight)
    few = len(ordered) <= 2 * _BEST_AND_WORST
    how_many = f"{len(ordered)}" if few else f"best and worst {_BEST_AND_WORST} of {len(ordered):,}"
    rows: list[Sequence[str]] = [
        (name, f"{tokens:,}", *(f"{share:.4f}" for share in shares))
        for name, tokens, *shares in ordered
    ]
    if not few:
        rows[_BEST_AND_WORST:-_BEST_AND_WORST] = [()]
    titles = ("annotator", "tokens", "accuracy", "precision", "recall", "weight")
    return make_table(titles, rows, f"annotators: {how_many}, estimated by {reliability.model}")
