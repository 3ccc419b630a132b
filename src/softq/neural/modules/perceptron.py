"""Feed-forward classifiers with rectified hidden layers (§4.1.1).

One as a module, many as one grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from softq.kernels import perceptrons
from softq.spaces import Categorical


def first_weights(sizes: Sequence[int], seed: int) -> Tensor:
    """Parameters ``[P]`` to start from.

    Uniform in ±1/√inputs of each layer, as in `torch.nn.Linear`.

    >>> first_weights((2, 8, 8, 4), seed=0).shape
    torch.Size([132])
    """
    generator = torch.Generator().manual_seed(seed)
    layers = [
        (torch.rand(before * after + after, generator=generator) * 2 - 1) / before**0.5
        for before, after in pairwise(sizes)
    ]
    return torch.cat(layers)


class Perceptron(nn.Module):
    """A classifier: inputs ``[*B, D]`` to a `Categorical` over K classes.

    >>> Perceptron((2, 8, 8, 4), seed=0)(torch.zeros(5, 2)).mode().shape
    torch.Size([5])
    """

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(sizes))
        with torch.no_grad():
            nn.utils.vector_to_parameters(first_weights(sizes, seed), self.parameters())

    def forward(self, inputs: Tensor) -> Categorical:
        """The distribution over classes of each input."""
        *hidden, last = self.layers
        for layer in hidden:
            inputs = torch.relu(layer(inputs))
        return Categorical(last(inputs))


class PerceptronGrid:
    """Perceptrons of one shape that are trained on the same inputs in the same order, each with targets of its own.

    Args:
        sizes: inputs, hidden units of each layer, classes.
        seeds: of the first weights of each network.
        targets: ``[M, U, K]``: for each network, the target row of each pattern of references.
        scales: ``[M]``: τ where the loss is temperature-scaled, else 1.
        device: where.

    """

    def __init__(
        self,
        sizes: Sequence[int],
        seeds: Sequence[int],
        targets: Tensor,
        scales: Tensor,
        device: torch.device,
    ) -> None:
        self.sizes = tuple(sizes)
        first = {seed: first_weights(self.sizes, seed) for seed in set(seeds)}
        self.networks = torch.stack([first[seed] for seed in seeds]).to(device)  # [M, P]
        self.velocity = torch.zeros_like(self.networks)
        self.total = torch.zeros_like(self.networks)  # sum over the steps of an epoch
        self._targets, self._scales = targets.to(device), scales.to(device)

    def train_steps(
        self,
        inputs: Tensor,
        patterns: Tensor,
        active: Tensor,
        *,
        batch_size: int,
        learning_rate: float,
        momentum: float,
    ) -> Tensor:
        """A step per batch of inputs ``[N, D]`` for the networks numbered in ``active``.

        Their mean cross-entropies ``[A, steps]``.
        """
        everyone = len(active) == len(self.networks)
        changed = self.networks, self.velocity, self.total
        *state, targets, scales = (
            part if everyone else part[active] for part in (*changed, self._targets, self._scales)
        )
        losses = perceptrons.train_steps(
            *state,
            sizes=self.sizes,
            inputs=inputs,
            patterns=patterns,
            targets=targets,
            scales=scales,
            batch_size=batch_size,
            learning_rate=learning_rate,
            momentum=momentum,
        )
        if not everyone:
            for whole, part in zip(changed, state, strict=True):
                whole[active] = part
        return losses
