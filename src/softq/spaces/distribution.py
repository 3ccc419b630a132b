"""Gibbs distributions on structured outputs: what a structure supplies, and what is derived."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor

from softq.checks import (
    check_count,
    check_lengths,
    check_range,
    check_scores,
    extremes,
    first_true,
    type_of,
)
from softq.errors import (
    DtypeError,
    InfeasibleError,
    OutputError,
    RewardError,
    ShapeError,
    TemperatureError,
)
from softq.kernels.trees import UNLABELLED
from softq.numerics import can_inspect, inner, length_mask
from softq.rewards import PartReward
from softq.spaces.base import Component, Space, constant, mixed
from softq.spaces.references import OutputReferences, PointMasses
from softq.spaces.topk import TopK, by_partition

T = TypeVar("T")

_COLD = 1e-4  # a temperature below which it is asked whether sums of scores keep their precision
_LARGEST_SCORE = 1e10  # of all tokens together: sums in float64 then err by 1e-6


class Distribution(Space, Component):
    """P(y) ∝ exp(score(y)) over a finite set of structured outputs, one for each batch element.

    A structure supplies ``log_partition``, ``marginals``, ``mode``, ``like``, ``with_scores`` and
    ``_draw``; the rest is derived here. Each token chooses one of K parts. If
    the last dimension of the scores does not stand for these, as that of arcs does not, it also
    supplies ``by_token`` and ``by_part``.

    Shapes follow torch.distributions: with ``batch_shape`` *B and ``event_shape`` E, outputs are
    ``[*S, *B, *E]`` for any sample shape *S, and values are ``[*S, *B]``. Padding of outputs is 0
    when returned and may be anything when passed in.

    Inputs are never changed, and results are differentiable with respect to the scores to any
    order. Half precision is computed in float32. Scores that are changed in place count from then
    on.
    """

    natural_reward: ClassVar[type[PartReward] | None] = None
    """The reward that is meant where none is given."""
    independent_tokens: ClassVar[bool] = False
    """Whether the score is a sum over tokens whose choices do not depend on each other."""
    _feasible: bool = False
    """Whether some output is known to be possible."""
    has_kernel: bool = False
    """Whether ``fused_loss`` computes a loss and its gradient in one sweep (see `Recursion`)."""

    def __init__(
        self,
        scores: Tensor,
        batch_shape: torch.Size,
        event_shape: torch.Size,
        lengths: Any = None,
        mask: Tensor | None = None,
        *,
        validate: bool,
        name: str = "scores",
    ) -> None:
        size = event_shape[0] if event_shape else 0
        if validate or mask is not None:
            lengths = check_lengths(lengths, mask, batch_shape, size, scores.device)
        self._scores = scores
        self.batch_shape = batch_shape
        self.event_shape = event_shape
        self.dtype = scores.dtype
        self.device = scores.device
        self.lengths: Tensor | None = lengths  # [*B], or None where all examples are full
        self.real = None if lengths is None else length_mask(lengths, size)  # [*B, n]
        self.validate = validate
        self._cache: dict[Any, Any] = {}
        self._forbids = validate and check_scores(name, scores, self.possible_parts)
        self._checked = self._versions() if validate else None

    # --- primitives ---------------------------------------------------------------------------

    @property
    def scores(self) -> Tensor:
        """Scores of the local parts (classes, labels, arcs), ``[*B, *parts]``."""
        return self._scores

    @property
    @abstractmethod
    def log_partition(self) -> Tensor:
        """Log of the sum of exp(score) over all outputs, ``[*B]``; -inf if all are forbidden."""

    @property
    @abstractmethod
    def marginals(self) -> Tensor:
        """Probability of each local part, shaped like ``scores`` (0 on padding)."""

    @abstractmethod
    def mode(self) -> Tensor:
        """Most probable output, ``[*B,*E]``."""

    @abstractmethod
    def with_scores(self, local: Tensor, *others: Tensor) -> Distribution:
        """Distribution on the same outputs under other scores: what is forbidden here stays so.

        Local scores are ``[*B, *R, *parts]``; others, of neighbours, count nothing if not given.
        """

    @abstractmethod
    def like(self, *given: Tensor) -> Distribution:
        """The same kind of distribution from scores of every kind, as they were `given`."""

    @abstractmethod
    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        """``[count, *B, *E]`` independent samples."""

    # --- a token chooses one of K parts -------------------------------------------------------

    def by_token(self, table: Tensor) -> Tensor:
        """A table of local parts ``[…, *parts]`` as the choices of each token, ``[…, *n, K]``."""
        return table

    def by_part(self, choices: Tensor) -> Tensor:
        """The inverse of `by_token`."""
        return choices

    def token_mass(self, table: Tensor) -> Tensor:
        """Sum of a table of local parts over the choices of each token, ``[…, *n]``."""
        return self.by_token(table).sum(-1)

    def score(self, outputs: Tensor) -> Tensor:
        """Unnormalised log-probability of ``outputs [*S,*B,*E]``."""
        if self.validate:
            self.check_outputs(outputs)
        chosen = self.zero_padding(outputs).long().unsqueeze(-1)
        choices = self.by_token(self.scores).expand(*outputs.shape, -1)
        return self.sum_tokens(self.zero_padding(choices.gather(-1, chosen).squeeze(-1)))

    def indicator(self, outputs: Tensor) -> Tensor:
        """1 on each local part that ``outputs`` contain and 0 elsewhere, ``[*S, *scores.shape]``.

        The inner product of two outputs' indicators is the natural reward: matches summed over
        tokens. A token that is not labelled (-100) has no part.
        """
        choices = torch.arange(self.scores.shape[-1], device=self.device)
        outputs = outputs if self.real is None else outputs.masked_fill(~self.real, UNLABELLED)
        return self.by_part((outputs.unsqueeze(-1) == choices).to(self.dtype))

    def check_values(self, outputs: Tensor, lengths: Tensor | None, partial: bool) -> bool:
        """Raise an error unless outputs ``[*S, *E]`` of these lengths ``[*S]`` are of this space.

        If ``partial``, tokens may be unlabelled (-100); returns whether any is.
        """
        name = "label" if self.event_shape else "class"
        return check_range(name, outputs, self.scores.shape[-1], UNLABELLED if partial else None)

    def possible_parts(self) -> Tensor | None:
        """Which local parts are not padding; broadcasts to the scores. None: all."""
        return None if self.real is None else self.real.unsqueeze(-1)

    # --- derived ------------------------------------------------------------------------------

    def given(self) -> tuple[Tensor, ...]:
        """Scores of every kind of part as they were given; the local ones first."""
        return (self.scores,)

    def part_counts(self, outputs: Tensor) -> tuple[Tensor, ...]:
        """How often ``outputs [*S,*B,*E]`` contain each part, ``[*S,*B,*parts]`` as by `given`."""
        return (self.indicator(outputs),)

    def expectation(self, model: Distribution) -> tuple[Tensor, ...]:
        """E[parts] for each kind of part that the model scores, ``[*B, *parts]``."""
        return (self.marginals,)

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Log-probability of ``outputs [*S,*B,*E]``; -inf for one that -inf scores forbid."""
        score = self.score(outputs)
        return torch.where(score == -math.inf, score, score - self.log_partition)

    def entropy(self) -> Tensor:
        """Entropy in nats, ``[*B]``: log Z - E[score]."""
        return self.log_partition - self.expected_score(self.expectation(self))

    def expected_score(self, expected: Sequence[Tensor]) -> Tensor:
        """<E[parts], scores>, ``[*B]``, for expected parts ``[*B, *parts]`` as by `given`."""
        batch = len(self.batch_shape)
        pairs = zip(expected, self.given(), strict=True)
        products = [inner(e, s.expand_as(e), range(batch, e.dim())) for e, s in pairs]
        return products[0] if len(products) == 1 else torch.stack(products).sum(0)

    def sample(
        self,
        shape: torch.Size | tuple[int, ...] = (),
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Exact samples, ``[*shape, *B, *E]``; the same generator state gives the same samples."""
        self._check_feasible("sample")
        shape = torch.Size(shape)
        drawn = self._draw(shape.numel(), generator)
        return drawn.reshape(*shape, *self.batch_shape, *self.event_shape)

    @torch.no_grad()
    def mbr(self, reward: PartReward | None = None) -> Tensor:
        """Output with the highest expected reward (minimum Bayes risk), ``[*B,*E]``.

        The reward is one over the parts of the space, the natural one if not given. It is linear in
        the parts of what is right, so that of the marginals is what each part is expected to earn.
        The best sum is sought among the outputs that are possible.

        >>> import softq
        >>> p = softq.Categorical(torch.tensor([0.6, 0.4]).log())
        >>> p.mbr().item(), p.mbr(softq.rewards.Matrix([[1.0, 0.0], [0.0, 5.0]])).item()
        (0, 1)
        """
        self._check_feasible("decode")
        space = self.with_scores(self.expected_rewards(reward))
        space._feasible = True  # as this one is: the same outputs are forbidden
        return space.mode()

    def expected_rewards(self, reward: PartReward | None = None) -> Tensor:
        """What each local part is expected to earn, shaped like ``scores``: E[r(part, y)]."""
        reward = self.reward_or_natural(reward)
        if reward.by_reference:
            raise RewardError(
                f"{type(reward).__name__} differs from one reference to the next and has no"
                " expectation under a distribution; use one that depends on the right parts alone"
            )
        return self._on_parts(reward, self.marginals)

    @torch.no_grad()
    def topk(self, k: int) -> TopK:
        """The k most probable outputs, best first; see `softq.spaces.TopK`."""
        k = check_count("k", k, OutputError)
        self._check_feasible("decode")
        batch = len(self.batch_shape)
        outputs, losses = self._topk(k)
        kept = (losses < math.inf).reshape(*losses.shape, *[1] * len(self.event_shape))
        if self.real is not None:
            kept = kept & self.real.unsqueeze(batch)
        outputs = outputs.masked_fill(~kept, 0)
        highest = self.score(outputs.select(batch, 0)) - self.log_partition
        return TopK(outputs, highest.unsqueeze(-1) - losses.to(self.dtype))

    def _topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best outputs ``[*B, k, *E]``, and by how much each scores less than the best.

        That is inf where one is missing, ``[*B, k]``; such outputs, and padding, may be anything.
        """
        return by_partition(self, k)

    def tempered(self, temperature: float) -> Distribution:
        """The same distribution with every score divided by ``temperature``."""
        return self.like(*(scores / temperature for scores in self.given()))

    def restricted(self, outputs: Tensor) -> Distribution:
        """The same distribution on outputs that agree with ``outputs [*B,*E]`` where labelled."""
        labelled = self.by_part((outputs != UNLABELLED).unsqueeze(-1))
        disagrees = labelled & (self.indicator(outputs) == 0)
        local, *others = self.given()
        return self.like(local.masked_fill(disagrees, -math.inf), *others)

    def check_outputs(self, outputs: Tensor) -> None:
        """Raise an error unless ``outputs [*S,*B,*E]`` are outputs of this space."""
        if not isinstance(outputs, Tensor) or outputs.dtype not in (torch.int64, torch.int32):
            raise DtypeError(
                f"outputs of a {type(self).__name__} must be an int64 tensor, "
                f"got {type_of(outputs)}"
            )
        want = self.batch_shape + self.event_shape
        if outputs.dim() < len(want) or outputs.shape[outputs.dim() - len(want) :] != want:
            raise ShapeError(
                f"outputs of a {type(self).__name__} must have shape "
                f"[..., {', '.join(map(str, want))}], got {list(outputs.shape)}"
            )
        if can_inspect(outputs):
            self.check_values(self.zero_padding(outputs), self.lengths, False)

    def zero_padding(self, outputs: Tensor) -> Tensor:
        """``[*S,*B,n]`` with 0 on the padding; the same for classes, which have none."""
        return outputs if self.real is None else outputs.masked_fill(~self.real, 0)

    def check_same_space(self, model: Distribution) -> None:
        """Raise an error unless ``model`` has the same outputs."""
        if self.scores.shape != model.scores.shape or self.event_shape != model.event_shape:
            raise ShapeError(
                "target and model must live on one output space: the target is "
                f"{self!r} with scores {list(self.scores.shape)}, the model {model!r} with scores "
                f"{list(model.scores.shape)}"
            )
        same = self.lengths is model.lengths
        if not same and first_true(self.all_lengths() != model.all_lengths()) is not None:
            raise ShapeError("target and model must have the same lengths")

    def all_lengths(self) -> Tensor:
        """Lengths ``[*B]``, also where none were given."""
        if self.lengths is not None:
            return self.lengths
        size = self.event_shape[0] if self.event_shape else 0
        return constant(self.batch_shape, size, torch.int64, self.scores)

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"{type(self).__name__}({shapes})"

    # --- as a space of targets, and as a target -----------------------------------------------

    def reward_or_natural(self, reward: Any) -> PartReward:
        found, kind = super().reward_or_natural(reward), type(self).__name__
        if not isinstance(found, PartReward):
            raise RewardError(
                f"exact targets need a reward that splits over the parts of a {kind}, "
                f"got {type(found).__name__}; other rewards need candidates from softq.samplers"
            )
        natural = self.natural_reward
        if natural is not None and found.parts != natural.parts:
            raise RewardError(
                f"{type(found).__name__} is a reward over {found.parts} and does not split over "
                f"the {natural.parts} of a {kind}; exact targets need a reward over "
                f"{natural.parts}, such as {natural.__name__}()"
            )
        return found

    def references(
        self, refs: Any, ref_weights: Tensor | None, *, likelihood: bool = False
    ) -> OutputReferences:
        return OutputReferences.read(self, refs, ref_weights, likelihood)

    def point_masses(self, references: OutputReferences) -> Component:
        return PointMasses(self, references, self.event_shape)

    def rewards(self, references: OutputReferences, reward: PartReward) -> Any:
        return self._on_parts(reward, references.tables())

    def mean_reward(self, references: OutputReferences, reward: PartReward) -> Any:
        batch = len(self.batch_shape)
        if references.values.shape[batch] == 1:
            return self.rewards(references, reward).squeeze(batch)
        return self.mean_part_reward(references, reward)

    def mean_part_reward(self, references: Any, reward: PartReward) -> Tensor:
        """Σ_i w_i r(part, y_i) of every local part, shaped like ``scores``."""
        if reward.by_reference:
            weights = references.weights
            counted = weights * (weights > 0).sum(-1, keepdim=True)  # of mean 1: rewards add up
            return mixed(counted, self._on_parts(reward, references.tables()))
        # The reward is linear in the reference's parts: that of the mean is the mean of those.
        return self._on_parts(reward, mixed(references.weights, references.tables()))

    def _on_parts(self, reward: PartReward, table: Tensor) -> Tensor:
        """r(part, y_i) for all parts, ``[*B, *R, *parts]``, from those of the reference."""
        found = reward.on_parts(table)
        if not isinstance(found, Tensor) or found.shape != table.shape:
            got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise RewardError(
                f"{type(reward).__name__}.on_parts must return a tensor shaped like its argument, "
                f"{list(table.shape)}, got {got}"
            )
        if can_inspect(found) and not bool(found.isfinite().all()):
            raise RewardError(
                f"{type(reward).__name__}.on_parts must return finite numbers; forbid outputs by "
                "-inf scores instead"
            )
        return found.detach().to(table)

    def gibbs(self, scores: Any, tau: float, prior: Any, prior_weight: float) -> Component:
        scores = scores / tau
        found = self._gibbs(scores, prior, prior_weight)
        if tau < _COLD and not found.independent_tokens and can_inspect(scores) and scores.numel():
            largest = self.event_shape.numel() * max(map(abs, extremes(scores)))
            if largest > _LARGEST_SCORE:
                raise TemperatureError(
                    f"tau = {tau:g} is too cold for these rewards on a {type(self).__name__}: "
                    "divided by it they leave no digits for what tells outputs apart. Give at "
                    f"least tau = {tau * largest / _LARGEST_SCORE:.2g}, or use softq.ml, which "
                    "RAML becomes as tau goes to 0"
                )
        return found

    def _gibbs(self, scores: Tensor, prior: Any, prior_weight: float) -> Distribution:
        """The distribution ∝ prior^a · exp(score)."""
        if prior is None or prior_weight == 0.0:
            return self.with_scores(scores)
        if not isinstance(prior, Distribution):
            raise DtypeError(
                f"prior must be a distribution on the same outputs, got {type_of(prior)}"
            )
        self.check_same_space(prior)
        local, *others = (prior_weight * part.detach() for part in prior.given())
        return self.with_scores(scores + self.beside(local, scores.dim() - local.dim()), *others)

    def as_model(self, model: Any) -> Distribution:
        if not isinstance(model, Distribution):
            raise DtypeError(f"expected a target and a distribution, got {type(model).__name__}")
        self.check_same_space(model)
        return model

    def expected_parts(self, weights: Tensor | None, model: Distribution) -> tuple[Tensor, ...]:
        return tuple(mixed(weights, part) for part in self.expectation(model))

    # --- helpers for subclasses ---------------------------------------------------------------

    def flat(self, values: Tensor) -> Tensor:
        """``[*B, …]`` as ``[B, …]``."""
        batch = len(self.batch_shape)
        return (
            values
            if batch == 1
            else values.reshape(self.batch_shape.numel(), *values.shape[batch:])
        )

    def beside(self, values: Tensor, extra: int) -> Tensor:
        """``[*B, …]`` with ``extra`` dimensions of size 1 behind those of the batch."""
        batch = len(self.batch_shape)
        return values.reshape(values.shape[:batch] + (1,) * extra + values.shape[batch:])

    def sum_tokens(self, values: Tensor) -> Tensor:
        """``[…, n]`` summed over tokens; the same for a class, which is one by itself."""
        return values.sum(-1) if self.event_shape else values

    def _cached(self, name: str, compute: Callable[[], T]) -> T:
        """Compute once for the scores as they are now, with or without gradients."""
        versions = self._versions()
        if versions is None:
            return compute()
        key = (name, torch.is_grad_enabled())
        if key not in self._cache or self._cache[key][0] != versions:
            self._cache[key] = (versions, compute())
        return cast(T, self._cache[key][1])

    def _versions(self) -> tuple[int, ...] | None:
        """How often the scores were changed in place; None where that is not known."""
        return versions(*self.given())

    @torch.no_grad()
    def _check_feasible(self, wish: str) -> None:
        if (
            not self._feasible
            and (place := first_true(self.log_partition == -math.inf)) is not None
        ):
            raise InfeasibleError(
                f"nothing to {wish}: the -inf scores of example {place} forbid every output"
            )

    @property
    def constrained(self) -> bool:
        """Whether some part is forbidden (-inf), or may be.

        If none is, the target of a token reward is a product over positions, which is cheaper.
        """
        if self._checked is not None and self._checked == self._versions():
            return self._forbids
        if not can_inspect(self.scores):
            return True
        return any(bool((scores == -math.inf).any()) for scores in self.given())

    def _keep_forbidden(self, scores: Tensor) -> Tensor:
        """``scores [*B, *R, *parts]`` with -inf wherever this distribution has it."""
        if self.validate and not self.constrained:  # which is known then, and waits for no device
            return scores
        forbidden = self.beside(self.scores.detach() == -math.inf, scores.dim() - self.scores.dim())
        return scores.masked_fill(forbidden, -math.inf)

    def _lengths_for(self, batch_shape: torch.Size) -> Tensor | None:
        """Lengths for a batch with further dimensions behind this one's."""
        return None if self.lengths is None else self._for_batch(self.lengths, batch_shape)

    def _for_batch(self, values: Tensor, batch_shape: torch.Size) -> Tensor:
        """``[*B, …]`` for a batch with further dimensions behind this one's."""
        batch = len(self.batch_shape)
        beside = self.beside(values, len(batch_shape) - batch)
        return beside.expand(batch_shape + values.shape[batch:])


def versions(*tensors: Tensor) -> tuple[int, ...] | None:
    """How often tensors were changed in place; None where that is not known."""
    if not can_inspect(tensors[0]) or any(tensor.is_inference() for tensor in tensors):
        return None
    return tuple(tensor._version for tensor in tensors)


def draw_classes(weights: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """``[count, …]`` draws from ``weights[…, K]``, on their device whatever the generator's."""
    flat = weights.reshape(-1, weights.shape[-1])
    shape = (count, *weights.shape[:-1])
    if flat.shape[0] == 0 or count == 0:
        return torch.zeros(shape, dtype=torch.int64, device=weights.device)
    device = weights.device if generator is None else generator.device
    drawn = torch.multinomial(flat.to(device), count, replacement=True, generator=generator)
    return drawn.T.reshape(shape).to(weights.device)


def left_align(mask: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Lengths ``[B]``, and tensors ``[B, n, …]`` with the positions that count moved to the front.

    For masks with holes, such as that of the first subwords of a tokenizer. What follows the
    positions that count is left as it was, and is padding.

    >>> mask = torch.tensor([[True, False, True, True]])
    >>> lengths, labels = left_align(mask, torch.tensor([[5, 6, 7, 8]]))
    >>> lengths.tolist(), labels[:, :3].tolist()
    ([3], [[5, 7, 8]])
    """
    mask = mask.bool()
    lengths = mask.sum(1)
    if can_inspect(mask) and bool((mask == length_mask(lengths, mask.shape[1])).all()):
        return lengths, *tensors
    order = (~mask).long().argsort(dim=1, stable=True)
    moved = [
        tensor.gather(
            1, order.reshape(*order.shape, *[1] * (tensor.dim() - 2)).expand(tensor.shape)
        )
        for tensor in tensors
    ]
    return lengths, *moved
