"""Log-probabilities of chosen words under a linear layer and a softmax over a large vocabulary.

    log p(w | v) = W_w v + b_w - log Σ_u exp(W_u v + b_u),      d/dscores = onehot(w) - p

Not all scores are kept: rows go through in chunks. Where all scores fit into one chunk, they are
kept for the gradient; else each chunk is computed again there, a fourth product instead of three,
so that memory does not grow with rows times words. What is not a product is two functions of the
scores (`normalise`, `score_gradient`): those of `softq.kernels.decoder.reference`, or on a GPU of
`softq.kernels.decoder.gpu`, a kernel each that reads the scores once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from softq.kernels.decoder import steps_on

_SCORES = {"cuda": 1 << 27, "cpu": 1 << 24}  # of one chunk


def log_softmax_gather(
    vectors: Tensor,
    weight: Tensor,
    bias: Tensor,
    words: Tensor,
    smoothing: float = 0.0,
    *,
    coarse: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """Log-probability ``[M]`` of ``words [M]`` given ``vectors [M, D]``.

    Of a layer with ``weight [V, D]`` and ``bias [V]``.

    Words with a bias of -inf are impossible. With ``smoothing`` ε it is (1 - ε) log p(w) + ε
    mean_u log p(u) over the possible words, the negative loss of label smoothing. ``coarse``
    products, on a GPU, take factors in bfloat16 and add up in float32. ``chunk`` is a number of
    rows.

    >>> vectors, words = torch.eye(2), torch.tensor([0, 2])
    >>> weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> found = log_softmax_gather(vectors, weight, torch.zeros(3), words)
    >>> torch.allclose(found, (vectors @ weight.T).log_softmax(1)[[0, 1], words])
    True
    """
    if (
        vectors.is_cuda
    ):  # fast products want rows of whole 128 bytes; words that fill them up are impossible
        more = -len(weight) % 64
        weight, bias = pad(weight, (0, 0, 0, more)), pad(bias, (0, more), value=-math.inf)
    rows = chunk or max(1, _SCORES.get(vectors.device.type, 1 << 24) // len(weight))
    coarse = coarse and vectors.is_cuda
    found: Tensor = _LogSoftmaxGather.apply(  # type: ignore[no-untyped-call]
        vectors, weight, bias, words, smoothing, coarse, rows
    )
    return found


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """A @ b in the type of the sum; factors may be coarser."""
    return torch.mm(a, b) if a.dtype == dtype else torch.mm(a, b, out_dtype=dtype)


class _LogSoftmaxGather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        weight: Tensor,
        bias: Tensor,
        words: Tensor,
        smoothing: float,
        coarse: bool,
        rows: int,
    ) -> Tensor:
        dtype, normalise = vectors.dtype, steps_on(vectors).normalise
        factors = (vectors.bfloat16(), weight.bfloat16()) if coarse else (vectors, weight)
        log_z, found = vectors.new_empty(len(vectors)), vectors.new_empty(len(vectors))
        scores = vectors.new_empty(0)
        for begin in range(0, len(vectors), rows):
            part = slice(begin, begin + rows)
            scores = _product(factors[0][part], factors[1].T, dtype)
            log_z[part], found[part] = normalise(scores, bias, words[part], smoothing)
        ctx.smoothing, ctx.rows, ctx.dtype = smoothing, rows, dtype
        ctx.save_for_backward(
            *factors, bias, words, log_z, scores if len(vectors) <= rows else None
        )
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        vectors, weight, bias, words, log_z, kept = ctx.saved_tensors
        upstream, dtype, gradient_of = (
            gradients[0].contiguous(),
            ctx.dtype,
            steps_on(vectors).score_gradient,
        )
        to_vectors = vectors.new_empty(vectors.shape, dtype=dtype)
        # a column of ones beside the vectors: the bias has its gradient from the same product
        size = vectors.shape[1]
        beside = torch.cat(
            [
                vectors,
                vectors.new_ones(len(vectors), 1),
                vectors.new_zeros(len(vectors), -(size + 1) % 8),
            ],
            1,
        )
        to_both = weight.new_zeros((len(weight), beside.shape[1]), dtype=dtype)
        for begin in range(0, len(vectors), ctx.rows):
            part = slice(begin, begin + ctx.rows)
            scores = _product(vectors[part], weight.T, dtype) if kept is None else kept
            to_scores = gradient_of(
                scores, bias, words[part], ctx.smoothing, log_z[part], upstream[part], vectors.dtype
            )
            to_vectors[part] = _product(to_scores, weight, dtype)
            to_both += _product(to_scores.T, beside[part], dtype)
        return to_vectors, to_both[:, :size], to_both[:, size], None, None, None, None
