"""The words and the grammars of the two languages of `softq.data.language_world`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

Variants = list[tuple[str, float]]
"""Ways to say something with their probabilities, which sum to one; an empty one says nothing."""

NOUNS, VERBS, ADJECTIVES, TIMES, PLACES, MANNERS = 18, 12, 8, 6, 6, 4
DEFINITE, INDEFINITE, DEMONSTRATIVE = range(3)
DETERMINERS = 3
EARLY, LATE = "early", "late"
"""Where a time or a manner stands in the target language."""

_SYNONYMS = ((0.7, 0.3), (1.0,), (0.6, 0.25, 0.15), (1.0,), (0.75, 0.25))  # P(word | meaning): meanings have these by turns
_AMBIGUOUS = 4  # every so many nouns there is one with two meanings
_SECOND_MEANING = (0.1, 0.85)  # P(second meaning) beside the verbs of even and of odd number
_EARLY_TIME = {"time": 0.75, "subject": 0.2, "object": 0.2}  # by what the source begins with
_EARLY_MANNER = 0.65
_P_SOME, _P_THIS, _P_THE_PLACE = 0.6, 0.7, 0.7  # of an article of indefinite plurals, of the nearer demonstrative, of an article of places

# Function words of the source language. Determiners agree with the noun: three genders, and the plural, which has one for all.
_GENDERS = 3
_DETERMINER_STEMS = ("t", "ul", "jon")
_DETERMINER_ENDINGS = (("or", "on"), ("a", "am"), ("us", "um"), ("i", "im"))  # by gender, the plural last; nominative and accusative
_ADJECTIVE_ENDINGS = ("or", "ae", "us", "ei")
_AUXILIARIES = (("vas", "vasen"), ("tir", "tiren"))  # present and past, singular and plural
_PREPOSITIONS = ("ob", "zun")
_PLURAL = "en"

# And of the target language.
_THE, _A, _SOME, _PAST, _BY = "na", "un", "soma", "ded", "frae"
_DEMONSTRATIVES = (("dis", "dat"), ("dise", "date"))  # singular and plural
_PASSIVES = (("iz", "ara"), ("woza", "wera"))  # present and past, singular and plural
_TARGET_PREPOSITIONS = ("inna", "onna")
_PLURAL_NOUN, _SINGULAR_VERB = "s", "t"

_SOURCE_SYLLABLE = (
    ["b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "w", "z", "br", "dr", "gr", "kl", "kn", "schl", "st", "tr"],
    list("aeiou"),
    ["cht", "ft", "ld", "mp", "nd", "rk", "rn", "st", "tz"],
)
_TARGET_SYLLABLE = (list("bcdfghjlmnprtvw"), [*"aeiou", "ea", "oo"], [""])


class Word(NamedTuple):
    """A word of the source language."""

    kind: Literal["determiner", "noun", "adjective", "auxiliary", "time", "preposition", "place", "manner", "verb"]
    lemma: int
    form: int = 0


class Meaning(NamedTuple):
    """Something that can be said in the target language."""

    words: tuple[tuple[str, float], ...]
    """Synonyms in their shortest form, with their probabilities."""
    formal: str
    """The one word of formal language."""


class NounPhrase(NamedTuple):
    """A determiner, a noun and perhaps an adjective, by their lemmas."""

    determiner: int
    noun: int
    plural: int
    adjective: int | None


class Clause(NamedTuple):
    """What a source sentence says, by lemmas, and which phrase it begins with."""

    subject: NounPhrase
    object: NounPhrase
    verb: int
    past: int
    first: Literal["subject", "object", "time"]
    time: int | None
    place: int | None
    manner: int | None


@dataclass(frozen=True)
class Lexicon:
    """The words of both languages, and how clauses are made of them.

    Attributes:
        source_words: How each word of the source language is spelled.
        genders: Of the nouns of the source language.
        nouns: What each of them means: one thing or two.
        others: What each verb, adjective, time, place and manner means, by its kind.

    """

    source_words: dict[Word, str]
    genders: tuple[int, ...]
    nouns: tuple[tuple[Meaning, ...], ...]
    others: dict[str, tuple[Meaning, ...]]

    def source(self, clause: Clause) -> str:
        """The clause in the source language: a first phrase, the auxiliary, the other phrases, and the verb at the end."""
        phrases = {"subject": self._source_phrase(clause.subject, 0), "object": self._source_phrase(clause.object, 1)}
        if clause.time is not None:
            phrases["time"] = [Word("time", clause.time)]
        if clause.place is not None:
            phrases["place"] = [Word("preposition", clause.place % 2), Word("place", clause.place)]
        if clause.manner is not None:
            phrases["manner"] = [Word("manner", clause.manner)]
        words = [*phrases.pop(clause.first), Word("auxiliary", clause.past, clause.subject.plural)]
        words += [word for phrase in phrases.values() for word in phrase]
        return " ".join(self.source_words[word] for word in [*words, Word("verb", clause.verb)])

    def _source_phrase(self, phrase: NounPhrase, case: int) -> list[Word]:
        gender = _GENDERS if phrase.plural else self.genders[phrase.noun]
        words = [Word("determiner", phrase.determiner, 2 * gender + case), Word("noun", phrase.noun, phrase.plural)]
        return words if phrase.adjective is None else [*words, Word("adjective", phrase.adjective, gender)]

    def parse(self, source: str) -> Clause | None:
        """What a sentence of the source language says; None for what is no sentence of it. No sentence says two things."""
        words = [self._spelled[word] for word in source.split() if word in self._spelled]
        of_kind = {word.kind: word for word in words}
        phrases: dict[int, NounPhrase] = {}  # by case
        for place, word in enumerate(words):
            if word.kind == "determiner":
                noun, after = [*words, word, word][place + 1 : place + 3]
                phrases[word.form % 2] = NounPhrase(word.lemma, noun.lemma, noun.form, after.lemma if after.kind == "adjective" else None)
        if len(phrases) < 2 or not {"noun", "auxiliary", "verb"} <= of_kind.keys():
            return None
        lemma = {kind: word.lemma for kind, word in of_kind.items()}
        clause = Clause(
            *(phrases[0], phrases[1], lemma["verb"], lemma["auxiliary"]),
            first="time" if words[0].kind == "time" else "object" if words[0].form % 2 else "subject",
            time=lemma.get("time"),
            place=lemma.get("place"),
            manner=lemma.get("manner"),
        )
        try:
            return clause if self.source(clause) == " ".join(source.split()) else None
        except (KeyError, IndexError):  # a noun that is none
            return None

    @cached_property
    def _spelled(self) -> dict[str, Word]:
        return {spelling: word for word, spelling in self.source_words.items()}

    def variants(self, clause: Clause) -> tuple[Variants, Variants, Variants, Variants, Variants, Variants]:
        """What is left open in plain language, each choice for itself: subject, verb, object, place, and where time and manner stand."""
        nothing = [("", 1.0)]
        early = _EARLY_TIME[clause.first]
        return (
            self._plain_phrase(clause.subject, clause.verb),
            self._plain_verb(clause),
            self._plain_phrase(clause.object, clause.verb),
            nothing if clause.place is None else self._plain_place(clause.place),
            nothing if clause.time is None else [(EARLY, early), (LATE, 1 - early)],
            nothing if clause.manner is None else [(EARLY, _EARLY_MANNER), (LATE, 1 - _EARLY_MANNER)],
        )

    def plain(self, clause: Clause, chosen: tuple[str, ...]) -> str:
        """The clause in plain language: subject, verb, object."""
        subject, verb, object_, place, time_stands, manner_stands = chosen
        time, manner = self._adverbial("time", clause.time), self._adverbial("manner", clause.manner)
        return _join(
            *(time if time_stands == EARLY else "", subject, manner if manner_stands == EARLY else "", verb, object_),
            *(manner if manner_stands == LATE else "", place, time if time_stands == LATE else ""),
        )

    def formal(self, clause: Clause) -> str:
        """The clause in formal language: what is done, by whom, when and where, each with the one word for it."""
        place = "" if clause.place is None else _join(_TARGET_PREPOSITIONS[clause.place % 2], self.others["place"][clause.place].formal)
        return _join(
            *(
                "" if clause.manner is None else self.others["manner"][clause.manner].formal,
                self._formal_phrase(clause.object, clause.verb),
            ),
            *(_PASSIVES[clause.past][clause.object.plural], self.others["verb"][clause.verb].formal, _BY),
            *(
                self._formal_phrase(clause.subject, clause.verb),
                "" if clause.time is None else self.others["time"][clause.time].formal,
                place,
            ),
        )

    def _adverbial(self, kind: str, lemma: int | None) -> str:
        return "" if lemma is None else self.others[kind][lemma].words[0][0]

    def _senses(self, noun: int, verb: int) -> list[tuple[Meaning, float]]:
        """What a noun means beside a verb."""
        meanings = self.nouns[noun]
        second = _SECOND_MEANING[verb % 2] if len(meanings) > 1 else 0.0
        return list(zip(meanings, (1 - second, second), strict=False))

    def _plain_phrase(self, phrase: NounPhrase, verb: int) -> Variants:
        ending = _PLURAL_NOUN if phrase.plural else ""
        nouns = [(word + ending, p * of_sense) for sense, of_sense in self._senses(phrase.noun, verb) for word, p in sense.words]
        adjectives = [("", 1.0)] if phrase.adjective is None else self.others["adjective"][phrase.adjective].words
        return _combined(_determiners(phrase), adjectives, nouns)

    def _plain_verb(self, clause: Clause) -> Variants:
        words = self.others["verb"][clause.verb].words
        if clause.past:
            return [(_join(_PAST, word), p) for word, p in words]
        return [(word if clause.subject.plural else word + _SINGULAR_VERB, p) for word, p in words]

    def _plain_place(self, place: int) -> Variants:
        article = [(_THE, _P_THE_PLACE), ("", 1 - _P_THE_PLACE)]
        return _combined([(_TARGET_PREPOSITIONS[place % 2], 1.0)], article, self.others["place"][place].words)

    def _formal_phrase(self, phrase: NounPhrase, verb: int) -> str:
        """With the likelier meaning of the noun, and the adjective behind it."""
        sense, _ = max(self._senses(phrase.noun, verb), key=lambda both: both[1])
        adjective = "" if phrase.adjective is None else self.others["adjective"][phrase.adjective].formal
        return _join(_determiners(phrase)[0][0], sense.formal + (_PLURAL_NOUN if phrase.plural else ""), adjective)


def _determiners(phrase: NounPhrase) -> Variants:
    if phrase.determiner == DEMONSTRATIVE:
        this, that = _DEMONSTRATIVES[phrase.plural]
        return [(this, _P_THIS), (that, 1 - _P_THIS)]
    if phrase.determiner == INDEFINITE:
        return [(_SOME, _P_SOME), ("", 1 - _P_SOME)] if phrase.plural else [(_A, 1.0)]
    return [(_THE, 1.0)]


def _combined(*parts: Variants | tuple[tuple[str, float], ...]) -> Variants:
    return [(_join(*(text for text, _ in chosen)), math.prod(p for _, p in chosen)) for chosen in product(*parts)]


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def make_lexicon(rng: np.random.Generator) -> Lexicon:
    """Coin the words."""
    function = {_THE, _A, _SOME, _PAST, _BY, *sum((*_DEMONSTRATIVES, *_PASSIVES), ()), *_TARGET_PREPOSITIONS}
    source_words = {
        Word("determiner", lemma, 2 * gender + case): stem + ending
        for lemma, stem in enumerate(_DETERMINER_STEMS)
        for gender, endings in enumerate(_DETERMINER_ENDINGS)
        for case, ending in enumerate(endings)
    }
    source_words |= {Word("auxiliary", past, plural): form for past, both in enumerate(_AUXILIARIES) for plural, form in enumerate(both)}
    source_words |= {Word("preposition", number): form for number, form in enumerate(_PREPOSITIONS)}
    taken = function | set(source_words.values())

    def coin(syllable: tuple[list[str], list[str], list[str]], syllables: int, endings: tuple[str, ...] = ("",)) -> str:
        while True:
            stem = "".join(rng.choice(part) for _ in range(syllables) for part in syllable)
            if taken.isdisjoint(stem + ending for ending in endings):
                taken.update(stem + ending for ending in endings)
                return stem

    def mean(shares: tuple[float, ...], *endings: str) -> Meaning:
        words = tuple((coin(_TARGET_SYLLABLE, 2, ("", *endings)), share) for share in shares)
        return Meaning(words, coin(_TARGET_SYLLABLE, 3, ("", *endings)))

    others: dict[str, tuple[Meaning, ...]] = {}
    kinds: tuple[tuple[Literal["adjective", "time", "place", "manner", "verb"], int], ...]
    kinds = (("adjective", ADJECTIVES), ("time", TIMES), ("place", PLACES), ("manner", MANNERS), ("verb", VERBS))
    for kind, count in kinds:
        endings = _ADJECTIVE_ENDINGS if kind == "adjective" else ("",)
        for lemma in range(count):
            stem = coin(_SOURCE_SYLLABLE, 1, endings)
            source_words |= {Word(kind, lemma, form): stem + ending for form, ending in enumerate(endings)}
        target_endings = [_SINGULAR_VERB] if kind == "verb" else []
        others[kind] = tuple(mean((1.0,) if kind in ("time", "manner") else _shares(lemma), *target_endings) for lemma in range(count))
    # A time takes two words in plain language, the first of which it shares with others.
    shared = [coin(_TARGET_SYLLABLE, 1) for _ in range(2)]
    others["time"] = tuple(
        Meaning(((_join(shared[number % 2], time.words[0][0]), 1.0),), time.formal) for number, time in enumerate(others["time"])
    )
    nouns = []
    for lemma in range(NOUNS):
        stem = coin(_SOURCE_SYLLABLE, 1, ("", _PLURAL))
        source_words |= {Word("noun", lemma, plural): stem + ending for plural, ending in enumerate(("", _PLURAL))}
        nouns.append(tuple(mean(_shares(lemma + sense), _PLURAL_NOUN) for sense in range(2 if lemma % _AMBIGUOUS == 1 else 1)))
    return Lexicon(source_words, tuple(rng.integers(_GENDERS, size=NOUNS).tolist()), tuple(nouns), others)


def _shares(number: int) -> tuple[float, ...]:
    return _SYNONYMS[number % len(_SYNONYMS)]
