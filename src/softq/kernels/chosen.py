"""Log-probabilities of chosen words under a linear layer and a softmax over a large vocabulary, without keeping all scores.

    log p(w | v) = W_w v + b_w - log Σ_u exp(W_u v + b_u),      d/dscores = onehot(w) - p

Rows go through in chunks. Where all scores fit into one chunk, they are kept for the gradient; else each chunk is computed again there, a
fourth product instead of three, so that memory does not grow with rows times words. What is not a product is two functions of the scores
(`normalise`, `score_gradient`): plain torch here, a Triton kernel each in `chosen_gpu` that reads the scores once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from softq.kernels.backend import current_backend

_SCORES = {"cuda": 1 << 27, "cpu": 1 << 24}  # of one chunk


def chosen_log_probs(
    vectors: Tensor, weight: Tensor, bias: Tensor, words: Tensor, smoothing: float = 0.0, *, coarse: bool = False, chunk: int | None = None
) -> Tensor:
    """Log-probability of ``words [M]`` given ``vectors [M, D]``, for ``weight [V, D]`` and ``bias [V]``; ``[M]``.

    Words with a bias of -inf are impossible. With ``smoothing`` ε it is (1 - ε) log p(w) + ε mean_u log p(u) over the possible words,
    the negative loss of label smoothing. ``coarse`` products, on a GPU, take factors in bfloat16 and add up in float32. ``chunk`` is a
    number of rows.

    >>> vectors, weight, words = torch.eye(2), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([0, 2])
    >>> torch.allclose(chosen_log_probs(vectors, weight, torch.zeros(3), words), (vectors @ weight.T).log_softmax(1)[[0, 1], words])
    True
    """
    if vectors.is_cuda:  # fast products want rows of whole 128 bytes; words that fill them up are impossible
        more = -len(weight) % 64
        weight, bias = pad(weight, (0, 0, 0, more)), pad(bias, (0, more), value=-math.inf)
    rows = chunk or max(1, _SCORES.get(vectors.device.type, 1 << 24) // len(weight))
    coarse = coarse and vectors.is_cuda
    found: Tensor = _ChosenLogProbs.apply(vectors, weight, bias, words, smoothing, coarse, rows)  # type: ignore[no-untyped-call]
    return found


def normalise(scores: Tensor, bias: Tensor, words: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Log Z ``[M]`` of scores ``[M, V]`` plus bias, and the log-probability of the chosen words, smoothed."""
    scores = scores + bias
    log_z = scores.logsumexp(1)
    chosen = scores.gather(1, words.unsqueeze(1)).squeeze(1)
    if smoothing:
        possible = bias > -math.inf
        chosen = (1 - smoothing) * chosen + smoothing * (scores.masked_fill(~possible, 0.0).sum(1) / possible.sum())
    return log_z, chosen - log_z


def score_gradient(
    scores: Tensor, bias: Tensor, words: Tensor, smoothing: float, log_z: Tensor, upstream: Tensor, dtype: torch.dtype
) -> Tensor:
    """Gradient of the scores ``[M, V]``: upstream times (1 - ε) onehot + ε/V - p."""
    upstream = upstream.unsqueeze(1)
    found = (scores + bias).sub_(log_z.unsqueeze(1)).exp_().mul_(-upstream)
    found.scatter_add_(1, words.unsqueeze(1), (1 - smoothing) * upstream)
    if smoothing:
        possible = bias > -math.inf
        found += smoothing / possible.sum() * possible * upstream
    return found.to(dtype)


def _functions(like: Tensor) -> tuple[Any, Any]:
    if like.is_cuda and current_backend() != "reference":
        from softq.kernels import chosen_gpu  # Triton is only there with a GPU

        return chosen_gpu.normalise, chosen_gpu.score_gradient
    return normalise, score_gradient


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """A @ b in the type of the sum; factors may be coarser."""
    return torch.mm(a, b) if a.dtype == dtype else torch.mm(a, b, out_dtype=dtype)


class _ChosenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, vectors: Tensor, weight: Tensor, bias: Tensor, words: Tensor, smoothing: float, coarse: bool, rows: int
    ) -> Tensor:
        dtype, normalised = vectors.dtype, _functions(vectors)[0]
        factors = (vectors.bfloat16(), weight.bfloat16()) if coarse else (vectors, weight)
        log_z, found = vectors.new_empty(len(vectors)), vectors.new_empty(len(vectors))
        scores = vectors.new_empty(0)
        for begin in range(0, len(vectors), rows):
            part = slice(begin, begin + rows)
            scores = _product(factors[0][part], factors[1].T, dtype)
            log_z[part], found[part] = normalised(scores, bias, words[part], smoothing)
        ctx.smoothing, ctx.rows, ctx.dtype = smoothing, rows, dtype
        ctx.save_for_backward(*factors, bias, words, log_z, scores if len(vectors) <= rows else None)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        vectors, weight, bias, words, log_z, kept = ctx.saved_tensors
        upstream, dtype, gradient_of = gradients[0].contiguous(), ctx.dtype, _functions(vectors)[1]
        to_vectors = vectors.new_empty(vectors.shape, dtype=dtype)
        # a column of ones beside the vectors: the bias has its gradient from the same product
        size = vectors.shape[1]
        beside = torch.cat([vectors, vectors.new_ones(len(vectors), 1), vectors.new_zeros(len(vectors), -(size + 1) % 8)], 1)
        to_both = weight.new_zeros((len(weight), beside.shape[1]), dtype=dtype)
        for begin in range(0, len(vectors), ctx.rows):
            part = slice(begin, begin + ctx.rows)
            scores = _product(vectors[part], weight.T, dtype) if kept is None else kept
            to_scores = gradient_of(scores, bias, words[part], ctx.smoothing, log_z[part], upstream[part], vectors.dtype)
            to_vectors[part] = _product(to_scores, weight, dtype)
            to_both += _product(to_scores.T, beside[part], dtype)
        return to_vectors, to_both[:, :size], to_both[:, size], None, None, None, None
