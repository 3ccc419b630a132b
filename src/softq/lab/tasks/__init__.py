"""The paper's experiments: data, model, objective, metric.

A task is ``NAME_recipe.py``, the keys of its recipe, which imports nothing that is slow to import,
and ``NAME.py``, the task itself. Translation and captioning share ``sequence_*.py``, taggers and
parsers ``linear_learner.py``, and where they are neural ``neural_learner.py``; on encoders of
Transformers ``pretrained.py`` and the keys of ``encoder_recipe.py``.
"""

from __future__ import annotations

from collections import UserDict
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

from softq.errors import RecipeError

if TYPE_CHECKING:
    from softq.lab.tasks.base import Cell, Task, train_cells

__all__ = ["TASKS", "Cell", "Task", "Tasks", "train_cells"]

_RECIPES = {
    "classification": "softq.lab.tasks.classification_recipe:ClassificationRecipe",
    "classifier": "softq.lab.tasks.classifier_recipe:ClassifierRecipe",
    "captioning": "softq.lab.tasks.sequence_recipe:CaptioningRecipe",
    "ner": "softq.lab.tasks.ner_recipe:NerRecipe",
    "parsing": "softq.lab.tasks.parsing_recipe:ParsingRecipe",
    "tag": "softq.lab.tasks.ner_recipe:TagRecipe",
    "translation": "softq.lab.tasks.sequence_recipe:TranslationRecipe",
}
"""The recipe type of each task of softq, which its class names too, but is slow to import."""


def __getattr__(name: str) -> Any:
    """A name of `softq.lab.tasks.base` when it is asked for: torch takes seconds to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("softq.lab.tasks.base"), name)


def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


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
            self[name] = found = _load(found)()
        return cast("Task", found)

    def recipe_type(self, name: str) -> type[Any]:
        """The recipe of a task; of softq's own without importing what trains it."""
        if name in _RECIPES and isinstance(self.data[name], str):
            return cast(type[Any], _load(_RECIPES[name]))
        return self[name].recipe_type

    def check(self, name: object, where: str) -> str:
        """The name of a task that the key ``task`` of a recipe holds."""
        if not isinstance(name, str) or name not in self:
            raise RecipeError(
                f"{where}: the key 'task' must be one of {', '.join(self)}, got {name!r:.100}"
            )
        return name

    def find(self, name: object, where: str) -> Task:
        """The task that the key ``task`` of a recipe names."""
        return self[self.check(name, where)]


TASKS = Tasks(
    {
        "classification": "softq.lab.tasks.classification:Classification",
        "classifier": "softq.lab.tasks.classifier:Classifier",
        "captioning": "softq.lab.tasks.captioning:Captioning",
        "ner": "softq.lab.tasks.ner:Ner",
        "parsing": "softq.lab.tasks.parsing:Parsing",
        "tag": "softq.lab.tasks.ner:Tag",
        "translation": "softq.lab.tasks.translation:Translation",
    }
)
