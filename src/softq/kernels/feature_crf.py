"""A chain with sparse features on the CPU: cross-entropy and gradient over a whole corpus in two passes.

The first pass goes through the sentences: scores of labels from the rows of the weights that a token's features name, forward-backward
(`softq.kernels.chain`), and E_model - E_target of every token's labels. The second goes through the features: the gradient of a row
of weights is the sum of those differences over the tokens that have the feature, found through the transposed matrix, so that no two
threads write to one place and sums have one order, whatever the number of threads. Both move sixteen labels at a time (`lanes`): a row of
weights is read as whole lanes, and what lies beyond its K labels is the next row's and is left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softq.errors import ShapeError
from softq.kernels.chain import _backward, _exponentials, _forward
from softq.kernels.jit import LOG, PLAIN, jit, run_batch
from softq.kernels.lanes import WIDTH, fill, kernel, load, spread, store

Array = np.ndarray[Any, Any]

_BLOCKS = 64  # shares of a pass: enough to keep any number of threads busy, and the same for all of them


class Columns(NamedTuple):
    """A sparse matrix by columns: feature f stands on tokens ``rows[offsets[f] : offsets[f + 1]]``."""

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
def _transpose(offsets: Any, indices: Any, values: Any, places: Any, rows: Any, turned: Any) -> None:
    for t in range(len(offsets) - 1):
        for i in range(offsets[t], offsets[t + 1]):
            place = places[indices[i]]
            rows[place] = t
            if values is not None:
                turned[place] = values[i]
            places[indices[i]] = place + 1


def padded(count: int) -> int:
    """Floats that an array of ``count`` of them needs, so that lanes may be read from any of them."""
    return count + WIDTH


def emissions(offsets: Array, indices: Array, values: Array | None, weights: Array, labels: int) -> Array:
    """Scores of labels, ``[T, K]`` float32, from ``weights`` (flat, ``[F, K]`` and padded)."""
    tokens = len(offsets) - 1
    scores = np.empty((tokens, labels), np.float32)
    run_batch(_emissions, _BLOCKS, len(indices) * labels, offsets, indices, values, weights, scores)
    return scores


@kernel
def _emissions(first: int, stride: int, offsets: Any, indices: Any, values: Any, weights: Any, scores: Any) -> None:
    tokens, labels = scores.shape
    groups = (labels + WIDTH - 1) // WIDTH
    row = np.empty(groups * WIDTH, np.float32)
    for block in range(first, _BLOCKS, stride):
        for t in range(tokens * block // _BLOCKS, tokens * (block + 1) // _BLOCKS):
            _score(offsets, indices, values, weights, t, labels, groups, row)
            for k in range(labels):
                scores[t, k] = row[k]


@kernel
def _score(offsets: Any, indices: Any, values: Any, weights: Any, t: int, labels: int, groups: int, row: Any) -> None:
    """Σ over the features of token t of their rows of weights."""
    start, end = np.uint64(offsets[t]), np.uint64(offsets[t + 1])
    for group in range(groups):
        at = group * WIDTH
        total = fill(np.float32(0.0))
        for i in range(start, end):
            lanes = load(weights, np.int64(indices[i]) * labels + at)
            if values is not None:
                lanes = lanes * spread(values, i)
            total = total + lanes
        store(row, at, total)


class Corpus(NamedTuple):
    """What an objective is computed on, once and for all."""

    starts: Array  # [N + 1] int64, the first token of each sentence
    offsets: Array  # [T + 1] int64
    indices: Array  # [nnz] int32
    values: Array | None  # [nnz] float32
    target: Array  # [T, K] float32, E_target of labels


def differences(
    corpus: Corpus, weights: Array, transitions: Array, first_scores: Array, last_scores: Array, found: Array
) -> tuple[float, Array]:
    """Σ log Z - <E_target, label scores>, and Σ E_model of pairs of labels, ``[K, K]``.

    E_model - E_target of labels is written to ``found`` (flat, ``[T, K]`` and padded).
    ``weights`` is flat, ``[F, K]`` and padded; ``transitions [K, K]``, ``first_scores [K]`` and ``last_scores [K]`` are float64 and may
    hold -inf, the latter two being added at the ends of each sentence.
    """
    labels = corpus.target.shape[1]
    losses = np.zeros(_BLOCKS)
    pairs = np.zeros((_BLOCKS, 1, labels, labels))
    work = len(corpus.indices) * labels
    run_batch(_differences, _BLOCKS, work, *corpus, weights, transitions, first_scores, last_scores, found, losses, pairs)
    return float(losses.sum()), pairs.sum((0, 1))


@kernel
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
    found: Any,
    losses: Any,
    all_pairs: Any,
) -> None:
    labels = target.shape[1]
    groups = (labels + WIDTH - 1) // WIDTH
    sentences = len(starts) - 1
    longest = 0
    for s in range(sentences):
        longest = max(longest, starts[s + 1] - starts[s])
    row = np.empty(groups * WIDTH, np.float32)
    table = np.empty((labels, labels))
    table_peak, table_exact = _exponentials(transitions, 0, labels, labels, table)
    turned = table.T.copy()
    scores = np.empty((longest, labels))
    probabilities = np.empty((longest, labels))
    alpha = np.empty((longest, labels))
    scale = np.empty(longest)
    beta = np.empty(labels)
    ahead = np.empty((1, labels))
    over_time = np.empty((2 * labels, longest))
    unary = np.empty((longest, labels))
    pairs = np.empty((1, labels, labels))
    for block in range(first, _BLOCKS, stride):
        loss = 0.0
        for s in range(sentences * block // _BLOCKS, sentences * (block + 1) // _BLOCKS):
            start, length = starts[s], starts[s + 1] - starts[s]
            if length == 0:
                continue
            for t in range(length):
                _score(offsets, indices, values, weights, start + t, labels, groups, row)
                for k in range(labels):
                    scores[t, k] = row[k]
            for k in range(labels):
                scores[0, k] += first_scores[k]
                scores[length - 1, k] += last_scores[k]
            peak, exact = _exponentials(scores, 0, length, 1, probabilities)
            in_range = table_exact and exact
            total = 0.0
            pairs[:] = 0.0
            if in_range:
                total, in_range = _forward(probabilities, 0, table, turned, 0, 1, length, alpha, scale, PLAIN)
            if in_range:
                total += peak + table_peak * (length - 1)
                _backward(probabilities, 0, table, 0, 1, length, total, alpha, scale, beta, ahead, over_time, unary, pairs[0:1], PLAIN)
            else:
                total, _ = _forward(scores, 0, transitions, turned, 0, 1, length, alpha, scale, LOG)
                _backward(scores, 0, transitions, 0, 1, length, total, alpha, scale, beta, ahead, over_time, unary, pairs[0:1], LOG)
            loss += total
            for t in range(length):
                place = (start + t) * labels
                for k in range(labels):
                    q = target[start + t, k]
                    if q != 0.0:
                        loss -= q * scores[t, k]
                    found[place + k] = unary[t, k] - q
            for i in range(labels):
                for j in range(labels):
                    all_pairs[block, 0, i, j] += pairs[0, i, j]
        losses[block] = loss


def gradient(columns: Columns, found: Array, labels: int, into: Array) -> None:
    """Writes Σ over the tokens of each feature of ``found`` (flat, ``[T, K]`` and padded) to ``into`` (flat, ``[F, K]``, padded)."""
    run_batch(_gradient, _BLOCKS, len(columns.rows) * labels, *columns, found, labels, into)


@kernel
def _gradient(first: int, stride: int, offsets: Any, rows: Any, values: Any, found: Any, labels: int, into: Any) -> None:
    size = len(offsets) - 1
    groups = (labels + WIDTH - 1) // WIDTH
    row = np.empty(groups * WIDTH, np.float32)
    cells = len(rows)
    for block in range(first, _BLOCKS, stride):
        # blocks have as many entries, not as many features: a few features stand on most tokens
        low = np.searchsorted(offsets, cells * block // _BLOCKS) if block else 0
        high = np.searchsorted(offsets, cells * (block + 1) // _BLOCKS) if block < _BLOCKS - 1 else size
        for f in range(low, min(high, size)):
            _score(offsets, rows, values, found, f, labels, groups, row)
            for k in range(labels):
                into[f * labels + k] = row[k]
