"""A classifier of your own data: `softq.RewardClassifier` on a CSV file, with a table of costs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError
from softq.formats.file_checks import check_format, notes_in, refusing, string_list
from softq.formats.tables import Table, read_costs
from softq.lab.loop import Evaluation, Learner
from softq.lab.processes import Workers
from softq.lab.run import Curves
from softq.lab.tasks.base import Task
from softq.lab.tasks.classifier_recipe import ClassifierRecipe
from softq.lab.tasks.curves import Believed, uncertainty
from softq.lab.tasks.linear_learner import refuse_processes
from softq.linear import RewardClassifier
from softq.metrics import ExampleCounts, Metric, Ratio
from softq.spaces import Categorical

Array = np.ndarray[Any, Any]

FORMAT = "softq classifier 1"
_COLUMNS = ("reward", "rows", "right")
CLASSIFIER_METRICS: Mapping[str, Metric] = {
    "reward": Ratio(_COLUMNS, "reward", "rows"),
    "accuracy": Ratio(_COLUMNS, "right", "rows"),
}


class TableClassifier(NamedTuple):
    """A classifier with the columns that it reads.

    Attributes:
        model: What decides.
        columns: Names of its features, in order.
        label_column: Name of the column of labels.

    """

    model: RewardClassifier
    columns: tuple[str, ...]
    label_column: str

    def features(self, table: Table) -> Array:
        """The features of the rows, ``[n, D]``, in whichever order the file has them."""
        return table.numbers(self.columns)

    def labels(self, table: Table) -> Array:
        """The labels of the rows as the model has them."""
        return _as_labels(table.column(self.label_column), self.model.classes_.dtype.kind)

    def statistics(self, table: Table) -> Tensor:
        """Reward, 1 and whether it is right, for each row, ``[n, 3]`` float64."""
        features, labels = self.features(table), self.labels(table)
        decided = self.model.output_ids(features, self.model.predict(features))
        right = self.model.output_ids(features, labels)
        if (right < 0).any():
            row = int(np.flatnonzero(right < 0)[0])
            raise DataError(
                f"{table.name}, line {table.lines[row]}: expected one of the labels"
                f" {', '.join(map(str, self.model.classes_[:10]))}, got {labels.tolist()[row]!r}"
            )
        rewards = cast(Array, self.model.reward_)[decided, right]
        found = np.stack([rewards, np.ones(len(rewards)), decided == right], 1)
        return torch.from_numpy(found.astype(np.float64))

    def tensors(self) -> dict[str, Tensor]:
        """All that a file holds."""
        arrays, notes = self.model.contents()
        notes |= {"format": FORMAT, "columns": self.columns, "label_column": self.label_column}
        text = np.frombuffer(json.dumps(notes, ensure_ascii=False).encode(), np.uint8)
        return {name: torch.tensor(array) for name, array in (arrays | {"about": text}).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The classifier of `tensors`; what is none, or damaged, is a `DataError`."""
        notes = notes_in(tensors, "about", "classifier")
        check_format(notes, FORMAT)
        with refusing("expected the tensors and notes of a classifier"):
            arrays = {name: tensor.numpy() for name, tensor in tensors.items() if name != "about"}
            model = RewardClassifier.from_contents(arrays, notes)
            columns = string_list("columns", notes["columns"])
            if len(columns) != model.n_features_in_:
                raise DataError(
                    f"expected {model.n_features_in_} names of columns, got {len(columns)}"
                )
            if model.reward_ is None:
                raise DataError("expected a table of rewards, got none")
            return cls(model, columns, str(notes["label_column"]))


def _as_labels(texts: Sequence[str], kind: str = "") -> Array:
    """Labels as whole numbers where all are (``kind`` "i", or not stated), else as they stand."""
    if kind != "U":
        try:
            return np.array([int(text) for text in texts], np.int64)
        except ValueError:
            if kind:
                found = next(text for text in texts if not text.lstrip("+-").isdigit())
                raise DataError(
                    f"expected labels that are whole numbers, as in training, got {found!r}"
                ) from None
    return np.array(texts, dtype=str)


