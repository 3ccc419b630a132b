"""A trained tagger: from sentences to chains, labels and marginals; one file on the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from softq.errors import DataError, ScoreError, ShapeError
from softq.formats.file_checks import (
    check_format,
    mapping,
    notes_in,
    one_of,
    read_tensors,
    refusing,
    string_list,
)
from softq.formats.tags import Scheme
from softq.kernels.features import crf as kernels
from softq.lab.run import write_atomically
from softq.linear.features import AttributeIndex, FeatureMatrix, TemplateIndex
from softq.linear.tagging.target import Forbidden
from softq.spaces import Chain

Array = np.ndarray[Any, Any]
Decoding = Literal["viterbi", "mbr"]
"""The most probable sequence, or the sequence of the most right labels to be expected (minimum Bayes risk under token accuracy)."""

_FORMAT = "softq tagger 1"
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
        """Distributions over label sequences, in batches of sentences of like length: their numbers, and the chain."""
        if matrix.size != self.index.size:
            raise ShapeError(
                f"expected features of the tagger's own index, which has {self.index.size} columns, got {matrix.size}"
            )
        forbidden = Forbidden.by(self.scheme, self.labels)
        transitions = torch.from_numpy(self.transitions)
        scores = kernels.emissions(
            matrix.offsets, matrix.indices, matrix.values, self.weights, len(self.labels)
        )
        if not np.isfinite(scores).all():  # kernels would find no label that is best
            raise ScoreError(
                "the scores of labels are not finite: the weights of the tagger, or values of features, are too large or damaged"
            )
        starts = np.concatenate([[0], np.cumsum(matrix.lengths)])
        order = np.argsort(matrix.lengths, kind="stable")
        order = order[matrix.lengths[order] > 0]
        begin = 0
        while begin < len(order):
            # Sorted by length: as many sentences as fit at the length of the longest, found from the first and shortened once.
            end = begin + max(
                1, _BATCH_CELLS // (len(self.labels) * int(matrix.lengths[order[begin]]))
            )
            longest = int(matrix.lengths[order[min(end, len(order)) - 1]])
            end = min(end, begin + max(1, _BATCH_CELLS // (len(self.labels) * longest)), len(order))
            batch = order[begin:end]
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
            begin = end

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

    def tensors(self, notes: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
        """All of it as tensors; ``notes`` are further things to remember that JSON can hold."""
        kept = {
            "format": _FORMAT,
            "labels": list(self.labels),
            "scheme": self.scheme,
            "index": type(self.index).__name__,
            "index_notes": self.index.notes(),
            "notes": dict(notes or {}),
        }
        arrays = {f"index.{name}": array for name, array in self.index.tensors().items()}
        arrays |= {"weights": self.weights, "transitions": self.transitions}
        text = np.frombuffer(json.dumps(kept, ensure_ascii=False).encode(), np.uint8)
        return {
            name: torch.from_numpy(_writable(array))
            for name, array in {**arrays, "about": text}.items()
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> tuple[Tagger, dict[str, Any]]:
        """The tagger and the notes of `tensors`; nothing large is copied. What is no tagger is a `DataError`."""
        missing = {"about", "weights", "transitions"} - tensors.keys()
        if missing:
            raise DataError(
                f"expected the tensors of a tagger, got none of the name {min(missing)!r}"
            )
        about = notes_in(tensors, "about", "tagger")
        check_format(about, _FORMAT)
        indices: dict[str, type[TemplateIndex | AttributeIndex]] = {
            kind.__name__: kind for kind in (TemplateIndex, AttributeIndex)
        }
        with refusing("expected the notes of a tagger, got what does not fit together"):
            of_index = {
                name.removeprefix("index."): tensor
                for name, tensor in tensors.items()
                if name.startswith("index.")
            }
            index = indices[one_of("index", about["index"], tuple(indices))].from_tensors(
                of_index, mapping("index_notes", about["index_notes"])
            )
            labels = string_list("labels", about["labels"])
            scheme = one_of("scheme", about["scheme"], (None, *get_args(Scheme)))
            Forbidden.by(scheme, labels)  # these may be no tags of the scheme
            notes = mapping("notes", about["notes"])
        count = len(labels)
        if not count or len(set(labels)) != count:
            raise DataError(
                f"expected at least one label, and each once, got {count} with {len(set(labels))} distinct ones"
            )
        for name, dtype, shape in (
            ("weights", torch.float32, (kernels.padded(index.size * count),)),
            ("transitions", torch.float64, (count, count)),
        ):
            if (
                tensors[name].dtype != dtype or tensors[name].shape != shape
            ):  # the kernels would read what lies beside
                raise DataError(
                    f"expected {name} of {dtype} {list(shape)} for {index.size} features and {count} labels, "
                    f"got {tensors[name].dtype} {list(tensors[name].shape)}"
                )
        if not bool((tensors["transitions"] < torch.inf).all()):
            raise DataError("expected transitions that are numbers, got NaN or inf")
        return cls(
            index, labels, tensors["weights"].numpy(), tensors["transitions"].numpy(), scheme
        ), notes

    def save(self, path: str | PathLike[str], notes: Mapping[str, Any] | None = None) -> None:
        """Write the model to one safetensors file, whole or not at all."""
        write_atomically(Path(path), to_safetensors(self.tensors(notes)))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> tuple[Tagger, dict[str, Any]]:
        """The tagger of a file of `save`, and its notes. Its arrays stay on the disk until they are used (memory-mapped)."""
        try:
            return cls.from_tensors(read_tensors(path).tensors)
        except DataError as error:
            raise DataError(
                f"{path} is not a tagger of softq ({error}); expected a file of CRFTagger.save or a run's best.safetensors"
            ) from None


def _writable(array: Array) -> Array:
    """The array itself, or a copy of one that torch would warn about."""
    return array if array.flags.writeable else array.copy()
