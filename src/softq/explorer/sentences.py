"""RAML and SQDML on the candidates of a few references, at any temperature.

Candidates and rewards are computed once for each choice of references, reward and sampler; a new
temperature only weights them anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import ndiff
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from softq.errors import DataError, SoftqError, TemperatureError
from softq.formats.text import number_words, read_references
from softq.kernels.text.pairs import edit_distance
from softq.neural.target_maker import make_sampler
from softq.rewards import Precomputed, named_reward
from softq.sentences import Sentences
from softq.spaces import Candidates
from softq.targets import raml, sqdml
from softq.temperature import CandidateCurve, TemperaturePoint

Objective = Literal["raml", "sqdml"]
SortKey = Literal["raml", "sqdml", "reward"]

OBJECTIVES: dict[Objective, str] = {"raml": "RAML", "sqdml": "SQDML"}
SAMPLERS = {
    "ngram": "n-gram replacement",
    "hamming": "samples by Hamming distance",
    "edit": "samples by edit distance",
    "recombined": "recombined references",
}
OF_NGRAMS = ("ngram", "recombined")
"""Samplers with a longest n-gram, which count references; the others have a temperature."""

MOST_CANDIDATES = 20_000
"""Of all inputs together: more would not follow the slider."""
MOST_WORDS = 100
"""Of one sentence."""
MOST_INPUTS = 200
"""Of a file; the rest is left out."""

TAUS = tuple(10 ** (step / 20) for step in range(-40, 41))
"""The temperatures of a curve, 0.01 to 100, evenly on a logarithmic scale."""

EXAMPLE = """\
a small dog runs across the wet sand
a dog is running on the beach
the little dog runs along the beach

two children share a red umbrella in the rain
children under a red umbrella
"""
"""The references that the page starts with."""


class SettingError(SoftqError, ValueError):
    """A setting is invalid, alone or with the others; ``setting`` names the field to blame."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


class CandidateRow(NamedTuple):
    """A candidate and its weights at one temperature."""

    number: int
    """Its index among the candidates of the input."""
    words: list[str]
    is_reference: bool
    reward: float
    """Mean over the references."""
    raml: float
    sqdml: float


def parse_references(text: str) -> list[list[list[str]]]:
    r"""References as people type them: a sentence per line, a blank line between inputs.

    Tabs separate sentences, too.

    >>> parse_references("a dog\nthe dog\n\na cat")
    [[['a', 'dog'], ['the', 'dog']], [['a', 'cat']]]
    """
    lines = [
        _of_fair_length(filter(None, map(str.split, line.split("\t"))), f"line {number}")
        for number, line in enumerate(text.splitlines(), 1)
    ]
    examples = [list(chain(*group)) for filled, group in groupby(lines, bool) if filled]
    if not examples:
        raise DataError("expected at least one sentence, got none; type one, or load a file")
    return examples


def load_references(path: Path) -> list[list[list[str]]]:
    """References of a file as `softq theory --references` reads it, at most `MOST_INPUTS` lines.

    Each line is an input, with tabs between its references.
    """
    return [
        _of_fair_length(example, f"{path}, line {number}")
        for number, example in enumerate(read_references(path, MOST_INPUTS), 1)
    ]


def _of_fair_length(sentences: Iterable[list[str]], where: str) -> list[list[str]]:
    """The sentences, if none is longer than `MOST_WORDS`."""
    found = list(sentences)
    longest = max(map(len, found), default=0)
    if longest > MOST_WORDS:
        raise DataError(
            f"{where}: expected at most {MOST_WORDS} words in a sentence, got {longest}; split it"
        )
    return found


def write_references(examples: Sequence[Sequence[Sequence[str]]]) -> str:
    r"""The text that `parse_references` reads.

    >>> write_references([[["a", "dog"], ["the", "dog"]], [["a", "cat"]]])
    'a dog\nthe dog\n\na cat\n'
    """
    return "\n".join(
        "".join(" ".join(sentence) + "\n" for sentence in example) for example in examples
    )


