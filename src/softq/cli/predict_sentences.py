"""What `softq predict` does with a translator: a translation for every line, as lines come."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, cast

import torch
import typer

from softq.cli.model_files import find_model
from softq.cli.predict_trees import Part, Parts
from softq.errors import DataError
from softq.generation.translator import Translation, Translator
from softq.rewards import NegativeEditDistance, Reward, RougeL, SentenceBLEU
from softq.train import find_device

_BLOCK = 1 << 16  # bytes that are read at a time, if so many are there


class MethodName(StrEnum):
    """How translations are chosen."""

    beam = "beam"
    greedy = "greedy"
    sample = "sample"
    mbr = "mbr"


class RewardName(StrEnum):
    """What minimum Bayes risk expects."""

    bleu = "bleu"
    rouge = "rouge"
    edit = "edit"


_REWARDS: dict[RewardName, type[Reward]] = {
    RewardName.bleu: SentenceBLEU,
    RewardName.rouge: RougeL,
    RewardName.edit: NegativeEditDistance,
}

MethodOption = Annotated[
    MethodName | None,
    typer.Option(
        help="Translators: beam, the best that a beam search finds; greedy, the best word after each; sample, a draw; mbr, of many draws "
        "the one that is best on average if any of them might be right.  [default: beam]",
        show_default=False,
    ),
]
BeamOption = Annotated[int | None, typer.Option(min=1, help="Translators: size of the beam.  [default: the model's]", show_default=False)]
SamplesOption = Annotated[
    int | None, typer.Option(min=1, help="Translators: draws that mbr chooses from.  [default: 32]", show_default=False)
]
RewardOption = Annotated[
    RewardName | None,
    typer.Option(
        help="Translators: what mbr expects, sentence BLEU, ROUGE-L or minus the edit distance.  [default: bleu]", show_default=False
    ),
]
SeedOption = Annotated[int | None, typer.Option(help="Translators: seed of draws, for sample and mbr.  [default: 0]", show_default=False)]


@dataclass(frozen=True)
class Searching:
    """What the command line says of the search, None where it says nothing."""

    method: MethodName | None = None
    beam: int | None = None
    samples: int | None = None
    reward: RewardName | None = None
    seed: int | None = None

    def refuse_for(self, path: Path) -> None:
        """An error if anything was said, and the model is no translator."""
        for name, value in vars(self).items():
            if value is not None:
                raise DataError(f"--{name} is for translators, and {path} is none: leave it out")

    def options(self) -> dict[str, Any]:
        """Arguments of `softq.generation.Translator.translate`; what does not go together is an error."""
        method = self.method or MethodName.beam
        of_method: dict[str, tuple[MethodName, ...]] = {
            "beam": (MethodName.beam,),
            "samples": (MethodName.mbr,),
            "reward": (MethodName.mbr,),
            "seed": (MethodName.sample, MethodName.mbr),
        }
        for name, methods in of_method.items():
            if getattr(self, name) is not None and method not in methods:
                raise DataError(f"--{name} is for --method {' or '.join(methods)}, got --method {method}")
        found: dict[str, Any] = {"method": method.value, "generator": torch.Generator().manual_seed(self.seed or 0)}
        if self.reward is not None:
            found["reward"] = _REWARDS[self.reward]()
        return found | {name: getattr(self, name) for name in ("beam", "samples") if getattr(self, name) is not None}


@dataclass(frozen=True)
class FileTranslator:
    """A translator and how it searches."""

    path: Path
    translator: Translator
    options: dict[str, Any]

    @classmethod
    def load(cls, path: Path, searching: Searching) -> FileTranslator:
        """The best model of a run folder, or that of a file; on a GPU if there is one."""
        options = searching.options()
        return cls(path, Translator.load(find_model(path)).to(find_device("auto")), options)

    @property
    def decoding(self) -> str:
        """How translations are chosen."""
        method = str(self.options["method"])
        return f"beam of {self.options.get('beam', self.translator.decoding.beam)}" if method == MethodName.beam else method

    def translate(self, texts: list[str]) -> list[Translation]:
        """Translations of texts."""
        return list(self.translator.translate(texts, **self.options))


def translated(model: FileTranslator, *, probabilities: bool) -> Parts:
    """Files with a translation for each line; an empty line stays one."""

    def parts(file: IO[bytes], where: str) -> Iterator[Part]:
        for texts in read_as_they_come(file, where):
            found = model.translate(texts)
            lines = (f"{one.text}\t{one.log_prob:.4f}\n" if probabilities else f"{one.text}\n" for one in found)
            yield Part("".join(lines).encode(), len(found), sum(len(one.words) for one in found))

    return parts


def read_as_they_come(file: IO[bytes], where: str) -> Iterator[list[str]]:
    """Lines of a file or a pipe, as many as are there: whoever writes line by line is answered line by line."""
    rest, number, over = b"", 0, False
    while not over:
        try:
            block: bytes = cast(Any, file).read1(_BLOCK)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise DataError(f"cannot read {where}: {error}") from error
        over = not block
        *lines, rest = (rest + block).split(b"\n")
        if over and rest:
            lines.append(rest)
        if lines:
            yield [_text(line, where, number + k) for k, line in enumerate(lines, start=1)]
            number += len(lines)


def _text(line: bytes, where: str, number: int) -> str:
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}, line {number}: expected UTF-8 text, got the byte 0x{line[error.start]:02x}") from None
