"""From rows of a dataset to the candidates of a step and their weights, in token ids as the model generates them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softq.errors import DataError, RecipeError
from softq.integrations.transformers.arguments import RewardAugmentedArguments
from softq.integrations.transformers.rewards import with_sources
from softq.integrations.transformers.step_target import PreparedStep, StepTarget, WeightRules
from softq.integrations.transformers.tokens import Ends, SpecialTokens, TokenIds, strip_specials
from softq.lab.recipe import Objective
from softq.neural.target_maker import TargetMaker, make_sampler
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
        self._rules = WeightRules.of(arguments)
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
        references = self._references(rows)
        reward = with_sources(self._make.reward, [row.source for row in rows])
        given, complete = list(sampled), torch.tensor([not row.references for row in rows])
        if self.wants("dataset"):
            own, known = self._own(rows)
            given.insert(0, own)
            reward = KnownRewards(reward, known) if known else reward
            if (
                self.arguments.candidates == "dataset"
            ):  # what the user has scored is a set of its own
                complete |= torch.tensor([row.rewards is not None for row in rows])
        standardize = self.arguments.standardize_rewards
        rewarded = self._make.prepare(
            references, generator, *given, reward=reward, complete=complete, standardize=standardize
        )
        own_samples = sampled[0] if sampled else None
        step = PreparedStep(rewarded, self.ends(rows), self._rules, own_samples)
        return step.weigh() if self.arguments.prior == "none" else step

    def _references(self, rows: Sequence[Row]) -> Sentences:
        """Texts ``[B, R, M]`` without special tokens at their ends, an empty one where there is none."""
        return Sentences.pack(
            [
                [strip_specials(text, self.special.ids)[0] for text in row.references or [[]]]
                for row in rows
            ]
        )

    def weighs(self, rows: Sequence[Row]) -> bool:
        """Whether a batch has a target of its own: not for ``ml`` with one reference."""
        return self.arguments.objective != "ml" or any(len(row.references) > 1 for row in rows)

    def check(self, row: Row, place: int) -> None:
        """Whether a row of a batch has what its objective, candidates and reward need."""
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
