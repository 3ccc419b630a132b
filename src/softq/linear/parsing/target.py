"""What parsers are trained toward.

One or several trees per sentence, and the exact targets of ML, RAML and SQDML they make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import OutputError
from softq.formats.trees import is_projective, projectivise
from softq.rewards import Attachment
from softq.spaces import ProjectiveTree, SpanningTree
from softq.targets import ObjectiveName, target_of

Array = np.ndarray[Any, Any]

_REMEMBERED = 1 << 30  # bytes of targets
_CELLS = 1 << 19  # arcs of sentences whose targets are made together


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
        made = {
            number: target
            for part in self._parts(fresh)
            for number, target in zip(part, self._make(part), strict=True)
        }
        for number, (target, entropy) in made.items():
            if target.numel() * 4 <= self._room:
                self._room -= target.numel() * 4
                self._known[number] = (target, entropy)
        return [self._known.get(number) or made[number] for number in numbers]

    def _parts(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Sentences of like lengths, so that one long one does not make room for all.

        About `_CELLS` arcs of all references at a time.
        """
        part: list[int] = []
        most = 0
        for number in sorted(numbers, key=lambda each: self._trees.heads[each].shape[1]):
            count, length = self._trees.heads[number].shape
            most = max(most, count)
            if part and (len(part) + 1) * most * (length + 1) ** 2 > _CELLS:
                yield part
                part, most = [], count
            part.append(number)
        if part:
            yield part

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
