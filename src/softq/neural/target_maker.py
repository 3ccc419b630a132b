"""From references to the target of a training step.

Candidates and their weights (eq. 2, 4 and 15 of the paper).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from softq.errors import RewardError
from softq.formats.vocabulary import SPECIALS, UNKNOWN
from softq.lab.recipe import Objective
from softq.neural.recipe import CandidateSettings
from softq.rewards import NegativeHamming, Reward, SentenceBLEU, named_reward
from softq.rewards.base import Precomputed, RewardWrapper
from softq.samplers import (
    EditStratified,
    HammingStratified,
    NgramReplacement,
    Recombination,
    Sampler,
)
from softq.sentences import MISSING, Sentences, aligned
from softq.spaces import Candidates
from softq.targets import Target, ml, target_of


@dataclass(frozen=True)
class RewardedCandidates:
    """Candidates of a batch and their rewards: a target as soon as its prior is known.

    Attributes:
        objective: its name and temperature.
        candidates: with their base measure. An example that has none has an empty one.
        references: those that rewards compare with.
        rewards: float64 ``[B, S, R]``, or ``[B, S, 1]``, as the reward returned them.
        reward: the same as the target has them, perhaps standardized; None for ``ml``.
        idle: bool ``[B]``, examples without any candidate.

    """

    objective: Objective
    candidates: Candidates
    references: Sentences
    rewards: Tensor | None
    reward: Precomputed | None
    idle: Tensor

    def target(self, prior: Tensor | None = None, prior_weight: float = 1.0) -> Target:
        """The target, times a power of the prior: log-probabilities ``[B, S]`` of the candidates."""
        if self.reward is None:
            return ml(self.candidates, self.references)
        name, tau = self.objective.name, self.objective.tau
        more = {} if prior is None else {"prior": prior, "prior_weight": prior_weight}
        return target_of(name, self.candidates, self.references, tau, self.reward, **more)

    def mean_rewards(self) -> Tensor:
        """Of each candidate, mean over references, ``[B, S]``."""
        if self.rewards is None:
            raise RewardError("likelihood has no rewards")
        return _mean_over_references(self.rewards, self.references).squeeze(2)


class TargetMaker:
    """Makes the target of a batch from its references.

    ML (eq. 2), RAML (eq. 4) or SQDML (eq. 15) on candidates.

    Args:
        objective: its name and temperature.
        reward: of RAML and SQDML, on token ids.
        samplers: called as ``sampler(references, generator=generator)``.
        estimator: how candidates are weighted (`softq.Candidates.measure`); ``printed`` is the
            paper's formula, which divides by exp(-Hamming distance / τ).
        k: how many candidates a step uses; None: all.
        max_references: how many references of an example a step uses, chosen at random; None: all.
        add_references: whether references join the candidates, which is for samplers that do not
            include them.

    """

    def __init__(
        self,
        objective: Objective,
        reward: Reward,
        samplers: Sequence[Callable[..., Candidates]],
        *,
        estimator: str = "set",
        k: int | None = None,
        max_references: int | None = None,
        add_references: bool = True,
    ) -> None:
        self.objective, self.reward, self.samplers = objective, reward, samplers
        self.estimator, self.k = estimator, k
        self.max_references, self.add_references = max_references, add_references

    def __call__(
        self,
        references: Sentences,
        generator: torch.Generator,
        *given: Candidates,
        reward: Reward | None = None,
        complete: Tensor | None = None,
    ) -> Target:
        """The target without a prior; arguments as for `prepare`."""
        return self.prepare(
            references, generator, *given, reward=reward, complete=complete
        ).target()

    def prepare(
        self,
        references: Sentences,
        generator: torch.Generator,
        *given: Candidates,
        reward: Reward | None = None,
        complete: Tensor | None = None,
        standardize: bool = False,
    ) -> RewardedCandidates:
        """Candidates for references ``[B, R, M]`` and their rewards, on the CPU.

        Args:
            references: of B examples.
            generator: of all that is sampled.
            given: candidates from elsewhere, such as the model's own samples.
            reward: for this batch alone, in place of the reward.
            complete: bool ``[B]``, examples whose candidates need no references beside them.
            standardize: whether rewards of an example have mean 0 and standard deviation 1.

        """
        references = _choose_references(references, self.max_references, generator)
        if self.objective.name == "ml":
            cands, nobody = Candidates(*references), torch.zeros(len(references.lengths)).bool()
            return RewardedCandidates(self.objective, cands, references, None, None, nobody)
        made = (sampler(references, generator=generator) for sampler in self.samplers)
        sets = [*given, *made]
        cands = sets[0] if len(sets) == 1 else sets[0].beside(*sets[1:])
        if self.add_references:
            lengths = references.lengths
            if complete is not None:
                lengths = lengths.masked_fill(complete.unsqueeze(1), MISSING)
            cands = cands.with_references(references._replace(lengths=lengths))
        cands, used = self._measured(cands, references, generator), reward or self.reward
        values = used.checked_score(*aligned(cands.sentences, references))
        scores = standardized(values, cands, references) if standardize else values
        idle = ~cands.present.any(1)
        if bool(idle.any()):
            cands = _with_stand_ins(cands, idle)
        known = Precomputed(used, scores)
        return RewardedCandidates(self.objective, cands, references, values, known, idle)

    def _measured(
        self, cands: Candidates, references: Sentences, generator: torch.Generator
    ) -> Candidates:
        """The candidates with their base measure."""
        estimator = self.estimator
        if estimator == "printed":
            # exp(hm/τ), where hm is minus the distance to the nearest reference
            hamming = NegativeHamming()(*cands.sentences, *references).masked_fill(
                ~references.present.unsqueeze(1), -math.inf
            )
            tau = self.objective.tau or 0.0
            cands = dataclasses.replace(cands, log_proposal=hamming.amax(2) / tau)
            estimator = "importance"
        k = None if self.k is None else min(self.k, cands.tokens.shape[1])
        return cands.measure(estimator, k, generator=generator)  # type: ignore[arg-type]


def standardized(rewards: Tensor, cands: Candidates, references: Sentences) -> Tensor:
    """Mean rewards with mean 0 and standard deviation 1 over the candidates of each example.

    Rewards ``[B, S, R]`` are first averaged over references, as SQDML does, so that all of these
    have the same. Where all candidates are equally good, the rewards are 0.

    >>> cands = Candidates(*Sentences.pack([[[4], [5], [6]], [[4], [5]]]))
    >>> rewards = torch.tensor([[[1.0], [2.0], [3.0]], [[0.1], [0.1], [0.0]]])
    >>> standardized(rewards, cands, Sentences.pack([[[4]], [[4]]]))[..., 0]
    tensor([[-1.2247,  0.0000,  1.2247],
            [ 0.0000,  0.0000,  0.0000]])
    """
    mean, there = _mean_over_references(rewards, references), cands.present.unsqueeze(2)
    count = there.sum(1, keepdim=True).clamp(min=1)
    centred = (mean - (mean * there).sum(1, keepdim=True) / count).masked_fill(~there, 0.0)
    deviation = (centred.square().sum(1, keepdim=True) / count).sqrt()
    highest = mean.masked_fill(~there, -math.inf).amax(1, keepdim=True)
    differ = (highest > mean.masked_fill(~there, math.inf).amin(1, keepdim=True)) & there
    return torch.where(differ, centred / deviation, 0.0).expand_as(rewards)


def _mean_over_references(rewards: Tensor, references: Sentences) -> Tensor:
    """Rewards ``[B, S, R]``, or ``[B, S, 1]``, as ``[B, S, 1]``."""
    if rewards.shape[2] == 1:
        return rewards
    there = references.present.unsqueeze(1)
    return (rewards * there).sum(2, keepdim=True) / there.sum(2, keepdim=True).clamp(min=1)


def _with_stand_ins(cands: Candidates, idle: Tensor) -> Candidates:
    """An empty text for those examples that have no candidate: their weights count for nothing."""
    lengths = cands.lengths.clone()
    lengths[idle, 0] = 0
    proposal = cands.log_proposal
    if proposal is not None:
        proposal = proposal.masked_fill(idle.unsqueeze(1), 0.0)
    return dataclasses.replace(cands, lengths=lengths, log_proposal=proposal)


class UnknownNeverMatches(RewardWrapper):
    """A reward on token ids in which an unknown word of a reference equals no word of a candidate, as in evaluation.

    Args:
        reward: on token ids.
        unknown: the token id of unknown words.

    >>> reward = UnknownNeverMatches(SentenceBLEU(max_order=1), unknown=3)
    >>> sentence = Sentences.pack([[[7, 3, 8, 9]]])
    >>> round(reward(*sentence, *sentence).item(), 6)
    0.75

    """

    def __init__(self, reward: Reward, unknown: int) -> None:
        super().__init__(reward)
        self.unknown = unknown

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        """Rewards of candidates ``[B, S, L]`` against references ``[B, R, M]``, ``[B, S, R]``."""
        is_unknown = references.tokens == self.unknown
        if not bool(is_unknown.any()):
            return self.reward.score(candidates, references)
        new = 1 + max(int(part.tokens.max()) for part in (candidates, references) if len(part[0]))
        tokens = references.tokens.masked_fill(is_unknown, new)
        return self.reward.score(candidates, references._replace(tokens=tokens))


def _choose_references(
    references: Sentences, most: int | None, generator: torch.Generator
) -> Sentences:
    """At most ``most`` references of each example ``[B, R, M]``, chosen at random; all if None."""
    if most is None or references.lengths.shape[1] <= most:
        return references
    rank = torch.rand(references.lengths.shape, generator=generator).masked_fill(
        ~references.present, -1.0
    )
    chosen = rank.topk(most, 1).indices.sort(1).values
    at = chosen.unsqueeze(2).expand(-1, -1, references.tokens.shape[2])
    return Sentences(references.tokens.gather(1, at), references.lengths.gather(1, chosen))


def make_sampler(
    name: str,
    size: int,
    vocab: int,
    specials: Collection[int],
    tau: float,
    *,
    max_n: int = 4,
    frequencies: Tensor | None = None,
    rescale: bool = True,
) -> Sampler:
    """The sampler called ``ngram``, ``recombined``, ``hamming`` or ``edit``."""
    if name == "ngram":
        return NgramReplacement(vocab, max_n, size, specials=specials, frequencies=frequencies)
    if name == "recombined":
        return Recombination(size, max_n)
    stratified = HammingStratified if name == "hamming" else EditStratified
    return stratified(vocab, tau, size, specials=specials, rescale=rescale)


def recipe_targets(
    objective: Objective,
    settings: CandidateSettings,
    vocab: int,
    frequencies: Tensor | None = None,
) -> TargetMaker:
    """The targets that a recipe asks for.

    Args:
        objective: its name and temperature.
        settings: of candidates.
        vocab: number of tokens, special ones included.
        frequencies: of tokens in the training text, ``[vocab]``, where the settings ask for them.

    >>> make = recipe_targets(Objective("raml", 0.5), CandidateSettings(size=4), vocab=50)
    >>> make(Sentences.pack([[[7, 8, 9]]]), torch.Generator().manual_seed(0)).weights.shape
    torch.Size([1, 4])

    """
    tau, ml_alone = objective.tau or 0.0, objective.name == "ml"

    @lru_cache
    def sampler(name: str, size: int) -> Sampler:
        by = frequencies if settings.replacements == "frequencies" else None
        options: dict[str, Any] = {"max_n": settings.max_n, "rescale": settings.rescale}
        return make_sampler(name, size, vocab, range(SPECIALS), tau, frequencies=by, **options)

    def changed(name: str, references: Sentences, *, generator: torch.Generator) -> Candidates:
        # a sampler counts references among what it makes; of several, each makes its share beside
        # them
        several = settings.share + references.lengths.shape[1]
        size = settings.size if settings.alone else several
        return sampler(name, size)(references, generator=generator)

    made = [name for name in ("ngram", "recombined", "hamming") if name in settings.samplers]
    if not ml_alone and settings.reward == "hamming":
        # The target is the law that is sampled from, at its temperature; a replaced unknown word is
        # as far as any other.
        drawn = sampler("hamming", settings.size)
        objective = dataclasses.replace(objective, tau=drawn.temperature)  # type: ignore[attr-defined]
    reward = _reward(settings)
    return TargetMaker(
        objective,
        reward if settings.reward == "hamming" else UnknownNeverMatches(reward, UNKNOWN),
        [partial(changed, name) for name in made],
        estimator=settings.estimator,
        k=settings.k or None,
        max_references=None if ml_alone else settings.max_references,
        add_references=not (settings.alone and made),
    )


def target_signature(objective: Objective, settings: CandidateSettings) -> str:
    """What a model was trained toward: objective, reward, candidates and estimator.

    >>> target_signature(Objective("raml", 0.4), CandidateSettings(sampler="hamming", reward="hamming", estimator="importance"))
    'raml:tau=0.4:negative-hamming:hamming:size=10:rescale=on:estimator=importance'
    """
    if objective.name == "ml":
        return "ml"
    details = {
        "ngram": f":n={settings.max_n}:{settings.replacements}",
        "model": ":refresh=epoch" if settings.refresh == "epoch" else "",
        "near": f":of={settings.neighbours}",
        "recombined": f":n={settings.max_n}",
    }
    kind = "+".join(f"{name}{details.get(name, '')}" for name in settings.samplers)
    drawn = f"{kind}:size={settings.size}" + (f":k={settings.k}" if settings.k else "")
    if settings.sampler == "hamming":
        drawn += f":rescale={'on' if settings.rescale else 'off'}"
    return f"{objective.name}:tau={objective.tau:g}:{_reward(settings).signature}:{drawn}:estimator={settings.estimator}"


def _reward(settings: CandidateSettings) -> Reward:
    return (
        SentenceBLEU(smoothing=settings.smoothing)
        if settings.reward == "bleu"
        else named_reward(settings.reward)
    )
