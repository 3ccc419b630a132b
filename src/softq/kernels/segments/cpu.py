"""Segmentations on the CPU: forward-backward, best one, samples; O(n L K + n K²) per sequence.

Sums over all ways to cut the first t tokens, or those behind them, for segments (t, d, k) of d + 1
tokens with label k that begin at token t:

    begun_0(k) = 1                          ended_{t+1}(k) = Σ_d begun_{t-d}(k) e^{s(t-d, d, k)}
    begun_t(j) = Σ_i ended_t(i) e^{T(i, j)}                           Z = Σ_k ended_n(k)
    ahead_t(k) = Σ_d e^{s(t, d, k)} after_{t+d+1}(k)
    after_t(i) = Σ_j e^{T(i, j)} ahead_t(j)                           after_n(k) = 1

    P(segment t, d, k) = begun_t(k) e^{s(t, d, k)} after_{t+d+1}(k) / Z
    P(labels i, j meet at t) = ended_t(i) e^{T(i, j)} ahead_t(j) / Z

The sums run in probability space, on exponentials of the scores less the largest of those that
begin at the same token. The rows of the next L tokens share a scale, which changes when the largest
number of a row leaves its range. A sequence in which some other number becomes too small to be
trusted is redone with logarithms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.operator import Expected
from softq.kernels.random import choose, draw_seeds
from softq.kernels.semiring import LOG, LOW, PLAIN, dot, fast_exp

# What products of numbers in probability space can bear: the largest number of a row lies between
# _SMALL and its inverse, the best score of a token below _STEEP in size, and what scales leave to a
# marginal below _LARGEST.
_SMALL, _STEEP, _LARGEST = 1e-50, 150.0, 300.0


def infer(
    segments: Tensor, transitions: Tensor, lengths: Tensor, target: Expected, gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See `softq.kernels.operator.Operator`."""
    batch, size, longest, labels = segments.shape
    count = batch if gradient else 1  # room for one example where nobody asks
    loss = torch.empty(batch, dtype=segments.dtype)
    d_segments = torch.empty(count, size, longest, labels, dtype=segments.dtype)
    d_transitions = torch.empty(count, labels, labels, dtype=segments.dtype)
    arrays = [as_array(x) for x in (segments, transitions, lengths)]
    outputs, weights, _, *parts = target.arrays(segments, transitions)
    arrays += [outputs, weights, *parts]
    arrays += [as_array(x) for x in (loss, d_segments, d_transitions)]
    operations = 10 * batch * size * labels * (longest + labels)
    run_batch(_losses, batch, operations, *arrays, gradient)
    return loss, d_segments, d_transitions


class Workspace(NamedTuple):
    """Scratch of one thread for sequences of up to n tokens."""

    values: Any  # exp(segments - peak): [n, L · K]
    growth: Any  # exp(peak of the segments and neighbours that begin at a token): [n]
    scale: Any  # logarithm by which `begun` and `ended` are larger than their rows: [n + 1]
    begun: Any  # [n + 1, K]
    ended: Any  # [n + 1 + L, K]
    after: Any  # [n + 1 + L, K]
    ahead: Any  # [1, K]
    terms: Any  # of a sum over lengths: [L · K]


class Neighbours(NamedTuple):
    """Scores of neighbouring labels, and their exponentials, in either order."""

    scores: Any  # [K, K]
    turned: Any
    pairs: Any  # exp(scores - peak)
    turned_pairs: Any
    peak: float
    exact: bool  # no finite score has an exponential too small to trust


@jit
def _workspace(size: int, longest: int, labels: int) -> Any:
    return Workspace(
        np.empty((size, longest * labels)),
        np.empty(size),
        np.empty(size + 1),
        np.empty((size + 1, labels)),
        np.empty((size + 1 + longest, labels)),
        np.empty((size + 1 + longest, labels)),
        np.empty((1, labels)),
        np.empty(longest * labels),
    )


@jit
def _neighbours(table: Any) -> Any:
    labels = table.shape[0]
    scores, pairs = np.empty((labels, labels)), np.empty((labels, labels))
    peak, lost = -np.inf, 0
    for i in range(labels):
        for j in range(labels):
            scores[i, j] = table[i, j]
            peak = max(peak, scores[i, j])
    peak = 0.0 if peak == -np.inf else peak
    for i in range(labels):
        for j in range(labels):
            pairs[i, j] = fast_exp(scores[i, j] - peak)
            lost += (pairs[i, j] < LOW) & (scores[i, j] > -np.inf)
    return Neighbours(scores, scores.T.copy(), pairs, pairs.T.copy(), peak, lost == 0)


