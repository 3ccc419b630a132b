"""The k best label sequences of a linear chain, O(n K² + k n K) per sequence; k is small.

Choices run from the last label to the first. The Viterbi table says for each of them what it loses
against the best one, given the label behind it (see `softq.kernels.kbest`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.jit import as_array, jit, run_batch
from softq.kernels.kbest import depart, put, room


def topk(lengths: Tensor, emissions: Tensor, transitions: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Labels ``[B,k,n]``, best first, and what each loses, ``[B,k]``: inf where it is missing."""
    batch, size, labels = emissions.shape
    best = torch.zeros(batch, k, size, dtype=torch.int64)
    losses = torch.full((batch, k), torch.inf, dtype=torch.float64)
    tensors = (emissions.double(), transitions.double(), lengths, best, losses)
    operations = batch * size * labels * (labels + k)
    run_batch(_deviate, batch, operations, *(as_array(x) for x in tensors))
    return best.to(emissions.device), losses.to(emissions.device)


@jit
def _deviate(
    first: int, stride: int, emissions: Any, tables: Any, lengths: Any, best: Any, losses: Any
) -> None:
    batch, size, labels = emissions.shape
    k, steps = best.shape[1], tables.shape[1]
    ahead = np.empty((size, labels))  # score of the best labels up to one, that label included
    back = np.zeros((size, labels), dtype=np.int32)
    # What the second best label loses before each label; where it is too much, none departs.
    margin = np.empty((size, labels))
    value, loss = np.empty(labels), np.empty(k)
    origin = np.empty((k, 3), dtype=np.int64)  # the better sequence, position, label there
    for b in range(first, batch, stride):
        table, n = tables[b if tables.shape[0] > 1 else 0], lengths[b]
        margin[:n] = -np.inf  # not known yet
        for t in range(n):
            # ahead_t(j) = e_t(j) + max_i ahead_{t-1}(i) + T(i,j)
            value[:] = 0.0 if t == 0 else -np.inf
            back[t] = 0
            step = 0 if steps == 1 else t - 1
            for i in range(labels if t > 0 else 0):
                for j in range(labels):
                    score = ahead[t - 1, i] + table[step, i, j]
                    if score > value[j]:
                        value[j] = score
                        back[t, j] = i
            for j in range(labels):
                ahead[t, j] = value[j] + emissions[b, t, j]
        if n > 0 and ahead[n - 1].max() == -np.inf:
            continue
        count = put(loss, origin, 0, 0.0, 0, n, 0)  # the best sequence
        s = 0
        while s < count:
            labels_of, turn = best[b, s], origin[s, 1]
            if turn < n:
                labels_of[turn:n] = best[b, origin[s, 0], turn:n]
                labels_of[turn] = origin[s, 2]
            for t in range(turn - 1, -1, -1):
                last, step = t == n - 1, 0 if steps == 1 else t
                after = 0 if last else labels_of[t + 1]
                chosen = int(np.argmax(ahead[t]) if last else back[t + 1, after])
                labels_of[t] = chosen
                if margin[t, after] >= room(loss, count, s):
                    continue
                for i in range(labels):
                    value[i] = ahead[t, i] + (0.0 if last else table[step, i, after])
                margin[t, after] = np.inf
                for i in range(labels):
                    if i != chosen:
                        margin[t, after] = min(margin[t, after], value[chosen] - value[i])
                count = depart(value, labels, chosen, s, t, loss, origin, count)
            s += 1
        losses[b, :count] = loss[:count]
