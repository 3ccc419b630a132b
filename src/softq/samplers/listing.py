"""Spaces of replacements listed as a whole, for sets that chance alone does not fill.

`NgramReplacement` and `Recombination` both write other words over a window of a reference, an
n-gram whose order and place are drawn uniformly, and keep each sentence once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from softq.errors import SamplerError
from softq.kernels.text.sets import Rows
from softq.kernels.text.words import Array
from softq.samplers.common import unpack_example

Gram = tuple[int, ...]

MOST_LISTED = 1 << 18
"""Spaces of up to this many replacements are listed when chance does not find enough of them."""


def windows(length: int, max_n: int) -> Iterator[tuple[int, int, float]]:
    """Start, size and probability of every n-gram among so many tokens."""
    orders = min(max_n, length)
    for n in range(1, orders + 1):
        places = length - n + 1
        for start in range(places):
            yield start, n, 1.0 / (orders * places)


def list_replacements(
    refs: Sequence[Gram],
    max_n: int,
    keep_last: bool,
    count: float,
    replacements: Callable[[Gram, Gram], Iterable[tuple[Gram, float]]],
) -> dict[Gram, float]:
    """Every sentence that a draw can give, with its probability given that it is no reference.

    ``replacements(ref, old)`` are what may be written over an n-gram of a reference, each with its
    probability, and ``count`` is how many there are, about.
    """
    if count > MOST_LISTED:
        raise SamplerError(f"there are {count:.3g} replacements, too many to list")
    mass: defaultdict[Gram, float] = defaultdict(float)
    for ref in refs:
        for start, n, probability in windows(len(ref) - keep_last, max_n):
            for new, share in replacements(ref, ref[start : start + n]):
                mass[ref[:start] + new + ref[start + n :]] += probability * share
    for ref in refs:
        mass.pop(ref, None)
    total = sum(mass.values())
    return {sentence: value / total for sentence, value in mass.items()}


def check_room(references: Rows, size: int) -> None:
    """A set of ``size`` candidates holds all references."""
    counts = (references.lengths >= 0).sum(1)
    if counts.max(initial=0) > size:
        b = int(counts.argmax())
        raise SamplerError(
            f"size must hold all references, got size {size} for the {counts[b]} references of "
            f"example {b}"
        )


def complete_sets(
    rows: Rows,
    found: Array,
    short: Array,
    references: Rows,
    seeds: Array,
    list_space: Callable[[list[list[int]]], dict[Gram, float]],
    advice: str,
    log_prob: Array | None = None,
) -> None:
    """Continue the sets of the examples in ``short``, for which chance found too few candidates.

    They are taken from the list of the example's whole space. Adding Gumbel noise to
    log-probabilities and taking the largest is a draw without replacement from the same law.
    """
    size = rows.lengths.shape[1]
    for b in np.flatnonzero(short).tolist():
        try:
            space = list_space(unpack_example(references, b))
        except SamplerError as error:
            raise SamplerError(
                f"found only {found[b]} of {size} candidates for example {b} in a long row of draws"
                f"{advice}"
            ) from error
        for sentence in unpack_example(rows, b):
            space.pop(tuple(sentence), None)
        log_probs = np.log(list(space.values()))
        noise = np.random.default_rng(int(seeds[b])).gumbel(size=len(space))
        ranked = sorted(zip(noise + log_probs, space, log_probs, strict=True), reverse=True)
        for s, (_, new, value) in zip(range(found[b], size), ranked, strict=False):
            rows.tokens[b * size + s, : len(new)] = new
            rows.lengths[b, s] = len(new)
            if log_prob is not None:
                log_prob[b, s] = value