@jit
def _forward_backward(
    scores: Any, near: Any, length: int, work: Any, found: Any, pairs: Any, want: bool
) -> Any:
    """Log Z of one sequence; marginals of segments to `found`, of neighbours to `pairs`, both 0."""
    if near.exact and _exponentials(scores, near.peak, length, work):
        log_z, exact = _forward(near, length, work)
        if exact and want and log_z > -np.inf:
            exact = _backward(near, length, work, log_z, found, pairs)
        if exact:
            return log_z
    found[:] = 0.0
    pairs[:] = 0.0
    log_z = _log_forward(scores, near, length, work)
    if want and log_z > -np.inf:
        _log_backward(scores, near, length, work, log_z, found, pairs)
    return log_z


@jit
def _exponentials(scores: Any, peak_of_pairs: float, length: int, work: Any) -> bool:
    """Fill `values` and `growth`; returns whether all of them can be trusted."""
    longest, labels = scores.shape[1:]
    values = work.values
    lost = 0
    for t in range(length):
        count = np.uint64(min(longest, length - t) * labels)
        given = scores[t].reshape(-1)
        peak = -np.inf
        for i in range(count):
            peak = max(peak, given[i])
        peak = 0.0 if peak == -np.inf else peak
        for i in range(count):
            value = fast_exp(given[i] - peak)
            values[t, i] = value
            lost += (value < LOW) & (given[i] > -np.inf)
        if t > 0:
            peak += peak_of_pairs
        lost += abs(peak) > _STEEP
        work.growth[t] = np.exp(peak)
    return lost == 0


@jit
def _rescale(rows: Any, row: int, first: int, last: int) -> Any:
    """Divide rows first..last by the largest number of one of them if that has left the range.

    Returns the logarithm of what they were divided by, and whether no number of theirs is lost.
    """
    labels = rows.shape[1]
    peak, lost, moved = 0.0, 0, 0.0
    for k in range(labels):
        peak = max(peak, rows[row, k])
    if peak > 0.0 and (peak < _SMALL or peak > 1.0 / _SMALL):
        moved = np.log(peak)
        for r in range(first, last):
            for k in range(labels):
                value = rows[r, k] / peak
                lost += (value == 0.0) & (rows[r, k] > 0.0)
                rows[r, k] = value
    for k in range(labels):
        lost += (rows[row, k] < LOW) & (rows[row, k] > 0.0)
    return moved, lost == 0


@jit
def _forward(near: Any, length: int, work: Any) -> Any:
    """`begun` and `ended`, and their scale; returns log Z, and whether it can be trusted."""
    begun, ended, values = work.begun, work.ended, work.values
    labels = begun.shape[1]
    longest = values.shape[1] // labels
    ended[: length + 1] = 0.0
    scale, trusted = 0.0, True
    for t in range(length + 1):
        if t > 0:
            moved, exact = _rescale(ended, t, t, min(t + longest, length + 1))
            scale += moved
            trusted &= exact
        work.scale[t] = scale
        if t == length:
            break
        for k in range(labels):
            # begun_t(j) = Σ_i ended_t(i) e^{T(i, j)}
            value = dot(ended, t, 0, near.turned_pairs, k, 0, labels, PLAIN) if t > 0 else 1.0
            trusted &= (value >= LOW) | (value == 0.0)
            begun[t, k] = value
            work.ahead[0, k] = value * work.growth[t]
        for d in range(min(longest, length - t)):
            # ended_{t+d+1}(k) += begun_t(k) e^{s(t, d, k)}
            for k in range(np.uint64(labels)):
                ended[t + 1 + d, k] += work.ahead[0, k] * values[t, np.uint64(d * labels) + k]
    return (np.log(ended[length].sum()) + scale if length > 0 else 0.0), trusted


@jit
def _backward(near: Any, length: int, work: Any, log_z: float, found: Any, pairs: Any) -> bool:
    """Marginals from what `_forward` left; returns whether they can be trusted."""
    begun, ended, after, ahead, values = work.begun, work.ended, work.after, work.ahead, work.values
    labels = begun.shape[1]
    longest = values.shape[1] // labels
    summed = np.zeros((labels, labels))  # Σ_t ended_t(i) ahead_t(j) / Z
    after[length] = 1.0
    scale, trusted = 0.0, True
    for t in range(length - 1, -1, -1):
        count = min(longest, length - t)
        back = work.scale[t] + scale - log_z
        trusted &= back < _LARGEST
        factor = np.exp(back) if trusted else 0.0
        ahead[:] = 0.0
        for d in range(count):
            # ahead_t(k) = Σ_d e^{s(t, d, k)} after_{t+d+1}(k)
            for k in range(np.uint64(labels)):
                value = values[t, np.uint64(d * labels) + k] * after[t + 1 + d, k]
                ahead[0, k] += value
                found[t, d, k] = value * (begun[t, k] * (factor * work.growth[t]))
        if t == 0:
            break
        for k in range(labels):
            trusted &= (ahead[0, k] >= LOW) | (ahead[0, k] == 0.0)
            ahead[0, k] *= work.growth[t]
        for i in range(labels):
            # after_t(i) = Σ_j e^{T(i, j)} ahead_t(j)
            after[t, i] = dot(near.pairs, i, 0, ahead, 0, 0, labels, PLAIN)
            for j in range(np.uint64(labels)):
                summed[i, j] += ended[t, i] * factor * ahead[0, j]
        moved, exact = _rescale(after, t, t, min(t + longest, length + 1))
        scale += moved
        trusted &= exact
    for i in range(labels):
        for j in range(labels):
            pairs[i, j] = summed[i, j] * near.pairs[i, j]
    return trusted


