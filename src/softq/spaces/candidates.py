"""A finite set of sentences that stands for a space too large to sum over (paper, Appendix C).

How it stands for all sentences is its base measure, which a target multiplies by exp(score):

    set          1 on each different sentence: the set as if it were the whole space
    importance   1 / (expected number of times that a sentence is proposed): self-normalised
                 importance sampling (Appendix D.2.4)
    paper        as for the set, but a step uses the references and a uniform subset up to k, with
                 the weights they have in the full softmax, not renormalised (the authors'
                 estimator)

With k, ``"set"`` uses a subset, too, and lets each chosen candidate stand for those that were not,
so that the loss is right on average. `docs/estimators.md` measures how far each is from the target
over all sentences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.checks import check_weights, first_true, type_of
from softq.errors import (
    DtypeError,
    EstimatorError,
    RewardError,
    ShapeError,
    WeightError,
)
from softq.kernels.text.pairs import equal
from softq.kernels.text.sets import repeats
from softq.numerics import length_mask
from softq.options import Estimator as Estimator
from softq.rewards import FromFunction, Reward
from softq.sentences import (
    MISSING,
    References,
    Sentences,
    aligned,
    as_references,
    check_sentences,
)
from softq.spaces.base import Space, mixed
from softq.spaces.candidate_weights import ModelOnCandidates, OnCandidates
from softq.spaces.distribution import Distribution


class BaseMeasure(NamedTuple):
    """How candidates stand for all sentences; see `Candidates.measure`."""

    name: Estimator = "set"
    k: int | None = None
    rank: Tensor | None = None
    """Random numbers that choose among candidates, ``[B, S]``, where only k are used."""


_AS_A_SET = BaseMeasure()


@dataclass(frozen=True, eq=False, repr=False)
class Candidates(Space):
    """Candidate outputs of each example, and how they were proposed.

    - Set: the sentences of example b are ``tokens[b, s, :lengths[b, s]]``; a length of -1 marks one
      that is missing, because the space was too small for all that were asked for.
    - Proposal: the first ``fixed[b]`` are there for certain (the references); each other came
      out of ``draws[b]`` draws with probability exp(``log_proposal[b, s]``) per draw.
      ``log_proposal`` is None where nothing was drawn (beam search, a list of your own); importance
      weights then cannot be had.

    Samplers make these (`softq.samplers`); sentences of your own need only tokens and lengths. A
    model of candidates is a tensor ``[B, S]`` of the log-probabilities that it gives to them, or a
    distribution over label sequences or trees that they are outputs of.

    >>> mine = Candidates(*Sentences.pack([[[4, 5], [4, 6, 7]]]))
    >>> mine
    Candidates(examples=1, size=2, width=3)
    >>> mine.token_mask.int().tolist()
    [[[1, 1, 0], [1, 1, 1]]]
    """

    tokens: Tensor
    """Integer tokens ``[B, S, L]``."""
    lengths: Tensor
    """``[B, S]``; -1: missing."""
    log_proposal: Tensor | None = None
    """Log-probability of each under one draw, float64 ``[B, S]``; 0 for those that are certain."""
    fixed: Tensor | None = None
    """How many at the front are there for certain, ``[B]``; None: none."""
    draws: Tensor | None = None
    """Number of draws behind the rest, ``[B]``; None: one per candidate."""
    log_model: Tensor | None = None
    """Log-probability under the model that made them, ``[B, S]``, where one did."""
    base: BaseMeasure = _AS_A_SET
    """How they stand for all sentences; see `measure`."""

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, Tensor) or self.tokens.dim() != 3:
            raise ShapeError(
                f"candidates must be an integer tensor [B, S, L], got {type_of(self.tokens)} "
                f"{list(getattr(self.tokens, 'shape', []))}"
            )
        checked = check_sentences("candidates", Sentences(self.tokens, self.lengths))
        object.__setattr__(self, "lengths", checked.lengths)
        for name, dims in (("log_proposal", 2), ("log_model", 2), ("fixed", 1), ("draws", 1)):
            value = getattr(self, name)
            if value is not None and value.shape != self.tokens.shape[:dims]:
                raise ShapeError(
                    f"{name} must have shape {list(self.tokens.shape[:dims])}, "
                    f"got {list(value.shape)}"
                )
            if value is not None and dims == 2 and not value.dtype.is_floating_point:
                raise DtypeError(f"{name} must hold floating-point numbers, got {value.dtype}")

    @property
    def sentences(self) -> Sentences:
        """Tokens and lengths."""
        return Sentences(self.tokens, self.lengths)

    @property
    def present(self) -> Tensor:
        """Which candidates are there, bool ``[B, S]``."""
        return self.lengths >= 0

    @property
    def certain(self) -> Tensor:
        """Which were put in rather than drawn, bool ``[B, S]``."""
        if self.fixed is None:
            return torch.zeros_like(self.present)
        return length_mask(self.fixed, self.tokens.shape[1])

    @property
    def token_mask(self) -> Tensor:
        """Which tokens are real, bool ``[B, S, L]``."""
        return length_mask(self.lengths, self.tokens.shape[2])

    def repeats(self) -> Tensor:
        """Which candidates are the same as an earlier one of their example, bool ``[B, S]``."""
        return repeats(self.tokens, self.lengths)

    def equals(self, sentences: Sentences) -> Tensor:
        """Whether candidate s is sentence r, bool ``[B, S, R]``; no missing one is any."""
        mine, other = aligned(self.sentences, sentences)
        return equal(*mine, *other) & mine.present.unsqueeze(2) & other.present.unsqueeze(1)

    # --- the base measure ---------------------------------------------------------------------

    def measure(
        self,
        name: Estimator,
        k: int | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Candidates:
        """The same candidates with another base measure: how they stand for all sentences.

        Args:
            name: ``"set"``, ``"importance"`` or ``"paper"``; see `softq.spaces.candidates`.
            k: use the references and a random choice of the rest, up to k in all. The paper uses 10
                of 100 candidates for RAML and 50 of 500 for SQDML.
            generator: randomness of that choice.

        >>> mine = Candidates(*Sentences.pack([[[4, 5], [4, 6], [7, 5], [9, 9]]]))
        >>> mine.measure("paper", k=2, generator=torch.Generator().manual_seed(0)).base.k
        2

        """
        size, importance = self.tokens.shape[1], name == "importance"
        whole = k is None or (isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= size)
        for wrong, message in (
            (
                name not in get_args(Estimator),
                f"a base measure is one of {', '.join(get_args(Estimator))}, got {name!r}",
            ),
            (
                name == "paper" and k is None,
                (
                    'measure("paper") needs k, how many candidates a step uses (the paper: 10 of'
                    " 100 for RAML, 50 of 500 for SQDML)"
                ),
            ),
            (
                importance and k is not None,
                'measure("importance") uses every draw; ask the sampler for fewer instead of k',
            ),
            (
                not whole,
                f"k must be a whole number from 1 to the number of candidates, {size}, got {k!r}",
            ),
            (
                importance and self.log_proposal is None,
                (
                    'measure("importance") needs candidates with log_proposal, which lists and'
                    ' beams do not have; use measure("set")'
                ),
            ),
        ):
            if wrong:
                raise EstimatorError(message)
        rank = None
        if k is not None:
            device = generator.device if generator is not None else self.tokens.device
            rank = torch.rand(
                self.lengths.shape, dtype=torch.float64, generator=generator, device=device
            ).to(self.tokens.device)
        return replace(self, base=BaseMeasure(name, k, rank))

    @property
    def signature(self) -> str:
        k = "" if self.base.k is None else f":k={self.base.k}"
        return f":estimator={self.base.name}{k}"

    def log_base(self) -> Tensor:
        """Log of the base measure of each candidate, ``[B, S]``; -inf if it does not count."""
        if self.base.name != "importance" or self.log_proposal is None:
            return (self.present & ~self.repeats()).double().log()
        draws = self.present.sum(1) if self.draws is None else self.draws
        log_draws = draws.clamp(min=1).to(self.log_proposal.dtype).log().unsqueeze(1)
        drawn = self.log_proposal + log_draws
        bad = self.present & ~self.certain & ~torch.isfinite(drawn)
        if (place := first_true(bad)) is not None:
            raise EstimatorError(
                f"log_proposal must be finite, got {float(self.log_proposal[place])} for candidate "
                f"{place[1]} of example {place[0]}"
            )
        return (-torch.where(self.certain, 0.0, drawn)).masked_fill(~self.present, -math.inf)

    # --- as a space of targets ----------------------------------------------------------------

    def reward_or_natural(self, reward: Any) -> Reward:
        found = super().reward_or_natural(reward)
        if callable(found) and not isinstance(found, (Reward, type)):
            found = FromFunction(found)
        if not isinstance(found, Reward):
            raise RewardError(
                "reward must be one of softq.rewards or a function of two token lists, "
                f"got {reward!r}"
            )
        return found

    def references(
        self, refs: References, ref_weights: Tensor | None, *, likelihood: bool = False
    ) -> _CandidateReferences:
        _, found = aligned(self.sentences, as_references(refs))
        if len(found.tokens) != len(self.tokens):
            raise EstimatorError(
                f"references must be those of the {len(self.tokens)} examples of the candidates, "
                f"got {len(found.tokens)}"
            )
        if ref_weights is None:
            present = found.present.double()
            return _CandidateReferences(found, present / present.sum(1, keepdim=True))
        weights = check_weights(ref_weights, found.lengths.shape).to(self.tokens.device)
        if (place := first_true((weights > 0) & ~found.present)) is not None:
            raise WeightError(
                f"ref_weights must be 0 for a missing reference, got {float(weights[place]):g} for "
                f"reference {place[1]} of example {place[0]}"
            )
        # A reference without weight is one that is missing: it must not clip, or fill a subset.
        lengths = found.lengths.masked_fill(weights == 0, MISSING)
        return _CandidateReferences(found._replace(lengths=lengths), weights)

    def point_masses(self, references: _CandidateReferences) -> OnCandidates:
        equals = self.equals(references.sentences) & ~self.repeats().unsqueeze(2)
        if (place := first_true((references.weights > 0) & ~equals.any(1))) is not None:
            raise EstimatorError(
                f"reference {place[1]} of example {place[0]} is not among the candidates; add it "
                "with Candidates.with_references"
            )
        return OnCandidates(self, equals.double().transpose(1, 2), equals.any(2), None)

    def rewards(self, references: _CandidateReferences, reward: Reward) -> _CandidateScores:
        if not reward.pairwise and reward.uses_references:
            raise RewardError(
                f"RAML needs the reward against each reference, {type(reward).__name__} has one "
                "for all; use softq.sqdml"
            )
        scores = self._scores(references, reward)
        each = scores.values.expand(-1, references.sentences.lengths.shape[1], -1)
        return scores._replace(values=each)

    def mean_reward(self, references: _CandidateReferences, reward: Reward) -> _CandidateScores:
        scores = self._scores(references, reward)
        if reward.pairwise:
            return scores._replace(values=mixed(references.weights, scores.values))
        equal_share = references.sentences.present.sum(1).reciprocal()
        if bool((references.weights.amax(1) > equal_share + 1e-9).any()):
            raise WeightError(
                f"{type(reward).__name__} takes all references together and cannot weigh them: "
                "ref_weights must be equal or 0"
            )
        return scores._replace(values=scores.values.squeeze(1))

    def _scores(self, references: _CandidateReferences, reward: Reward) -> _CandidateScores:
        # Both are checked already, so that the reward need not do it again as when it is called.
        pair = aligned(self.sentences, references.sentences)
        values = reward.checked_score(*pair).transpose(1, 2)  # [B, R, S]
        return _CandidateScores(values, self.equals(references.sentences).any(2))

    def gibbs(
        self, scores: _CandidateScores, tau: float, prior: Any, prior_weight: float
    ) -> OnCandidates:
        base = self.log_base()
        left_out = base == -math.inf
        if (place := first_true(left_out.all(1))) is not None:
            raise EstimatorError(f"every example needs a candidate, example {place[0]} has none")
        total = base if prior is None else base + prior_weight * self._as_log_probs("prior", prior)
        total = total if scores.values.dim() == 2 else total.unsqueeze(1)
        weights = torch.softmax(scores.values / tau + total, -1)
        name, k, rank = self.base
        if k is not None and rank is not None:
            return self._subset(weights, scores.is_reference & ~left_out, left_out, k, rank)
        return OnCandidates(self, weights, scores.is_reference, None if name == "set" else base)

    def _subset(
        self, weights: Tensor, must: Tensor, left_out: Tensor, k: int, rank: Tensor
    ) -> OnCandidates:
        """References, which must be there, and a uniform choice of the rest, up to k in all."""
        fixed = must.sum(1)
        if (place := first_true(fixed > k)) is not None:
            raise EstimatorError(
                f"k must hold all references, got k={k} for the {int(fixed[place])} references "
                f"of example {place[0]}"
            )
        rank = rank.masked_fill(must, 2.0).masked_fill(left_out, -1.0)
        rank, rows = rank.topk(k, dim=1)
        nobody, chosen = rank < 0, must.gather(1, rows)
        factor, exact = (~nobody).double(), False
        if self.base.name == "set":  # each candidate stands for those that were not chosen
            rest = (~left_out).sum(1) - fixed
            chance = torch.where(rest <= k - fixed, 1.0, (k - fixed).double() / rest)
            if (place := first_true(chance == 0)) is not None:
                raise EstimatorError(
                    f"k={k} leaves no place for candidates beside the references of example "
                    f"{place[0]}; raise k"
                )
            factor = torch.where(chosen, 1.0, factor / chance.unsqueeze(1))
            exact = bool((chance == 1).all())
        outputs = self.select(rows.masked_fill(nobody, -1))
        if weights.dim() == 3:  # one row of weights for each reference
            factor = factor.unsqueeze(1)
            rows = rows.unsqueeze(1).expand(-1, weights.shape[1], -1)
        log_base = None if exact else torch.zeros_like(rank)
        return OnCandidates(outputs, weights.gather(-1, rows) * factor, chosen, log_base)

    def _as_log_probs(self, name: str, given: Any) -> Tensor:
        """Log-probabilities of the candidates ``[B, S]``, in float32 or float64."""
        if isinstance(given, Distribution):
            given = self._log_prob(given)
        if not isinstance(given, Tensor) or not given.dtype.is_floating_point:
            raise DtypeError(
                f"the {name} of candidates must be a tensor of log-probabilities of them, got "
                f"{type_of(given)}"
            )
        if given.shape != self.lengths.shape:
            raise ShapeError(
                f"log-probabilities must have shape {list(self.lengths.shape)}, one per candidate, "
                f"got {list(given.shape)}"
            )
        return given if given.dtype == torch.float64 else given.float()  # 16 bits lose too much

    def as_model(self, model: Any) -> ModelOnCandidates:
        return ModelOnCandidates(self._as_log_probs("model", model))

    def _log_prob(self, model: Distribution) -> Tensor:
        """Log-probabilities of the candidates under a distribution over outputs of their kind."""
        if model.batch_shape != self.tokens.shape[:1] or len(model.event_shape) != 1:
            raise ShapeError(
                f"candidates of {len(self.tokens)} examples need a distribution over as many"
                f" outputs of several tokens, got {model!r}"
            )
        if place := first_true(self.present & (model.all_lengths() != self.lengths.T).T):
            raise ShapeError(
                "candidates must be as long as the outputs of the distribution,"
                f" {int(model.all_lengths()[place[0]])}, got {int(self.lengths[place])} tokens"
                f" (example {place[0]}, candidate {place[1]})"
            )
        tokens = pad(self.tokens, (0, model.event_shape[0] - self.tokens.shape[2]))
        some = self.present.long().argmax(1)  # in the place of what is missing
        stand_in = tokens.take_along_dim(some.reshape(-1, 1, 1), 1)
        tokens = torch.where(self.present.unsqueeze(2), tokens, stand_in)
        return model.log_prob(tokens.movedim(1, 0)).T.masked_fill(~self.present, -math.inf)

    # --- other sets ---------------------------------------------------------------------------

    def select(self, index: Tensor) -> Candidates:
        """Candidates ``index [B, K]`` of each example, -1 for none, as wide as they need.

        What is known of the proposal does not carry over: a choice among draws is no longer a draw.
        """
        rows = index.clamp(min=0)
        lengths = self.lengths.gather(1, rows).masked_fill(index < 0, MISSING)
        width = max(int(lengths.max()), 0) if lengths.numel() else 0
        tokens = self.tokens[..., :width].gather(1, rows.unsqueeze(2).expand(*rows.shape, width))
        log_model = None if self.log_model is None else self.log_model.gather(1, rows)
        return Candidates(tokens, lengths, log_model=log_model)

    def with_references(self, references: Sentences) -> Candidates:
        """The same with the references in front, each once, without draws equal to one of them."""
        drawn = self.present & ~self.equals(references).any(2)
        if bool((self.certain & drawn).any()):
            raise EstimatorError(
                "these candidates already have references of their own that are not among the new "
                "ones; add references once"
            )
        _, front = aligned(self.sentences, references)
        keep = front.present & ~repeats(*front)
        kept = torch.cat([keep, drawn], 1)
        # References first, then draws, then what is missing; stable, so each group keeps its order.
        order = (~kept).long().argsort(dim=1, stable=True)
        both = Candidates(*front).beside(self).select(order.masked_fill(~kept.gather(1, order), -1))
        proposal = self.log_proposal
        if proposal is not None:  # 0 for the references, which are certain
            proposal = pad(proposal, (keep.shape[1], 0)).gather(1, order)
        draws = self.present.sum(1) if self.draws is None else self.draws
        return replace(both, log_proposal=proposal, fixed=keep.sum(1), draws=draws)

    def beside(self, *others: Candidates) -> Candidates:
        """These and other candidates of the same examples in one set ``[B, S + S' + …, L]``.

        A sentence that several of them hold stays in several places; targets count it once. What is
        known of the proposals does not carry over: a sentence of the one may be likely under the
        other as well. ``log_model`` is NaN for those that have none.

        >>> one = Candidates(*Sentences.pack([[[4, 5]]]))
        >>> two = Candidates(*Sentences.pack([[[6], [4, 5, 7]]]))
        >>> one.beside(two).sentences.unpack()
        [[[4, 5], [6], [4, 5, 7]]]
        """
        sets = [self, *(other.to(self.tokens.device) for other in others)]
        for number, each in enumerate(sets):
            if len(each.tokens) != len(self.tokens):
                raise ShapeError(
                    f"candidates must be of the same {len(self.tokens)} examples, set {number} is "
                    f"of {len(each.tokens)}"
                )
        width = max(each.tokens.shape[2] for each in sets)
        tokens = [pad(each.tokens, (0, width - each.tokens.shape[2])) for each in sets]
        lengths, log_model = [each.lengths for each in sets], None
        if any(each.log_model is not None for each in sets):
            log_models = [
                torch.full_like(each.lengths, math.nan, dtype=torch.float64)
                if each.log_model is None
                else each.log_model
                for each in sets
            ]
            log_model = torch.cat(log_models, 1)
        return Candidates(torch.cat(tokens, 1), torch.cat(lengths, 1), log_model=log_model)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Candidates:
        """The same on another device."""
        return self._map(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Candidates:
        """The same in page-locked memory, from which a GPU copies without waiting."""
        return self._map(lambda value: value.pin_memory())

    def _map(self, function: Any) -> Candidates:
        changed: dict[str, Any] = {
            name: function(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        if self.base.rank is not None:
            changed["base"] = self.base._replace(rank=function(self.base.rank))
        return replace(self, **changed)

    def __repr__(self) -> str:
        batch, size, width = self.tokens.shape
        return f"Candidates(examples={batch}, size={size}, width={width})"


class _CandidateReferences(NamedTuple):
    """References of candidates, and their weights, which sum to one."""

    sentences: Sentences
    weights: Tensor


class _CandidateScores(NamedTuple):
    """Rewards of candidates, ``[B, R, S]`` or ``[B, S]``, and which of them are references."""

    values: Tensor
    is_reference: Tensor
