"""Sentences with named entities from a hidden Markov model, labelled by imperfect annotators.

The posterior of the labels given the words of an `EntityWorld` is a linear chain, exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError
from softq.formats.conll import Sentence
from softq.formats.tags import OUTSIDE, Span, spans
from softq.lab.worlds.grammar import (
    Floats,
    Integers,
    choose,
    choose_other,
    make_word,
    normalised,
    seeded_generator,
    word_ids,
    zipf,
)
from softq.spaces import Chain

KINDS = ("PER", "LOC", "ORG", "MISC")
LABELS = (OUTSIDE, *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BI"))
"""The labels in the order of all scores: O, B-PER, I-PER, B-LOC, …"""


class Annotator(NamedTuple):
    """How often an annotator errs.

    Attributes:
        name: The name that stands in sentences.
        miss: Share of entities that are not marked at all.
        wrong_type: Share of the marked entities that get another type, all equally likely.
        wrong_boundary: Share of the marked entities that lose their first or last word, or take in
            the O before or after, all possible ways equally likely. An entity for which none is
            possible (a word between other entities or the ends of its sentence) stays as it is.
        spurious: Share of the words outside entities, and outside marked ones that grew, that are
            marked as entities of one word, all types equally likely.

    """

    name: str
    miss: float
    wrong_type: float
    wrong_boundary: float
    spurious: float


ANNOTATORS = (
    Annotator("a01", miss=0.02, wrong_type=0.01, wrong_boundary=0.01, spurious=0.002),
    Annotator("a02", miss=0.04, wrong_type=0.02, wrong_boundary=0.02, spurious=0.001),
    Annotator("a03", miss=0.06, wrong_type=0.02, wrong_boundary=0.03, spurious=0.003),
    Annotator("a04", miss=0.08, wrong_type=0.04, wrong_boundary=0.02, spurious=0.002),
    Annotator("a05", miss=0.10, wrong_type=0.03, wrong_boundary=0.04, spurious=0.003),
    Annotator("a06", miss=0.12, wrong_type=0.05, wrong_boundary=0.03, spurious=0.003),
    Annotator("a07", miss=0.15, wrong_type=0.03, wrong_boundary=0.05, spurious=0.004),
    Annotator("a08", miss=0.18, wrong_type=0.06, wrong_boundary=0.04, spurious=0.004),
    Annotator("a09", miss=0.22, wrong_type=0.05, wrong_boundary=0.06, spurious=0.003),
    Annotator("a10", miss=0.28, wrong_type=0.08, wrong_boundary=0.05, spurious=0.005),
    Annotator("a11", miss=0.34, wrong_type=0.06, wrong_boundary=0.08, spurious=0.004),
    Annotator("a12", miss=0.40, wrong_type=0.10, wrong_boundary=0.06, spurious=0.006),
    Annotator("a13", miss=0.50, wrong_type=0.10, wrong_boundary=0.10, spurious=0.006),
    Annotator("a14", miss=0.70, wrong_type=0.30, wrong_boundary=0.20, spurious=0.020),
    Annotator("a15", miss=0.80, wrong_type=0.60, wrong_boundary=0.30, spurious=0.050),
    Annotator("a16", miss=0.90, wrong_type=0.75, wrong_boundary=0.40, spurious=0.080),
)
"""Sixteen annotators, from careful to hopeless. As in real crowds, most errors are misses."""

FEWEST, MOST = 3, 7
"""Annotators of one sentence."""


@dataclass(frozen=True)
class EntityWorld:
    """Sentences with entities (PER, LOC, ORG, MISC in BIO) from a hidden Markov model.

    Words outside entities come from a plain state or from a state of cue words: titles, which
    persons follow; words such as "in" and "at", which places and organisations follow; articles;
    verbs of speech, which follow persons. Cue words come from no other state, so that words and
    labels determine the states. Other words may be ambiguous: types share names, and some names are
    everyday words as well, so that only the context tells. The names of a type have endings of
    their own, but labels depend on the spelling of a word only through the word itself.

    Given the words, the labels are therefore a linear chain, exactly (see `posterior`). A
    conditional random field whose features are the word, the one before and the one after contains
    that distribution.

    Attributes:
        common: Number of words that are never names.
        names: Number of names that each type has to itself, for its first word and for the others.
        shared: Number of names that the types share.
        double: Number of names that are everyday words as well.
        seed: Random seed of the words and of their probabilities.

    >>> world = EntityWorld()
    >>> sentence = world.sample(1, seed=0)[0]
    >>> world.posterior(sentence.tokens).mbr().shape == (len(sentence.tokens),)
    True
    >>> crowd = world.annotate([sentence], seed=0)[0]
    >>> crowd.tokens == sentence.tokens, 3 <= len(crowd.annotators) <= 7
    (True, True)

    """

    common: int = 150
    names: int = 15
    shared: int = 12
    double: int = 12
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "seed" else 1
            if value < least:
                raise DataError(f"{name} of a world must be {least} or more, got {value}")

    def sample(self, size: int, *, seed: int) -> list[Sentence]:
        """Sentences with their true labels; another seed gives others of the same world."""
        rng = seeded_generator(self.seed, seed, "draw")
        lengths = _SHORTEST + rng.poisson(_MEAN_LENGTH - _SHORTEST, size)
        states = np.zeros((size, int(lengths.max(initial=0))), dtype=np.int64)
        for place in range(states.shape[1]):
            rows = _TRANSITIONS[states[:, place - 1]] if place else _FIRST[None]
            states[:, place] = (rng.random((size, 1)) > rows.cumsum(1)[:, :-1]).sum(1)
        words, vocabulary = np.zeros_like(states), self.vocabulary
        for state, probabilities in enumerate(self._lexicon.probabilities):
            here = states == state
            uniforms = rng.random(int(here.sum()))
            words[here] = np.searchsorted(probabilities.cumsum()[:-1], uniforms, side="right")
        return [
            Sentence(
                tuple(vocabulary[word] for word in row[:length]),
                (tuple(_LABEL_OF_STATE[state] for state in hidden[:length]),),
            )
            for row, hidden, length in zip(
                words.tolist(), states.tolist(), lengths.tolist(), strict=True
            )
        ]

    def annotate(self, sentences: Iterable[Sentence], *, seed: int) -> list[Sentence]:
        """The sentences as three to seven random `ANNOTATORS` each, in random order, label them.

        Args:
            sentences: With their true labels alone, as `sample` returns them.
            seed: Another seed gives other annotators and other errors.

        """
        rng = seeded_generator(self.seed, seed, "annotate")
        found = []
        for sentence in sentences:
            if sentence.annotators or len(sentence.labels) != 1:
                raise DataError(
                    "expected sentences with their true labels alone, got one with "
                    f"{len(sentence.labels)} sequences of labels"
                )
            entities = spans(sentence.labels[0], "bio")
            count = rng.integers(FEWEST, MOST + 1)
            crowd = [ANNOTATORS[a] for a in rng.choice(len(ANNOTATORS), count, replace=False)]
            labels = [_annotate(who, entities, len(sentence.tokens), rng) for who in crowd]
            names = tuple(who.name for who in crowd)
            found.append(replace(sentence, labels=tuple(labels), annotators=names))
        return found

    def posterior(self, tokens: Sequence[str]) -> Chain:
        """The exact distribution of the `LABELS` given the words.

        Its log-partition is log P(words | their number), and its `mbr` is the Bayes rule of token
        accuracy among possible sequences.
        """
        words = torch.from_numpy(word_ids(self._lexicon.ids, tokens))
        states = torch.arange(len(LABELS)).repeat(len(words), 1)  # [n, K]: that of each label
        states[:, 0] = torch.from_numpy(self._lexicon.cues)[words]
        emissions = self._lexicon.log_probabilities[states, words[:, None]]
        emissions[:1] += _LOG_FIRST[states[:1]]
        return Chain(emissions, _LOG_TRANSITIONS[states[:-1, :, None], states[1:, None, :]])

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words."""
        return tuple(self._lexicon.ids)

    @cached_property
    def _lexicon(self) -> _Lexicon:
        return _make_lexicon(self)


