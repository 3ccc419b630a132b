"""Labels that are known in part, `softq.formats.partial_labels`, as evidence of the true ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from softq.annotators.crowd import Floats
from softq.errors import DataError
from softq.formats.partial_labels import alternatives


class KnownLabels:
    """What sequences of such labels say of the true ones; nothing about it is learnt.

    >>> KnownLabels([("O", "?", "B-PER|O")], ("O", "B-PER")).evidence()
    array([[  0., -inf],
           [  0.,   0.],
           [  0.,   0.]])

    """

    def __init__(self, sequences: Sequence[Sequence[str]], labels: Sequence[str]) -> None:
        """Read them, with the names of the K labels."""
        number = {name: k for k, name in enumerate(labels)}
        rows: dict[str, Floats] = {}
        for label in {label for row in sequences for label in row}:
            weights = alternatives(label)
            rows[label] = np.full(len(labels), -math.inf if weights else 0.0)
            for name, weight in weights.items():
                if name not in number:
                    raise DataError(f"expected labels among {', '.join(labels)}, got {name!r}")
                rows[label][number[name]] = math.log(weight) if weight else -math.inf
        tokens = [rows[label] for row in sequences for label in row]
        self._evidence: Floats = np.array(tokens).reshape(-1, len(labels))

    def evidence(self) -> Floats:
        """Log-weights of the labels of each token, ``[T, K]``."""
        return self._evidence

    def update(self, posterior: Floats) -> None:
        """Nothing is learnt."""
