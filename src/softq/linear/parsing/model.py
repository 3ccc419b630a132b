"""A trained parser: from tagged words to distributions over trees, to trees and their relations; one file on the disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors.torch import save as to_safetensors
from torch import Tensor

from softq.errors import DataError, ScoreError
from softq.formats.conllu import TreeSentence
from softq.formats.file_checks import (
    check_format,
    in_one_line,
    mapping,
    notes_in,
    read_tensors,
    refusing,
    string_list,
)
from softq.kernels.features import arcs as arc_features
from softq.kernels.features import relations as arc_relations
from softq.lab.run import write_atomically
from softq.linear.features import ArcCodes, ArcIndex
from softq.spaces import ProjectiveTree, SpanningTree

Array = np.ndarray[Any, Any]
Decoding = Literal["mode", "mbr"]
"""The most probable tree, or the tree of the most right heads to be expected (minimum Bayes risk under UAS)."""

_FORMAT = "softq parser 1"
_BATCH_CELLS = 1 << 20  # arcs of one batch of sentences


class Parse(NamedTuple):
    """A sentence's tree.

    Attributes:
        heads: of each word, from 1; 0 is the root.
        relations: of each word to its head; empty where the parser knows none.
        confidences: marginal probability of each head; empty unless asked for.

    """

    heads: tuple[int, ...]
    relations: tuple[str, ...] = ()
    confidences: tuple[float, ...] = ()


def score_arcs(
    index: ArcIndex, codes: ArcCodes, weights: Array
) -> tuple[arc_features.Words, Array]:
    """Scores of all arcs ``[B, n + 1, n + 1]`` of sentences, and their words' hashes."""
    words = arc_features.parts(index.plan, codes.codes, codes.starts)
    size = int(codes.lengths.max()) + 1
    scores = np.zeros((len(codes.lengths), size, size), weights.dtype)
    arc_features.scores(index.plan, words, weights, scores)
    return words, scores


