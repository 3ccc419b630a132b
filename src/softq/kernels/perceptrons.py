"""A grid of small classifiers that see the same inputs and differ in targets and first weights, trained as one.

The paper's first experiment (§4.1.1) is such a grid: objective × temperature × seed, each a perceptron 2-8-8-4 with rectified
hidden layers. A network is one row of parameters: for each layer its weights ``[out, in]`` row by row, then its biases ``[out]``
(the order and shapes of `torch.nn.Linear`). What an input asks of a network depends on its references alone, and few different
sets of them occur: inputs carry the number of theirs, their *pattern*, and each network has a table of targets by pattern.

On the CPU compiled code takes each network through all steps while it stays in the cache, on a GPU one program does. These are for
float32: on the CPU up to 128 units to a layer, where they are twice as fast as plain torch (at 8 units fifteen times; at 256 they are
even), on a GPU up to 256 parameters to a network, as many as a lane has registers. Beyond, for float64, and under
``softq.backend("reference")``, batched matrix products in torch do the work. In the fast paths a network's numbers depend neither on
the other networks of the grid nor on the number of threads.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType

import torch
from torch import Tensor

from softq.checks import check_classes, check_scores_dtype
from softq.errors import DtypeError, ScoreError, ShapeError, TemperatureError
from softq.kernels import perceptrons_cpu
from softq.kernels.backend import current_backend

_INPUTS_AT_ONCE = 4096  # that the plain path takes through all networks to reach decisions


def parameter_count(sizes: Sequence[int]) -> int:
    """Parameters of one network with layers of these sizes: inputs, hidden units of each layer, classes.

    >>> parameter_count((2, 8, 8, 4))
    132
    """
    return sum(before * after + after for before, after in pairwise(_check_sizes(sizes)))


def train_steps(
    networks: Tensor,
    velocity: Tensor,
    total: Tensor | None,
    *,
    sizes: Sequence[int],
    inputs: Tensor,
    patterns: Tensor,
    targets: Tensor,
    scales: Tensor,
    batch_size: int,
    learning_rate: float,
    momentum: float,
) -> Tensor:
    """Train every network on every batch of inputs, in order; ``networks``, ``velocity`` and ``total`` are changed in place.

    The loss of network m is the mean over the batch of s² · H(t, softmax(z / s)) with logits z and s = ``scales[m]``: s = 1 is
    plain cross-entropy, s = τ that of ``softq.cross_entropy(..., temperature_scaled=True)``. Its gradient with respect to z is
    s · (softmax(z / s) - t) / batch, and is computed without cancellation however close to uniform both are. The step is that
    of `torch.optim.SGD`: v ← momentum · v + gradient, parameters ← parameters - learning_rate · v. Two calls on two stretches of
    inputs do what one call on both does, bit for bit, if the first stretch is a whole number of batches.

    Args:
        networks: parameters ``[M, P]``, float32 (or float64, by the plain path); contiguous.
        velocity: momentum ``[M, P]``, zeros at first.
        total: ``[M, P]``; after each step the new parameters are added to it (divided by the steps: the mean network). None: unwanted.
        sizes: inputs D, hidden units of each layer, classes K.
        inputs: ``[N, D]`` in the order in which they are visited.
        patterns: ``[N]`` int32 (or int64), rows of the table of targets.
        targets: ``[M, U, K]``, a probability distribution in each row; float64 keeps what float32 loses at large s.
        scales: ``[M]``, positive.
        batch_size: inputs per step; the last batch may be smaller.
        learning_rate: positive.
        momentum: at least 0 and below 1.

    Returns:
        ``[M, steps]`` float32: mean H(t, softmax(z / s)) of each batch before its step, not multiplied by s². A network that
        diverges has NaN there and leaves the others alone.

    >>> networks, velocity = torch.zeros(1, 6), torch.zeros(1, 6)  # one input unit, three classes, no hidden layer
    >>> x, pattern = torch.ones(4, 1), torch.zeros(4, dtype=torch.int32)
    >>> target = torch.tensor([[[0.5, 0.5, 0.0]]])
    >>> options = {"batch_size": 2, "learning_rate": 1.0, "momentum": 0.0}
    >>> train_steps(networks, velocity, None, sizes=(1, 3), inputs=x, patterns=pattern, targets=target, scales=torch.ones(1), **options)
    tensor([[1.0986, 0.8620]])

    """
    sizes = _check_sizes(sizes)
    _check_networks("networks", networks, sizes, contiguous=True)
    for name, other in (("velocity", velocity), ("total", total)):
        if other is not None:
            _check_networks(name, other, sizes, contiguous=True)
            _check_alike(name, other, networks)
            if other.shape != networks.shape:
                raise ShapeError(f"{name} must have the shape of networks, {list(networks.shape)}, got {list(other.shape)}")
    _check_inputs(inputs, networks, sizes)
    patterns = _check_patterns(patterns, inputs)
    _check_targets(targets, networks, sizes[-1])
    check_classes("pattern", patterns, targets.shape[1], None)
    _check_scales(scales, networks)
    _check_options(batch_size, learning_rate, momentum)
    networks, velocity = networks.detach(), velocity.detach()
    total = None if total is None else total.detach()
    kernels = _kernels(networks, sizes)
    train = _train_plainly if kernels is None else kernels.train_steps
    losses: Tensor = train(networks, velocity, total, sizes, inputs, patterns, targets, scales, batch_size, learning_rate, momentum)
    return losses


def logits(networks: Tensor, *, sizes: Sequence[int], inputs: Tensor) -> Tensor:
    """What every network answers to every input, ``[M, N, K]``; not differentiable.

    >>> logits(torch.tensor([[2.0, -1.0, 0.5, 0.0]]), sizes=(1, 2), inputs=torch.tensor([[1.0], [3.0]])).tolist()
    [[[2.5, -1.0], [6.5, -3.0]]]
    """
    networks, sizes, inputs = _check_forward(networks, sizes, inputs)
    kernels = _kernels(networks, sizes)
    answers: Tensor = _logits_plainly(networks, sizes, inputs) if kernels is None else kernels.logits(networks, sizes, inputs)
    return answers


def decisions(networks: Tensor, *, sizes: Sequence[int], inputs: Tensor) -> Tensor:
    """Class of the largest logit, the first of equals, for every network and input: ``[M, N]`` uint8, so K ≤ 256."""
    networks, sizes, inputs = _check_forward(networks, sizes, inputs)
    if sizes[-1] > 256:
        raise ShapeError(f"decisions are bytes, so there can be at most 256 classes, got {sizes[-1]}; take logits(...).argmax(-1)")
    kernels = _kernels(networks, sizes)
    if kernels is not None:
        decided: Tensor = kernels.decisions(networks, sizes, inputs)
        return decided
    decided = torch.empty(networks.shape[0], inputs.shape[0], dtype=torch.uint8, device=networks.device)
    for start in range(0, inputs.shape[0], _INPUTS_AT_ONCE):
        rows = slice(start, start + _INPUTS_AT_ONCE)
        decided[:, rows] = _logits_plainly(networks, sizes, inputs[rows]).argmax(-1)
    return decided


def mean_earned(networks: Tensor, *, sizes: Sequence[int], inputs: Tensor, earned: Tensor) -> Tensor:
    """Mean over the inputs of what each network's decision earns, ``[M]`` float64; nothing of size M × N is held.

    Args:
        networks: parameters ``[M, P]``.
        sizes: inputs D, hidden units of each layer, classes K.
        inputs: ``[N, D]``, at least one.
        earned: ``[N, K]``, what deciding class k for input n earns: r(k, y_n) for one reference each, E[r(k, Y) | x_n] for a known P(y|x).

    >>> networks = torch.tensor([[1.0, -1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0]])  # sign of x, and the opposite
    >>> x = torch.tensor([[-2.0], [1.0], [3.0], [4.0]])
    >>> mean_earned(networks, sizes=(1, 2), inputs=x, earned=torch.tensor([[0.0, 5.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]))
    tensor([2., 0.], dtype=torch.float64)

    """
    networks, sizes, inputs = _check_forward(networks, sizes, inputs)
    check_scores_dtype("earned", earned)
    if earned.shape != (inputs.shape[0], sizes[-1]) or not inputs.shape[0]:
        raise ShapeError(f"earned must be [N, K] = [{inputs.shape[0]}, {sizes[-1]}] with N >= 1, got {list(earned.shape)}")
    _check_alike("earned", earned, networks, dtype=False)
    kernels = _kernels(networks, sizes)
    if kernels is not None:
        mean: Tensor = kernels.mean_earned(networks, sizes, inputs, earned)
        return mean
    summed = torch.zeros(networks.shape[0], dtype=torch.float64, device=networks.device)
    for start in range(0, inputs.shape[0], _INPUTS_AT_ONCE):
        rows = slice(start, start + _INPUTS_AT_ONCE)
        decided = _logits_plainly(networks, sizes, inputs[rows]).argmax(-1)  # [M, rows]
        summed += earned[rows].double().T.gather(0, decided).sum(1)
    return summed / inputs.shape[0]


# --- the plain path ---------------------------------------------------------------------------------------------------


def _train_plainly(
    networks: Tensor,
    velocity: Tensor,
    total: Tensor | None,
    sizes: tuple[int, ...],
    inputs: Tensor,
    patterns: Tensor,
    targets: Tensor,
    scales: Tensor,
    batch_size: int,
    learning_rate: float,
    momentum: float,
) -> Tensor:
    """`train_steps` by batched matrix products and autograd."""
    targets, scale = targets.double(), scales.double()
    losses = torch.empty(networks.shape[0], -(-inputs.shape[0] // batch_size), device=networks.device)
    for step in range(losses.shape[1]):
        rows = slice(step * batch_size, (step + 1) * batch_size)
        with torch.enable_grad():
            leaf = networks.detach().requires_grad_()
            answers = _logits_plainly(leaf, sizes, inputs[rows])
            # float64, because at large s softmax and target agree in most of float32's digits
            log_probs = torch.log_softmax(answers.double() / scale[:, None, None], -1)
            loss = -(targets[:, patterns[rows]] * log_probs).sum(-1).mean(-1)  # [M]
            (gradient,) = torch.autograd.grad((scale**2 * loss).sum(), leaf)
        velocity.mul_(momentum).add_(gradient)
        networks.sub_(velocity, alpha=learning_rate)
        if total is not None:
            total.add_(networks)
        losses[:, step] = loss.detach()
    return losses


def _logits_plainly(networks: Tensor, sizes: tuple[int, ...], inputs: Tensor) -> Tensor:
    """Forward pass of all networks, ``[M, N, K]``, by batched matrix products."""
    values = inputs.expand(networks.shape[0], -1, -1)  # [M, N, D]
    first = 0
    for layer, (before, after) in enumerate(pairwise(sizes)):
        weight = networks[:, first : first + after * before].reshape(-1, after, before)
        bias = networks[:, first + after * before : first + after * before + after].unsqueeze(1)
        values = torch.baddbmm(bias, values if layer == 0 else values.relu(), weight.mT)
        first += after * before + after
    return values


# --- which path, and checks --------------------------------------------------------------------------------------------


def _kernels(networks: Tensor, sizes: tuple[int, ...]) -> ModuleType | None:
    """The module of fast kernels that fits these networks, or None: then run plainly."""
    if current_backend() == "reference" or networks.dtype != torch.float32:
        return None
    if networks.is_cpu:
        return perceptrons_cpu if max(sizes) <= perceptrons_cpu.WIDEST else None
    if networks.is_cuda and importlib.util.find_spec("triton") is not None:
        from softq.kernels import perceptrons_gpu  # Triton is only there with a GPU

        return perceptrons_gpu if parameter_count(sizes) <= perceptrons_gpu.MOST_PARAMETERS else None
    return None


def _check_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(sizes)
    if len(sizes) < 2 or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ShapeError(f"sizes must be inputs, hidden units of each layer and classes, as in (2, 8, 8, 4), got {sizes}")
    return sizes


def _check_networks(name: str, networks: Tensor, sizes: tuple[int, ...], *, contiguous: bool = False) -> None:
    check_scores_dtype(name, networks)
    expected = parameter_count(sizes)
    if networks.dim() != 2 or networks.shape[1] != expected:
        raise ShapeError(f"{name} must be [M, {expected}], one row of parameters for each network {sizes}, got {list(networks.shape)}")
    if contiguous and not networks.is_contiguous():
        raise ShapeError(f"{name} is changed in place and must be contiguous; pass {name}.contiguous() and keep it")


def _check_alike(name: str, other: Tensor, networks: Tensor, *, dtype: bool = True) -> None:
    if dtype and other.dtype != networks.dtype:
        raise DtypeError(f"{name} must be of the type of networks, {networks.dtype}, got {other.dtype}")
    if other.device != networks.device:
        raise DtypeError(f"{name} must be on the device of networks, {networks.device}, got {other.device}")


def _check_inputs(inputs: Tensor, networks: Tensor, sizes: tuple[int, ...]) -> None:
    check_scores_dtype("inputs", inputs)
    _check_alike("inputs", inputs, networks)
    if inputs.dim() != 2 or inputs.shape[1] != sizes[0]:
        raise ShapeError(f"inputs must be [N, {sizes[0]}], got {list(inputs.shape)}")
    if not bool(torch.isfinite(inputs).all()):
        place = tuple(torch.nonzero(~torch.isfinite(inputs))[0].tolist())
        raise ScoreError(f"inputs must be finite, got {float(inputs[place])} at index {place}")


def _check_forward(networks: Tensor, sizes: Sequence[int], inputs: Tensor) -> tuple[Tensor, tuple[int, ...], Tensor]:
    sizes = _check_sizes(sizes)
    _check_networks("networks", networks, sizes)
    _check_inputs(inputs, networks, sizes)
    return networks.detach(), sizes, inputs.detach()


def _check_patterns(patterns: Tensor, inputs: Tensor) -> Tensor:
    if not isinstance(patterns, Tensor) or patterns.dtype not in (torch.int32, torch.int64):
        got = patterns.dtype if isinstance(patterns, Tensor) else type(patterns).__name__
        raise DtypeError(f"patterns must be an int32 tensor, got {got}")
    _check_alike("patterns", patterns, inputs, dtype=False)
    if patterns.shape != inputs.shape[:1]:
        raise ShapeError(f"patterns must be [{inputs.shape[0]}], one for each input, got {list(patterns.shape)}")
    return patterns


def _check_targets(targets: Tensor, networks: Tensor, classes: int) -> None:
    check_scores_dtype("targets", targets)
    _check_alike("targets", targets, networks, dtype=False)
    if targets.dim() != 3 or targets.shape[0] != networks.shape[0] or targets.shape[2] != classes:
        raise ShapeError(f"targets must be [M, U, K] = [{networks.shape[0]}, U, {classes}], got {list(targets.shape)}")
    if bool((~(targets >= 0)).any()) or bool(((targets.sum(-1) - 1.0).abs() > 1e-5).any()):
        raise ScoreError("each row of targets must be a probability distribution: not negative, summing to one")


def _check_scales(scales: Tensor, networks: Tensor) -> None:
    check_scores_dtype("scales", scales)
    _check_alike("scales", scales, networks, dtype=False)
    if scales.shape != networks.shape[:1]:
        raise ShapeError(f"scales must be [{networks.shape[0]}], one for each network, got {list(scales.shape)}")
    if bool((~((scales > 0) & (scales < math.inf))).any()):
        raise TemperatureError("scales must be positive and finite: 1 for plain cross-entropy, tau for a scaled one")


def _check_options(batch_size: int, learning_rate: float, momentum: float) -> None:
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ShapeError(f"batch_size must be a positive integer, got {batch_size!r}")
    if not 0.0 < learning_rate < math.inf:
        raise ScoreError(f"learning_rate must be positive and finite, got {learning_rate}")
    if not 0.0 <= momentum < 1.0:
        raise ScoreError(f"momentum must be at least 0 and below 1, got {momentum}")
