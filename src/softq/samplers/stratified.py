"""Samplers that draw how far to go from a reference, and then a sentence at that distance (Norouzi et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sized

import numpy as np
import torch

from softq.checks import check_tau
from softq.distributions import Candidates
from softq.errors import SamplerError
from softq.kernels.jit import draw_seeds
from softq.kernels.stratified import edit_law, edit_samples, hamming_samples
from softq.samplers.automaton import exact_edit_samples
from softq.samplers.words import Array, check_count, ready_references, replacement_words, vocabulary_size
from softq.sentences import References, Sentences


class _Stratified:
    """Options common to both: a vocabulary, a temperature, a number of independent draws."""

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
        self.vocab = vocabulary_size(vocab)
        self.words = replacement_words(self.vocab, specials)
        self.size = check_count("size", size)
        self.rescale = rescale
        self.tau = check_tau(tau)
        self.keep_last = keep_last
        self.pad = pad
        self._place = np.full(self.vocab, -1)
        self._place[self.words] = np.arange(len(self.words))

    def _made(self, tokens: Array, lengths: Array, log_prob: Array) -> Candidates:
        return Candidates(torch.from_numpy(tokens), torch.from_numpy(lengths), torch.from_numpy(log_prob))


class HammingStratified(_Stratified):
    """Independent draws from q_hm(y|y*) ∝ exp(-Hamming distance / τ) over sentences as long as the reference (paper, Appendix D.2.4).

    The distance d is drawn first, with c(d, L) = C(L, d)(V-1)^d sentences at each, then a sentence at that distance
    uniformly. With several references a draw first takes one of them uniformly. ``log_proposal`` is the exact log-probability under
    the mixture.

    Args:
        vocab: number of words, or the words themselves.
        tau: temperature. Without ``rescale`` nearly every word changes at usual temperatures, because there are so many wrong sentences.
        size: draws per example.
        specials: word numbers never to be written; V is the number of the others. A special in a reference may be replaced.
        rescale: use τ / (1 + log(V-1)), the paper's footnote, which brings it to about one change at usual temperatures.
        keep_last: never touch the last token, such as an end mark.
        pad: what stands behind the end of a sentence.

    >>> sampler = HammingStratified(22821, tau=0.85, size=1000, rescale=True)
    >>> cands = sampler(torch.arange(20).unsqueeze(0), generator=torch.Generator().manual_seed(0))
    >>> round(float((cands.tokens != torch.arange(20)).sum(-1).float().mean()), 1)  # changed words of 20
    0.9

    """

    @property
    def temperature(self) -> float:
        """τ that is used, after rescaling."""
        return self.tau / (1.0 + math.log(max(len(self.words) - 1, 1))) if self.rescale else self.tau

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, M]``; see the class."""
        references = ready_references(refs, self.vocab, self.pad)
        batch, count, width = references.tokens.shape
        rows, ref_lengths = references.tokens.reshape(batch * count, width).numpy(), references.lengths.numpy()
        tokens = np.empty((batch, self.size, width), dtype=rows.dtype)
        lengths = np.empty((batch, self.size), dtype=np.int64)
        log_prob = np.empty((batch, self.size))
        flat = tokens.reshape(batch * self.size, width)
        law = self.words, self._place, -1.0 / self.temperature
        hamming_samples(rows, ref_lengths, draw_seeds(batch, generator), *law, self.keep_last, flat, lengths, log_prob)
        return self._made(tokens, lengths, log_prob)


class EditStratified(_Stratified):
    """Independent draws of sentences a few edits away: insertions, deletions and substitutions (Norouzi et al. 2016).

    The number of edits e is drawn with weight c(e, L) exp(-e/τ), where c(e, L) = Σ_s C(L, s) C(L + e - 2s, e - s) V^e counts
    ways to edit s words (another word, or none) and insert e - s. Different ways may lead to the same sentence, and e
    edits may amount to fewer, so this is close to exp(-edit distance / τ) but not equal to it; ``log_proposal`` is the exact
    log-probability of what is sampled, all ways added up. Edits are at most as many as the reference has words.

    With ``exact=True`` the draws do come from q(y|y*) ∝ exp(-edit distance / τ), over all sentences within ``max_edits``, by an
    automaton that reads a sentence and knows its distance. That takes time and memory that grow fast with length and edits.

    Args:
        vocab: number of words, or the words themselves.
        tau: temperature; see `HammingStratified`.
        size: draws per example.
        specials: word numbers never to be written; V is the number of the others. A special in a reference is replaced but not left out.
        rescale: use τ / (1 + log V).
        max_edits: at most so many edits.
        exact: draw from the exponentiated payoff of the edit distance itself; asks for ``max_edits``.
        keep_last: never touch the last token, such as an end mark.
        pad: what stands behind the end of a sentence.

    >>> sampler = EditStratified(1000, tau=0.8, size=3, rescale=True)
    >>> sampler([[5, 6, 7, 8]], generator=torch.Generator().manual_seed(3)).lengths
    tensor([[5, 4, 4]])

    """

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
        super().__init__(vocab, tau, size, specials=specials, rescale=rescale, keep_last=keep_last, pad=pad)
        self.max_edits = None if max_edits is None else check_count("max_edits", max_edits)
        if exact and max_edits is None:
            raise SamplerError("exact=True needs max_edits: sentences of any length are within reach, and must be bounded")
        self.exact = exact

    @property
    def temperature(self) -> float:
        """τ that is used, after rescaling."""
        return self.tau / (1.0 + math.log(len(self.words))) if self.rescale else self.tau

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, L]``; see the class."""
        references = ready_references(refs, self.vocab, self.pad, allow_empty=True)
        seeds = draw_seeds(len(references.tokens), generator)
        if self.exact and self.max_edits is not None:
            made = exact_edit_samples(
                references.unpack(), seeds, self.words, -1.0 / self.temperature, self.max_edits, self.size, self.keep_last
            )
            packed = Sentences.pack([rows for rows, _ in made], pad=self.pad)
            return Candidates(
                packed.tokens.to(references.tokens.dtype), packed.lengths, torch.tensor([values for _, values in made], dtype=torch.float64)
            )
        return self._draw(references, seeds)

    def _draw(self, references: Sentences, seeds: Array) -> Candidates:
        batch, count, width = references.tokens.shape
        rows, ref_lengths = references.tokens.reshape(batch * count, width).numpy(), references.lengths.numpy()
        log_change = -1.0 / self.temperature
        law = edit_law(width, len(self.words), log_change, width if self.max_edits is None else min(self.max_edits, width))
        widest = width + law.log_prob.shape[1] - 1
        tokens = np.empty((batch, self.size, widest), dtype=rows.dtype)
        lengths = np.empty((batch, self.size), dtype=np.int64)
        log_prob = np.empty((batch, self.size))
        flat = tokens.reshape(batch * self.size, widest)
        edit_samples(rows, ref_lengths, seeds, self.words, self._place, law, self.keep_last, self.pad, flat, lengths, log_prob)
        longest = int(lengths.max(initial=0))
        return self._made(np.ascontiguousarray(tokens[..., :longest]), lengths, log_prob)
