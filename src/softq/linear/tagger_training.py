"""Training a feature CRF: cross-entropy to the target of a corpus, plus penalties, and two ways down.

    f(θ) = Σ_x H(target(x), P_θ(·|x)) + c2 ‖θ‖²,    ∂f/∂θ = Σ_x (E_model[φ] - E_target[φ]) + 2 c2 θ

(appendix eq. 5-6, with the penalty as CRFsuite has it). θ holds a weight for each feature and label
and one for each two neighbouring labels; where unseen ones are left out, as CRFsuite does, only
those that occur with a reference are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.annotators.truth import Posterior
from softq.errors import ShapeError
from softq.formats.tags import Scheme
from softq.kernels.features import crf as kernels
from softq.linear.features import AttributeIndex, FeatureMatrix, TemplateIndex
from softq.linear.segment_tags import SegmentTags
from softq.linear.tagging import (
    Constraints,
    CorpusTarget,
    Forbidden,
    References,
    Tagger,
    corpus_target,
    segments_for,
    token_batches,
)
from softq.linear.training import Batches, NotFiniteError, Search, Stopping
from softq.rewards import PartReward
from softq.targets import ObjectiveName

__all__ = [
    "BatchFit",
    "CRFObjective",
    "CRFSettings",
    "Layout",
    "SearchFit",
    "seen_layout",
]


Array = np.ndarray[Any, Any]


class Layout(NamedTuple):
    """Which weights there are.

    A vector of parameters holds those of features and labels, then those of neighbouring labels.

    Attributes:
        features: F.
        labels: K.
        states: numbers f · K + k of the pairs that have a weight, ascending, int64; None: all.
        transitions: numbers i · K + j likewise.
        table: shape of the scores of neighbouring labels where it is not ``[K, K]``.

    """

    features: int
    labels: int
    states: Tensor | None
    transitions: Tensor | None
    table: tuple[int, int] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the scores of neighbouring labels."""
        return self.table or (self.labels, self.labels)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self._state_count + (
            math.prod(self.shape) if self.transitions is None else len(self.transitions)
        )

    @property
    def _state_count(self) -> int:
        return self.features * self.labels if self.states is None else len(self.states)

    def unpack(self, parameters: Tensor, weights: Array | None = None) -> tuple[Array, Array]:
        """Weights, flat ``[F, K]`` float32 and padded for the kernels, and the table of transitions, float64.

        ``weights`` is an array of this layout to write to instead of a new one; what has no parameter in it must be 0.
        """
        count = self.features * self.labels
        if weights is None:
            weights = np.zeros(kernels.padded(count), np.float32)
        flat = torch.from_numpy(weights)
        if self.states is None:
            flat[:count] = parameters[:count]
        else:
            flat[self.states] = parameters[: self._state_count]
        table = torch.zeros(math.prod(self.shape), dtype=torch.float64)
        rest = parameters[self._state_count :].double()
        if self.transitions is None:
            table[:] = rest
        else:
            table[self.transitions] = rest
        return weights, table.reshape(self.shape).numpy()

    def pack(self, weights: Array, transitions: Array, into: Tensor) -> None:
        """The reverse, for gradients as well."""
        flat = torch.from_numpy(weights)
        count = self._state_count
        if self.states is None:
            into[:count] = flat[:count]
        else:
            torch.index_select(flat, 0, self.states, out=into[:count])
        table = torch.from_numpy(transitions).reshape(-1)
        into[count:] = table if self.transitions is None else table[self.transitions]


def seen_layout(
    matrix: FeatureMatrix,
    references: References | Posterior,
    labels: int,
    *,
    all_states: bool,
    all_transitions: bool,
    min_freq: float = 1.0,
    columns: kernels.Columns | None = None,
) -> Layout:
    """The layout with all pairs, or with those that a reference shows (feature and label, label and next label).

    A reference shows its pairs as many times as its weight is of the heaviest of its sentence; where several references show a pair at one
    token, the heaviest counts. Pairs of features and labels must be seen at least ``min_freq`` times in the sum over tokens, each by the
    feature's value; up to 1 (the default), seen at all is enough.
    """
    lengths = references.lengths
    if not np.array_equal(lengths, matrix.lengths):
        raise ShapeError(
            f"expected references of {len(matrix.lengths)} sentences with {matrix.tokens} tokens,"
            f" as long as those of the features, got {len(lengths)} with {int(lengths.sum())}"
        )
    states = transitions = None
    if not all_states:
        seen = references.shown(labels)
        counts = np.zeros(kernels.padded(matrix.size * labels), np.float32)
        columns = columns or kernels.transpose(
            matrix.offsets, matrix.indices, matrix.values, matrix.size
        )
        padded = np.zeros(kernels.padded(seen.size), np.float32)
        padded[: seen.size] = seen.reshape(-1)
        magnitudes = (
            columns if columns.values is None else columns._replace(values=np.abs(columns.values))
        )
        kernels.multiply(magnitudes, padded, labels, counts)
        kept = counts[: matrix.size * labels]
        states = torch.from_numpy(np.flatnonzero(kept >= min_freq if min_freq > 1 else kept > 0))
    if not all_transitions:
        transitions = torch.from_numpy(np.flatnonzero(references.pairs_shown(labels)))
    return Layout(matrix.size, labels, states, transitions)


