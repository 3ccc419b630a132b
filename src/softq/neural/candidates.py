"""From references to what a step is trained toward: candidates and their weights, as a recipe says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

import softq.spaces as distributions
from softq.formats.vocabulary import SPECIALS
from softq.lab.recipe import Objective
from softq.neural.recipe import Candidates, SamplerName
from softq.rewards import NegativeHamming, Reward, SentenceBLEU, named_reward
from softq.samplers import HammingStratified, NgramReplacement, Recombination, Sampler
from softq.sentences import Sentences
from softq.targets import Target, ml, target_of


class TargetMaker:
    """Makes the target of a batch from its references: ML (eq. 2), RAML (eq. 4) or SQDML (eq. 14) on candidates.

    Args:
        objective: which, and at what temperature.
        settings: which candidates.
        vocab: number of words, specials among them.
        frequencies: of words in the training text, ``[vocab]``, where the settings ask for them.

    >>> make = TargetMaker(Objective("raml", 0.5), Candidates(size=4), vocab=50)
    >>> make(Sentences.pack([[[7, 8, 9]]]), torch.Generator().manual_seed(0)).weights.shape
    torch.Size([1, 4])

    """

    def __init__(
        self,
        objective: Objective,
        settings: Candidates,
        vocab: int,
        frequencies: Tensor | None = None,
    ) -> None:
        self.objective, self.settings = objective, settings
        self.reward = _reward(settings)
        self._samplers: list[Callable[[int], Sampler]] = []  # for so many candidates
        self._tau = objective.tau or 0.0
        if objective.name == "ml":
            return
        specials = range(SPECIALS)
        if "ngram" in settings.samplers:
            by_frequency = frequencies if settings.replacements == "frequencies" else None
            self._samplers.append(
                lru_cache(
                    lambda size: NgramReplacement(
                        vocab, settings.max_n, size, specials=specials, frequencies=by_frequency
                    )
                )
            )
        if "recombined" in settings.samplers:
            self._samplers.append(lambda size: Recombination(size, settings.max_n))
        if "hamming" in settings.samplers:
            drawn = HammingStratified(
                vocab, self._tau, settings.size, specials=specials, rescale=settings.rescale
            )
            if settings.reward == "hamming":
                self._tau = drawn.temperature  # target and proposal are one law
            self._samplers.append(lambda _: drawn)

    def wants(self, sampler: SamplerName) -> bool:
        """Whether the caller is to give candidates of this kind: ``model`` are the model's own, ``near`` those of inputs that are alike."""
        return self.objective.name != "ml" and sampler in self.settings.samplers

    def __call__(
        self, references: Sentences, generator: torch.Generator, *given: distributions.Candidates
    ) -> Target:
        """Weights on candidates for references ``[B, R, M]``, on the CPU; ``given`` are those that it `wants`."""
        if self.objective.name == "ml":
            return ml(distributions.Candidates(*references), references)
        references = self._some(references, generator)
        # a sampler counts references among what it makes; of several, each makes its share beside them
        size = (
            self.settings.size
            if self.settings.alone
            else self.settings.share + references.lengths.shape[1]
        )
        sets = [
            *given,
            *(sampler(size)(references, generator=generator) for sampler in self._samplers),
        ]
        if len(sets) != len(self.settings.samplers):
            raise ValueError(
                f"expected candidates of all of {self.settings.sampler}, got {len(sets)} sets"
            )
        cands = sets[0] if len(sets) == 1 else sets[0].beside(*sets[1:])
        if given or len(sets) > 1:
            cands = cands.with_references(references)
        estimator = self.settings.estimator
        if estimator == "printed":
            # exp(hm/τ), hm minus the distance to the nearest reference: what the paper divides by, whatever τ was drawn with
            hamming = NegativeHamming()(*cands.sentences, *references).masked_fill(
                ~references.present.unsqueeze(1), -math.inf
            )
            cands = dataclasses.replace(cands, log_proposal=hamming.amax(2) / self._tau)
            estimator = "importance"
        cands = cands.measure(estimator, self.settings.k or None, generator=generator)
        return target_of(self.objective.name, cands, references, self._tau, self.reward)

    def _some(self, references: Sentences, generator: torch.Generator) -> Sentences:
        """All references, or as many of them, chosen at random, as leave half of what a step uses to others."""
        limits = [self.settings.k] if self.settings.k else []
        limits += (
            [self.settings.size] if self.settings.alone and self.settings.holds_references else []
        )
        return some_references(references, min(limits) // 2 if limits else None, generator)


def some_references(
    references: Sentences, most: int | None, generator: torch.Generator
) -> Sentences:
    """At most so many references of each example ``[B, R, M]``, chosen at random; all if None."""
    if most is None or references.lengths.shape[1] <= most:
        return references
    rank = torch.rand(references.lengths.shape, generator=generator).masked_fill(
        ~references.present, -1.0
    )
    chosen = rank.topk(most, 1).indices.sort(1).values
    lengths = references.lengths.gather(1, chosen)
    return Sentences(
        references.tokens.gather(1, chosen.unsqueeze(2).expand(-1, -1, references.tokens.shape[2])),
        lengths,
    )


def target_signature(objective: Objective, settings: Candidates) -> str:
    """What a model was trained toward: objective, reward, candidates and estimator.

    >>> target_signature(Objective("raml", 0.4), Candidates(sampler="hamming", reward="hamming", estimator="importance"))
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


def _reward(settings: Candidates) -> Reward:
    return (
        SentenceBLEU(smoothing=settings.smoothing)
        if settings.reward == "bleu"
        else named_reward(settings.reward)
    )
