"""From rows of a dataset to the candidates of a step and their weights, in token ids as the model generates them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.errors import DataError, RecipeError
from softq.integrations.transformers.arguments import RewardAugmentedArguments
from softq.integrations.transformers.rewards import with_sources
from softq.integrations.transformers.scoring import ScoredCandidates
from softq.integrations.transformers.step_statistics import statistics_of
from softq.integrations.transformers.tokens import Ends, SpecialTokens, TokenIds, strip_specials
from softq.lab.recipe import Objective
from softq.neural.target_maker import RewardedCandidates, TargetMaker, make_sampler
from softq.numerics import length_mask
from softq.rewards import Reward
from softq.rewards.base import RewardWrapper
from softq.samplers import Sampler
from softq.sentences import MISSING, Sentences
from softq.spaces import Candidates


@dataclass(frozen=True)
class Row:
    """The outputs that one row of a dataset asks for."""

    references: list[TokenIds]
    """With the special tokens that the model generates; empty: none."""
    candidates: list[TokenIds]
    """Of the user's own, with special tokens or without; empty: none."""
    rewards: list[list[float]] | None
    """Of the user's own candidates, against each reference or, in one number, against all; None.

    To be computed.
    """
    source: TokenIds
    """What the model reads; empty where that is no text."""


@dataclass(frozen=True)
class StepTarget:
    """What a step is trained toward."""

    scored: ScoredCandidates
    weights: Tensor
    """float32 ``[B, K]``, 0 where a candidate is missing."""
    signature: str
    log_base: Tensor | None = None
    """float32 ``[B, K]``: the base measure by which the model is renormalised on the candidates;
    -inf: left out. None: the model has its own probabilities."""
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    """Of each row, ``[B]``, to be logged; NaN where there is nothing to say."""

    def to(self, device: torch.device | str) -> StepTarget:
        """The same on another device."""
        base = self.log_base
        return replace(
            self,
            scored=self.scored.to(device),
            weights=self.weights.to(device, non_blocking=True),
            log_base=None if base is None else base.to(device, non_blocking=True),
        )

    def cross_entropy(self, log_probs: Tensor) -> Tensor:
        """- Σ_s w_s log P(y_s), summed over rows, of the model's log-probabilities ``[B, K]``.

        With ``log_base``, P is renormalised on the candidates: P(y_s) base_s / Σ P(y_t) base_t.
        """
        if self.log_base is not None:
            scores = log_probs.masked_fill(self.log_base == -math.inf, 0.0) + self.log_base
            nothing = (self.log_base == -math.inf).all(1, keepdim=True)
            total = scores.masked_fill(nothing, 0.0).logsumexp(1, keepdim=True)
            log_probs = (scores - total).masked_fill(self.log_base == -math.inf, 0.0)
        return -(self.weights * log_probs).sum()


