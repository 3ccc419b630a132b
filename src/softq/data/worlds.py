"""Data from a seed: worlds whose truth is known, so that what a model learnt can be held against the best there is.

`EntityWorld` makes sentences with named entities from a hidden Markov model, and has several imperfect annotators label them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from softq.data.conll import Sentence
from softq.data.tags import OUTSIDE, Span, spans
from softq.errors import DataError

Floats = NDArray[np.float64]
T = TypeVar("T")

KINDS = ("PER", "LOC", "ORG", "MISC")
LABELS = (OUTSIDE, *(f"{prefix}-{kind}" for kind in KINDS for prefix in "BI"))
"""The labels in the order of all scores: O, B-PER, I-PER, B-LOC, …"""


class Annotator(NamedTuple):
    """How often an annotator errs.

    Attributes:
        name: As it stands in sentences.
        miss: Share of entities that are not marked at all.
        wrong_type: Share of the marked entities that get another type, each of the others alike.
        wrong_boundary: Share of the marked entities that lose their first or last word, or take in the O before or after, each possible
            way alike. An entity for which none is possible (a word between other entities or the ends of its sentence) stays as it is.
        spurious: Share of the words outside entities, and outside marked ones that grew, that are marked as entities of one word, each
            type alike.

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
"""Sixteen people, from careful to hopeless. As in real crowds, an entity that nobody saw is the commonest fault by far."""

FEWEST, MOST = 3, 7
"""Annotators of one sentence."""


class Scores(NamedTuple):
    """Log-scores of one sentence of n words over K labels: ``emissions [n, K]`` and ``transitions [K, K]`` (from, to)."""

    emissions: Floats
    transitions: Floats