class CRFObjective:
    """f and its gradient for parameters of a `Layout`.

    Call it as `softq.linear.lbfgs.LBFGS` does.
    """

    def __init__(
        self,
        matrix: FeatureMatrix,
        target: CorpusTarget,
        layout: Layout,
        *,
        c2: float,
        forbidden: Forbidden,
        columns: kernels.Columns | None = None,
        segments: SegmentTags | None = None,
    ) -> None:
        """Prepare for evaluations.

        ``columns`` is the transposed matrix where the caller has it already; ``segments`` makes the
        model one of segments.
        """
        expected, got = (
            (matrix.size, (matrix.tokens, layout.labels)),
            (layout.features, target.labels.shape),
        )
        if got != expected:  # the kernels would read what lies beside
            raise ShapeError(
                f"expected a layout of {expected[0]} features and a target of shape"
                f" {list(expected[1])}, got {got[0]} and {list(got[1])}"
            )
        self.layout, self.target, self.c2 = layout, target, c2
        self.sentences = len(matrix.lengths)
        self._segments, self._lengths = segments, matrix.lengths
        starts = np.concatenate([[0], np.cumsum(matrix.lengths)])
        self._corpus = kernels.FeatureCorpus(
            starts, matrix.offsets, matrix.indices, matrix.values, target.labels
        )
        self._columns = columns or kernels.transpose(
            matrix.offsets, matrix.indices, matrix.values, matrix.size
        )
        self._forbidden = Forbidden(*(part.double() for part in forbidden))
        self._ends = forbidden.first.numpy(), forbidden.last.numpy()
        count = layout.features * layout.labels
        self._weights = np.zeros(kernels.padded(count), np.float32)
        self._gradient = np.zeros(kernels.padded(count), np.float32)
        self._differences = np.zeros(kernels.padded(matrix.tokens * layout.labels), np.float32)
        self.cross_entropy = float("nan")  # of the last evaluation, summed over sentences

    @property
    def kl(self) -> float:
        """KL(target ‖ model) of the last evaluation, summed over sentences (see `CorpusTarget.entropy`)."""
        return self.cross_entropy - self.target.entropy

    def __call__(self, parameters: Tensor, gradient: Tensor) -> float:
        """The value at ``parameters``; its gradient is written to ``gradient``."""
        weights, transitions = self.layout.unpack(parameters, self._weights)
        if self._segments is None:
            allowed = transitions + self._forbidden.between.numpy()
            loss, pairs = kernels.differences(
                self._corpus, weights, allowed, *self._ends, self._differences
            )
        else:
            loss, pairs = self._segment_differences(self._segments, weights, transitions)
        self.cross_entropy = loss - float((self.target.pairs * transitions).sum())
        kernels.multiply(self._columns, self._differences, self.layout.labels, self._gradient)
        self.layout.pack(self._gradient, pairs - self.target.pairs, gradient)
        gradient.add_(parameters, alpha=2 * self.c2)
        return (
            self.cross_entropy
            + self.c2 * float(torch.linalg.vector_norm(parameters, dtype=torch.float64)) ** 2
        )

    def _segment_differences(
        self, segments: SegmentTags, weights: Array, transitions: Array
    ) -> tuple[float, Array]:
        """What `kernels.differences` finds of a chain.

        Σ log Z - <E_target, label scores>, and Σ E_model of types and lengths.
        """
        _, offsets, indices, values, target = self._corpus
        scores = kernels.emissions(offsets, indices, values, weights, target.shape[1])
        loss = -float(np.sum(target * scores, dtype=np.float64))
        table, pairs = torch.from_numpy(transitions).requires_grad_(), np.zeros_like(transitions)
        found = self._differences[: scores.size].reshape(scores.shape)
        for batch, places, real in token_batches(
            self._lengths, self._lengths * segments.cells, _SEGMENT_CELLS
        ):
            tags = torch.from_numpy(scores[places]).double().requires_grad_()
            lengths = torch.from_numpy(self._lengths[batch])
            log_z = segments.distribution(tags, table, lengths).log_partition.sum()
            expected, of_table = torch.autograd.grad(log_z, (tags, table))
            found[places[real]] = expected.numpy()[real] - target[places[real]]
            loss, pairs = loss + log_z.item(), pairs + of_table.numpy()
        return loss, pairs


