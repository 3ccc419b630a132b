"""The k best of a set, by how each departs from one that is better.

A best output is a row of choices. Every other one follows a better output up to some step, takes
another choice there, and the best ones from then on; that names each output once. What it loses is
what the better one loses and what the choice loses. So outputs stand in one table, ascending by
loss: a row is final when its turn comes, and those that depart from it are put behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from softq.kernels.jit import jit


@jit
def room(loss: Any, count: int, s: int) -> float:
    """What a step from output s must lose less than to be among the best."""
    return loss[-1] - loss[s] if count == len(loss) else np.inf


@jit
def put(loss: Any, origin: Any, count: int, new: float, a: int, b: int, c: int) -> int:
    """Put a new row into a table of ``count`` rows, behind those as good; returns their number.

    The last one makes room. ``origin[row]`` are three numbers that say how to make the output.
    """
    row = min(count, len(loss) - 1)
    while row > 0 and loss[row - 1] > new:
        loss[row] = loss[row - 1]
        origin[row] = origin[row - 1]
        row -= 1
    loss[row] = new
    origin[row, 0], origin[row, 1], origin[row, 2] = a, b, c
    return min(count + 1, len(loss))


@jit
def depart(
    value: Any, size: int, chosen: int, s: int, step: int, loss: Any, origin: Any, count: int
) -> int:
    """Put what departs from output s by another choice at a step; returns the number of rows.

    The choices have log-weights ``value[:size]``, of which that of ``chosen`` is the largest.
    """
    top, limit = value[chosen], room(loss, count, s)
    for i in range(size):
        less = top - value[i]
        if less < limit and i != chosen:  # never what is forbidden: inf is below nothing
            count = put(loss, origin, count, loss[s] + max(less, 0.0), s, step, i)
            limit = room(loss, count, s)
    return count