def _annotate(
    annotator: Annotator, entities: Sequence[Span], length: int, rng: np.random.Generator
) -> tuple[str, ...]:
    """The labels of one annotator, in BIO."""
    free = [True] * length  # words outside the entities, until one that grew takes them in
    for _, start, end in entities:
        free[start:end] = [False] * (end - start)
    labels = [OUTSIDE] * length
    uniforms = rng.random((len(entities), 5)).tolist()
    for (kind, start, end), chances in zip(entities, uniforms, strict=True):
        miss, wrong_type, which_type, wrong_boundary, which_boundary = chances
        if miss < annotator.miss:
            continue
        if wrong_type < annotator.wrong_type:
            kind = choose_other(KINDS, kind, which_type)
        if wrong_boundary < annotator.wrong_boundary:
            ways = (
                (end - start > 1, (start + 1, end)),
                (end - start > 1, (start, end - 1)),
                (start > 0 and free[start - 1], (start - 1, end)),
                (end < length and free[end], (start, end + 1)),
            )
            possible = [span for is_possible, span in ways if is_possible]
            start, end = choose(possible or [(start, end)], which_boundary)
        labels[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
        free[start:end] = [False] * (end - start)
    for place, (chance, which) in enumerate(rng.random((length, 2)).tolist()):
        if free[place] and chance < annotator.spurious:
            labels[place] = f"B-{choose(KINDS, which)}"
    return tuple(labels)


# The hidden Markov model. Its states are the labels, O being the plain state and a type alone
# standing for the first word of such an entity, and then the cues.

_SHORTEST, _MEAN_LENGTH = 3, 12

_CUES = {
    "title": ("Mr.", "Mrs.", "Dr.", "President", "Judge", "Captain"),
    "place": ("in", "near", "from", "across"),
    "firm": ("at", "joined", "by", "owns"),
    "article": ("the", "a", "an"),
    "speech": ("said", "told", "says", "added", "asked"),
}
_STATES = (*(label.removeprefix("B-") for label in LABELS), *_CUES)
_LABEL_OF_STATE = (*LABELS, *[OUTSIDE] * len(_CUES))


_AFTER: dict[str, dict[str, float]] = {  # weights of what follows a state; entities end here
    "O": {
        "O": 70,
        "title": 3,
        "place": 5,
        "firm": 4,
        "article": 6,
        "speech": 2,
        "PER": 4,
        "LOC": 3,
        "ORG": 2,
        "MISC": 1,
    },
    "title": {"O": 10, "PER": 85, "ORG": 5},
    "place": {"O": 25, "article": 10, "LOC": 50, "ORG": 8, "PER": 4, "MISC": 3},
    "firm": {"O": 25, "article": 10, "ORG": 48, "PER": 10, "LOC": 4, "MISC": 3},
    "article": {"O": 64, "ORG": 14, "MISC": 18, "LOC": 4},
    "speech": {"O": 62, "article": 12, "title": 6, "PER": 10, "LOC": 4, "ORG": 4, "MISC": 2},
    "PER": {"O": 50, "speech": 34, "place": 8, "firm": 8},
    "LOC": {"O": 76, "speech": 6, "place": 5, "firm": 3, "PER": 2, "LOC": 3, "ORG": 3, "MISC": 2},
    "ORG": {"O": 60, "speech": 22, "place": 8, "firm": 2, "PER": 5, "LOC": 3},
    "MISC": {"O": 74, "speech": 4, "place": 4, "firm": 3, "PER": 8, "ORG": 7},
}
_CONTINUES = {  # P(a further word of the entity) after its first word, and after another
    "PER": (0.55, 0.10),
    "LOC": (0.22, 0.10),
    "ORG": (0.60, 0.30),
    "MISC": (0.30, 0.20),
}


def _row(weights: Mapping[str, float]) -> Floats:
    return normalised([weights.get(state, 0.0) for state in _STATES])


def _make_transitions() -> Floats:
    table = np.stack([_row(_AFTER[state.removeprefix("I-")]) for state in _STATES])
    for kind, both in _CONTINUES.items():
        rows = [_STATES.index(kind), _STATES.index(f"I-{kind}")]
        table[rows] *= 1 - np.array(both)[:, None]
        table[rows, rows[1]] += both
    return table


_TRANSITIONS = _make_transitions()
_FIRST = _row(
    {"O": 40, "title": 6, "place": 5, "article": 16, "PER": 14, "LOC": 6, "ORG": 9, "MISC": 4}
)
_LOG_TRANSITIONS, _LOG_FIRST = torch.from_numpy(_TRANSITIONS).log(), torch.from_numpy(_FIRST).log()


# Its words.

_ENDINGS = {  # of the names of each type: of the first word, of the others
    "PER": (("a", "an", "el", "ie", "us"), ("son", "ez", "sky", "berg", "ley")),
    "LOC": (("ville", "stan", "burg", "ia", "ton"), ("bay", "ford", "mont", "field", "coast")),
    "ORG": (("tech", "soft", "corp", "air", "gen"), ("bank", "group", "union", "works", "party")),
    "MISC": (("ish", "ese", "ian", "ic", "ist"), ("cup", "fest", "prize", "day", "act")),
}
_OWN, _SHARED = 0.50, 0.25  # P(a name is of one type, of several); the rest are everyday words too
_DOUBLE = 0.07  # P(a plain word is a name as well)
_SPREAD = 1.4  # of the log-probabilities of an ambiguous name between states
_SYLLABLE = ("bcdfghjklmnprstvwz", "aeiou")


class _Lexicon(NamedTuple):
    ids: dict[str, int]  # of the words
    probabilities: Floats  # [S, V], of the words in each state
    log_probabilities: Tensor
    cues: Integers  # [V], the state a word has outside entities: its cue's, or 0


def _make_lexicon(world: EntityWorld) -> _Lexicon:
    rng = seeded_generator(world.seed, 0, "words")
    taken = {word for group in _CUES.values() for word in group}
    words: list[str] = []
    columns: list[Floats] = []  # [S, words of a group]

    def add(group: Sequence[str], shares: Mapping[str, float], spread: float = 0.0) -> None:
        """Words that make up these shares of these states, by Zipf's law times a random factor."""
        words.extend(group)
        columns.append(np.zeros((len(_STATES), len(group))))
        for state, share in shares.items():
            factors = np.exp(spread * rng.normal(size=len(group)))
            row = share * normalised(factors * zipf(len(group), 3))
            columns[-1][_STATES.index(state)] = row

    def names(count: int, endings: Sequence[str] = ("",)) -> list[str]:
        syllables = (1 if endings[0] else 2, 3)
        return [make_word(rng, taken, _SYLLABLE, syllables, endings, True) for _ in range(count)]

    for cue, group in _CUES.items():
        add(group, {cue: 1.0})
    common = [make_word(rng, taken, _SYLLABLE, (2, 3)) for _ in range(world.common)]
    add(common, {OUTSIDE: 1 - _DOUBLE})
    for kind, (first, others) in _ENDINGS.items():
        add(names(world.names, first), {kind: _OWN})
        add(names(world.names, others), {f"I-{kind}": _OWN})
    in_entities = _STATES[1 : len(LABELS)]
    add(names(world.shared), dict.fromkeys(in_entities, _SHARED), _SPREAD)
    double = {OUTSIDE: _DOUBLE} | dict.fromkeys(in_entities, 1 - _OWN - _SHARED)
    add(names(world.double), double, _SPREAD)
    probabilities = np.concatenate(columns, 1)
    is_cue = probabilities[len(LABELS) :] > 0
    cues = np.where(is_cue.any(0), len(LABELS) + is_cue.argmax(0), 0)
    ids = {word: number for number, word in enumerate(words)}
    return _Lexicon(ids, probabilities, torch.from_numpy(probabilities).log(), cues)