_SEGMENT_CELLS = 1 << 19  # scores of segments of one batch, in float64: some 4 MiB
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
        max_segment: words of the longest segment of a model of segments; None: a chain.

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
    max_segment: int | None = None

    @cached_property
    def segments(self) -> SegmentTags | None:
        """The segments that labels spell; None: a chain."""
        return segments_for(self.labels, self.scheme, self.max_segment)

    def layout(self, features: int) -> Layout:
        """The layout in which so many features have all weights."""
        table = self.segments.table_shape if self.segments else None
        return Layout(features, len(self.labels), None, None, table)

    def target(self, references: References | Posterior) -> CorpusTarget:
        """The exact target of sentences with these references, or with this truth."""
        if isinstance(references, Posterior):
            labels, entropy = references.labels.astype(np.float32), float(references.entropy.sum())
            return CorpusTarget(labels, references.pairs.sum(0), entropy)
        scheme = self.scheme if self.constraints in ("target", "model") else None
        allowed = self.segments or Forbidden.by(scheme, self.labels)
        return corpus_target(self.objective, references, allowed, self.tau, self.reward)

    @property
    def forbidden(self) -> Forbidden:
        """What the model forbids in training."""
        return Forbidden.by(self.scheme if self.constraints == "model" else None, self.labels)

    def tagger(
        self, index: TemplateIndex | AttributeIndex, weights: Array, transitions: Array
    ) -> Tagger:
        """The tagger with these weights."""
        free = self.constraints == "none" and self.segments is None
        scheme = None if free else self.scheme
        return Tagger(
            index, self.labels, weights, transitions, scheme, max_segment=self.max_segment
        )

    def objective_of(
        self,
        matrix: FeatureMatrix,
        references: References | Posterior,
        layout: Layout,
        c2: float = 0.0,
        columns: kernels.Columns | None = None,
    ) -> CRFObjective:
        """The objective over a corpus with the weights of a layout."""
        return CRFObjective(
            matrix,
            self.target(references),
            layout,
            c2=c2,
            forbidden=self.forbidden,
            columns=columns,
            segments=self.segments,
        )

    def kl(
        self, tagger: Tagger, matrix: FeatureMatrix, references: References | Posterior
    ) -> float:
        """KL(target ‖ tagger) per sentence."""
        layout = self.layout(matrix.size)
        objective = self.objective_of(matrix, references, layout)
        parameters = torch.empty(layout.size)
        layout.pack(tagger.weights, tagger.transitions, parameters)
        objective(parameters, torch.empty_like(parameters))
        return objective.kl / objective.sentences

    def whole(
        self,
        matrix: FeatureMatrix,
        references: References | Posterior,
        columns: kernels.Columns | None = None,
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
            all_transitions=self.all_transitions or self.segments is not None,
            min_freq=self.min_freq,
            columns=counted_columns,
        )
        if self.segments is not None:
            layout = layout._replace(table=self.segments.table_shape)
        elif self.min_freq > 1 and not self.all_transitions:
            seen = replace(self, objective="ml", constraints="none").target(references).pairs
            layout = layout._replace(
                transitions=torch.from_numpy(np.flatnonzero(seen > self.min_freq - _ROUNDING))
            )
        return self.objective_of(matrix, references, layout, self.c2, columns)


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
    def converged(self) -> bool:
        """Whether the search has met its rule."""
        return self.search.converged

    @property
    def losses(self) -> list[float]:
        """The minimised loss at the start and after each iteration."""
        return self.search.losses

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

    @property
    def kl(self) -> float:
        """KL(target ‖ model) of the last evaluation, per sentence."""
        return self.objective.kl / self.objective.sentences

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
    converged = kl = None  # there is no rule to meet, and nobody has measured the other

    def __init__(
        self,
        settings: CRFSettings,
        index: TemplateIndex | AttributeIndex,
        features: Callable[[Array], FeatureMatrix],
        references: References | Posterior,
        batches: Batches,
        learning_rate: float,
    ) -> None:
        """Start from weights of 0; every epoch has the same batches, in another order."""
        self._settings, self._index, self._rate = settings, index, learning_rate
        self._features, self._references = features, references
        self._batches = lru_cache(maxsize=1)(batches)
        labels = len(settings.labels)
        self.weights = np.zeros((index.size, labels), np.float32)
        self.transitions = np.zeros(settings.layout(index.size).shape, np.float32)
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
        layout = self._settings.layout(len(used))
        objective = self._settings.objective_of(local, self._references.take(batch), layout)
        parameters = torch.from_numpy(
            np.concatenate([self.weights[used].reshape(-1), self.transitions.reshape(-1)])
        )
        gradient = torch.empty_like(parameters)
        loss = objective(parameters, gradient)
        states, pairs = np.split(gradient.numpy(), [len(used) * labels])
        c2 = self._settings.c2
        states = states.reshape(-1, labels)
        states = states + 2 * c2 / self._batches_with[used, None] * self.weights[used]
        pairs = pairs.reshape(layout.shape) + 2 * c2 / self.steps * self.transitions
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
        return self._arrays() | {"losses": losses}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Resume from there."""
        for name, tensor in self._arrays().items():
            tensor.copy_(state[name])  # the arrays' own memory
        *self.losses, self._loss = state["losses"].tolist()

    def _arrays(self) -> dict[str, Tensor]:
        names = ("weights", "transitions", "squares", "transition_squares")
        arrays = self.weights, self.transitions, self._squares, self._transition_squares
        return {name: torch.from_numpy(a) for name, a in zip(names, arrays, strict=True)}
