"""An LSTM decoder with attention and input feeding over given sentences, with its gradient by hand.

(Paper, Appendix D.2.4.) For every row (a candidate; K of each input) and every position t, with s_t
the hidden state of the top layer:

    (h_t, c_t)  = LSTM([y_{t-1} : s̃_{t-1}], (h_{t-1}, c_{t-1}))
    α_t         = softmax_n( s_t · k_n )               k_n = W_a h_n, of the input's N positions
    s̃_t         = tanh( W_s s_t + Σ_n α_tn v_n )       v_n = W_c h_n, which spares one product

All that does not wait for s̃_{t-1} is done for all positions at once: the words' part of the gates
before, and the gradients of all weights, keys and values after the sweep back, as one product each.
What is left of a step, in either direction, is two small matrix products, one pointwise function of
the gates (`lstm_forward`, `lstm_backward`) and one of the attention (`attention_forward`,
`attention_backward`): those of `softq.kernels.decoder.reference`, or on a GPU of
`softq.kernels.decoder.gpu`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from softq.kernels.decoder import steps_on
from softq.kernels.decoder.reference import Attended


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
        layers: weights of the gates: ``[4H, D + H]`` of the first layer, for s̃_{t-1} and its own
            state; ``[4H, 2H]`` of those above, for the state of the layer below and its own.
        biases: of the layers above the first, ``[4H]`` each.
        to_attentional: W_s, ``[D, H]``.
        dropped: what s̃ is multiplied by, ``[T, M, D]``, after which it is fed to the next step.
        dropped_between: what states are multiplied by on their way to the layer above,
            ``[layers - 1, T, M, H]``.

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
        attended, step = Attended(keys, values, bias), steps_on(words)
        steps, rows, _ = words.shape
        size, width = hidden.shape[2], values.shape[2]
        # What each layer is given at a step beside its own state before:
        # s̃_{t-1} the first one, the state below the others.
        given = [words.new_empty(steps + 1, rows, weight.shape[1]) for weight in layers]
        cells = [words.new_empty(steps + 1, rows, size) for _ in layers]
        gates = [words.new_empty(steps, rows, 4 * size) for _ in layers]
        alphas, squashed = (
            words.new_empty(steps, rows, keys.shape[1]),
            words.new_empty(steps, rows, width),
        )
        projected = words.new_empty(rows, width)
        given[0][0, :, :width] = 0.0
        for layer in range(count):
            given[layer][0, :, -size:], cells[layer][0] = hidden[layer], cell[layer]
        for t in range(steps):
            for layer in range(count):
                if layer:
                    below = given[layer - 1][t + 1, :, -size:]
                    given[layer][t, :, :size] = (
                        below if dropped_between is None else below * dropped_between[layer - 1, t]
                    )
                torch.addmm(
                    biases[layer - 1] if layer else words[t],
                    given[layer][t],
                    layers[layer].T,
                    out=gates[layer][t],
                )
                step.lstm_forward(
                    gates[layer][t],
                    cells[layer][t],
                    cells[layer][t + 1],
                    given[layer][t + 1, :, -size:],
                )
            top = given[-1][t + 1, :, -size:]
            torch.mm(top, to_attentional.T, out=projected)
            mask = None if dropped is None else dropped[t]
            step.attention_forward(
                top, projected, attended, mask, alphas[t], squashed[t], given[0][t + 1, :, :width]
            )
        ctx.count = count
        ctx.save_for_backward(
            keys,
            values,
            bias,
            to_attentional,
            dropped,
            dropped_between,
            alphas,
            squashed,
            *layers,
            *given,
            *cells,
            *gates,
        )
        return given[0][1:, :, :width].clone(memory_format=torch.contiguous_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count, upstream = ctx.count, gradients[0].contiguous()
        keys, values, bias, to_attentional, dropped, dropped_between, alphas, squashed, *rest = (
            ctx.saved_tensors
        )
        layers, given, cells, gates = (rest[i * count : (i + 1) * count] for i in range(4))
        attended, step = Attended(keys, values, bias), steps_on(upstream)
        steps, rows, width = squashed.shape
        size = keys.shape[2]
        to_gates = [torch.empty_like(part) for part in gates]
        to_sums, to_scores = torch.empty_like(squashed), torch.empty_like(alphas)
        to_given = [
            upstream.new_zeros(rows, weight.shape[1]) for weight in layers
        ]  # of the step that comes after
        to_cell = [upstream.new_zeros(rows, size) for _ in layers]
        by_scores = upstream.new_empty(rows, size)
        for t in reversed(range(steps)):
            mask = None if dropped is None else dropped[t]
            fed = to_given[0][:, :width]
            step.attention_backward(
                upstream[t],
                fed,
                mask,
                alphas[t],
                squashed[t],
                attended,
                to_sums[t],
                to_scores[t],
                by_scores,
            )
            to_state = torch.addmm(by_scores, to_sums[t], to_attentional)
            for layer in reversed(range(count)):
                own = to_given[layer][:, -size:]
                here = cells[layer][t], cells[layer][t + 1]
                step.lstm_backward(
                    to_state, own, gates[layer][t], *here, to_cell[layer], to_gates[layer][t]
                )
                to_given[layer] = torch.mm(to_gates[layer][t], layers[layer])
                to_state = to_given[layer][:, :size]
                if layer and dropped_between is not None:
                    to_state = to_state * dropped_between[layer - 1, t]

        tops = given[-1][1:, :, -size:]

        def by_input(part: Tensor) -> Tensor:  # [T, B·K, X] to [B, T·K, X]
            return (
                part.view(steps, len(keys), -1, part.shape[2])
                .transpose(0, 1)
                .reshape(len(keys), -1, part.shape[2])
            )

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
            *(
                part.flatten(0, 1).T @ seen[:-1].flatten(0, 1)
                for part, seen in zip(to_gates, given, strict=True)
            ),
            *(part.flatten(0, 1).sum(0) for part in to_gates[1:]),
        )
