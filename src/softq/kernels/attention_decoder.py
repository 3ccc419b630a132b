"""An LSTM decoder with attention and input feeding over given sentences (paper, Appendix D.2.4), with its gradient by hand.

For every row (a candidate; K of each input) and every position t, with s_t the hidden state of the top layer:

    (h_t, c_t)  = LSTM([y_{t-1} : s̃_{t-1}], (h_{t-1}, c_{t-1}))
    α_t         = softmax_n( s_t · k_n )                        k_n = W_a h_n, of the input's N positions
    s̃_t         = tanh( W_s s_t + Σ_n α_tn v_n )                v_n = W_c h_n, so that no product with the context is left to do

All that does not wait for s̃_{t-1} is done for all positions at once: the words' part of the gates before, and the gradients of all
weights, keys and values after the sweep back, as one product each. What is left of a step, in either direction, is two small matrix
products, one pointwise function of the gates (`lstm_forward`, `lstm_backward`) and one of the attention (`attention_forward`,
`attention_backward`): plain torch here, Triton kernels in `attention_decoder_gpu` with the same signatures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from softq.kernels.backend import current_backend


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
    """Activated gates ``[M, 4H]`` (input, forget, new, output), cell and hidden state after them."""
    size = cell.shape[1]
    admit, keep = gates[:, : 2 * size].sigmoid().chunk(2, 1)
    new, show = gates[:, 2 * size : 3 * size].tanh(), gates[:, 3 * size :].sigmoid()
    after = keep * cell + admit * new
    return torch.cat([admit, keep, new, show], 1), after, show * after.tanh()


def lstm_forward(gates: Tensor, before: Tensor, after: Tensor, state: Tensor) -> None:
    """Activate ``gates [M, 4H]`` in place; write the cell ``after`` and the hidden ``state [M, H]``, a part of a wider tensor."""
    activated, cell, hidden = lstm_cell(gates, before)
    gates.copy_(activated)
    after.copy_(cell)
    state.copy_(hidden)


def lstm_backward(to_state: Tensor, also: Tensor, gates: Tensor, before: Tensor, after: Tensor, to_cell: Tensor, to_gates: Tensor) -> None:
    """Write the gradient of the gates before activation, from that of the state, a sum of two, and of the cell, which moves a step back."""
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
    states: Tensor, projected: Tensor, attended: Attended, dropped: Tensor | None, weights: Tensor, squashed: Tensor, fed: Tensor
) -> None:
    """Write α ``[M, N]``, tanh(W_s s + Σ α v) ``[M, D]``, and the same after dropout; ``projected`` is W_s s."""
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
    """Write gradients of W_s s + Σ α v, of the scores and, by the scores, of the states, from two of s̃ that add up."""
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


class _Functions(Protocol):
    """The four functions of a step."""

    lstm_forward: Any
    lstm_backward: Any
    attention_forward: Any
    attention_backward: Any


class _Plain:
    lstm_forward, lstm_backward = staticmethod(lstm_forward), staticmethod(lstm_backward)
    attention_forward, attention_backward = staticmethod(attention_forward), staticmethod(attention_backward)


def _functions(like: Tensor) -> _Functions:
    if like.is_cuda and current_backend() != "reference":
        from softq.kernels import attention_decoder_gpu  # Triton is only there with a GPU

        return attention_decoder_gpu
    return _Plain()


def decode(
    words: Tensor,
    hidden: Tensor,
    cell: Tensor,
    attended: Attended,
    layers: Sequence[Tensor],
    biases: Sequence[Tensor],
    to_attentional: Tensor,
    dropped: Tensor | None = None,
    dropped_between: Tensor | None = None,
) -> Tensor:
    """Attentional vectors s̃ of all positions, ``[T, M, D]``.

    Args:
        words: the words' part of the first layer's gates, biases included, ``[T, M, 4H]``.
        hidden: of each layer before the first word, ``[layers, M, H]``.
        cell: likewise.
        attended: the inputs, M/B rows of each.
        layers: weights of the gates: ``[4H, D + H]`` of the first layer, for s̃_{t-1} and its own state; ``[4H, 2H]`` of those above, for
            the state of the layer below and its own.
        biases: of the layers above the first, ``[4H]`` each.
        to_attentional: W_s, ``[D, H]``.
        dropped: what s̃ is multiplied by, ``[T, M, D]``, after which it is fed to the next step.
        dropped_between: what states are multiplied by on their way to the layer above, ``[layers - 1, T, M, H]``.

    """
    found: Tensor = _Decode.apply(  # type: ignore[no-untyped-call]
        words,
        hidden,
        cell,
        *(part.contiguous() for part in attended),
        to_attentional,
        dropped,
        dropped_between,
        len(layers),
        *layers,
        *biases,
    )
    return found


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        words: Tensor,
        hidden: Tensor,
        cell: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor,
        to_attentional: Tensor,
        dropped: Tensor | None,
        dropped_between: Tensor | None,
        count: int,
        *weights: Tensor,
    ) -> Tensor:
        layers, biases = weights[:count], weights[count:]
        attended, step = Attended(keys, values, bias), _functions(words)
        steps, rows, _ = words.shape
        size, width = hidden.shape[2], values.shape[2]
        # What each layer is given at a step beside its own state before: s̃_{t-1} the first one, the state below the others.
        given = [words.new_empty(steps + 1, rows, weight.shape[1]) for weight in layers]
        cells = [words.new_empty(steps + 1, rows, size) for _ in layers]
        gates = [words.new_empty(steps, rows, 4 * size) for _ in layers]
        alphas, squashed = words.new_empty(steps, rows, keys.shape[1]), words.new_empty(steps, rows, width)
        projected = words.new_empty(rows, width)
        given[0][0, :, :width] = 0.0
        for layer in range(count):
            given[layer][0, :, -size:], cells[layer][0] = hidden[layer], cell[layer]
        for t in range(steps):
            for layer in range(count):
                if layer:
                    below = given[layer - 1][t + 1, :, -size:]
                    given[layer][t, :, :size] = below if dropped_between is None else below * dropped_between[layer - 1, t]
                torch.addmm(biases[layer - 1] if layer else words[t], given[layer][t], layers[layer].T, out=gates[layer][t])
                step.lstm_forward(gates[layer][t], cells[layer][t], cells[layer][t + 1], given[layer][t + 1, :, -size:])
            top = given[-1][t + 1, :, -size:]
            torch.mm(top, to_attentional.T, out=projected)
            mask = None if dropped is None else dropped[t]
            step.attention_forward(top, projected, attended, mask, alphas[t], squashed[t], given[0][t + 1, :, :width])
        ctx.count = count
        ctx.save_for_backward(
            keys, values, bias, to_attentional, dropped, dropped_between, alphas, squashed, *layers, *given, *cells, *gates
        )
        return given[0][1:, :, :width].clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count, upstream = ctx.count, gradients[0].contiguous()
        keys, values, bias, to_attentional, dropped, dropped_between, alphas, squashed, *rest = ctx.saved_tensors
        layers, given, cells, gates = (rest[i * count : (i + 1) * count] for i in range(4))
        attended, step = Attended(keys, values, bias), _functions(upstream)
        steps, rows, width = squashed.shape
        size = keys.shape[2]
        to_gates = [torch.empty_like(part) for part in gates]
        to_sums, to_scores = torch.empty_like(squashed), torch.empty_like(alphas)
        to_given = [upstream.new_zeros(rows, weight.shape[1]) for weight in layers]  # of the step that comes after
        to_cell = [upstream.new_zeros(rows, size) for _ in layers]
        by_scores = upstream.new_empty(rows, size)
        for t in reversed(range(steps)):
            mask = None if dropped is None else dropped[t]
            fed = to_given[0][:, :width]
            step.attention_backward(upstream[t], fed, mask, alphas[t], squashed[t], attended, to_sums[t], to_scores[t], by_scores)
            to_state = torch.addmm(by_scores, to_sums[t], to_attentional)
            for layer in reversed(range(count)):
                own = to_given[layer][:, -size:]
                here = cells[layer][t], cells[layer][t + 1]
                step.lstm_backward(to_state, own, gates[layer][t], *here, to_cell[layer], to_gates[layer][t])
                to_given[layer] = torch.mm(to_gates[layer][t], layers[layer])
                to_state = to_given[layer][:, :size]
                if layer and dropped_between is not None:
                    to_state = to_state * dropped_between[layer - 1, t]

        tops = given[-1][1:, :, -size:]

        def by_input(part: Tensor) -> Tensor:  # [T, B·K, X] to [B, T·K, X]
            return part.view(steps, len(keys), -1, part.shape[2]).transpose(0, 1).reshape(len(keys), -1, part.shape[2])

        return (
            to_gates[0],
            torch.stack([part[:, -size:] for part in to_given]),
            torch.stack(to_cell),
            torch.bmm(by_input(to_scores).transpose(1, 2), by_input(tops)),
            torch.bmm(by_input(alphas).transpose(1, 2), by_input(to_sums)),
            None,
            to_sums.flatten(0, 1).T @ tops.reshape(-1, size),
            None,
            None,
            None,
            *(part.flatten(0, 1).T @ seen[:-1].flatten(0, 1) for part, seen in zip(to_gates, given, strict=True)),
            *(part.flatten(0, 1).sum(0) for part in to_gates[1:]),
        )
