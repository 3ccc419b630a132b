"""n-gram replacement, the sampler of the paper's captioning and translations (§4.1.2, C)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sized
from functools import cache

import numpy as np
import torch
from torch import Tensor

from softq.checks import check_count
from softq.errors import SamplerError
from softq.kernels.jit import as_array
from softq.kernels.random import draw_seeds
from softq.kernels.text.hashing import place_keys
from softq.kernels.text.replace import (
    CORPUS,
    FREQUENCIES,
    UNIFORM,
    NgramLaw,
    ngram_hashes,
    replace_ngrams,
)
from softq.kernels.text.words import Array
from softq.samplers.common import as_tensors, read_vocabulary, ready_references
from softq.samplers.listing import Gram, check_room, complete_sets, list_replacements
from softq.sentences import References, as_references
from softq.spaces import Candidates

_TOO_UNEVEN = (
    ": the law of the replacement words is too uneven; give flatter frequencies, a larger corpus "
    "or a smaller size"
)


class NgramReplacement:
    """The references and sentences in which one n-gram of a reference is replaced by another.

    A draw takes a reference of the example, n in 1..max_n (as far as the length allows) and a
    place, each uniformly, and writes another n-gram there. All references are in the set, once each
    and in front, and no candidate equals a reference or another candidate. Where the space has
    fewer candidates than asked for, the set holds all of them and the rest is missing (length -1).
    A space that is large, but of which a very uneven law hardly ever leaves the same few sentences,
    is an error, and so is an empty reference, since nothing can be replaced in it.

    ``log_proposal`` is the exact log-probability of a draw, all ways to the same sentence added up,
    given that it is no reference. The set is drawn without replacement, so importance weights built
    on it are right as long as it is small against the space.

    Args:
        vocab: number of words, or the words themselves.
        max_n: longest n-gram to replace (the paper: 3 for captions, 4 for translations).
        size: candidates per example, references included (the paper: 100 for RAML, 500 for SQDML).
        specials: word numbers never to be written (padding, unknown word, begin, end).
        frequencies: draw words by these weights ``[vocab]`` instead of uniformly.
        corpus: draw whole n-grams from these sentences instead, each as often as it occurs.
        keep_last: never touch the last token, such as an end mark.
        pad: what stands behind the end of a sentence.

    >>> sampler = NgramReplacement(1000, max_n=2, size=4, specials=[0])
    >>> cands = sampler([[[7, 8, 9], [7, 9]]], generator=torch.Generator().manual_seed(0))
    >>> cands.tokens[0, :2].tolist(), cands.lengths[0, :2].tolist()  # the references come first
    ([[7, 8, 9], [7, 9, 0]], [3, 2])
    >>> cands.repeats().any().item()
    False

    """

    def __init__(
        self,
        vocab: int | Sized,
        max_n: int = 4,
        size: int = 100,
        *,
        specials: Iterable[int] = (),
        frequencies: Tensor | None = None,
        corpus: References | None = None,
        keep_last: bool = False,
        pad: int = 0,
    ) -> None:
        self.vocab, words = read_vocabulary(vocab, specials)
        self.max_n = check_count("max_n", max_n, SamplerError)
        self.size = check_count("size", size, SamplerError)
        self.keep_last, self.pad = keep_last, pad
        if frequencies is not None and corpus is not None:
            raise SamplerError(
                "give frequencies or a corpus, not both: the corpus has its own frequencies"
            )
        self._law = (
            _word_law(frequencies, self.vocab, words)
            if corpus is None
            else _corpus_law(corpus, self.vocab, words, self.max_n)
        )

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, M]`` of the type of the references; see the class."""
        references = ready_references(refs, self.vocab, self.pad)
        check_room(references, self.size)
        seeds = draw_seeds(len(references.lengths), generator)
        made, log_prob, fixed, found = replace_ngrams(
            references, seeds, self.max_n, self.keep_last, self.pad, self._law, self.size
        )
        short = found < self.size
        complete_sets(made, found, short, references, seeds, self.enumerate, _TOO_UNEVEN, log_prob)
        draws = (made.lengths >= 0).sum(1) - fixed
        tokens, lengths, log_proposal, given, drawn = as_tensors(made, log_prob, fixed, draws)
        return Candidates(tokens, lengths, log_proposal, given, drawn)

    def enumerate(self, refs: list[list[int]]) -> dict[Gram, float]:
        """Every candidate that a draw can give for these references, with its probability.

        The law behind ``log_proposal``.

        >>> space = NgramReplacement(3, max_n=1, size=2).enumerate([[0, 1]])
        >>> sorted(space.items())
        [((0, 0), 0.25), ((0, 2), 0.25), ((1, 1), 0.25), ((2, 1), 0.25)]
        """
        # The longest n-grams that could be written into one of the references.
        longest = max((min(self.max_n, len(ref) - self.keep_last) for ref in refs), default=0)
        of_corpus = self._law.kind == CORPUS
        count = len(self._law.hashes) if of_corpus else float(len(self._law.words)) ** longest
        ngrams = cache(self._ngrams)

        def others(_ref: Gram, old: Gram) -> Iterator[tuple[Gram, float]]:
            law = ngrams(len(old))
            rest = 1.0 - law.get(old, 0.0)
            return ((new, p / rest) for new, p in law.items() if new != old and rest > 1e-12)

        return list_replacements(list(map(tuple, refs)), self.max_n, self.keep_last, count, others)

    def _ngrams(self, n: int) -> dict[Gram, float]:
        """Every n-gram that may be written, with its probability."""
        law = self._law
        if law.kind == CORPUS:
            starts = law.starts[law.first_start[n - 1] : law.first_start[n]]
            counts = Counter(map(tuple, law.corpus[starts[:, None] + np.arange(n)].tolist()))
            return {gram: count / len(starts) for gram, count in counts.items()}
        log_prob = law.log_prob.tolist()
        return {
            gram: math.exp(sum(log_prob[word] for word in gram))
            for gram in itertools.product(law.words.tolist(), repeat=n)
        }


