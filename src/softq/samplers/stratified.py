"""Samplers that draw a sentence at a random distance from a reference (Norouzi et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch

from softq.checks import check_count, check_tau
from softq.errors import SamplerError
from softq.kernels.random import draw_seeds
from softq.kernels.text.sets import Rows
from softq.kernels.text.stratified import (
    EditLaw,
    ReplacementWords,
    edit_law,
    stratified_samples,
)
from softq.kernels.text.words import Array
from softq.samplers.automaton import exact_edit_samples
from softq.samplers.common import as_tensors, read_vocabulary, ready_references, unpack_example
from softq.sentences import References, Sentences
from softq.spaces import Candidates


class _Stratified:
    """Options common to both: a vocabulary, a temperature, a number of independent draws.

    Attributes:
        temperature: τ that is used, after rescaling.

    """

    _others: ClassVar[int]  # how many other words there are in place of one, less their number

    def __init__(
        self,
        vocab: int | Sized,
        tau: float,
        size: int = 100,
        *,
        specials: Iterable[int] = (),
        rescale: bool = False,
        keep_last: bool = False,
        pad: int = 0,
    ) -> None:
        self.vocab, self.words = read_vocabulary(vocab, specials)
        self.size = check_count("size", size, SamplerError)
        self.rescale = rescale
        self.tau = check_tau(tau)
        others = max(len(self.words) + self._others, 1)
        self.temperature = self.tau / (1.0 + math.log(others)) if rescale else self.tau
        self.keep_last, self.pad = keep_last, pad
        place = np.full(self.vocab, -1)
        place[self.words] = np.arange(len(self.words))
        self._words = ReplacementWords(self.words, place)

    def _samples(self, references: Rows, seeds: Array, law: float | EditLaw) -> Candidates:
        """Draws by a law, as wide as the kernel made them."""
        options = self._words, law, self.keep_last, self.pad, self.size
        made, log_prob = stratified_samples(references, seeds, *options)
        tokens, lengths, log_proposal = as_tensors(made, log_prob)
        return Candidates(tokens, lengths, log_proposal)


class HammingStratified(_Stratified):
    """Independent draws from q_hm(y|y*) ∝ exp(-Hamming distance / τ) (paper, Appendix D.2.4).

    They are as long as the reference.

    There are c(d, L) = C(L, d)(V-1)^d sentences at distance d, and those of one distance are
    equally likely: each position changes on its own, to any other word. With several references a
    draw first takes one of them uniformly. ``log_proposal`` is the exact log-probability under the
    mixture.

    Args:
        vocab: number of words, or the words themselves.
        tau: temperature. Without ``rescale`` nearly every word changes at usual temperatures,
            because there are so many wrong sentences.
        size: draws per example.
        specials: word numbers never to be written; V is the number of the others. A special in a
            reference may be replaced.
        rescale: use τ / (1 + log(V-1)), the paper's footnote, which brings it to about one change
            at usual temperatures.
        keep_last: never touch the last token, such as an end mark.
        pad: what stands behind the end of a sentence.

    >>> sampler = HammingStratified(22821, tau=0.85, size=1000, rescale=True)
    >>> cands = sampler(torch.arange(20).unsqueeze(0), generator=torch.Generator().manual_seed(0))
    >>> changed = (cands.tokens != torch.arange(20)).sum(-1).float()  # words of 20
    >>> round(float(changed.mean()), 1)
    0.9

    """

    _others = -1

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, M]``; see the class."""
        references = ready_references(refs, self.vocab, self.pad)
        seeds = draw_seeds(len(references.lengths), generator)
        return self._samples(references, seeds, -1.0 / self.temperature)


class EditStratified(_Stratified):
    """Independent draws of sentences a few edits away (Norouzi et al. 2016).

    Edits are insertions, deletions and substitutions.

    The number of edits e is drawn with weight c(e, L) exp(-e/τ), where c(e, L) = Σ_s C(L, s) C(L +
    e - 2s, e - s) V^e counts ways to edit s words (another word, or none) and insert e - s.
    Different ways may lead to the same sentence, and e edits may amount to fewer, so this is close
    to exp(-edit distance / τ) but not equal to it; ``log_proposal`` is the exact log-probability of
    what is sampled, all ways added up. Edits are at most as many as the reference has words.

    With ``exact=True`` the draws do come from q(y|y*) ∝ exp(-edit distance / τ), over all sentences
    within ``max_edits``, by an automaton that reads a sentence and knows its distance. That takes
    time and memory that grow fast with length and edits.

    Args:
        vocab: number of words, or the words themselves.
        tau: temperature; see `HammingStratified`.
        size: draws per example.
        specials: word numbers never to be written; V is the number of the others. A special in a
            reference is replaced but not left out.
        rescale: use τ / (1 + log V).
        max_edits: at most so many edits.
        exact: draw from the exponentiated payoff of the edit distance itself; asks for
            ``max_edits``.
        keep_last: never touch the last token, such as an end mark.
        pad: what stands behind the end of a sentence.

    >>> sampler = EditStratified(1000, tau=0.8, size=3, rescale=True)
    >>> sampler([[5, 6, 7, 8]], generator=torch.Generator().manual_seed(3)).lengths
    tensor([[5, 4, 5]])

    """

    _others = 0

    def __init__(
        self,
        vocab: int | Sized,
        tau: float,
        size: int = 100,
        *,
        specials: Iterable[int] = (),
        rescale: bool = False,
        max_edits: int | None = None,
        exact: bool = False,
        keep_last: bool = False,
        pad: int = 0,
    ) -> None:
        super().__init__(
            vocab, tau, size, specials=specials, rescale=rescale, keep_last=keep_last, pad=pad
        )
        self.max_edits = (
            None if max_edits is None else check_count("max_edits", max_edits, SamplerError)
        )
        if exact and max_edits is None:
            raise SamplerError(
                "exact=True needs max_edits: sentences of any length are within reach, "
                "and must be bounded"
            )
        self.exact = exact

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, L]``; see the class."""
        references = ready_references(refs, self.vocab, self.pad, allow_empty=True)
        seeds = draw_seeds(len(references.lengths), generator)
        log_change, width = -1.0 / self.temperature, references.tokens.shape[1]
        if self.exact and self.max_edits is not None:
            examples = [unpack_example(references, b) for b in range(len(seeds))]
            options = self.words, log_change, self.max_edits, self.size, self.keep_last
            drawn = exact_edit_samples(examples, seeds, *options)
            packed = Sentences.pack([rows for rows, _ in drawn], pad=self.pad)
            values = torch.tensor([values for _, values in drawn], dtype=torch.float64)
            dtype = torch.from_numpy(references.tokens).dtype
            return Candidates(packed.tokens.to(dtype), packed.lengths, values)
        most = width if self.max_edits is None else min(self.max_edits, width)
        law = edit_law(width, len(self.words), log_change, most)
        made = self._samples(references, seeds, law)
        longest = int(made.lengths.max()) if made.lengths.numel() else 0
        return replace(made, tokens=made.tokens[..., :longest].contiguous())
