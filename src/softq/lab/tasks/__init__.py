"""The paper's experiments: data, model, objective, metric."""

from softq.lab.tasks.base import Cell, Recipe, Task, train_cells
from softq.lab.tasks.captioning import Captioning
from softq.lab.tasks.classification import Classification
from softq.lab.tasks.ner import Ner
from softq.lab.tasks.parsing import Parsing
from softq.lab.tasks.translation import Translation

TASKS: dict[str, Task] = {
    task.name: task for task in (Classification(), Captioning(), Ner(), Parsing(), Translation())
}

__all__ = [
    "TASKS",
    "Captioning",
    "Cell",
    "Classification",
    "Ner",
    "Parsing",
    "Recipe",
    "Task",
    "Translation",
    "train_cells",
]
