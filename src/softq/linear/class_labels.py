"""Labels of rows, one or several each, some of them missing, as shares of classes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from softq.errors import DataError, DtypeError, ShapeError
from softq.formats.file_checks import string_list
from softq.linear.class_targets import Array

_LARGEST_CLASSES = 1 << 26  # bytes
_MISSING = -1  # the class number of a label that is not there


class Patterns(NamedTuple):
    """The distinct rows of labels: a target depends on a row's labels alone."""

    shares: Array  # [U, K] float64, of each class among the labels of a pattern; a row sums to one
    of_row: Array  # [n] int32, the pattern of each row
    labels_per_row: float  # mean number; of soft labels, of classes that may be right


def learn_labels(y: Any, rows: int) -> tuple[Array, Patterns]:
    """The classes that occur in ``y``, sorted, and the rows of ``y`` as shares of them.

    >>> classes, patterns = learn_labels([["b", "a"], ["b", None], ["a", "b"]], rows=3)
    >>> classes.tolist(), patterns.shares.tolist(), patterns.of_row.tolist()
    (['a', 'b'], [[0.0, 1.0], [0.5, 0.5]], [1, 0, 1])

    Soft labels are probabilities of the classes 0, 1, …:

    >>> classes, patterns = learn_labels([[0.25, 0.75], [1.0, 0.0]], rows=2)
    >>> classes.tolist(), patterns.shares[patterns.of_row].tolist()
    ([0, 1], [[0.25, 0.75], [1.0, 0.0]])
    """
    soft = soft_labels(y, rows)
    if soft is not None:
        return np.arange(soft.shape[1]), _soft_patterns(soft)
    present, values = _read(y, rows)
    check_classification_targets(values)
    classes, numbers = np.unique(values, return_inverse=True)
    return classes, _patterns(present, numbers, len(classes))


def match_labels(y: Any, rows: int, classes: Array) -> Patterns:
    """The rows of ``y`` as shares of known classes, ``[U, K + 1]``; the last: unknown labels."""
    soft = soft_labels(y, rows)
    if soft is not None:
        if soft.shape[1] != len(classes):
            raise ShapeError(
                f"soft labels must be [n, {len(classes)}], a probability of each class, "
                f"got {list(soft.shape)}"
            )
        return _soft_patterns(np.pad(soft, ((0, 0), (0, 1))))
    present, values = _read(y, rows)
    if (values.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise DtypeError(
            f"y must hold labels like those of fit ({classes.dtype}), got {values.dtype}"
        )
    places = np.minimum(np.searchsorted(classes, values), len(classes) - 1)
    return _patterns(
        present, np.where(classes[places] == values, places, len(classes)), len(classes) + 1
    )


def read_classes(names: Any, numbers: Array | None) -> Array:
    """The classes of a file: a list of strings, or an array of numbers; sorted and distinct.

    >>> read_classes(["a", "b"], None).tolist()
    ['a', 'b']
    """
    if numbers is None:
        texts = string_list("classes", names)
        size = 4 * len(texts) * max(map(len, texts), default=0)  # each as long as the longest
        if size > _LARGEST_CLASSES:
            raise DataError(f"expected classes of at most {_LARGEST_CLASSES} bytes, got {size}")
        numbers = np.array(texts, dtype=str)
    if numbers.dtype.kind not in "biufU" or numbers.ndim != 1 or not len(numbers):
        raise DataError(
            f"expected classes that are a list of labels, got {numbers.dtype} {list(numbers.shape)}"
        )
    if not np.array_equal(np.unique(numbers), numbers):
        raise DataError("expected classes that are sorted and distinct, got others")
    return numbers


def soft_labels(y: Any, rows: int) -> Array | None:
    """``y`` as probabilities ``[n, K]`` if it is a table of floats with a fraction; else None."""
    if isinstance(y, (list, tuple)) and y and not isinstance(y[0], (list, tuple, np.ndarray)):
        return None
    try:
        table = np.asarray(y)
    except ValueError:  # rows of different lengths
        return None
    if table.ndim != 2 or table.shape[1] < 2 or table.dtype.kind != "f":
        return None
    table = table.astype(np.float64)
    if not np.isfinite(table).all() or bool((table == np.floor(table)).all()):
        return None
    if len(table) != rows:
        raise ShapeError(f"y must have a row for each of the {rows} rows of X, got {len(table)}")
    bad = (table < 0.0).any(1) | (np.abs(table.sum(1) - 1.0) > 1e-5)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            "fractions in y are probabilities of classes, and a row must sum to one: "
            f"row {row} is {table[row].tolist()}"
        )
    return np.asarray(table / table.sum(1, keepdims=True))


def _soft_patterns(shares: Array) -> Patterns:
    different, of_row = np.unique(shares, axis=0, return_inverse=True)
    return Patterns(
        different, of_row.reshape(-1).astype(np.int32), float((shares > 0.0).sum(1).mean())
    )


def _patterns(present: Array, numbers: Array, classes: int) -> Patterns:
    table = np.full(present.shape, _MISSING, dtype=np.int64)
    table[present] = numbers
    table.sort(1)  # the order of the annotators does not matter
    references, of_row = np.unique(table, axis=0, return_inverse=True)
    counts = np.stack([(references == number).sum(1) for number in range(classes)], 1)
    labels = counts.sum(1)
    of_row = of_row.reshape(-1).astype(np.int32)
    return Patterns(counts / labels[:, None], of_row, float(labels[of_row].mean()))


def _read(y: Any, rows: int) -> tuple[Array, Array]:
    """Where labels are, ``[n, m]`` bool, and those labels row by row in a dtype that sorts."""
    if y is None:
        raise DataError("RewardClassifier requires y to be passed, but the target y is None")
    # numpy turns ["a", float("nan")] into the strings "a" and "nan"; objects stay what they are.
    table = np.asarray(y) if hasattr(y, "__array__") else np.array(y, dtype=object)
    if table.ndim == 2 and table.shape[1] == 1:
        table = column_or_1d(table, warn=True)
    if table.ndim not in (1, 2) or 0 in table.shape:
        raise ShapeError(
            f"y must hold one label per row, [n], or several, [n, m], got shape {list(table.shape)}"
        )
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
        raise DataError(
            f"every row of y must have at least one label, row {row} has none; leave such rows out"
        )
    return present, _sortable(table[present])


def _is_missing(label: Any) -> bool:
    return label is None or (isinstance(label, (float, np.floating)) and bool(np.isnan(label)))


def _sortable(values: Array) -> Array:
    if values.dtype.kind == "O":
        found = values.tolist()
        if any(isinstance(value, (list, tuple, np.ndarray)) for value in found):
            raise ShapeError(
                "the rows of y must be equally long: fill those with fewer labels up with None"
            )
        texts = sum(isinstance(value, str) for value in found)
        if 0 < texts < len(found):
            raise DtypeError("the labels of y must be all strings or all numbers, got both")
        values = np.array(found)
    if values.dtype.kind not in "biufU":
        raise DtypeError(
            "the labels of y must be strings, integers, whole floats or booleans, "
            f"got {values.dtype}"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError("the labels of y must be finite, got an infinite one")
    return values
