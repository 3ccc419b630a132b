"""Labels as people write them, one or several per row, with gaps, turned into class numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from softq.errors import DataError, DtypeError, ShapeError

Array = npt.NDArray[Any]

MISSING = -1  # the class number of a label that is not there


class Patterns(NamedTuple):
    """The different rows of labels: a target depends on a row's labels alone, so one per pattern is enough."""

    references: Array  # [U, m] int64, class numbers or MISSING
    of_row: Array  # [n] int32, the pattern of each row

    @property
    def weights(self) -> Array:
        """``[U, m]`` float64: the same for each label of a row, 0 for one that is missing; a row sums to one."""
        present = self.references != MISSING
        return np.asarray(present / present.sum(1, keepdims=True))

    @property
    def labels_per_row(self) -> float:
        """Mean number of labels of a row."""
        return float((self.references != MISSING).sum(1)[self.of_row].mean())

    def mean_rewards(self, table: Array) -> Array:
        """What each decision earns on average over the labels of a pattern, ``[U, K]``; ``table`` is r[predicted, right].

        >>> Patterns(np.array([[0, 1, 1, MISSING]]), np.array([0])).mean_rewards(np.array([[3.0, 0.0], [0.0, 1.5]])).tolist()
        [[1.0, 1.0]]
        """
        shares = np.zeros((len(self.references), table.shape[1]))
        rows = np.broadcast_to(np.arange(len(shares))[:, None], self.references.shape)
        np.add.at(shares, (rows, self.references), self.weights)  # a missing label adds 0 to the last class
        return shares @ table.T


def learn_labels(y: Any, rows: int) -> tuple[Array, Patterns]:
    """The classes that occur in ``y``, sorted, and the rows of ``y`` in their numbers.

    >>> classes, patterns = learn_labels([["b", "a"], ["b", None], ["a", "b"]], rows=3)
    >>> classes.tolist(), patterns.references.tolist(), patterns.of_row.tolist()
    (['a', 'b'], [[-1, 1], [0, 1]], [1, 0, 1])
    """
    present, values = _read(y, rows)
    check_classification_targets(values)
    classes, numbers = np.unique(values, return_inverse=True)
    return classes, _patterns(present, numbers)


def match_labels(y: Any, rows: int, classes: Array) -> Patterns:
    """The rows of ``y`` in the numbers of known classes; a label that is none of them gets the number K."""
    present, values = _read(y, rows)
    if (values.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise DtypeError(f"y must hold labels like those of fit ({classes.dtype}), got {values.dtype}")
    places = np.minimum(np.searchsorted(classes, values), len(classes) - 1)
    return _patterns(present, np.where(classes[places] == values, places, len(classes)))


def _patterns(present: Array, numbers: Array) -> Patterns:
    table = np.full(present.shape, MISSING, dtype=np.int64)
    table[present] = numbers
    table.sort(1)  # who said what does not matter
    references, of_row = np.unique(table, axis=0, return_inverse=True)
    return Patterns(references, of_row.reshape(-1).astype(np.int32))


def _read(y: Any, rows: int) -> tuple[Array, Array]:
    """Where labels are, ``[n, m]`` bool, and those labels row by row in a dtype that sorts."""
    if y is None:
        raise DataError("RewardClassifier requires y to be passed, but the target y is None")
    # numpy turns a list like ["a", float("nan")] into the strings "a" and "nan": as objects they stay what they are.
    table = np.asarray(y) if hasattr(y, "__array__") else np.array(y, dtype=object)
    if table.ndim == 2 and table.shape[1] == 1:
        table = column_or_1d(table, warn=True)
    if table.ndim not in (1, 2) or 0 in table.shape:
        raise ShapeError(f"y must hold one label per row, [n], or several, [n, m], got shape {list(table.shape)}")
    if len(table) != rows:
        raise ShapeError(f"y must have a row for each of the {rows} rows of X, got {len(table)}")
    table = table.reshape(rows, -1)
    if hasattr(y, "isna"):  # a data frame has its own signs for what is missing
        present = ~np.asarray(y.isna(), dtype=bool).reshape(rows, -1)
    elif table.dtype.kind == "O":
        present = ~np.frompyfunc(_is_missing, 1, 1)(table).astype(bool)
    else:
        present = ~np.isnan(table) if table.dtype.kind == "f" else np.ones(table.shape, dtype=bool)
    if not present.any(1).all():
        row = int(np.flatnonzero(~present.any(1))[0])
        raise DataError(f"every row of y must have at least one label, row {row} has none; leave such rows out")
    return present, _sortable(table[present])


def _is_missing(label: Any) -> bool:
    return label is None or (isinstance(label, (float, np.floating)) and bool(np.isnan(label)))


def _sortable(values: Array) -> Array:
    if values.dtype.kind == "O":
        found = values.tolist()
        if any(isinstance(value, (list, tuple, np.ndarray)) for value in found):
            raise ShapeError("the rows of y must be equally long: fill those with fewer labels up with None")
        texts = sum(isinstance(value, str) for value in found)
        if 0 < texts < len(found):
            raise DtypeError("the labels of y must be all strings or all numbers, got both")
        values = np.array(found)
    if values.dtype.kind not in "biufU":
        raise DtypeError(f"the labels of y must be strings, integers, whole floats or booleans, got {values.dtype}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError("the labels of y must be finite, got an infinite one")
    return values
