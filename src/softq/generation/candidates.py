"""From references to what a step is trained toward: candidates and their weights, as a recipe says."""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

import softq.distributions as distributions
from softq.data.vocabulary import SPECIALS
from softq.generation.recipe import Candidates
from softq.recipe import Objective
from softq.rewards import NegativeHamming, Reward, SentenceBLEU
from softq.sampled import SampledTarget
from softq.samplers import HammingStratified, NgramReplacement, Sampler
from softq.sentences import Sentences
from softq.targets import ml, raml, sqdml


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

    def __init__(self, objective: Objective, settings: Candidates, vocab: int, frequencies: Tensor | None = None) -> None:
        self.objective, self.settings = objective, settings
        self.reward = _reward(settings)
        self._sampler: Sampler | None = None
        self._tau = objective.tau or 0.0
        if objective.name == "ml" or settings.sampler == "model":
            return
        if settings.sampler == "hamming":
            drawn = HammingStratified(vocab, self._tau, settings.size, specials=range(SPECIALS), rescale=settings.rescale)
            if settings.reward == "hamming":
                self._tau = drawn.temperature  # target and proposal are one law
            self._sampler = drawn
        else:
            by_frequency = frequencies if settings.replacements == "frequencies" else None
            self._sampler = NgramReplacement(vocab, settings.max_n, settings.size, specials=range(SPECIALS), frequencies=by_frequency)

    @property
    def from_model(self) -> bool:
        """Whether the candidates are the model's own, which the caller draws."""
        return self.objective.name != "ml" and self.settings.sampler == "model"

    def __call__(self, references: Sentences, generator: torch.Generator, drawn: distributions.Candidates | None = None) -> SampledTarget:
        """Weights on candidates for references ``[B, R, M]``; ``drawn`` are the model's own, on the CPU, where it draws them."""
        if self.objective.name == "ml":
            return ml(distributions.Candidates(*references), references)
        if drawn is not None:
            references = self._some(references, generator)
            cands = drawn.with_references(references)
        elif self._sampler is not None:
            references = self._some(references, generator)
            cands = self._sampler(references, generator=generator)
        else:
            raise ValueError("candidates of the model must be given")
        estimator = self.settings.estimator
        if estimator == "printed":
            # exp(hm/τ), hm minus the distance to the nearest reference: what the paper divides by, whatever τ was drawn with
            hamming = NegativeHamming()(*cands.sentences, *references).masked_fill(~references.present.unsqueeze(1), -math.inf)
            cands = dataclasses.replace(cands, log_proposal=hamming.amax(2) / self._tau)
            estimator = "importance"
        target = raml if self.objective.name == "raml" else sqdml
        return target(cands, references, self._tau, self.reward, estimator=estimator, k=self.settings.k or None, generator=generator)

    def _some(self, references: Sentences, generator: torch.Generator) -> Sentences:
        """All references, or as many of them, chosen at random, as leave half of what a step uses to others."""
        most = (self.settings.k or self.settings.size) // 2
        limited = self.settings.sampler == "ngram" or self.settings.k > 0
        if not limited or references.lengths.shape[1] <= most:
            return references
        rank = torch.rand(references.lengths.shape, generator=generator).masked_fill(~references.present, -1.0)
        chosen = rank.topk(most, 1).indices.sort(1).values
        lengths = references.lengths.gather(1, chosen)
        return Sentences(references.tokens.gather(1, chosen.unsqueeze(2).expand(-1, -1, references.tokens.shape[2])), lengths)


def target_signature(objective: Objective, settings: Candidates) -> str:
    """What a model was trained toward: objective, reward, candidates and estimator.

    >>> target_signature(Objective("raml", 0.4), Candidates(sampler="hamming", reward="hamming", estimator="importance"))
    'raml:tau=0.4:negative-hamming:hamming:size=10:rescale=on:estimator=importance'
    """
    if objective.name == "ml":
        return "ml"
    kind = {"ngram": f"ngram:n={settings.max_n}:{settings.replacements}", "hamming": "hamming", "model": "model"}[settings.sampler]
    drawn = f"{kind}:size={settings.size}" + (f":k={settings.k}" if settings.k else "")
    if settings.sampler == "hamming":
        drawn += f":rescale={'on' if settings.rescale else 'off'}"
    return f"{objective.name}:tau={objective.tau:g}:{_reward(settings).signature}:{drawn}:estimator={settings.estimator}"


def _reward(settings: Candidates) -> Reward:
    return SentenceBLEU(smoothing=settings.smoothing) if settings.reward == "bleu" else NegativeHamming()
