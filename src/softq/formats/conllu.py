"""Files of dependency trees: CoNLL-U and CoNLL-X.

The format, as it is read and written here:

- A word per line, ten columns separated by tabs: ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL,
  DEPS, MISC. CoNLL-X has coarse and fine tags for UPOS and XPOS, and PHEAD and PDEPREL for the last
  two, which its eight-column form leaves out; the first word of a file decides. Forms may hold
  spaces. No column may be empty.
- Words are numbered from 1 in each sentence. A range (``3-4``) before its first word is a token
  that stands for these words, an empty node (``5.1``) after a word is one that the text left out:
  both are kept, neither is a word of the tree.
- Lines that begin with ``#`` before the first word are comments; ``# sent_id = …`` names the
  sentence.
- A blank line, empty or of spaces and tabs, ends a sentence; the last sentence may do without.
- HEAD is the number of a word, 0 for the root, written without zeros before it. A tree has one
  root.
- Plain, .gz or .xz; UTF-8. A byte-order mark at the start is dropped and lines may end in CR LF;
  what `TreeSentence.text` writes has neither. For a file of LF ends in which every sentence ends
  with one empty line, the sentences' texts together are its very bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice, repeat, takewhile
from pathlib import Path
from sys import intern
from typing import IO, Any, Literal, NamedTuple

from softq.errors import DataError, ShapeError
from softq.formats.conll import TaggerInput
from softq.formats.conllu_checks import (
    DEPREL,
    EMPTY_NODE,
    FORM,
    HEAD,
    ID,
    MISC,
    RANGE,
    Wrong,
    as_numbers,
    column_faults,
    first_numbers,
    word_places,
)
from softq.formats.text import (
    Fault,
    file_type,
    name_of,
    opened,
    read_parts,
    refuse,
    split_sentences,
)
from softq.formats.trees import tree_faults

_PART = 1 << 18  # bytes that are read at once
_SENT_ID = re.compile(r"#\s*sent_id\s*=\s*(.*?)\s*$")
_NO_TREE = "expected a tree, got _ as the HEAD of every word"
_LOOK = 1 << 16  # bytes in which `is_conllu` looks for a word


class MultiwordToken(NamedTuple):
    """A token that stands for words ``first`` to ``last``, both included, counted from 1."""

    first: int
    last: int
    form: str


@dataclass(frozen=True, slots=True)
class TreeSentence:
    """Words, their annotation and their tree; equal if all but the place in the file is equal.

    Attributes:
        forms: The n words.
        lemmas: And their lemmas, ``_`` where the file has it, as in the next three.
        upos: Universal parts of speech.
        xpos: Parts of speech of the treebank.
        feats: Morphological features, as they stand: ``Case=Nom|Number=Sing``.
        heads: The head of each word, 0 for the root; empty without a tree.
        relations: To the head; empty without a tree or relations.
        lines: Every line in the file, with comments, ranges and empty nodes; empty for a sentence
            that was made, not read.
        line: Where the first of them stands in the file, from 1.
        sent_id: What a comment ``# sent_id = …`` says, empty without.

    """

    forms: tuple[str, ...]
    lemmas: tuple[str, ...]
    upos: tuple[str, ...]
    xpos: tuple[str, ...]
    feats: tuple[str, ...]
    heads: tuple[int, ...] = ()
    relations: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)
    sent_id: str = ""

    def text(
        self,
        heads: Sequence[int],
        relations: Sequence[str] | None = None,
        misc: Sequence[str | None] | None = None,
    ) -> str:
        r"""Its lines in the file with this tree in place of its own; all else is kept, to the byte. Ends with an empty line.

        Args:
            heads: One for each word; empty to keep what stands there.
            relations: One for each word; None or empty to keep what stands there.
            misc: What to add to the MISC of each word, such as ``p=0.93``, in place of what has the same key; None or an entry of None
                adds nothing. Lines of eight columns become ten.

        >>> sentence = TreeSentence(("Hi", "!"), ("hi", "!"), ("INTJ", "PUNCT"), ("_", "_"), ("_", "_"))
        >>> sentence.text((0, 1), ("root", "punct"), ("p=0.9", None))
        '1\tHi\thi\tINTJ\t_\t_\t0\troot\t_\tp=0.9\n2\t!\t!\tPUNCT\t_\t_\t1\tpunct\t_\t_\n\n'

        """
        words = self._changes(heads, relations, misc)
        written = []
        for line in self.lines or self._made_lines():
            row = line.split("\t")
            if misc is not None and line[0] != "#":
                row += ["_"] * (MISC + 1 - len(row))
            if row[ID].isdigit():
                head, relation, addition = next(words)
                if head is not None:
                    row[HEAD] = str(int(head))
                if relation is not None:
                    row[DEPREL] = relation
                if addition is not None:
                    row[MISC] = _add_misc(row[MISC], addition)
            written.append("\t".join(row))
        return "\n".join([*written, "", ""])

    def _changes(
        self,
        heads: Sequence[int],
        relations: Sequence[str] | None,
        misc: Sequence[str | None] | None,
    ) -> Iterator[tuple[Any, ...]]:
        """Head, relation and addition to MISC of each word; None where nothing changes."""
        columns = {"heads": heads, "relations": relations, "misc": misc}
        given = {
            name: column
            for name, column in columns.items()
            if column is not None and (len(column) or name == "misc")
        }
        for name, column in given.items():
            if len(column) != len(self.forms):
                raise ShapeError(f"expected {name} for {len(self.forms)} words, got {len(column)}")
        for added in chain(relations or (), misc or ()):
            if added is not None and (not added or not _FORBIDDEN.isdisjoint(added)):
                raise DataError(
                    f"expected text without tabs and line ends for a column, got {added!r}"
                )
        return zip(*(given.get(name, repeat(None)) for name in columns), strict=False)

    def multiword_tokens(self) -> list[MultiwordToken]:
        """Tokens that stand for several words, in order."""
        return [
            MultiwordToken(int(found[1]), int(found[2]), line.split("\t", 2)[FORM])
            for line in self.lines
            if (found := RANGE.match(line))
        ]

    def empty_nodes(self) -> int:
        """How many nodes there are that no word of the text stands for."""
        return sum(EMPTY_NODE.match(line) is not None for line in self.lines)

    def _made_lines(self) -> list[str]:
        columns = (self.forms, self.lemmas, self.upos, self.xpos, self.feats)
        if not self.forms or {*map(len, columns)} != {len(self.forms)}:
            raise DataError(
                f"expected columns of one or more words, got {[len(column) for column in columns]}"
                " entries"
            )
        for text in chain(*columns, [self.sent_id or "_"]):
            if not text.strip(" ") or not _FORBIDDEN.isdisjoint(text):
                raise DataError(
                    f"expected text without tabs and line ends for every column, got {text!r}"
                )
        words = [
            "\t".join((str(i), *row, "_", "_", "_", "_"))
            for i, row in enumerate(zip(*columns, strict=True), start=1)
        ]
        return [f"# sent_id = {self.sent_id}", *words] if self.sent_id else words


_FORBIDDEN = frozenset("\t\n\r\0")


def _add_misc(misc: str, addition: str) -> str:
    keys = {part.partition("=")[0] for part in addition.split("|")}
    kept = (
        [part for part in misc.split("|") if part.partition("=")[0] not in keys]
        if misc != "_"
        else []
    )
    return "|".join([*kept, addition])


class Treebank(list[TreeSentence]):
    """Sentences of a file, which `softq.DependencyParser` takes as they are."""

    def X_y(self, column: Literal["upos", "xpos"] = "upos") -> TaggerInput:  # noqa: N802 -- scikit-learn's names
        r"""Words and their parts of speech as `softq.CRFTagger` takes them.

        >>> trees = read_conllu("1\tHi\thi\tINTJ\tUH\t_\t0\troot\t_\t_\n\n")
        >>> trees.X_y()[:2], trees.X_y("xpos").y
        (([['Hi']], [['INTJ']]), [['UH']])
        """
        return TaggerInput(
            [list(sentence.forms) for sentence in self],
            [list(getattr(sentence, column)) for sentence in self],
        )


def read_conllu(source: Path | str, *, trees: bool | None = True) -> Treebank:
    """Sentences of a file.

    A fault anywhere is a ``DataError`` that names file, line and sentence of the first.

    Args:
        source: A file in the format of this module, or its text, a string with line ends.
        trees: True: every sentence must have a tree of one root, with relations. False: HEAD and
            DEPREL are not looked at, and sentences come without. None: a sentence may lack all its
            heads, or all its relations, and comes without them; trees are checked where they are.

    """
    sentences, found = _read_all(source, trees)
    refuse(name_of(source), found)
    return sentences


def iter_conllu(
    file: IO[bytes], where: str, *, trees: bool | None = True
) -> Iterator[list[TreeSentence]]:
    """Sentences of an open, unpacked file in parts of a few thousand words, for files of any size.

    Otherwise as `read_conllu`.

    ``where`` is what errors call the file. Faults of a part are raised when it is its turn; a file
    without sentences has no parts.
    """
    for sentences, found in _Reader(trees).parts(file, where):
        refuse(where, found)
        if sentences:
            yield sentences


def check_conllu(source: Path | str) -> list[Fault]:
    """Every fault of a file in order, none if it is sound.

    A sentence without a tree is a fault only where another has one. A sentence with broken lines is
    judged further once they are mended.
    """
    try:
        sentences, found = _read_all(source, True)
    except DataError as error:
        return [Fault(0, str(error))]
    if not any(sentence.heads for sentence in sentences):
        found = [fault for fault in found if not fault.message.startswith(_NO_TREE)]
    return found


def is_conllu(path: Path) -> bool:
    """Whether a file is to be read as trees and not as columns of labels.

    So it is if its name, less .gz or .xz, ends in .conllu or .conllx, or if its first line that is
    neither blank nor a comment has ten or eight columns separated by tabs, ID 1 (or a range or an
    empty node before word 1) and a number or _ as HEAD.
    """
    if file_type(path) in (".conllu", ".conllx"):
        return True
    with suppress(DataError), opened(path) as file:  # whoever reads it says why it cannot be read
        for part in islice(read_parts(file, str(path), _LOOK, sentences=False), 1):
            for line in part.lines:
                if line.strip() and not line.startswith("#"):
                    row = line.split("\t")
                    first = row[ID] in ("1", "0.1") or row[ID].startswith("1-")
                    return (
                        len(row) in (8, 10)
                        and first
                        and (row[HEAD] == "_" or (row[HEAD].isascii() and row[HEAD].isdigit()))
                    )
    return False


def _read_all(source: Path | str, trees: bool | None) -> tuple[Treebank, list[Fault]]:
    sentences = Treebank()
    found: list[Fault] = []
    with opened(source) as file:
        for more, faults in _Reader(trees).parts(file, name_of(source)):
            sentences += more
            found += faults
    if not sentences and not found:
        found.append(Fault(0, "no sentences: expected lines of ten columns, ID to MISC"))
    return sentences, found


class _Reader:
    """Sentences of one file: remembers how many there were, and how wide its lines are."""

    def __init__(self, trees: bool | None) -> None:
        self.trees = trees
        self.count = 0  # sentences so far, the faulty ones too
        self.width = 0  # columns, 0 until the first word

    def parts(
        self, file: IO[bytes], where: str
    ) -> Iterator[tuple[list[TreeSentence], list[Fault]]]:
        """Sentences without a fault, and all faults in order, of one part after another."""
        for first, lines, unreadable in read_parts(file, where, _PART):
            found: list[Fault] = []
            blanked = [line if line.strip(" \t") else "" for line in lines]
            read = [
                self._read(block, start, found) for start, block in split_sentences(blanked, first)
            ]
            yield (
                [sentence for sentence in read if sentence is not None],
                sorted([*unreadable, *sorted(found)], key=lambda fault: fault.line),
            )

    def _read(self, lines: list[str], start: int, found: list[Fault]) -> TreeSentence | None:
        """The sentence in these lines; None, and more in ``found``, if something is wrong."""
        self.count += 1
        comments = list(takewhile(lambda line: line[0] == "#", lines))
        named = [match[1] for match in map(_SENT_ID.match, comments) if match]
        sent_id = named[-1] if named else ""
        name = sent_id or f"{self.count} of the file"
        rows = [line.split("\t") for line in lines[len(comments) :]]
        if not rows:
            message = f"expected words after the comments, got none (sentence {name})"
            found.append(Fault(start, message))
            return None
        wrong: list[Wrong] = []
        columns, places = self._words(rows, wrong)
        heads, relations = ((), ()) if wrong else self._tree(columns, places, wrong)
        if wrong:
            first = start + len(comments)
            found += [
                Fault(first + place, f"{message} (sentence {name})") for place, message in wrong
            ]
            return None
        forms, lemmas, upos, xpos, feats = (
            tuple(map(intern, column)) for column in columns[FORM:HEAD]
        )
        return TreeSentence(
            forms, lemmas, upos, xpos, feats, heads, relations, tuple(lines), start, sent_id
        )

    def _words(
        self, rows: list[list[str]], wrong: list[Wrong]
    ) -> tuple[list[tuple[str, ...]], Sequence[int]]:
        """The columns of the lines that hold words, and which lines these are."""
        self.width = self.width or (8 if len(rows[0]) == 8 else 10)
        wrong += column_faults(rows, self.width, tree=self.trees is not False)
        if wrong:
            return [], []
        columns = list(zip(*rows, strict=True))
        if columns[ID] == first_numbers(len(rows)):
            return columns, range(len(rows))
        places = word_places(columns[ID], wrong)
        return list(zip(*(rows[place] for place in places), strict=True)), places

    def _tree(
        self, columns: list[tuple[str, ...]], places: Sequence[int], wrong: list[Wrong]
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Heads and relations of the words; empty where there are none."""
        if self.trees is False:
            return (), ()
        written, relations = columns[HEAD], columns[DEPREL]
        n = len(written)
        if written.count("_") == n:
            wrong += [(places[0], _NO_TREE)] if self.trees else []
            return (), ()
        heads = as_numbers(written)
        if heads is None:
            wrong += [
                (place, _no_head(head))
                for place, head in zip(places, written, strict=True)
                if as_numbers((head,)) is None
            ]
            return (), ()
        wrong += [(places[max(word - 1, 0)], message) for word, message in tree_faults(heads)]
        if self.trees is None and relations.count("_") == n:
            return heads, ()
        wrong += [
            (place, "expected a DEPREL beside the HEAD, got _")
            for place, relation in zip(places, relations, strict=True)
            if relation == "_"
        ]
        return heads, tuple(map(intern, relations))


def _no_head(written: str) -> str:
    if written == "_":
        return "expected a HEAD, as other words of the sentence have, got _"
    return f"expected the number of a word as HEAD, or 0, got {written!r}"
