"""The mixture of projective and of all spanning trees in `softq.lab.worlds.trees`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from softq.formats.trees import is_projective
from softq.lab.worlds.grammar import Floats
from softq.spaces import DependencyTree, ProjectiveTree, SpanningTree


def tree_space(arcs: Floats, crossing: bool) -> DependencyTree:
    """Trees with one root by arc scores ``[*B, n+1, n+1]``; they may cross or not."""
    return (SpanningTree if crossing else ProjectiveTree)(torch.from_numpy(arcs), validate=False)


class TreeMixture:
    """P(tree | words) by arc scores ``[n+1, n+1]``: trees cross with probability ``crossing``."""

    def __init__(self, arcs: Floats, crossing: float) -> None:
        shares = ((False, 1 - crossing), (True, crossing))
        self._parts = [(tree_space(arcs, crosses), share) for crosses, share in shares if share]

    @property
    def marginals(self) -> Floats:
        """P(arc | words), ``[n+1, n+1]`` by head and dependent."""
        parts = [share * trees.marginals for trees, share in self._parts]
        return torch.stack(parts).sum(0).numpy()

    def log_prob(self, heads: Sequence[int]) -> float:
        """Log P(tree | words); -inf for a tree that crosses where none may."""
        terms = [
            math.log(share) + float(trees.log_prob(torch.tensor(heads)))
            for trees, share in self._parts
            if is_projective(heads) or not trees.projective
        ]
        return float(np.logaddexp.reduce([-math.inf, *terms]))


def arc_indicator(heads: Sequence[int]) -> Floats:
    """1 on the arcs of a tree, ``[n+1, n+1]``; the root, column 0, has no head."""
    return np.pad(np.eye(len(heads) + 1)[:, list(heads)], ((0, 0), (1, 0)))
