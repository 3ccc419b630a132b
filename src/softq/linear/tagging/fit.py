"""Training a feature CRF: what to train toward, and two ways to get there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.formats.tags import Scheme
from softq.kernels.features import crf as kernels
from softq.linear.features import FeatureMatrix
from softq.linear.tagging.objective import CRFObjective, Layout, seen_layout
from softq.linear.tagging.target import (
    Constraints,
    CorpusTarget,
    Forbidden,
    References,
    corpus_target,
)
from softq.rewards import PartReward
from softq.targets import ObjectiveName

Array = np.ndarray[Any, Any]

_ROUNDING = 1e-6  # of counts that are sums of weights


@dataclass(frozen=True)
class CRFSettings:
    """What a feature CRF is trained toward.

    Attributes:
        labels: K label names.
        objective: ML, RAML or SQDML.
        tau: temperature of the latter two.
        reward: over labels; token accuracy if None.
        scheme: tag scheme of the labels, None where they are no entity tags.
        constraints: where sequences that break it are forbidden.
        c2: penalty.
        all_states: weights for all pairs of features and labels, not only for those a reference shows.
        all_transitions: likewise for pairs of labels.
        min_freq: pairs of features and labels, or of labels, that references show less often have no weight; as in CRFsuite a feature
            counts by its value, and with 0 one of the value 0 counts, too.

    """

    labels: tuple[str, ...]
    objective: ObjectiveName = "ml"
    tau: float | None = None
    reward: PartReward | None = None
    scheme: Scheme | None = None
    constraints: Constraints = "none"
    c2: float = 1.0
    all_states: bool = False
    all_transitions: bool = True
    min_freq: float = 1.0

    def target(self, references: References) -> CorpusTarget:
        """The exact target of sentences with these references."""
        forbidden = Forbidden.by(
            self.scheme if self.constraints in ("target", "model") else None, self.labels
        )
        return corpus_target(self.objective, references, forbidden, self.tau, self.reward)

    @property
    def forbidden(self) -> Forbidden:
        """What the model forbids in training."""
        return Forbidden.by(self.scheme if self.constraints == "model" else None, self.labels)

    @property
    def decoding_scheme(self) -> Scheme | None:
        """The scheme that decoding keeps to."""
        return None if self.constraints == "none" else self.scheme

    def whole(
        self, matrix: FeatureMatrix, references: References, columns: kernels.Columns | None = None
    ) -> CRFObjective:
        """The objective over a corpus; ``columns`` is the transposed matrix where the caller has it already."""
        columns = columns or kernels.transpose(
            matrix.offsets, matrix.indices, matrix.values, matrix.size
        )
        counted, counted_columns = matrix, columns
        if self.min_freq == 0:  # then a feature counts that a token names, even with the value 0
            counted, counted_columns = matrix._replace(values=None), columns._replace(values=None)
        layout = seen_layout(
            counted,
            references,
            len(self.labels),
            all_states=self.all_states,
            all_transitions=self.all_transitions,
            min_freq=self.min_freq,
            columns=counted_columns,
        )
        if self.min_freq > 1 and not self.all_transitions:
            seen = corpus_target("ml", references, Forbidden.by(None, self.labels)).pairs
            layout = layout._replace(
                transitions=torch.from_numpy(np.flatnonzero(seen > self.min_freq - _ROUNDING))
            )
        return CRFObjective(
            matrix,
            self.target(references),
            layout,
            c2=self.c2,
            forbidden=self.forbidden,
            columns=columns,
        )


class AdaGrad:
    """Stochastic gradient descent with a step size per weight (Duchi, Hazan and Singer 2011), a batch of sentences at a time.

    It needs the features of one batch at a time, and touches no weights but those of its features. Every feature has a weight with every
    label (``all_states``, ``all_transitions`` and ``min_freq`` of the settings do not matter). The penalty of a feature's weights
    is divided among the batches that have the feature, so that an epoch adds up to the objective of `CRFObjective`.
    """

    def __init__(self, settings: CRFSettings, features: int, learning_rate: float) -> None:
        """Begin with weights of 0."""
        labels = len(settings.labels)
        self._settings, self._rate = settings, learning_rate
        self.weights = np.zeros((features, labels), np.float32)
        self.transitions = np.zeros((labels, labels), np.float32)
        self._squares = np.zeros_like(self.weights)
        self._transition_squares = np.zeros_like(self.transitions)
        self._batches_with = np.zeros(features, np.int32)
        self._batches = 0

    def count(self, matrix: FeatureMatrix) -> None:
        """Note the features of a batch; every batch must have been noted before the first step."""
        self._batches_with[np.unique(matrix.indices)] += 1
        self._batches += 1

    def step(self, matrix: FeatureMatrix, references: References) -> float:
        """One step; returns the cross-entropy of the batch before it, summed over its sentences."""
        used, indices = np.unique(matrix.indices, return_inverse=True)
        local = matrix._replace(indices=indices.astype(np.int32), size=len(used))
        labels = len(self._settings.labels)
        layout = Layout(len(used), labels, None, None)
        objective = CRFObjective(
            local,
            self._settings.target(references),
            layout,
            c2=0.0,
            forbidden=self._settings.forbidden,
        )
        parameters = torch.from_numpy(
            np.concatenate([self.weights[used].reshape(-1), self.transitions.reshape(-1)])
        )
        gradient = torch.empty_like(parameters)
        loss = objective(parameters, gradient)
        slopes = gradient.numpy()
        states, pairs = (
            slopes[: len(used) * labels].reshape(-1, labels),
            slopes[len(used) * labels :].reshape(labels, labels),
        )
        c2 = self._settings.c2
        states = states + 2 * c2 / self._batches_with[used, None] * self.weights[used]
        pairs = pairs + 2 * c2 / self._batches * self.transitions
        self._squares[used] += states**2
        self._transition_squares += pairs**2
        self.weights[used] -= self._rate * states / (np.sqrt(self._squares[used]) + 1e-8)
        self.transitions -= self._rate * pairs / (np.sqrt(self._transition_squares) + 1e-8)
        return loss

    def unpack(self) -> tuple[Array, Array]:
        """Weights and transitions as `softq.linear.tagging.Tagger` has them."""
        padded = np.zeros(kernels.padded(self.weights.size), np.float32)
        padded[: self.weights.size] = self.weights.reshape(-1)
        return padded, self.transitions.astype(np.float64)

    def state(self) -> dict[str, Tensor]:
        """Everything `step` goes on from."""
        arrays = {name: getattr(self, name) for name in _ADAGRAD}
        return {name.strip("_"): torch.from_numpy(array) for name, array in arrays.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there; batches must be counted again."""
        for name in _ADAGRAD:
            setattr(self, name, state[name.strip("_")].numpy().copy())


_ADAGRAD: Sequence[str] = ("weights", "transitions", "_squares", "_transition_squares")
