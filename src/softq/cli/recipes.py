"""Recipes from files and flags, and what the commands that train say of them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import softq
from softq.cli.shared import make_table, print_line
from softq.errors import RecipeError, RunError
from softq.lab.recipe import build, flag_names, merge, parse_flags, read_toml, toml_value
from softq.lab.tasks import TASKS
from softq.lab.tasks.files import DataSection
from softq.lab.tasks.lm_recipe import TASK as LM
from softq.lab.tasks.lm_recipe import LmData, LmRecipe, read_recipe

if TYPE_CHECKING:
    from rich.console import Console

    from softq.lab.sweep import Choice, Grid, Sweep
    from softq.lab.tasks import Task
    from softq.metrics import Interval

RECIPES = Path(softq.__file__).parent / "recipes"  # of the installed package
if not RECIPES.is_dir():
    RECIPES = Path(softq.__file__).parents[2] / "recipes"  # of the source tree

LM_TITLES = {
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

# keys of data that a model is trained further with unless others are given
_OF_THE_START = ("template", "max_source", "max_target")


class Wanted(NamedTuple):
    """A task, its recipe and the grids of its sweep."""

    task: Task
    recipe: Any
    grids: list[Grid]


def split_flags(what: str | None, arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """The task or recipe and the recipe's flags; a flag that came first was taken for the task.

    >>> split_flags("--epochs", ["3"])
    (None, ['--epochs', '3'])
    """
    return (
        (None, [what, *arguments])
        if what is not None and what.startswith("-")
        else (what, list(arguments))
    )


def recipe_to_resume(command: str, folder: Path | None, file: str) -> str:
    """The recipe of a run or sweep, where a command line names no task but a folder to resume."""
    if folder is None:
        raise RecipeError(
            f"name a task or a recipe, such as softq {command} classification; only --resume --out"
            " FOLDER needs none"
        )
    if not (folder / file).is_file():
        raise RunError(f"{folder} holds nothing to resume: there is no {file} in it")
    return str(folder / file)


def named_recipe(what: str) -> tuple[str, dict[str, Any], str]:
    """The task of a name or a recipe, the recipe's tables, and what errors call it.

    ``what`` is a task, a file, or a recipe that comes with softq.
    """
    if what in TASKS or what == LM:
        return what, {}, what
    path = _file_of(what)
    if not path.is_file():
        raise RecipeError(f"there is no file {what}" if what.endswith(".toml") else _unknown(what))
    table = read_toml(path)
    name = table.pop("task", what)
    return name if name == LM else TASKS.check(name, str(path)), table, str(path)


def _file_of(what: str) -> Path:
    return Path(what) if what.endswith(".toml") else RECIPES / f"{what}.toml"


def names_lm(what: str) -> bool:
    """Whether a task's name, a recipe of softq or a recipe's file is of `softq train lm`."""
    path = _file_of(what)
    return what == LM or (path.is_file() and read_toml(path).get("task") == LM)


def _unknown(what: str) -> str:
    known = [*TASKS, *(path.stem for path in sorted(RECIPES.glob("*.toml")))]
    close = difflib.get_close_matches(what, known, 1, 0.4)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    return f"expected a task, a recipe of softq, or a file that ends in .toml, got {what!r}; {hint}"


def find_recipe(what: str, flags: Sequence[str], *, sweep: bool = False) -> Wanted:
    """A task's defaults or a recipe file (`named_recipe`), with flags laid over it.

    In a sweep, objectives and seeds are the grids', and flags for them are refused.
    """
    from softq.lab.sweep import parse_recipe

    name, table, where = named_recipe(what)
    task = TASKS.find(name, where)
    laid_over = parse_flags(task.recipe_type, flags)
    if sweep and ("objective" in laid_over or "seed" in laid_over.get("training", {})):
        raise RecipeError(
            f"objectives, temperatures and seeds are set by the grids of {where} ([[sweep]]), not by"
            " flags: change them there, or use softq sweep"
        )
    recipe, grids = parse_recipe(task, merge(table, laid_over), where)
    data = recipe.data if sweep and of_files(recipe) else None
    if data and data.train and not data.dev and not (data.folds and data.test):
        raise RecipeError(
            "a sweep chooses by development scores and compares on a test split, and the"
            " training file can be neither: add --dev FILE"
            + (", or --folds 5 with --test FILE" if "folds" in flag_names(type(recipe)) else "")
        )
    return Wanted(task, recipe, grids)


def find_lm_recipe(what: str, flags: Sequence[str]) -> tuple[LmRecipe, str]:
    """The recipe, and which of its keys are those of the run it starts from, as one line for people."""
    _, table, where = named_recipe(what)
    given = parse_flags(LmRecipe, flags)
    if "template" in given.get("data", {}):
        # shells have no easy way to write a new line
        given["data"]["template"] = given["data"]["template"].replace("\\n", "\n")
    table = _with_preset(merge(table, given))
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
        if value != getattr(LmData(), name)
    )
    return build(LmRecipe, merge({"data": kept}, table), where), (
        f"as in {start}: {told}" if told else ""
    )


_OF_A_PRESET = {  # sections and keys that a preset sets, by the names of the trainer's arguments
    "tau": ("objective", "tau"),
    "prior": ("objective", "prior"),
    "normalize_model": ("objective", "normalize_model"),
    "candidates": ("candidates", "sampler"),
    "estimator": ("candidates", "estimator"),
    "add_references": ("candidates", "add_references"),
    "standardize_rewards": ("candidates", "standardize_rewards"),
}


def _with_preset(table: dict[str, Any]) -> dict[str, Any]:
    """The table with what its preset sets, where it has one; its objective is raml unless it says another."""
    sections = {table.get(section, {}).__class__ for section in ("objective", "candidates")}
    preset = table.get("objective", {}).get("preset") if sections == {dict} else None
    if preset is None:  # or a section is none, which is told when the recipe is built
        return table
    from softq.integrations.transformers.presets import resolve  # which takes seconds

    given = {name: table.get(section, {}).get(one) for name, (section, one) in _OF_A_PRESET.items()}
    found = merge({"objective": {"name": "raml"}}, table)
    for name, value in resolve(preset, given).items():
        section, one = _OF_A_PRESET[name]
        found = merge(found, {section: {one: value}})
    return found


def of_files(recipe: Any) -> bool:
    """Whether a recipe is of a task that learns from files of sentences."""
    return isinstance(getattr(recipe, "data", None), DataSection)


def show_choices(sweep: Sweep, recipe: Any, console: Console) -> None:
    """The temperatures and settings that the development set chose, and what they earn; ``recipe`` is that of the sweep."""
    varied = any(choice.settings for choice in sweep.choices)
    columns = {title: of for title, of in _COLUMNS.items() if varied or title != "best settings"}
    rows = [[of(choice) for of in columns.values()] for choice in sweep.choices]
    heading = f"{sweep.task}: {sweep.metric}, {len(sweep.cells)} models"
    console.print(make_table(list(columns), rows, heading))
    console.print(
        f"{'τ and settings are' if varied else 'τ is'} chosen on the development set. "
        "Intervals are 95 %: over seeds, and of the gain over test examples (paired bootstrap)."
    )
    if of_files(recipe):
        parts = [choice.recipe(recipe).data.sources() for choice in sweep.choices]
        _show_by_choice(sweep, [f"dev: {dev}; test: {test}" for dev, test in parts], console)
        task = TASKS[sweep.task]
        notes = chain.from_iterable(task.notes(member.cell.measures) for member in sweep.cells)
        for note in dict.fromkeys(notes):
            print_line(console, note)
    _show_by_choice(sweep, [f"reward: {choice.signature}" for choice in sweep.choices], console)


def _show_settings(choice: Choice) -> str:
    from softq.lab.tasks.base import show_settings

    return show_settings(choice.settings)


def _with_half_width(interval: Interval) -> str:
    return f"{interval.value:.4f}" + (
        "" if math.isnan(interval.high) else f" ± {interval.high - interval.value:.4f}"
    )


_COLUMNS: dict[str, Callable[[Choice], str]] = {
    "grid": lambda choice: choice.grid,
    "objective": lambda choice: choice.objective + " scaled" * choice.temperature_scaled,
    "best τ": lambda choice: "" if choice.tau is None else f"{choice.tau:g}",
    "best settings": _show_settings,
    "seeds": lambda choice: str(choice.seeds),
    "dev": lambda choice: _with_half_width(choice.dev),
    "test": lambda choice: _with_half_width(choice.test),
    "gain over ML": lambda choice: (
        "" if choice.gain is None else "{:+.4f} [{:+.4f}, {:+.4f}]".format(*choice.gain)
    ),
}


def _show_by_choice(sweep: Sweep, facts: Sequence[str], console: Console) -> None:
    """A fact for each choice: one line if it is the same for all, else one for each with the choices it holds for."""
    holds_for: dict[str, list[str]] = {}
    for choice, fact in zip(sweep.choices, facts, strict=True):
        holds_for.setdefault(fact, []).append(f"{choice.grid} {choice.objective}")
    for fact, names in holds_for.items():
        whose = f" ({', '.join(dict.fromkeys(names))})" if len(holds_for) > 1 else ""
        print_line(console, fact + whose)
