"""A grid of small classifiers that see the same inputs and differ in targets and first weights.

The paper's first experiment (§4.1.1) is such a grid: objective × temperature × seed, each a
perceptron 2-8-8-4 with rectified hidden layers. All networks of a grid are trained together. A
network is one row of parameters: for each layer its weights ``[out, in]`` row by row, then its
biases ``[out]`` (the order and shapes of `torch.nn.Linear`). The target of an input depends on its
references alone, and few different sets of them occur: each set is a *pattern*, inputs carry the
number of theirs, and each network has a table of targets by pattern.

`reference` is plain torch: batched matrix products. For float32 there are two fast paths. On the
CPU (`cpu`), compiled code takes each network through all steps while it stays in the cache. On a
GPU (`gpu`), one program does, for networks of up to 256 parameters: as many registers has a lane.
In both, a network's numbers depend neither on the other networks of the grid nor on the number of
threads.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import ModuleType

import torch
from torch import Tensor

from softq.checks import check_range
from softq.errors import ShapeError
from softq.kernels.backend import use_kernels
from softq.kernels.perceptrons import cpu, reference

# A lane of a GPU has as many registers, and code unrolled over more parameters takes minutes to
# compile.
MOST_PARAMETERS_ON_GPU = 256

_INPUTS_AT_ONCE = 1024  # whose logits are held at a time to reach decisions


def parameter_count(sizes: Sequence[int]) -> int:
    """Parameters of one network with layers of these sizes: inputs, hidden units, classes.

    >>> parameter_count((2, 8, 8, 4))
    132
    """
    return sum(before * after + after for before, after in pairwise(sizes))


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
    weight_decay: float = 0.0,
) -> Tensor:
    """Train every network on every batch of inputs, in order, in place.

    The loss of network m is the mean over the batch of s² · H(t, softmax(z / s)) with logits z and
    s = ``scales[m]``: s = 1 is plain cross-entropy, s = τ that of
    ``softq.cross_entropy(..., temperature_scaled=True)``. Its gradient with respect to z is
    s · (softmax(z / s) - t) / batch, and is computed without cancellation however close to uniform
    both are. The step is that of `torch.optim.SGD`: v ← momentum · v + gradient,
    parameters ← parameters - learning_rate · v. Two calls on two stretches of inputs do what one
    call on both does, bit for bit, if the first stretch is a whole number of batches.

    Args:
        networks: parameters ``[M, P]``, float32 (or float64, by the plain path); contiguous.
        velocity: momentum ``[M, P]``, zeros at first.
        total: ``[M, P]``; after each step the new parameters are added to it (divided by the steps:
            the mean network). None: unwanted.
        sizes: inputs D, hidden units of each layer, classes K.
        inputs: ``[N, D]`` in the order in which they are visited.
        patterns: ``[N]`` int32 (or int64), rows of the table of targets.
        targets: ``[M, U, K]``, a probability distribution in each row; float64 keeps what float32
            loses at large s.
        scales: ``[M]``, positive.
        batch_size: inputs per step; the last batch may be smaller.
        learning_rate: positive.
        momentum: at least 0 and below 1.
        weight_decay: times a weight is added to its derivative, as in `torch.optim.SGD`, but not
            to that of a bias: the L2 penalty weight_decay / 2 · Σ weight².

    Returns:
        ``[M, steps]`` float32: mean H(t, softmax(z / s)) of each batch before its step, not
        multiplied by s². A network that diverges has NaN there and leaves the others alone.

    >>> networks, velocity = torch.zeros(1, 6), torch.zeros(1, 6)  # one input unit, three classes
    >>> data = {"inputs": torch.ones(4, 1), "patterns": torch.zeros(4, dtype=torch.int32)}
    >>> data |= {"targets": torch.tensor([[[0.5, 0.5, 0.0]]]), "scales": torch.ones(1)}
    >>> options = {"batch_size": 2, "learning_rate": 1.0, "momentum": 0.0}
    >>> train_steps(networks, velocity, None, sizes=(1, 3), **data, **options)
    tensor([[1.0986, 0.8620]])

    """
    total = torch.zeros_like(networks) if total is None else total
    state = {"networks": networks, "velocity": velocity, "total": total}
    data = {"inputs": inputs, "patterns": patterns, "targets": targets, "scales": scales}
    _check_shapes(sizes, state | data)
    if not all(tensor.is_contiguous() for tensor in state.values()):
        raise ShapeError(f"{', '.join(state)} are changed in place and must be contiguous")
    check_range("pattern", patterns, targets.shape[1])
    losses = torch.empty(len(networks), -(-len(inputs) // batch_size), device=networks.device)
    written = [tensor.detach() for tensor in (*state.values(), losses)]
    rates = batch_size, learning_rate, momentum, weight_decay
    _path(networks, sizes).train_steps(*written, tuple(sizes), *data.values(), *rates)
    return losses


def decisions(networks: Tensor, *, sizes: Sequence[int], inputs: Tensor) -> Tensor:
    """Class of the largest logit, the first of equals: ``[M, N]`` uint8, so K ≤ 256."""
    if sizes[-1] > 256:
        raise ShapeError(f"decisions are bytes and hold at most 256 classes, got {sizes[-1]}")
    return torch.cat([part.byte() for part in _decide(networks, sizes, inputs)], 1)


def mean_earned(
    networks: Tensor, *, sizes: Sequence[int], inputs: Tensor, earned: Tensor
) -> Tensor:
    """Mean over the inputs of what each network's decision earns, ``[M]`` float64.

    Nothing of size M × N is held.

    Args:
        networks: parameters ``[M, P]``.
        sizes: inputs D, hidden units of each layer, classes K.
        inputs: ``[N, D]``, at least one.
        earned: ``[N, K]``, what deciding class k for input n earns: r(k, y_n) for one reference
            each, E[r(k, Y) | x_n] for a known P(y|x).

    >>> networks = torch.tensor([[1.0, -1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0]])  # opposites
    >>> inputs = torch.tensor([[-2.0], [1.0], [3.0], [4.0]])
    >>> earned = torch.tensor([[0.0, 5.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    >>> mean_earned(networks, sizes=(1, 2), inputs=inputs, earned=earned)
    tensor([2., 0.], dtype=torch.float64)

    """
    _check_shapes(sizes, {"inputs": inputs, "earned": earned})
    tables = torch.split(earned.double().T, _INPUTS_AT_ONCE, 1)  # [K, _INPUTS_AT_ONCE] each
    parts = zip(tables, _decide(networks, sizes, inputs), strict=True)
    sums = torch.stack([table.gather(0, decided).sum(1) for table, decided in parts])
    return sums.sum(0) / len(inputs)


def _decide(networks: Tensor, sizes: Sequence[int], inputs: Tensor) -> Iterator[Tensor]:
    """Decisions ``[M, _INPUTS_AT_ONCE]`` on some of the inputs after another."""
    _check_shapes(sizes, {"networks": networks, "inputs": inputs})
    path = _path(networks, sizes)
    for part in torch.split(inputs.detach(), _INPUTS_AT_ONCE):
        yield path.logits(networks.detach(), tuple(sizes), part).argmax(-1)


def _path(networks: Tensor, sizes: Sequence[int]) -> ModuleType:
    """The module whose `train_steps` and `logits` fit these networks."""
    if use_kernels() and networks.dtype == torch.float32:
        if networks.is_cpu and max(sizes) <= cpu.WIDEST:
            return cpu
        small = parameter_count(sizes) <= MOST_PARAMETERS_ON_GPU
        if networks.is_cuda and small and importlib.util.find_spec("triton") is not None:
            from softq.kernels.perceptrons import gpu  # Triton is only there with a GPU

            return gpu
    return reference


_SHAPES = {
    "networks": "MP",
    "velocity": "MP",
    "total": "MP",
    "inputs": "ND",
    "patterns": "N",
    "targets": "MUK",
    "scales": "M",
    "earned": "NK",
}


def _check_shapes(sizes: Sequence[int], tensors: dict[str, Tensor]) -> None:
    """Shapes fit together: compiled code would read and write what lies beside the tensors."""
    known = {"P": parameter_count(sizes), "D": sizes[0], "K": sizes[-1]}
    for name, tensor in tensors.items():
        letters, shape = _SHAPES[name], list(tensor.shape)
        pairs = zip(letters, shape, strict=False)
        if len(letters) != len(shape) or any(known.setdefault(a, n) != n for a, n in pairs):
            raise ShapeError(f"{name} must be [{', '.join(letters)}] with {known}, got {shape}")
