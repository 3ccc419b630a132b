"""The steps of decoders as Triton kernels.

What they compute stands in `softq.kernels.decoder.reference`. A program has a row: a candidate, or
the scores of all words at one position.
"""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from softq.kernels.decoder.reference import Attended
from softq.kernels.triton_math import finite

_PLACES = 16  # positions of an input that a program looks at together
_BLOCK = 4096  # words that a program looks at together


def lstm_forward(gates: Tensor, before: Tensor, after: Tensor, state: Tensor) -> None:
    """Activate gates in place and write cell and state."""
    rows, size = before.shape
    _lstm_forward[(rows,)](
        gates, before, after, state, state.stride(0), size, BLOCK=triton.next_power_of_2(size)
    )


def lstm_backward(
    to_state: Tensor,
    also: Tensor,
    gates: Tensor,
    before: Tensor,
    after: Tensor,
    to_cell: Tensor,
    to_gates: Tensor,
) -> None:
    """Write the gradient of the gates and move that of the cell a step back."""
    rows, size = before.shape
    _lstm_backward[(rows,)](
        to_state,
        to_state.stride(0),
        also,
        also.stride(0),
        gates,
        before,
        after,
        to_cell,
        to_gates,
        size,
        BLOCK=triton.next_power_of_2(size),
    )