@dataclass(frozen=True)
class PreparedStep:
    """What a step is trained toward, but for the prior, which only the model can tell."""

    rewarded: RewardedCandidates
    ends: Sequence[Ends]
    arguments: RewardAugmentedArguments
    sampled: Candidates | None
    """The model's own samples, if there are any."""

    @property
    def scored(self) -> ScoredCandidates:
        """All candidates as the model generates them, in their order; those of no base measure, such as repetitions, are missing."""
        cands = self.rewarded.candidates
        lengths = cands.lengths.masked_fill(cands.log_base() == -math.inf, MISSING)
        return add_ends(Sentences(cands.tokens, lengths), self.ends)

    @property
    def known_log_probs(self) -> Tensor | None:
        """Log-probabilities ``[B, S]`` under the model that sampled all of them; None otherwise."""
        cands = self.rewarded.candidates
        found = cands.log_model
        if found is None or bool((found.isnan() & cands.present).any()):
            return None
        return found.nan_to_num()

    def weigh(self, log_prior: Tensor | None = None, *, keep_all: bool = False) -> StepTarget:
        """The target.

        Args:
            log_prior: log-probabilities ``[B, S]`` of all candidates under the prior, on the CPU.
            keep_all: keeps candidates that weigh nothing in their places.

        """
        rewarded, arguments = self.rewarded, self.arguments
        if log_prior is not None and arguments.length_normalization in ("prior", "both"):
            log_prior = log_prior / self.scored.lengths.clamp(min=1)
        target = rewarded.target(log_prior, arguments.prior_weight)
        weights = target.weights.masked_fill(rewarded.idle.unsqueeze(1), 0.0)
        outputs, kept, base = target.outputs, weights > 0, None
        if arguments.normalize_model:
            base = outputs.log_base().masked_fill(rewarded.idle.unsqueeze(1), -math.inf)
            kept = base > -math.inf
        statistics = statistics_of(rewarded, self.sampled)
        if rewarded.reward is not None:
            ess = target.effective_sample_size()
            statistics["ess"] = ess.masked_fill(rewarded.idle, math.nan)
        signature = target.signature + ":standardized" * arguments.standardize_rewards
        if keep_all:
            found = add_ends(outputs.sentences, self.ends)
            base = None if base is None else base.float()
            return StepTarget(found, weights.float(), signature, base, statistics)
        # with the first in place, so that a batch without anything to learn can be run, too
        kept[:, 0] |= ~kept.any() & outputs.present[:, 0]
        order = (~kept).long().argsort(dim=1, stable=True)[:, : max(1, int(kept.sum(1).max()))]
        missing = ~kept.gather(1, order)
        texts = outputs.select(order.masked_fill(missing, -1)).sentences
        weights = weights.gather(1, order).float()
        if base is not None:
            base = base.gather(1, order).masked_fill(missing, -math.inf).float()
        return StepTarget(add_ends(texts, self.ends), weights, signature, base, statistics)


class _IntactSampler:
    """A sampler without candidates in which a special token within the text of the reference has changed.

    There are hardly ever special tokens within a text.
    """

    def __init__(self, sampler: Sampler, specials: Collection[int], estimator: str) -> None:
        self.sampler, self.specials, self.estimator = sampler, specials, estimator

    def __call__(self, references: Sentences, *, generator: torch.Generator) -> Candidates:
        """Candidates ``[B, S, L]``; without their proposal where any may be dropped."""
        cands = self.sampler(references, generator=generator)
        special = torch.tensor(sorted(self.specials), dtype=torch.int64)
        real = length_mask(references.lengths, references.tokens.shape[-1])
        if not bool((torch.isin(references.tokens, special) & real).any()):
            return cands
        if self.estimator == "importance":
            raise RecipeError(
                "importance weights need references without special tokens within the text; use"
                " estimator 'set'"
            )
        wanted = [{self._specials_of(text) for text in row} for row in references.unpack()]
        lengths = cands.lengths.clone()
        for b, row in enumerate(cands.tokens.tolist()):
            for s, text in enumerate(row):
                length = int(lengths[b, s])
                if length >= 0 and self._specials_of(text[:length]) not in wanted[b]:
                    lengths[b, s] = MISSING
        return Candidates(cands.tokens, lengths)

    def _specials_of(self, tokens: TokenIds) -> tuple[int, ...]:
        return tuple(token for token in tokens if token in self.specials)


