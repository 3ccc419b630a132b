"""Recombination of references: candidates that can be nearer to all of them than any one is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch

from softq.checks import check_count
from softq.errors import SamplerError
from softq.kernels.random import draw_seeds
from softq.kernels.text.recombine import recombine
from softq.kernels.text.sets import as_rows
from softq.samplers.common import as_tensors
from softq.samplers.listing import Gram, check_room, complete_sets, list_replacements, windows
from softq.sentences import References, as_references
from softq.spaces import Candidates


class Recombination:
    """The references, and sentences in which an m-gram of one replaces an n-gram of another.

    A draw takes a reference of the example, n in 1..max_n (as far as its length allows) and a
    place, then another reference, different from the first, m in 1..max_n and a place, each
    uniformly, and writes the words of the second place over those of the first. So every word is
    one that somebody said of this very input, and a candidate can agree with several references
    where each of them goes its own way: what SQDML (eq. 15) looks for. All references are in the
    set, once each and in front, and no candidate equals a reference or another candidate. Where the
    space has fewer candidates than asked for, the set holds all of them and the rest is missing
    (length -1). An example with one reference, or several that are all the same, has only that; an
    empty reference takes no part.

    ``log_proposal`` is None. Importance weights stand for all sentences only where every sentence
    can be drawn, and these draws never leave the words of the references: whatever their
    probabilities, the set is a space of its own (estimator "set" or "paper").

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
        self.size = check_count("size", size, SamplerError)
        self.max_n = check_count("max_n", max_n, SamplerError)
        self.pad = pad

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates ``[B, size, L]`` of the references' type, L the longest of them.

        See the class.
        """
        references = as_rows(*as_references(refs))
        check_room(references, self.size)
        seeds = draw_seeds(len(references.lengths), generator)
        made, fixed, found = recombine(references, seeds, self.max_n, self.pad, self.size)
        short = (found < self.size) & (fixed > 1)  # one reference alone has nothing to take from
        advice = ", and its space is too large to be listed; give a smaller size"
        complete_sets(made, found, short, references, seeds, self.enumerate, advice)
        tokens, lengths, counts = as_tensors(made, fixed)
        longest = int(made.lengths.max(initial=0))
        return Candidates(tokens[..., :longest].contiguous(), lengths, fixed=counts)

    def enumerate(self, refs: Sequence[Sequence[int]]) -> dict[Gram, float]:
        """Every candidate that a draw can give for the references of one example.

        With its probability, given that it is no reference.

        >>> space = Recombination(4, max_n=1).enumerate([[1, 2], [3]])
        >>> sorted(space.items())
        [((1,), 0.25), ((1, 3), 0.25), ((2,), 0.25), ((3, 2), 0.25)]
        """
        parts = {  # the n-grams of references that have words, with their probabilities
            ref: [(ref[t : t + n], share) for t, n, share in windows(len(ref), self.max_n)]
            for ref in map(tuple, refs)
            if ref
        }
        grams = [gram for part in parts.values() for gram, _ in part]

        def of_others(ref: Gram, _old: Gram) -> Iterator[tuple[Gram, float]]:
            return chain.from_iterable(part for other, part in parts.items() if other != ref)

        count = len(grams) * len(set(grams))
        return list_replacements(list(parts), self.max_n, False, count, of_others)
