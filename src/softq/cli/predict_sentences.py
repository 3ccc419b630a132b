"""What `softq predict` does with a translator: a translation for every line, as lines come."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from itertools import count
from pathlib import Path
from typing import IO, Annotated, Any, Self

import numpy as np
import torch
import typer

from softq.cli.model_files import find_model
from softq.cli.predict_trees import Part, Parts
from softq.errors import DataError
from softq.formats.text import read_parts, refuse
from softq.lab.processes import find_device
from softq.neural.generation import GeneratedText
from softq.neural.text_generator import TextGenerator
from softq.rewards import named_reward
from softq.rewards.names import SHORT_NAMES

_BLOCK = 1 << 16  # bytes that are read at a time, if so many are there


class MethodName(StrEnum):
    """How translations are chosen."""

    beam = "beam"
    greedy = "greedy"
    sample = "sample"
    mbr = "mbr"


_REWARDS = (
    "bleu",
    "rouge",
    "edit",
)  # names of `softq.rewards.names`, or short for one; chrF needs words

MethodOption = Annotated[
    MethodName | None,
    typer.Option(
        help="Of sentences: beam, the best that a beam search finds; greedy, the best word after each; sample, a draw; mbr, of many draws "
        "the one that is best on average if any of them might be right.  [default: beam]",
        show_default=False,
    ),
]
BeamOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Of sentences: size of the beam.  [default: the model's]", show_default=False
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Of sentences: draws that mbr chooses from.  [default: 32]", show_default=False
    ),
]
RewardOption = Annotated[
    str | None,
    typer.Option(
        help="Of sentences: what mbr expects: bleu, rouge (ROUGE-L) or edit (minus the edit distance); of models of Transformers every "
        "reward that they can be trained for, such as chrf or words:bleu.  [default: bleu, or that of the run]",
        show_default=False,
    ),
]
SeedOption = Annotated[
    int | None,
    typer.Option(
        help="Of sentences: seed of draws, for sample and mbr; draws for a line follow from it and the line's number.  [default: 0]",
        show_default=False,
    ),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        help="Of sentences: log-probabilities of words are divided by it before sample and mbr draw; below 1, likely words become "
        "likelier.  [default: 1]",
        show_default=False,
    ),
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        help="Of sentences: sample and mbr draw from the most probable words alone, as few as hold this share.  [default: 1, all words]",
        show_default=False,
    ),
]
LengthPenaltyOption = Annotated[
    float | None,
    typer.Option(
        help="Of sentences: a beam ranks by log-probability over length to this power; 0 prefers short translations.  "
        "[default: the model's]",
        show_default=False,
    ),
]


_OF_METHOD: dict[str, tuple[MethodName, ...]] = {  # what some methods alone are told
    "beam": (MethodName.beam,),
    "samples": (MethodName.mbr,),
    "reward": (MethodName.mbr,),
    "seed": (MethodName.sample, MethodName.mbr),
    "temperature": (MethodName.sample, MethodName.mbr),
    "top_p": (MethodName.sample, MethodName.mbr),
    "length_penalty": (MethodName.beam,),
}


@dataclass(frozen=True)
class Searching:
    """What the command line says of the search, None where it says nothing."""

    method: MethodName | None = None
    beam: int | None = None
    samples: int | None = None
    reward: str | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    length_penalty: float | None = None

    def refuse_for(self, path: Path) -> None:
        """An error if anything was said, and the model writes no sentences."""
        for name, value in vars(self).items():
            if value is not None:
                raise DataError(
                    f"{_flag(name)} is for translators and captioners, and {path} is neither: leave it out"
                )

    def for_two(self, other: MethodName) -> tuple[Searching, Searching]:
        """The search by its own method and by another, each with what it can be told; what neither can be told stays, to be refused."""
        methods = (self.method or MethodName.beam, other)
        fits = {
            name: [method in allowed for method in methods] for name, allowed in _OF_METHOD.items()
        }
        misfits = [
            {name: None for name, fit in fits.items() if not fit[number] and any(fit)}
            for number in range(2)
        ]
        return replace(self, **misfits[0]), replace(self, method=other, **misfits[1])

    def options(self) -> dict[str, Any]:
        """Arguments of `TextGenerator.generate` but the reward; what does not go together is an error."""
        method = self.method or MethodName.beam
        for name, methods in _OF_METHOD.items():
            if getattr(self, name) is not None and method not in methods:
                raise DataError(
                    f"{_flag(name)} is for --method {' or '.join(methods)}, got --method {method}"
                )
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise DataError(f"--temperature must be a positive number, got {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise DataError(f"--top-p must be more than 0 and at most 1, got {self.top_p}")
        if self.length_penalty is not None and not 0 <= self.length_penalty < math.inf:
            raise DataError(f"--length-penalty must be a number from 0, got {self.length_penalty}")
        found: dict[str, Any] = {"method": method.value}
        passed_on = ("beam", "samples", "temperature", "top_p", "length_penalty")
        return found | {
            name: getattr(self, name) for name in passed_on if getattr(self, name) is not None
        }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def line_generator(seed: int, number: int) -> torch.Generator:
    """What the draws for a line come from, which follows from the seed and the line's number alone."""
    (mixed,) = np.random.SeedSequence(seed % 2**64, spawn_key=(number,)).generate_state(
        1, np.uint64
    )
    return torch.Generator().manual_seed(int(mixed))


