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
        self.reward: Reward = SentenceBLEU(smoothing=settings.smoothing) if settings.reward == "bleu" else NegativeHamming()
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

    @property
    def signature(self) -> str:
        """Objective, reward and estimator in one word."""
        if self.objective.name == "ml":
            return "ml"
        chosen = self.settings
        drawn = f"{chosen.sampler}:size={chosen.size}" + (f":k={chosen.k}" if chosen.k else "")
        return f"{self.objective.name}:tau={self.objective.tau:g}:{self.reward.signature}:{drawn}:estimator={chosen.estimator}"

    def __call__(self, references: Sentences, generator: torch.Generator, drawn: distributions.Candidates | None = None) -> SampledTarget:
        """Weights on candidates for references ``[B, R, M]``; ``drawn`` are the model's own, on the CPU, where it draws them."""
        if self.objective.name == "ml":
            return ml(distributions.Candidates(*references), references)
        if drawn is not None:
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
        """All references, or as many of them, chosen at random, as leave half of the candidates of n-gram replacement to others."""
        most = max((self.settings.k or self.settings.size) // 2, 1)
        if self.settings.sampler != "ngram" or references.lengths.shape[1] <= most:
            return references
        rank = torch.rand(references.lengths.shape, generator=generator).masked_fill(~references.present, -1.0)
        chosen = rank.topk(most, 1).indices.sort(1).values
        lengths = references.lengths.gather(1, chosen)
        return Sentences(references.tokens.gather(1, chosen.unsqueeze(2).expand(-1, -1, references.tokens.shape[2])), lengths)