class Classifier(Task):
    """The task."""

    name: ClassVar[str] = "classifier"
    recipe_type: ClassVar[type[ClassifierRecipe]] = ClassifierRecipe
    metrics: ClassVar[Mapping[str, Metric]] = CLASSIFIER_METRICS
    titles: ClassVar[Mapping[str, str]] = {"reward": "reward", "accuracy": "accuracy"}

    def learner(self, cells: Sequence[ClassifierRecipe], workers: Workers) -> Learner:
        """One classifier, fitted in one step."""
        refuse_processes(self.name, workers)
        return _ClassifierLearner(cells[0])

    def facts(self, recipe: ClassifierRecipe, outputs: Sequence[Any]) -> dict[str, Any]:
        """How many rows it learnt from."""
        return {"examples": {"train": len(Table.read(Path(recipe.data.train)).rows)}}

    def signature(self, recipe: ClassifierRecipe) -> str:
        """The reward that training aims at."""
        if recipe.data.costs:
            return f"costs:{Path(recipe.data.costs).name}"
        return recipe.model.reward or "exact-match"


class _ClassifierLearner:
    """The one step is a whole fit."""

    cells = steps = 1

    def __init__(self, recipe: ClassifierRecipe) -> None:
        data = recipe.data
        if not data.train:
            raise DataError("name the training file: softq train classifier --train FILE.csv")
        self._tables = {
            split: Table.read(Path(path))
            for split, path in vars(data).items()
            if split in ("train", "dev", "test") and path
        }
        train = self._tables["train"]
        label = data.label_column or train.header[-1]
        labels = _as_labels(train.column(label))
        options: dict[str, Any] = {"objective": recipe.objective.name}
        if recipe.objective.tau is not None:
            options["tau"] = recipe.objective.tau
        if data.costs:
            classes = list(map(str, np.unique(labels).tolist()))
            options["cost"] = read_costs(Path(data.costs), classes)
        if recipe.model.reward:
            options["reward"] = recipe.model.reward
        model = RewardClassifier(
            hidden=recipe.model.hidden or "auto",
            alpha=recipe.model.alpha or "auto",
            random_state=recipe.training.seed % 2**32,
            **options,
        )
        columns = tuple(title for title in train.header if title != label)
        self._found = TableClassifier(model, columns, label)
        if not columns:
            raise DataError(f"{train.name}: expected columns of numbers beside {label!r}, got none")
        self._X, self._y = self._found.features(train), labels
        self.examples = len(labels)
        self._fitted = False

    def train(self, epoch: int, first: int, last: int, active: Sequence[bool]) -> None:
        """Fit, once."""
        if not self._fitted:
            self._found.model.fit(self._X, self._y)
            self._fitted = True

    def end_epoch(self, active: Sequence[bool]) -> dict[str, list[float]]:
        """The cross-entropy at the end."""
        return {"loss": [float(self._found.model.loss_curve_[-1])]}

    def _statistics(self, *splits: str) -> Tensor:
        """Those of the first of these splits that there is."""
        return self._found.statistics(next(self._tables[s] for s in splits if s in self._tables))

    def evaluate(self, active: Sequence[bool]) -> list[float]:
        """The mean reward on dev."""
        return [float(CLASSIFIER_METRICS["reward"](self._statistics("dev", "train").sum(0)))]

    def keep_best(self, improved: Sequence[bool]) -> None:
        """There is one model."""

    def evaluate_best(self) -> Evaluation:
        """The model on both splits."""
        splits = {
            "dev": self._statistics("dev", "train"),
            "test": self._statistics("test", "dev", "train"),
        }
        counts = {name: ExampleCounts.of(rows[None]) for name, rows in splits.items()}
        return Evaluation(counts, [{}], (), self._curves())

    def _curves(self) -> Curves | None:
        model, found = self._found.model, self._found
        believed = {}
        for split in self._tables.keys() - {"train"}:
            features = found.features(self._tables[split])
            scores = torch.from_numpy(model.predict_log_proba(features))
            right = model.output_ids(features, found.labels(self._tables[split]))
            rows = np.arange(len(right))
            believed[split] = Believed([(rows, Categorical(scores))], list(right[:, None]))
        if "dev" not in believed:
            return None
        return uncertainty("classes", believed["dev"], believed.get("test"))

    def best(self) -> dict[str, Tensor]:
        """The model, as its file holds it."""
        return self._found.tensors()

    def load_best(self, best: Mapping[str, Tensor]) -> None:
        """Take this for the model."""
        self._found, self._fitted = TableClassifier.from_tensors(best), True

    def state(self) -> dict[str, Tensor]:
        """The model, if it is fitted."""
        return self._found.tensors() if self._fitted else {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        if state:
            self.load_best(state)
