"""Linear chains on the CPU: forward-backward, Viterbi and backward sampling; O(n K²) per sequence.

Forward-backward runs in probability space with float64 scaling. That is exact to rounding as long as every
nonzero number stays above ``_FLOOR``: then no product of three underflows and a zero means "forbidden".
A sequence that leaves this range is redone in log space, so no score is too large and no chain too long.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.autograd import Scores, Structure
from softq.kernels.jit import LOG, PLAIN, add_scaled, as_array, choose, dot, draw_seeds, fast_exp, jit, run_batch, zeros
from softq.kernels.reference import chain_log_partition

_FLOOR = 1e-100


def infer(lengths: Tensor, scores: Scores, want_marginals: bool) -> tuple[Tensor, Scores]:
    """Log Z ``[B]`` and, if wanted, label and transition marginals shaped like the scores."""
    emissions, transitions = (s.detach() for s in scores)
    if emissions.is_cuda:
        from softq.kernels import chain_gpu  # Triton is only there with a GPU

        return chain_gpu.infer(lengths, (emissions, transitions.expand(emissions.shape[0], -1, -1, -1)), want_marginals)
    batch, size, labels = emissions.shape
    log_z = torch.empty(batch, dtype=emissions.dtype)
    found: Scores = ()
    if want_marginals:
        found = (torch.empty_like(emissions, memory_format=torch.contiguous_format), zeros((batch, *transitions.shape[1:]), emissions))
    arrays = [as_array(x) for x in (emissions, transitions, lengths, log_z, *found)]
    if not want_marginals:
        arrays += [arrays[0][:0], arrays[1][:0]]  # nothing will be written
    run_batch(_forward_backward, batch, 3 * batch * size * labels * labels, *arrays, want_marginals)
    return log_z, found


STRUCTURE = Structure(infer, chain_log_partition)


@jit
def _forward_backward(
    first: int, stride: int, emissions: Any, table: Any, lengths: Any, log_z: Any, unary: Any, found: Any, want_marginals: bool
) -> None:
    """Writes `log_z`, label marginals to `unary` and adds pair marginals to `found`."""
    batch, size, labels = emissions.shape
    steps = table.shape[1]
    scores = emissions.reshape(-1, labels)  # row b · size + t
    all_table = table.reshape(-1, labels)  # row (b · steps + t) · labels + i
    pairs = np.empty((max(steps, 1) * labels, labels))  # exp(table - peak) of one example
    turned = np.empty((labels, labels))  # the same transposed, if there is one table for all steps
    values = np.empty((size, labels))  # exp(emissions - peak)
    alpha = np.empty((size, labels))
    scale = np.empty(size)
    beta = np.empty(labels)
    ahead = np.empty((1, labels))
    over_time = np.empty((2 * labels, size))  # alpha and ahead by label, for sums over time
    loaded = -1  # the example whose table stands in `pairs`
    table_peak, table_exact = 0.0, True
    for b in range(first, batch, stride):
        length = lengths[b]
        tb = b if table.shape[0] > 1 else 0
        total = 0.0
        if want_marginals:
            unary[b, length:] = 0.0
        if length > 0:
            if tb != loaded:
                rows = labels if steps == 1 else (length - 1) * labels
                table_peak, table_exact = _exponentials(all_table, tb * steps * labels, rows, labels, pairs)
                loaded = tb if steps == 1 else -1  # tables per step are loaded only as far as this example goes
                if steps == 1:
                    turned[:] = pairs.T
            peak, exact = _exponentials(scores, b * size, length, 1, values)
            in_range = table_exact and exact
            if in_range:
                total, in_range = _forward(values, 0, pairs, turned, 0, steps, length, alpha, scale, PLAIN)
            if in_range:
                total += peak + table_peak * (length - 1 if steps == 1 else 1)
                if want_marginals:
                    _backward(values, 0, pairs, 0, steps, length, total, alpha, scale, beta, ahead, over_time, unary[b], found[b], PLAIN)
            else:
                total, _ = _forward(scores, b * size, all_table, turned, tb * steps, steps, length, alpha, scale, LOG)
                if want_marginals:
                    _backward(
                        scores,
                        b * size,
                        all_table,
                        tb * steps,
                        steps,
                        length,
                        total,
                        alpha,
                        scale,
                        beta,
                        ahead,
                        over_time,
                        unary[b],
                        found[b],
                        LOG,
                    )
        log_z[b] = total


@jit
def _backward(
    local: Any,
    first_row: int,
    pairs: Any,
    first_step: int,
    steps: int,
    length: int,
    log_z: float,
    alpha: Any,
    scale: Any,
    beta: Any,
    ahead: Any,
    over_time: Any,
    unary: Any,
    found: Any,
    log: bool | None,
) -> None:
    """Label marginals to `unary` and pair marginals to `found`, from what `_forward` left; arguments as there."""
    labels = local.shape[1]
    if log_z == -np.inf:
        unary[:length] = 0.0
        return
    beta[:] = 0.0 if log is not None else 1.0
    for t in range(length - 1, -1, -1):
        # ahead(j) = e_t(j) beta_t(j) / c_t
        if log is not None:
            for j in range(labels):
                ahead[0, j] = local[first_row + t, j] + beta[j] - scale[t]
                unary[t, j] = np.exp(alpha[t, j] + beta[j])
        else:
            inverse = 1.0 / scale[t]
            for j in range(labels):
                ahead[0, j] = local[first_row + t, j] * beta[j] * inverse
                unary[t, j] = alpha[t, j] * beta[j]
                over_time[j, t] = alpha[t, j]
                over_time[labels + j, t] = ahead[0, j]
        if t == 0:
            break
        # beta_{t-1}(i) = Σ_j T(i,j) ahead(j);  pair marginal = alpha_{t-1}(i) T(i,j) ahead(j)
        step = 0 if steps == 1 else t - 1
        row = (first_step + step) * labels
        for i in range(labels):
            beta[i] = dot(pairs, row + i, 0, ahead, 0, 0, labels, log)
            if log is not None:
                for j in range(labels):
                    found[step, i, j] += np.exp(alpha[t - 1, i] + pairs[row + i, j] + ahead[0, j])
            elif steps > 1:
                for j in range(labels):
                    found[step, i, j] = alpha[t - 1, i] * pairs[row + i, j] * ahead[0, j]
    if steps == 1 and log is None:
        # One table for all steps: T(i,j) Σ_t alpha_{t-1}(i) ahead_t(j), a product of two stretches of time.
        for i in range(labels):
            for j in range(labels):
                found[0, i, j] = pairs[i, j] * dot(over_time, i, 0, over_time, labels + j, 1, length - 1, log)


@jit
def _exponentials(scores: Any, first: int, count: int, group: int, values: Any) -> Any:
    """exp(scores - peak) of `count` rows, one peak per `group` of rows; returns the sum of peaks and whether all is exact.

    It is not where a finite score has an exponential too small to trust.
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
        lost += (value < _FLOOR) & (score > -np.inf)
    return sum_of_peaks, lost == 0


