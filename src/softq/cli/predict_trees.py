"""What `softq predict` does with a parser: trees for CoNLL-U files and for running text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, get_args

from softq.cli.model_files import DecodingName, choose_decoding, find_model
from softq.data.chunks import read_plain_chunks
from softq.data.conllu import TreeSentence, iter_conllu
from softq.errors import DataError
from softq.estimators.parser_input import lacking, tags_read
from softq.parsing import Decoding, Parse, Parser

_PROBABILITY = "p"  # its key in the column MISC
_NOTHING = "_"


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
        return cls(path, parser, choose_decoding(path, decoding, notes.get("decoding", "mode"), get_args(Decoding), "parser"))

    def parse(self, sentences: list[TreeSentence], where: str, *, confidences: bool = False) -> list[Parse]:
        """Trees of sentences of a file, which must have the columns that the parser has learnt to look at."""
        missing = lacking(self.parser.index, sentences, relations=bool(self.parser.relations))
        if missing:
            columns = " and ".join(map(str.upper, missing))
            raise DataError(
                f"{where}, line {sentences[0].line}: {self.path} needs {columns}, as in the files it was trained on, and none of the "
                f"{sum(len(sentence.forms) for sentence in sentences):,} words from here on has it"
            )
        return self.parser.parse(sentences, self.decoding, confidences=confidences)


def parsed(model: FileParser, *, plain: bool, probabilities: bool) -> Parts:
    """Files with their trees; ``plain`` ones are running text."""
    tags = tags_read(model.parser.index, relations=bool(model.parser.relations))
    if plain and tags:
        columns = ", ".join(map(str.upper, tags))
        raise DataError(f"{model.path} needs what running text does not have ({columns}): give CoNLL-U files, whose words are tagged")

    def parts(file: IO[bytes], where: str) -> Iterator[Part]:
        for sentences in _running_text(file, where) if plain else iter_conllu(file, where, trees=False):
            found = model.parse(sentences, where, confidences=probabilities)
            text = "".join(_written(sentence, parse) for sentence, parse in zip(sentences, found, strict=True))
            yield Part(text.encode(), len(sentences), sum(len(sentence.forms) for sentence in sentences))

    return parts


def _written(sentence: TreeSentence, parse: Parse) -> str:
    # a relation that stands there already is one to another head, so it goes even if the parser knows no relations
    relations = parse.relations or [_NOTHING] * len(sentence.forms)
    return sentence.text(parse.heads, relations, [f"{_PROBABILITY}={sure:.4f}" for sure in parse.confidences] or None)


def _running_text(file: IO[bytes], where: str) -> Iterator[list[TreeSentence]]:
    for chunk in read_plain_chunks(file, where):
        yield [_bare(block.columns[0]) for block in chunk.blocks]


def _bare(words: tuple[str, ...]) -> TreeSentence:
    nothing = (_NOTHING,) * len(words)
    return TreeSentence(words, nothing, nothing, nothing, nothing)
