"""Models on the disk as `softq predict` and `softq evaluate` find them: taggers, parsers, translators and captioners."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from softq.errors import DataError
from softq.formats.file_checks import in_one_line, notes_in, one_of, read_tensors, refusing
from softq.lab.run import BEST
from softq.lab.sweep import RUNS, SWEEP

Known = TypeVar("Known", bound=str)

_TAGGER, _PARSER = "softq tagger ", "softq parser "  # and the number of the format
_TRANSLATOR, _CAPTIONER = "softq translator ", "softq captioner "


class DecodingName(StrEnum):
    """How labels or trees are chosen from their distribution."""

    viterbi = "viterbi"
    mode = "mode"
    mbr = "mbr"


DecodingOption = Annotated[
    DecodingName | None,
    typer.Option(
        help="viterbi (taggers) or mode (parsers): what is most probable as a whole; mbr: the most right labels or heads to be expected.  "
        "[default: the model's]"
    ),
]


def find_model(path: Path) -> Path:
    """The file of a model: the best one of a run folder, or the file itself."""
    if (path / SWEEP).is_file():
        raise DataError(
            f"{path} is a sweep of many models: name one of the run folders in {path / RUNS}"
        )
    if path.is_dir() and not (path / BEST).is_file():
        raise DataError(
            f"{path} holds no model: expected {BEST} in it, which a run of softq train has after its first epoch"
        )
    return path / BEST if path.is_dir() else path


def model_format(path: Path) -> str:
    """What a model's file says it is, such as "softq tagger 1", "softq parser 1", "softq translator 1" or "softq captioner 1"."""
    try:
        file = find_model(path)
        if not file.exists():
            raise DataError("there is no such file")
        found = notes_in(read_tensors(file).tensors, "about", "model").get("format")
    except DataError as error:
        raise _no_model(path, str(error)) from None
    if not isinstance(found, str) or not found.startswith(
        (_TAGGER, _PARSER, _TRANSLATOR, _CAPTIONER)
    ):
        raise _no_model(path, f"its format is {in_one_line(repr(found))}")
    return found


def _no_model(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} is not a model of softq ({reason}): expected a tagger or a parser, as a run folder of softq train ner or softq train "
        "parsing, or a file of CRFTagger.save or DependencyParser.save; a translator or a captioner, as a run folder of "
        "softq train translation or softq train captioning; or a Hugging Face model, as a run folder of softq train lm or a folder of "
        "save_pretrained"
    )


def is_parser(path: Path) -> bool:
    """Whether a run folder or a file holds a parser of trees, and not a tagger."""
    return model_format(path).startswith(_PARSER)


def is_translator(path: Path) -> bool:
    """Whether a run folder or a file holds a translator."""
    return model_format(path).startswith(_TRANSLATOR)


def is_captioner(path: Path) -> bool:
    """Whether a run folder or a file holds a captioner."""
    return model_format(path).startswith(_CAPTIONER)


def choose_decoding(
    path: Path, asked: DecodingName | None, usual: Known, known: tuple[Known, ...], what: str
) -> Known:
    """The decoding that is asked for, if this kind of model knows it, else the model's own."""
    if asked is None:
        with refusing(f"{path} is damaged"):
            return one_of("decoding", usual, known)  # type: ignore[no-any-return]
    if asked.value not in known:
        raise DataError(
            f"{path} is a {what}, whose --decoding is {' or '.join(known)}, got {asked.value}"
        )
    return known[known.index(asked.value)]
