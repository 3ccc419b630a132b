"""What worlds of sentences share: ways to say something, drawn by their probabilities, and the best that can be said given all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from softq.data.worlds import seeded_generator
from softq.errors import ShapeError
from softq.sentences import Sentences

Variants: TypeAlias = list[tuple[str, float]]
"""Ways to say something with their probabilities, which sum to one; an empty one says nothing."""

SequenceReward: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From candidates ``[1, S, L]``, their lengths, references ``[1, R, M]`` and theirs to ``[1, S, R]``, as `softq.rewards` are called."""


class Decision(NamedTuple):
    """A sentence and the reward to be expected of it."""

    text: str
    reward: float


def best_of(shares: Mapping[str, float], reward: SequenceReward) -> Decision:
    """Of all sentences that are said, the one of the highest expected reward; exact.

    Args:
        shares: Every sentence Y with its probability P(Y | x), words separated by spaces.
        reward: Such as `softq.rewards.SentenceBLEU()`: compares with one reference at a time.

    """
    texts = list(shares)
    values = expected_rewards(shares, [text.split() for text in texts], reward)
    best = max(range(len(values)), key=values.__getitem__)
    return Decision(texts[best], values[best])


def most_probable_of(shares: Mapping[str, float], reward: SequenceReward) -> Decision:
    """The first sentence of the highest probability, and the reward to be expected of it; arguments as for `best_of`."""
    most = max(shares, key=shares.__getitem__)
    return Decision(most, expected_rewards(shares, [most.split()], reward)[0])


def expected_rewards(shares: Mapping[str, float], hypotheses: Sequence[Sequence[str]], reward: SequenceReward) -> list[float]:
    """E[r(hypothesis, Y)] of hypotheses, which may be any words, over sentences Y with these probabilities; exact."""
    number_of: dict[str, int] = {}
    numbers = [
        [[number_of.setdefault(word, len(number_of)) for word in words] for words in sentences]
        for sentences in (hypotheses, [text.split() for text in shares])
    ]
    values = reward(*Sentences.pack(numbers[:1]), *Sentences.pack(numbers[1:]))
    expected = (1, len(hypotheses), len(shares))
    if values.shape != expected:
        raise ShapeError(f"expected a reward of each hypothesis for each reference, {list(expected)}, got {list(values.shape)}")
    found: list[float] = (values[0].double().cpu() @ torch.tensor(list(shares.values()), dtype=torch.float64)).tolist()
    return found


def pick(variants: Variants, chance: float) -> str:
    """One of the variants by a number that is uniform in 0..1.

    >>> pick([("above", 0.7), ("over", 0.3)], 0.8)
    'over'
    """
    for text, share in variants:
        chance -= share
        if chance < 0:
            return text
    return variants[-1][0]  # rounding


def chances(seed: int, use: str) -> Iterator[float]:
    """Numbers uniform in 0..1 without end, others for each use of a seed."""
    rng = seeded_generator(0, seed, use)
    while True:
        yield from rng.random(4096).tolist()


def join(*parts: str) -> str:
    """Parts of a sentence as one, without those that say nothing."""
    return " ".join(part for part in parts if part)
