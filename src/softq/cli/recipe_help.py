"""Help of the commands that train: a list of tasks, and for the task that is named its guide and its recipe's keys as flags."""

from __future__ import annotations

import copy
import typing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from typer.core import TyperCommand

from softq.cli.guides import GUIDES, guide
from softq.lab.recipe import describe, flag_names

_MOST_VALUES = 8  # of a default that is shown in full
_ARGUMENTS = "softq.cli.arguments"


class RecipeCommand(TyperCommand):
    """A command that takes the keys of a recipe as flags. After the name of a task or recipe, ``--help`` is about that."""

    allow_extra_args = True
    ignore_unknown_options = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what was given: ``--help`` is answered before any argument has its place."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print help; of a task, its guide, the options of the command, and a panel for each table of the recipe."""
        found = _find_named(ctx.meta.get(_ARGUMENTS, []), str(self.name))
        if found is None:
            super().format_help(ctx, formatter)
            return
        task, recipe = found
        shown = copy.copy(self)
        shown.help, shown.epilog = guide(str(self.name), task) or self.help, None
        TyperCommand.format_help(shown, ctx, formatter)
        _show_flags(recipe, Console(), sweep=self.name != "train")


def _find_named(arguments: list[str], command: str) -> tuple[str, Any] | None:
    """The task among arguments, by its name or that of a recipe, and its recipe."""
    from softq.cli.recipes import RECIPES, named_recipe
    from softq.lab.recipe import build
    from softq.lab.tasks import TASKS
    from softq.lab.tasks.lm_recipe import TASK as LM
    from softq.lab.tasks.lm_recipe import LmRecipe

    for argument in arguments:
        file = Path(argument) if argument.endswith(".toml") else RECIPES / f"{argument}.toml"
        if argument in TASKS or argument == LM or file.is_file():
            name, table, where = named_recipe(argument)
            table.pop("sweep", None)
            if name not in GUIDES or getattr(GUIDES[name], command):
                kind = LmRecipe if name == LM else TASKS.recipe_type(name)
                return name, build(kind, table, where)
    return None


def list_tasks(command: str) -> str:
    """The tasks, a line for each, for the end of a command's help."""
    known = [(name, about) for name, about in GUIDES.items() if getattr(about, command)]
    lines = [f"- `{name}`: {about.one}" for name, about in known]
    return "\n".join(
        [
            f"**Tasks.** `softq {command} TASK --help` is the guide to one, with all its flags:\n",
            *lines,
        ]
    )


def _show_flags(recipe: Any, console: Console, *, sweep: bool = False) -> None:
    """The keys of a recipe as flags, with their values, a panel for each table; in a sweep, less those that are the grids'."""
    flags, sections = flag_names(type(recipe)), typing.get_type_hints(type(recipe))
    tables: dict[str, Table] = {}
    for section, name, value, explanation in describe(recipe):
        if sweep and (section == "objective" or (section, name) == ("training", "seed")):
            continue
        if section not in tables:
            tables[section] = Table.grid("", "", "", padding=(0, 2), pad_edge=False)
            tables[section].columns[0].no_wrap = True
        flag = min(
            (flag for flag, place in flags.items() if place[:2] == (section, name)), key=len
        ).replace("_", "-")
        tables[section].add_row(
            f"[bold cyan]--{flag}[/]",
            f"[yellow]{escape(_show_value(value))}[/]",
            escape(explanation),
        )
    for section, table in tables.items():
        about = str(sections[section].__doc__).splitlines()[0].rstrip(".").partition(":")[0]
        title = escape(f"[{section}]") + f" {escape(about[0].lower() + about[1:])}"
        console.print(Panel(table, title=title, title_align="left", border_style="dim"))


def _show_value(value: Any) -> str:
    """A value as ``--help`` shows it.

    >>> _show_value((8, 8)), _show_value(("word",) * 27), _show_value(None), _show_value(False)
    ('8,8', '27 values', '', 'no')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return f"{len(value)} values" if len(value) > _MOST_VALUES else ",".join(map(str, value))
    return "" if value is None else str(value)