@dataclass(frozen=True)
class FileWriter:
    """A model that writes sentences, and how it searches.

    Attributes:
        path: what it was read from.
        model: the model.
        options: of `softq.neural.generation.Search`.
        seed: of draws.
        numbers: of the inputs to come, which is what makes draws for an input the same in whatever parts inputs come.

    """

    path: Path
    model: TextGenerator
    options: dict[str, Any]
    seed: int = 0
    numbers: Iterator[int] = field(default_factory=partial(count, 1))

    @classmethod
    def read(cls, path: Path, kind: str, searching: Searching) -> Self:
        """The best model of a run folder, or that of a file; on a GPU if there is one."""
        options = searching.options()
        if searching.reward is not None:
            if searching.reward not in _REWARDS:
                raise DataError(
                    f"--reward is one of {', '.join(_REWARDS)}, got {searching.reward!r}"
                )
            options["reward"] = named_reward(SHORT_NAMES.get(searching.reward, searching.reward))
        model = TextGenerator.load(find_model(path), kind).to(find_device("auto"))
        return cls(path, model, options, searching.seed or 0)

    @property
    def decoding(self) -> str:
        """How sentences are chosen."""
        method = str(self.options["method"])
        return (
            f"beam of {self.options.get('beam', self.model.decoding.beam)}"
            if method == MethodName.beam
            else method
        )

    def options_for(self, inputs: int) -> dict[str, Any]:
        """Options of a search for the next inputs, with generators of their own where they are drawn for."""
        if self.options["method"] not in (MethodName.sample, MethodName.mbr):
            return self.options
        return self.options | {
            "generator": [line_generator(self.seed, next(self.numbers)) for _ in range(inputs)]
        }


class FileTranslator(FileWriter):
    """A translator and how it searches."""

    @classmethod
    def load(cls, path: Path, searching: Searching) -> FileTranslator:
        """The best model of a run folder, or that of a file; on a GPU if there is one."""
        return cls.read(path, "translator", searching)

    def translate(self, texts: list[str]) -> list[GeneratedText]:
        """Translations of texts, which follow those of the calls before."""
        return self.model.generate(texts, **self.options_for(len(texts)))


def translated(model: FileTranslator, *, probabilities: bool) -> Parts:
    """Files with a translation for each line; an empty line stays one."""

    def parts(file: IO[bytes], where: str) -> Iterator[Part]:
        for texts in read_as_they_come(file, where):
            found = model.translate(texts)
            lines = (
                f"{one.text}\t{one.log_prob:.4f}\n" if probabilities else f"{one.text}\n"
                for one in found
            )
            yield Part("".join(lines).encode(), len(found), sum(len(one.words) for one in found))

    return parts


def read_as_they_come(file: IO[bytes], where: str) -> Iterator[list[str]]:
    """Lines of a file or a pipe, as many as are there: whoever writes line by line is answered line by line."""
    for part in read_parts(file, where, _BLOCK, sentences=False, strict=False, as_they_come=True):
        refuse(where, part.faults)
        yield [line.strip() for line in part.lines]
