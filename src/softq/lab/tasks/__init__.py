"""The paper's experiments: data, model, objective, metric."""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

from softq.errors import RecipeError
from softq.lab.tasks.base import Cell, Recipe, Task, train_cells

__all__ = ["TASKS", "Cell", "Recipe", "Task", "Tasks", "train_cells"]


class Tasks(UserDict[str, Any]):
    """Tasks by name.

    A task is imported when it is first asked for, so that commands can list them at once.

    Besides those of softq there are those that installed packages name in the entry points of the
    group ``softq.tasks``.
    """

    def __init__(self, places: dict[str, str]) -> None:
        others = {found.name: found.value for found in entry_points(group="softq.tasks")}
        super().__init__(others | places)

    def __getitem__(self, name: str) -> Task:
        """The task of this name, or a `KeyError`."""
        found = super().__getitem__(name)
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            self[name] = found = getattr(import_module(module), attribute)()
        return cast(Task, found)

    def find(self, name: object, where: str) -> Task:
        """The task that the key ``task`` of a recipe names."""
        if not isinstance(name, str) or name not in self:
            raise RecipeError(
                f"{where}: the key 'task' must be one of {', '.join(self)}, got {name!r:.100}"
            )
        return self[name]


TASKS = Tasks(
    {
        "classification": "softq.lab.tasks.classification:Classification",
        "captioning": "softq.lab.tasks.captioning:Captioning",
        "ner": "softq.lab.tasks.ner:Ner",
        "parsing": "softq.lab.tasks.parsing:Parsing",
        "tag": "softq.lab.tasks.ner:Tag",
        "translation": "softq.lab.tasks.translation:Translation",
    }
)
