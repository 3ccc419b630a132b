"""Linear chains on the CPU: forward-backward, Viterbi and backward sampling; O(n K²) per sequence.

Forward-backward runs in probability space with float64 scaling. That is exact to rounding as long
as every nonzero number stays above ``LOW``: then no product of three underflows and a zero means
"forbidden". A sequence that leaves this range is redone in log space, so no score is too large and
no chain too long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.operator import Expected
from softq.kernels.random import choose, draw_seeds
from softq.kernels.semiring import (
    LOG,
    LOW,
    PLAIN,
    add_scaled,
    dot,
    fast_exp,
    inverse,
    number,
    plus,
    times,
)


def infer(
    emissions: Tensor, transitions: Tensor, lengths: Tensor, target: Expected, gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See `softq.kernels.operator.Operator`."""
    batch, size, labels = emissions.shape
    count = batch if gradient else 1  # room for one example where nobody asks
    loss = torch.empty(batch, dtype=emissions.dtype)
    d_emissions = torch.empty(count, size, labels, dtype=emissions.dtype)
    d_transitions = torch.empty(count, *transitions.shape[1:], dtype=emissions.dtype)
    arrays = [as_array(x) for x in (emissions, transitions, lengths)]
    arrays += target.arrays(emissions, transitions)
    arrays += [as_array(x) for x in (loss, d_emissions, d_transitions)]
    run_batch(_losses, batch, 3 * batch * size * labels * labels, *arrays, gradient)
    return loss, d_emissions, d_transitions


class Workspace(NamedTuple):
    """Scratch of one thread for sequences of up to n positions."""

    values: Any  # exp(emissions - peak): [n, K]
    alpha: Any  # [n, K]
    scale: Any  # 1 / c_t, by which alpha is normalised: [n]
    beta: Any  # [K]
    ahead: Any  # [1, K]
    over_time: Any  # alpha and ahead by label, for sums over time: [2 K, n]


class TransitionTable(NamedTuple):
    """Transitions of one example, or of all of them, as exponentials."""

    pairs: Any  # exp(table - peak): [steps · K, K]
    turned: Any  # its transpose, if there is one table for all steps
    peak: float
    exact: bool


@jit
def workspace(size: int, labels: int) -> Any:
    """Scratch for sequences of up to ``size`` positions."""
    return Workspace(
        np.empty((size, labels)),
        np.empty((size, labels)),
        np.empty(size),
        np.empty(labels),
        np.empty((1, labels)),
        np.empty((2 * labels, size)),
    )


@jit
def load_table(transitions: Any, first_row: int, steps: int, length: int) -> Any:
    """Exponentials of the transitions that a sequence of this length needs."""
    labels = transitions.shape[1]
    count = labels if steps == 1 else max(length - 1, 0) * labels
    pairs = np.empty((count, labels))
    peak, exact = _exponentials(transitions, first_row, count, labels, pairs)
    turned = pairs.T.copy() if steps == 1 else np.empty((0, 0))
    return TransitionTable(pairs, turned, peak, exact)


@jit
def forward_backward(
    scores: Any,
    first: int,
    transitions: Any,
    first_step: int,
    steps: int,
    table: Any,
    length: int,
    work: Any,
    unary: Any,
    pairs: Any,
    want: bool,
) -> Any:
    """Log Z of one sequence; marginals of labels to `unary`, of neighbours to `pairs`, which is 0.

    The scores of its labels are rows of `scores` from `first` on, those of its neighbours rows of
    `transitions`, K for each of the `steps` from `first_step` on, and their exponentials `table`.
    """
    alpha, scale = work.alpha, work.scale
    unary[:length] = 0.0  # if the model forbids every output, there are no marginals
    peak, exact = _exponentials(scores, first, length, 1, work.values)
    if table.exact and exact:
        log_z, in_range = _forward(
            work.values, 0, table.pairs, table.turned, 0, steps, length, alpha, scale, PLAIN
        )
        if in_range:
            if want and log_z > -np.inf:
                _backward(work.values, 0, table.pairs, 0, steps, length, work, unary, pairs, PLAIN)
            return log_z + peak + table.peak * (max(length - 1, 0) if steps == 1 else 1)
    log_z, _ = _forward(
        scores, first, transitions, table.turned, first_step, steps, length, alpha, scale, LOG
    )
    if want and log_z > -np.inf:
        _backward(scores, first, transitions, first_step, steps, length, work, unary, pairs, LOG)
    return log_z


