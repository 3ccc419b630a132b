"""From labels to the target of each objective, and from what a model learned back to rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

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