def attention_forward(
    states: Tensor,
    projected: Tensor,
    attended: Attended,
    dropped: Tensor | None,
    weights: Tensor,
    squashed: Tensor,
    fed: Tensor,
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


def normalise(
    scores: Tensor, bias: Tensor, words: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Log Z and the smoothed log-probability of the chosen words."""
    rows, vocab = scores.shape
    log_z, found = scores.new_empty(rows), scores.new_empty(rows)
    _normalise[(rows,)](
        scores,
        bias,
        words,
        _possible(bias, smoothing),
        log_z,
        found,
        vocab,
        smoothing,
        SMOOTH=smoothing > 0,
        BLOCK=_BLOCK,
        num_warps=8,
    )
    return log_z, found


def score_gradient(
    scores: Tensor,
    bias: Tensor,
    words: Tensor,
    smoothing: float,
    log_z: Tensor,
    upstream: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Gradient of the scores."""
    rows, vocab = scores.shape
    found = torch.empty((rows, vocab), dtype=dtype, device=scores.device)
    _score_gradient[(rows, triton.cdiv(vocab, _BLOCK))](
        scores, bias, words, _possible(bias, smoothing), log_z, upstream, found, vocab, smoothing,
        SMOOTH=smoothing > 0, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip
    return found


def _possible(bias: Tensor, smoothing: float) -> Tensor:
    """How many words are possible, ``[1]``; without smoothing nobody asks."""
    return (bias > -math.inf).sum(0, keepdim=True, dtype=bias.dtype) if smoothing else bias


@triton.jit
def _tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def _load_gates(start, size, real):
    """Load input, forget, new and output gates of a row."""
    admit, keep = tl.load(start, mask=real), tl.load(start + size, mask=real)
    return admit, keep, tl.load(start + 2 * size, mask=real), tl.load(start + 3 * size, mask=real)


@triton.jit
def _store_gates(start, size, real, admit, keep, new, show):
    tl.store(start, admit, mask=real)
    tl.store(start + size, keep, mask=real)
    tl.store(start + 2 * size, new, mask=real)
    tl.store(start + 3 * size, show, mask=real)


@triton.jit
def _lstm_forward(
    gates,
    before,
    after,
    state,
    state_stride,
    size,
    BLOCK: tl.constexpr,  # noqa: N803
):
    row, here = tl.program_id(0), tl.arange(0, BLOCK)
    real = here < size
    start = gates + row * 4 * size + here
    admit, keep, new, show = _load_gates(start, size, real)
    admit, keep, new, show = tl.sigmoid(admit), tl.sigmoid(keep), _tanh(new), tl.sigmoid(show)
    cell = keep * tl.load(before + row * size + here, mask=real) + admit * new
    _store_gates(start, size, real, admit, keep, new, show)
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
    row, here = tl.program_id(0), tl.arange(0, BLOCK)
    real = here < size
    start, place = row * 4 * size + here, row * size + here
    admit, keep, new, show = _load_gates(gates + start, size, real)
    squashed = _tanh(tl.load(after + place, mask=real))
    to_hidden = tl.load(to_state + row * to_state_stride + here, mask=real)
    to_hidden += tl.load(also + row * also_stride + here, mask=real)
    to_after = tl.load(to_cell + place, mask=real) + to_hidden * show * (1 - squashed * squashed)
    _store_gates(
        to_gates + start,
        size,
        real,
        to_after * new * admit * (1 - admit),
        to_after * tl.load(before + place, mask=real) * keep * (1 - keep),
        to_after * admit * (1 - new * new),
        to_hidden * squashed * show * (1 - show),
    )
    tl.store(to_cell + place, to_after * keep, mask=real)


@triton.jit
def _load_places(vectors, of_input, at, places, over, size):
    """Load the vectors ``[places, size]`` of an input at some of its places, 0 beyond its last."""
    start = vectors + (of_input * places + at[:, None]) * size
    real = (at[:, None] < places) & (over[None, :] < size)
    return tl.load(start + over[None, :], mask=real, other=0.0)


@triton.jit
def _attention_forward(
    states,
    states_stride,
    projected,
    keys,
    values,
    bias,
    dropped,
    weights,
    squashed,
    fed,
    fed_stride,
    copies,
    places,
    size,
    width,
    DROP: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PLACES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    of_input = row // copies
    over_size, over_width, here = tl.arange(0, SIZE), tl.arange(0, WIDTH), tl.arange(0, PLACES)
    query = tl.load(states + row * states_stride + over_size, mask=over_size < size, other=0.0)
    peak = -float("inf")
    for begin in range(0, places, PLACES):
        at = begin + here
        key = _load_places(keys, of_input, at, places, over_size, size)
        added = tl.load(bias + of_input * places + at, mask=at < places, other=-float("inf"))
        score = tl.sum(key * query[None, :], 1) + added
        tl.store(weights + row * places + at, score, mask=at < places)
        peak = tl.maximum(peak, tl.max(score, 0))
    total = 0.0
    context = tl.zeros([WIDTH], dtype=query.dtype)
    tl.debug_barrier()  # the scores are read again by other threads than wrote them
    for begin in range(0, places, PLACES):
        at = begin + here
        score = tl.load(weights + row * places + at, mask=at < places, other=-float("inf"))
        mass = tl.exp(score - peak)
        total += tl.sum(mass, 0)
        value = _load_places(values, of_input, at, places, over_width, width)
        context += tl.sum(mass[:, None] * value, 0)
        tl.store(weights + row * places + at, mass, mask=at < places)
    real, place = over_width < width, row * width + over_width
    vector = _tanh(tl.load(projected + place, mask=real, other=0.0) + context / total)
    tl.store(squashed + place, vector, mask=real)
    if DROP:
        vector *= tl.load(dropped + place, mask=real, other=0.0)
    tl.store(fed + row * fed_stride + over_width, vector, mask=real)
    tl.debug_barrier()
    for begin in range(0, places, PLACES):
        at = begin + here
        mass = tl.load(weights + row * places + at, mask=at < places, other=0.0)
        tl.store(weights + row * places + at, mass / total, mask=at < places)


@triton.jit
def _attention_backward(
    upstream,
    fed,
    fed_stride,
    dropped,
    weights,
    squashed,
    keys,
    values,
    to_sums,
    to_scores,
    to_states,
    copies,
    places,
    size,
    width,
    DROP: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    PLACES: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0)
    of_input = row // copies
    over_size, over_width, here = tl.arange(0, SIZE), tl.arange(0, WIDTH), tl.arange(0, PLACES)
    real, place = over_width < width, row * width + over_width
    vector = tl.load(squashed + place, mask=real, other=0.0)
    to_sum = tl.load(upstream + place, mask=real, other=0.0)
    to_sum += tl.load(fed + row * fed_stride + over_width, mask=real, other=0.0)
    if DROP:
        to_sum *= tl.load(dropped + place, mask=real, other=0.0)
    to_sum *= 1 - vector * vector
    tl.store(to_sums + place, to_sum, mask=real)
    expected = 0.0  # Σ α dα
    for begin in range(0, places, PLACES):
        at = begin + here
        value = _load_places(values, of_input, at, places, over_width, width)
        weight = tl.load(weights + row * places + at, mask=at < places, other=0.0)
        to_weight = tl.sum(value * to_sum[None, :], 1)
        expected += tl.sum(to_weight * weight, 0)
        tl.store(to_scores + row * places + at, to_weight, mask=at < places)
    to_state = tl.zeros([SIZE], dtype=to_sum.dtype)
    tl.debug_barrier()
    for begin in range(0, places, PLACES):
        at = begin + here
        weight = tl.load(weights + row * places + at, mask=at < places, other=0.0)
        to_weight = tl.load(to_scores + row * places + at, mask=at < places, other=0.0)
        to_score = weight * (to_weight - expected)
        key = _load_places(keys, of_input, at, places, over_size, size)
        to_state += tl.sum(to_score[:, None] * key, 0)
        tl.store(to_scores + row * places + at, to_score, mask=at < places)
    tl.store(to_states + row * size + over_size, to_state, mask=over_size < size)


@triton.jit
def _normalise(
    scores,
    bias,
    words,
    possible,
    log_z,
    found,
    vocab,
    smoothing,
    SMOOTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    here = tl.arange(0, BLOCK)
    start = scores + row * vocab
    peak = tl.full(
        [BLOCK], -float("inf"), dtype=log_z.dtype.element_ty
    )  # of each lane, so that lanes meet only at the end
    total = tl.zeros([BLOCK], dtype=log_z.dtype.element_ty)
    summed = tl.zeros([BLOCK], dtype=log_z.dtype.element_ty)
    for begin in range(0, vocab, BLOCK):
        at = begin + here
        score = tl.load(start + at, mask=at < vocab, other=-float("inf"))
        score += tl.load(bias + at, mask=at < vocab, other=-float("inf"))
        higher = tl.maximum(peak, score)
        still = finite(higher)
        total = total * tl.exp(peak - still) + tl.exp(score - still)
        peak = higher
        if SMOOTH:
            summed += tl.where(score == -float("inf"), 0.0, score)
    top = tl.max(peak, 0)
    normaliser = top + tl.log(tl.sum(total * tl.exp(peak - top), 0))
    word = tl.load(words + row)
    chosen = tl.load(start + word) + tl.load(bias + word)
    if SMOOTH:
        chosen = (1 - smoothing) * chosen + smoothing * tl.sum(summed, 0) / tl.load(possible)
    tl.store(log_z + row, normaliser)
    tl.store(found + row, chosen - normaliser)


@triton.jit
def _score_gradient(
    scores,
    bias,
    words,
    possible,
    log_z,
    upstream,
    found,
    vocab,
    smoothing,
    SMOOTH: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = at < vocab
    offset = tl.load(bias + at, mask=real, other=-float("inf"))
    probability = tl.exp(
        tl.load(scores + row * vocab + at, mask=real, other=0.0) + offset - tl.load(log_z + row)
    )
    wanted = tl.where(at == tl.load(words + row), 1.0, 0.0)
    if SMOOTH:
        wanted = (1 - smoothing) * wanted + tl.where(
            offset == -float("inf"), 0.0, smoothing / tl.load(possible)
        )
    gradient = tl.load(upstream + row) * (wanted - probability)
    tl.store(found + row * vocab + at, gradient.to(found.dtype.element_ty), mask=real)
