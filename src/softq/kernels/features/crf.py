"""A chain with sparse features on the CPU: cross-entropy and gradient of a corpus in two passes.

The first pass goes through the sentences: scores of labels from the rows of the weights that a
token's features name, forward-backward (`softq.kernels.chain`), and E_model - E_target of every
token's labels. The second goes through the features: the gradient of a row of weights is the sum
of those differences over the tokens that have the feature, found through the transposed matrix, so
that no two threads write to one place and sums have one order, whatever the number of threads.
Both are products of a sparse and a dense matrix and move sixteen labels at a time
(`softq.kernels.simd`): what lies beyond the K labels of a row of weights is the next row's and is
left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from softq.errors import ShapeError
from softq.kernels.chain.cpu import forward_backward, load_table, workspace
from softq.kernels.jit import jit, ordered_jit, run_batch
from softq.kernels.semiring import PLAIN
from softq.kernels.simd import WIDTHS, vectors

Array = np.ndarray[Any, Any]

_WIDTH = WIDTHS["float32"]
_BLOCKS = 64  # shares of a pass, whatever the threads: enough to keep any number of them busy


class Columns(NamedTuple):
    """A sparse matrix by columns: feature f is on tokens ``rows[offsets[f] : offsets[f + 1]]``."""

    offsets: Array  # [F + 1] int64
    rows: Array  # [nnz] int32
    values: Array | None  # [nnz] float32; None: all 1


def transpose(offsets: Array, indices: Array, values: Array | None, size: int) -> Columns:
    """The same matrix by columns, tokens in ascending order."""
    ends = np.cumsum(np.bincount(indices, minlength=size))
    if len(ends) > size:  # it would be written to what lies behind the weights
        raise ShapeError(f"expected columns below {size}, got {len(ends) - 1}")
    starts = np.concatenate([[0], ends]).astype(np.int64)
    rows = np.empty(len(indices), np.int32)
    turned = None if values is None else np.empty(len(indices), np.float32)
    _transpose(offsets, indices, values, starts[:-1].copy(), rows, turned)
    return Columns(starts, rows, turned)


@jit
def _transpose(
    offsets: Any, indices: Any, values: Any, places: Any, rows: Any, turned: Any
) -> None:
    for t in range(len(offsets) - 1):
        for i in range(offsets[t], offsets[t + 1]):
            place = places[indices[i]]
            rows[place] = t
            if values is not None:
                turned[place] = values[i]
            places[indices[i]] = place + 1


@jit
def padded(count: int) -> int:
    """Floats that an array of ``count`` needs, so that sixteen may be read from any of them on."""
    return count + _WIDTH


def emissions(
    offsets: Array, indices: Array, values: Array | None, weights: Array, labels: int
) -> Array:
    """Scores of labels, ``[T, K]`` float32, from ``weights`` (flat, ``[F, K]`` and padded)."""
    scores = np.empty((len(offsets) - 1, labels), np.float32)
    multiply(Columns(offsets, indices, values), weights, labels, scores.reshape(-1))
    return scores


def multiply(matrix: Columns, dense: Array, labels: int, into: Array) -> None:
    """Write the product of a sparse matrix and a dense one with a column for each label.

    Row f of ``into`` is the sum of the rows of ``dense`` on which f is: from E_model - E_target of
    tokens ``[T, K]`` to the gradient of weights ``[F, K]``. Both are flat and padded.
    """
    operations = len(matrix.rows) * labels
    run_batch(_product, _BLOCKS, operations, *matrix, dense, labels, into)


@jit
def _product(
    first: int,
    stride: int,
    offsets: Any,
    indices: Any,
    values: Any,
    dense: Any,
    labels: int,
    into: Any,
) -> None:
    size, cells = len(offsets) - 1, len(indices)
    row = np.zeros(padded(labels) + _WIDTH, np.float32)
    summands, sums = vectors(dense, PLAIN), vectors(row, PLAIN)
    for block in range(first, _BLOCKS, stride):
        # blocks have as many entries, not as many rows: a few features stand on most tokens
        low = np.searchsorted(offsets, cells * block // _BLOCKS) if block else 0
        high = np.searchsorted(offsets, cells * (block + 1) // _BLOCKS)
        for r in range(low, high if block < _BLOCKS - 1 else size):
            _sum_rows(offsets, indices, values, summands, r, labels, sums)
            for k in range(labels):
                into[r * labels + k] = row[k]


@numba.njit(inline="always")  # a call would take as long as the sum of a short row
def _sum_rows(
    offsets: Any, indices: Any, values: Any, summands: Any, r: int, labels: int, sums: Any
) -> None:
    """One row of the product, to the first K entries of ``sums``; sixteen zeros are at K + 16."""
    start, end = np.uint64(offsets[r]), np.uint64(offsets[r + 1])
    # Unsigned: an index that could be negative is looked at, once for each row of few features.
    width, step = np.uint64(labels), np.uint64(_WIDTH)
    for at in range(np.uint64(0), width, step):
        total = sums[width + step]
        for i in range(start, end):
            factor = np.float32(1.0) if values is None else values[i]
            total = total + summands[np.uint64(indices[i]) * width + at] * factor
        sums[at] = total


class FeatureCorpus(NamedTuple):
    """What an objective is computed on, once and for all."""

    starts: Array  # [N + 1] int64, the first token of each sentence
    offsets: Array  # [T + 1] int64
    indices: Array  # [nnz] int32
    values: Array | None  # [nnz] float32
    target: Array  # [T, K] float32, E_target of labels


def differences(
    corpus: FeatureCorpus,
    weights: Array,
    transitions: Array,
    first_scores: Array,
    last_scores: Array,
    found: Array,
) -> tuple[float, Array]:
    """Σ log Z - <E_target, label scores>, and Σ E_model of pairs of labels, ``[K, K]``.

    E_model - E_target of labels is written to ``found`` (flat, ``[T, K]`` and padded). ``weights``
    is flat, ``[F, K]`` and padded; ``transitions [K, K]``, ``first_scores [K]`` and ``last_scores
    [K]`` are float64 and may hold -inf, the latter two being added at the ends of each sentence.
    """
    labels = corpus.target.shape[1]
    longest = int(np.diff(corpus.starts).max(initial=0))
    scores = weights, transitions, first_scores, last_scores
    losses, pairs = np.zeros(_BLOCKS), np.zeros((_BLOCKS, 1, labels, labels))
    operations = len(corpus.indices) * labels
    run_batch(_differences, _BLOCKS, operations, *corpus, *scores, longest, found, losses, pairs)
    return float(losses.sum()), pairs.sum((0, 1))


@ordered_jit
def _differences(
    first: int,
    stride: int,
    starts: Any,
    offsets: Any,
    indices: Any,
    values: Any,
    target: Any,
    weights: Any,
    transitions: Any,
    first_scores: Any,
    last_scores: Any,
    longest: int,
    found: Any,
    losses: Any,
    all_pairs: Any,
) -> None:
    labels = target.shape[1]
    sentences = len(starts) - 1
    row = np.zeros(padded(labels) + _WIDTH, np.float32)
    summands, sums = vectors(weights, PLAIN), vectors(row, PLAIN)
    table = load_table(transitions, 0, 1, longest)
    work = workspace(longest, labels)
    scores = np.empty((longest, labels))
    unary = np.empty((longest, labels))
    pairs = np.empty((1, labels, labels))
    for block in range(first, _BLOCKS, stride):
        loss = 0.0
        for s in range(sentences * block // _BLOCKS, sentences * (block + 1) // _BLOCKS):
            start, length = starts[s], starts[s + 1] - starts[s]
            if length == 0:
                continue
            for t in range(length):
                _sum_rows(offsets, indices, values, summands, start + t, labels, sums)
                for k in range(labels):
                    scores[t, k] = row[k]
            scores[0] += first_scores
            scores[length - 1] += last_scores
            pairs[:] = 0.0
            loss += forward_backward(
                scores, 0, transitions, 0, 1, table, length, work, unary, pairs, True
            )
            for t in range(length):
                place = (start + t) * labels
                for k in range(labels):
                    q = target[start + t, k]
                    if q != 0.0:
                        loss -= q * scores[t, k]
                    found[place + k] = unary[t, k] - q
            all_pairs[block] += pairs
        losses[block] = loss
