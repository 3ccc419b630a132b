"""The paper's experiments: data, model, objective, metric."""

from softq.tasks.base import Cell, Recipe, Task, train_cells
from softq.tasks.classification import Classification

TASKS: dict[str, Task] = {task.name: task for task in (Classification(),)}

__all__ = ["TASKS", "Cell", "Classification", "Recipe", "Task", "train_cells"]