@dataclass(eq=False)
class SentenceStudy:
    """Candidates, their rewards and the curves of both objectives, ready for any temperature.

    Attributes:
        examples: references of each input as words, ``[input][reference][word]``.
        more_words: words that candidates may use besides those of the references.
        reward: name of the reward of a sentence against a reference.
        sampler: one of `SAMPLERS`.
        size: candidates per input, references included.
        max_n: longest n-gram that is replaced or recombined.
        draw_tau: temperature of the samples by distance, rescaled as in the paper's footnote;
            candidates stay when the target's τ moves.
        seed: random seed of the candidates.

    >>> study = SentenceStudy(parse_references(EXAMPLE))
    >>> best = study.rows(0, 0.05)[0]
    >>> best.is_reference, round(sum(row.raml for row in study.rows(0, 0.05)), 9)
    (True, 1.0)

    """

    examples: Sequence[Sequence[Sequence[str]]]
    more_words: Sequence[str] = ()
    reward: str = "bleu"
    sampler: str = "ngram"
    size: int = 100
    max_n: int = 4
    draw_tau: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        numbers, self.words = number_words([*self.examples, [list(self.more_words)]])
        self.references = Sentences.pack(numbers[:-1])
        sampled = self._sample().with_references(self.references)
        self.candidates = Candidates(sampled.tokens, sampled.lengths)
        reward = named_reward(self.reward, self.words)
        self.rewards = reward(*self.candidates.sentences, *self.references)  # [B, S, R]
        self._known = Precomputed(reward, self.rewards)
        self._curves = {
            name: CandidateCurve(self.candidates, self.references, self._known, objective=name)
            for name in OBJECTIVES
        }

    def _sample(self) -> Candidates:
        inputs, most = len(self.examples), max(map(len, self.examples))
        recombined, vocab = self.sampler == "recombined", len(self.words)
        for setting, is_wrong, message in (
            (
                "size",
                self.size < most + 1,
                f"expected at least {most + 1}, for the {most} references of an input and one "
                f"more, got {self.size}",
            ),
            (
                "size",
                self.size * inputs > MOST_CANDIDATES,
                f"expected at most {MOST_CANDIDATES // inputs} each for {inputs} inputs, "
                f"got {self.size}",
            ),
            (
                "sampler",
                recombined and most < 2,
                "recombining needs an input with several references, got one each; "
                "add a line below it",
            ),
            (
                "more_words",
                vocab < 2 and not recombined,
                f"expected at least two different words to write with, got {self.words[0]!r} "
                "alone; add some",
            ),
        ):
            if is_wrong:
                raise SettingError(setting, message)
        size = self.size if self.sampler in OF_NGRAMS else self.size - most
        sampler = make_sampler(self.sampler, size, vocab, (), self.draw_tau, max_n=self.max_n)
        return sampler(self.references, generator=torch.Generator().manual_seed(self.seed))

    @cached_property
    def counted(self) -> Tensor:
        """Which candidates are present and not repeated, bool ``[B, S]``.

        Samples by distance may contain the same sentence twice.
        """
        return self.candidates.present & ~self.candidates.repeats()

    @cached_property
    def curves(self) -> dict[Objective, list[TemperaturePoint]]:
        """Both objectives at each of `TAUS`, as means over inputs."""
        return {name: curve.curve(TAUS) for name, curve in self._curves.items()}

    def at(self, tau: float) -> dict[Objective, TemperaturePoint]:
        """Both objectives at one temperature, as means over inputs."""
        return {name: curve.at(tau) for name, curve in self._curves.items()}

    def suggest(self, mass: float) -> dict[Objective, float | str]:
        """The temperature that leaves this mass on the references, or why there is none."""
        found: dict[Objective, float | str] = {}
        for name, curve in self._curves.items():
            try:
                found[name] = curve.suggest(mass)
            except TemperatureError as error:
                found[name] = str(error)
        return found

    def rows(
        self, example: int, tau: float, sort: SortKey = "raml", most: int | None = None
    ) -> list[CandidateRow]:
        """The distinct candidates of an input, or ``most`` of them, by weight or mean reward.

        The weights are those of the targets `softq.raml` and `softq.sqdml`.
        """
        references = self.references.present[example]
        values = {"reward": self.rewards[example][:, references].mean(1)}  # [S] each
        for make in (raml, sqdml):
            target = make(self.candidates, self.references, tau, self._known)
            values[make.__name__] = target.weights[example]
        order = values[sort].argsort(descending=True, stable=True)
        shown = order[self.counted[example, order]][:most]
        is_reference = self.candidates.equals(self.references)[example, shown].any(1)
        tokens = Sentences(*(part[example, shown] for part in self.candidates.sentences)).unpack()
        return [
            CandidateRow(number, [self.words[token] for token in sentence], *row)
            for number, sentence, *row in zip(
                shown.tolist(),
                tokens,
                is_reference.tolist(),
                *(value[shown].tolist() for value in values.values()),
                strict=True,
            )
        ]

    def pieces(self, example: int, row: CandidateRow) -> list[tuple[str, str]]:
        """The words of a candidate and of its closest reference, in order, with a mark for each.

        The mark is ``" "`` for words of both, ``"+"`` for new ones, ``"-"`` for missing ones.
        """
        references = self.examples[example]
        closest = int(self._distances[example, row.number, : len(references)].argmin())
        differences = ndiff(references[closest], row.words, charjunk=None)
        return [(line[2:], line[0]) for line in differences if line[0] != "?"]

    @cached_property
    def _distances(self) -> Tensor:
        """Edits from each candidate to each reference, ``[B, S, R]``."""
        return edit_distance(*self.candidates.sentences, *self.references)
