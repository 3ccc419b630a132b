"""The four functions of a decoder's step as Triton kernels; what they compute stands in `attention_decoder`."""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.attention_decoder import Attended

_PLACES = 16  # positions of an input that a program looks at together


def lstm_forward(gates: Tensor, before: Tensor, after: Tensor, state: Tensor) -> None:
    """Activate gates in place and write cell and state."""
    rows, size = before.shape
    _lstm_forward[(rows,)](gates, before, after, state, state.stride(0), size, BLOCK=triton.next_power_of_2(size))


def lstm_backward(to_state: Tensor, also: Tensor, gates: Tensor, before: Tensor, after: Tensor, to_cell: Tensor, to_gates: Tensor) -> None:
    """Write the gradient of the gates and move that of the cell a step back."""
    rows, size = before.shape
    block = triton.next_power_of_2(size)
    _lstm_backward[(rows,)](to_state, to_state.stride(0), also, also.stride(0), gates, before, after, to_cell, to_gates, size, BLOCK=block)


def attention_forward(
    states: Tensor, projected: Tensor, attended: Attended, dropped: Tensor | None, weights: Tensor, squashed: Tensor, fed: Tensor
) -> None:
    """Write weights, the attentional vector, and the same after dropout."""
    keys, values, bias = attended
    (rows, places), size, width = weights.shape, keys.shape[2], values.shape[2]
    _attention_forward[(rows,)](
        states,
        states.stride(0),
        projected,
        keys,
        values,
        bias,
        squashed if dropped is None else dropped,
        weights,
        squashed,
        fed,
        fed.stride(0),
        rows // len(keys),
        places,
        size,
        width,
        DROP=dropped is not None,
        SIZE=triton.next_power_of_2(size),
        WIDTH=triton.next_power_of_2(width),
        PLACES=_PLACES,
    )


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
    """Write gradients of the sum under the tanh, of the scores and of the states."""
    keys, values, _ = attended
    (rows, places), size, width = weights.shape, keys.shape[2], values.shape[2]
    _attention_backward[(rows,)](
        upstream,
        fed,
        fed.stride(0),
        squashed if dropped is None else dropped,
        weights,
        squashed,
        keys,
        values,
        to_sums,
        to_scores,
        to_states,
        rows // len(keys),
        places,
        size,
        width,
        DROP=dropped is not None,
        SIZE=triton.next_power_of_2(size),
        WIDTH=triton.next_power_of_2(width),
        PLACES=_PLACES,
    )


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _lstm_forward(gates, before, after, state, state_stride, size, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    here = tl.arange(0, BLOCK)
    real = here < size
    start = gates + row * 4 * size + here
    admit = tl.sigmoid(tl.load(start, mask=real))
    keep = tl.sigmoid(tl.load(start + size, mask=real))
    new = _tanh(tl.load(start + 2 * size, mask=real))
    show = tl.sigmoid(tl.load(start + 3 * size, mask=real))
    cell = keep * tl.load(before + row * size + here, mask=real) + admit * new
    tl.store(start, admit, mask=real)
    tl.store(start + size, keep, mask=real)
    tl.store(start + 2 * size, new, mask=real)
    tl.store(start + 3 * size, show, mask=real)
    tl.store(after + row * size + here, cell, mask=real)
    tl.store(state + row * state_stride + here, show * _tanh(cell), mask=real)


@triton.jit
def _lstm_backward(
    to_state,
    to_state_stride,
    also,
    also_stride,
    gates,
    before,
    after,
    to_cell,
    to_gates,
    size,
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    here = tl.arange(0, BLOCK)
    real = here < size
    start = row * 4 * size + here
    admit = tl.load(gates + start, mask=real)
    keep = tl.load(gates + start + size, mask=real)
    new = tl.load(gates + start + 2 * size, mask=real)
    show = tl.load(gates + start + 3 * size, mask=real)
    squashed = _tanh(tl.load(after + row * size + here, mask=real))
    to_hidden = tl.load(to_state + row * to_state_stride + here, mask=real) + tl.load(also + row * also_stride + here, mask=real)
    to_after = tl.load(to_cell + row * size + here, mask=real) + to_hidden * show * (1 - squashed * squashed)
    tl.store(to_gates + start, to_after * new * admit * (1 - admit), mask=real)
    tl.store(to_gates + start + size, to_after * tl.load(before + row * size + here, mask=real) * keep * (1 - keep), mask=real)
    tl.store(to_gates + start + 2 * size, to_after * admit * (1 - new * new), mask=real)
    tl.store(to_gates + start + 3 * size, to_hidden * squashed * show * (1 - show), mask=real)
    tl.store(to_cell + row * size + here, to_after * keep, mask=real)


@triton.jit
def _attention_forward(
    states, states_stride, projected, keys, values, bias, dropped, weights, squashed, fed, fed_stride, copies, places, size, width,
    DROP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0)
    of_input = row // copies
    over_size, over_width, here = tl.arange(0, SIZE), tl.arange(0, WIDTH), tl.arange(0, PLACES)
    query = tl.load(states + row * states_stride + over_size, mask=over_size < size, other=0.0)
    peak = -float("inf")
    for begin in range(0, places, PLACES):
        at = begin + here
        tile = (at[:, None] < places) & (over_size[None, :] < size)
        key = tl.load(keys + (of_input * places + at[:, None]) * size + over_size[None, :], mask=tile, other=0.0)
        score = tl.sum(key * query[None, :], 1) + tl.load(bias + of_input * places + at, mask=at < places, other=-float("inf"))
        tl.store(weights + row * places + at, score, mask=at < places)
        peak = tl.maximum(peak, tl.max(score, 0))
    total = 0.0
    context = tl.zeros([WIDTH], dtype=query.dtype)
    tl.debug_barrier()  # the scores are read again by other threads than wrote them
    for begin in range(0, places, PLACES):
        at = begin + here
        mass = tl.exp(tl.load(weights + row * places + at, mask=at < places, other=-float("inf")) - peak)
        total += tl.sum(mass, 0)
        tile = (at[:, None] < places) & (over_width[None, :] < width)
        value = tl.load(values + (of_input * places + at[:, None]) * width + over_width[None, :], mask=tile, other=0.0)
        context += tl.sum(mass[:, None] * value, 0)
        tl.store(weights + row * places + at, mass, mask=at < places)
    real = over_width < width
    vector = _tanh(tl.load(projected + row * width + over_width, mask=real, other=0.0) + context / total)
    tl.store(squashed + row * width + over_width, vector, mask=real)
    if DROP:
        vector *= tl.load(dropped + row * width + over_width, mask=real, other=0.0)
    tl.store(fed + row * fed_stride + over_width, vector, mask=real)
    tl.debug_barrier()
    for begin in range(0, places, PLACES):
        at = begin + here
        mass = tl.load(weights + row * places + at, mask=at < places, other=0.0)
        tl.store(weights + row * places + at, mass / total, mask=at < places)


@triton.jit
def _attention_backward(
    upstream, fed, fed_stride, dropped, weights, squashed, keys, values, to_sums, to_scores, to_states, copies, places, size, width,
    DROP: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0)
    of_input = row // copies
    over_size, over_width, here = tl.arange(0, SIZE), tl.arange(0, WIDTH), tl.arange(0, PLACES)
    real = over_width < width
    vector = tl.load(squashed + row * width + over_width, mask=real, other=0.0)
    to_sum = tl.load(upstream + row * width + over_width, mask=real, other=0.0)
    to_sum += tl.load(fed + row * fed_stride + over_width, mask=real, other=0.0)
    if DROP:
        to_sum *= tl.load(dropped + row * width + over_width, mask=real, other=0.0)
    to_sum *= 1 - vector * vector
    tl.store(to_sums + row * width + over_width, to_sum, mask=real)
    expected = 0.0  # Σ α dα
    for begin in range(0, places, PLACES):
        at = begin + here
        tile = (at[:, None] < places) & (over_width[None, :] < width)
        value = tl.load(values + (of_input * places + at[:, None]) * width + over_width[None, :], mask=tile, other=0.0)
        to_weight = tl.sum(value * to_sum[None, :], 1)
        expected += tl.sum(to_weight * tl.load(weights + row * places + at, mask=at < places, other=0.0), 0)
        tl.store(to_scores + row * places + at, to_weight, mask=at < places)
    to_state = tl.zeros([SIZE], dtype=to_sum.dtype)
    tl.debug_barrier()
    for begin in range(0, places, PLACES):
        at = begin + here
        weight = tl.load(weights + row * places + at, mask=at < places, other=0.0)
        to_score = weight * (tl.load(to_scores + row * places + at, mask=at < places, other=0.0) - expected)
        tile = (at[:, None] < places) & (over_size[None, :] < size)
        key = tl.load(keys + (of_input * places + at[:, None]) * size + over_size[None, :], mask=tile, other=0.0)
        to_state += tl.sum(to_score[:, None] * key, 0)
        tl.store(to_scores + row * places + at, to_score, mask=at < places)
    tl.store(to_states + row * size + over_size, to_state, mask=over_size < size)
