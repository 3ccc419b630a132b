"""What `softq predict` does with a parser: trees for CoNLL-U files and for running text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple, get_args

from softq.cli.model_files import DecodingName, choose_decoding, find_model
from softq.errors import DataError
from softq.formats.chunks import read_plain_chunks
from softq.formats.conllu import TreeSentence, iter_conllu
from softq.formats.text import file_type
from softq.linear.features import lacks_tags
from softq.linear.parsing import Decoding, Parse, Parser

_PROBABILITY = "p"  # its key in the column MISC
_NOTHING = "_"
_ENOUGH = 1000  # words that tell which columns a file has


class Part(NamedTuple):
    """A part of a file with what was predicted for it, and how much it holds."""

    text: bytes
    sentences: int
    tokens: int


Parts = Callable[[IO[bytes], str], Iterator[Part]]
"""Reads an open, unpacked file, which errors call by the name given, and gives it back part by part."""


@dataclass(frozen=True)
class FileParser:
    """A parser and how it decodes."""

    path: Path
    parser: Parser
    decoding: Decoding

    @classmethod
    def load(cls, path: Path, decoding: DecodingName | None = None) -> FileParser:
        """The best model of a run folder, or that of a file."""
        parser, notes = Parser.load(find_model(path))
        return cls(
            path,
            parser,
            choose_decoding(
                path, decoding, notes.get("decoding", "mode"), get_args(Decoding), "parser"
            ),
        )

    def check(self, sentences: Iterable[TreeSentence], where: str) -> None:
        """An error where the beginning of a file lacks a column that the parser has learnt to look at."""
        first: list[TreeSentence] = []
        words = 0
        for sentence in sentences:
            first.append(sentence)
            words += len(sentence.forms)
            if words >= _ENOUGH:
                break
        if lacks_tags(self.parser.index, first, relations=bool(self.parser.relations)):
            raise DataError(
                f"{where}, line {first[0].line}: {self.path} needs UPOS or XPOS, as in the files it was trained on, and none of "
                f"the first {words:,} words has one"
            )

    def parse(self, sentences: list[TreeSentence], *, confidences: bool = False) -> list[Parse]:
        """Trees of sentences."""
        return self.parser.parse(sentences, self.decoding, confidences=confidences)


def parsed(model: FileParser, files: Sequence[Path], *, plain: bool, probabilities: bool) -> Parts:
    """Files with their trees; ``plain`` ones are running text."""
    index, relations = model.parser.index, bool(model.parser.relations)
    if plain and lacks_tags(index, [_bare(("word",))], relations=relations):
        raise DataError(
            f"{model.path} needs what running text does not have (UPOS or XPOS): give CoNLL-U files, whose words are tagged"
        )
    for path in files if probabilities and not plain else ():
        if file_type(path) == ".conllx":
            raise DataError(
                f"{path} is CoNLL-X by its name, whose last column is PDEPREL, and --probabilities writes into MISC, which CoNLL-U has "
                "there: leave --probabilities out, or give CoNLL-U"
            )

    def parts(file: IO[bytes], where: str) -> Iterator[Part]:
        for sentences in (
            _running_text(file, where)
            if plain
            else _checked(model, iter_conllu(file, where, trees=False), where)
        ):
            found = model.parse(sentences, confidences=probabilities)
            text = "".join(
                _written(sentence, parse) for sentence, parse in zip(sentences, found, strict=True)
            )
            yield Part(
                text.encode(), len(sentences), sum(len(sentence.forms) for sentence in sentences)
            )

    return parts


def _checked(
    model: FileParser, parts: Iterator[list[TreeSentence]], where: str
) -> Iterator[list[TreeSentence]]:
    """The same parts, of which the first ones are held back until they have words enough: how a file is cut must not matter."""
    held: list[list[TreeSentence]] = []
    words = 0
    for part in parts:
        held.append(part)
        words += sum(len(sentence.forms) for sentence in part)
        if words >= _ENOUGH:
            break
    model.check(chain.from_iterable(held), where)
    yield from held
    yield from parts


def _written(sentence: TreeSentence, parse: Parse) -> str:
    # a relation that stands there already is one to another head, so it goes even if the parser knows no relations
    relations = parse.relations or [_NOTHING] * len(sentence.forms)
    return sentence.text(
        parse.heads, relations, [f"{_PROBABILITY}={sure:.4f}" for sure in parse.confidences] or None
    )


def _running_text(file: IO[bytes], where: str) -> Iterator[list[TreeSentence]]:
    for chunk in read_plain_chunks(file, where):
        yield [_bare(block.columns[0]) for block in chunk.blocks]


def _bare(words: tuple[str, ...]) -> TreeSentence:
    nothing = (_NOTHING,) * len(words)
    return TreeSentence(words, nothing, nothing, nothing, nothing)