@dataclass(frozen=True)
class EntityWorld:
    """Sentences with entities (PER, LOC, ORG, MISC in BIO) from a hidden Markov model.

    Words outside entities come from a plain state or from one of cue words: titles, which a person follows; words such as "in" and "at",
    which places and organisations follow; articles; verbs of speech, which follow persons. Cue words come from nowhere else, so who knows
    words and labels knows the states. Other words may be ambiguous: types share names, and some names are everyday words as well, so that
    only what stands around them tells. The names of a type have endings of their own, but labels depend on how a word looks only through
    the word itself.

    Given the words, the labels are therefore a linear chain, exactly (see `scores`). A conditional random field whose features are the
    word, the one before and the one after contains that distribution.

    Attributes:
        common: How many words are never names.
        names: How many names each type has of its own, for its first word and for the others.
        shared: How many names the types share.
        double: How many names are everyday words as well.
        seed: Of the words and of their probabilities.

    >>> world = EntityWorld()
    >>> sentence = world.draw(1, seed=0)[0]
    >>> emissions, transitions = world.scores(sentence.tokens)
    >>> emissions.shape == (len(sentence.tokens), 9), transitions.shape
    (True, (9, 9))
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
        for name, least in (("common", 1), ("names", 1), ("shared", 1), ("double", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise DataError(f"{name} of a world must be {least} or more, got {getattr(self, name)}")

    def draw(self, count: int, *, seed: int) -> list[Sentence]:
        """Sentences with their true labels; another seed draws others from the same world."""
        rng = seeded_generator(self.seed, seed, "draw")
        lengths = _SHORTEST + rng.poisson(_MEAN_LENGTH - _SHORTEST, count)
        states = np.zeros((count, int(lengths.max(initial=0))), dtype=np.int64)
        for position in range(states.shape[1]):
            rows = _TRANSITIONS[states[:, position - 1]] if position else np.broadcast_to(_FIRST, (count, len(_FIRST)))
            states[:, position] = (rng.random((count, 1)) > rows.cumsum(1)[:, :-1]).sum(1)
        words = np.zeros_like(states)
        for state, probabilities in enumerate(self._lexicon.probabilities):
            here = states == state
            words[here] = np.searchsorted(probabilities.cumsum()[:-1], rng.random(int(here.sum())), side="right")
        return [
            Sentence(tuple(self.vocabulary[word] for word in row[:n]), (tuple(_LABEL_OF_STATE[state] for state in hidden[:n]),))
            for row, hidden, n in zip(words.tolist(), states.tolist(), lengths.tolist(), strict=True)
        ]

    def annotate(self, sentences: Iterable[Sentence], *, seed: int) -> list[Sentence]:
        """The sentences as `ANNOTATORS` label them: each by three to seven of them, drawn at random, in random order.

        Args:
            sentences: With their true labels alone, as `draw` gives them.
            seed: Another seed gives other annotators and other errors.

        """
        rng = seeded_generator(self.seed, seed, "annotate")
        found = []
        for sentence in sentences:
            if sentence.annotators or len(sentence.labels) != 1:
                raise DataError(f"expected sentences with their true labels alone, got one with {len(sentence.labels)} sequences of labels")
            gold = sentence.labels[0]
            entities = spans(gold, "bio")
            whose = [ANNOTATORS[number] for number in rng.choice(len(ANNOTATORS), rng.integers(FEWEST, MOST + 1), replace=False)]
            labels = tuple(_label(annotator, entities, len(gold), rng) for annotator in whose)
            found.append(replace(sentence, labels=labels, annotators=tuple(annotator.name for annotator in whose)))
        return found

    def scores(self, tokens: Sequence[str]) -> Scores:
        """Log-scores of the labels given the words: their chain is the exact posterior, its log-partition log P(words | their number).

        ``softq.Chain(*map(torch.tensor, world.scores(tokens)))`` is that distribution, and its `mbr` the Bayes rule of token accuracy,
        among sequences that can be. Scores are -inf for labels and pairs of labels that cannot.
        """
        words = np.asarray([self._number(token) for token in tokens], dtype=np.int64)
        states = np.tile(np.arange(len(LABELS)), (len(words), 1))  # [n, K]: the state behind each label
        states[:, 0] = self._lexicon.cues[words]
        emissions: Floats = self._log_probabilities[states, words[:, None]]
        if len(words):
            emissions[0] += _LOG_FIRST[states[0]]
        # A cue changes the transitions to and from it. All steps share one table, so the change is added to the emissions of its
        # neighbour, which is exact: the label of the cue itself is O for certain.
        table = _LOG_TRANSITIONS[: len(LABELS), : len(LABELS)]
        for step in range(1, len(words)):
            if states[step, 0]:
                emissions[step - 1] += _LOG_TRANSITIONS[states[step - 1], states[step, 0]] - table[:, 0]
            elif states[step - 1, 0]:
                possible = table[0] > -np.inf
                emissions[step, possible] += _LOG_TRANSITIONS[states[step - 1, 0], : len(LABELS)][possible] - table[0, possible]
        return Scores(emissions, table.copy())

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words."""
        return self._lexicon.words

    @cached_property
    def _lexicon(self) -> _Lexicon:
        return _make_lexicon(self)

    @cached_property
    def _log_probabilities(self) -> Floats:
        return _log(self._lexicon.probabilities)

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.vocabulary)}

    def _number(self, token: str) -> int:
        if token not in self._numbers:
            raise DataError(f"expected words of this world's vocabulary, got {token!r}")
        return self._numbers[token]


