"""Recursions as torch operators: log Z - <E_target[parts], scores>, and its gradient, in one sweep.

    loss = log Z(model) - < E_target[parts], scores(model) >        (paper, appendix eq. 5)
    d loss / d scores = E_model[parts] - E_target[parts]            (paper, appendix eq. 6)

Without a target the two are log Z and the marginals, so this is all that a structure computes. The
gradient is an output of the operator like the loss, and differentiable like it: its derivative is
the second derivative of log Z, which comes from the plain torch reference. So there are derivatives
of any order, and `torch.compile`, `torch.export`, `torch.func` and CUDA graphs see an operator like
any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.kernels.backend import use_kernels
from softq.kernels.jit import as_array
from softq.kernels.random import seed_tensor
from softq.numerics import inner


class Expected(NamedTuple):
    """E_target[parts] of B examples: a mixture of outputs, or one tensor for each kind of part."""

    outputs: Tensor | None = None
    """R outputs of each example, int64 ``[B, R, n]``."""
    weights: Tensor | None = None
    """Their weights, ``[B, R]``; None: equal ones."""
    peaks: Tensor | None = None
    """Where an output has label y, the mass of every label and what label y has beyond that,
    ``[1 or B, K + 1, 2]``; label K stands for one that is not known. None: all mass on y."""
    parts: tuple[Tensor, ...] = ()
    """Tensors ``[B, …]`` like the scores."""

    @property
    def requires_grad(self) -> bool:
        """Whether something will be differentiated with respect to the target."""
        return any(part.requires_grad for part in self.parts)

    def arguments(self, arity: int) -> tuple[Tensor | None, ...]:
        """As arguments of an operator on ``arity`` kinds of scores."""
        return self.outputs, self.weights, self.peaks, *(self.parts or (None,) * arity)

    def pointers(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs, weights and peaks for a GPU kernel; what is not there is never read."""

        def pointer(part: Tensor | None, dtype: torch.dtype) -> Tensor:
            return like.new_empty(1, dtype=dtype) if part is None else part.contiguous()

        outputs, weights = pointer(self.outputs, torch.int64), pointer(self.weights, like.dtype)
        return outputs, weights, pointer(self.peaks, like.dtype)

    def arrays(self, *scores: Tensor) -> list[np.ndarray[Any, Any]]:
        """The same for a kernel, with arrays of size 0 in the place of what is not there."""
        outputs, weights, peaks, *parts = self.arguments(len(scores))
        shape = (0, 0) if outputs is None else outputs.shape[:2]
        return [
            _nothing(torch.int64, 3) if outputs is None else as_array(outputs.long()),
            (
                np.full(shape, 1.0 / max(shape[1], 1))  # equal weights
                if weights is None
                else as_array(weights.double())
            ),
            _on_one_label(scores[0].shape[-1]) if peaks is None else as_array(peaks.double()),
            *(
                (
                    _nothing(score.dtype, score.dim())
                    if part is None
                    else as_array(part.to(score.dtype))
                )
                for part, score in zip(parts, scores, strict=True)
            ),
        ]


@lru_cache
def _nothing(dtype: torch.dtype, dims: int) -> np.ndarray[Any, Any]:
    return as_array(torch.empty((0,) * dims, dtype=dtype))


@lru_cache
def _on_one_label(labels: int) -> np.ndarray[Any, Any]:
    """Peaks that leave all mass on the label itself."""
    return np.array([[[0.0, 1.0]] * labels + [[0.0, 0.0]]])