@jit
def _log_sum(terms: Any, count: int, out: Any, row: int) -> None:
    """out[row, k] = log Σ_d exp(terms[d, k]) over `count` lengths."""
    labels = out.shape[1]
    for k in range(labels):
        peak, total = -np.inf, 0.0
        for d in range(count):
            peak = max(peak, terms[d * labels + k])
        for d in range(count):
            total += fast_exp(terms[d * labels + k] - (0.0 if peak == -np.inf else peak))
        out[row, k] = np.log(total) + peak


@jit
def _log_forward(scores: Any, near: Any, length: int, work: Any) -> Any:
    """Logarithms of `begun` and `ended`; returns log Z."""
    longest, labels = scores.shape[1:]
    begun, ended, terms = work.begun, work.ended, work.terms
    begun[0] = 0.0
    for t in range(1, length + 1):
        count = min(longest, t)
        for d in range(count):
            for k in range(labels):
                terms[d * labels + k] = begun[t - 1 - d, k] + scores[t - 1 - d, d, k]
        _log_sum(terms, count, ended, t)
        for j in range(labels):
            begun[t, j] = dot(ended, t, 0, near.turned, j, 0, labels, LOG)
    work.ahead[0] = 0.0
    return dot(ended, length, 0, work.ahead, 0, 0, labels, LOG) if length > 0 else 0.0


@jit
def _log_backward(
    scores: Any, near: Any, length: int, work: Any, log_z: float, found: Any, pairs: Any
) -> None:
    """Marginals from what `_log_forward` left, added to `pairs`."""
    longest, labels = scores.shape[1:]
    begun, ended, ahead, after, terms = work.begun, work.ended, work.ahead, work.after, work.terms
    after[length] = 0.0
    for t in range(length - 1, -1, -1):
        count = min(longest, length - t)
        for d in range(count):
            for k in range(labels):
                terms[d * labels + k] = scores[t, d, k] + after[t + 1 + d, k]
                found[t, d, k] = fast_exp(begun[t, k] + terms[d * labels + k] - log_z)
        _log_sum(terms, count, ahead, 0)
        for i in range(labels if t > 0 else 0):
            after[t, i] = dot(near.scores, i, 0, ahead, 0, 0, labels, LOG)
            for j in range(labels):
                pairs[i, j] += fast_exp(ended[t, i] + near.scores[i, j] + ahead[0, j] - log_z)


@jit
def _losses(
    first: int,
    stride: int,
    segments: Any,
    transitions: Any,
    lengths: Any,
    outputs: Any,
    weights: Any,
    expected: Any,
    expected_pairs: Any,
    loss: Any,
    d_segments: Any,
    d_transitions: Any,
    want: bool,
) -> None:
    batch, size, longest, labels = segments.shape
    work = _workspace(size, longest, labels)
    near = _neighbours(transitions[0])  # the only ones, if all examples share them
    for b in range(first, batch, stride):
        table = transitions[b if len(transitions) > 1 else 0]
        if len(transitions) > 1:
            near = _neighbours(table)
        found, pairs = d_segments[b if want else 0], d_transitions[b if want else 0]
        found[:] = 0.0
        pairs[:] = 0.0
        total = _forward_backward(segments[b], near, lengths[b], work, found, pairs, want)
        if total == -np.inf and outputs.shape[1] + expected.shape[0] > 0:
            loss[b] = np.inf  # the model forbids every output
            continue
        for r in range(outputs.shape[1]):
            if weights[b, r] != 0.0:
                total -= weights[b, r] * _take_segments(
                    segments[b], table, lengths[b], outputs[b, r], weights[b, r], found, pairs
                )
        if expected.shape[0] > 0:
            total -= _take_parts(expected[b].reshape(-1), segments[b].reshape(-1), found)
            total -= _take_parts(expected_pairs[b].reshape(-1), table.reshape(-1), pairs)
        loss[b] = total


