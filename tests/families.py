"""The two hooks of the conformance suite, once per distribution: make it, and enumerate it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import oracle
import softq


@dataclass(frozen=True)
class Family:
    """How to make a distribution from scores and lengths, and how to enumerate one example of it."""

    name: str
    cls: type[softq.Distribution]
    size: int  # positions or words; 0 for classes
    score_shapes: Callable[[tuple[int, ...], int], list[tuple[int, ...]]]
    make: Callable[..., softq.Distribution]
    outputs: Callable[[int], list[Any]]
    score: Callable[[list[Any], int, Any], float]
    parts: Callable[
        [Any], list[tuple[int, ...]]
    ]  # indices into the first score tensor of one example
    reward: Callable[[Any, Any], float] = oracle.matches  # the natural one

    def random_scores(
        self, batch=(), size=None, *, dtype=torch.float64, scale=1.0, forbid=0.0, seed=0
    ) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for shape in self.score_shapes(batch, self.size if size is None else size):
            scores = torch.randn(shape, dtype=torch.float64, generator=generator) * scale
            barred = torch.rand(shape, dtype=torch.float64, generator=generator) < forbid
            made.append(scores.masked_fill(barred, -math.inf).to(dtype))
        return made

    def lengths(self, batch: int) -> Tensor | None:
        """Ragged lengths, with 0, 1 and the full size among them; None where there are none."""
        if not self.size:
            return None
        return torch.tensor([[self.size, 1, 0, self.size - 1][i % 4] for i in range(batch)])

    def enumerate(self, scores: list[Tensor], length: int) -> tuple[list[Any], list[float]]:
        """All outputs of one example and their scores; ``scores`` are without batch dimensions."""
        plain = [s.detach().double().tolist() for s in scores]
        outputs = self.outputs(length)
        return outputs, [self.score(plain, length, y) for y in outputs]

    def example(self, scores: list[Tensor], batch: int, index: int) -> list[Tensor]:
        """Scores of one example of a batch; a tensor shared by the batch is passed on."""
        shapes = self.score_shapes((batch,), self.size)
        return [
            s[index] if s.dim() == len(shape) and shape[0] == batch and self._per_example(i) else s
            for i, (s, shape) in enumerate(zip(scores, shapes, strict=True))
        ]

    def _per_example(self, i: int) -> bool:
        return self.score_shapes((7,), self.size)[i][0] == 7

    def pad(self, output: Any, size: int) -> Any:
        return output if isinstance(output, int) else [*output, *[0] * (size - len(output))]


def _chain_score(scores: list[Any], length: int, labels: tuple[int, ...]) -> float:
    emissions, transitions = scores
    shared = not isinstance(transitions[0][0], list) if transitions else False
    steps = [transitions] * length if shared else transitions
    return oracle.label_score(emissions, steps, labels)


def _tree(name: str, cls: type[softq.Distribution], multiroot: bool, projective: bool) -> Family:
    return Family(
        name,
        cls,
        4,
        lambda batch, n: [(*batch, n + 1, n + 1)],
        lambda arcs, lengths=None, **k: cls(arcs, lengths, multiroot, **k),
        lambda length: oracle.trees(length, multiroot=multiroot, projective=projective),
        lambda scores, length, heads: oracle.tree_score(scores[0], heads),
        lambda heads: [(head, word) for word, head in enumerate(heads, start=1)],
    )


FAMILIES = [
    Family(
        "categorical",
        softq.Categorical,
        0,
        lambda batch, n: [(*batch, 5)],
        lambda scores, lengths=None, **k: softq.Categorical(scores, **k),
        lambda length: oracle.classes(5),
        lambda scores, length, y: scores[0][y],
        lambda y: [(y,)],
    ),
    Family(
        "independent",
        softq.Independent,
        4,
        lambda batch, n: [(*batch, n, 3)],
        lambda scores, lengths=None, **k: softq.Independent(scores, lengths, **k),
        lambda length: oracle.label_sequences(length, 3),
        lambda scores, length, y: oracle.label_score(scores[0], [[[0.0] * 3] * 3] * length, y),
        lambda y: list(enumerate(y)),
    ),
    Family(
        "chain-shared",
        softq.Chain,
        4,
        lambda batch, n: [(*batch, n, 3), (3, 3)],
        lambda emissions, transitions, lengths=None, **k: softq.Chain(
            emissions, transitions, lengths, **k
        ),
        lambda length: oracle.label_sequences(length, 3),
        _chain_score,
        lambda y: list(enumerate(y)),
    ),
    Family(
        "chain-per-step",
        softq.Chain,
        4,
        lambda batch, n: [(*batch, n, 3), (*batch, n - 1, 3, 3)],
        lambda emissions, transitions, lengths=None, **k: softq.Chain(
            emissions, transitions, lengths, **k
        ),
        lambda length: oracle.label_sequences(length, 3),
        _chain_score,
        lambda y: list(enumerate(y)),
    ),
    Family(
        "segments",
        softq.SemiMarkov,
        4,
        lambda batch, n: [(*batch, n, 3, 2), (2, 2)],
        lambda segments, transitions, lengths=None, **k: softq.SemiMarkov(
            segments, transitions, lengths, **k
        ),
        lambda length: oracle.segmentations(length, 3, 2),
        lambda scores, length, y: oracle.segment_score(*scores, y, 2),
        lambda y: [(t, size - 1, label) for t, size, label in oracle.segments_of(y, 2)],
        oracle.segment_matches,
    ),
    Family(
        "segments-one-label",  # without scores of neighbours, and as long as the sequence
        softq.SemiMarkov,
        5,
        lambda batch, n: [(*batch, n, 6, 1)],
        lambda segments, lengths=None, **k: softq.SemiMarkov(segments, None, lengths, **k),
        lambda length: oracle.segmentations(length, 6, 1),
        lambda scores, length, y: oracle.segment_score(scores[0], [[0.0]], y, 1),
        lambda y: [(t, size - 1, label) for t, size, label in oracle.segments_of(y, 1)],
        oracle.segment_matches,
    ),
    _tree("projective-single", softq.ProjectiveTree, False, True),
    _tree("projective-multi", softq.ProjectiveTree, True, True),
    _tree("spanning-single", softq.SpanningTree, False, False),
    _tree("spanning-multi", softq.SpanningTree, True, False),
]
