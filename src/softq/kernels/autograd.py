"""Log-partition and marginals of any structure as differentiable torch functions.

d log Z / d scores = marginals (paper, appendix eq. 6), so the fast path returns
both in one sweep. Second derivatives differentiate the plain torch reference, and only if asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softq.kernels.backend import current_backend
from softq.kernels.contrast import subtract_expected, weigh
from softq.numerics import inner

Scores = tuple[Tensor, ...]


class Structure(NamedTuple):
    """One family of distributions as the kernels see it. Scores are ``[B, …]`` each, or ``[1, …]`` if the batch shares them.

    ``infer(lengths, scores, want_marginals)`` returns log Z ``[B]`` and marginals ``[B, …]`` (or an empty tuple);
    ``reference(lengths, *scores)`` returns log Z in plain differentiable torch.
    """

    infer: Callable[[Tensor, Scores, bool], tuple[Tensor, Scores]]
    reference: Callable[..., Tensor]


def log_partition(structure: Structure, lengths: Tensor, *scores: Tensor) -> Tensor:
    """Log Z per example, ``[B]``."""
    if current_backend() == "reference":
        return structure.reference(lengths, *scores)
    return _apply(_LogPartition, structure, lengths, *scores)  # type: ignore[no-any-return]


def marginals(structure: Structure, lengths: Tensor, *scores: Tensor) -> Scores:
    """Marginals of the parts per example, ``[B, …]`` for each kind of score."""
    if current_backend() == "reference":
        return _reference_marginals(structure, lengths, scores, torch.is_grad_enabled())
    return _apply(_Marginals, structure, lengths, *scores)  # type: ignore[no-any-return]


def cross_entropy(structure: Structure, lengths: Tensor, expected: Scores, *scores: Tensor) -> Tensor:
    """Log Z - <expected, scores> per example, ``[B]``, for a target with these expected parts (a constant)."""
    if current_backend() == "reference":
        return structure.reference(lengths, *scores) - sum_of_inner(expected, scores)
    return _apply(_CrossEntropy, structure, lengths, expected, *scores)  # type: ignore[no-any-return]


def sum_of_inner(expected: Scores, scores: Scores, batch_dims: int = 1) -> Tensor:
    """Inner product over all kinds of parts."""
    products = [inner(e, s, range(batch_dims, e.dim())) for e, s in zip(expected, scores, strict=True)]
    return products[0] if len(products) == 1 else torch.stack(products).sum(0)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    return function.apply(*args)  # type: ignore[no-untyped-call]


def _reference_marginals(structure: Structure, lengths: Tensor, scores: Scores, create_graph: bool) -> Scores:
    with torch.enable_grad():
        # A leaf stands in for a score without gradient, so that its marginals exist all the same.
        parts = (s if s.requires_grad else s.detach().requires_grad_() for s in scores)
        each = tuple(s.expand(lengths.shape[0], *s.shape[1:]) if s.shape[0] == 1 else s for s in parts)
        total = structure.reference(lengths, *each).sum()
        found = torch.autograd.grad(total, each, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(s) if m is None else m for m, s in zip(found, each, strict=True))


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, structure: Structure, lengths: Tensor, *scores: Tensor) -> Tensor:
        log_z, found = structure.infer(lengths, scores, any(ctx.needs_input_grad))
        ctx.structure = structure
        ctx.arity = len(scores)
        ctx.save_for_backward(lengths, *scores, *found)
        return log_z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        lengths, *rest = ctx.saved_tensors
        scores, found = rest[: ctx.arity], rest[ctx.arity :]
        if torch.is_grad_enabled():  # someone may differentiate again
            found = marginals(ctx.structure, lengths, *scores)
        return None, None, *_weighted(found, grad, scores)


class _CrossEntropy(torch.autograd.Function):
    """Both terms at once: the gradient E_model[parts] - E_target[parts] is one buffer, ready in the forward pass."""

    @staticmethod
    def forward(ctx: Any, structure: Structure, lengths: Tensor, expected: Scores, *scores: Tensor) -> Tensor:
        want = any(ctx.needs_input_grad)
        loss, found = structure.infer(lengths, scores, want)
        for i, (part, score) in enumerate(zip(expected, scores, strict=True)):
            subtract_expected(loss, part, score, found[i] if want else None)
        ctx.structure = structure
        ctx.arity = len(scores)
        ctx.save_for_backward(lengths, *scores, *found)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        lengths, *rest = ctx.saved_tensors
        scores, found = rest[: ctx.arity], rest[ctx.arity :]
        if torch.is_grad_enabled():
            # Same value, but a function of the scores: found + (marginals - their own constant value).
            live = marginals(ctx.structure, lengths, *scores)
            found = [f + (m - m.detach()) for f, m in zip(found, live, strict=True)]
        return None, None, None, *_weighted(found, grad, scores)


def _weighted(found: Any, grad: Tensor, scores: Any) -> tuple[Tensor, ...]:
    """Gradients per example, each weighed by its own `grad`, and summed where the batch shares one score."""
    if grad.requires_grad or any(f.requires_grad for f in found):
        each = (grad.reshape(-1, *[1] * (f.dim() - 1)) * f for f in found)
        return tuple(g.sum(0, keepdim=True) if s.shape[0] == 1 else g for g, s in zip(each, scores, strict=True))
    return tuple(weigh(f, grad, shared=s.shape[0] == 1) for f, s in zip(found, scores, strict=True))


class _Marginals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, structure: Structure, lengths: Tensor, *scores: Tensor) -> Scores:
        _, found = structure.infer(lengths, scores, True)
        ctx.structure = structure
        ctx.save_for_backward(lengths, *scores)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        lengths, *scores = ctx.saved_tensors
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            parts = tuple(s if s.requires_grad and again else s.detach().requires_grad_() for s in scores)
            found = _reference_marginals(ctx.structure, lengths, parts, create_graph=True)
            weighted = sum(((g * m).sum() for g, m in zip(grads, found, strict=True)), start=torch.zeros(()).to(grads[0]))
            if not weighted.requires_grad:  # marginals that do not depend on the scores
                return None, None, *(torch.zeros_like(s) for s in scores)
            second = torch.autograd.grad(weighted, parts, create_graph=again, allow_unused=True)
        return None, None, *(torch.zeros_like(s) if h is None else h for h, s in zip(second, scores, strict=True))
