"""n-gram replacement: the sampler of the paper's captioning and translation experiments (§4.1.2, Appendix C)."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.distributions import Candidates
from softq.errors import SamplerError
from softq.kernels.jit import draw_seeds
from softq.kernels.replace import CORPUS, FREQUENCIES, UNIFORM, NgramLaw, ngram_hashes, replace_ngrams
from softq.samplers.words import Array, check_count, ready_references, replacement_words, vocabulary_size
from softq.sentences import References, Sentences, as_references

_ENUMERATE = 1 << 18  # spaces up to this many n-grams are listed when chance does not find enough of them


class NgramReplacement:
    """The references and sentences in which one n-gram of a reference is replaced by another.

    A draw takes a reference of the example, n in 1..max_n (as far as the length allows) and a place, each uniformly, and
    writes another n-gram there. All references are in the set, once each and in front, and no candidate equals a reference or
    another candidate. Where the space has fewer candidates than asked for, the set holds all of them and the rest is missing
    (length -1). A space that is large, but of which a very uneven law hardly ever leaves the same few sentences, is an error, and so is
    an empty reference, since nothing can be replaced in it.

    ``log_proposal`` is the exact log-probability of a draw, all ways to the same sentence added up, given that it is no
    reference. The set is drawn without replacement, so importance weights built on it are right as long as it is
    small against the space.

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
        self.vocab = vocabulary_size(vocab)
        self.max_n = check_count("max_n", max_n)
        self.size = check_count("size", size)
        self.keep_last = keep_last
        self.pad = pad
        words = replacement_words(self.vocab, specials)
        if frequencies is not None and corpus is not None:
            raise SamplerError("give frequencies or a corpus, not both: the corpus has its own frequencies")
        if corpus is not None:
            self._law = _corpus_law(corpus, self.vocab, words, self.max_n)
        elif frequencies is not None:
            self._law = _frequency_law(frequencies, self.vocab, words)
        else:
            self._law = _uniform_law(self.vocab, words)

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, M]`` of the type of the references; see the class."""
        references = ready_references(refs, self.vocab, self.pad)
        ready = references.tokens.numpy(), references.lengths.numpy()
        batch, _, width = ready[0].shape
        counts = (ready[1] >= 0).sum(1)
        if counts.max(initial=0) > self.size:
            example = int(counts.argmax())
            raise SamplerError(
                f"size must hold all references, got size {self.size} for the {counts[example]} references of example {example}"
            )
        seeds = draw_seeds(batch, generator)
        tokens = np.empty((batch, self.size, width), dtype=ready[0].dtype)
        lengths = np.empty((batch, self.size), dtype=np.int64)
        log_prob = np.empty((batch, self.size))
        fixed, found = replace_ngrams(*ready, seeds, self.max_n, self.keep_last, self.pad, self._law, tokens, lengths, log_prob)
        for b in np.flatnonzero(found < self.size):
            of_example = Sentences(references.tokens[b], references.lengths[b]).unpack()
            self._list_rest(int(b), of_example, seeds[b], tokens[b], lengths[b], log_prob[b], int(found[b]))
        draws = (lengths >= 0).sum(1) - fixed
        made = [torch.from_numpy(part) for part in (tokens, lengths, log_prob, fixed, draws)]
        return Candidates(*made)

    def _list_rest(
        self, example: int, refs: list[list[int]], seed: int, tokens: Array, lengths: Array, log_prob: Array, found: int
    ) -> None:
        """Go on without replacement over the whole space of one example, listed, where rejection has found no more.

        Adding Gumbel noise to log-probabilities and taking the largest draws without replacement in the same law.
        """
        if self._law_size(refs) > _ENUMERATE:
            raise SamplerError(
                f"found only {found} of {self.size} candidates for example {example} in a long row of draws: the law of the "
                "replacement words is too uneven; give flatter frequencies, a larger corpus or a smaller size"
            )
        space = self.enumerate(refs)
        for row, length in zip(tokens[:found], lengths[:found], strict=True):
            space.pop(tuple(row[:length].tolist()), None)
        noise = np.random.default_rng(int(seed)).gumbel(size=len(space))
        ranked = sorted(zip(noise + np.log(list(space.values())), space.items(), strict=True), reverse=True)
        for s, (_, (sentence, probability)) in enumerate(ranked[: len(lengths) - found], start=found):
            tokens[s, : len(sentence)] = sentence
            lengths[s] = len(sentence)
            log_prob[s] = np.log(probability)

    def enumerate(self, refs: list[list[int]]) -> dict[tuple[int, ...], float]:
        """Every candidate that a draw can give for these references, with its probability: the law behind ``log_proposal``.

        >>> space = NgramReplacement(3, max_n=1, size=2).enumerate([[0, 1]])
        >>> sorted(space.items())
        [((0, 0), 0.25), ((0, 2), 0.25), ((1, 1), 0.25), ((2, 1), 0.25)]
        """
        if self._law_size(refs) > _ENUMERATE:
            raise SamplerError(f"there are {self._law_size(refs):.3g} n-grams to replace with, too many to list")
        mass: defaultdict[tuple[int, ...], float] = defaultdict(float)
        usable = [ref for ref in refs if len(ref) > self.keep_last]
        for ref in usable:
            room = len(ref) - self.keep_last
            orders = min(self.max_n, room)
            for n in range(1, orders + 1):
                laws = dict(self._ngrams(n))
                for p in range(room - n + 1):
                    old = tuple(ref[p : p + n])
                    rest = 1.0 - laws.get(old, 0.0)
                    if rest > 1e-12:
                        weight = 1.0 / (len(usable) * orders * (room - n + 1) * rest)
                        for new, probability in laws.items():
                            if new != old:
                                mass[(*ref[:p], *new, *ref[p + n :])] += weight * probability
        for ref in refs:
            mass.pop(tuple(ref), None)
        total = sum(mass.values())
        return {sentence: value / total for sentence, value in mass.items()}

    def _law_size(self, refs: list[list[int]]) -> float:
        """Number of the longest n-grams that could be written into one of the references."""
        longest = max((min(self.max_n, len(ref) - self.keep_last) for ref in refs), default=0)
        return float(len(self._law.hashes)) if self._law.kind == CORPUS else float(len(self._law.words)) ** longest

    def _ngrams(self, n: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Every n-gram that may be written, with its probability."""
        law = self._law
        if law.kind == CORPUS:
            begin, end = law.first_start[n - 1 : n + 1]
            grams = law.corpus[law.starts[begin:end, None] + np.arange(n)]
            unique, counts = np.unique(grams, axis=0, return_counts=True)
            yield from ((tuple(gram), count / (end - begin)) for gram, count in zip(unique.tolist(), counts.tolist(), strict=True))
        else:
            probability = np.exp(law.log_prob)
            for gram in itertools.product(law.words.tolist(), repeat=n):
                yield gram, float(np.prod(probability[list(gram)]))