@jit
def _forward(
    unary: Any, first_row: int, pairs: Any, turned: Any, first_step: int, steps: int, length: int, alpha: Any, scale: Any, log: bool | None
) -> Any:
    """Normalised forward variables and their scales; returns log Z and whether the range held.

    `unary` holds one row per position from `first_row` on, `pairs` one per (step, label), its `steps` beginning at
    `first_step`. If that is one table for all steps, `turned` is its transpose (in probability space).
    """
    labels = unary.shape[1]
    log_z = 0.0
    product = 1.0
    zero = -np.inf if log is not None else 0.0
    for t in range(length):
        if t == 0:
            for j in range(labels):
                alpha[0, j] = unary[first_row, j]
        elif steps == 1 and log is None:
            for j in range(labels):
                alpha[t, j] = unary[first_row + t, j] * dot(alpha, t - 1, 0, turned, j, 0, labels, log)
        else:
            for j in range(labels):
                alpha[t, j] = zero
            row = (first_step + (0 if steps == 1 else t - 1)) * labels
            for i in range(labels):
                add_scaled(alpha, t, 0, alpha[t - 1, i], pairs, row + i, 0, labels, log)
            for j in range(labels):
                alpha[t, j] = alpha[t, j] + unary[first_row + t, j] if log is not None else alpha[t, j] * unary[first_row + t, j]
        if log is not None:
            total = -np.inf
            for j in range(labels):
                total = max(total, alpha[t, j])
            if total == -np.inf:
                return -np.inf, True
            for j in range(labels):  # any common factor will do; the largest entry is the cheapest
                alpha[t, j] -= total
            scale[t] = total
            log_z += total
            continue
        total = 0.0
        for j in range(labels):
            total += alpha[t, j]
        if total == 0.0:
            return -np.inf, True
        lost = 0
        inverse = 1.0 / total
        for j in range(labels):
            value = alpha[t, j] * inverse
            alpha[t, j] = value
            lost += (value < _FLOOR) & (value != 0.0)
        if lost > 0:
            return 0.0, False
        scale[t] = total
        product *= total
        if product < 1e-100 or product > 1e100:  # one logarithm for many steps
            log_z += np.log(product)
            product = 1.0
    if log is not None:
        # alpha is scaled by its largest entry, so the last column does not sum to one: fold the rest into it.
        total = 0.0
        for j in range(labels):
            total += np.exp(alpha[length - 1, j])
        rest = np.log(total)
        for j in range(labels):
            alpha[length - 1, j] -= rest
        scale[length - 1] += rest
        return log_z + rest, True
    return log_z + np.log(product), True


