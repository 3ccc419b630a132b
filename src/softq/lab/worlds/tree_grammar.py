"""The grammar and the words of the dependency trees of `softq.lab.worlds.trees`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from softq.lab.worlds.grammar import Floats, make_word, normalised, zipf

# The grammar. For each tag, on its left and on its right: the probability to stop, and the weights
# of the tags of its dependents.
GRAMMAR: dict[str, tuple[tuple[float, dict[str, float]], tuple[float, dict[str, float]]]] = {
    "VERB": (
        (
            0.38,
            {"NOUN": 25, "PRON": 25, "PROPN": 12, "AUX": 15, "ADV": 13, "VERB": 4, "PUNCT": 6},
        ),
        (
            0.34,
            {"NOUN": 40, "PROPN": 10, "ADV": 14, "PUNCT": 16, "VERB": 10, "ADJ": 5, "PRON": 5},
        ),
    ),
    "NOUN": (
        (0.42, {"DET": 40, "ADJ": 25, "ADP": 25, "NOUN": 5, "PROPN": 5}),
        (0.80, {"NOUN": 45, "VERB": 15, "PROPN": 20, "ADJ": 10, "PUNCT": 10}),
    ),
    "PROPN": (
        (0.65, {"ADP": 60, "PROPN": 20, "DET": 10, "ADJ": 10}),
        (0.85, {"PROPN": 50, "NOUN": 40, "PUNCT": 10}),
    ),
    "ADJ": ((0.80, {"ADV": 85, "PUNCT": 15}), (0.90, {"NOUN": 60, "VERB": 20, "ADJ": 20})),
    "ADV": ((0.88, {"ADV": 80, "PUNCT": 20}), (0.95, {"NOUN": 60, "ADV": 40})),
    "PRON": ((0.85, {"ADP": 100}), (0.96, {"VERB": 60, "NOUN": 40})),
    "AUX": ((0.97, {"ADV": 100}), (0.96, {"ADV": 100})),
    "ADP": ((0.96, {"ADV": 100}), (0.98, {"ADP": 100})),
    "DET": ((0.98, {"ADV": 100}), (0.99, {"DET": 100})),
    "PUNCT": ((0.995, {"PUNCT": 100}), (0.995, {"PUNCT": 100})),
}
_FIRST: dict[str, float] = {"VERB": 80, "NOUN": 12, "ADJ": 8}  # weights of the tag under the root
_ANY_TAG = 0.02  # probability of a tag at random wherever one is chosen: no tree is impossible
TAGS = tuple(GRAMMAR)
_OPEN_TAGS = ("VERB", "NOUN", "PROPN", "ADJ", "ADV")
_CLOSED_LEMMAS = 6  # of each tag that is not open
MOST_LEMMAS = 100  # of each tag that is: there is a probability for each pair of words
_MARKS = (".", ",", ";", ":", "?", "!")
CLASSES = 6
_SPREAD = 3.0  # of the log-weights of classes of dependents by class of head
_AGREEMENT = np.array([[1, 0.5, 0.5], [1, 0.9, 0.1], [1, 0.1, 0.9]])  # P(number | that of the head)
_FEATS = ("_", "Number=Sing", "Number=Plur")  # by number: none, singular, plural
_NUMBERS = {  # of the tags that have a singular and a plural, with their endings
    tag: ((1, ""), (2, ending))
    for tag, ending in zip(("VERB", "NOUN", "ADJ", "DET", "PRON", "AUX"), "nsrmtk", strict=True)
}
_SYLLABLE = ("bdfghklmnprstvz", "aeiou")

_RELATION_OF_TAG = {
    "VERB": "advcl", "NOUN": "nmod", "PROPN": "nmod", "ADJ": "amod", "ADV": "advmod",
    "PRON": "nmod", "AUX": "aux", "ADP": "case", "DET": "det", "PUNCT": "punct",
}  # fmt: skip
RELATION_OF_PAIR = {  # of head and dependent: on the left of the head and on its right
    (head, tag): (relation, relation) for head in TAGS for tag, relation in _RELATION_OF_TAG.items()
} | {
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
RELATIONS = sorted({relation for both in RELATION_OF_PAIR.values() for relation in both})


class Lexicon(NamedTuple):
    """The words of a world, W of them, and the probabilities of its grammar."""

    ids: dict[str, int]  # of the words
    lemmas: tuple[str, ...]
    upos: tuple[str, ...]
    feats: tuple[str, ...]
    first: Floats  # [W], P(first word)
    stops: Floats  # [2, W], P(stop | head) on the left and on the right
    dependents: Floats  # [2, W, W], P(dependent | head), by side, head and dependent

    def log_arcs(self) -> Floats:
        """Scores by side, head and dependent ``[2, W+1, W+1]``; the last head is the root.

        They include log P(stop) of the dependent on both its sides.
        """
        found = np.full((2, len(self.first) + 1, len(self.first) + 1), -np.inf)
        found[:, :-1, :-1] = np.log1p(-self.stops)[:, :, None] + np.log(self.dependents)
        found[:, -1, :-1] = np.log(self.first)
        found[:, :, :-1] += np.log(self.stops).sum(0)
        return found


def make_lexicon(open_lemmas: int, rng: np.random.Generator) -> Lexicon:
    """Make up the words, and give each pair of them a probability."""
    words = []  # form, lemma, tag, class, number, P(lemma | tag, class)
    taken = set(_MARKS)
    sizes = dict.fromkeys(TAGS, (_CLOSED_LEMMAS, (1, 1)))
    sizes |= dict.fromkeys(_OPEN_TAGS, (open_lemmas, (2, 3)))
    for tag, (count, syllables) in sizes.items():
        made = list(_MARKS)
        if tag != "PUNCT":
            made = [
                make_word(rng, taken, _SYLLABLE, syllables, ("",), tag == "PROPN")
                for _ in range(count)
            ]
        for rank, lemma in enumerate(made):
            same_class = range(rank % CLASSES, count, CLASSES)
            p_lemma = zipf(len(same_class), 2)[rank // CLASSES]
            for number, ending in _NUMBERS.get(tag, ((0, ""),)):
                words.append((lemma + ending, lemma, tag, rank % CLASSES, number, p_lemma))
    forms, lemmas, upos, *columns = zip(*words, strict=True)
    tags = np.array([TAGS.index(tag) for tag in upos])
    classes, numbers, p_lemma = map(np.array, columns)
    p_tag = np.array([[_tags(GRAMMAR[tag][side][1]) for tag in TAGS] for side in (0, 1)])
    p_class = np.exp(_SPREAD * rng.normal(size=(len(TAGS), CLASSES, len(TAGS), CLASSES)))
    p_class /= p_class.sum(3, keepdims=True)  # given tag and class of the head, and the tag
    heads = tags[:, None]
    p_word = p_lemma * p_class[heads, classes[:, None], tags, classes]
    return Lexicon(
        {form: number for number, form in enumerate(forms)},
        lemmas,
        upos,
        tuple(_FEATS[number] for number in numbers),
        first=_tags(_FIRST)[tags] / CLASSES * p_lemma * _AGREEMENT[0, numbers],
        stops=np.array([[GRAMMAR[tag][side][0] for tag in upos] for side in (0, 1)]),
        dependents=p_tag[:, heads, tags] * p_word * _AGREEMENT[numbers[:, None], numbers],
    )


def _tags(weights: dict[str, float]) -> Floats:
    """Probabilities of the tags."""
    shares = normalised([weights.get(tag, 0.0) for tag in TAGS])
    return np.add((1 - _ANY_TAG) * shares, _ANY_TAG / len(TAGS))
