"""Translations from a seed: a world of two languages whose distribution of translations given the source is known exactly."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, product
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from softq.data.bitext import Bitext
from softq.data.language_grammar import (
    ADJECTIVES,
    DETERMINERS,
    MANNERS,
    NOUNS,
    PLACES,
    TIMES,
    VERBS,
    Clause,
    Lexicon,
    NounPhrase,
    Variants,
    make_lexicon,
)
from softq.data.worlds import seeded_generator
from softq.errors import DataError, ShapeError
from softq.sentences import Sentences

SequenceReward: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From candidates ``[1, S, L]``, their lengths, references ``[1, R, M]`` and theirs to ``[1, S, R]``, as `softq.rewards` are called."""

FEWEST, MOST = 4, 200
"""Plain translations of a source, at least and at most."""

_PLURAL, _ADJECTIVE, _PAST, _TIME, _PLACE, _MANNER = 0.35, 0.4, 0.4, 0.45, 0.35, 0.3  # how often there is one
_TIME_FIRST, _OBJECT_FIRST = 0.5, 0.25  # if there is a time; if it is not first


class Decision(NamedTuple):
    """A translation and the reward to be expected of it."""

    translation: str
    reward: float


@dataclass(frozen=True)
class LanguageWorld:
    """Sentences of one invented language, with all that they may be in another.

    **Sources** are clauses of a subject, an object and a verb, often with a time, a place or a manner. The verb is last; an auxiliary that
    agrees with the subject and tells the tense is second; what stands before it is the subject, the object or the time. Determiners
    and adjectives, which follow their noun, agree with its gender and number, and determiners tell subject from object. No two forms are
    spelled alike, so that no sentence has two readings; but some nouns mean two things, and the verb tells which is the likelier. There
    are more than 10⁹ sources, of 6 to 12 words.

    **Translations.** With probability 1 - s, s = `idiom`, a translator writes plain language: subject, verb, object. Each word is one of
    up to three synonyms, a time stands at the beginning or at the end, a manner before the verb or after the object, some articles may
    be left out. These choices are independent given the source, so that

        P(y | x) = (1 - s) · Π over choices of P(choice | x)  +  s · [y is the formal translation of x]

    With probability s, a translator writes formal language, in which a clause is said in one way only: in the passive voice, with
    adjectives after nouns, and with other words. A clause is drawn again if its plain translations are fewer than `FEWEST` or more than
    `MOST`, which depends on the source alone and so leaves P(y | x) as it is.

    **Why formal language.** There is one formal translation, and it is often the most probable of all, for the plain ones share 1 - s
    among them. But it is like none of these, while they are like each other: what a reader expects to be rewarded for (`bayes`) is plain,
    and what is most probable (`mode`) is not. Likelihood leads to the latter, objectives that know the reward to the former. With s = 0
    the most probable translation is about the best one.

    Attributes:
        idiom: Share s of formal translations.

    >>> world = LanguageWorld()
    >>> text = world.draw(2, seed=0, references=2)
    >>> text.sources[0], text.references[0]
    ('ula tretz tir jonim trampen wirn', ['un fona ded vealoo date ludos', 'un fona ded nifo dise dahos'])
    >>> translations = world.translations(text.sources[0])
    >>> len(translations), round(sum(translations.values()), 9)
    (25, 1.0)

    """

    idiom: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.idiom <= 1:
            raise DataError(f"idiom, the share of formal translations, must lie in 0..1, got {self.idiom}")

    def draw(self, size: int, *, seed: int, references: int = 1) -> Bitext:
        """Sources with references drawn from P(y | x), each for itself; another seed draws others from the same world."""
        if size < 0 or references < 1:
            raise DataError(f"expected 0 or more sources with 1 or more references, got {size} with {references}")
        chances = _chances(seed)
        found = Bitext([], [])
        while len(found) < size:
            clause = _draw_clause(chances)
            variants = self._lexicon.variants(clause)
            if FEWEST <= math.prod(map(len, variants)) <= MOST:
                found.sources.append(self._lexicon.source(clause))
                found.references.append([self._write(clause, variants, chances) for _ in range(references)])
        return found

    def _write(self, clause: Clause, variants: Sequence[Variants], chances: Iterator[float]) -> str:
        if next(chances) < self.idiom:
            return self._lexicon.formal(clause)
        return self._lexicon.plain(clause, tuple(_pick(some, next(chances)) for some in variants))

    def translations(self, source: str) -> dict[str, float]:
        """All translations of a source with their probabilities P(y | x), the most probable first; exact."""
        clause = self._lexicon.parse(source)
        if clause is None:
            raise DataError(f"expected a sentence of this world's source language, got {source!r}")
        found = {self._lexicon.formal(clause): self.idiom}
        for chosen in product(*self._lexicon.variants(clause)):
            text = self._lexicon.plain(clause, tuple(variant for variant, _ in chosen))
            found[text] = found.get(text, 0.0) + (1 - self.idiom) * math.prod(p for _, p in chosen)
        return {text: p for text, p in sorted(found.items(), key=lambda pair: (-pair[1], pair[0])) if p}

    def expected_reward(self, source: str, hypothesis: Sequence[str], reward: SequenceReward) -> float:
        """E[r(hypothesis, Y)] over translations Y of the source, for any words; exact.

        Args:
            source: A sentence of the source language.
            hypothesis: Words of a translation, good or bad.
            reward: Such as `softq.rewards.SentenceBLEU()`: compares with one reference at a time.

        """
        return _expected(self.translations(source), [list(hypothesis)], reward)[0]

    def bayes(self, source: str, reward: SequenceReward) -> Decision:
        """Of all translations of the source, the one of the highest expected reward."""
        translations = self.translations(source)
        values = _expected(translations, [text.split() for text in translations], reward)
        best = max(range(len(values)), key=values.__getitem__)
        return Decision(list(translations)[best], values[best])

    def mode(self, source: str, reward: SequenceReward) -> Decision:
        """The most probable translation of the source, and the reward to be expected of it."""
        translations = self.translations(source)
        best = next(iter(translations))
        return Decision(best, _expected(translations, [best.split()], reward)[0])

    @cached_property
    def _lexicon(self) -> Lexicon:
        return make_lexicon(seeded_generator(0, 0, "words"))