@jit
def _exponentials(scores: Any, first: int, count: int, group: int, values: Any) -> Any:
    """exp(scores - peak) of `count` rows with one peak per `group` of rows.

    Returns the sum of the peaks, and whether no finite score has an exponential too small to trust.
    """
    size = scores.shape[1]
    sum_of_peaks = 0.0
    for start in range(0, count, group):
        peak = -np.inf
        for r in range(start, start + group):
            for k in range(size):
                peak = max(peak, scores[first + r, k])
        if peak == -np.inf:
            peak = 0.0
        sum_of_peaks += peak
        for r in range(start, start + group):
            for k in range(size):
                values[r, k] = scores[first + r, k] - peak
    lost = 0
    flat = values.reshape(-1)
    for i in range(count * size):  # one long loop, whatever the number of labels
        score = flat[i]
        value = fast_exp(score)
        flat[i] = value
        lost += (value < LOW) & (score > -np.inf)
    return sum_of_peaks, lost == 0


@jit
def _forward(
    local: Any,
    first: int,
    pairs: Any,
    turned: Any,
    first_step: int,
    steps: int,
    length: int,
    alpha: Any,
    scale: Any,
    log: bool | None,
) -> Any:
    """Normalised forward variables and 1 / c_t; returns log Z and whether the range held."""
    labels = local.shape[1]
    log_z, product = 0.0, 1.0
    zero = -np.inf if log is not None else 0.0
    for t in range(length):
        # alpha_t(j) = e_t(j) Σ_i alpha_{t-1}(i) T(i,j)
        total = zero
        if t > 0 and (steps > 1 or log is not None):
            alpha[t] = zero
            row = (first_step + (0 if steps == 1 else t - 1)) * labels
            for i in range(labels):
                add_scaled(alpha, t, 0, alpha[t - 1, i], pairs, row + i, 0, labels, log)
        for j in range(labels):
            value = local[first + t, j]
            if t > 0 and steps == 1 and log is None:
                value *= dot(alpha, t - 1, 0, turned, j, 0, labels, log)
            elif t > 0:
                value = times(value, alpha[t, j], log)
            alpha[t, j] = value
            total = plus(total, value, log)
        if total == zero:
            return -np.inf, True
        lost = 0
        factor = inverse(total, log)
        scale[t] = factor
        for j in range(labels):
            value = times(alpha[t, j], factor, log)
            alpha[t, j] = value
            lost += (value < LOW) & (value != 0.0)
        if log is not None:
            log_z += total
            continue
        if lost > 0:
            return 0.0, False
        product *= total
        if product < LOW or product > 1.0 / LOW:  # one logarithm for many steps
            log_z += np.log(product)
            product = 1.0
    return log_z + np.log(product), True


@jit
def _backward(
    local: Any,
    first: int,
    pairs: Any,
    first_step: int,
    steps: int,
    length: int,
    work: Any,
    unary: Any,
    found: Any,
    log: bool | None,
) -> None:
    """Label marginals to `unary` and pair marginals to `found`, from what `_forward` left."""
    alpha, beta, ahead, over_time = work.alpha, work.beta, work.ahead, work.over_time
    labels = local.shape[1]
    beta[:] = 0.0 if log is not None else 1.0
    for t in range(length - 1, -1, -1):
        # ahead(j) = e_t(j) beta_t(j) / c_t
        factor = work.scale[t]
        for j in range(labels):
            ahead[0, j] = times(times(local[first + t, j], beta[j], log), factor, log)
            unary[t, j] = number(times(alpha[t, j], beta[j], log), log)
            over_time[j, t] = alpha[t, j]
            over_time[labels + j, t] = ahead[0, j]
        if t == 0:
            break
        # beta_{t-1}(i) = Σ_j T(i,j) ahead(j);  pair marginal = alpha_{t-1}(i) T(i,j) ahead(j)
        step = 0 if steps == 1 else t - 1
        row = (first_step + step) * labels
        for i in range(labels):
            beta[i] = dot(pairs, row + i, 0, ahead, 0, 0, labels, log)
            if steps > 1:
                for j in range(labels):
                    moved = times(times(alpha[t - 1, i], pairs[row + i, j], log), ahead[0, j], log)
                    found[step, i, j] = number(moved, log)
    if steps == 1:
        # One table for all steps: T(i,j) Σ_t alpha_{t-1}(i) ahead_t(j), sums along time.
        row = first_step * labels
        for i in range(labels):
            for j in range(labels):
                summed = dot(over_time, i, 0, over_time, labels + j, 1, max(length - 1, 0), log)
                found[0, i, j] = number(times(pairs[row + i, j], summed, log), log)


