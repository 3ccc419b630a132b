"""The training objective of a feature CRF: cross-entropy to the target of a corpus, plus penalties.

    f(θ) = Σ_x H(target(x), P_θ(·|x)) + c2 ‖θ‖²,    ∂f/∂θ = Σ_x (E_model[φ] - E_target[φ]) + 2 c2 θ

(appendix eq. 5-6, with the penalty as CRFsuite has it). θ holds a weight for each feature and label
and one for each two neighbouring labels; where unseen ones are left out, as CRFsuite does, only
those that occur with a reference are there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import ShapeError
from softq.kernels.features import crf as kernels
from softq.linear.features import FeatureMatrix
from softq.linear.tagging.target import CorpusTarget, Forbidden, References

Array = np.ndarray[Any, Any]


class Layout(NamedTuple):
    """Which weights there are.

    A vector of parameters holds those of features and labels, then those of neighbouring labels.

    Attributes:
        features: F.
        labels: K.
        states: numbers f · K + k of the pairs that have a weight, ascending, int64; None: all.
        transitions: numbers i · K + j likewise.

    """

    features: int
    labels: int
    states: Tensor | None
    transitions: Tensor | None

    @property
    def size(self) -> int:
        """Number of parameters."""
        return self._state_count + (
            self.labels**2 if self.transitions is None else len(self.transitions)
        )

    @property
    def _state_count(self) -> int:
        return self.features * self.labels if self.states is None else len(self.states)

    def unpack(self, parameters: Tensor, weights: Array | None = None) -> tuple[Array, Array]:
        """Weights, flat ``[F, K]`` float32 and padded for the kernels, and transitions ``[K, K]`` float64.

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
        table = torch.zeros(self.labels**2, dtype=torch.float64)
        rest = parameters[self._state_count :].double()
        if self.transitions is None:
            table[:] = rest
        else:
            table[self.transitions] = rest
        return weights, table.reshape(self.labels, self.labels).numpy()

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
    references: References,
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
    lengths = np.array([sentence.shape[1] for sentence in references.labels], np.int64)
    if not np.array_equal(lengths, matrix.lengths):
        raise ShapeError(
            f"expected references of {len(matrix.lengths)} sentences with {matrix.tokens} tokens,"
            f" as long as those of the features, got {len(lengths)} with {int(lengths.sum())}"
        )
    states = transitions = None
    if not all_states:
        seen = np.zeros((matrix.tokens, labels), np.float32)
        start = 0
        for sentence, weights in zip(references.labels, references.weights, strict=True):
            length = sentence.shape[1]
            positions = np.arange(start, start + length)
            for sequence, weight in zip(sentence, weights / np.max(weights), strict=True):
                if weight > 0:
                    seen[positions, sequence] = np.maximum(seen[positions, sequence], weight)
            start += length
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
        pairs = np.zeros(labels * labels)
        for sentence, weights in zip(references.labels, references.weights, strict=True):
            pairs += np.bincount(
                (sentence[weights > 0, :-1] * labels + sentence[weights > 0, 1:]).reshape(-1),
                minlength=labels**2,
            )
        transitions = torch.from_numpy(np.flatnonzero(pairs))
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
    ) -> None:
        """Prepare for evaluations.

        ``columns`` is the transposed matrix where the caller has it already.
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
        starts = np.concatenate([[0], np.cumsum(matrix.lengths)])
        self._corpus = kernels.Corpus(
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
        allowed = transitions + self._forbidden.between.numpy()
        loss, pairs = kernels.differences(
            self._corpus, weights, allowed, *self._ends, self._differences
        )
        self.cross_entropy = loss - float((self.target.pairs * transitions).sum())
        kernels.multiply(self._columns, self._differences, self.layout.labels, self._gradient)
        self.layout.pack(self._gradient, pairs - self.target.pairs, gradient)
        gradient.add_(parameters, alpha=2 * self.c2)
        return (
            self.cross_entropy
            + self.c2 * float(torch.linalg.vector_norm(parameters, dtype=torch.float64)) ** 2
        )
