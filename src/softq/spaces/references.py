"""References of exact spaces: outputs, outputs labelled in part, or tables of probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softq.checks import check_weights, first_true, type_of
from softq.errors import DtypeError, IntractableError, OutputError, ShapeError
from softq.numerics import can_inspect
from softq.spaces.base import constant

if TYPE_CHECKING:
    from softq.spaces.distribution import Distribution

_ROUNDING = 1e-3  # by how much the probabilities of a token may exceed one


@dataclass(frozen=True, eq=False)
class OutputReferences:
    """R references of each example, and their weights."""

    space: Distribution
    values: Tensor
    """Outputs, int64 ``[*B, R, *E]``, 0 on padding and -100 where a token is not labelled; or soft
    references ``[*B, R, *parts]``, probabilities of parts, all 0 for a token that nobody labelled.
    """
    soft: bool
    given_weights: Tensor | None
    """``[*B, R]``, summing to one; None: equal ones."""
    partial: bool | None
    """Whether some token is not labelled; None if nobody may look."""

    @property
    def weights(self) -> Tensor:
        """``[*B, R]``, summing to one."""
        if self.given_weights is not None:
            return self.given_weights
        shape = self.values.shape[: len(self.space.batch_shape) + 1]
        return constant(shape, 1.0 / shape[-1], self.space.dtype, self.values)

    @classmethod
    def read(
        cls, space: Distribution, refs: Any, ref_weights: Tensor | None, likelihood: bool
    ) -> OutputReferences:
        """References as users give them: one or several per example, hard or soft.

        While a graph is traced, or without validation, nobody may look whether some token has no
        label. A likelihood would have to sum over its labels, so that it becomes NaN in that case:
        a wrong number would be worse than none.
        """
        if not isinstance(refs, Tensor) or refs.dtype == torch.bool or refs.dtype.is_complex:
            raise DtypeError(
                "refs must be an int64 tensor of outputs, or a float tensor of the probabilities "
                f"of their parts, got {type_of(refs)}"
            )
        soft, batch = refs.dtype.is_floating_point, len(space.batch_shape)
        events = space.scores.shape[batch:] if soft else space.event_shape
        alone = refs.dim() == batch + len(events) and ref_weights is None
        values = refs.unsqueeze(batch) if alone else refs
        count = values.shape[batch] if values.dim() > batch else 0
        if values.shape != (*space.batch_shape, count, *events) or not count:
            want, more = [*space.batch_shape, *events], [*space.batch_shape, "R", *events]
            text = (
                f"refs must have shape {want}, or {more} for several references, "
                f"got {list(refs.shape)}"
            )
            hint = "; outputs are int64, floats are probabilities of parts" if soft else ""
            raise ShapeError(text.replace("'", "") + hint)
        weights = None
        if ref_weights is not None:
            weights = check_weights(ref_weights, values.shape[: batch + 1]).to(space.scores)
            values = _without_missing(values, weights)
        read = _read_tables if soft else _read_outputs
        values, partial = read(space, values, alone)
        found = cls(space, values, soft, weights, partial)
        return found._nan_where_unlabelled() if likelihood and partial is None else found

    def _nan_where_unlabelled(self) -> OutputReferences:
        unlabelled = _unlabelled(self.space, self.values) if self.soft else self.values < 0
        missing = unlabelled.reshape(*self.weights.shape, -1).any(-1)
        weights = self.weights.masked_fill(missing, math.nan)
        values = self.values if self.soft else self.values.clamp(min=0)
        return OutputReferences(self.space, values, self.soft, weights, None)

    def hard(self, otherwise: str) -> Tensor:
        """Outputs ``[*B, R, *E]``; an error that says what others cannot do if these are none."""
        if self.soft or self.partial:
            raise IntractableError(f"references that are soft, or labelled in part, {otherwise}")
        return self.values

    def tables(self) -> Tensor:
        """Parts of each reference, ``[*B, R, *parts]``."""
        if self.soft:
            return self.values
        batch = len(self.space.batch_shape)
        return self.space.indicator(self.values.movedim(batch, 0)).movedim(0, batch)

    def same(self) -> Tensor:
        """``[*B, R, R]``: whether references i and j are the same."""
        batch = len(self.space.batch_shape)
        equal = self.values.unsqueeze(batch) == self.values.unsqueeze(batch + 1)
        return equal.flatten(batch + 2).all(-1) if equal.dim() > batch + 2 else equal

    def alike(self) -> bool:
        """Whether all references of each example are the same."""
        return bool((self.same() | (self.weights == 0).unsqueeze(-1)).all())


def _without_missing(refs: Tensor, weights: Tensor) -> Tensor:
    """A missing reference, one without weight, may hold anything: let it repeat one with most."""
    batch = weights.dim() - 1
    most = weights.argmax(-1, keepdim=True)
    index = torch.where(weights > 0, torch.arange(weights.shape[-1], device=weights.device), most)
    index = index.reshape(*index.shape, *[1] * (refs.dim() - batch - 1))
    return refs.gather(batch, index.expand(refs.shape))


def _read_outputs(space: Distribution, outputs: Tensor, alone: bool) -> tuple[Tensor, bool | None]:
    """Outputs, 0 on padding, and whether some token has no label; errors show them as given."""
    batch, partial = len(space.batch_shape), None
    if space.real is not None:
        outputs = outputs.masked_fill(~space.real.unsqueeze(batch), 0)
    if space.validate and can_inspect(outputs):
        lengths = (
            space.lengths if alone or space.lengths is None else space.lengths.unsqueeze(batch)
        )
        partial = space.check_values(outputs.squeeze(batch) if alone else outputs, lengths, True)
    return outputs.long(), partial


def _read_tables(space: Distribution, table: Tensor, alone: bool) -> tuple[Tensor, bool | None]:
    """Soft references, 0 on impossible parts, and whether some token has no probabilities."""
    table = table.detach().to(space.scores)
    possible = space.possible_parts()
    if possible is not None:
        table = table.masked_fill(~space.beside(possible, 1), 0.0)
    mass = space.token_mass(table)
    bad = ~(mass <= 1.0 + _ROUNDING) | ~(space.token_mass(table.clamp(max=0.0)) >= 0.0)
    if (place := first_true(bad)) is not None:
        raise OutputError(
            "soft references must hold probabilities, not negative and of a sum of at most 1 for "
            f"each token, got a sum of {float(mass[place]):g} at {place}"
        )
    return table, bool(_unlabelled(space, table).any()) if can_inspect(table) else None


def _unlabelled(space: Distribution, table: Tensor) -> Tensor:
    """Which tokens have no probabilities, ``[*B, R, *tokens]``."""
    free = space.token_mass(table) == 0.0
    return free if space.real is None else free & space.real.unsqueeze(len(space.batch_shape))