class Operator:
    """``softq::name(*scores, lengths, *target, *flags, gradient) -> (loss, *gradients)``.

    Scores are ``[B, …]`` each, or ``[1, …]`` if the batch shares them; gradients are ``[B, …]``.

    Args:
        name: of the operator.
        scores: names of its kinds of scores.
        flags: names of its options, all of them bool.
        reference: ``reference(lengths, *scores, *flags)``, log Z ``[B]`` in plain torch.
        cpu: ``cpu(*scores, lengths, target, *flags, gradient)``, the kernel.
        gpu: the same on a GPU.

    """

    def __init__(
        self,
        name: str,
        scores: Sequence[str],
        flags: Sequence[str],
        reference: Callable[..., Tensor],
        cpu: Callable[..., tuple[Tensor, ...]],
        gpu: Callable[..., tuple[Tensor, ...]],
    ) -> None:
        self.arity = len(scores)
        self.reference = reference
        self._kernels = {"cpu": cpu, "cuda": gpu}
        target = ("outputs", "weights", "peaks", *(f"expected_{score}" for score in scores))
        arguments = [f"Tensor {score}" for score in (*scores, "lengths")]
        arguments += [f"Tensor? {part}" for part in target]
        arguments += [f"bool {flag}" for flag in (*flags, "gradient")]
        results = ", ".join(["Tensor"] * (1 + self.arity))
        defined = torch.library.custom_op(
            f"softq::{name}",
            lambda *given: self._run(cpu, given),
            mutates_args=(),
            device_types="cpu",
            schema=f"({', '.join(arguments)}) -> ({results})",
        )
        defined.register_kernel("cuda", lambda *given: self._run(gpu, given))
        defined.register_fake(self._fake)
        defined.register_vmap(self._batched)
        defined.register_autograd(self._backward, setup_context=self._keep)
        self.operator = getattr(torch.ops.softq, name).default
        # The second derivative for compiled graphs, so that no recursion is unrolled in them. It
        # returns a list, because an operator cannot return a tuple of one.
        vectors = (f"d_{score}" for score in scores)
        arguments = [f"Tensor {each}" for each in ("lengths", *scores, *vectors)]
        arguments += [f"bool {flag}" for flag in flags]
        self.second = torch.library.custom_op(
            f"softq::{name}_second",
            self._run_second,
            mutates_args=(),
            schema=f"({', '.join(arguments)}) -> Tensor[]",
        )
        self.second.register_fake(self._fake_second)
        # Autograd of operators does not reach into torch.func, and is slow in eager mode.
        backward = staticmethod(self._backward)
        self._transformed: Any = type(
            name,
            (torch.autograd.Function,),
            {
                "forward": staticmethod(self.operator),
                "setup_context": staticmethod(self._keep),
                "backward": backward,
                "vmap": staticmethod(self._batched),
            },
        )
        self._eager: Any = type(
            name,
            (torch.autograd.Function,),
            {"forward": staticmethod(self._forward), "backward": backward},
        )

    def __call__(
        self,
        lengths: Tensor,
        scores: Sequence[Tensor],
        *flags: bool,
        target: Expected | None = None,
        gradient: bool = False,
    ) -> tuple[Tensor, ...]:
        """The loss ``[B]``, or log Z without a target, and its gradients ``[B, …]``.

        The gradients are there if asked for, or if something will be differentiated.
        """
        compiling = torch.compiler.is_compiling()
        transformed = torch._C._are_functorch_transforms_active()
        if not transformed and not use_kernels():
            return _differentiate(self.reference, lengths, scores, flags)
        learns = torch.is_grad_enabled() and any(score.requires_grad for score in scores)
        gradient = gradient or compiling or transformed or learns
        function = self._transformed if transformed else self._eager
        apply: Callable[..., tuple[Tensor, ...]] = self.operator if compiling else function.apply
        arguments = (target or Expected()).arguments(self.arity)
        return apply(*scores, lengths, *arguments, *flags, gradient)

    def _run(self, kernel: Callable[..., tuple[Tensor, ...]], given: Any) -> tuple[Tensor, ...]:
        lengths, scores, target, flags = self._parsed(given)
        loss, *gradients = kernel(*scores, lengths, target, *flags)
        if not flags[-1]:
            gradients = [score.new_empty(0) for score in scores]
        return loss, *gradients

    def _parsed(self, given: Any) -> tuple[Tensor, Any, Expected, Any]:
        scores, (lengths, *rest) = given[: self.arity], given[self.arity :]
        outputs, weights, peaks, *parts = rest[: 3 + self.arity]
        target = Expected(outputs, weights, peaks, tuple(parts) if parts[0] is not None else ())
        return lengths, scores, target, tuple(rest[3 + self.arity :])

    def _fake(self, *given: Any) -> tuple[Tensor, ...]:
        scores, gradient = given[: self.arity], given[-1]
        batch = given[self.arity].shape[0]
        shapes = [(batch, *score.shape[1:]) if gradient else (0,) for score in scores]
        gradients = [score.new_empty(s) for score, s in zip(scores, shapes, strict=True)]
        return scores[0].new_empty(batch), *gradients

    def _forward(self, ctx: Any, *given: Any) -> tuple[Tensor, ...]:
        kernel = self._kernels.get(given[0].device.type)
        if kernel is not None and _is_plain(given[0]):
            output = self._run(kernel, given)  # without a detour through the dispatcher
        else:
            output = self.operator(*given)
        self._keep(ctx, given, output)
        return output

    def _keep(self, ctx: Any, inputs: Any, output: Any) -> None:
        lengths, scores, _, flags = self._parsed(inputs)
        ctx.flags = flags[:-1]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(lengths, *scores, *output[1:])

    def _backward(self, ctx: Any, d_loss: Any, *d_gradients: Any) -> tuple[Any, ...]:
        lengths, *rest = ctx.saved_tensors
        scores, gradients = rest[: self.arity], rest[self.arity :]
        found: list[Any] = [None] * self.arity
        if d_loss is not None:
            pairs = zip(gradients, scores, strict=True)
            found = [_weighted(d_loss, each, score.shape[0]) for each, score in pairs]
        if any(each is not None for each in d_gradients):
            vectors = [
                torch.zeros_like(gradient) if each is None else each
                for each, gradient in zip(d_gradients, gradients, strict=True)
            ]
            second = self.second if torch.compiler.is_compiling() else self._second
            more = second(lengths, *scores, *vectors, *ctx.flags)
            found = [m if f is None else f + m for f, m in zip(found, more, strict=True)]
        return *found, *[None] * (4 + self.arity + len(ctx.flags) + 1)

    def _second(self, lengths: Tensor, *given: Any) -> tuple[Tensor, ...]:
        """The second derivative of log Z times vectors ``[B, …]``, given behind the scores."""
        scores, vectors = given[: self.arity], given[self.arity : 2 * self.arity]

        def marginals(*leaves: Tensor) -> Any:
            return _differentiate(self.reference, lengths, leaves, given[2 * self.arity :])[1:]

        pullback = torch.func.vjp(marginals, *scores)[1]
        found: tuple[Tensor, ...] = pullback(tuple(vectors))
        return found

    def _run_second(self, *given: Any) -> list[Tensor]:
        with _autograd_in_operator():
            return [found.detach().contiguous() for found in self._second(*given)]

    def _fake_second(self, lengths: Tensor, *given: Any) -> list[Tensor]:
        return [score.new_empty(score.shape) for score in given[: self.arity]]

    def _batched(self, info: Any, in_dims: Any, *given: Any) -> tuple[Any, Any]:
        """Under `torch.func.vmap`, one more dimension is one more factor of the batch."""
        batch = given[self.arity].shape
        size = batch[0] if in_dims[self.arity] is None else batch.numel() // info.batch_size

        def merge(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor) or (dim is None and size > len(value) == 1):
                return value  # an option, or shared by all
            beside = value.expand(info.batch_size, *value.shape)
            apart = beside if dim is None else value.movedim(dim, 0)
            return apart.expand(-1, size, *apart.shape[2:]).flatten(0, 1)

        merged = [merge(value, dim) for value, dim in zip(given, in_dims, strict=True)]
        found = self.operator(*merged)
        shape = (info.batch_size, size)
        return tuple(
            each.unflatten(0, shape) if each.numel() or each.dim() > 1 else each for each in found
        ), (0,) * (1 + self.arity)