def _expected(translations: dict[str, float], hypotheses: list[list[str]], reward: SequenceReward) -> list[float]:
    """Expected rewards of hypotheses."""
    number_of: dict[str, int] = {}
    numbers = [
        [[number_of.setdefault(word, len(number_of)) for word in words] for words in sentences]
        for sentences in (hypotheses, [text.split() for text in translations])
    ]
    values = reward(*Sentences.pack(numbers[:1]), *Sentences.pack(numbers[1:]))
    expected = (1, len(hypotheses), len(translations))
    if values.shape != expected:
        raise ShapeError(f"expected a reward of each hypothesis for each reference, {list(expected)}, got {list(values.shape)}")
    shares = torch.tensor(list(translations.values()), dtype=torch.float64)
    found: list[float] = (values[0].double().cpu() @ shares).tolist()
    return found


def _draw_clause(chances: Iterator[float]) -> Clause:
    def one_of(count: int, share: float) -> int | None:
        return _rank(count, next(chances)) if next(chances) < share else None

    def phrase() -> NounPhrase:
        determiner = int(next(chances) * DETERMINERS)
        return NounPhrase(determiner, _rank(NOUNS, next(chances)), int(next(chances) < _PLURAL), one_of(ADJECTIVES, _ADJECTIVE))

    time = one_of(TIMES, _TIME)
    early = time is not None and next(chances) < _TIME_FIRST
    return Clause(
        subject=phrase(),
        object=phrase(),
        verb=_rank(VERBS, next(chances)),
        past=int(next(chances) < _PAST),
        first="time" if early else "object" if next(chances) < _OBJECT_FIRST else "subject",
        time=time,
        place=one_of(PLACES, _PLACE),
        manner=one_of(MANNERS, _MANNER),
    )


def _rank(count: int, chance: float) -> int:
    """A lemma; the first ones are more frequent, as in Zipf's law but less so."""
    steps = _steps(count)
    return bisect_right(steps, chance * steps[-1], hi=count - 1)


@lru_cache
def _steps(count: int) -> list[float]:
    return list(accumulate(1 / (rank + 4) for rank in range(count)))


def _pick(variants: Variants, chance: float) -> str:
    for text, share in variants:
        chance -= share
        if chance < 0:
            return text
    return variants[-1][0]  # rounding


def _chances(seed: int) -> Iterator[float]:
    rng = seeded_generator(0, seed, "draw")
    while True:
        yield from rng.random(4096).tolist()
