"""The steps of decoders in plain torch: what `softq.kernels.decoder.gpu` computes on a GPU.

An LSTM's gates and the attention over an input, forward and backward, for
`softq.kernels.decoder.attention`; and what is done with scores of words beside products, for
`softq.kernels.decoder.log_softmax_gather`. Both modules have functions of the same signatures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Attended(NamedTuple):
    """What decoders look at: encoded inputs.

    Attributes:
        keys: ``[B, N, H]``.
        values: ``[B, N, D]``.
        bias: ``[B, 1, N]``, 0 on real positions and -inf behind the end of an input.

    """

    keys: Tensor
    values: Tensor
    bias: Tensor


def attend(states: Tensor, attended: Attended) -> tuple[Tensor, Tensor]:
    """Weights α ``[B, K, N]`` and Σ_n α_n v_n ``[B·K, D]`` for states ``[B·K, H]``."""
    keys, values, bias = attended
    queries = states.view(len(keys), -1, keys.shape[2])
    scores = torch.baddbmm(bias.expand(-1, queries.shape[1], -1), queries, keys.transpose(1, 2))
    weights = scores.softmax(2)
    return weights, torch.bmm(weights, values).view(len(states), values.shape[2])


def lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Activated gates ``[M, 4H]`` (input, forget, new, output), and the cell and state after."""
    size = cell.shape[1]
    admit, keep = gates[:, : 2 * size].sigmoid().chunk(2, 1)
    new, show = gates[:, 2 * size : 3 * size].tanh(), gates[:, 3 * size :].sigmoid()
    after = keep * cell + admit * new
    return torch.cat([admit, keep, new, show], 1), after, show * after.tanh()


def lstm_forward(gates: Tensor, before: Tensor, after: Tensor, state: Tensor) -> None:
    """Activate ``gates [M, 4H]`` in place, and write the cell ``after`` and the ``state [M, H]``.

    The state is a part of a wider tensor.
    """
    gates[:], after[:], state[:] = lstm_cell(gates, before)


def lstm_backward(
    to_state: Tensor,
    also: Tensor,
    gates: Tensor,
    before: Tensor,
    after: Tensor,
    to_cell: Tensor,
    to_gates: Tensor,
) -> None:
    """Write the gradient of the gates before activation.

    From that of the state, a sum of two, and of the cell, which moves a step back.
    """
    admit, keep, new, show = gates.chunk(4, 1)
    squashed, to_hidden = after.tanh(), to_state + also
    to_after = to_cell + to_hidden * show * (1 - squashed * squashed)
    parts = (
        to_after * new * admit * (1 - admit),
        to_after * before * keep * (1 - keep),
        to_after * admit * (1 - new * new),
        to_hidden * squashed * show * (1 - show),
    )
    torch.cat(parts, 1, out=to_gates)
    torch.mul(to_after, keep, out=to_cell)


def attention_forward(
    states: Tensor,
    projected: Tensor,
    attended: Attended,
    dropped: Tensor | None,
    weights: Tensor,
    squashed: Tensor,
    fed: Tensor,
) -> None:
    """Write α ``[M, N]``, tanh(W_s s + Σ α v) ``[M, D]``, and the same after dropout.

    ``projected`` is W_s s.
    """
    found, context = attend(states.contiguous(), attended)
    weights.copy_(found.view(weights.shape))
    torch.add(projected, context, out=squashed).tanh_()
    fed.copy_(squashed if dropped is None else squashed * dropped)


def attention_backward(
    upstream: Tensor,
    fed: Tensor,
    dropped: Tensor | None,
    weights: Tensor,
    squashed: Tensor,
    attended: Attended,
    to_sums: Tensor,
    to_scores: Tensor,
    to_states: Tensor,
) -> None:
    """Write gradients of W_s s + Σ α v, of the scores and, by the scores, of the states.

    From two gradients of s̃ that add up.
    """
    keys, values, _ = attended
    to_output = upstream + fed
    if dropped is not None:
        to_output = to_output * dropped
    torch.mul(to_output, 1 - squashed * squashed, out=to_sums)
    weight = weights.view(len(keys), -1, keys.shape[1])
    to_weight = torch.bmm(to_sums.view(len(keys), -1, values.shape[2]), values.transpose(1, 2))
    to_score = weight * (to_weight - (weight * to_weight).sum(2, keepdim=True))
    to_scores.copy_(to_score.view(to_scores.shape))
    to_states.copy_(torch.bmm(to_score, keys).view(to_states.shape))


def normalise(
    scores: Tensor, bias: Tensor, words: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Log Z ``[M]`` of scores ``[M, V]`` plus bias, and log-probabilities of the chosen words.

    The latter are smoothed.
    """
    scores = scores + bias
    log_z = scores.logsumexp(1)
    chosen = scores.gather(1, words.unsqueeze(1)).squeeze(1)
    if smoothing:
        possible = bias > -math.inf
        chosen = (1 - smoothing) * chosen + smoothing * (
            scores.masked_fill(~possible, 0.0).sum(1) / possible.sum()
        )
    return log_z, chosen - log_z


def score_gradient(
    scores: Tensor,
    bias: Tensor,
    words: Tensor,
    smoothing: float,
    log_z: Tensor,
    upstream: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of the scores ``[M, V]``: upstream times (1 - ε) onehot + ε/V - p."""
    upstream = upstream.unsqueeze(1)
    found = (scores + bias).sub_(log_z.unsqueeze(1)).exp_().mul_(-upstream)
    found.scatter_add_(1, words.unsqueeze(1), (1 - smoothing) * upstream)
    if smoothing:
        possible = bias > -math.inf
        found += smoothing / possible.sum() * possible * upstream
    return found.to(dtype)
