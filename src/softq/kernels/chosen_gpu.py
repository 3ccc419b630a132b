"""What is done with a chunk of scores beside products, as Triton kernels that read them once; see `chosen`."""

# The compiler reads a kernel's annotations as code and knows no Python types: kernels go without.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096  # words that a program looks at together


def normalise(scores: Tensor, bias: Tensor, words: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Log Z and the smoothed log-probability of the chosen words."""
    rows, vocab = scores.shape
    log_z, found = scores.new_empty(rows), scores.new_empty(rows)
    _normalise[(rows,)](
        scores, bias, words, _possible(bias, smoothing), log_z, found, vocab, smoothing, SMOOTH=smoothing > 0, BLOCK=_BLOCK, num_warps=8
    )
    return log_z, found


def score_gradient(
    scores: Tensor, bias: Tensor, words: Tensor, smoothing: float, log_z: Tensor, upstream: Tensor, dtype: torch.dtype
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
def _normalise(scores, bias, words, possible, log_z, found, vocab, smoothing, SMOOTH: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    here = tl.arange(0, BLOCK)
    start = scores + row * vocab
    peak = tl.full([BLOCK], -float("inf"), dtype=log_z.dtype.element_ty)  # of each lane, so that lanes meet only at the end
    total = tl.zeros([BLOCK], dtype=log_z.dtype.element_ty)
    summed = tl.zeros([BLOCK], dtype=log_z.dtype.element_ty)
    for begin in range(0, vocab, BLOCK):
        at = begin + here
        score = tl.load(start + at, mask=at < vocab, other=-float("inf")) + tl.load(bias + at, mask=at < vocab, other=-float("inf"))
        higher = tl.maximum(peak, score)
        still = tl.where(higher == -float("inf"), 0.0, higher)
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
    probability = tl.exp(tl.load(scores + row * vocab + at, mask=real, other=0.0) + offset - tl.load(log_z + row))
    wanted = tl.where(at == tl.load(words + row), 1.0, 0.0)
    if SMOOTH:
        wanted = (1 - smoothing) * wanted + tl.where(offset == -float("inf"), 0.0, smoothing / tl.load(possible))
    gradient = tl.load(upstream + row) * (wanted - probability)
    tl.store(found + row * vocab + at, gradient.to(found.dtype.element_ty), mask=real)
