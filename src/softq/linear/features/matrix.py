"""Features of words as a sparse matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class FeatureMatrix(NamedTuple):
    """Features of the T tokens of N sentences, a row per token.

    The columns of row t are ``indices[offsets[t] : offsets[t + 1]]``.

    Attributes:
        offsets: ``[T + 1]`` int64.
        indices: ``[nnz]`` int32, columns; a column that stands twice in a row counts twice.
        values: ``[nnz]`` float32, or None where every feature has the value 1.
        lengths: ``[N]`` int64, tokens of each sentence; they sum to T.
        size: F, number of columns.

    """

    offsets: Array
    indices: Array
    values: Array | None
    lengths: Array
    size: int

    @property
    def tokens(self) -> int:
        """T, number of rows."""
        return len(self.offsets) - 1

    def take(self, sentences: Array) -> FeatureMatrix:
        """The rows of these sentences (numbers ``[M]``), in this order.

        >>> whole = FeatureMatrix(np.array([0, 1, 3]), np.array([4, 0, 2], np.int32), None, np.array([1, 1]), 5)
        >>> whole.take(np.array([1])).indices
        array([0, 2], dtype=int32)
        """
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        rows = _ranges(starts[sentences], self.lengths[sentences])
        counts = np.diff(self.offsets)[rows]
        cells = _ranges(self.offsets[rows], counts)
        return FeatureMatrix(
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            indices=self.indices[cells],
            values=None if self.values is None else self.values[cells],
            lengths=self.lengths[sentences],
            size=self.size,
        )


def _ranges(starts: Array, counts: Array) -> Array:
    """``starts[0], …, starts[0] + counts[0] - 1, starts[1], …`` as one array."""
    shifts = np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    return shifts + np.arange(len(shifts))


def batches_of_like_lengths(lengths: Array, cells: Array, most: int) -> Iterator[Array]:
    """Numbers of sentences that have words, from short to long, in batches of about ``most`` cells.

    Args:
        lengths: of the sentences, ``[N]``.
        cells: of each sentence, which grow with its length; in a batch all sentences have as many
            as the longest.
        most: cells of a batch, unless a single sentence has more.

    >>> [batch.tolist() for batch in batches_of_like_lengths(np.array([2, 0, 1, 5, 2]), np.array([2, 0, 1, 5, 2]), 6)]
    [[2, 0, 4], [3]]

    """
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    sizes = cells[order].tolist()
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - begin) * sizes[end] > most:
            yield order[begin:end]
            begin = end