def _word_law(frequencies: Tensor | None, vocab: int, words: Array) -> NgramLaw:
    """Words drawn on their own, by their frequencies or uniformly."""
    given = torch.ones(vocab) if frequencies is None else torch.as_tensor(frequencies)
    weights = given.detach().double().cpu().numpy()
    if weights.shape != (vocab,):
        raise SamplerError(
            f"frequencies must have shape [{vocab}], one per word, got {list(weights.shape)}"
        )
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise SamplerError("frequencies must be finite and not negative")
    words = words[weights[words] > 0]
    if not len(words):
        raise SamplerError("frequencies must be positive for some word that is not special")
    probability = weights[words] / weights[words].sum()
    log_prob = np.full(vocab, -np.inf)
    log_prob[words] = np.log(probability)
    if frequencies is None:
        return NgramLaw(UNIFORM, words, log_prob)
    share, alias = _alias_table(probability)
    return NgramLaw(FREQUENCIES, words, log_prob, share=share, alias=alias)


def _alias_table(probability: Array) -> tuple[Array, Array]:
    """Walker's table: cell i keeps ``share[i]`` of a draw and gives the rest to ``alias[i]``."""
    scaled = probability * len(probability)
    share, alias = np.ones(len(scaled)), np.arange(len(scaled))
    small, large = list(np.flatnonzero(scaled < 1.0)), list(np.flatnonzero(scaled >= 1.0))
    while small and large:
        low, high = small.pop(), large[-1]
        share[low], alias[low] = scaled[low], high
        scaled[high] -= 1.0 - scaled[low]
        if scaled[high] < 1.0:
            small.append(large.pop())
    return share, alias


def _corpus_law(corpus: References, vocab: int, words: Array, max_n: int) -> NgramLaw:
    tokens, lengths = map(as_array, as_references(corpus, vocab=vocab))
    real = (np.arange(tokens.shape[2] + 1) < lengths[..., None]).ravel()
    flat = np.pad(tokens.astype(np.int64), ((0, 0), (0, 0), (0, 1))).ravel()
    # What no n-gram may hold: specials, and the place behind each sentence. So many so far.
    barriers = np.concatenate([[0], np.cumsum(~real | ~np.isin(flat, words))])
    parts, keys = [], place_keys(max_n + 1)
    for n in range(1, max_n + 1):
        starts = np.flatnonzero(barriers[n:] == barriers[:-n])
        if not len(starts):
            raise SamplerError(
                f"the corpus has no {n}-gram without specials; give a larger one or max_n={n - 1}"
            )
        hashes, counts = np.unique(ngram_hashes(flat, starts, n, keys), return_counts=True)
        parts.append((starts, hashes, np.log(counts / len(starts))))
    every_start, every_hash, log_counts = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(every_hash)
    return NgramLaw(
        CORPUS,
        words,
        np.zeros(vocab),
        corpus=flat,
        keys=keys,
        starts=every_start,
        first_start=np.cumsum([0, *(len(starts) for starts, _, _ in parts)]),
        hashes=every_hash[order],
        log_counts=log_counts[order],
    )
