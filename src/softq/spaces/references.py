"""References of exact spaces: outputs, outputs labelled in part, or tables of probabilities.

And point masses on them, the components of likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softq.checks import check_weights, first_true, type_of
from softq.errors import DtypeError, IntractableError, OutputError, ShapeError
from softq.kernels.operator import Expected
from softq.numerics import can_inspect, inner, logsumexp
from softq.spaces.base import Component, constant, mixed

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


@dataclass(frozen=True, eq=False)
class PointMasses(Component):
    """All mass on each reference; if only some tokens are labelled, on outputs that agree there.

    Soft references of trees stand for their expected parts: there need be no tree distribution of
    independent words that has them.
    """

    space: Distribution
    references: OutputReferences
    event_shape: torch.Size

    def expected_parts(self, weights: Tensor | None, model: Distribution) -> tuple[Tensor, ...]:
        refs, batch = self.references, len(model.batch_shape)
        if refs.partial:
            raise IntractableError(
                "references labelled in part have no expected parts of their own"
            )
        if refs.soft:
            return (mixed(refs.weights, refs.values),)
        counts = model.part_counts(refs.values.movedim(batch, 0))  # [R, *B, *parts]
        if refs.given_weights is None:
            return tuple(count.mean(0) for count in counts)
        return tuple(mixed(refs.weights, count.movedim(0, batch)) for count in counts)

    def expected(self, weights: Tensor | None, model: Distribution) -> Expected | None:
        refs = self.references
        if refs.partial:
            return None
        if refs.soft:
            return super().expected(weights, model)
        given = refs.given_weights
        return Expected(model.flat(refs.values), None if given is None else model.flat(given))

    def mean_score(self, weights: Tensor | None, model: Distribution) -> Tensor:
        """Where only some tokens are labelled, log Σ exp(score) over the outputs that agree there.

        So log Z less this is minus the log of the marginal likelihood; a mean over references.
        """
        refs, batch = self.references, len(model.batch_shape)
        if not refs.partial:
            return super().mean_score(weights, model)
        if not refs.soft:
            each = [model.restricted(y).log_partition for y in refs.values.unbind(batch)]
            return (refs.weights * torch.stack(each, -1)).sum(-1)
        if not model.independent_tokens:
            raise IntractableError(
                "soft references with tokens that nobody labelled have a likelihood in closed form "
                f"only where tokens are independent, not on a {type(model).__name__}; use "
                "softq.sqdml(model, refs, tau, prior=model), where the prior decides those tokens"
            )
        scores = model.scores.unsqueeze(batch)  # [*B, 1, *tokens, K]
        known = inner(refs.values, scores.expand_as(refs.values), (-1,))
        score = torch.where(model.token_mass(refs.values) == 0.0, logsumexp(scores, -1), known)
        if model.real is not None:
            score = score.masked_fill(~model.real.unsqueeze(batch), 0.0)
        return (refs.weights * score.reshape(*refs.weights.shape, -1).sum(-1)).sum(-1)

    def log_prob(self, outputs: Tensor) -> Tensor:
        """0 for the reference itself and -inf for any other output, ``[*S, *B, R]``."""
        refs, real = self.references.hard("give no probabilities to outputs"), self.space.real
        if real is not None:
            outputs = outputs.masked_fill(~real.unsqueeze(-2), 0)
        equal = (outputs == refs).all(-1) if self.event_shape else outputs == refs
        return torch.where(equal, 0.0, -torch.inf).to(self.space.dtype)

    def entropy(self) -> Tensor:
        """0: there is nothing else, ``[*B, R]``."""
        if self.references.soft:
            raise IntractableError(
                "soft references of trees are expected parts, which have no entropy"
            )
        return torch.zeros_like(self.references.weights)

    def mixture_entropy(self, weights: Tensor, references: OutputReferences) -> Tensor:
        """Entropy of the weights, all copies of a reference taken together, ``[*B]``."""
        together = (references.same() * weights.unsqueeze(-2)).sum(-1)
        return self.mean_entropy(weights) - torch.xlogy(weights, together).sum(-1)


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