class StepTargets:
    """Makes the target of a step from rows of token ids, by `softq.neural.target_maker.TargetMaker`.

    Samplers and rewards see texts without the special tokens at their ends. These stay as they are in the reference, and
    candidates that would change a special token within the text are dropped. Rewards of rows without references are given
    an empty one.

    Args:
        arguments: objective, temperature, candidates, estimator.
        reward: on token ids.
        vocab: candidates are made of token ids below it.
        special: tokens that are no text, which candidates have at their ends as the reference does;
            none of them is written, replaced or removed, nor is an unknown word's.
        ends: the special tokens around texts of rows without references; an end-of-text token
            behind them if not given.

    """

    def __init__(
        self,
        arguments: RewardAugmentedArguments,
        reward: Reward,
        vocab: int,
        special: SpecialTokens,
        ends: Ends | None = None,
    ) -> None:
        self.arguments, self.special = arguments, special
        self._usual_ends = ends or Ends([], sorted(special.ends)[:1])
        likelihood = arguments.objective == "ml"
        size, never = arguments.candidate_size, sorted(i for i in special.unwritable if i < vocab)
        tau, max_n = arguments.tau or 0.0, arguments.max_n
        samplers = [
            _IntactSampler(
                make_sampler(name, size, vocab, never, tau, max_n=max_n),
                special.unwritable,
                arguments.estimator,
            )
            for name in arguments.candidate_kinds
            if not likelihood and name not in ("model", "dataset")
        ]
        # what is given with rewards may have them reference by reference; else others need room
        # beside references
        limits = [arguments.k] if arguments.k else []
        limits += [size] if {"ngram", "recombined"} & {*arguments.candidate_kinds} else []
        most = max(1, min(limits) // 2) if limits and not self.wants("dataset") else None
        self._make = TargetMaker(
            Objective(arguments.objective, None if likelihood else arguments.tau),
            reward,
            samplers,
            estimator=arguments.estimator,
            k=arguments.k,
            max_references=size if likelihood else most,
            add_references=arguments.add_references
            and arguments.candidates not in ("ngram", "recombined"),
            standardize=arguments.standardize_rewards,
        )

    def wants(self, kind: str) -> bool:
        """Whether candidates of this kind are asked for."""
        return self.arguments.objective != "ml" and kind in self.arguments.candidate_kinds

    def __call__(
        self, rows: Sequence[Row], generator: torch.Generator, *sampled: Candidates
    ) -> StepTarget | PreparedStep:
        """Candidates ``[B, K]`` and weights; these are yet to come where there is a prior.

        ``sampled`` are texts of the model's own, without special tokens at their ends.
        """
        for place, row in enumerate(rows):
            self._check(row, place)
        references = Sentences.pack(
            [
                [strip_specials(text, self.special.ids)[0] for text in row.references or [[]]]
                for row in rows
            ]
        )
        reward = with_sources(self._make.reward, [row.source for row in rows])
        given, complete = list(sampled), None
        if self.wants("dataset"):
            own, known = self._own(rows)
            given.insert(0, own)
            reward = KnownRewards(reward, known) if known else reward
            # what the user has scored is a set of its own
            alone = self.arguments.candidates == "dataset"
            complete = torch.tensor([alone and row.rewards is not None for row in rows])
        bare = torch.tensor([not row.references for row in rows])
        complete = bare if complete is None else bare | complete
        rewarded = self._make.prepare(
            references, generator, *given, reward=reward, complete=complete
        )
        own_samples = sampled[0] if sampled else None
        step = PreparedStep(rewarded, self.ends(rows), self.arguments, own_samples)
        return step.weigh() if self.arguments.prior == "none" else step

    def _check(self, row: Row, place: int) -> None:
        """Whether a row has what its objective, candidates and reward need."""
        if row.references:
            return
        which = f"row {place} of the batch has no 'labels'"
        if self.arguments.objective == "ml":
            raise DataError(f"{which}: ml trains on references alone, so every row needs some")
        edits = [
            kind for kind in self.arguments.candidate_kinds if kind not in ("model", "dataset")
        ]
        if edits:
            raise DataError(
                f"{which}: candidates {edits[0]!r} are made of references; use the model's own"
                " samples (candidates 'model')"
            )
        if not self._make.reward.uses_references:
            return
        if self.arguments.candidates != "dataset" or row.rewards is None:
            raise DataError(
                f"{which}, and the reward {self._make.reward.signature!r} compares with references:"
                " give a function of completions and prompts"
            )

    def _own(
        self, rows: Sequence[Row]
    ) -> tuple[Candidates, dict[tuple[int, tuple[int, ...]], list[float]]]:
        """The user's candidates, and what is known of their rewards, by example and text."""
        given: dict[tuple[int, tuple[int, ...]], list[list[float]]] = {}
        contents = []
        for b, row in enumerate(rows):
            if not row.candidates:
                raise DataError(
                    "candidates 'dataset' needs the column 'candidates' with one or more texts in"
                    " every row, a row has none"
                )
            contents.append([strip_specials(text, self.special.ids)[0] for text in row.candidates])
            for content, rewards in zip(
                contents[b], row.rewards or [], strict=row.rewards is not None
            ):
                given.setdefault((b, tuple(content)), []).append(rewards)
        return Candidates(*Sentences.pack(contents)), {
            text: _mean_rewards(several) for text, several in given.items()
        }

    def ends(self, rows: Sequence[Row]) -> list[Ends]:
        """The special tokens around the first reference of each row, and so around every candidate."""
        return [
            strip_specials(row.references[0], self.special.ids)[1]
            if row.references
            else self._usual_ends
            for row in rows
        ]


def add_ends(texts: Sentences, ends: Sequence[Ends]) -> ScoredCandidates:
    """Texts ``[B, K, L]`` with special tokens around those of each row."""
    before, after = (
        Sentences.pack([list(part) for part in side]) for side in zip(*ends, strict=True)
    )
    starts = before.lengths.unsqueeze(1)  # of the text, [B, 1]
    stops = starts + texts.lengths.clamp(min=0)  # [B, K]
    full = (stops + after.lengths.unsqueeze(1)).masked_fill(~texts.present, MISSING)
    copies = texts.lengths.shape[1]
    head, tail = (side.tokens.unsqueeze(1).expand(-1, copies, -1) for side in (before, after))
    together = pad(torch.cat([head, texts.tokens, tail], 2), (0, 1))  # one place at least
    # where each token of a candidate stands in there, [B, K, T]
    place = torch.arange(max(1, int(full.max()))).expand(*full.shape, -1)
    first_of_text, first_of_tail = head.shape[2], head.shape[2] + texts.tokens.shape[2]
    of_text = first_of_text + place - starts.unsqueeze(2)
    of_tail = first_of_tail + place - stops.unsqueeze(2)
    behind = torch.where(place < stops.unsqueeze(2), of_text, of_tail)
    at = torch.where(place < starts.unsqueeze(2), place, behind)
    return ScoredCandidates(together.gather(2, at.clamp(max=together.shape[2] - 1)), full)


class KnownRewards(RewardWrapper):
    """Rewards that the user has already, by example and text; those of other texts are computed."""

    pairwise = True  # a value for all references counts against each

    def __init__(
        self, reward: Reward, known: dict[tuple[int, tuple[int, ...]], list[float]]
    ) -> None:
        super().__init__(reward)
        self.known = known

    @property
    def signature(self) -> str:
        """Says that some are given."""
        return f"given+{self.reward.signature}"

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        """Rewards ``[B, S, R]``; one number for all references counts against each."""
        texts = [
            [tuple(row[:length]) for row, length in zip(*pair, strict=True)]
            for pair in zip(*map(Tensor.tolist, candidates), strict=True)
        ]
        found = [[self.known.get((b, text)) for text in row] for b, row in enumerate(texts)]
        unknown = (
            torch.tensor([[value is None for value in row] for row in found]) & candidates.present
        )
        rest = candidates._replace(lengths=candidates.lengths.masked_fill(~unknown, -1))
        values = (
            self.reward(*rest, *references)
            .expand(*candidates.lengths.shape, references.lengths.shape[1])
            .clone()
        )
        for b, row in enumerate(found):
            for s, given in enumerate(row):
                if given is not None and bool(candidates.present[b, s]):
                    values[b, s, references.present[b]] = torch.tensor(given, dtype=values.dtype)
        return values


def _mean_rewards(several: Sequence[list[float]]) -> list[float]:
    """Of a text that a row lists more than once, as two judges' scores of it."""
    if len({len(rewards) for rewards in several}) > 1:
        raise DataError(
            "candidate_rewards of a text that stands twice must be equally many each time, got"
            f" {several}"
        )
    return [sum(values) / len(several) for values in zip(*several, strict=True)]


def batch_seed(seed: int, epoch: int, *contents: bytes) -> int:
    """A seed for what is drawn for a batch.

    The same for the same rows in the same epoch, wherever and in whatever order they come.

    >>> batch_seed(0, 1, b"rows") == batch_seed(0, 1, b"rows"), batch_seed(0, 1, b"rows") == batch_seed(0, 2, b"rows")
    (True, False)
    """
    found = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8)
    for content in contents:
        found.update(content)
    return int.from_bytes(found.digest(), "little") >> 1
