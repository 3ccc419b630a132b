"""Exact draws from q(y|y*) ∝ exp(-edit distance / τ) for short references.

A sentence is read word by word, and the state is its column of the edit-distance table against the
reference: the distances of what was read to every prefix of the reference, cut off above
``max_edits``. All words outside the reference act alike, so there are few transitions per state,
and the weight of everything that may follow is a sum over them (backward in the length read):

    weight(state) = e^{-d/τ} [distance d of stopping here] + Σ_word weight(next state)
"""

from __future__ import annotations

import math
from functools import cache, reduce

import numpy as np

from softq.errors import IntractableError, SamplerError
from softq.kernels.text.words import Array

State = tuple[int, ...]

_MOST_STATES = 20_000


class _EditAutomaton:
    """All sentences within ``max_edits`` of one reference, weighted by e^{log_change · distance}.

    >>> automaton = _EditAutomaton([0], np.array([0, 1, 2]), 0.0, 1)  # weight 1 each
    >>> round(automaton.total)  # 0; nothing; 1 and 2 instead; 0 0, 0 1, 0 2, 1 0, 2 0
    9
    """

    def __init__(
        self, reference: list[int], words: Array, log_change: float, max_edits: int
    ) -> None:
        self.reference, self.max_edits, self.log_change = reference, max_edits, log_change
        self.outside = np.setdiff1d(words, np.array(reference, dtype=np.int64))
        # What may be read: a word of the reference, or any of those outside it (-1).
        self._read = {**dict.fromkeys(sorted(set(reference)), 1), -1: len(self.outside)}
        self.step = cache(self._next_state)
        self.options = cache(self._list_options)
        # Where nothing has been read.
        self.start: State = tuple(min(j, max_edits + 1) for j in range(len(reference) + 1))
        try:
            self.total = self._weight(0, self.start)  # of all sentences
        except RecursionError as error:
            raise IntractableError(
                "exact edit sampling reads a reference word by word, and "
                f"{len(reference)} words are too many; use exact=False"
            ) from error

    def _next_state(self, state: State, word: int) -> State:
        """State after one more word (-1: any word outside the reference)."""
        column = [state[0] + 1]
        for j, right in enumerate(self.reference):
            column.append(min(state[j] + (right != word), state[j + 1] + 1, column[j] + 1))
        return tuple(min(distance, self.max_edits + 1) for distance in column)

    def log_prob(self, sentence: list[int]) -> float:
        """Log-probability under the law."""
        distance = reduce(self.step, sentence, self.start)[-1]
        within = distance <= self.max_edits
        return distance * self.log_change - math.log(self.total) if within else -math.inf

    def draw(self, random: np.random.Generator) -> list[int]:
        """One sentence."""
        sentence: list[int] = []
        state: State | None = self.start
        while state is not None:
            options = self.options(len(sentence), state)
            weights = np.array([weight for _, _, weight in options])
            word, state, _ = options[int(random.choice(len(options), p=weights / weights.sum()))]
            if state is not None:
                sentence.append(word if word >= 0 else int(random.choice(self.outside)))
        return sentence

    def _list_options(self, read: int, state: State) -> list[tuple[int, State | None, float]]:
        """Ways to go on: what is read, the state after it, and the weight.

        Stop (no next state), or read a word, with the weight of all that follows. The length read
        tells apart the times that one column comes up. There is an end to them, since a sentence
        longer than the reference by more than ``max_edits`` is out of reach.
        """
        if self.options.cache_info().currsize >= _MOST_STATES:
            raise IntractableError(
                f"exact edit sampling needs more than {_MOST_STATES} states for a reference of "
                f"{len(self.reference)} words within {self.max_edits} edits; lower max_edits, "
                "or use exact=False"
            )
        options: list[tuple[int, State | None, float]] = []
        if state[-1] <= self.max_edits:
            options.append((-1, None, math.exp(state[-1] * self.log_change)))
        for word, count in self._read.items():
            after = self.step(state, word)
            if count and min(after) <= self.max_edits:
                options.append((word, after, count * self._weight(read + 1, after)))
        return options

    def _weight(self, read: int, state: State) -> float:
        return sum(weight for _, _, weight in self.options(read, state))


def exact_edit_samples(
    examples: list[list[list[int]]],
    seeds: Array,
    words: Array,
    log_change: float,
    max_edits: int,
    size: int,
    keep_last: bool,
) -> list[tuple[list[list[int]], list[float]]]:
    """``size`` sentences and their log-probabilities for each example.

    Each draw takes one of its references uniformly.
    """
    allowed = set(words.tolist())
    made = []
    for b, (refs, seed) in enumerate(zip(examples, seeds.tolist(), strict=True)):
        random = np.random.default_rng(seed)
        ends = [max(0, len(ref) - keep_last) for ref in refs]  # of what may be changed
        for ref, end in zip(refs, ends, strict=True):
            strange = [word for word in ref[:end] if word not in allowed]
            if strange:
                raise SamplerError(
                    "exact edit sampling needs references without specials, "
                    f"got {strange[0]} in example {b}"
                )
        parts = [
            (_EditAutomaton(ref[:end], words, log_change, max_edits), ref[end:])
            for ref, end in zip(refs, ends, strict=True)
        ]
        rows, values = [], []
        for _ in range(size):
            automaton, tail = parts[int(random.integers(len(refs)))]
            row = [*automaton.draw(random), *tail]
            logs = [
                other.log_prob(row[: len(row) - len(last)])
                for other, last in parts
                if row[len(row) - len(last) :] == last
            ]
            rows.append(row)
            values.append(float(np.logaddexp.reduce(logs)) - math.log(len(refs)))
        made.append((rows, values))
    return made