def _law(kind: int, words: Array, log_prob: Array, **fields: Array) -> NgramLaw:
    empty: dict[str, Array] = {"share": np.zeros(0), "hashes": np.zeros(0, np.uint64), "log_counts": np.zeros(0)}
    empty |= {name: np.zeros(0, np.int64) for name in ("alias", "corpus", "starts", "first_start")}
    return NgramLaw(kind, words, log_prob, **{**empty, **fields})


def _uniform_law(vocab: int, words: Array) -> NgramLaw:
    log_prob = np.full(vocab, -np.inf)
    log_prob[words] = -np.log(len(words))
    return _law(UNIFORM, words, log_prob)


def _frequency_law(frequencies: Tensor, vocab: int, words: Array) -> NgramLaw:
    weights = torch.as_tensor(frequencies).detach().double().cpu().numpy()
    if weights.shape != (vocab,):
        raise SamplerError(f"frequencies must have shape [{vocab}], one per word, got {list(weights.shape)}")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise SamplerError("frequencies must be finite and not negative")
    words = words[weights[words] > 0]
    if not len(words):
        raise SamplerError("frequencies must be positive for some word that is not special")
    probability = weights[words] / weights[words].sum()
    log_prob = np.full(vocab, -np.inf)
    log_prob[words] = np.log(probability)
    share, alias = _alias_table(probability)
    return _law(FREQUENCIES, words, log_prob, share=share, alias=alias)


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
    sentences = as_references(corpus, vocab=vocab)
    lengths = sentences.lengths.reshape(-1).clamp(min=0)
    rows = sentences.tokens.reshape(-1, sentences.tokens.shape[-1])
    real = torch.arange(rows.shape[1]) < lengths.unsqueeze(1)
    flat = rows[real].numpy().astype(np.int64)
    ends = np.repeat(np.cumsum(lengths.numpy()), lengths.numpy())  # of the sentence that each word is in
    allowed = np.zeros(vocab, dtype=bool)
    allowed[words] = True
    written = np.concatenate([[0], np.cumsum(~allowed[flat])])  # words so far that must not be written
    starts, hashes, log_counts = [], [], []
    for n in range(1, max_n + 1):
        places = np.arange(len(flat) - n + 1)
        places = places[(places + n <= ends[: len(places)]) & (written[places + n] == written[places])]
        if not len(places):
            raise SamplerError(f"the corpus has no {n}-gram without specials; give a larger one or max_n={n - 1}")
        each = np.empty(len(places), dtype=np.uint64)
        ngram_hashes(flat[None], places, n, each)
        grams, counts = np.unique(each, return_counts=True)
        starts.append(places)
        hashes.append(grams)
        log_counts.append(np.log(counts / len(places)))
    order = np.argsort(np.concatenate(hashes))
    first_start = np.concatenate([[0], np.cumsum([len(part) for part in starts])])
    fields: dict[str, Any] = {"hashes": np.concatenate(hashes)[order], "log_counts": np.concatenate(log_counts)[order]}
    return _law(CORPUS, words, np.zeros(0), corpus=flat, starts=np.concatenate(starts), first_start=first_start, **fields)
