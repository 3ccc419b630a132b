"""Training a feature CRF: what to train toward, and two ways to get there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.formats.tags import Scheme
from softq.kernels.features import crf as kernels
from softq.linear.features import AttributeIndex, FeatureMatrix, TemplateIndex
from softq.linear.tagging.model import Tagger
from softq.linear.tagging.objective import CRFObjective, Layout, seen_layout
from softq.linear.tagging.target import (
    CorpusTarget,
    Forbidden,
    References,
    corpus_target,
)
from softq.linear.training import Batches, NotFiniteError, Search, Stopping
from softq.options import Constraints, ObjectiveName
from softq.rewards import PartReward

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
        all_states: weights for all pairs of features and labels, not only for those a reference
            shows.
        all_transitions: likewise for pairs of labels.
        min_freq: pairs of features and labels, or of labels, that references show less often have
            no weight; as in CRFsuite a feature counts by its value, and with 0 one of the value 0
            counts, too.

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

    def tagger(
        self, index: TemplateIndex | AttributeIndex, weights: Array, transitions: Array
    ) -> Tagger:
        """The tagger with these weights."""
        return Tagger(index, self.labels, weights, transitions, self.decoding_scheme)

    def whole(
        self, matrix: FeatureMatrix, references: References, columns: kernels.Columns | None = None
    ) -> CRFObjective:
        """The objective over a corpus.

        ``columns`` is the transposed matrix where the caller has it already.
        """
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


class SearchFit:
    """L-BFGS over all sentences, or OWL-QN with a penalty ``c1``.

    One epoch, a step for each iteration.
    """

    def __init__(
        self,
        settings: CRFSettings,
        index: TemplateIndex | AttributeIndex,
        objective: Callable[[], CRFObjective],
        stopping: Stopping,
        *,
        memory: int = 8,
        c1: float = 0.0,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """``objective`` makes it when the first step asks for it."""
        self._settings, self._index, self._make = settings, index, objective
        self._stopping = stopping
        self._options: dict[str, Any] = {"memory": memory, "c1": c1, "tell": tell}
        self.steps = stopping.max_iterations

    @cached_property
    def objective(self) -> CRFObjective:
        """What is minimised."""
        return self._make()

    @cached_property
    def search(self) -> Search:
        """The search for its minimum."""
        size, entropy = self.objective.layout.size, self.objective.target.entropy
        return Search(size, self.objective, self._stopping, entropy=entropy, **self._options)

    @property
    def over(self) -> bool:
        """Whether the search has ended."""
        return self.search.over

    def step(self, epoch: int, step: int) -> None:
        """One iteration."""
        self.search.iterate()

    def end_epoch(self) -> dict[str, float]:
        """Cross-entropy and KL to the target, summed over sentences, and how far the search got."""
        self.objective(self.search.point, torch.empty_like(self.search.point))
        found = {"loss": self.objective.cross_entropy, "kl": self.objective.kl}
        size = float(self.objective.layout.size)
        return found | self.search.measures() | {"parameters": size}

    def model(self) -> Tagger:
        """The tagger as it is."""
        weights = self.objective.layout.unpack(self.search.point)
        return self._settings.tagger(self._index, *weights)

    def state(self) -> dict[str, Tensor]:
        """The state of the search."""
        return self.search.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        self.search.load_state(state)


class BatchFit:
    """AdaGrad (Duchi, Hazan and Singer 2011), a batch of sentences at a time.

    It needs the features of one batch at a time, and touches no weights but those of its features.
    Every feature has a weight with every label (``all_states``, ``all_transitions`` and
    ``min_freq`` of the settings do not matter). The penalty of a feature's weights is divided among
    the batches that have the feature, so that an epoch adds up to the objective of `CRFObjective`.

    Attributes:
        losses: cross-entropy of each epoch, of each batch before its step.

    """

    over = False

    def __init__(
        self,
        settings: CRFSettings,
        index: TemplateIndex | AttributeIndex,
        features: Callable[[Array], FeatureMatrix],
        references: References,
        batches: Batches,
        learning_rate: float,
    ) -> None:
        """Start from weights of 0; every epoch has the same batches, in another order."""
        self._settings, self._index, self._rate = settings, index, learning_rate
        self._features, self._references = features, references
        self._batches = lru_cache(maxsize=1)(batches)
        labels = len(settings.labels)
        self.weights = np.zeros((index.size, labels), np.float32)
        self.transitions = np.zeros((labels, labels), np.float32)
        self._squares = np.zeros_like(self.weights)
        self._transition_squares = np.zeros_like(self.transitions)
        self._batches_with = np.zeros(index.size, np.int32)
        for batch in self._batches(0):
            self._batches_with[np.unique(features(batch).indices)] += 1
        self.steps = len(self._batches(0))
        self.losses: list[float] = []
        self._loss = 0.0

    def step(self, epoch: int, step: int) -> None:
        """One batch."""
        batch = self._batches(epoch)[step]
        matrix = self._features(batch)
        used, indices = np.unique(matrix.indices, return_inverse=True)
        local = matrix._replace(indices=indices.astype(np.int32), size=len(used))
        labels = len(self._settings.labels)
        objective = CRFObjective(
            local,
            self._settings.target(self._references.take(batch)),
            Layout(len(used), labels, None, None),
            c2=0.0,
            forbidden=self._settings.forbidden,
        )
        parameters = torch.from_numpy(
            np.concatenate([self.weights[used].reshape(-1), self.transitions.reshape(-1)])
        )
        gradient = torch.empty_like(parameters)
        loss = objective(parameters, gradient)
        states, pairs = np.split(gradient.numpy(), [len(used) * labels])
        c2 = self._settings.c2
        states = states.reshape(-1, labels)
        states = states + 2 * c2 / self._batches_with[used, None] * self.weights[used]
        pairs = pairs.reshape(labels, labels) + 2 * c2 / self.steps * self.transitions
        self._squares[used] += states**2
        self._transition_squares += pairs**2
        self.weights[used] -= self._rate * states / (np.sqrt(self._squares[used]) + 1e-8)
        self.transitions -= self._rate * pairs / (np.sqrt(self._transition_squares) + 1e-8)
        self._loss += loss
        if not np.isfinite(self._loss):
            raise NotFiniteError(
                f"in epoch {epoch + 1} the loss is {self._loss}", {"weights": self.weights}
            )

    def end_epoch(self) -> dict[str, float]:
        """Cross-entropy, summed over sentences."""
        self.losses.append(self._loss)
        self._loss = 0.0
        return {"loss": self.losses[-1]}

    def model(self) -> Tagger:
        """The tagger as it is."""
        padded = np.zeros(kernels.padded(self.weights.size), np.float32)
        padded[: self.weights.size] = self.weights.reshape(-1)
        return self._settings.tagger(self._index, padded, self.transitions.astype(np.float64))

    def state(self) -> dict[str, Tensor]:
        """Weights, step sizes and losses."""
        losses = torch.tensor([*self.losses, self._loss], dtype=torch.float64)
        arrays = {name.strip("_"): getattr(self, name) for name in _ADAGRAD}
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | {
            "losses": losses
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        for name in _ADAGRAD:
            setattr(self, name, state[name.strip("_")].numpy().copy())
        *self.losses, self._loss = state["losses"].tolist()


_ADAGRAD = ("weights", "transitions", "_squares", "_transition_squares")