@dataclass(frozen=True)
class Parser:
    """Weights of hashed features of arcs and of their relations, and what gives words their numbers.

    Attributes:
        index: from words to numbers.
        weights: ``[F]`` float32, of features of arcs.
        relations: K names; empty for a parser of bare trees.
        relation_weights: ``[R, K]`` float32.
        spanning: trees may have crossing arcs.
        root_relation: the relation of words under the root, and of no others; None where any word may have any.

    """

    index: ArcIndex
    weights: Array
    relations: tuple[str, ...]
    relation_weights: Array
    spanning: bool = False
    root_relation: str | None = None

    def trees(self, codes: ArcCodes) -> Iterator[tuple[Array, ProjectiveTree | SpanningTree]]:
        """Distributions over the trees of sentences, in batches of like lengths: their numbers, and the distribution."""
        lengths = codes.lengths
        space = SpanningTree if self.spanning else ProjectiveTree
        order = np.argsort(lengths, kind="stable")
        order = order[lengths[order] > 0]
        begin = 0
        while begin < len(order):
            end = begin + 1
            while (
                end < len(order)
                and (end + 1 - begin) * (int(lengths[order[end]]) + 1) ** 2 <= _BATCH_CELLS
            ):
                end += 1
            batch = order[begin:end]
            _, scores = score_arcs(self.index, codes.take(batch), self.weights)
            if not np.isfinite(scores).all():  # kernels would find no tree that is best
                raise ScoreError(
                    "the scores of arcs are not finite: the weights of the parser are too large or damaged"
                )
            yield (
                batch,
                space(torch.from_numpy(scores), torch.from_numpy(lengths[batch]), validate=False),
            )
            begin = end

    def parse(
        self,
        sentences: Sequence[TreeSentence],
        decoding: Decoding = "mode",
        *,
        confidences: bool = False,
    ) -> list[Parse]:
        """Trees of sentences, with the marginal probability of each head if ``confidences``."""
        return self.parse_codes(self.index.encode(sentences), decoding, confidences=confidences)

    def parse_codes(
        self, codes: ArcCodes, decoding: Decoding = "mode", *, confidences: bool = False
    ) -> list[Parse]:
        """The same of words that have their numbers already."""
        found = [Parse((), (), ()) for _ in codes.lengths]
        for batch, space in self.trees(codes):
            best = (space.mode() if decoding == "mode" else space.mbr()).numpy()
            chosen = (
                space.marginals[..., 1:]
                .gather(1, torch.from_numpy(best).unsqueeze(1))
                .squeeze(1)
                .tolist()
                if confidences
                else None
            )
            lengths = codes.lengths[batch]
            names = self._relations(codes.take(batch), best, lengths)
            for row, (sentence, length) in enumerate(
                zip(batch.tolist(), lengths.tolist(), strict=True)
            ):
                sure = tuple(chosen[row][:length]) if chosen else ()
                found[sentence] = Parse(tuple(best[row, :length].tolist()), names[row], sure)
        return found

    def _relations(self, codes: ArcCodes, heads: Array, lengths: Array) -> list[tuple[str, ...]]:
        if not self.relations:
            return [()] * len(lengths)
        real = np.arange(heads.shape[1]) < lengths[:, None]
        sentences, places = np.nonzero(real)
        arcs = arc_relations.Arcs(sentences, heads[real], places + 1)
        plan = self.index.relation_plan
        words = arc_features.parts(plan, codes.codes, codes.starts)
        scores = arc_relations.scores(plan, words, arcs, self.relation_weights)
        if self.root_relation is not None:
            root = self.relations.index(self.root_relation)
            scores[arcs.heads == 0, root] = np.inf
            scores[arcs.heads != 0, root] = -np.inf
        best = scores.argmax(1).tolist()
        ends = np.cumsum(lengths)
        return [
            tuple(self.relations[k] for k in best[end - length : end])
            for end, length in zip(ends, lengths, strict=True)
        ]

    def marginals(self, sentences: Sequence[TreeSentence]) -> list[Array]:
        """Probabilities of arcs ``[n + 1, n + 1]`` (head, dependent) for each sentence."""
        codes = self.index.encode(sentences)
        found = [np.zeros((1, 1), np.float32) for _ in sentences]
        for batch, space in self.trees(codes):
            for sentence, row, length in zip(
                batch.tolist(), space.marginals.numpy(), codes.lengths[batch].tolist(), strict=True
            ):
                found[sentence] = row[: length + 1, : length + 1]
        return found

    # --- on the disk ------------------------------------------------------------------------------------

    def tensors(self, notes: Mapping[str, Any] | None = None) -> dict[str, Tensor]:
        """All of it as tensors; ``notes`` are further things to remember that JSON can hold."""
        kept = {
            "format": _FORMAT,
            "relations": list(self.relations),
            "spanning": self.spanning,
            "root_relation": self.root_relation,
            "index": self.index.notes(),
            "notes": dict(notes or {}),
        }
        arrays = {f"index.{name}": array for name, array in self.index.tensors().items()}
        arrays |= {"weights": self.weights, "relation_weights": self.relation_weights}
        arrays["about"] = np.frombuffer(json.dumps(kept, ensure_ascii=False).encode(), np.uint8)
        return {
            name: torch.from_numpy(array if array.flags.writeable else array.copy())
            for name, array in arrays.items()
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> tuple[Parser, dict[str, Any]]:
        """The parser and the notes of `tensors`; nothing large is copied. What is no parser is a `DataError`."""
        missing = {"about", "weights", "relation_weights"} - tensors.keys()
        if missing:
            raise DataError(
                f"expected the tensors of a parser, got none of the name {min(missing)!r}"
            )
        about = notes_in(tensors, "about", "parser")
        check_format(about, _FORMAT)
        with refusing(
            "expected the words and templates of a parser, got what does not fit together"
        ):
            of_index = {
                name.removeprefix("index."): tensor
                for name, tensor in tensors.items()
                if name.startswith("index.")
            }
            index = ArcIndex.from_tensors(of_index, mapping("index", about["index"]))
            relations = string_list("relations", about["relations"])
            spanning, root, notes = (
                bool(about["spanning"]),
                about["root_relation"],
                mapping("notes", about["notes"]),
            )
        if root is not None and (not isinstance(root, str) or root not in relations):
            raise DataError(
                f"expected the relation under the root among {len(relations)} relations, got {in_one_line(repr(root))}"
            )
        for name, dims in (("weights", 1), ("relation_weights", 2)):
            tensor = tensors[name]
            rows = len(tensor) if tensor.dim() else 0
            power = rows >= 2 * arc_features.BANKS and rows & (rows - 1) == 0
            wide = dims == 1 or tensor.shape[-1] == len(relations)
            if (
                tensor.dtype != torch.float32 or tensor.dim() != dims or not power or not wide
            ):  # the kernels would read what lies beside
                want = "[2^bits]" if dims == 1 else f"[2^bits, {len(relations)}]"
                raise DataError(
                    f"expected {name} of torch.float32 {want}, got {tensor.dtype} {list(tensor.shape)}"
                )
        return cls(
            index,
            tensors["weights"].numpy(),
            relations,
            tensors["relation_weights"].numpy(),
            spanning,
            root,
        ), notes

    def save(self, path: str | PathLike[str], notes: Mapping[str, Any] | None = None) -> None:
        """Write the model to one safetensors file, whole or not at all."""
        write_atomically(Path(path), to_safetensors(self.tensors(notes)))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> tuple[Parser, dict[str, Any]]:
        """The parser of a file of `save`, and its notes. Its arrays stay on the disk until they are used (memory-mapped)."""
        try:
            return cls.from_tensors(read_tensors(path).tensors)
        except DataError as error:
            raise DataError(
                f"{path} is not a parser of softq ({error}); expected a file of DependencyParser.save or a run's best.safetensors"
            ) from None