def _label(annotator: Annotator, entities: Sequence[Span], length: int, rng: np.random.Generator) -> tuple[str, ...]:
    """One annotator's labels, in BIO."""
    free = [True] * length  # words outside the entities, until one that grew takes them in
    for entity in entities:
        free[entity.start : entity.end] = [False] * (entity.end - entity.start)
    labels = [OUTSIDE] * length
    chances = rng.random((len(entities), 5)).tolist()
    for (right_kind, start, end), (miss, wrong_type, which_type, wrong_boundary, which_boundary) in zip(entities, chances, strict=True):
        if miss < annotator.miss:
            continue
        others = [kind for kind in KINDS if kind != right_kind]
        kind = _pick(others, which_type) if wrong_type < annotator.wrong_type else right_kind
        places = [(start, end)]
        if wrong_boundary < annotator.wrong_boundary:
            shorter = [(start + 1, end), (start, end - 1)] if end - start > 1 else []
            longer = [(start - 1, end)] * (start > 0 and free[start - 1]) + [(start, end + 1)] * (end < length and free[end])
            places = shorter + longer or places
        first, last = _pick(places, which_boundary)
        labels[first:last] = [f"B-{kind}"] + [f"I-{kind}"] * (last - first - 1)
        free[first:last] = [False] * (last - first)
    for place, (chance, which) in enumerate(rng.random((length, 2)).tolist()):
        if free[place] and chance < annotator.spurious:
            labels[place] = f"B-{_pick(KINDS, which)}"
    return tuple(labels)


def _pick(items: Sequence[T], chance: float) -> T:
    """An item for a chance in [0, 1), each alike."""
    return items[int(chance * len(items))]


def seeded_generator(world: int, seed: int, use: str) -> np.random.Generator:
    """A stream of its own for each use of each seed, so that one seed for all does no harm."""
    if seed < 0:
        raise DataError(f"seed must be 0 or more, got {seed}")
    return np.random.default_rng([world, seed, *use.encode()])


