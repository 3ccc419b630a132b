"""Segmentations on the CPU: forward-backward, best one, samples; O(n L K + n K²) per sequence.

Sums over all ways to cut the first t tokens, or those behind them, for segments (t, d, k) of d + 1
tokens with label k that begin at token t:

    begun_0(k) = 1                          ended_{t+1}(k) = Σ_d begun_{t-d}(k) e^{s(t-d, d, k)}
    begun_t(j) = Σ_i ended_t(i) e^{T(i, j)}                           Z = Σ_k ended_n(k)
    ahead_t(k) = Σ_d e^{s(t, d, k)} after_{t+d+1}(k)
    after_t(i) = Σ_j e^{T(i, j)} ahead_t(j)                           after_n(k) = 1

    P(segment t, d, k) = begun_t(k) e^{s(t, d, k)} after_{t+d+1}(k) / Z
    P(labels i, j meet at t) = ended_t(i) e^{T(i, j)} ahead_t(j) / Z

All of these are kept as logarithms, because the scores of segments grow with their lengths, and the
sums over lengths are sums of exponentials less their peak. Those over labels are products with e^T,
unless a finite number among them is too small to be trusted.
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

_LARGEST = 600.0  # logarithm of a factor that products with exponentials above LOW can take


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

    begun: Any  # [n + 1, K]
    ended: Any  # [n + 1, K]
    ahead: Any  # [n + 1, K]
    after: Any  # [n + 1, K]
    terms: Any  # of a sum over lengths: [L · K]
    peak: Any  # of the terms of each label: [K]
    total: Any  # [K]
    weight: Any  # exponentials of labels before and behind: [2, K]


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
        np.empty((size + 1, labels)),
        np.empty((size + 1, labels)),
        np.empty((size + 1, labels)),
        np.empty((size + 1, labels)),
        np.empty(longest * labels),
        np.empty(labels),
        np.empty(labels),
        np.empty((2, labels)),
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
def _weigh(values: Any, row: int, weight: Any, place: int) -> Any:
    """Exponentials of a row less its peak; returns the peak, and whether none is too small."""
    labels = values.shape[1]
    peak, lost = -np.inf, 0
    for k in range(labels):
        peak = max(peak, values[row, k])
    peak = 0.0 if peak == -np.inf else peak
    for k in range(labels):
        value = fast_exp(values[row, k] - peak)
        weight[place, k] = value
        lost += (value < LOW) & (values[row, k] > -np.inf)
    return peak, lost == 0


@jit
def _join(values: Any, row: int, scores: Any, pairs: Any, near: Any, weight: Any, out: Any) -> None:
    """out[row, j] = log Σ_i exp(values[row, i] + scores[j, i])."""
    labels = values.shape[1]
    peak, exact = _weigh(values, row, weight, 0)
    for j in range(labels):
        if exact and near.exact:
            summed = dot(weight, 0, 0, pairs, j, 0, labels, PLAIN)
            out[row, j] = np.log(summed) + (peak + near.peak)
        else:
            out[row, j] = dot(values, row, 0, scores, j, 0, labels, LOG)


@jit
def _sum_lengths(count: int, work: Any, out: Any, row: int) -> None:
    """out[row, k] = log Σ_d exp(terms[d, k]) over `count` lengths.

    Leaves the peaks of the sums, 0 where nothing is possible, and exp(terms - peak).
    """
    terms, peak, total = work.terms, work.peak, work.total
    labels = len(peak)
    peak[:] = -np.inf
    total[:] = 0.0
    for d in range(count):
        for k in range(labels):
            term = terms[d * labels + k]
            peak[k] = term if term > peak[k] else peak[k]
    for k in range(labels):
        peak[k] = 0.0 if peak[k] == -np.inf else peak[k]
    for d in range(count):
        for k in range(labels):
            terms[d * labels + k] -= peak[k]
    for i in range(np.uint64(count * labels)):  # one long loop, whatever the number of labels
        terms[i] = fast_exp(terms[i])
    for d in range(count):
        for k in range(labels):
            total[k] += terms[d * labels + k]
    for k in range(labels):
        out[row, k] = np.log(total[k]) + peak[k]


@jit
def _forward(scores: Any, near: Any, length: int, work: Any) -> Any:
    """Logarithms of `begun` and `ended`; returns log Z."""
    longest, labels = scores.shape[1:]
    begun, ended, terms = work.begun, work.ended, work.terms
    begun[0] = 0.0
    for t in range(1, length + 1):
        count = min(longest, t)
        for d in range(count):
            for k in range(labels):
                terms[d * labels + k] = begun[t - 1 - d, k] + scores[t - 1 - d, d, k]
        _sum_lengths(count, work, ended, t)
        if t < length:
            _join(ended, t, near.turned, near.turned_pairs, near, work.weight, begun)
    if length == 0:
        return 0.0
    peak, _ = _weigh(ended, length, work.weight, 0)
    return np.log(work.weight[0].sum()) + peak


@jit
def _backward(
    scores: Any, near: Any, length: int, work: Any, log_z: float, found: Any, pairs: Any
) -> None:
    """Marginals of segments to `found`, of neighbours to `pairs`, from what `_forward` left."""
    longest, labels = scores.shape[1:]
    begun, ended, ahead, after = work.begun, work.ended, work.ahead, work.after
    terms, peak, weight = work.terms, work.peak, work.weight
    summed = np.zeros((labels, labels))  # Σ_t ended_t(i) ahead_t(j) / Z
    after[length] = 0.0
    for t in range(length - 1, -1, -1):
        count = min(longest, length - t)
        for d in range(count):
            for k in range(labels):
                terms[d * labels + k] = scores[t, d, k] + after[t + 1 + d, k]
        _sum_lengths(count, work, ahead, t)
        for k in range(labels):
            possible = ahead[t, k] > -np.inf
            peak[k] = fast_exp(peak[k] + begun[t, k] - log_z) if possible else 0.0
        for d in range(count):
            for k in range(labels):
                found[t, d, k] = terms[d * labels + k] * peak[k]
        if t == 0:
            break
        _join(ahead, t, near.scores, near.pairs, near, weight, after)
        before, exact = _weigh(ended, t, weight, 0)
        behind, as_exact = _weigh(ahead, t, weight, 1)
        scale = before + behind + near.peak - log_z
        if exact and as_exact and near.exact and scale < _LARGEST:
            scale = np.exp(scale)
            for i in range(labels):
                factor = weight[0, i] * scale
                for j in range(labels):
                    summed[i, j] += factor * weight[1, j]
        else:
            for i in range(labels):
                for j in range(labels):
                    moved = ended[t, i] + near.scores[i, j] + ahead[t, j]
                    pairs[i, j] += np.exp(moved - log_z)
    for i in range(labels):
        for j in range(labels):
            pairs[i, j] += summed[i, j] * near.pairs[i, j]


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
        total = _forward(segments[b], near, lengths[b], work)
        if total == -np.inf and outputs.shape[1] + expected.shape[0] > 0:
            loss[b] = np.inf  # the model forbids every output
            continue
        if want and total > -np.inf:
            _backward(segments[b], near, lengths[b], work, total, found, pairs)
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
        _forward(segments[b], near, lengths[b], work)
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
