"""Labels of rows as shares of classes, the targets they make, and what a model learned as rewards."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softq.errors import DataError, DtypeError, ShapeError
from softq.formats.file_checks import string_list
from softq.rewards import Matrix
from softq.spaces import Categorical
from softq.targets import ObjectiveName, Target, target_of

Array = npt.NDArray[Any]


def target_of_shares(
    objective: ObjectiveName,
    space: Categorical,
    shares: Array | Tensor,
    table: Array | Tensor,
    tau: float | None,
) -> Target:
    """The target of labels with these ``shares [U, K]``, or counts: every class is a reference.

    ``table`` is r[predicted, right], ``[K, K]`` or one for each row, ``[U, K, K]``.
    """
    weights = torch.as_tensor(shares).to(space.scores)
    classes = torch.arange(weights.shape[1], device=weights.device).expand(weights.shape)
    reward = Matrix(torch.as_tensor(table).to(weights))
    return target_of(objective, space, classes, tau, reward, ref_weights=weights)


def class_targets(
    objective: ObjectiveName, shares: Array | Tensor, table: Array | Tensor, tau: float | None
) -> Tensor:
    """The same as probabilities, ``[U, K]`` float64 (eq. 2, 15, 18).

    >>> class_targets("raml", np.array([[1.0, 0.0]]), np.eye(2), tau=0.5).numpy().round(3)
    array([[0.881, 0.119]])
    >>> class_targets("sqdml", torch.tensor([[3, 1]]), torch.eye(2), 0.5)  # of (3/4, 1/4) / 0.5
    tensor([[0.7311, 0.2689]], dtype=torch.float64)
    """
    space = Categorical(torch.zeros_like(torch.as_tensor(shares), dtype=torch.float64))
    target = target_of_shares(objective, space, shares, table, tau)
    return target.expected_parts(space)[0]


def expected_rewards(
    objective: ObjectiveName,
    log_model: Array,
    table: Array,
    tau: float,
    earned: Array | None = None,
) -> Array:
    """Estimates of E[r(k, Y)|x] for each decision k, ``[n, K]``.

    The model's distribution is taken for the target of its objective, and solved for P(y|x):

        ML      P itself                                                        eq. 2
        RAML    Q'(z|x) = Σ_y q(z|y) P(y|x)                                     eq. 16
        SQDML   τ log Q(z|x) = Σ_y r(z, y) P(y|x) - c(x), c(x) the same for all z   eq. 12

    Where several P solve it (two right classes that are rewarded alike), the one nearest to uniform
    is taken, and where none does, the one with the smallest residual.

    Args:
        objective: what the model was trained by.
        log_model: ``[n, K]``, the log of the model's distribution, up to a constant in each row.
        table: r[predicted, right] of training, ``[K, K]`` or one for each row, ``[n, K, K]``.
        tau: temperature of RAML and SQDML.
        earned: r[predicted, right] of the decisions, in the same shapes; as in training if None.

    >>> scores, table = np.array([[0.9, 0.17]]) / 0.5, np.array([[1.0, 0.0], [0.1, 0.8]])
    >>> expected_rewards("sqdml", scores, table, tau=0.5).round(3).tolist()
    [[0.9, 0.17]]

    """
    model = torch.from_numpy(log_model).softmax(1).numpy()
    if objective == "ml":
        p = model
    elif objective == "raml":  # q(z|y): columns y sum to one over z
        p = _solve(torch.from_numpy(table / tau).softmax(-2).numpy(), model, rounding=1.0)
    else:
        # Relative to the mean over z: what is the same for all z, such as c(x), drops out.
        centred = table - table.mean(-2, keepdims=True)
        p = _solve(centred, tau * log_model, rounding=np.abs(table).max())
    return mean_rewards(table if earned is None else earned, p)


def _solve(matrix: Array, values: Array, rounding: float) -> Array:
    """Rows p ``[n, K]`` that sum to one with ``matrix @ p = values``, by least squares.

    Of several, the one of least norm; ``rounding`` is the size of the numbers whose rounding errors
    the matrix carries.
    """
    size = matrix.shape[-1]
    offset = matrix.mean(-1)  # matrix @ uniform
    # p = uniform + a vector that sums to zero: only the matrix's part on such vectors is inverted.
    left, singular, right = np.linalg.svd(matrix - offset[..., None])
    known = singular > 4 * size * np.finfo(float).eps * rounding
    factors = np.divide(1.0, singular, out=np.zeros_like(singular), where=known)
    inverse = (right.swapaxes(-1, -2) * factors[..., None, :]) @ left.swapaxes(-1, -2)  # [K, K]
    return np.asarray(1.0 / size + mean_rewards(inverse, values - offset))


def mean_rewards(table: Array, p: Array) -> Array:
    """Σ_y r(k, y) p(y) for each decision k and each row p ``[n, K]``; one table or one per row.

    >>> mean_rewards(np.array([[4.0, 0.0], [0.0, 2.0]]), np.array([[0.25, 0.75]])).tolist()
    [[1.0, 1.5]]
    """
    return np.asarray(p @ table.T if table.ndim == 2 else (table @ p[..., None])[..., 0])


_LARGEST_CLASSES = 1 << 26  # bytes


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
    soft = _soft_labels(y, rows)
    if soft is not None:
        return np.arange(soft.shape[1]), _patterns(soft, (soft > 0.0).sum(1))
    present, values = _read(y, rows)
    from sklearn.utils.multiclass import check_classification_targets  # slow, and not always there

    check_classification_targets(values)
    classes, numbers = np.unique(values, return_inverse=True)
    return classes, _counted(present, numbers, len(classes))


def match_labels(y: Any, rows: int, classes: Array) -> Patterns:
    """The rows of ``y`` as shares of known classes, ``[U, K + 1]``; the last: unknown labels."""
    soft = _soft_labels(y, rows)
    if soft is not None:
        if soft.shape[1] != len(classes):
            raise ShapeError(
                f"soft labels must be [n, {len(classes)}], a probability of each class, "
                f"got {list(soft.shape)}"
            )
        return _patterns(np.pad(soft, ((0, 0), (0, 1))), (soft > 0.0).sum(1))
    present, values = _read(y, rows)
    if (values.dtype.kind == "U") != (classes.dtype.kind == "U"):
        raise DtypeError(
            f"y must hold labels like those of fit ({classes.dtype}), got {values.dtype}"
        )
    places = np.minimum(np.searchsorted(classes, values), len(classes) - 1)
    return _counted(
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


def _soft_labels(y: Any, rows: int) -> Array | None:
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


def _patterns(shares: Array, labels_per_row: Array) -> Patterns:
    different, of_row = np.unique(shares, axis=0, return_inverse=True)
    return Patterns(different, of_row.reshape(-1).astype(np.int32), float(labels_per_row.mean()))


def _counted(present: Array, numbers: Array, classes: int) -> Patterns:
    counts = np.zeros((len(present), classes))
    np.add.at(counts, (np.nonzero(present)[0], numbers), 1.0)
    labels = counts.sum(1)
    return _patterns(counts / labels[:, None], labels)


def _read(y: Any, rows: int) -> tuple[Array, Array]:
    """Where labels are, ``[n, m]`` bool, and those labels row by row in a dtype that sorts."""
    if y is None:
        raise DataError("RewardClassifier requires y to be passed, but the target y is None")
    # numpy turns ["a", float("nan")] into the strings "a" and "nan"; objects stay what they are.
    table = np.asarray(y) if hasattr(y, "__array__") else np.array(y, dtype=object)
    if table.ndim == 2 and table.shape[1] == 1:
        from sklearn.utils.validation import column_or_1d

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