def mode(lengths: Tensor, emissions: Tensor, transitions: Tensor) -> tuple[Tensor, Tensor]:
    """Viterbi: best labels ``[B,n]`` (0 on padding) and their scores ``[B]``; -inf if no output is allowed."""
    batch, size, labels = emissions.shape
    best = torch.zeros(batch, size, dtype=torch.int64)
    value = torch.empty(batch, dtype=torch.float64)
    run_batch(
        _viterbi,
        batch,
        batch * size * labels * labels,
        *(as_array(x) for x in (emissions.double(), transitions.double(), lengths, best, value)),
    )
    return best.to(emissions.device), value.to(emissions)


@jit
def _viterbi(first: int, stride: int, emissions: Any, table: Any, lengths: Any, best: Any, value: Any) -> None:
    batch, size, labels = emissions.shape
    back = np.empty((size, labels), dtype=np.int32)
    now = np.empty(labels)
    new = np.empty(labels)
    once = table.shape[1] == 1
    for b in range(first, batch, stride):
        length = lengths[b]
        value[b] = 0.0
        if length == 0:
            continue
        tb = b if table.shape[0] > 1 else 0
        now[:] = emissions[b, 0]
        for t in range(1, length):
            step = 0 if once else t - 1
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
        value[b] = now[label]
        for t in range(length - 1, -1, -1):
            best[b, t] = label
            if t > 0:
                label = back[t, label]


def sample(lengths: Tensor, emissions: Tensor, transitions: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """``count`` exact samples per sequence by forward filtering, backward sampling: labels ``[count,B,n]``."""
    batch, size, labels = emissions.shape
    drawn = torch.zeros(count, batch, size, dtype=torch.int64)
    seeds = draw_seeds(count * batch, generator).reshape(count, batch)
    arrays = (as_array(x) for x in (emissions.double(), transitions.double(), lengths, drawn))
    run_batch(_backward_sample, batch, 20 * batch * size * labels * labels + count * batch * size * labels, *arrays, seeds)
    return drawn.to(emissions.device)


@jit
def _backward_sample(first: int, stride: int, emissions: Any, table: Any, lengths: Any, drawn: Any, seeds: Any) -> None:
    batch, size, labels = emissions.shape
    alpha = np.empty((size, labels))
    scale = np.empty(size)
    weight = np.empty(labels)
    state = np.empty(1, dtype=np.uint64)
    steps = table.shape[1]
    once = steps == 1
    for b in range(first, batch, stride):
        length = lengths[b]
        if length == 0:
            continue
        tb = b if table.shape[0] > 1 else 0
        _forward(
            emissions.reshape(-1, labels), b * size, table.reshape(-1, labels), table[0, 0], tb * steps, steps, length, alpha, scale, LOG
        )
        for s in range(drawn.shape[0]):
            state[0] = seeds[s, b]
            for t in range(length - 1, -1, -1):
                # P(y_t = i | y_{t+1}, x) ∝ alpha_t(i) T(i, y_{t+1})
                for i in range(labels):
                    weight[i] = alpha[t, i]
                    if t < length - 1:
                        weight[i] += table[tb, 0 if once else t, i, drawn[s, b, t + 1]]
                drawn[s, b, t] = choose(weight, labels, state)
