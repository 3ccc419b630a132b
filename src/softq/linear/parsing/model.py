"""A trained parser: from tagged words to distributions over trees, to trees and their relations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError, ScoreError
from softq.formats.conllu import TreeSentence
from softq.formats.file_checks import as_array, mapping, one_of, starting_with, string_list
from softq.kernels.features import arcs as arc_features
from softq.kernels.features import relations as arc_relations
from softq.linear.features import ArcCodes, ArcIndex
from softq.linear.features.matrix import batches_of_like_lengths
from softq.options import TreeDecoding as Decoding
from softq.spaces import ProjectiveTree, SpanningTree

Array = np.ndarray[Any, Any]

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
        """Distributions over the trees of sentences, in batches of like lengths.

        Their numbers, and the distribution.
        """
        lengths = codes.lengths
        space = SpanningTree if self.spanning else ProjectiveTree
        for batch in batches_of_like_lengths(lengths, (lengths + 1) ** 2, _BATCH_CELLS):
            _, scores = score_arcs(self.index, codes.take(batch), self.weights)
            if not np.isfinite(scores).all():  # kernels would find no tree that is best
                raise ScoreError(
                    "the scores of arcs are not finite: the weights of the parser are too large or"
                    " damaged"
                )
            yield (
                batch,
                space(torch.from_numpy(scores), torch.from_numpy(lengths[batch]), validate=False),
            )

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

    def tensors(self) -> dict[str, Array]:
        """Its arrays, by name."""
        index = {f"index.{name}": array for name, array in self.index.tensors().items()}
        return index | {"weights": self.weights, "relation_weights": self.relation_weights}

    def notes(self) -> dict[str, Any]:
        """The rest of it, as JSON can hold it."""
        return {
            "relations": list(self.relations),
            "spanning": self.spanning,
            "root_relation": self.root_relation,
            "index": self.index.notes(),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> Parser:
        """The parser of `tensors` and `notes`; nothing large is copied.

        Kernels trust its sizes, so that they are checked here.
        """
        index = ArcIndex.from_tensors(
            starting_with("index.", tensors), mapping("index", notes["index"])
        )
        relations = string_list("relations", notes["relations"])
        root = one_of("the relation under the root", notes["root_relation"], (None, *relations))
        weights = as_array("weights", tensors["weights"], np.float32, 1)
        rows = as_array("relation_weights", tensors["relation_weights"], np.float32, 2)
        for name, table in (("weights", weights), ("relation_weights", rows)):
            if len(table) < 2 * arc_features.BANKS or len(table) & (len(table) - 1):
                raise DataError(f"expected 2^bits {name}, got {len(table)}")
        if rows.shape[1] != len(relations):
            raise DataError(
                f"expected relation_weights of {len(relations)} relations, got {rows.shape[1]}"
            )
        return cls(index, weights, relations, rows, bool(notes["spanning"]), root)
