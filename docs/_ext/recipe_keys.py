"""Tables of the keys of all recipes, in place of ``<!-- recipe-keys -->``."""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from softq.lab.recipe import describe, toml_value
from softq.lab.tasks import TASKS
from softq.lab.tasks.lm_recipe import LmRecipe

_PLACE = "<!-- recipe-keys -->"


def key_tables() -> str:
    """A table for each task."""
    recipes = {name: task.recipe_type() for name, task in TASKS.items()} | {"lm": LmRecipe()}
    return "\n\n".join(f"## {name}\n\n{_table(recipe)}" for name, recipe in recipes.items())


def _table(recipe: Any) -> str:
    rows = ["| key | default | |", "| --- | --- | --- |"]
    for section, key, value, explanation in describe(recipe):
        default = "–" if value is None else f"`{toml_value(value)}`".replace("|", "\\|")
        name = f"{section}.{key}" if section else key
        rows.append(f"| `{name}` | {default} | {explanation.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def _fill(_app: Sphinx, _docname: str, source: list[str]) -> None:
    if _PLACE in source[0]:
        source[0] = source[0].replace(_PLACE, key_tables())


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", _fill)
    return {"parallel_read_safe": True}
