"""`softq train`: one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softq.cli.progress import progress_bars
from softq.cli.shared import AsJson, TaskOrRecipe, make_table, results_console

if TYPE_CHECKING:
    from rich.table import Table

    from softq.lab.tasks import Task
    from softq.lab.tasks.lm_recipe import LmRecipe

_BEST_AND_WORST = 5  # annotators that are shown of each


def train(
    context: typer.Context,
    what: TaskOrRecipe = None,
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
    and the best and last checkpoints. The best is kept by its score on `--dev`. After Ctrl-C or a kill, `--resume` completes the
    run with the same numbers.

    **Examples**

    ```sh
    # needs no files
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
        find_lm_recipe,
        find_recipe,
        names_lm,
        recipe_to_resume,
        split_flags,
    )
    from softq.lab.recipe import recipe_hash, to_toml
    from softq.lab.run import RECIPE
    from softq.lab.tasks.lm_recipe import TASK as LM

    what, flags = split_flags(what, context.args)
    what = what or recipe_to_resume("train", out if resume else None, RECIPE)
    task, note = None, ""
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
        if task is None
        else _train_task(task, recipe, out, resume=resume)
    )
    if result is not None:  # in the main process of several
        _show(result, task, recipe, out, as_json=as_json)


def _show(
    result: Mapping[str, Any], task: Task | None, recipe: Any, out: Path, *, as_json: bool
) -> None:
    """The scores of a model, and where it is."""
    from softq.lab.tasks.lm_recipe import BEST

    facts, (cell,) = result.get("facts", {}), result["cells"]
    if as_json:
        extra = {"annotators": facts["annotators"]} if "annotators" in facts else {}
        typer.echo(json.dumps({**result, **extra, "run": str(out)}))
        return
    if task is None:
        _show_text_model(cell, recipe)
    else:
        _show_model(task, cell, recipe, facts)
    model = f" (model: {out / BEST})" if task is None else ""
    typer.echo(f"reward: {result['signature']}\nrun: {out}{model}")


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


def _show_text_model(cell: Mapping[str, Any], recipe: LmRecipe) -> None:
    """The scores on dev, of a beam and of minimum Bayes risk."""
    from softq.cli.recipes import LM_TITLES

    samples = recipe.evaluation.mbr_samples
    of = Path(recipe.data.dev or recipe.data.train).name or "built-in world"
    titles = [f"dev ({of})", f"beam of {recipe.evaluation.beams}"]
    titles += [f"MBR, {samples} samples", "gap"] if samples else []
    rows = []
    for name, title in LM_TITLES.items():
        if name in cell:
            digits = 2 if name.startswith(("sacrebleu", "seconds")) else 4
            beam, mbr = cell[name], cell.get(f"mbr_{name}", 0.0)
            row = [title, f"{beam:.{digits}f}", f"{mbr:.{digits}f}", f"{mbr - beam:+.{digits}f}"]
            rows.append(row[: len(titles)])
    typer.echo(
        f"{recipe.objective}, seed {cell['seed']}: best by {recipe.evaluation.best_by} after"
        f" epoch {cell['epoch']:g}"
    )
    results_console().print(make_table(titles, rows))


def _show_model(task: Task, cell: Mapping[str, Any], recipe: Any, facts: Mapping[str, Any]) -> None:
    """Scores of the development and the test split, what these splits are, and whom training trusted."""
    from softq.cli.recipes import of_files

    told = f"{task.metric} {cell['dev']:.4f} dev, {cell['test']:.4f} test (epoch {cell['epoch']})"
    if of_files(recipe):
        scores = {
            split: [f"{title} {cell[f'{split}_{name}']:.4f}" for name, title in task.titles.items()]
            for split in ("dev", "test")
        }
        of_splits = zip(scores.items(), recipe.data.sources(), strict=True)
        told = "; ".join(f"{split} {', '.join(of)} ({file})" for (split, of), file in of_splits)
    typer.echo(f"{recipe.objective}, seed {cell['seed']}: {told}")
    if "annotators" in facts:
        results_console().print(_annotator_table(facts["annotators"], facts["annotator_model"]))
    for note in task.notes(cell):
        typer.echo(note)


def _annotator_table(annotators: Sequence[Mapping[str, Any]], model: str) -> Table:
    """The best and the worst, or all of a few, heaviest first."""
    from softq.annotators.reliability import AnnotatorRow

    ordered = sorted((AnnotatorRow(**row) for row in annotators), key=lambda row: -row.weight)
    few = len(ordered) <= 2 * _BEST_AND_WORST
    how_many = f"{len(ordered)}" if few else f"best and worst {_BEST_AND_WORST} of {len(ordered):,}"
    rows: list[Sequence[str]] = [
        (name, f"{tokens:,}", *(f"{share:.4f}" for share in shares))
        for name, tokens, *shares in ordered
    ]
    if not few:
        rows[_BEST_AND_WORST:-_BEST_AND_WORST] = [()]
    titles = ("annotator", "tokens", "accuracy", "precision", "recall", "weight")
    return make_table(titles, rows, f"annotators: {how_many}, estimated by {model}")
