"""Dependency trees: projective ones and all spanning ones."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.checks import as_scores
from softq.errors import OutputError, ShapeError
from softq.kernels import projective as eisner
from softq.kernels import spanning as matrix_tree
from softq.kernels.projective import kbest as best_projective
from softq.kernels.spanning import kbest as best_spanning
from softq.kernels.trees import (
    CROSSING,
    CYCLE,
    HEAD_OUT_OF_RANGE,
    TWO_ROOTS,
    UNLABELLED,
    find_bad_tree,
    possible_arcs,
)
from softq.rewards import Attachment
from softq.spaces.distribution import Distribution
from softq.spaces.recursion import Recursion

_FAULTS = {
    HEAD_OUT_OF_RANGE: "a head outside 0..{n}",
    CYCLE: "a cycle",
    TWO_ROOTS: "a second word under the root; pass multiroot=True to allow it",
    CROSSING: (
        "an arc that crosses another, which a projective tree may not have; use SpanningTree "
        "or projectivise it"
    ),
}


class DependencyTree(Recursion):
    """A distribution over dependency trees that scores each arc on its own."""

    natural_reward = Attachment

    def __init__(
        self,
        arcs: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        multiroot: bool = False,
        *,
        mask: Tensor | None = None,
        validate: bool = True,
    ) -> None:
        arcs = as_scores("arcs", arcs)
        if arcs.dim() < 2 or arcs.shape[-1] != arcs.shape[-2] or arcs.shape[-1] == 0:
            raise ShapeError(
                f"arcs must have shape [*B, n+1, n+1] with index 0 the root, got {list(arcs.shape)}"
            )
        size = torch.Size((arcs.shape[-1] - 1,))
        super().__init__(arcs, arcs.shape[:-2], size, lengths, mask, validate=validate, name="arcs")
        self.multiroot = multiroot
        self._flags = (multiroot,)

    @property
    @abstractmethod
    def projective(self) -> bool:
        """Whether arcs may not cross."""

    @property
    def arcs(self) -> Tensor:
        """Arc scores ``[*B, head, dependent]``."""
        return self.scores

    def _arguments(self) -> tuple[Tensor, Tensor]:
        return self.flat(self.all_lengths()), self.flat(self.arcs)

    def by_token(self, table: Tensor) -> Tensor:
        return table[..., 1:].transpose(-1, -2)  # the heads of each word

    def by_part(self, choices: Tensor) -> Tensor:
        return pad(choices.transpose(-1, -2), (1, 0))  # the root has no head

    def check_same_space(self, model: Distribution) -> None:
        super().check_same_space(model)
        if isinstance(model, DependencyTree) and (
            (model.projective and not self.projective) or (self.multiroot and not model.multiroot)
        ):
            roots = {False: "one root", True: "any number of roots"}
            raise ShapeError(
                "the model's trees must include those of the target: the target is a "
                f"{type(self).__name__} with {roots[self.multiroot]}, the model a "
                f"{type(model).__name__} with {roots[model.multiroot]}, which leaves some of them "
                "out"
            )

    def with_scores(self, local: Tensor, *others: Tensor) -> DependencyTree:
        lengths = self._lengths_for(local.shape[:-2])
        return type(self)(self._keep_forbidden(local), lengths, self.multiroot, validate=False)

    def like(self, *given: Tensor) -> DependencyTree:
        return type(self)(given[0], self.lengths, self.multiroot, validate=False)

    def check_values(self, outputs: Tensor, lengths: Tensor | None, partial: bool) -> bool:
        size = self.event_shape[0]
        shape = outputs.shape[:-1]
        if lengths is None:
            lengths = torch.full(shape, size)
        lengths = lengths.expand(shape).reshape(-1)
        flat = outputs.reshape(shape.numel(), size).cpu()  # where they are checked
        found = find_bad_tree(lengths, flat, self.multiroot, self.projective, partial)
        example, word, fault = found
        if fault in _FAULTS:
            heads = flat[example, : int(lengths[example])].tolist()
            place = tuple(int(i) for i in torch.unravel_index(torch.tensor(example), shape))
            raise OutputError(
                f"heads must form a tree over {len(heads)} words, got {heads} (tree {place}): "
                f"{_FAULTS[fault].format(n=len(heads))}, at word {word}"
            )
        return fault == UNLABELLED

    def possible_parts(self) -> Tensor:
        return possible_arcs(self.all_lengths(), self.scores.shape[-1])


class ProjectiveTree(DependencyTree):
    """Dependency trees whose arcs, drawn above the sentence, do not cross.

    ===========  ==========================================================
    set          projective trees over words 1..n under the root 0; one word under the root unless
                 ``multiroot``
    parts        arcs, ``arcs[*B, head, dependent]`` of shape ``[*B, n+1, n+1]``; column 0 and the
                 diagonal are ignored
    output       heads, ``[*B, n]``: entry i-1 is the head of word i, in 0..n
    cost         O(n³) time, O(n²) memory (Eisner 1996)
    paper        Appendix D.2.3, appendix eq. 7-8
    ===========  ==========================================================

    ``lengths [*B]`` are numbers of words, or ``mask [*B, n]`` is True on them.

    >>> p = ProjectiveTree(torch.zeros(1, 4, 4))
    >>> p.log_partition.exp().round().item()  # three words: seven projective trees with one root
    7.0
    """

    projective = True
    _operator = eisner.OPERATOR
    _decoder = eisner.DECODER
    _several = staticmethod(best_projective.topk)


class SpanningTree(DependencyTree):
    """Dependency trees of any shape, crossing arcs allowed.

    ===========  ==========================================================
    set          spanning trees over words 1..n under the root 0; one word under the root unless
                 ``multiroot``
    parts        arcs, ``arcs[*B, head, dependent]`` of shape ``[*B, n+1, n+1]``; column 0 and the
                 diagonal are ignored
    output       heads, ``[*B, n]``: entry i-1 is the head of word i, in 0..n
    cost         O(n³) time, O(n²) memory (matrix-tree theorem; Koo et al. 2007)
    paper        Appendix D.2.3, appendix eq. 7-8
    ===========  ==========================================================

    ``lengths [*B]`` are numbers of words, or ``mask [*B, n]`` is True on them.

    >>> p = SpanningTree(torch.zeros(1, 4, 4))
    >>> p.log_partition.exp().round().item()  # three words: nine trees with one root
    9.0
    """

    projective = False
    _operator = matrix_tree.OPERATOR
    _decoder = matrix_tree.DECODER
    _several = staticmethod(best_spanning.topk)
    _widest_on_gpu = matrix_tree.MOST_NODES_ON_GPU
