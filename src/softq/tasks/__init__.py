"""The paper's experiments: data, model, objective, metric."""

from softq.tasks.base import Cell, Recipe, Task, train_cells
from softq.tasks.captioning import Captioning
from softq.tasks.classification import Classification
from softq.tasks.ner import Ner
from softq.tasks.parsing import Parsing
from softq.tasks.translation import Translation

TASKS: dict[str, Task] = {task.name: task for task in (Classification(), Captioning(), Ner(), Parsing(), Translation())}

__all__ = ["TASKS", "Captioning", "Cell", "Classification", "Ner", "Parsing", "Recipe", "Task", "Translation", "train_cells"]
