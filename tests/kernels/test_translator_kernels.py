"""The kernels of the translator, compiled or interpreted, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from softq.kernels.decoder import gpu as fast
from softq.kernels.decoder import reference as plain
from triton_world import DEVICE, interpreter_takes_loop_bounds_from_tensors, mark_for  # noqa: F401

pytestmark = mark_for(fast._lstm_forward)

STEPS, INPUTS, COPIES, PLACES = 2, 3, 2, 19
ROWS = INPUTS * COPIES


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE)


def both(name, make, outputs):
    """Run the plain and the fast function on equal arguments and compare what they write."""
    first, second = make(), make()
    getattr(plain, name)(*first)
    getattr(fast, name)(*second)
    for place in outputs:
        assert_close(second[place], first[place], rtol=1e-5, atol=1e-6)


def within(tensor, size):
    """The same numbers as part of a wider tensor, as they are in the decoder."""
    wide = torch.full((len(tensor), size + tensor.shape[1]), 7.0, device=DEVICE)
    wide[:, size:] = tensor
    return wide[:, size:]


@pytest.mark.parametrize("size", [8, 5])
def test_lstm(size):
    def forward():
        return (
            draw(ROWS, 4 * size),
            draw(ROWS, size),
            torch.empty(ROWS, size, device=DEVICE),
            within(draw(ROWS, size), 3),
        )

    both("lstm_forward", forward, [0, 2, 3])

    def backward():
        gates = draw(ROWS, 4 * size).sigmoid()
        cells = draw(ROWS, size, seed=1), draw(ROWS, size, seed=2)
        to_gates = torch.empty(ROWS, 4 * size, device=DEVICE)
        return (
            draw(ROWS, size, seed=3),
            within(draw(ROWS, size, seed=4), 2),
            gates,
            *cells,
            draw(ROWS, size, seed=5),
            to_gates,
        )

    both("lstm_backward", backward, [5, 6])


def attended(size, width):
    bias = torch.zeros(INPUTS, 1, PLACES, device=DEVICE)
    bias[1, 0, 17:] = -torch.inf
    bias[2, 0, 1:] = -torch.inf
    return plain.Attended(draw(INPUTS, PLACES, size), draw(INPUTS, PLACES, width, seed=1), bias)


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize(("size", "width"), [(8, 8), (5, 6)])
def test_attention(size, width, drops):
    dropped = (draw(ROWS, width, seed=9) > 0).float() * 2 if drops else None

    def forward():
        outputs = (
            torch.empty(ROWS, PLACES, device=DEVICE),
            torch.empty(ROWS, width, device=DEVICE),
            within(draw(ROWS, width), 4),
        )
        return (
            within(draw(ROWS, size), 3),
            draw(ROWS, width, seed=2),
            attended(size, width),
            dropped,
            *outputs,
        )

    both("attention_forward", forward, [4, 5, 6])

    def backward():
        weights = draw(ROWS, PLACES, seed=6).softmax(1)
        outputs = (torch.empty(ROWS, n, device=DEVICE) for n in (width, PLACES, size))
        upstream = draw(ROWS, width, seed=7), within(draw(ROWS, width, seed=8), 2)
        return (
            *upstream,
            dropped,
            weights,
            draw(ROWS, width).tanh(),
            attended(size, width),
            *outputs,
        )

    both("attention_backward", backward, [6, 7, 8])


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("vocab", [11, 5000])
def test_scores(vocab, smoothing):
    scores, bias = 3 * draw(6, vocab), draw(vocab)
    scores[2] -= 1e4
    bias[:2] = -torch.inf
    words = torch.tensor([2, 5, 10, 3, 3, 4], device=DEVICE)
    found, expected = (
        fast.normalise(scores, bias, words, smoothing),
        plain.normalise(scores, bias, words, smoothing),
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    arguments = scores, bias, words, smoothing, expected[0], draw(6), torch.float32
    assert_close(
        fast.score_gradient(*arguments), plain.score_gradient(*arguments), rtol=1e-4, atol=1e-6
    )
