"""`softq train lm`: what `softq train` does with models of 🤗 Transformers, whose Trainer has its own loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table

from softq.cli.progress import progress_bars
from softq.cli.shared import RECIPES, results_console
from softq.lab.recipe import build, merge, parse_flags, read_toml, recipe_hash, to_toml, toml_value
from softq.lab.tasks.lm_recipe import BEST, TASK, Data, LmRecipe, read_recipe

TITLES = {
    "reward": "reward",
    "chrf": "sentence chrF",
    "sentence_bleu": "sentence BLEU",
    "corpus_bleu": "corpus BLEU",
    "exact_match": "exact match",
    "length_ratio": "length ratio",
    "word_bleu": "BLEU of one reference",
    "sacrebleu_bleu": "sacreBLEU (0 to 100)",
    "sacrebleu_chrf": "sacreBLEU's chrF (0 to 100)",
    "seconds": "seconds to write",
}
"""Scores as tables call them."""

_OF_THE_START = (
    "template",
    "max_source",
    "max_target",
)  # of data, which a model is trained further with unless others are given


def names_lm(what: str) -> bool:
    """Whether a task's name, a recipe of softq or a recipe's file is of `softq train lm`."""
    path = Path(what) if what.endswith(".toml") else RECIPES / f"{what}.toml"
    return what == TASK or (path.is_file() and read_toml(path).get("task") == TASK)


def find_lm_recipe(what: str, flags: Sequence[str]) -> LmRecipe:
    """The defaults or a recipe's file, with flags laid over it; what the model to go on from has read, it reads on."""
    return _find(what, flags)[0]


def _find(what: str, flags: Sequence[str]) -> tuple[LmRecipe, str]:
    """The recipe, and what of it is that of the run it goes on from, as one line for people."""
    table: dict[str, Any] = {}
    where = what
    if what != TASK:
        where = what if what.endswith(".toml") else str(RECIPES / f"{what}.toml")
        table = read_toml(Path(where))
        table.pop("task")
    given = parse_flags(LmRecipe, flags)
    if "template" in given.get("data", {}):
        given["data"]["template"] = given["data"]["template"].replace(
            "\\n", "\n"
        )  # shells have no easy way to write a new line
    table = merge(table, given)
    start = table.get("model", {}).get("name")
    before = read_recipe(Path(start)) if isinstance(start, str) and start else None
    if before is None:
        return build(LmRecipe, table, where), ""
    kept = {
        name: getattr(before.data, name)
        for name in _OF_THE_START
        if name not in table.get("data", {})
    }
    told = ", ".join(
        f"{name} = {toml_value(value)}"
        for name, value in kept.items()
        if value != getattr(Data(), name)
    )
    return build(
        LmRecipe, merge({"data": kept}, table), where
    ), f"as in {start}: {told}" if told else ""


def train_lm_command(
    what: str, flags: Sequence[str], out: Path | None, *, resume: bool, dry_run: bool, as_json: bool
) -> None:
    """Train one model as `softq train` does, and tell how it went."""
    recipe, kept = _find(what, flags)
    if dry_run:
        typer.echo(to_toml(recipe, task=TASK, explain=True), nl=False)
        return
    from softq.lab.tasks.lm import train_lm  # Transformers take seconds to import

    if kept and not as_json:
        typer.echo(kept)
    out = out or Path("runs") / f"{TASK}-{recipe.objective.name}-{recipe_hash(recipe, task=TASK)}"
    with progress_bars() as watch:
        result = train_lm(recipe, out, resume=resume, watcher=watch(str(recipe.objective)))
    (cell,) = result["cells"]
    if as_json:
        typer.echo(json.dumps(result | {"run": str(out)}))
        return
    typer.echo(
        f"{recipe.objective}, seed {cell['seed']}: best by {recipe.evaluation.best_by} after epoch {cell['epoch']:g}"
    )
    _show(cell, recipe)
    typer.echo(f"reward: {result['signature']}\nrun: {out} (model: {out / BEST})")


def _show(cell: Mapping[str, Any], recipe: LmRecipe) -> None:
    beams, samples = recipe.evaluation.beams, recipe.evaluation.mbr_samples
    of = Path(recipe.data.dev or recipe.data.train).name or "built-in world"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column(f"dev ({of})")
    table.add_column(f"beam of {beams}", justify="right")
    if samples:
        table.add_column(f"MBR, {samples} samples", justify="right")
        table.add_column("gap", justify="right")
    for name, title in TITLES.items():
        if name not in cell:
            continue
        values = (
            [cell[name], cell[f"mbr_{name}"], cell[f"mbr_{name}"] - cell[name]]
            if samples
            else [cell[name]]
        )
        digits = 2 if name.startswith(("sacrebleu", "seconds")) else 4
        table.add_row(
            title,
            *(
                f"{value:{'+' if place == 2 else ''}.{digits}f}"
                for place, value in enumerate(values)
            ),
        )
    results_console().print(table)
