"""Two invented languages, with a distribution of translations given the source known exactly."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod
from typing import NamedTuple

from softq.errors import DataError
from softq.formats.bitext import Bitext
from softq.lab.worlds.grammar import (
    GrammarWorld,
    Phrase,
    Symbol,
    Texts,
    check_probability,
    choose,
    derivations,
    join,
    seeded_generator,
    zipf,
)
from softq.lab.worlds.language_dictionary import (
    BY,
    DETERMINERS,
    DICTIONARY,
    ENDINGS,
    FUNCTION_WORDS,
    PASSIVES,
    PAST,
    PLACE_ARTICLES,
    PLURAL_GENDER,
    PLURAL_NOUN,
    PREPOSITIONS,
    SINGULAR_VERB,
    Kind,
    Meaning,
)

FEWEST, MOST = 4, 200
"""Plain translations of a source, at least and at most."""

# Probabilities of clauses.
_RANKS: dict[Kind, list[float]] = {  # cumulative: the first lemmas are the most frequent ones
    kind: zipf(len(entries), 4).cumsum()[:-1].tolist() for kind, entries in DICTIONARY.items()
}
_P_PRESENT: dict[Kind, float] = {"adjective": 0.4, "time": 0.45, "place": 0.35, "manner": 0.3}
_P_PLURAL, _P_PAST = 0.35, 0.4
_P_TIME_FIRST, _P_OBJECT_FIRST = 0.5, 0.25  # if there is a time; if it is not first

# Probabilities of translations.
_P_SECOND_MEANING = (0.1, 0.85)  # of a noun beside verbs of even and of odd lemma
_P_EARLY_TIME = {"time": 0.75, "subject": 0.2, "object": 0.2}  # by how the source begins
_P_EARLY_MANNER = 0.65
_NO_MEANING = Meaning("", [("", 1.0)])


class Word(NamedTuple):
    """A word of the source language."""

    kind: Kind
    lemma: int
    form: int = 0


class NounPhrase(NamedTuple):
    """A determiner, a noun and perhaps an adjective, by their lemmas."""

    determiner: int
    noun: int
    plural: int
    adjective: int | None


class Clause(NamedTuple):
    """The meaning of a source sentence, by lemmas, and the role of its first phrase."""

    subject: NounPhrase
    object: NounPhrase
    verb: int
    past: int
    first: str
    time: int | None
    place: int | None
    manner: int | None


@dataclass(frozen=True)
class LanguageWorld(GrammarWorld[str]):
    """Sentences of one invented language, with all their translations into another.

    **Sources** are clauses of a subject, an object and a verb, often with a time, a place or a
    manner. The verb is last; an auxiliary that agrees with the subject and tells the tense is
    second; before it stands the subject, the object or the time. Determiners and adjectives, which
    follow their noun, agree with its gender and number, and determiners tell subject from object.
    No two forms are spelled alike, so that no sentence has two readings; but some nouns have two
    meanings, and the verb tells which is likelier. There are more than 10⁹ sources, of 6 to 12
    words.

    **Translations.** With probability 1 - s, s = `idiom`, a translation is in plain language:
    subject, verb, object. Each word is one of up to three synonyms, a time stands at the beginning
    or at the end, a manner before the verb or after the object, some articles may be left out.
    These choices are independent given the source, so that

        P(y | x) = (1 - s) · Π over choices of P(choice | x)  +  s · [y is the formal one of x]

    With probability s a translation is in formal language, in which a clause can be written in one
    way only: in the passive voice, with adjectives after nouns, and with other words. A clause is
    sampled again if it has fewer than `FEWEST` or more than `MOST` plain translations, which
    depends on the source alone and so leaves P(y | x) as it is.

    **Why formal language.** There is one formal translation, and it is often the most probable of
    all, for the plain ones share 1 - s among them. But it resembles none of these, while they
    resemble each other: the translation of the highest expected reward (`bayes`) is plain, and the
    most probable one (`mode`) is not. Likelihood leads to the latter, objectives that know the
    reward to the former. With s = 0 the most probable translation is about the best one.

    Attributes:
        idiom: Probability s of a formal translation.

    >>> world = LanguageWorld()
    >>> text = world.sample(2, seed=0, references=2)
    >>> text.sources[0]
    'ula tretz tir jonim trampen wirn'
    >>> text.references[0]
    ['un fona ded vealoo date ludos', 'un fona ded nifo dise dahos']
    >>> translations = world.outputs(text.sources[0])
    >>> len(translations), round(sum(translations.values()), 9)
    (25, 1.0)

    """

    idiom: float = 0.25

    def __post_init__(self) -> None:
        check_probability("idiom, the probability of a formal translation,", self.idiom)

    def sample(self, size: int, *, seed: int, references: int = 1) -> Bitext:
        """Sources with independent translations of each; another seed gives others."""
        rng = seeded_generator(0, seed, "draw")
        return Bitext(*self.sample_pairs(size, references, rng))

    def sample_input(self, uniforms: Iterator[float]) -> str:
        """A random source."""
        while True:
            clause = _sample_clause(uniforms)
            if FEWEST <= prod(len(part) for part in _plain(clause).parts) <= MOST:
                return source_of(clause)

    def grammar(self, given: str) -> Symbol:
        """The formal translation of a source, or a plain one."""
        clause = parse(given)
        return [(formal(clause), self.idiom), (_plain(clause), 1 - self.idiom)]


def _sample_clause(uniforms: Iterator[float]) -> Clause:
    """A random clause."""

    def lemma(kind: Kind) -> int:
        return bisect_right(_RANKS[kind], next(uniforms))

    def optional(kind: Kind) -> int | None:
        return lemma(kind) if next(uniforms) < _P_PRESENT[kind] else None

    def phrase() -> NounPhrase:
        determiner = choose(range(len(DETERMINERS)), next(uniforms))
        noun, plural = lemma("noun"), int(next(uniforms) < _P_PLURAL)
        return NounPhrase(determiner, noun, plural, optional("adjective"))

    time = optional("time")
    time_first = time is not None and next(uniforms) < _P_TIME_FIRST
    subject, object_, verb, past = phrase(), phrase(), lemma("verb"), int(next(uniforms) < _P_PAST)
    first = "time" if time_first else "object" if next(uniforms) < _P_OBJECT_FIRST else "subject"
    return Clause(subject, object_, verb, past, first, time, optional("place"), optional("manner"))


# --- the source language ----------------------------------------------------------------------

SOURCE_WORDS = {
    Word(kind, lemma, form): entry.stem + ending
    for kind, entries in DICTIONARY.items()
    for lemma, entry in enumerate(entries)
    for form, ending in enumerate(ENDINGS.get(kind, ("",)))
} | {
    Word(kind, lemma, form): text
    for kind, lemmas in FUNCTION_WORDS.items()
    for lemma, forms in enumerate(lemmas)
    for form, text in enumerate(forms)
}
"""The spelling of each word of the source language; no two words are spelled alike."""

_WORD_OF = {spelling: word for word, spelling in SOURCE_WORDS.items()}


def source_of(clause: Clause) -> str:
    """The clause in the source language: a phrase, the auxiliary, other phrases, the verb."""
    phrases = {
        "subject": _source_phrase(clause.subject, 0),
        "object": _source_phrase(clause.object, 1),
        "time": _optional("time", clause.time),
        "place": _optional("place", clause.place),
        "manner": _optional("manner", clause.manner),
    }
    if clause.place is not None:
        phrases["place"].insert(0, Word("preposition", clause.place % 2))
    auxiliary = Word("auxiliary", clause.past, clause.subject.plural)
    words = [*phrases.pop(clause.first), auxiliary, *chain(*phrases.values())]
    return join(*(SOURCE_WORDS[word] for word in [*words, Word("verb", clause.verb)]))


def _source_phrase(phrase: NounPhrase, case: int) -> list[Word]:
    gender = PLURAL_GENDER if phrase.plural else DICTIONARY["noun"][phrase.noun].gender
    determiner = Word("determiner", phrase.determiner, 2 * gender + case)
    noun = Word("noun", phrase.noun, phrase.plural)
    return [determiner, noun, *_optional("adjective", phrase.adjective, gender)]


def _optional(kind: Kind, lemma: int | None, form: int = 0) -> list[Word]:
    return [] if lemma is None else [Word(kind, lemma, form)]


def parse(source: str) -> Clause:
    """The meaning of a sentence of the source language; no sentence has two.

    >>> parse("ula tretz tir jonim trampen wirn").subject
    NounPhrase(determiner=1, noun=5, plural=0, adjective=None)
    """
    words = [_WORD_OF[word] for word in source.split() if word in _WORD_OF]
    lemmas = {word.kind: word.lemma for word in words}
    phrases: dict[int, NounPhrase] = {}  # by case
    for determiner, noun, after in zip(words, words[1:], words[2:], strict=False):
        if determiner.kind == "determiner":
            adjective = after.lemma if after.kind == "adjective" else None
            phrase = NounPhrase(determiner.lemma, noun.lemma, noun.form, adjective)
            phrases[determiner.form % 2] = phrase
    try:
        role = "object" if words[0].form % 2 else "subject"
        clause = Clause(
            subject=phrases[0],
            object=phrases[1],
            verb=lemmas["verb"],
            past=lemmas["auxiliary"],
            first="time" if words[0].kind == "time" else role,
            time=lemmas.get("time"),
            place=lemmas.get("place"),
            manner=lemmas.get("manner"),
        )
        if source_of(clause) == join(*source.split()):
            return clause
    except (KeyError, IndexError):  # a word is missing, or stands where it cannot
        pass
    raise DataError(f"expected a sentence of this world's source language, got {source!r}")


# --- the target language ----------------------------------------------------------------------


def _plain(clause: Clause) -> Phrase:
    """The clause in plain language: subject, verb, object, with all that is left open."""
    ((time, _),) = _meaning("time", clause.time).words
    ((manner, _),) = _meaning("manner", clause.manner).words

    def arrange(subject: str, verb: str, object_: str, place: str, *early: str) -> str:
        late_time, late_manner = "" if early[0] else time, "" if early[1] else manner
        return join(early[0], subject, early[1], verb, object_, late_manner, place, late_time)

    past = PAST if clause.past else ""
    ending = "" if clause.past or clause.subject.plural else SINGULAR_VERB
    verbs = [(join(past, verb + ending), p) for verb, p in _meaning("verb", clause.verb).words]
    places = _meaning("place", clause.place).words
    if clause.place is not None:
        places = derivations(Phrase([PREPOSITIONS[clause.place % 2], PLACE_ARTICLES, places]))
    p_time = _P_EARLY_TIME[clause.first]
    parts: list[Texts] = [
        _plain_phrase(clause.subject, clause.verb),
        verbs,
        _plain_phrase(clause.object, clause.verb),
        places,
        [(time, p_time), ("", 1 - p_time)] if time else _NO_MEANING.words,
        [(manner, _P_EARLY_MANNER), ("", 1 - _P_EARLY_MANNER)] if manner else _NO_MEANING.words,
    ]
    return Phrase(parts, arrange)


def formal(clause: Clause) -> str:
    """The clause in formal language: in the passive voice, with one word for each meaning."""
    return join(
        _meaning("manner", clause.manner).formal,
        _formal_phrase(clause.object, clause.verb),
        PASSIVES[clause.past][clause.object.plural],
        _meaning("verb", clause.verb).formal,
        BY,
        _formal_phrase(clause.subject, clause.verb),
        _meaning("time", clause.time).formal,
        "" if clause.place is None else PREPOSITIONS[clause.place % 2],
        _meaning("place", clause.place).formal,
    )


def _meaning(kind: Kind, lemma: int | None) -> Meaning:
    return _NO_MEANING if lemma is None else DICTIONARY[kind][lemma].meanings[0]


def _senses(noun: int, verb: int) -> list[tuple[Meaning, float]]:
    """The meanings of a noun beside a verb."""
    meanings = DICTIONARY["noun"][noun].meanings
    second = _P_SECOND_MEANING[verb % 2] if len(meanings) > 1 else 0.0
    return list(zip(meanings, (1 - second, second), strict=False))


@cache
def _plain_phrase(phrase: NounPhrase, verb: int) -> Texts:
    ending = PLURAL_NOUN if phrase.plural else ""
    senses = _senses(phrase.noun, verb)
    nouns = [(word + ending, p * q) for sense, q in senses for word, p in sense.words]
    adjectives = _meaning("adjective", phrase.adjective).words
    return derivations(Phrase([DETERMINERS[phrase.determiner][phrase.plural], adjectives, nouns]))


def _formal_phrase(phrase: NounPhrase, verb: int) -> str:
    """With the likelier meaning of the noun, and the adjective behind it."""
    sense, _ = max(_senses(phrase.noun, verb), key=lambda pair: pair[1])
    noun = sense.formal + (PLURAL_NOUN if phrase.plural else "")
    determiner, _ = DETERMINERS[phrase.determiner][phrase.plural][0]
    return join(determiner, noun, _meaning("adjective", phrase.adjective).formal)
