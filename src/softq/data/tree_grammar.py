"""The grammar and the words of the world of dependency trees (`softq.data.tree_world`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# The grammar. For each tag, on its left and on its right: the probability to stop, and how its dependents share the rest.

_FIRST = {"VERB": 80, "NOUN": 12, "ADJ": 8}
GRAMMAR: dict[str, tuple[tuple[float, dict[str, int]], tuple[float, dict[str, int]]]] = {
    "VERB": (
        (0.38, {"NOUN": 25, "PRON": 25, "PROPN": 12, "AUX": 15, "ADV": 13, "VERB": 4, "PUNCT": 6}),
        (0.34, {"NOUN": 40, "PROPN": 10, "ADV": 14, "PUNCT": 16, "VERB": 10, "ADJ": 5, "PRON": 5}),
    ),
    "NOUN": (
        (0.42, {"DET": 40, "ADJ": 25, "ADP": 25, "NOUN": 5, "PROPN": 5}),
        (0.80, {"NOUN": 45, "VERB": 15, "PROPN": 20, "ADJ": 10, "PUNCT": 10}),
    ),
    "PROPN": ((0.65, {"ADP": 60, "PROPN": 20, "DET": 10, "ADJ": 10}), (0.85, {"PROPN": 50, "NOUN": 40, "PUNCT": 10})),
    "ADJ": ((0.80, {"ADV": 85, "PUNCT": 15}), (0.90, {"NOUN": 60, "VERB": 20, "ADJ": 20})),
    "ADV": ((0.88, {"ADV": 80, "PUNCT": 20}), (0.95, {"NOUN": 60, "ADV": 40})),
    "PRON": ((0.85, {"ADP": 100}), (0.96, {"VERB": 60, "NOUN": 40})),
    "AUX": ((0.97, {"ADV": 100}), (0.96, {"ADV": 100})),
    "ADP": ((0.96, {"ADV": 100}), (0.98, {"ADP": 100})),
    "DET": ((0.98, {"ADV": 100}), (0.99, {"DET": 100})),
    "PUNCT": ((0.995, {"PUNCT": 100}), (0.995, {"PUNCT": 100})),
}
TAGS = tuple(GRAMMAR)
_ANY = 0.02  # share of the first words and of the dependents that have any tag, each alike: no tree is impossible

_OPEN = ("VERB", "NOUN", "PROPN", "ADJ", "ADV")
_CLOSED_LEMMAS = 6  # of each tag that is not open
MOST_LEMMAS = 100  # of one that is: there is a probability for each pair of words
_MARKS = (".", ",", ";", ":", "?", "!")
CLASSES = 6
_SPREAD = 3.0  # of the logarithms of how much each class of heads likes each class of dependents
_AGREEMENT = 0.9  # P(number of a dependent = that of its head), if both have one
_NEITHER, _SINGULAR, _PLURAL = range(3)
_FEATS = ("_", "Number=Sing", "Number=Plur")
_ENDINGS = {"VERB": "n", "NOUN": "s", "ADJ": "r", "DET": "m", "PRON": "t", "AUX": "k"}  # of plurals; other tags have no number
_CONSONANTS, _VOWELS = list("bdfghklmnprstvz"), list("aeiou")

_RELATION_OF = {
    "VERB": "advcl", "NOUN": "nmod", "PROPN": "nmod", "ADJ": "amod", "ADV": "advmod",
    "PRON": "nmod", "AUX": "aux", "ADP": "case", "DET": "det", "PUNCT": "punct",
}  # fmt: skip
_RELATION_OF_PAIR = {(head, word): (_RELATION_OF[word], _RELATION_OF[word]) for head in TAGS for word in TAGS} | {
    ("VERB", "NOUN"): ("nsubj", "obj"),
    ("VERB", "PROPN"): ("nsubj", "obl"),
    ("VERB", "PRON"): ("nsubj", "iobj"),
    ("VERB", "ADJ"): ("xcomp", "xcomp"),
    ("VERB", "VERB"): ("advcl", "ccomp"),
    ("NOUN", "NOUN"): ("compound", "nmod"),
    ("NOUN", "VERB"): ("acl", "acl:relcl"),
    ("PROPN", "PROPN"): ("compound", "flat"),
    ("ADJ", "ADJ"): ("conj", "conj"),
}
"""On the left of the head and on its right."""
RELATIONS = sorted({relation for both in _RELATION_OF_PAIR.values() for relation in both})


class Lexicon(NamedTuple):
    """The words of a world, W of them, and the probabilities of its grammar."""

    forms: tuple[str, ...]
    lemmas: tuple[str, ...]
    upos: tuple[str, ...]
    feats: tuple[str, ...]
    first: Floats  # [W], P(first word)
    stops: Floats  # [2, W], P(stop | head) on the left and on the right
    dependents: Floats  # [2, W, W], P(dependent | head), by side, head and dependent


def make_lexicon(open_lemmas: int, rng: np.random.Generator) -> Lexicon:
    """Coin the words, and give each pair of them a probability."""
    words: list[tuple[str, str, str, int, int, float]] = []  # form, lemma, tag, class, number, P(lemma | tag, class)
    taken = set(_MARKS)
    for tag in TAGS:
        count = open_lemmas if tag in _OPEN else _CLOSED_LEMMAS
        for rank in range(count):
            lemma = _MARKS[rank] if tag == "PUNCT" else _coin(2 if tag in _OPEN else 1, tag == "PROPN", taken, rng)
            class_, place = rank % CLASSES, rank // CLASSES
            zipf = 1 / np.arange(2, 2 + len(range(class_, count, CLASSES)))
            for number in (_SINGULAR, _PLURAL) if tag in _ENDINGS else (_NEITHER,):
                form = lemma + _ENDINGS[tag] if number == _PLURAL else lemma
                words.append((form, lemma, tag, class_, number, float(zipf[place] / zipf.sum())))
    forms, lemmas, upos, *columns = zip(*words, strict=True)
    tags, classes, numbers = np.array([TAGS.index(tag) for tag in upos]), np.array(columns[0]), np.array(columns[1])
    likes = np.exp(_SPREAD * rng.normal(size=(len(TAGS), CLASSES, len(TAGS), CLASSES)))
    likes /= likes.sum(3, keepdims=True)  # P(class of the dependent | tag and class of the head, tag of the dependent)
    agreement = np.array([[1, 0.5, 0.5], [1, _AGREEMENT, 1 - _AGREEMENT], [1, 1 - _AGREEMENT, _AGREEMENT]])  # by number of head, dependent
    of_tags = np.stack([[_shares(GRAMMAR[tag][side][1]) for tag in TAGS] for side in (0, 1)])
    of_class = np.array(columns[2]) * likes[tags[:, None], classes[:, None], tags, classes]
    return Lexicon(
        forms,
        lemmas,
        upos,
        tuple(_FEATS[number] for number in numbers),
        first=_shares(_FIRST)[tags] / CLASSES * np.array(columns[2]) * agreement[_NEITHER, numbers],
        stops=np.array([[GRAMMAR[tag][side][0] for tag in upos] for side in (0, 1)]),
        dependents=of_tags[:, tags[:, None], tags] * of_class * agreement[numbers[:, None], numbers],
    )


def _coin(syllables: int, capital: bool, taken: set[str], rng: np.random.Generator) -> str:
    """A new word."""
    while True:
        word = "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.integers(syllables, 2 * syllables)))
        word = word.capitalize() if capital else word
        if word not in taken:
            taken.add(word)
            return word


def _shares(weights: Mapping[str, int]) -> Floats:
    """Probabilities of the tags."""
    shares = np.array([weights.get(tag, 0) for tag in TAGS]) / sum(weights.values())
    found: Floats = (1 - _ANY) * shares + _ANY / len(TAGS)
    return found


def relations_of(upos: Sequence[str], heads: Sequence[int]) -> tuple[str, ...]:
    """Relations of arcs, without noise."""
    tags = ("", *upos)
    either = ((tags[head], tags[word], head < word) for word, head in enumerate(heads, start=1))
    return tuple(_RELATION_OF_PAIR[head, word][to_right] if head else "root" for head, word, to_right in either)
