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
from softq.kernels.jit import add_scaled, as_array, choose, dot, draw_seeds, jit, run_batch
from softq.kernels.reference import chain_log_partition

_FLOOR = 1e-100
_FLOOR_FLOAT32 = 1e-35  # exponentials of float32 scores are taken in float32


def infer(lengths: Tensor, scores: Scores, want_marginals: bool) -> tuple[Tensor, Scores]:
    """Log Z ``[B]`` and, if wanted, label and transition marginals shaped like the scores."""
    emissions, transitions = (s.detach() for s in scores)
    if emissions.is_cuda:
        from softq.kernels import chain_gpu  # Triton is only there with a GPU

        return chain_gpu.infer(lengths, (emissions, transitions), want_marginals)
    batch, size, labels = emissions.shape
    peaks = torch.nan_to_num(emissions.amax(-1), nan=0.0, posinf=0.0, neginf=0.0)
    unary = (emissions - peaks.unsqueeze(-1)).exp_()
    shared = transitions.stride(0) == 0 or batch == 1  # one table for the whole batch, expanded without a copy
    table = transitions[:1] if shared else transitions
    if table.shape[1] == 1:
        table = table.double()  # a table used at every position deserves full range
    table_peaks = table.amax((2, 3)) if table.numel() else table.new_zeros(table.shape[:2])
    table_peaks = torch.nan_to_num(table_peaks, nan=0.0, posinf=0.0, neginf=0.0)
    pairs = (table - table_peaks[:, :, None, None]).exp_()
    steps = transitions.shape[1]
    found = torch.zeros((batch, steps, labels, labels) if want_marginals else (batch, 0, labels, labels), dtype=torch.float64 if steps == 1 else emissions.dtype)
    log_z = torch.empty(batch, dtype=torch.float64)
    run_batch(
        _forward_backward,
        batch,
        3 * batch * size * labels * labels,
        *(as_array(x) for x in (emissions, peaks, unary, table, table_peaks, pairs, lengths, log_z, found)),
        want_marginals,
        _FLOOR if emissions.dtype == torch.float64 else _FLOOR_FLOAT32,
        _FLOOR if table.dtype == torch.float64 else _FLOOR_FLOAT32,
    )
    return log_z.to(emissions), (unary, found.to(emissions)) if want_marginals else ()


STRUCTURE = Structure(infer, chain_log_partition)


@jit
def _forward_backward(
    first: int,
    stride: int,
    emissions: Any,
    peaks: Any,
    unary: Any,
    table: Any,
    table_peaks: Any,
    pairs: Any,
    lengths: Any,
    log_z: Any,
    found: Any,
    want_marginals: bool,
    floor: float,
    table_floor: float,
) -> None:
    """`unary` holds exp(emissions - peak) on entry and label marginals on return; `found` gathers pair marginals."""
    batch, size, labels = emissions.shape
    steps = table.shape[1]
    alpha = np.empty((size, labels))
    scale = np.empty(size)
    beta = np.empty(labels)
    ahead = np.empty((1, labels))
    # Over time by rows, for the sum over time of alpha_{t-1}(i) ahead_t(j).
    alpha_t, ahead_t = np.empty((labels, size)), np.empty((labels, size))
    # Rows of length `labels`: what is [b, t, i] elsewhere is row (b · steps + t) · labels + i here.
    all_table = table.reshape(-1, labels)
    all_pairs = pairs.reshape(-1, labels)
    all_found = found.reshape(-1, labels)
    turned = np.empty((labels, labels))  # one table for all steps, transposed
    if steps == 1 and table.shape[0] == 1:
        turned[:] = pairs[0, 0].T
    for b in range(first, batch, stride):
        length = lengths[b]
        tb = b if table.shape[0] > 1 else 0
        scores, values = emissions[b], unary[b]
        log = False
        total = 0.0
        if length > 0:
            if steps == 1 and table.shape[0] > 1:
                turned[:] = pairs[tb, 0].T
            in_range = True
            for row in range(tb * steps * labels, (tb * steps + (1 if steps == 1 else length - 1)) * labels):
                in_range = in_range and _row_exact(all_table, all_pairs, row, table_floor)
            for t in range(length):
                in_range = in_range and _row_exact(scores, values, t, floor)
            if in_range:
                total, in_range = _forward(values, all_pairs, turned, tb * steps, steps, length, alpha, scale, False)
            if in_range:
                for t in range(length):
                    total += peaks[b, t]
                for t in range(length - 1):
                    total += table_peaks[tb, 0 if steps == 1 else t]
            else:
                log = True
                total, _ = _forward(scores, all_table, turned, tb * steps, steps, length, alpha, scale, True)
        log_z[b] = total
        if not want_marginals:
            continue
        if total == -np.inf:
            length = 0
        values[length:] = 0.0
        beta[:] = 0.0 if log else 1.0
        for t in range(length - 1, -1, -1):
            inverse = 0.0 if log else 1.0 / scale[t]
            for j in range(labels):
                if log:
                    ahead[0, j] = scores[t, j] + beta[j] - scale[t]
                    values[t, j] = np.exp(alpha[t, j] + beta[j])
                else:
                    ahead[0, j] = values[t, j] * beta[j] * inverse
                    values[t, j] = alpha[t, j] * beta[j]
                    if steps == 1:
                        alpha_t[j, t] = alpha[t, j]
                        ahead_t[j, t] = ahead[0, j]
            if t == 0:
                break
            # beta_{t-1}(i) = Σ_j T(i,j) e_t(j) beta_t(j) / c_t;  pair marginal = alpha_{t-1}(i) T(i,j) e_t(j) beta_t(j) / c_t
            step = 0 if steps == 1 else t - 1
            for i in range(labels):
                row = (tb * steps + step) * labels + i
                out = (b * steps + step) * labels + i
                beta[i] = dot(all_table if log else all_pairs, row, 0, ahead, 0, 0, labels, log)
                if log:
                    for j in range(labels):
                        all_found[out, j] += np.exp(alpha[t - 1, i] + all_table[row, j] + ahead[0, j])
                elif steps > 1:
                    for j in range(labels):
                        all_found[out, j] = alpha[t - 1, i] * all_pairs[row, j] * ahead[0, j]
        if steps == 1 and not log:
            for i in range(labels):
                for j in range(labels):
                    found[b, 0, i, j] = pairs[tb, 0, i, j] * dot(alpha_t, i, 0, ahead_t, j, 1, length - 1, False)