@jit
def _losses(
    first: int,
    stride: int,
    emissions: Any,
    transitions: Any,
    lengths: Any,
    outputs: Any,
    weights: Any,
    peaks: Any,
    expected: Any,
    expected_pairs: Any,
    loss: Any,
    d_emissions: Any,
    d_transitions: Any,
    want: bool,
) -> None:
    batch, size, labels = emissions.shape
    tables, steps = transitions.shape[:2]
    scores = emissions.reshape(-1, labels)  # row b · n + t
    neighbours = transitions.reshape(-1, labels)  # row (b · steps + t) · K + i
    work = workspace(size, labels)
    table = load_table(neighbours, 0, steps, 0)  # the only one, if all steps of all examples share
    for b in range(first, batch, stride):
        length = lengths[b]
        tb = b if tables > 1 else 0
        place = b if want else 0
        unary, pairs = d_emissions[place], d_transitions[place]
        unary[length:] = 0.0
        pairs[:] = 0.0
        if tables > 1 or steps > 1:
            table = load_table(neighbours, tb * steps * labels, steps, length)
        total = forward_backward(
            scores, b * size, neighbours, tb * steps, steps, table, length, work,
            unary, pairs, want,
        )  # fmt: skip
        if total == -np.inf and outputs.shape[1] + expected.shape[0] > 0:
            loss[b] = np.inf  # the model forbids every output
            continue
        for r in range(outputs.shape[1]):
            if weights[b, r] != 0.0:
                total -= weights[b, r] * _take_labels(
                    emissions[b], transitions[tb], length, outputs[b, r], weights[b, r],
                    peaks[b if peaks.shape[0] > 1 else 0], unary, pairs,
                )  # fmt: skip
        if expected.shape[0] > 0:
            total -= _take_parts(expected[b, :length], emissions[b], unary)
            for step in range(min(steps, max(length - 1, 0))):
                total -= _take_parts(expected_pairs[b, step], transitions[tb, step], pairs[step])
        loss[b] = total


@jit
def _take_labels(
    emissions: Any,
    table: Any,
    length: int,
    labels: Any,
    weight: float,
    peaks: Any,
    unary: Any,
    pairs: Any,
) -> float:
    """Expected score where label y has peaks[y, 0] on each label, and peaks[y, 1] more on y.

    The expected parts, times the weight, are taken from the gradient. Neighbours a, b have
    (m_a + g_a [i = a]) (m_b + g_b [j = b]): a part for all (i, j), for a row, a column, and (a, b).
    """
    steps, count = table.shape[:2]
    total = 0.0
    shared = np.zeros((3, count + 1))  # of every pair, of row i, of column j
    for t in range(length):
        b = labels[t]
        miss, hit = peaks[b, 0], peaks[b, 1]
        if miss != 0.0:
            for k in range(count):
                total += miss * emissions[t, k]
                unary[t, k] -= weight * miss
        if hit != 0.0:
            total += hit * emissions[t, b]
            unary[t, b] -= weight * hit
        if t == 0:
            continue
        step = 0 if steps == 1 else t - 1
        a = labels[t - 1]
        if peaks[a, 0] != 0.0 or miss != 0.0:
            shared[0, 0] += peaks[a, 0] * miss
            shared[1, a] += peaks[a, 1] * miss
            shared[2, b] += peaks[a, 0] * hit
        if peaks[a, 1] * hit != 0.0:
            total += peaks[a, 1] * hit * table[step, a, b]
            pairs[step, a, b] -= weight * peaks[a, 1] * hit
        if steps > 1 or t == length - 1:
            for i in range(count):
                for j in range(count):
                    mass = shared[0, 0] + shared[1, i] + shared[2, j]
                    total += _share(mass, table[step, i, j])
                    pairs[step, i, j] -= weight * mass
            shared[:] = 0.0
    return total


