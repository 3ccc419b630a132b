"""Recombination of an example's own references: candidates that can be nearer to all of them than any one is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from softq.distributions import Candidates
from softq.errors import SamplerError
from softq.kernels.jit import as_array, draw_seeds
from softq.kernels.recombine import recombine
from softq.samplers.words import Array, check_count
from softq.sentences import References, Sentences, as_references

_ENUMERATE = 1 << 18  # spaces of up to this many replacements are listed when chance does not find enough of them


class Recombination:
    """The references and sentences in which an n-gram of one reference is replaced by an m-gram of another.

    A draw takes a reference of the example, n in 1..max_n (as far as its length allows) and a place, then another reference, different from
    the first, m in 1..max_n and a place, each uniformly, and writes the words of the second place over those of the first. So every
    word is one that somebody said of this very input, and a candidate can agree with several references where each of them goes its
    own way: what SQDML (eq. 15) looks for. All references are in the set, once each and in front, and no candidate equals a reference or
    another candidate. Where the space has fewer candidates than asked for, the set holds all of them and the rest is missing (length
    -1). An example with one reference, or several that are all the same, has only that; an empty reference takes no part.

    ``log_proposal`` is None. Importance weights stand for all sentences only where every sentence can be drawn, and these
    draws never leave the words of the references: whatever their probabilities, the set is a space of its own (estimator "set" or "paper").

    Args:
        size: candidates per example, references included.
        max_n: longest n-gram to take out and to put in.
        pad: what stands behind the end of a sentence.

    >>> refs = [[[11, 12, 13], [21, 22]]]
    >>> cands = Recombination(4, max_n=2)(refs, generator=torch.Generator().manual_seed(0))
    >>> cands.sentences.unpack()[0][:2]  # the references come first
    [[11, 12, 13], [21, 22]]
    >>> cands.present.all().item(), cands.repeats().any().item()
    (True, False)

    """

    def __init__(self, size: int, max_n: int = 4, *, pad: int = 0) -> None:
        self.size = check_count("size", size)
        self.max_n = check_count("max_n", max_n)
        self.pad = pad

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, L]`` of the type of the references, L the longest of them; see the class."""
        references = as_references(refs)
        tokens, ref_lengths = as_array(references.tokens), as_array(references.lengths)
        batch, _, width = tokens.shape
        most = int(references.present.sum(1).max()) if batch else 0
        if most > self.size:
            example = int(references.present.sum(1).argmax())
            raise SamplerError(f"size must hold all references, got size {self.size} for the {most} references of example {example}")
        seeds = draw_seeds(batch, generator)
        made = np.empty((batch, self.size, width + self.max_n - 1), dtype=tokens.dtype)
        lengths = np.empty((batch, self.size), dtype=np.int64)
        fixed, found, gave_up = recombine(tokens, ref_lengths, seeds, self.max_n, self.pad, made, lengths)
        for b in np.flatnonzero(gave_up):
            of_example = Sentences(references.tokens[b], references.lengths[b]).unpack()
            self._list_rest(int(b), of_example, seeds[b], made[b], lengths[b], int(found[b]))
        longest = max(int(lengths.max(initial=0)), 0)
        return Candidates(torch.from_numpy(made)[..., :longest].contiguous(), torch.from_numpy(lengths), fixed=torch.from_numpy(fixed))

    def _list_rest(self, example: int, refs: list[list[int]], seed: int, tokens: Array, lengths: Array, found: int) -> None:
        """Go on without replacement over the whole space of one example, listed, where rejection has found no more.

        Adding Gumbel noise to log-probabilities and taking the largest draws without replacement in the same law.
        """
        if self._replacements(refs) > _ENUMERATE:
            raise SamplerError(
                f"found only {found} of {self.size} candidates for example {example} in a long row of draws, and its space is too large "
                "to be listed; give a smaller size"
            )
        space = self.enumerate(refs)
        for row, length in zip(tokens[:found], lengths[:found], strict=True):
            space.pop(tuple(row[:length].tolist()), None)
        noise = np.random.default_rng(int(seed)).gumbel(size=len(space))
        ranked = sorted(zip(noise + np.log(list(space.values())), space, strict=True), reverse=True)
        for s, (_, sentence) in enumerate(ranked[: len(lengths) - found], start=found):
            tokens[s, : len(sentence)] = sentence
            lengths[s] = len(sentence)

    def enumerate(self, refs: Sequence[Sequence[int]]) -> dict[tuple[int, ...], float]:
        """Every candidate that a draw can give for the references of one example, with its probability, given that it is no reference.

        >>> space = Recombination(4, max_n=1).enumerate([[1, 2], [3]])
        >>> sorted(space.items())
        [((1,), 0.25), ((1, 3), 0.25), ((2,), 0.25), ((3, 2), 0.25)]
        """
        if self._replacements(refs) > _ENUMERATE:
            raise SamplerError(f"there are {self._replacements(refs):.3g} replacements, too many to list")
        distinct = _distinct(refs)
        mass: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for i, ref in enumerate(distinct):
            # of several ways to the same m-gram one is followed, with the probability of them all
            grams: defaultdict[tuple[int, ...], float] = defaultdict(float)
            for other in distinct[:i] + distinct[i + 1 :]:
                for start, size, probability in self._windows(other):
                    grams[other[start : start + size]] += probability
            for start, size, probability in self._windows(ref):
                for gram, share in grams.items():
                    mass[ref[:start] + gram + ref[start + size :]] += probability * share
        for ref in distinct:
            mass.pop(ref, None)
        total = sum(mass.values())
        return {sentence: value / total for sentence, value in mass.items()}

    def _windows(self, sentence: Sequence[int]) -> Iterator[tuple[int, int, float]]:
        """Start, size and probability of every n-gram of a sentence."""
        orders = min(self.max_n, len(sentence))
        for n in range(1, orders + 1):
            places = len(sentence) - n + 1
            for start in range(places):
                yield start, n, 1.0 / (orders * places)

    def _replacements(self, refs: Sequence[Sequence[int]]) -> int:
        """How many pairs of a window and an m-gram to write there have to be looked at, at most."""
        distinct = _distinct(refs)
        windows = [sum(1 for _ in self._windows(ref)) for ref in distinct]
        grams = {ref[start : start + size] for ref in distinct for start, size, _ in self._windows(ref)}
        return sum(windows) * len(grams)


def _distinct(refs: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """References that have words, each once, in their order."""
    return [ref for ref in dict.fromkeys(map(tuple, refs)) if ref]
