"""Column files of labelled sentences (CoNLL): a token per line, its label in the last column, or one label per annotator.

The format, as it is read and written here:

- A blank line ends a sentence, be it empty or of spaces and tabs. So does a line whose first column is ``-DOCSTART-``, which is skipped.
- Columns are separated by tabs if there is a tab in any line that is not blank, by runs of spaces otherwise. The first is the token;
  columns between token and labels are kept as they are (parts of speech, chunks). Between tabs a token may be empty, as in corpora that
  lost characters on the way: it is read, but :func:`check_conll` reports it. Other columns may not.
- With several annotators, the last columns are theirs, one each. Their number is fixed by the caller, or varies from sentence to sentence;
  a line ``# annotators = w01 w13`` before a sentence names them. ``?`` stands where an annotator gave no label.
- Plain, .gz or .xz; UTF-8. A byte-order mark at the start is dropped, lines may end in CR LF, spaces at their ends are ignored.
  Nothing else is repaired: whatever does not fit is a fault, with its line.
"""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from sys import intern
from typing import IO, Literal, NamedTuple, cast

from softq.data.tags import Scheme, faults, guess_scheme
from softq.errors import DataError

MISSING = "?"
"""Stands where an annotator gave no label."""

DOCUMENT = "-DOCSTART-"
NAMES = "# annotators ="

