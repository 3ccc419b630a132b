"""From the distribution a model has learned back to the expected reward of each decision."""

from __future__ import annotations

import numpy as np
import torch

from softq.linear.class_labels import Array
from softq.targets import ObjectiveName


def expected_rewards(
    objective: ObjectiveName,
    log_model: Array,
    table: Array,
    tau: float,
    earned: Array | None = None,
) -> Array:
    """Estimates of E[r(k, Y)|x] for each decision k, ``[n, K]``.

    The model's distribution is taken for the one that its objective asks for, and solved for P(y|x):

        ML      P itself                                                        eq. 2
        RAML    Q'(z|x) = Σ_y q(z|y) P(y|x)                                     eq. 16
        SQDML   τ log Q(z|x) = Σ_y r(z, y) P(y|x) - c(x), c(x) the same for all z   eq. 12

    Where several P solve it (two right classes that are rewarded alike), the one nearest to uniform is taken, and where none does, the one
    that misses least.

    Args:
        objective: what the model was trained by.
        log_model: ``[n, K]``, the log of the model's distribution, up to a constant in each row.
        table: r[predicted, right] of training, ``[K, K]`` or one for each row, ``[n, K, K]``.
        tau: temperature of RAML and SQDML.
        earned: r[predicted, right] of the decisions, in the same shapes; as in training if None.

    >>> expected_rewards("sqdml", np.array([[0.9, 0.17]]) / 0.5, np.array([[1.0, 0.0], [0.1, 0.8]]), tau=0.5).round(3).tolist()
    [[0.9, 0.17]]

    """
    if objective == "ml":
        p = _softmax(log_model, 1)
    elif objective == "raml":
        payoffs = _softmax(table / tau, -2)  # q(z|y): columns y sum to one over z
        p = _solve(payoffs, _softmax(log_model, 1), rounding=1.0)
    else:
        # Columns relative to their mean over z: what is the same for all z, c(x) and the constant of the scores, drops out.
        p = _solve(
            table - table.mean(-2, keepdims=True), tau * log_model, rounding=np.abs(table).max()
        )
    return mean_rewards(table if earned is None else earned, p)


def _solve(matrix: Array, values: Array, rounding: float) -> Array:
    """Rows p ``[n, K]`` that sum to one with ``matrix @ p = values``: by least squares, and of those the one of least norm.

    ``rounding`` is the size of the numbers whose rounding errors the matrix carries.
    """
    size = matrix.shape[-1]
    offset = matrix.mean(-1)  # matrix @ uniform
    # p = uniform + a vector that sums to zero: only the part of the matrix that acts on such vectors can be inverted.
    left, singular, right = np.linalg.svd(matrix - offset[..., None])
    known = singular > 4 * size * np.finfo(float).eps * rounding
    factors = np.divide(1.0, singular, out=np.zeros_like(singular), where=known)
    inverse = (np.swapaxes(right, -1, -2) * factors[..., None, :]) @ np.swapaxes(
        left, -1, -2
    )  # [K, K]
    return np.asarray(1.0 / size + mean_rewards(inverse, values - offset))


def mean_rewards(table: Array, p: Array) -> Array:
    """Σ_y r(k, y) p(y) for each decision k and each row p ``[n, K]``; ``table`` is r[predicted, right], or one for each row.

    >>> mean_rewards(np.array([[4.0, 0.0], [0.0, 2.0]]), np.array([[0.25, 0.75]])).tolist()
    [[1.0, 1.5]]
    """
    return np.asarray(p @ table.T if table.ndim == 2 else (table @ p[..., None])[..., 0])


def _softmax(scores: Array, axis: int) -> Array:
    return np.asarray(torch.from_numpy(scores).softmax(axis))
