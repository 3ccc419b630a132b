"""Exact draws from q(y|y*) ∝ exp(-edit distance / τ) for short references.

A sentence is read word by word, and the state is its column of the edit-distance table against the reference: the distances
of what was read to every prefix of the reference, cut off above ``max_edits``. All words outside the reference act alike, so
there are few transitions per state, and the weight of everything that may follow is a sum over them (backward in the length read):

    weight(state) = e^{-d/τ} [distance d of stopping here] + Σ_word weight(next state)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from softq.errors import IntractableError, SamplerError

Array = np.ndarray[Any, Any]
State = tuple[int, ...]

_MOST_STATES = 20_000


class EditAutomaton:
    """All sentences within ``max_edits`` of one reference, weighted by e^{log_change · distance}.

    >>> automaton = EditAutomaton([0], np.array([0, 1, 2]), 0.0, 1)  # weight 1 each: the number of sentences
    >>> round(automaton.total)  # 0; nothing; 1 and 2 instead; 0 0, 0 1, 0 2, 1 0, 2 0
    9
    """

    def __init__(self, reference: list[int], words: Array, log_change: float, max_edits: int) -> None:
        self.reference = reference
        self.max_edits = max_edits
        self.log_change = log_change
        self.inside = sorted(set(reference))
        self.outside = np.setdiff1d(words, np.array(self.inside, dtype=np.int64))
        self._weights: dict[tuple[int, State], float] = {}
        self._next: dict[tuple[State, int], State | None] = {}
        self.start: State = tuple(min(j, max_edits + 1) for j in range(len(reference) + 1))  # nothing read
        try:
            self.total = self._weight(0, self.start)  # of all sentences
        except RecursionError as error:
            raise IntractableError(
                f"exact edit sampling reads a reference word by word, and {len(reference)} words are too many; use exact=False"
            ) from error

    def step(self, state: State, word: int) -> State | None:
        """State after one more word (-1: any word outside the reference); None once no sentence stays within reach."""
        key = state, word
        if key not in self._next:
            column = [min(state[0] + 1, self.max_edits + 1)]
            for j, right in enumerate(self.reference):
                column.append(min(state[j] + (right != word), state[j + 1] + 1, column[j] + 1, self.max_edits + 1))
            self._next[key] = tuple(column) if min(column) <= self.max_edits else None
        return self._next[key]

    def distance(self, sentence: list[int]) -> int | None:
        """Edit distance, or None if it is more than ``max_edits``."""
        state: State | None = self.start
        for word in sentence:
            state = self.step(state, word) if state is not None else None
        return state[-1] if state is not None and state[-1] <= self.max_edits else None

    def log_prob(self, sentence: list[int]) -> float:
        """Log-probability under the law."""
        distance = self.distance(sentence)
        return -math.inf if distance is None else distance * self.log_change - math.log(self.total)

    def draw(self, random: np.random.Generator) -> list[int]:
        """One sentence."""
        sentence: list[int] = []
        state = self.start
        while True:
            options = self._options(len(sentence), state)
            weights = np.array([weight for _, _, weight in options])
            word, after, _ = options[int(random.choice(len(options), p=weights / weights.sum()))]
            if after is None:
                return sentence
            sentence.append(word if word >= 0 else int(random.choice(self.outside)))
            state = after

    def _options(self, read: int, state: State) -> list[tuple[int, State | None, float]]:
        """Ways to go on: stop (no next state), or read a word, with the weight of all that follows."""
        options: list[tuple[int, State | None, float]] = []
        if state[-1] <= self.max_edits:
            options.append((-1, None, math.exp(state[-1] * self.log_change)))
        for word, count in [*((word, 1) for word in self.inside), (-1, len(self.outside))]:
            after = self.step(state, word) if count else None
            if after is not None:
                options.append((word, after, count * self._weight(read + 1, after)))
        return options

    def _weight(self, read: int, state: State) -> float:
        # The length read is part of the key: the same column may come up again, but never without end, since a sentence longer
        # than the reference by more than max_edits is out of reach.
        key = read, state
        if key not in self._weights:
            if len(self._weights) >= _MOST_STATES:
                raise IntractableError(
                    f"exact edit sampling needs more than {_MOST_STATES} states for a reference of {len(self.reference)} words within "
                    f"{self.max_edits} edits; lower max_edits, or use exact=False"
                )
            self._weights[key] = math.nan  # holds the place
            self._weights[key] = sum(weight for _, _, weight in self._options(read, state))
        return self._weights[key]


def exact_edit_samples(
    examples: list[list[list[int]]], seeds: Array, words: Array, log_change: float, max_edits: int, size: int, keep_last: bool
) -> list[tuple[list[list[int]], list[float]]]:
    """``size`` sentences and their log-probabilities for each example's references, of which each draw takes one uniformly."""
    allowed = set(words.tolist())
    made = []
    for b, (refs, seed) in enumerate(zip(examples, seeds.tolist(), strict=True)):
        random = np.random.default_rng(seed)
        heads = [ref[: len(ref) - keep_last] if ref else ref for ref in refs]
        tails = [ref[len(head) :] for ref, head in zip(refs, heads, strict=True)]
        for head in heads:
            strange = [word for word in head if word not in allowed]
            if strange:
                raise SamplerError(f"exact edit sampling needs references without specials, got {strange[0]} in example {b}")
        automata = [EditAutomaton(head, words, log_change, max_edits) for head in heads]
        rows, values = [], []
        for _ in range(size):
            choice = int(random.integers(len(refs)))
            head, tail = automata[choice].draw(random), tails[choice]
            sentence = [*head, *tail]
            reached = [(automaton, len(sentence) - len(end)) for automaton, end in zip(automata, tails, strict=True)]
            logs = [
                automaton.log_prob(sentence[:size]) for (automaton, size), end in zip(reached, tails, strict=True) if sentence[size:] == end
            ]
            rows.append(sentence)
            values.append(float(np.logaddexp.reduce(logs)) - math.log(len(refs)))
        made.append((rows, values))
    return made
