"""The grammar engine of the built-in worlds.

A symbol of a grammar is a text, a weighted list of productions, or a `Phrase` of further symbols.
`sample` derives one text from a symbol, `derivations` lists all of them with their probabilities,
and a `GrammarWorld`, whose outputs y of an input x are derived from a grammar of x, knows P(y | x),
expected rewards and the Bayes rule exactly.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from softq.errors import DataError, ShapeError
from softq.sentences import Sentences

Input = TypeVar("Input")
T = TypeVar("T")

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]

Texts: TypeAlias = list[tuple[str, float]]
"""Texts with their probabilities, which sum to one; an empty text leaves something out."""

Symbol: TypeAlias = "str | Phrase | Sequence[tuple[Symbol, float]]"
"""A text, a phrase, or productions of which one is chosen by its probability."""

SequenceReward: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Candidates ``[1, S, L]`` and lengths, references ``[1, R, M]`` and lengths to ``[1, S, R]``."""


def join(*parts: str) -> str:
    """The parts of a sentence with a space between them, without the empty ones."""
    return " ".join(part for part in parts if part)


class Phrase(NamedTuple):
    """Symbols that are derived independently of each other, from left to right.

    Attributes:
        parts: The symbols.
        arrange: Makes one text of their texts.

    """

    parts: Sequence[Symbol]
    arrange: Callable[..., str] = join


def sample(symbol: Symbol, uniforms: Iterator[float]) -> str:
    """One text of a symbol; every choice of a production takes one uniform number.

    >>> sample(Phrase(["a", [("big", 0.9), ("large", 0.1)], "star"]), iter([0.95]))
    'a large star'
    """
    if isinstance(symbol, str):
        return symbol
    if isinstance(symbol, Phrase):
        return symbol.arrange(*[sample(part, uniforms) for part in symbol.parts])
    uniform = next(uniforms)
    for production, probability in symbol:
        uniform -= probability
        if uniform < 0:
            return sample(production, uniforms)
    return sample(symbol[-1][0], uniforms)  # where rounding leaves the sum below 1


def derivations(symbol: Symbol) -> Texts:
    """Every derivation of a symbol: its text and its probability.

    >>> derivations(Phrase([[("a", 0.5), ("", 0.5)], [("big", 0.75), ("large", 0.25)]]))
    [('a big', 0.375), ('a large', 0.125), ('big', 0.375), ('large', 0.125)]
    """
    if isinstance(symbol, str):
        return [(symbol, 1.0)]
    if isinstance(symbol, Phrase):
        chosen = (zip(*parts, strict=True) for parts in product(*map(derivations, symbol.parts)))
        return [(symbol.arrange(*texts), math.prod(ps)) for texts, ps in chosen]
    return [(text, p * q) for production, p in symbol for text, q in derivations(production)]


class Decision(NamedTuple):
    """An output, words separated by spaces, and the reward that is expected of it."""

    text: str
    reward: float


class GrammarWorld(ABC, Generic[Input]):
    """Inputs x, each with a grammar of its outputs y, so that P(y | x) is known exactly."""

    @abstractmethod
    def sample_input(self, uniforms: Iterator[float]) -> Input:
        """An input, made from numbers that are uniform in 0..1."""

    @abstractmethod
    def grammar(self, given: Input) -> Symbol:
        """The symbol from which the outputs of an input are derived."""

    def sample_pairs(
        self, size: int, outputs: int, rng: np.random.Generator
    ) -> tuple[list[Input], list[list[str]]]:
        """Inputs, and for each of them ``outputs`` independent samples from P(y | x)."""
        if size < 0 or outputs < 1:
            raise DataError(
                f"expected 0 or more inputs with 1 or more outputs each, got {size} with {outputs}"
            )
        numbers = uniforms(rng)
        inputs, texts = [], []
        for _ in range(size):
            inputs.append(self.sample_input(numbers))
            symbol = self.grammar(inputs[-1])
            texts.append([sample(symbol, numbers) for _ in range(outputs)])
        return inputs, texts

    def outputs(self, given: Input) -> dict[str, float]:
        """All outputs of an input with their probabilities P(y | x), the most probable first."""
        found: dict[str, float] = {}
        for text, p in derivations(self.grammar(given)):
            found[text] = found.get(text, 0.0) + p
        ranked = sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))
        return {text: p for text, p in ranked if p}

    def expected_reward(
        self, given: Input, hypothesis: Sequence[str], reward: SequenceReward
    ) -> float:
        """E[r(hypothesis, Y)] over the outputs Y of an input; exact.

        Args:
            given: The input.
            hypothesis: Any words.
            reward: Such as `softq.rewards.SentenceBLEU()`: compares with one reference at a time.

        """
        return _expected_rewards(self.outputs(given), [hypothesis], reward)[0]

    def bayes(self, given: Input, reward: SequenceReward) -> Decision:
        """The Bayes rule: of all outputs of an input, the one of the highest expected reward."""
        outputs = self.outputs(given)
        rewards = _expected_rewards(outputs, [text.split() for text in outputs], reward)
        return Decision(*max(zip(outputs, rewards, strict=True), key=lambda pair: pair[1]))

    def mode(self, given: Input, reward: SequenceReward) -> Decision:
        """The most probable output of an input, and the reward that is expected of it."""
        text = next(iter(self.outputs(given)))
        return Decision(text, self.expected_reward(given, text.split(), reward))