Annotators = int | Literal["all"]
"""Whose labels the last columns are: 0 for one label that is nobody's in particular, a number of annotators, or "all" but the token."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Tokens and their labels; equal if all but the place in the file is equal.

    Attributes:
        tokens: The words.
        labels: ``[annotator][token]``; one sequence where a file has no annotators.
        annotators: A name for each sequence of labels ("1", "2", … where a file does not name them); empty where it has none.
            One annotator may stand there twice, having labelled the sentence twice.
        extra: ``[column][token]``, the columns between token and labels.
        line: Where the first token stands in the file, from 1; token i is i lines below.

    """

    tokens: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    annotators: tuple[str, ...] = ()
    extra: tuple[tuple[str, ...], ...] = ()
    line: int = field(default=0, compare=False)

    @property
    def references(self) -> list[tuple[str, ...]]:
        """Label sequences that cover every token."""
        return [labels for labels in self.labels if not self.annotators or MISSING not in labels]

    def pieces(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Stretches of labels without a missing one: annotator, first token, labels. A missing label ends an entity.

        >>> list(Sentence(("a", "b", "c"), (("O", "?", "B-X"),), ("w1",)).pieces())
        [('w1', 0, ('O',)), ('w1', 2, ('B-X',))]
        """
        if not self.annotators:
            yield from (("", 0, labels) for labels in self.labels)
        for annotator, labels in zip(self.annotators, self.labels, strict=False):  # none where there are no annotators
            ends = [place for place, label in enumerate(labels) if label == MISSING] if MISSING in labels else []
            for start, end in zip([0, *(place + 1 for place in ends)], [*ends, len(labels)], strict=True):
                if start < end:
                    yield annotator, start, labels[start:end]


class Corpus(NamedTuple):
    """A file and what it holds."""

    path: Path
    sentences: list[Sentence]


class Fault(NamedTuple):
    """What is wrong with a line of a file, counted from 1; line 0 is the file as a whole."""

    line: int
    message: str


def read_conll(path: Path, *, annotators: Annotators = 0, scheme: Scheme | None = None) -> Corpus:
    """Sentences of a column file; a fault anywhere is a ``DataError`` that names the first one's line.

    Args:
        path: A file in the format of this module.
        annotators: How many of the last columns are annotators'; with "all" all but the first, however many a sentence has.
            Needless where the file names its annotators.
        scheme: Labels must be tags of this scheme; by default they may be anything.

    """
    sentences, found = _parse(path, annotators)
    if scheme is not None:
        found = sorted([*found, *_tag_faults(sentences, scheme)])
    refuse(str(path), found)
    return Corpus(path, sentences)


def refuse(where: str, found: list[Fault]) -> None:
    """Raise the first fault, if there is one."""
    if found:
        line, message = min(found)
        more = f" (and {len(found) - 1} more; `softq data check` lists them)" if len(found) > 1 else ""
        raise DataError(f"{where}{f', line {line}' if line else ''}: {message}{more}")


def check_conll(path: Path, *, annotators: Annotators = 0, scheme: Scheme | None = None) -> list[Fault]:
    """Every fault of a file in order, none if it is sound: what cannot be read, tags that break their scheme, empty tokens.

    Without a ``scheme``, tags are judged by the one that :func:`find_scheme` finds.
    Tags and tokens of a sentence with a broken line are judged only once the line is mended: what stands beside them is not known.
    """
    try:
        sentences, found = _parse(path, annotators)
    except _UnreadableError as error:
        return [Fault(0, str(error))]
    for sentence in sentences:
        found += [Fault(sentence.line + i, "the token is empty") for i, token in enumerate(sentence.tokens) if not token.strip(" ")]
    scheme = scheme or find_scheme(sentences)
    return sorted([*found, *(_tag_faults(sentences, scheme) if scheme else [])])


def find_scheme(sentences: Iterable[Sentence]) -> Scheme | None:
    """The scheme the labels follow, or break least often; None where they are no tags of entities, ``B-PER`` and its kin.

    >>> find_scheme([Sentence(("Ann", "Lee", "ran"), (("B-PER", "I-PER", "O"),))])
    'bio'
    >>> find_scheme([Sentence(("She", "ran"), (("PRP", "VBD"),))])
    """
    distinct = Counter(labels for sentence in sentences for _, _, labels in sentence.pieces())
    if not any(_TAG.match(label) for label in set(chain.from_iterable(distinct))):
        return None
    found = guess_scheme(list(distinct))
    if found is not None:
        return found
    schemes: tuple[Scheme, ...] = ("bio", "iob1", "bioes")
    return min(schemes, key=lambda scheme: sum(count * len(faults(labels, scheme)) for labels, count in distinct.items()))


_TAG = re.compile(r"[BIES]-.")


def _tag_faults(sentences: Iterable[Sentence], scheme: Scheme) -> Iterator[Fault]:
    known: dict[tuple[str, ...], list[tuple[int, str]]] = {}  # most sequences of a file, such as O O O, come again and again
    for sentence in sentences:
        for annotator, start, labels in sentence.pieces():
            if labels not in known:
                known[labels] = faults(labels, scheme)
            for place, message in known[labels]:
                whose = f"annotator {annotator}: " if annotator else ""
                yield Fault(sentence.line + start + place, f"{whose}{message} ({scheme})")


def to_conll(sentences: Iterable[Sentence]) -> str:
    r"""Sentences as the text of a column file with tabs, annotators by name, so that :func:`read_conll` reads the same sentences from it.

    >>> to_conll([Sentence(("Ann", "ran"), (("B-PER", "O"),))])
    'Ann\tB-PER\nran\tO\n\n'
    """
    pieces: list[str] = []
    shapes = set()
    for number, sentence in enumerate(sentences):
        columns = (sentence.tokens, *sentence.extra, *sentence.labels)
        _check_writable(sentence, columns, number)
        shapes.add((bool(sentence.annotators), len(sentence.extra), 0 if sentence.annotators else len(sentence.labels)))
        if len(shapes) > 1:
            raise DataError(f"sentence {number}: expected the same kinds of columns in all sentences, got others than in those before")
        if sentence.annotators:
            pieces.append(f"{NAMES} {' '.join(sentence.annotators)}\n")
        pieces.extend("\t".join(row) + "\n" for row in zip(*columns, strict=True))
        pieces.append("\n")
    return "".join(pieces)


def _check_writable(sentence: Sentence, columns: Sequence[Sequence[str]], number: int) -> None:
    """Refuse what would not be read back as it is."""
    where = f"sentence {number}"
    if not sentence.tokens or {len(column) for column in columns} != {len(sentence.tokens)}:
        raise DataError(
            f"{where}: expected a label for each of one or more tokens, got columns of {[len(column) for column in columns]} entries"
        )
    if len(sentence.labels) != (len(sentence.annotators) or 1):
        raise DataError(f"{where}: expected labels of {len(sentence.annotators) or 1}, got {len(sentence.labels)} sequences")
    for text in chain.from_iterable(columns):
        if not _FORBIDDEN.isdisjoint(text):
            raise DataError(f"{where}: expected text without tabs, line ends and NUL in every column, got {text!r}")
    if not all(text.strip(" ") for text in chain.from_iterable(columns[1:])):
        raise DataError(f"{where}: only tokens may be empty, got an empty label or other column")
    if any(label.endswith(" ") for label in columns[-1]):
        raise DataError(f"{where}: the last column must not end in a space, which would be lost")
    if sentence.tokens[0].startswith(NAMES) or any(token.startswith("\ufeff") or _starts_document(token) for token in sentence.tokens):
        raise DataError(f"{where}: a token must not read as {DOCUMENT}, as a line '{NAMES} …', or begin with a byte-order mark")
    if any(name.split() != [name] for name in sentence.annotators):
        raise DataError(f"{where}: names of annotators must be words without spaces, got {list(sentence.annotators)}")


_FORBIDDEN = frozenset("\t\n\r\0")


class _UnreadableError(DataError):
    """No bytes came from a file."""


class Block(NamedTuple):
    """A sentence as it stands in a file: the lines between two blank ones.

    Attributes:
        line: Of the first token, from 1.
        names: Of annotators, where a line before the first token has them.
        widths: Columns of each line.
        columns: ``[column][token]``; none where widths differ.

    """

    line: int
    names: tuple[str, ...] | None
    widths: list[int]
    columns: list[tuple[str, ...]]


def _parse(path: Path, annotators: Annotators) -> tuple[list[Sentence], list[Fault]]:
    """Sentences without a fault, and all faults of the lines in order."""
    if annotators != "all" and annotators < 0:
        raise DataError(f"annotators must be 'all' or a number of columns, 0 or more, got {annotators}")
    text, found = decode(_read_bytes(path))
    lines = clean_lines(text)
    tabs = any("\t" in line for line in lines)
    blocks = list(split_blocks(lines, tabs, found))
    if not blocks and not found:
        found.append(Fault(0, "no sentences: expected lines of a token and its label"))
    if any(block.names is not None for block in blocks):
        nameless = [block for block in blocks if block.names is None]
        found += [Fault(block.line, f"expected a line '{NAMES} …' before this sentence, as before others") for block in nameless]
        blocks = [block for block in blocks if block.names is not None]
    counts = [_count_labels(block, annotators) for block in blocks]
    others = 1  # columns that are no labels; the first is the token
    if annotators != "all":
        usual = Counter(width - count for block, count in zip(blocks, counts, strict=True) for width in block.widths)
        others = max(1, usual.most_common(1)[0][0]) if usual else 1
    separator = "tabs" if tabs else "spaces"
    sentences = []
    for block, count in zip(blocks, counts, strict=True):
        expected = others + count
        found += [
            Fault(block.line + place, f"expected {expected} columns separated by {separator} ({_describe(others, count)}), got {width}")
            for place, width in enumerate(block.widths)
            if width != expected
        ]
        if block.names is not None and annotators not in (0, "all", count):
            found.append(Fault(block.line - 1, f"expected names of {annotators} annotators, got {count}"))
        if len(block.columns) == expected:
            tokens, *rest = block.columns
            names = block.names or (tuple(str(k + 1) for k in range(count)) if annotators else ())
            sentences.append(Sentence(tokens, tuple(rest[others - 1 :]), names, tuple(rest[: others - 1]), block.line))
    if found:
        wrong = {line for line, _ in found}
        sentences = [s for s in sentences if wrong.isdisjoint(range(s.line - 1, s.line + len(s.tokens)))]
    return sentences, sorted(found)


def _count_labels(block: Block, annotators: Annotators) -> int:
    if block.names is not None:
        return len(block.names)
    if annotators == "all":
        return max(1, Counter(block.widths).most_common(1)[0][0] - 1)
    return max(1, annotators)


def _describe(others: int, labels: int) -> str:
    between = f", {others - 1} more" if others > 1 else ""
    return f"token{between}, {'label' if labels == 1 else f'{labels} labels'}"


def clean_lines(text: str) -> list[str]:
    """Lines without the spaces at their ends; blank ones are empty."""
    return [line.rstrip(" ") if line.strip(" \t") else "" for line in text.split("\n")]


def split_blocks(whole: Iterable[str], tabs: bool, found: list[Fault], first: int = 1) -> Iterator[Block]:
    """Blocks of lines, the first of which has this number; what is wrong with single lines goes to ``found``."""
    lines: list[str] = []
    for number, line in enumerate(chain(whole, [""]), start=first):
        if line and not _starts_document(line):
            lines.append(line)
            continue
        if not lines:
            continue
        start = number - len(lines)
        names = None
        if lines[0].startswith(NAMES):
            names = tuple(map(intern, lines.pop(0)[len(NAMES) :].split()))
            if not names or not lines:
                got = "no sentence" if names else "no name"
                found.append(Fault(start, f"expected names of annotators and a sentence after them, got {got}"))
                lines = []
            start += 1
        if lines:
            rows = [line.split("\t") if tabs else line.split(" ") if "  " not in line else _SPACES.split(line) for line in lines]
            for place, row in enumerate(rows):
                if not all(column.strip(" ") for column in row):
                    # Between tabs the token may be empty; among spaces an empty one is a line that begins with a space.
                    empty = [k for k, column in enumerate(row, start=1) if not column.strip(" ") and (k > 1 or not tabs)]
                    found += [Fault(start + place, f"column {k} is empty") for k in empty]
            widths = list(map(len, rows))
            columns = [tuple(map(intern, column)) for column in zip(*rows, strict=True)] if len(set(widths)) == 1 else []
            yield Block(start, names, widths, columns)
        lines = []


_SPACES = re.compile(" +")


def _starts_document(line: str) -> bool:
    return line.startswith(DOCUMENT) and line[len(DOCUMENT) :][:1] in ("", " ", "\t")


def decode(data: bytes, first: int = 1, offset: int = 0) -> tuple[str, list[Fault]]:
    """Text with LF ends and without a byte-order mark, and what is wrong with its characters; there are as many lines as in the bytes.

    The bytes may be a part of a file: ``first`` is the number of their first line, ``offset`` what comes before them.
    """
    encoding = "utf-8-sig" if first == 1 else "utf-8"  # joined files have the mark elsewhere too, which is a fault
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "", [Fault(1, "expected UTF-8, got UTF-16; convert it, for example with `iconv -f UTF-16 -t UTF-8`")]
    found = []
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode(encoding, errors="replace")
        for number, line in enumerate(data.split(b"\n"), start=first):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                found.append(
                    Fault(number, f"expected UTF-8, got byte 0x{line[error.start]:02x} at offset {offset + error.start} of the file")
                )
            offset += len(line) + 1
    text = text.replace("\r\n", "\n")
    for mark, name in ("\0", "a NUL character"), ("\r", "a carriage return that does not end it"):
        if mark in text:
            found += [Fault(number, f"the line holds {name}") for number, line in enumerate(text.split("\n"), first) if mark in line]
    if "\ufeff" in text:
        lines = enumerate(text.split("\n"), first)
        found += [
            Fault(number, "the line begins with a byte-order mark: were files joined?") for number, line in lines if line[:1] == "\ufeff"
        ]
    return text, found


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as packed, unpacked(packed, path) as file:
            return file.read()
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise _UnreadableError(f"cannot read {path}: {error}") from error


def unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    """What is in a file that is open for reading, by the end of its name: .gz, .xz, or as it is."""
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(file))
    if path.suffix == ".xz":
        return lzma.open(file)
    return file
