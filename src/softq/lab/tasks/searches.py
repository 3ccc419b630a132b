"""L-BFGS in recipes and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from softq.errors import RecipeError
from softq.lab.recipe import at_least, check_positive
from softq.linear.lbfgs import LBFGS

_FOUND = (
    "point",
    "gradient",
    "numbers",
    "counts",
)  # of a search that is over; its memory is of no use any more


def check_search(c2: float, iterations: int, memory: int, tolerance: float) -> None:
    """Refuse keys of a recipe with which a search leads nowhere."""
    at_least("c2", c2, 0)
    at_least("iterations", iterations, 1)
    at_least("memory", memory, 1)
    if math.isinf(c2):
        raise RecipeError("c2 must be finite, got inf")
    check_positive("tolerance", tolerance)


def search_state(search: LBFGS) -> dict[str, Tensor]:
    """What a checkpoint holds of a search; of one that is over, only what it found."""
    state = search.state()
    return {
        f"search.{name}": tensor
        for name, tensor in state.items()
        if search.status == "going" or name in _FOUND
    }


def load_search(search: LBFGS, state: Mapping[str, Tensor]) -> None:
    """Go on with a search from a checkpoint of `search_state` and more."""
    kept = {
        name.removeprefix("search."): tensor
        for name, tensor in state.items()
        if name.startswith("search.")
    }
    search.load_state(search.state() | kept)  # of a search that is over, the rest is as good as any