def _expected_rewards(
    outputs: Mapping[str, float], hypotheses: Sequence[Sequence[str]], reward: SequenceReward
) -> list[float]:
    """E[r(hypothesis, Y)] of each hypothesis, over outputs Y with these probabilities."""
    ids: dict[str, int] = {}
    candidates, references = (
        Sentences.pack([[[ids.setdefault(word, len(ids)) for word in words] for words in texts]])
        for texts in (hypotheses, [text.split() for text in outputs])
    )
    rewards = reward(*candidates, *references)
    expected = (1, len(hypotheses), len(outputs))
    if rewards.shape != expected:
        raise ShapeError(
            f"expected a reward of each hypothesis for each reference, {list(expected)}, "
            f"got {list(rewards.shape)}"
        )
    probabilities = torch.tensor(list(outputs.values()), dtype=torch.float64)
    found: list[float] = (rewards[0].double().cpu() @ probabilities).tolist()
    return found


def seeded_generator(world: int, seed: int, purpose: str) -> np.random.Generator:
    """A random stream of its own for each purpose of each seed, so that they may share a seed."""
    if seed < 0:
        raise DataError(f"seed must be 0 or more, got {seed}")
    return np.random.default_rng([world, seed, *purpose.encode()])


def uniforms(rng: np.random.Generator) -> Iterator[float]:
    """Numbers that are uniform in 0..1, without end."""
    while True:
        yield from rng.random(4096).tolist()


def choose(items: Sequence[T], uniform: float) -> T:
    """One of the items, all equally likely.

    >>> choose("abcd", 0.8)
    'd'
    """
    return items[int(uniform * len(items))]


def choose_other(items: Sequence[T], item: T, uniform: float) -> T:
    """One of the items that differ from a given one, all equally likely."""
    return choose([other for other in items if other != item], uniform)


def normalised(weights: ArrayLike) -> Floats:
    """Weights as probabilities, which sum to one.

    >>> normalised([1, 1, 2]).tolist()
    [0.25, 0.25, 0.5]
    """
    found: Floats = np.divide(weights, np.sum(weights))
    return found


def zipf(count: int, first: int) -> Floats:
    """Probabilities of words by rank.

    That of rank r = 0, 1, … is proportional to 1 / (first + r).
    """
    return normalised(1 / np.arange(first, first + count))


def check_probability(name: str, value: float) -> None:
    """Raise an error unless a value lies in 0..1."""
    if not 0 <= value <= 1:
        raise DataError(f"{name} must lie in 0..1, got {value}")


def word_ids(vocabulary: Mapping[str, int], words: Sequence[str]) -> Integers:
    """The ids of words, ``[n]``; a word that a world does not have is an error."""
    unknown = [word for word in words if word not in vocabulary]
    if unknown:
        raise DataError(f"expected words of this world's vocabulary, got {unknown[0]!r}")
    return np.array([vocabulary[word] for word in words], dtype=np.int64)


def make_word(
    rng: np.random.Generator,
    taken: set[str],
    syllable: Sequence[Sequence[str]],
    counts: tuple[int, int],
    suffixes: Sequence[str] = ("",),
    capital: bool = False,
) -> str:
    """A generated word that is not used yet; it is added to those that are.

    Args:
        rng: The source of randomness.
        taken: All words so far.
        syllable: What each sound of a syllable may be.
        counts: The fewest and the most syllables.
        suffixes: One of these follows the syllables.
        capital: Whether the word begins with a capital letter.

    >>> make_word(np.random.default_rng(0), {"bobo"}, ("bt", "o"), (2, 2), ["ville"])
    'totoville'

    """

    def one_of(items: Sequence[str]) -> str:
        return items[int(rng.integers(len(items)))]

    while True:
        count = int(rng.integers(counts[0], counts[1] + 1))
        sounds = [one_of(sound) for _ in range(count) for sound in syllable]
        word = "".join([*sounds, one_of(suffixes)])
        word = word.capitalize() if capital else word
        if word not in taken:
            taken.add(word)
            return word
