"""Rewards that are sums over the parts of the output: classes, labels, arcs (paper, D.2.2-3).

Sums, not means: a sentence of n tokens earns up to n. Each reward turns the indicator of a
reference's parts into the reward of every part, r(y, y*) = Σ over the parts of y of
``on_parts(indicator(y*))``.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from softq.checks import first_true
from softq.errors import DtypeError, OutputError, RewardError, ShapeError
from softq.kernels.text.pairs import equal, equal_positions
from softq.numerics import matmul
from softq.rewards.base import Reward, both_present
from softq.sentences import Sentences

Parts = Literal["classes", "labels", "segments", "arcs"]


class PartReward(Reward):
    """A reward that splits over parts of the named kind."""

    parts: ClassVar[Parts]

    position_free: ClassVar[bool] = False
    """Whether a label's reward depends on the right one alone, not on its place.

    Then a table ``[K, K]`` says all of it.
    """

    by_reference: ClassVar[bool] = False
    """Whether references differ in more than their parts, so that their rewards cannot be those of
    the mean of their parts. Theirs add up, as log-probabilities do, where others are averaged.
    """

    @abstractmethod
    def on_parts(self, reference: Tensor) -> Tensor:
        """Reward of each part, shaped like ``reference`` and linear in it.

        That is the indicator of the reference's parts.
        """


class _Match(PartReward):
    """One for each part that is also in the reference."""

    position_free = True
    bound = 1.0

    def on_parts(self, reference: Tensor) -> Tensor:
        return reference

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        return equal_positions(*candidates, *references).double()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ExactMatch(_Match):
    """1 for the right class, 0 for any other: the natural reward of ``Categorical``.

    On sequences, 1 if all of it is right.
    """

    parts = "classes"
    signature = "exact-match"

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        return (equal(*candidates, *references) & both_present(candidates, references)).double()


class TokenAccuracy(_Match):
    """Number of right labels: the natural reward of label sequences (paper, Appendix D.2.2)."""

    parts = "labels"
    signature = "token-accuracy"


class NegativeHamming(_Match):
    """Minus the number of wrong labels or words (paper, Appendix D.2.4; Norouzi et al. 2016).

    Over outputs of one length it is `TokenAccuracy` less a constant, so its targets are the same.
    Between sentences of different lengths, each word too many or too few is one wrong word.

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3], [1, 9], [7, 8, 9]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3]]])
    >>> NegativeHamming()(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([ 0., -2., -3.], dtype=torch.float64)
    """

    parts = "labels"
    signature = "negative-hamming"

    def on_parts(self, reference: Tensor) -> Tensor:
        # Padding has no reference part and stays 0.
        return reference - reference.sum(-1, keepdim=True)

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        longer = torch.maximum(candidates.lengths.unsqueeze(2), references.lengths.unsqueeze(1))
        wrong = longer - equal_positions(*candidates, *references)
        return 0.0 - wrong.masked_fill(~both_present(candidates, references), 0).double()


class Attachment(_Match):
    """Number of right heads, the sum behind UAS: the natural reward of trees (paper, D.2.3)."""

    parts = "arcs"
    signature = "attachment"


class _Table(PartReward):
    """A full table of rewards, row: what is predicted, column: what is right."""

    position_free = True
    name: ClassVar[str]
    by_example: ClassVar[bool] = False
    """Whether there may be a table for each example, ``[*B, K, K]``."""

    def __init__(self, table: Tensor) -> None:
        try:
            table = torch.as_tensor(table).detach()
        except (TypeError, ValueError, RuntimeError) as error:
            raise DtypeError(
                "the reward table must be a tensor [K, K] or a list of K lists of K numbers each, "
                f"got {table!r}"
            ) from error
        if not table.dtype.is_floating_point:
            if table.dtype == torch.bool or table.dtype.is_complex:
                raise DtypeError(f"the reward table must hold real numbers, got {table.dtype}")
            table = table.to(torch.get_default_dtype())
        flat = table.dim() == 2 or (self.by_example and table.dim() > 2)
        if not flat or table.shape[-2] != table.shape[-1] or not table.numel():
            raise ShapeError(
                "the reward table must have shape [K, K] (predicted, right), "
                f"got {list(table.shape)}"
            )
        if not bool(torch.isfinite(table).all()):
            raise RewardError(
                "the reward table must be finite; forbid outputs by -inf scores instead"
            )
        self.table = table

    @property
    def signature(self) -> str:
        digest = hashlib.sha256(
            self.table.double().cpu().contiguous().numpy().tobytes()
        ).hexdigest()[:8]
        return f"{self.name}:{'x'.join(map(str, self.table.shape))}:{digest}"

    @property
    def bound(self) -> float:
        return float(self.table.max() - self.table.min())

    def on_parts(self, reference: Tensor) -> Tensor:
        table, size = self.table.to(reference), self.table.shape[-1]
        if reference.shape[-1] != size:
            raise ShapeError(
                f"the reward table is for {size} {self.parts}, "
                f"the output space has {reference.shape[-1]}"
            )
        # Padding has no reference part and so no reward: an all-zero row stays zero.
        if table.dim() == 2:
            return matmul(reference, table.T)
        batch = table.dim() - 2
        if reference.shape[:batch] != table.shape[:batch]:
            raise ShapeError(
                f"the reward tables are for examples of shape {list(table.shape[:batch])}, "
                f"the references have shape {list(reference.shape)}"
            )
        if reference.dim() == batch + 1:  # one reference for each example
            return (table @ reference.unsqueeze(-1)).squeeze(-1)
        return reference @ table.mT

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        if self.table.dim() > 2:
            raise ShapeError("sentences need one reward table for all examples, [K, K]")
        width = min(candidates.tokens.shape[2], references.tokens.shape[2])
        shared = torch.minimum(
            candidates.lengths.unsqueeze(2), references.lengths.unsqueeze(1)
        ).unsqueeze(3)
        real = torch.arange(width, device=shared.device) < shared  # [B, S, R, width]
        predicted = candidates.tokens[..., :width].unsqueeze(2).expand(real.shape)
        right = references.tokens[..., :width].unsqueeze(1).expand(real.shape)
        size = self.table.shape[0]
        bad = real & ((predicted < 0) | (predicted >= size) | (right < 0) | (right >= size))
        if (place := first_true(bad)) is not None:
            where = "example {}, candidate {}, reference {}, position {}".format(*place)
            raise OutputError(
                f"the reward table is for {self.parts} 0..{size - 1}, got "
                f"{int(predicted[place])} predicted and {int(right[place])} right at {where}"
            )
        cells = (predicted * size + right).masked_fill(~real, 0).long()
        table = self.table.to(device=cells.device, dtype=torch.float64).reshape(-1)
        return table[cells].masked_fill(~real, 0.0).sum(-1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table.tolist()})"


class Matrix(_Table):
    """Reward table over classes, ``R[predicted, right]`` (paper, §4.1.1).

    One table ``[K, K]``, or one for each example, ``[*B, K, K]``.

    >>> Matrix(torch.eye(2)).on_parts(torch.tensor([0.0, 1.0]))
    tensor([0., 1.])
    """

    parts = "classes"
    name = "matrix"
    by_example = True


class TokenReward(_Table):
    """Reward table over labels, ``R[predicted, right]``, summed over tokens: still exact on chains.

    >>> TokenReward.weighted(torch.tensor([1.0, 3.0])).table  # a hit on label 1 counts three times
    tensor([[1., 0.],
            [0., 3.]])
    """

    parts = "labels"
    name = "token-reward"

    @classmethod
    def weighted(cls, weights: Tensor | Sequence[float]) -> TokenReward:
        """Token accuracy in which a hit on label k earns ``weights[k]``."""
        weights = torch.as_tensor(weights)
        if weights.dim() != 1:
            raise ShapeError(f"weights must have shape [K], got {list(weights.shape)}")
        return cls(torch.diag(weights))
