"""Dependency parsers: edge-factored log-linear models of trees (Appendix D.2.3).

One or several trees per sentence, the exact targets of ML, RAML and SQDML they make, and the
trained model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError, OutputError, ScoreError
from softq.formats.conllu import TreeSentence
from softq.formats.file_checks import as_array, mapping, one_of, starting_with, string_list
from softq.formats.trees import is_projective, projectivise
from softq.kernels.features import arcs as arc_features
from softq.kernels.features import relations as arc_relations
from softq.linear.features import ArcCodes, ArcIndex
from softq.linear.features.matrix import batches_of_like_lengths
from softq.linear.tempering import at_temperature, read_temperature
from softq.options import ObjectiveName
from softq.options import TreeDecoding as Decoding
from softq.rewards import Attachment, PartReward
from softq.spaces import ProjectiveTree, SpanningTree
from softq.targets import target_of

__all__ = [
    "Decoding",
    "Parse",
    "Parser",
    "TreeTargets",
    "Trees",
]


Array = np.ndarray[Any, Any]

_REMEMBERED = 1 << 30  # bytes of targets
_TARGET_CELLS = 1 << 19  # arcs of sentences whose targets are made together


class Trees(NamedTuple):
    """One or several trees for each of N sentences.

    Attributes:
        heads: ``[N]`` arrays ``[R, n]`` of heads, 0 the root.
        relations: ``[N][R][n]`` names of relations; empty where there are none.
        weights: ``[N]`` arrays ``[R]`` of weights, of any positive sum.

    """

    heads: Sequence[Array]
    relations: Sequence[Sequence[Sequence[str]]]
    weights: Sequence[Array]

    @classmethod
    def single(
        cls, heads: Sequence[Sequence[int]], relations: Sequence[Sequence[str]] = ()
    ) -> Trees:
        """One tree per sentence."""
        return cls(
            [np.array([tree], np.int64) for tree in heads],
            [[names] for names in relations],
            [np.ones(1) for _ in heads],
        )

    def take(self, sentences: Array) -> Trees:
        """Those of these sentences."""
        relations = [self.relations[i] for i in sentences] if self.relations else []
        return Trees(
            [self.heads[i] for i in sentences], relations, [self.weights[i] for i in sentences]
        )

    def crossing(self) -> Array:
        """Which sentences have a tree that is not projective, ``[N]``."""
        return np.array([not all(map(is_projective, heads)) for heads in self.heads], bool)

    def projectivised(self) -> Trees:
        """Every tree lifted until it is projective (`softq.formats.trees.projectivise`)."""
        return self._replace(
            heads=[
                np.array([projectivise(tree) for tree in heads], np.int64) for heads in self.heads
            ]
        )


class TreeTargets:
    """Exact targets of sentences (eq. 2, 16 or 15), by inside-outside or the matrix-tree theorem on trees scored by their reward.

    A target depends on the references and the temperature alone, so what was found once is remembered, up to a gigabyte, unless
    ``remember`` is off.

    >>> targets = TreeTargets(Trees.single([[0, 1]]), "raml", tau=1.0)
    >>> targets.expected(np.array([0]), 2)[0].round(decimals=2)  # two trees, of 2 right heads and of none: e² / (e² + 1) = 0.88
    tensor([[0.0000, 0.8800, 0.1200],
            [0.0000, 0.0000, 0.8800],
            [0.0000, 0.1200, 0.0000]])
    """

    def __init__(
        self,
        trees: Trees,
        objective: ObjectiveName = "ml",
        tau: float | None = None,
        *,
        spanning: bool = False,
        remember: bool = True,
    ) -> None:
        self._trees, self._objective, self._tau = trees, objective, tau
        self._space = SpanningTree if spanning else ProjectiveTree
        self._known: dict[int, tuple[Tensor, float]] = {}
        self._room = _REMEMBERED if remember else 0

    def expected(self, sentences: Array, size: int) -> Tensor:
        """Expectation of each arc under the target ``[B, size + 1, size + 1]`` float32, 0 where a sentence has no such word."""
        return self.both(sentences, size)[0]

    def entropy(self, sentences: Array) -> float:
        """Entropy of the targets, in nats, summed.

        Of RAML with several references, the mean of its components' (between eq. 4 and 6).
        """
        return sum(entropy for _, entropy in self._of(sentences))

    def both(self, sentences: Array, size: int) -> tuple[Tensor, float]:
        """Expectations and entropy."""
        found = torch.zeros(len(sentences), size + 1, size + 1)
        targets = self._of(sentences)
        for row, (target, _) in zip(found, targets, strict=True):
            row[: len(target), : len(target)] = target
        return found, sum(entropy for _, entropy in targets)

    def _of(self, sentences: Array) -> list[tuple[Tensor, float]]:
        numbers = [int(number) for number in sentences]
        fresh = [number for number in dict.fromkeys(numbers) if number not in self._known]
        counts, lengths = (
            np.array([self._trees.heads[number].shape for number in fresh]).reshape(-1, 2).T
        )
        made = dict.fromkeys(fresh, (torch.zeros(1, 1), 0.0))  # of sentences without words
        for batch in batches_of_like_lengths(lengths, (lengths + 1) ** 2, _TARGET_CELLS, counts):
            chosen = [fresh[place] for place in batch]
            made.update(zip(chosen, self._make(chosen), strict=True))
        for number, (target, entropy) in made.items():
            if target.numel() * 4 <= self._room:
                self._room -= target.numel() * 4
                self._known[number] = (target, entropy)
        return [self._known.get(number) or made[number] for number in numbers]

    def _make(self, numbers: Sequence[int]) -> list[tuple[Tensor, float]]:
        heads = [self._trees.heads[number] for number in numbers]
        lengths = torch.tensor([tree.shape[1] for tree in heads])
        most, longest = max(len(tree) for tree in heads), int(lengths.max())
        refs = torch.zeros(len(numbers), most, longest, dtype=torch.int64)
        weights = torch.zeros(len(numbers), most, dtype=torch.float64)
        for row, (number, tree) in enumerate(zip(numbers, heads, strict=True)):
            refs[row, : len(tree), : tree.shape[1]] = torch.from_numpy(tree)
            weights[row, : len(tree)] = torch.from_numpy(self._trees.weights[number])
        space = self._space(torch.zeros(len(numbers), longest + 1, longest + 1), lengths)
        try:
            target = target_of(
                self._objective, space, refs, self._tau, Attachment(), ref_weights=weights
            )
        except OutputError as error:
            raise OutputError(
                f"{error}; of sentences {', '.join(map(str, sorted(numbers)[:5]))} and others,"
                " counted from 0"
            ) from None
        (expected,) = target.expected_parts(space)
        entropy = target.entropy() if self._objective == "ml" else target.component_entropy()
        return [
            (expected[row, : length + 1, : length + 1].clone(), float(of))
            for row, (length, of) in enumerate(zip(lengths.tolist(), entropy, strict=True))
        ]


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
) -> tuple[arc_features.SentenceWords, Array]:
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
        temperature: scores of arcs are divided by it, which changes probabilities and not the mode.

    """

    index: ArcIndex
    weights: Array
    relations: tuple[str, ...]
    relation_weights: Array
    spanning: bool = False
    root_relation: str | None = None
    temperature: float = 1.0

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
            found = space(
                torch.from_numpy(scores), torch.from_numpy(lengths[batch]), validate=False
            )
            yield batch, at_temperature(found, self.temperature)

    def parse(
        self,
        sentences: Sequence[TreeSentence],
        decoding: Decoding = "mode",
        *,
        confidences: bool = False,
        reward: PartReward | None = None,
    ) -> list[Parse]:
        """Trees of sentences, with the marginal probability of each head if ``confidences``.

        Where a reward over arcs is given, they are the trees expected to earn most of it.
        """
        codes = self.index.encode(sentences)
        return self.parse_codes(codes, decoding, confidences=confidences, reward=reward)

    def parse_codes(
        self,
        codes: ArcCodes,
        decoding: Decoding = "mode",
        *,
        confidences: bool = False,
        reward: PartReward | None = None,
    ) -> list[Parse]:
        """The same of words that have their numbers already."""
        found = [Parse((), (), ()) for _ in codes.lengths]
        for batch, space in self.trees(codes):
            searched = decoding == "mode" and reward is None
            best = (space.mode() if searched else space.mbr(reward)).numpy()
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
            "temperature": self.temperature,
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
        temperature = read_temperature(notes)
        return cls(index, weights, relations, rows, bool(notes["spanning"]), root, temperature)