@jit
def _take_segments(
    scores: Any, table: Any, length: int, values: Any, weight: float, found: Any, pairs: Any
) -> float:
    """Score of an output; its parts, times the weight, are taken from the gradient."""
    labels = scores.shape[2]
    total, before = 0.0, -1
    for t in range(length):
        if values[t] > 0:  # a segment begins here: length · K + label
            d, k = values[t] // labels - 1, values[t] % labels
            total += scores[t, d, k]
            found[t, d, k] -= weight
            if before >= 0:
                total += table[before, k]
                pairs[before, k] -= weight
            before = k
    return total


@jit
def _take_parts(expected: Any, scores: Any, gradient: Any) -> float:
    """<expected, scores>; the expected parts are taken from the gradient."""
    total = 0.0
    flat = gradient.reshape(-1)
    for i in range(len(expected)):
        mass = expected[i]
        total += mass * (scores[i] if mass != 0.0 else 0.0)
        flat[i] -= mass
    return total


def mode(lengths: Tensor, segments: Tensor, transitions: Tensor) -> Tensor:
    """Best segmentation ``[B,n]``."""
    batch, size, longest, labels = segments.shape
    best = torch.zeros(batch, size, dtype=torch.int64)
    arrays = (as_array(x) for x in (segments.double(), transitions.double(), lengths, best))
    run_batch(_viterbi, batch, batch * size * labels * (longest + labels), *arrays)
    return best.to(segments.device)


@jit
def _viterbi(first: int, stride: int, segments: Any, tables: Any, lengths: Any, best: Any) -> None:
    batch, size, longest, labels = segments.shape
    begun, ended = np.empty((size + 1, labels)), np.empty((size + 1, labels))
    spans = np.zeros((size + 1, labels), dtype=np.int64)  # of the segment that ends there
    labels_before = np.zeros((size + 1, labels), dtype=np.int64)
    for b in range(first, batch, stride):
        table = tables[b if len(tables) > 1 else 0]
        begun[0] = 0.0
        ended[:] = -np.inf
        for t in range(1, lengths[b] + 1):
            spans[t] = 0
            for d in range(min(longest, t)):
                for k in range(labels):
                    candidate = begun[t - 1 - d, k] + segments[b, t - 1 - d, d, k]
                    if candidate > ended[t, k]:
                        ended[t, k] = candidate
                        spans[t, k] = d
            begun[t] = -np.inf
            labels_before[t] = 0
            for i in range(labels):
                for j in range(labels):
                    candidate = ended[t, i] + table[i, j]
                    if candidate > begun[t, j]:
                        begun[t, j] = candidate
                        labels_before[t, j] = i
        t = lengths[b]
        label = np.argmax(ended[t])
        while t > 0:
            d = spans[t, label]
            t -= d + 1
            best[b, t] = (d + 1) * labels + label
            label = labels_before[t, label]


def sample(
    lengths: Tensor,
    segments: Tensor,
    transitions: Tensor,
    count: int,
    generator: torch.Generator | None,
) -> Tensor:
    """``count`` exact samples per sequence ``[count,B,n]``: filter forward, draw back."""
    batch, size, longest, labels = segments.shape
    drawn = torch.zeros(count, batch, size, dtype=torch.int64)
    seeds = draw_seeds(count * batch, generator).reshape(count, batch)
    arrays = (as_array(x) for x in (segments.double(), transitions.double(), lengths, drawn))
    operations = batch * size * (longest + labels) * (5 * labels + count)
    run_batch(_backward_sample, batch, operations, *arrays, seeds)
    return drawn.to(segments.device)


@jit
def _backward_sample(
    first: int, stride: int, segments: Any, tables: Any, lengths: Any, drawn: Any, seeds: Any
) -> None:
    batch, size, longest, labels = segments.shape
    work = _workspace(size, longest, labels)
    weight = np.empty(max(longest, labels))
    state = np.empty(1, dtype=np.uint64)
    for b in range(first, batch, stride):
        near = _neighbours(tables[b if len(tables) > 1 else 0])
        _log_forward(segments[b], near, lengths[b], work)
        for s in range(len(drawn)):
            state[0] = seeds[s, b]
            t, after = lengths[b], 0
            while t > 0:
                # P(k, d | what follows) ∝ ended_t(k) e^{T(k, next)} · begun_{t-d-1}(k) e^{s(…)}
                for k in range(labels):
                    weight[k] = work.ended[t, k]
                    if t < lengths[b]:
                        weight[k] += near.scores[k, after]
                label = choose(weight, labels, state)
                count = min(longest, t)
                for d in range(count):
                    weight[d] = work.begun[t - 1 - d, label] + segments[b, t - 1 - d, d, label]
                d = choose(weight, count, state)
                t -= d + 1
                drawn[s, b, t] = (d + 1) * labels + label
                after = label
