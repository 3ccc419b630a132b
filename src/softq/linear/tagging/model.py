"""A trained tagger: from sentences to chains, labels and marginals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError, ScoreError, ShapeError
from softq.formats.file_checks import as_array, mapping, one_of, starting_with, string_list
from softq.formats.tags import Scheme
from softq.kernels.features import crf as kernels
from softq.linear.features import AttributeIndex, FeatureMatrix, TemplateIndex
from softq.linear.features.matrix import batches_of_like_lengths
from softq.linear.tagging.target import Forbidden
from softq.options import LabelDecoding as Decoding
from softq.spaces import Chain

Array = np.ndarray[Any, Any]

_BATCH_CELLS = 1 << 20  # scores of one batch of sentences


@dataclass(frozen=True)
class Tagger:
    """Weights of features and labels, of neighbouring labels, and what gives words their features.

    Attributes:
        index: from words, or from the user's own features, to columns.
        labels: K label names.
        weights: flat ``[F, K]`` float32, padded as `softq.kernels.features.crf` needs it.
        transitions: ``[K, K]`` float64 (from, to).
        scheme: forbid label sequences that break this tag scheme; None: all are possible.

    """

    index: TemplateIndex | AttributeIndex
    labels: tuple[str, ...]
    weights: Array
    transitions: Array
    scheme: Scheme | None

    def chains(self, matrix: FeatureMatrix) -> Iterator[tuple[Array, Chain]]:
        """Distributions over label sequences, in batches of sentences of like length.

        Their numbers, and the chain.
        """
        if matrix.size != self.index.size:
            raise ShapeError(
                f"expected features of the tagger's own index, which has {self.index.size} columns,"
                f" got {matrix.size}"
            )
        forbidden = Forbidden.by(self.scheme, self.labels)
        transitions = torch.from_numpy(self.transitions)
        scores = kernels.emissions(
            matrix.offsets, matrix.indices, matrix.values, self.weights, len(self.labels)
        )
        if not np.isfinite(scores).all():  # kernels would find no label that is best
            raise ScoreError(
                "the scores of labels are not finite: the weights of the tagger, or values of"
                " features, are too large or damaged"
            )
        starts = np.concatenate([[0], np.cumsum(matrix.lengths)])
        cells = matrix.lengths * len(self.labels)
        for batch in batches_of_like_lengths(matrix.lengths, cells, _BATCH_CELLS):
            lengths = matrix.lengths[batch]
            within = np.arange(int(lengths.max()))
            real = within < lengths[:, None]
            emissions = np.zeros((*real.shape, len(self.labels)), np.float32)
            emissions[real] = scores[(starts[batch][:, None] + within)[real]]
            yield (
                batch,
                forbidden.chain(
                    torch.from_numpy(emissions), torch.from_numpy(lengths), transitions
                ),
            )

    def decode(self, matrix: FeatureMatrix, decoding: Decoding = "viterbi") -> list[list[str]]:
        """Labels of each sentence."""
        found: list[list[str]] = [[] for _ in matrix.lengths]
        names = np.array(self.labels, dtype=object)
        for batch, chain in self.chains(matrix):
            best = (chain.mode() if decoding == "viterbi" else chain.mbr()).numpy()
            for sentence, row, length in zip(
                batch.tolist(), names[best], matrix.lengths[batch].tolist(), strict=True
            ):
                found[sentence] = row[:length].tolist()
        return found

    def marginals(self, matrix: FeatureMatrix) -> list[Array]:
        """Probabilities of labels ``[n, K]`` for each sentence."""
        found = [np.zeros((0, len(self.labels)), np.float32) for _ in matrix.lengths]
        for batch, chain in self.chains(matrix):
            for sentence, row, length in zip(
                batch.tolist(), chain.marginals.numpy(), matrix.lengths[batch].tolist(), strict=True
            ):
                found[sentence] = row[:length]
        return found

    # --- on the disk ------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, Array]:
        """Its arrays, by name."""
        index = {f"index.{name}": array for name, array in self.index.tensors().items()}
        return index | {"weights": self.weights, "transitions": self.transitions}

    def notes(self) -> dict[str, Any]:
        """The rest of it, as JSON can hold it."""
        return {
            "labels": list(self.labels),
            "scheme": self.scheme,
            "index": type(self.index).__name__,
            "index_notes": self.index.notes(),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> Tagger:
        """The tagger of `tensors` and `notes`; nothing large is copied.

        Kernels trust its indices and sizes, so that they are checked here.
        """
        indices = {kind.__name__: kind for kind in (TemplateIndex, AttributeIndex)}
        kind: Any = indices[one_of("index", notes["index"], tuple(indices))]
        index = kind.from_tensors(
            starting_with("index.", tensors), mapping("index_notes", notes["index_notes"])
        )
        labels = string_list("labels", notes["labels"])
        count = len(labels)
        if not count or len(set(labels)) != count:
            raise DataError(
                f"expected at least one label, and each once, got {count} with {len(set(labels))}"
                " distinct ones"
            )
        scheme = one_of("scheme", notes["scheme"], (None, *get_args(Scheme)))
        Forbidden.by(scheme, labels)  # they may be no tags of the scheme
        weights = as_array("weights", tensors["weights"], np.float32, 1)
        transitions = as_array("transitions", tensors["transitions"], np.float64, 2)
        expected = (kernels.padded(index.size * count),), (count, count)
        if (weights.shape, transitions.shape) != expected:
            raise DataError(
                f"expected weights {list(expected[0])} and transitions {list(expected[1])} for"
                f" {index.size} features and {count} labels, got {list(weights.shape)} and"
                f" {list(transitions.shape)}"
            )
        if not bool((transitions < np.inf).all()):
            raise DataError("expected transitions that are numbers, got NaN or inf")
        return cls(index, labels, weights, transitions, scheme)
