"""The loss of each sentence of a batch: H(target, model) for what is known of its words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from softq.numerics import length_mask
from softq.objectives import cross_entropy
from softq.rewards import PartReward
from softq.spaces import Distribution
from softq.targets import ObjectiveName, target_of

Rows = Tensor | slice
Distributions = Callable[[Rows], tuple[Distribution, Distribution]]
"""Of rows of a batch: the distribution to train, and what its targets are distributions over."""


@dataclass(frozen=True)
class WordLosses(ABC):
    """Losses of sentences. A subclass says what each kind of knowledge of a sentence asks for.

    Attributes:
        objective: ML, RAML or SQDML.
        tau: temperature of the latter two.
        reward: over parts of an output; the natural one if None.

    """

    objective: ObjectiveName
    tau: float | None = None
    reward: PartReward | None = None

    kinds: ClassVar[tuple[str, ...]]
    """Entries of the targets of a batch."""

    def __call__(
        self, model: Any, scores: Any, lengths: Tensor, targets: Mapping[str, Any]
    ) -> Tensor:
        """A number for each sentence, ``[B]``."""
        found = []
        for kind in self.kinds:
            if kind in targets:
                rows = targets[kind]["rows"]
                some = self.take(scores, rows)
                found.append((rows, self.of(kind, model, some, lengths[rows], targets[kind])))
        return _in_order(found)

    def take(self, scores: Any, rows: Rows) -> Any:
        """Scores of some rows."""
        return scores[rows]

    @abstractmethod
    def of(
        self, kind: str, model: Any, scores: Any, lengths: Tensor, part: Mapping[str, Any]
    ) -> Tensor:
        """Losses of sentences of which the same kind of thing is known."""

    def toward(
        self,
        distributions: Distributions,
        values: Tensor,
        weights: Tensor,
        by_model: Tensor | None = None,
    ) -> Tensor:
        """Toward the target of the objective; see `softq.targets`.

        Args:
            distributions: of rows.
            values: references, ``[b, R, …]``.
            weights: of the references, ``[b, R]``.
            by_model: rows whose target has the model as its prior, ``[b]``; None: no row.

        """
        if by_model is None:
            return self._loss(*distributions(slice(None)), values, weights, prior=False)
        found = []
        for prior, which in ((False, ~by_model), (True, by_model)):
            rows = which.nonzero()[:, 0]
            if len(rows):
                both = distributions(rows)
                found.append((rows, self._loss(*both, values[rows], weights[rows], prior=prior)))
        return _in_order(found)

    def _loss(
        self, p: Distribution, space: Distribution, values: Tensor, weights: Tensor, *, prior: bool
    ) -> Tensor:
        # one reference needs no weight, and weights are looked at
        options: dict[str, Any] = {"ref_weights": weights} if weights.shape[1] > 1 else {}
        if prior:
            options["prior"] = p
        target = target_of(self.objective, space, values, self.tau, self.reward, **options)
        return cross_entropy(target, p)


def unlabelled(labelled: Tensor, lengths: Tensor) -> Tensor:
    """Which sentences have a word that no annotator labelled, ``[b]``; ``labelled [b, R, n]``."""
    return (length_mask(lengths, labelled.shape[2]) & ~labelled.any(1)).any(-1)


def _in_order(found: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Numbers of rows and their losses as the losses of all rows, ``[B]``."""
    rows, losses = (torch.cat(parts) for parts in zip(*found, strict=True))
    return losses[rows.argsort()]