def on_gpu(module: str, name: str) -> Callable[..., Any]:
    """A function of ``softq.kernels.MODULE``, imported when it runs: Triton needs a GPU."""

    def run(*given: Any) -> Any:
        # Triton launches on the current device
        with torch.cuda.device_of(given[0]):  # type: ignore[no-untyped-call]
            return getattr(import_module(f"softq.kernels.{module}"), name)(*given)

    return run


class Decoder:
    """Best outputs and samples of a structure: on the GPU that has the scores, or on the CPU.

    Args:
        mode: ``mode(lengths, *scores, *flags)``, on the CPU.
        sample: ``sample(lengths, *scores, *flags, count, generator)``, on the CPU.
        module: of ``decode(found, seeds, lengths, *scores, *flags, sample)``, in `softq.kernels`:
            it fills ``found [count, B, n]`` with samples by ``seeds [count, B]``, or the mode.
        widest: scores whose last dimensions are larger are copied to the CPU.
        root: 1 if there is one more node than tokens.

    """

    def __init__(
        self,
        mode: Callable[..., Tensor],
        sample: Callable[..., Tensor],
        module: str,
        *,
        widest: float = math.inf,
        root: int = 0,
    ) -> None:
        self._cpu_mode, self._cpu_sample = mode, sample
        self._gpu, self._widest, self._root = on_gpu(module, "decode"), widest, root

    def _fits(self, scores: Tensor) -> bool:
        return scores.is_cuda and max(scores.shape[2:]) <= self._widest

    def mode(self, lengths: Tensor, scores: Tensor, *rest: Any) -> Tensor:
        """Best outputs ``[B, n]``; 0 on padding."""
        if not self._fits(scores):
            return self._cpu_mode(lengths, scores, *rest)
        return self.decode(lengths.unsqueeze(0), False, lengths, scores, *rest)[0]

    def sample(self, lengths: Tensor, scores: Tensor, *rest: Any) -> Tensor:
        """Independent samples ``[count, B, n]``, the same for the same seeds on either device."""
        if not self._fits(scores):
            return self._cpu_sample(lengths, scores, *rest)
        *rest, count, generator = rest  # type: ignore[assignment]
        seeds = seed_tensor(count * len(lengths), generator).reshape(count, len(lengths))
        return self.decode(seeds.to(scores.device), True, lengths, scores, *rest)

    @torch.no_grad()
    def decode(
        self, seeds: Tensor, sample: bool, lengths: Tensor, scores: Tensor, *rest: Any
    ) -> Tensor:
        """The same by the GPU's kernels."""
        shape = (*seeds.shape, scores.shape[1] - self._root)
        found = torch.zeros(shape, dtype=torch.int64, device=scores.device)
        if found.numel():
            self._gpu(found, seeds, lengths, scores, *rest, sample)
        return found


