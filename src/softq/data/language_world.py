"""Translations from a seed: a world of two languages whose distribution of translations given the source is known exactly."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, product
from typing import NamedTuple

from softq.data.bitext import Bitext
from softq.data.decisions import SequenceReward, best_of, chances, expected_rewards, most_probable_of, pick
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
from softq.errors import DataError

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
        numbers = chances(seed, "draw")
        found = Bitext([], [])
        while len(found) < size:
            clause = _draw_clause(numbers)
            variants = self._lexicon.variants(clause)
            if FEWEST <= math.prod(map(len, variants)) <= MOST:
                found.sources.append(self._lexicon.source(clause))
                found.references.append([self._write(clause, variants, numbers) for _ in range(references)])
        return found

    def _write(self, clause: Clause, variants: Sequence[Variants], numbers: Iterator[float]) -> str:
        if next(numbers) < self.idiom:
            return self._lexicon.formal(clause)
        return self._lexicon.plain(clause, tuple(pick(some, next(numbers)) for some in variants))

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
        return expected_rewards(self.translations(source), [hypothesis], reward)[0]

    def bayes(self, source: str, reward: SequenceReward) -> Decision:
        """Of all translations of the source, the one of the highest expected reward."""
        return Decision(*best_of(self.translations(source), reward))

    def mode(self, source: str, reward: SequenceReward) -> Decision:
        """The most probable translation of the source, and the reward to be expected of it."""
        return Decision(*most_probable_of(self.translations(source), reward))

    @cached_property
    def _lexicon(self) -> Lexicon:
        return make_lexicon(seeded_generator(0, 0, "words"))


def _draw_clause(numbers: Iterator[float]) -> Clause:
    def one_of(count: int, share: float) -> int | None:
        return _rank(count, next(numbers)) if next(numbers) < share else None

    def phrase() -> NounPhrase:
        determiner = int(next(numbers) * DETERMINERS)
        return NounPhrase(determiner, _rank(NOUNS, next(numbers)), int(next(numbers) < _PLURAL), one_of(ADJECTIVES, _ADJECTIVE))

    time = one_of(TIMES, _TIME)
    early = time is not None and next(numbers) < _TIME_FIRST
    return Clause(
        subject=phrase(),
        object=phrase(),
        verb=_rank(VERBS, next(numbers)),
        past=int(next(numbers) < _PAST),
        first="time" if early else "object" if next(numbers) < _OBJECT_FIRST else "subject",
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
