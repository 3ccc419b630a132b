"""The paper's experiments: data, model, objective, metric."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from importlib.metadata import entry_points

from softq.errors import RecipeError
from softq.lab.tasks.base import Cell, Recipe, Task, train_cells

__all__ = ["TASKS", "Cell", "Recipe", "Task", "Tasks", "train_cells"]


class Tasks(MutableMapping[str, Task]):
    """Tasks by name. A task is imported when it is first asked for, so that commands can list them at once.

    Besides those of softq there are those that installed packages name in the entry points of the group ``softq.tasks``.
    """

    def __init__(self, places: dict[str, str]) -> None:
        self._places: dict[str, str | Task] = dict(places)
        for found in entry_points(group="softq.tasks"):
            self._places.setdefault(found.name, found.value)

    def __getitem__(self, name: str) -> Task:
        """The task of this name, or a `KeyError`."""
        found = self._places[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            self[name] = found = getattr(import_module(module), attribute)()
        return found

    def __setitem__(self, name: str, task: Task) -> None:
        """Register a task."""
        self._places[name] = task

    def __delitem__(self, name: str) -> None:
        """Forget a task."""
        del self._places[name]

    def __iter__(self) -> Iterator[str]:
        """Names."""
        return iter(self._places)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._places)

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