def _is_plain(tensor: Tensor) -> bool:
    """Whether nobody but the kernel wants to see operators on this tensor."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and not torch._C._len_torch_dispatch_stack()


def _weighted(weights: Tensor, gradient: Tensor, rows: int) -> Tensor:
    """A gradient ``[B, …]`` times a weight per example; their sum ``[1, …]`` for shared scores."""
    if rows < gradient.shape[0]:
        return (weights @ gradient.flatten(1)).reshape(1, *gradient.shape[1:])
    return weights.reshape(-1, *[1] * (gradient.dim() - 1)) * gradient


def subtract_parts(
    found: tuple[Tensor, ...], scores: Sequence[Tensor], target: Expected
) -> tuple[Tensor, ...]:
    """Loss and gradients of a kernel that left dense expected parts to torch."""
    if not target.parts:
        return found
    log_z, *gradients = found
    loss = log_z.masked_fill(log_z == -math.inf, math.inf)  # the model forbids every output
    for part, score in zip(target.parts, scores, strict=True):
        loss = loss - inner(part, score.expand(part.shape), range(1, part.dim()))
    return loss, *map(torch.sub, gradients, target.parts)


def by_autograd(
    reference: Callable[..., Tensor],
    lengths: Tensor,
    scores: Sequence[Tensor],
    target: Expected,
    *flags: bool,
) -> tuple[Tensor, ...]:
    """Loss and gradients by autograd of the reference, where a GPU has no room for a kernel."""
    if target.outputs is not None and len(lengths):
        raise NotImplementedError(
            "a target of outputs needs a kernel: `Recursion.has_kernel` tells where there is one"
        )
    with _autograd_in_operator():
        found = _differentiate(reference, lengths, [score.double() for score in scores], flags)
    found = tuple(each.detach().to(scores[0].dtype) for each in found)
    return subtract_parts(found, scores, target)


def _differentiate(
    reference: Callable[..., Tensor],
    lengths: Tensor,
    scores: Sequence[Tensor],
    flags: tuple[bool, ...],
) -> tuple[Tensor, ...]:
    """Log Z and marginals, both differentiable, by autograd of the reference."""
    each = [score.expand(len(lengths), *score.shape[1:]) for score in scores]
    log_z, pullback, *_ = torch.func.vjp(lambda *s: reference(lengths, *s, *flags), *each)
    return log_z, *pullback(torch.ones_like(log_z))


def _autograd_in_operator() -> Any:
    """Autograd switched on: torch switches it off for the thread in which an operator runs."""
    return torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
