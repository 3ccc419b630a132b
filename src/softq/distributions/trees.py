"""Dependency trees: projective ones and all spanning ones."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

import torch
from torch import Tensor

from softq.checks import bad_score, check_lengths, check_scores_dtype
from softq.distributions.base import Distribution
from softq.errors import OutputError, ShapeError
from softq.kernels import Structure, arborescence, cross_entropy, log_partition, marginals, projective, spanning
from softq.kernels.counts import arc_counts
from softq.kernels.scan import find_bad_arc
from softq.kernels.trees import CROSSING, CYCLE, HEAD_OUT_OF_RANGE, TWO_ROOTS, find_bad_tree

_FAULTS = {
    HEAD_OUT_OF_RANGE: "a head outside 0..{n}",
    CYCLE: "a cycle",
    TWO_ROOTS: "a second word under the root; pass multiroot=True to allow it",
    CROSSING: "an arc that crosses another, which a projective tree may not have; use SpanningTree or projectivise it",
}


class DependencyTree(Distribution):
    """A distribution over dependency trees that scores each arc on its own."""

    projective: bool

    def __init__(self, arcs: Tensor, lengths: Tensor | None = None, multiroot: bool = False, *, validate: bool = True) -> None:
        check_scores_dtype("arcs", arcs)
        if arcs.dim() < 2 or arcs.shape[-1] != arcs.shape[-2] or arcs.shape[-1] == 0:
            raise ShapeError(f"arcs must have shape [*B, n+1, n+1] with index 0 the root, got {list(arcs.shape)}")
        size = arcs.shape[-1] - 1
        if validate:
            lengths = check_lengths(lengths, arcs.shape[:-2], size, arcs.device)
        super().__init__(arcs, arcs.shape[:-2], torch.Size((size,)), lengths, validate)
        self.multiroot = multiroot
        if validate:
            flat = self._flat_arcs()
            place = find_bad_arc(self._flat_lengths(), flat)
            if place is not None:
                raise bad_score("arcs", flat, place)

    @property
    @abstractmethod
    def _structure(self) -> Structure: ...

    @property
    def arcs(self) -> Tensor:
        """Arc scores ``[*B, head, dependent]``, as given."""
        return self.scores

    @property
    def log_partition(self) -> Tensor:
        return self._cached("log_partition", lambda: log_partition(self._structure, *self._arguments()).reshape(self.batch_shape))

    @property
    def marginals(self) -> Tensor:
        return self._cached("marginals", lambda: marginals(self._structure, *self._arguments())[0].reshape(self.scores.shape))

    def score(self, outputs: Tensor) -> Tensor:
        if self.validate:
            self.check_outputs(outputs)
        heads = self.zero_padding(outputs).long()
        arcs = self.arcs[..., 1:].expand(*heads.shape[:-1], -1, -1)  # [*S, *B, head, n]
        chosen = arcs.gather(-2, heads.unsqueeze(-2)).squeeze(-2)
        return self.zero_padding(chosen).sum(-1)

    def check_same_space(self, model: Distribution) -> None:
        super().check_same_space(model)
        if isinstance(model, DependencyTree) and ((model.projective and not self.projective) or (self.multiroot and not model.multiroot)):
            raise ShapeError(
                f"the model's trees must include those of the target: the target is a {self._kind()}, the model a {model._kind()}, "
                "which leaves some of them out"
            )

    def _kind(self) -> str:
        return f"{type(self).__name__} with {'any number of roots' if self.multiroot else 'one root'}"

    def expected_parts(self, model: Distribution) -> tuple[Tensor, ...]:
        return (self.marginals,)

    def cross_entropy_from(self, expected: tuple[Tensor, ...]) -> Tensor:
        lengths, arcs = self._arguments()
        return cross_entropy(self._structure, lengths, (expected[0].detach().reshape(arcs.shape),), arcs).reshape(self.batch_shape)

    def mbr(self) -> Tensor:
        with torch.no_grad():
            self._check_feasible("decode")
            return self.with_scores(self.marginals).mode()

    def indicator(self, outputs: Tensor, value: float = 1.0) -> Tensor:
        flat = outputs.long().reshape(outputs.shape[:-1].numel(), outputs.shape[-1])
        found = arc_counts(flat, self._sample_lengths(outputs), self.dtype, value)
        return found.reshape(*outputs.shape[:-1], *found.shape[1:])

    def with_scores(self, scores: Tensor) -> Self:
        return type(self)(self._keep_forbidden(scores), self._lengths_for(scores.shape[:-2]), self.multiroot, validate=False)

    def scaled(self, factor: float) -> Self:
        return type(self)(self.arcs * factor, self.lengths, self.multiroot, validate=False)

    def check_outputs(self, outputs: Tensor) -> None:
        self._check_output_shape(outputs)
        size = self.event_shape[0]
        flat = outputs.reshape(outputs.shape[:-1].numel(), size)
        lengths = self._sample_lengths(outputs)
        bad = find_bad_tree(lengths, flat, self.multiroot, self.projective)
        if bad is not None:
            example, word, fault = bad
            fault_text = _FAULTS[fault].format(n=int(lengths[example]))
            heads = flat[example, : int(lengths[example])].tolist()
            raise OutputError(f"heads must form a tree over {len(heads)} words, got {heads} (tree {example}): {fault_text}, at word {word}")

    def _arguments(self) -> tuple[Tensor, Tensor]:
        return self._flat_lengths(), self.scores.reshape(self.batch_shape.numel(), *self.scores.shape[-2:])

    def _flat_arcs(self) -> Tensor:
        return self._arguments()[1].detach()


class ProjectiveTree(DependencyTree):
    """Dependency trees whose arcs, drawn above the sentence, do not cross.

    ===========  ==========================================================
    set          projective trees over words 1..n under the root 0; one word under the root unless ``multiroot``
    parts        arcs, ``arcs[*B, head, dependent]`` of shape ``[*B, n+1, n+1]``; column 0 and the diagonal are ignored
    output       heads, ``[*B, n]``: entry i-1 is the head of word i, in 0..n
    cost         O(n³) time, O(n²) memory (Eisner 1996)
    paper        Appendix D.2.3, appendix eq. 7-8
    ===========  ==========================================================

    >>> p = ProjectiveTree(torch.zeros(1, 4, 4))
    >>> p.log_partition.exp().round().item()  # three words: seven projective trees with one root
    7.0
    """

    projective = True

    @property
    def _structure(self) -> Structure:
        return projective.structure(self.multiroot)

    def mode(self) -> Tensor:
        self._check_feasible("decode")
        heads, _ = projective.mode(self._flat_lengths(), self._flat_arcs(), self.multiroot)
        return heads.reshape(self.batch_shape + self.event_shape)

    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        return projective.sample(self._flat_lengths(), self._flat_arcs(), self.multiroot, count, generator)


class SpanningTree(DependencyTree):
    """Dependency trees of any shape, crossing arcs allowed.

    ===========  ==========================================================
    set          spanning trees over words 1..n under the root 0; one word under the root unless ``multiroot``
    parts        arcs, ``arcs[*B, head, dependent]`` of shape ``[*B, n+1, n+1]``; column 0 and the diagonal are ignored
    output       heads, ``[*B, n]``: entry i-1 is the head of word i, in 0..n
    cost         O(n³) time, O(n²) memory (matrix-tree theorem; Koo et al. 2007)
    paper        Appendix D.2.3, appendix eq. 7-8
    ===========  ==========================================================

    >>> p = SpanningTree(torch.zeros(1, 4, 4))
    >>> p.log_partition.exp().round().item()  # three words: nine trees with one root
    9.0
    """

    projective = False

    @property
    def _structure(self) -> Structure:
        return spanning.structure(self.multiroot)

    def mode(self) -> Tensor:
        self._check_feasible("decode")
        heads, _ = arborescence.mode(self._flat_lengths(), self._flat_arcs(), self.multiroot)
        return heads.reshape(self.batch_shape + self.event_shape)

    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        return spanning.sample(self._flat_lengths(), self._flat_arcs(), self.multiroot, count, generator).to(self.device)