@jit
def _share(mass: float, score: float) -> float:
    """Mass · score, and 0 without mass, whatever the score."""
    return mass * (score if mass != 0.0 else 0.0)


@jit
def _take_parts(expected: Any, scores: Any, gradient: Any) -> float:
    """<expected, scores>; the expected parts are taken from the gradient."""
    total = 0.0
    for i in range(expected.shape[0]):
        for j in range(expected.shape[1]):
            total += _share(expected[i, j], scores[i, j])
            gradient[i, j] -= expected[i, j]
    return total


def mode(lengths: Tensor, emissions: Tensor, transitions: Tensor) -> Tensor:
    """Viterbi: best labels ``[B,n]`` (0 on padding)."""
    batch, size, labels = emissions.shape
    best = torch.zeros(batch, size, dtype=torch.int64)
    arrays = (as_array(x) for x in (emissions.double(), transitions.double(), lengths, best))
    run_batch(_viterbi, batch, batch * size * labels * labels, *arrays)
    return best.to(emissions.device)


@jit
def _viterbi(first: int, stride: int, emissions: Any, table: Any, lengths: Any, best: Any) -> None:
    batch, size, labels = emissions.shape
    back = np.zeros((size, labels), dtype=np.int32)
    now = np.empty(labels)
    new = np.empty(labels)
    for b in range(first, batch, stride):
        tb = b if table.shape[0] > 1 else 0
        new[:] = 0.0
        for t in range(lengths[b]):
            if t > 0:
                step = 0 if table.shape[1] == 1 else t - 1
                new[:] = -np.inf
                back[t] = 0
                for i in range(labels):
                    for j in range(labels):
                        candidate = now[i] + table[tb, step, i, j]
                        if candidate > new[j]:
                            new[j] = candidate
                            back[t, j] = i
            for j in range(labels):
                now[j] = new[j] + emissions[b, t, j]
        label = np.argmax(now)
        for t in range(lengths[b] - 1, -1, -1):
            best[b, t] = label
            label = back[t, label]


def sample(
    lengths: Tensor,
    emissions: Tensor,
    transitions: Tensor,
    count: int,
    generator: torch.Generator | None,
) -> Tensor:
    """``count`` exact samples per sequence, labels ``[count,B,n]``: filter forward, draw back."""
    batch, size, labels = emissions.shape
    drawn = torch.zeros(count, batch, size, dtype=torch.int64)
    seeds = draw_seeds(count * batch, generator).reshape(count, batch)
    arrays = (as_array(x) for x in (emissions.double(), transitions.double(), lengths, drawn))
    operations = batch * size * labels * (20 * labels + count)
    run_batch(_backward_sample, batch, operations, *arrays, seeds)
    return drawn.to(emissions.device)


@jit
def _backward_sample(
    first: int, stride: int, emissions: Any, table: Any, lengths: Any, drawn: Any, seeds: Any
) -> None:
    batch, size, labels = emissions.shape
    work = workspace(size, labels)
    weight = work.beta
    state = np.empty(1, dtype=np.uint64)
    steps = table.shape[1]
    for b in range(first, batch, stride):
        length = lengths[b]
        scores = table[b if table.shape[0] > 1 else 0]
        pairs = scores.reshape(-1, labels)
        _forward(emissions[b], 0, pairs, pairs, 0, steps, length, work.alpha, work.scale, LOG)
        for s in range(drawn.shape[0]):
            state[0] = seeds[s, b]
            for t in range(length - 1, -1, -1):
                # P(y_t = i | y_{t+1}, x) ∝ alpha_t(i) T(i, y_{t+1})
                for i in range(labels):
                    weight[i] = work.alpha[t, i]
                    if t < length - 1:
                        weight[i] += scores[0 if steps == 1 else t, i, drawn[s, b, t + 1]]
                drawn[s, b, t] = choose(weight, labels, state)