@jit
def _row_exact(scores: Any, values: Any, row: int, floor: float) -> bool:
    """Whether each exponential in the row is either large enough or a true zero (a score of -inf)."""
    lost = 0
    for i in range(scores.shape[1]):
        lost += (values[row, i] < floor) & (scores[row, i] > -np.inf)
    return lost == 0


@jit
def _forward(unary: Any, pairs: Any, turned: Any, first_step: int, steps: int, length: int, alpha: Any, scale: Any, log: bool) -> Any:
    """Normalised forward variables and their scales; returns log Z and whether the range held.

    `pairs` holds one row per (step, label); this sequence's begin at `first_step` and are `steps` many. If that is
    one table for all steps, `turned` is its transpose (in probability space).
    """
    labels = unary.shape[1]
    log_z = 0.0
    product = 1.0
    zero = -np.inf if log else 0.0
    for t in range(length):
        if t == 0:
            for j in range(labels):
                alpha[0, j] = unary[0, j]
        elif steps == 1 and not log:
            for j in range(labels):
                alpha[t, j] = unary[t, j] * dot(alpha, t - 1, 0, turned, j, 0, labels, False)
        else:
            for j in range(labels):
                alpha[t, j] = zero
            row = (first_step + (0 if steps == 1 else t - 1)) * labels
            for i in range(labels):
                add_scaled(alpha, t, 0, alpha[t - 1, i], pairs, row + i, 0, labels, log)
            for j in range(labels):
                alpha[t, j] = alpha[t, j] + unary[t, j] if log else alpha[t, j] * unary[t, j]
        if log:
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
    if log:
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
    table = transitions[:1] if transitions.stride(0) == 0 else transitions
    run_batch(
        _viterbi,
        batch,
        batch * size * labels * labels,
        *(as_array(x) for x in (emissions.double(), table.double(), lengths, best, value)),
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
    table = transitions[:1] if transitions.stride(0) == 0 else transitions
    arrays = (as_array(x) for x in (emissions.double(), table.double(), lengths, drawn))
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
        _forward(emissions[b], table.reshape(-1, labels), table[0, 0], tb * steps, steps, length, alpha, scale, True)
        for s in range(drawn.shape[0]):
            state[0] = seeds[s, b]
            for t in range(length - 1, -1, -1):
                # P(y_t = i | y_{t+1}, x) ∝ alpha_t(i) T(i, y_{t+1})
                for i in range(labels):
                    weight[i] = alpha[t, i]
                    if t < length - 1:
                        weight[i] += table[tb, 0 if once else t, i, drawn[s, b, t + 1]]
                drawn[s, b, t] = choose(weight, labels, state)
