"""RAML and SQDML on the candidates of a few references, at any temperature: what the page shows of sentences.

Candidates and their rewards are made once for a choice of references, reward and sampler; a temperature only weighs them anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from softq.errors import DataError, SoftqError, TemperatureError
from softq.formats.text import number_words, read_references
from softq.kernels.text.pairs import edit_distance
from softq.rewards import Precomputed, named_reward
from softq.rewards.names import RewardName
from softq.samplers import EditStratified, HammingStratified, NgramReplacement, Recombination
from softq.sentences import Sentences
from softq.spaces import Candidates
from softq.targets import raml, sqdml
from softq.temperature import CandidateCurve, TemperaturePoint

SamplerName = Literal["ngram", "hamming", "edit", "recombined"]
Objective = Literal["raml", "sqdml"]
SortKey = Literal["raml", "sqdml", "reward"]

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
"""References to begin with."""


class SettingError(SoftqError, ValueError):
    """A setting cannot be, alone or with the others; ``setting`` names it, so that the message can stand beside it."""

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting = setting


@dataclass(frozen=True)
class SentenceSettings:
    """What makes candidates and rewards.

    Attributes:
        examples: references of each input as words, ``[input][reference][word]``.
        more_words: words that candidates may use beside those of the references.
        reward: of a sentence against a reference.
        sampler: n-gram replacement, draws by Hamming or by edit distance, or the references' own words recombined.
        size: candidates per input, references included.
        max_n: longest n-gram that is replaced or recombined.
        draw_tau: temperature of the draws by distance, rescaled as in the paper's footnote; candidates stay when the target's τ moves.
        seed: of the candidates.

    """

    examples: Sequence[Sequence[Sequence[str]]]
    more_words: Sequence[str] = ()
    reward: RewardName = RewardName.bleu
    sampler: SamplerName = "ngram"
    size: int = 100
    max_n: int = 4
    draw_tau: float = 0.8
    seed: int = 0


class Piece(NamedTuple):
    """A word of a candidate beside its closest reference."""

    word: str
    kind: Literal["same", "new", "gone"]


class CandidateRow(NamedTuple):
    """A candidate and its weights at one temperature."""

    number: int
    """Its place among the candidates."""
    words: list[str]
    is_reference: bool
    reward: float
    """Mean over the references."""
    raml: float
    sqdml: float


def parse_references(text: str) -> list[list[list[str]]]:
    r"""References as people type them: a sentence per line, a blank line between inputs; tabs separate sentences, too.

    >>> parse_references("a dog\nthe dog\n\na cat")
    [[['a', 'dog'], ['the', 'dog']], [['a', 'cat']]]
    """
    examples: list[list[list[str]]] = [[]]
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            examples.append([])
        for sentence in filter(None, (part.split() for part in line.split("\t"))):
            if len(sentence) > MOST_WORDS:
                raise DataError(
                    f"line {number}: expected at most {MOST_WORDS} words, got {len(sentence)}; split the sentence"
                )
            examples[-1].append(sentence)
    found = [example for example in examples if example]
    if not found:
        raise DataError("expected at least one sentence, got none; type one, or load a file")
    return found


def load_references(path: Path) -> list[list[list[str]]]:
    """References of a file as `softq theory --references` reads it: an input per line, tabs between references; at most `MOST_INPUTS`."""
    examples = read_references(path, MOST_INPUTS)
    for number, example in enumerate(examples, 1):
        longest = max(map(len, example))
        if longest > MOST_WORDS:
            raise DataError(
                f"{path}, line {number}: expected at most {MOST_WORDS} words in a sentence, got {longest}"
            )
    return examples


def write_references(examples: Sequence[Sequence[Sequence[str]]]) -> str:
    r"""The text that `parse_references` reads.

    >>> write_references([[["a", "dog"], ["the", "dog"]], [["a", "cat"]]])
    'a dog\nthe dog\n\na cat\n'
    """
    return "\n".join(
        "".join(" ".join(sentence) + "\n" for sentence in example) for example in examples
    )


class SentenceStudy:
    """Candidates, their rewards and the curves of both objectives, ready for any temperature.

    >>> study = SentenceStudy(SentenceSettings(parse_references(EXAMPLE)))
    >>> best = study.rows(0, 0.05)[0]
    >>> best.is_reference, round(sum(row.raml for row in study.rows(0, 0.05)), 9)
    (True, 1.0)

    """

    def __init__(self, settings: SentenceSettings) -> None:
        self.settings = settings
        numbers, words = number_words([*settings.examples, [list(settings.more_words)]])
        self.words = words
        self.references = Sentences.pack(numbers[:-1])
        self._check()
        self.reward = named_reward(settings.reward, words)
        cands = self._sample().with_references(self.references)
        self.candidates = Candidates(cands.tokens, cands.lengths)
        self.rewards = self.reward(*self.candidates.sentences, *self.references)  # [B, S, R]
        kept = Precomputed(self.reward, self.rewards)
        self._curves = {
            name: CandidateCurve(self.candidates, self.references, kept, objective=name)
            for name in get_args(Objective)
        }

    def _check(self) -> None:
        settings, inputs, most = (
            self.settings,
            len(self.settings.examples),
            int(self.references.present.sum(1).max()),
        )
        if settings.size < most + 1:
            raise SettingError(
                "size",
                f"expected at least {most + 1}, for the {most} references of an input and one more, got {settings.size}",
            )
        if settings.size * inputs > MOST_CANDIDATES:
            raise SettingError(
                "size",
                f"expected at most {MOST_CANDIDATES // inputs} each for {inputs} inputs, got {settings.size}",
            )
        if settings.sampler == "recombined" and most < 2:
            raise SettingError(
                "sampler",
                "recombining needs an input with several references, got one each; add a line below it",
            )
        if len(self.words) < 2 and settings.sampler != "recombined":
            raise SettingError(
                "more_words",
                f"expected at least two different words to write with, got {self.words[0]!r} alone; add some",
            )

    def _sample(self) -> Candidates:
        settings, vocab = self.settings, len(self.words)
        generator = torch.Generator().manual_seed(settings.seed)
        if settings.sampler == "ngram":
            return NgramReplacement(vocab, settings.max_n, settings.size)(
                self.references, generator=generator
            )
        if settings.sampler == "recombined":
            return Recombination(settings.size, settings.max_n)(
                self.references, generator=generator
            )
        draws = settings.size - int(self.references.present.sum(1).max())
        by_distance = HammingStratified if settings.sampler == "hamming" else EditStratified
        return by_distance(vocab, settings.draw_tau, draws, rescale=True)(
            self.references, generator=generator
        )

    @cached_property
    def counted(self) -> Tensor:
        """Which candidates are there and no repeats, bool ``[B, S]``: draws by distance may meet the same sentence twice."""
        return self.candidates.present & ~self.candidates.repeats()

    @cached_property
    def curves(self) -> dict[Objective, list[TemperaturePoint]]:
        """Both objectives at each of `TAUS`, as means over inputs."""
        return {name: curve.curve(TAUS) for name, curve in self._curves.items()}

    def at(self, tau: float) -> dict[Objective, TemperaturePoint]:
        """Both objectives at one temperature, as means over inputs."""
        return {name: curve.at(tau) for name, curve in self._curves.items()}

    def suggest(self, mass: float) -> dict[Objective, float | str]:
        """The temperature that leaves this mass on the references, or why there is none, for each objective."""
        if not 0.0 < mass < 1.0:
            raise TemperatureError(f"the mass must lie between 0 and 1, got {mass:g}")
        found: dict[Objective, float | str] = {}
        for name, curve in self._curves.items():
            try:
                found[name] = curve.suggest(mass)
            except TemperatureError as error:
                found[name] = str(error)
        return found

    def weights(self, example: int, tau: float) -> dict[Objective, Tensor]:
        """Weight of each candidate of an input, ``[S]``, under the targets `softq.raml` and `softq.sqdml`."""
        here = slice(example, example + 1)
        cands = Candidates(self.candidates.tokens[here], self.candidates.lengths[here])
        refs = Sentences(self.references.tokens[here], self.references.lengths[here])
        kept = Precomputed(self.reward, self.rewards[here])
        return {
            "raml": raml(cands, refs, tau, kept).weights[0],
            "sqdml": sqdml(cands, refs, tau, kept).weights[0],
        }

    def rows(
        self, example: int, tau: float, sort: SortKey = "raml", most: int | None = None
    ) -> list[CandidateRow]:
        """The different candidates of an input with their weights, or ``most`` of them; the heaviest first, equals in their own order."""
        weights = self.weights(example, tau)
        present = self.references.present[example]
        mean_reward = self.rewards[example][:, present].mean(1)
        is_reference = self.candidates.equals(self.references)[example].any(1)
        order = (mean_reward if sort == "reward" else weights[sort]).argsort(
            descending=True, stable=True
        )
        return [
            CandidateRow(
                number,
                self._sentence(example, number),
                bool(is_reference[number]),
                float(mean_reward[number]),
                float(weights["raml"][number]),
                float(weights["sqdml"][number]),
            )
            for number in order[self.counted[example, order]][:most].tolist()
        ]

    def pieces(self, example: int, number: int) -> list[Piece]:
        """A candidate's words, and those of its closest reference that it lacks, as they follow each other."""
        words = self._sentence(example, number)
        closest = int(self._distances[example, number].argmin())
        reference = self.settings.examples[example][closest]
        pieces: list[Piece] = []
        for kind, first, last, start, end in SequenceMatcher(
            None, reference, words, autojunk=False
        ).get_opcodes():
            if kind == "equal":
                pieces.extend(Piece(word, "same") for word in words[start:end])
                continue
            pieces.extend(Piece(word, "gone") for word in reference[first:last])
            pieces.extend(Piece(word, "new") for word in words[start:end])
        return pieces

    def _sentence(self, example: int, number: int) -> list[str]:
        length = int(self.candidates.lengths[example, number])
        return [
            self.words[word] for word in self.candidates.tokens[example, number, :length].tolist()
        ]

    @cached_property
    def _distances(self) -> Tensor:
        """Edits from each candidate to each reference, ``[B, S, R]``; to one that is missing, more than to any other."""
        distances = edit_distance(*self.candidates.sentences, *self.references)
        return distances.masked_fill(
            ~self.references.present.unsqueeze(1), torch.iinfo(distances.dtype).max
        )
