"""What every distribution offers, derived from a handful of primitives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from softq.errors import DtypeError, InfeasibleError, ShapeError
from softq.kernels import sum_of_inner
from softq.kernels.scan import forbids
from softq.numerics import length_mask, or_inf

T = TypeVar("T")


class Distribution(ABC):
    """P(y) ∝ exp(score(y)) over a finite set of structured outputs, one distribution per batch element.

    A structure supplies ``log_partition``, ``marginals``, ``score``, ``expected_parts``, ``mode``, ``mbr`` and
    ``_draw``; the rest is derived here. Shapes follow torch.distributions: with ``batch_shape`` *B and
    ``event_shape`` E, outputs are ``[*S, *B, *E]`` for any sample shape *S, and values are ``[*S, *B]``.
    Padding of outputs is 0 when returned and may be anything when passed in.

    Inputs are never changed, and results are differentiable with respect to the scores: ``log_partition``,
    ``log_prob`` and the cross-entropies to any order, ``marginals``, ``entropy`` and ``kl`` likewise.
    """

    def __init__(self, scores: Tensor, batch_shape: torch.Size, event_shape: torch.Size, lengths: Tensor | None, validate: bool) -> None:
        self._scores = scores
        self.batch_shape = batch_shape
        self.event_shape = event_shape
        self.lengths = lengths  # [*B], or None where all examples are full
        self.real = None if lengths is None else length_mask(lengths, event_shape[0])  # [*B, n]; None: no padding
        self.validate = validate
        self._cache: dict[tuple[str, bool], Any] = {}
        self._lengths_once: Tensor | None = None

    # --- primitives -----------------------------------------------------------------------------------

    @property
    def scores(self) -> Tensor:
        """Scores of the local parts (classes, labels, arcs), as given, ``[*B, *parts]``."""
        return self._scores

    @property
    @abstractmethod
    def log_partition(self) -> Tensor:
        """Log of the sum of exp(score) over all outputs, ``[*B]``; -inf if every output is forbidden."""

    @property
    @abstractmethod
    def marginals(self) -> Tensor:
        """Probability of each local part, shaped like ``scores`` (0 on padding)."""

    @abstractmethod
    def score(self, outputs: Tensor) -> Tensor:
        """Unnormalised log-probability of ``outputs [*S,*B,*E]``."""

    @abstractmethod
    def expected_parts(self, model: Distribution) -> tuple[Tensor, ...]:
        """E[parts] under this distribution for each kind of part the model scores, ``[*B, *parts]`` like ``model.parts()``."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Most probable output, ``[*B,*E]``."""

    @abstractmethod
    def mbr(self) -> Tensor:
        """Output with the highest expected natural reward (minimum Bayes risk), ``[*B,*E]``."""

    @abstractmethod
    def indicator(self, outputs: Tensor, value: float = 1.0) -> Tensor:
        """``value`` on each local part that ``outputs`` contain and 0 elsewhere, ``[*S, *scores.shape]``.

        The inner product of two outputs' indicators is the natural reward: matches summed over tokens.
        """

    @abstractmethod
    def with_scores(self, scores: Tensor) -> Distribution:
        """Same outputs under other local scores ``[*B, *R, *parts]``: what is forbidden here stays so."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """Same distribution with every score multiplied by ``factor`` (a temperature)."""

    @abstractmethod
    def check_outputs(self, outputs: Tensor) -> None:
        """Raise an error unless ``outputs [*S,*B,*E]`` are outputs of this space."""

    @abstractmethod
    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        """``[count, *B, *E]`` independent samples."""

    # --- derived --------------------------------------------------------------------------------------

    def parts(self) -> tuple[Tensor, ...]:
        """Scores of every kind of part, ``[*B, *parts]`` each; the local ones first."""
        return (self.scores,)

    def part_counts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """How often ``outputs [*S,*B,*E]`` contain each part, ``[*S,*B,*parts]`` like ``parts()``."""
        return (self.indicator(outputs),)

    def expected_score(self, model: Distribution) -> Tensor:
        """Mean of ``model.score(y)`` for y drawn from this distribution, ``[*B]``."""
        return sum_of_inner(self.expected_parts(model), model.parts(), len(self.batch_shape))

    def cross_entropy_from(self, expected: tuple[Tensor, ...]) -> Tensor:
        """Log Z - <expected, scores>, ``[*B]``: the cross-entropy from a target with these (constant) expected parts."""
        return self.log_partition - sum_of_inner(expected, self.parts(), len(self.batch_shape))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the scores."""
        return self.scores.dtype

    @property
    def device(self) -> torch.device:
        """Device of the scores."""
        return self.scores.device

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Log-probability of ``outputs [*S,*B,*E]``; -inf for an output that -inf scores forbid."""
        score = self.score(outputs)
        return torch.where(score == -torch.inf, score, score - self.log_partition)

    def entropy(self) -> Tensor:
        """Entropy in nats, ``[*B]``: log Z - E[score]."""
        return self.log_partition - self.expected_score(self)

    def cross_entropy(self, model: Distribution) -> Tensor:
        """H(self, model) = log Z(model) - E_self[score_model], ``[*B]``; +inf where the model forbids an output, or all."""
        self.check_same_space(model)
        return or_inf(model.log_partition - self.expected_score(model))

    def kl(self, model: Distribution) -> Tensor:
        """KL(self ‖ model) = H(self, model) - H(self), ``[*B]``."""
        return self.cross_entropy(model) - self.entropy()

    def sample(self, shape: torch.Size | tuple[int, ...] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Exact samples, ``[*shape, *B, *E]``; the same generator state gives the same samples."""
        self._check_feasible("sample")
        shape = torch.Size(shape)
        drawn = self._draw(shape.numel(), generator)
        return drawn.reshape(*shape, *self.batch_shape, *self.event_shape)

    def zero_padding(self, outputs: Tensor) -> Tensor:
        """``[*S,*B,n]`` with 0 on the padding; the same for classes, which have none."""
        return outputs if self.real is None else outputs.masked_fill(~self.real, 0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)})"

    # --- helpers for subclasses -----------------------------------------------------------------------

    def _cached(self, name: str, compute: Callable[[], T]) -> T:
        """Compute once per (name, whether gradients are recorded)."""
        key = (name, torch.is_grad_enabled())
        if key not in self._cache:
            self._cache[key] = compute()
        found: T = self._cache[key]
        return found

    def _check_feasible(self, wish: str) -> None:
        with torch.no_grad():
            empty = self.log_partition == -torch.inf
        if bool(empty.any()):
            place = tuple(torch.nonzero(empty)[0].tolist())
            raise InfeasibleError(f"nothing to {wish}: the -inf scores of example {place} forbid every output")

    def check_same_space(self, model: Distribution) -> None:
        """Raise an error unless ``model`` has the same outputs."""
        if self is model:
            return
        if self.scores.shape != model.scores.shape or self.event_shape != model.event_shape:
            raise ShapeError(
                "target and model must live on one output space: the target is "
                f"{self!r} with scores {list(self.scores.shape)}, the model {model!r} with scores {list(model.scores.shape)}"
            )
        if self.lengths is model.lengths:
            return
        full = torch.full((), self.event_shape[0] if self.event_shape else 0, device=self.device)
        mine = full if self.lengths is None else self.lengths
        theirs = full if model.lengths is None else model.lengths
        if bool((mine != theirs).any()):
            raise ShapeError("target and model must have the same lengths")

    def _check_output_shape(self, outputs: Tensor) -> None:
        if not isinstance(outputs, Tensor) or outputs.dtype not in (torch.int64, torch.int32):
            got = outputs.dtype if isinstance(outputs, Tensor) else type(outputs).__name__
            raise DtypeError(f"outputs of a {type(self).__name__} must be an int64 tensor, got {got}")
        want = self.batch_shape + self.event_shape
        if outputs.dim() < len(want) or outputs.shape[outputs.dim() - len(want) :] != want:
            raise ShapeError(
                f"outputs of a {type(self).__name__} must have shape [..., {', '.join(map(str, want))}], got {list(outputs.shape)}"
            )

    def _keep_forbidden(self, scores: Tensor) -> Tensor:
        """``scores [*B, *R, *parts]`` with -inf wherever this distribution has it."""
        if not self._cached("forbids_parts", lambda: forbids(self.scores)):
            return scores
        forbidden = self.scores.detach() == -torch.inf
        batch = len(self.batch_shape)
        extra = scores.dim() - self.scores.dim()
        return scores.masked_fill(forbidden.reshape(*self.batch_shape, *[1] * extra, *forbidden.shape[batch:]), -torch.inf)

    def _lengths(self) -> Tensor:
        """Lengths ``[*B]``, also where none were given."""
        size = self.event_shape[0] if self.event_shape else 0
        return torch.full(self.batch_shape, size, dtype=torch.int64, device=self.device) if self.lengths is None else self.lengths

    def _flat_lengths(self) -> Tensor:
        if self._lengths_once is None:
            self._lengths_once = self._lengths().reshape(-1)
        return self._lengths_once

    def _sample_lengths(self, outputs: Tensor) -> Tensor:
        """Lengths ``[N]`` for outputs ``[*S,*B,n]`` seen as ``[N,n]``."""
        lengths = self._flat_lengths()
        if outputs.shape[:-1].numel() == lengths.shape[0]:
            return lengths
        return lengths.reshape(self.batch_shape).expand(outputs.shape[:-1]).reshape(-1)

    def _lengths_for(self, batch_shape: torch.Size) -> Tensor | None:
        """Lengths for a batch with further dimensions behind this one's."""
        if self.lengths is None or batch_shape == self.batch_shape:
            return self.lengths
        extra = len(batch_shape) - len(self.batch_shape)
        return self.lengths.reshape(*self.batch_shape, *[1] * extra).expand(batch_shape)


def softmax(scores: Tensor) -> Tensor:
    """Softmax over the last dimension; 0 where every score is -inf."""
    peak = scores.detach().amax(-1, keepdim=True)
    weights = (scores - peak.masked_fill(peak == -torch.inf, 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total.masked_fill(total == 0.0, 1.0)


def draw_classes(weights: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """``[count, …]`` draws from ``weights[…, K]``, on the weights' device whatever the generator's."""
    flat = weights.reshape(-1, weights.shape[-1])
    shape = (count, *weights.shape[:-1])
    if flat.shape[0] == 0 or count == 0:
        return torch.zeros(shape, dtype=torch.int64, device=weights.device)
    device = weights.device if generator is None else generator.device
    drawn = torch.multinomial(flat.to(device), count, replacement=True, generator=generator)
    return drawn.T.reshape(shape).to(weights.device)