def _log(probabilities: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(probabilities)


# The hidden Markov model. States are the labels, O being the plain state, and then the cues.

_SHORTEST, _MEAN_LENGTH = 3, 12

_CUES = {
    "title": ("Mr.", "Mrs.", "Dr.", "President", "Judge", "Captain"),
    "place": ("in", "near", "from", "across"),
    "firm": ("at", "joined", "by", "owns"),
    "article": ("the", "a", "an"),
    "speech": ("said", "told", "says", "added", "asked"),
}

_STATES = (*LABELS, *_CUES)
_LABEL_OF_STATE = (*LABELS, *[OUTSIDE] * len(_CUES))


def _row(**shares: float) -> Floats:
    """Probabilities of the next state in these proportions; a type stands for the first word of such an entity."""
    row = np.zeros(len(_STATES))
    for name, share in shares.items():
        row[_STATES.index(f"B-{name}" if name in KINDS else name)] = share
    shares_of_one: Floats = row / row.sum()
    return shares_of_one


_PLAIN = _row(O=70, title=3, place=5, firm=4, article=6, speech=2, PER=4, LOC=3, ORG=2, MISC=1)
_AFTER_CUE = {
    "title": _row(O=10, PER=85, ORG=5),
    "place": _row(O=25, article=10, LOC=50, ORG=8, PER=4, MISC=3),
    "firm": _row(O=25, article=10, ORG=48, PER=10, LOC=4, MISC=3),
    "article": _row(O=64, ORG=14, MISC=18, LOC=4),
    "speech": _row(O=62, article=12, title=6, PER=10, LOC=4, ORG=4, MISC=2),
}
_AFTER_ENTITY = {
    "PER": _row(O=50, speech=34, place=8, firm=8),
    "LOC": _row(O=76, speech=6, place=5, firm=3, PER=2, LOC=3, ORG=3, MISC=2),
    "ORG": _row(O=60, speech=22, place=8, firm=2, PER=5, LOC=3),
    "MISC": _row(O=74, speech=4, place=4, firm=3, PER=8, ORG=7),
}
_GOES_ON = {"PER": (0.55, 0.10), "LOC": (0.22, 0.10), "ORG": (0.60, 0.30), "MISC": (0.30, 0.20)}  # after its first word, after others


def _make_transitions() -> Floats:
    table = np.zeros((len(_STATES), len(_STATES)))
    table[0] = _PLAIN
    for state, label in enumerate(LABELS[1:], start=1):
        prefix, kind = label.split("-")
        go_on = _GOES_ON[kind][prefix == "I"]
        table[state] = (1 - go_on) * _AFTER_ENTITY[kind]
        table[state, LABELS.index(f"I-{kind}")] += go_on
    for state, cue in enumerate(_CUES, start=len(LABELS)):
        table[state] = _AFTER_CUE[cue]
    return table


_TRANSITIONS = _make_transitions()
_FIRST = _row(O=40, title=6, place=5, article=16, PER=14, LOC=6, ORG=9, MISC=4)
_LOG_TRANSITIONS, _LOG_FIRST = _log(_TRANSITIONS), _log(_FIRST)


# Its words.

_ENDINGS = {  # of the names of each type: of its first word, of the others
    "PER": (("a", "an", "el", "ie", "us"), ("son", "ez", "sky", "berg", "ley")),
    "LOC": (("ville", "stan", "burg", "ia", "ton"), ("bay", "ford", "mont", "field", "coast")),
    "ORG": (("tech", "soft", "corp", "air", "gen"), ("bank", "group", "union", "works", "party")),
    "MISC": (("ish", "ese", "ian", "ic", "ist"), ("cup", "fest", "prize", "day", "act")),
}
_OWN, _SHARED = 0.50, 0.25  # shares of names that are of one type, and of several; the rest are everyday words as well
_DOUBLE = 0.07  # share of the plain words that are names as well
_SPREAD = 1.4  # how far the frequencies of an ambiguous name differ between states
_CONSONANTS, _VOWELS = list("bcdfghjklmnprstvwz"), list("aeiou")


class _Lexicon(NamedTuple):
    words: tuple[str, ...]
    probabilities: Floats  # [S, V], of the words in each state
    cues: NDArray[np.int64]  # [V], the state a word has outside entities: its cue's, or 0


def _make_lexicon(world: EntityWorld) -> _Lexicon:
    rng = seeded_generator(world.seed, 0, "words")
    words: list[str] = []
    columns: list[Floats] = []  # [S, words of a group]

    def add(group: Sequence[str], shares: Mapping[str, float], spread: float = 0.0) -> None:
        """Words that make up these shares of these states: by Zipf's law, and each the rarer in some states the larger the spread."""
        words.extend(group)
        columns.append(np.zeros((len(_STATES), len(group))))
        for state, share in shares.items():
            weights = np.exp(spread * rng.normal(size=len(group))) / np.arange(3, len(group) + 3)
            columns[-1][_STATES.index(state)] = share * weights / weights.sum()

    def coin(count: int, endings: Sequence[str] = ("",), *, capital: bool = True) -> list[str]:
        """New words."""
        coined: list[str] = []
        while len(coined) < count:
            syllables = [rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.integers(1 if endings[0] else 2, 4))]
            word = "".join(syllables) + str(rng.choice(list(endings)))
            word = word.capitalize() if capital else word
            if word not in {*words, *coined}:
                coined.append(word)
        return coined

    for cue, group in _CUES.items():
        add(group, {cue: 1.0})
    add(coin(world.common, capital=False), {OUTSIDE: 1 - _DOUBLE})
    for kind, (first, others) in _ENDINGS.items():
        add(coin(world.names, first), {f"B-{kind}": _OWN})
        add(coin(world.names, others), {f"I-{kind}": _OWN})
    names = LABELS[1:]
    add(coin(world.shared), dict.fromkeys(names, _SHARED), _SPREAD)
    add(coin(world.double), {OUTSIDE: _DOUBLE} | dict.fromkeys(names, 1 - _OWN - _SHARED), _SPREAD)
    probabilities = np.concatenate(columns, 1)
    cue_of = probabilities[len(LABELS) :]
    cues = np.where(cue_of.any(0), len(LABELS) + cue_of.argmax(0), 0)
    return _Lexicon(tuple(words), probabilities, cues)
