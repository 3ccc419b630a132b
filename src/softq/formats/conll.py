"""Column files of labelled sentences (CoNLL).

A token stands on each line, its label in the last column, or one label per annotator. The format,
as it is read and written here:

- A blank line ends a sentence, be it empty or of spaces and tabs. So does a line whose first column
  is ``-DOCSTART-``, which is skipped.
- Columns are separated by tabs if there is a tab in any line that is neither blank nor a comment,
  by runs of spaces otherwise. The first is the token; columns between token and labels are kept as
  they are (parts of speech, chunks). Between tabs a token may be empty, as in corpora that lost
  characters on the way: it is read, but :func:`check_conll` reports it. Other columns may not.
- Lines that begin with ``#`` and a space before the first token of a sentence are comments, such as
  ``# sent_id = 7``, and are kept with it; those before a blank line are skipped. A token may be
  ``#`` all the same: between tabs a line is a token if it has a tab, among spaces if it has as many
  columns as the last line of its sentence; but what reads ``# key = …``, ``# newdoc`` or
  ``# newpar`` is a comment in any case.
- With several annotators, the last columns are theirs, one each. Their number is fixed by the
  caller, or varies from sentence to sentence; a comment ``# annotators = w01 w13`` before a
  sentence names them. ``?`` stands where an annotator gave no label.
- Plain, .gz or .xz; UTF-8. A byte-order mark at the start is dropped, lines may end in CR LF,
  spaces at their ends are ignored. Nothing else is repaired: whatever does not fit is a fault, with
  its line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, takewhile, zip_longest
from pathlib import Path
from sys import intern
from typing import Any, Literal, NamedTuple

from softq.errors import DataError
from softq.formats.tags import OUTSIDE, Scheme, faults
from softq.formats.text import Fault, name_of, opened, read_parts, refuse, split_sentences

MISSING = "?"
"""Stands where an annotator gave no label."""

DOCUMENT = "-DOCSTART-"
NAMES = "# annotators ="

_NAMES = re.compile("# +annotators *=")
_COMMENT = re.compile(r"# +(\S+ *=|newdoc\b|newpar\b)")  # in any case, however many columns it has
_SPACES = re.compile(" +")
_DOCUMENT = re.compile(f"{DOCUMENT}( |\t|$)")
_TAG = re.compile(r"[BIES]-.")
_SCHEMES: tuple[Scheme, ...] = ("bio", "iob1", "bioes")  # the first of those that fit is taken

Annotators = int | Literal["all"]
"""Whose labels the last columns are.

0 for one label that is nobody's in particular, a number of annotators, or "all" but the token.
"""


@dataclass(frozen=True, slots=True)
class Sentence:
    """Tokens and their labels; equal if all but the place in the file is equal.

    Attributes:
        tokens: The words.
        labels: ``[annotator][token]``; one sequence where a file has no annotators.
        annotators: A name for each sequence of labels ("1", "2", … where a file does not name
            them); empty where it has none. One annotator may stand there twice, having labelled the
            sentence twice.
        extra: ``[column][token]``, the columns between token and labels.
        line: Where the first token stands in the file, from 1; token i is i lines below. Of JSON,
            the line or number of the record.
        comments: Lines before the first token, ``# sent_id = 7``, but that which names the
            annotators.
        unit: What ``line`` counts in JSON, "line" or "record"; empty for columns.

    """

    tokens: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    annotators: tuple[str, ...] = ()
    extra: tuple[tuple[str, ...], ...] = ()
    line: int = field(default=0, compare=False)
    comments: tuple[str, ...] = ()
    unit: str = field(default="", compare=False)

    def where(self, token: int | None = None) -> str:
        """Where the sentence, or one of its tokens, stands in the file, for messages.

        >>> Sentence(("Ann", "ran"), (("O", "O"),), line=7).where(1)
        'line 8'
        >>> Sentence(("Ann", "ran"), (("O", "O"),), line=7, unit="record").where(1)
        'record 7, token 2'
        """
        if self.unit:
            return f"{self.unit} {self.line}" + ("" if token is None else f", token {token + 1}")
        return f"line {self.line + (token or 0)}"

    @property
    def references(self) -> list[tuple[str, ...]]:
        """Label sequences; of annotators, those who labelled a token or more."""
        if not self.annotators:
            return list(self.labels)
        return [labels for labels in self.labels if set(labels) != {MISSING}]

    def pieces(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """Stretches of labels without a missing one: annotator, first token, labels.

        A missing label ends an entity, and so does one of JSON that is uncertain.

        >>> list(Sentence(("a", "b", "c"), (("O", "?", "B-X"),), ("w1",)).pieces())
        [('w1', 0, ('O',)), ('w1', 2, ('B-X',))]
        """
        if not self.annotators and not self.unit:
            yield from (("", 0, labels) for labels in self.labels)
            return
        names = self.annotators or ("",) * len(self.labels)
        for annotator, labels in zip(names, self.labels, strict=True):
            start = 0
            sure = [MISSING if "|" in k else k for k in labels] if self.unit else labels
            for missing, group in groupby(sure, MISSING.__eq__):
                piece = tuple(group)
                if not missing:
                    yield annotator, start, piece
                start += len(piece)


class TaggerInput(NamedTuple):
    """What `softq.CRFTagger` is fitted to: ``CRFTagger().fit(data.X, data.y)``.

    Attributes:
        X: The tokens of each sentence: words, or (word, part of speech).
        y: The labels of each sentence; of a file with annotators, a sequence for each of
            ``annotators``, None for one who labelled nothing of it.
        annotators: Their names in the order of their places in y; empty where the file has none. A
            row of `CRFTagger.annotators_` is about ``annotators[int(row.name)]``.

    """

    X: list[list[Any]]
    y: list[list[Any]]
    annotators: tuple[str, ...] = ()


class Corpus(NamedTuple):
    """What a file holds; ``name`` is what errors call it."""

    name: str
    sentences: list[Sentence]

    def without(self, annotators: Collection[str]) -> Corpus:
        r"""The same without these annotators, and without sentences that nobody else labelled.

        >>> corpus = read_conll("# annotators = w1 w2\nAnn\tB-PER\tO\n\n# annotators = w2\nHi\tO\n\n")
        >>> corpus.without(["w2"]).sentences[0].annotators, len(corpus.without(["w2"]).sentences)
        (('w1',), 1)

        """
        known = {name for sentence in self.sentences for name in sentence.annotators}
        unknown = sorted(set(annotators) - known)
        if unknown:
            raise DataError(
                f"{self.name}: expected names of annotators to leave out, got {unknown[0]!r}, who is"
                f" not among {', '.join(sorted(known)) or 'the annotators, of whom there are none'}"
            )
        kept = []
        for sentence in self.sentences:
            pairs = zip(sentence.annotators, sentence.labels, strict=True)
            rest = [(name, labels) for name, labels in pairs if name not in annotators]
            if rest:
                names, rows = zip(*rest, strict=True)
                kept.append(replace(sentence, annotators=names, labels=rows))
        if not kept:
            raise DataError(f"{self.name}: expected somebody who is not left out, got nobody")
        return self._replace(sentences=kept)

    def X_y(self, pos: int | None = None) -> TaggerInput:  # noqa: N802 -- scikit-learn's names
        r"""Sentences and labels as `softq.CRFTagger` takes them, and whose the labels are.

        Args:
            pos: The column of parts of speech, counted from 1 as in the file; without it, tokens are
                words alone.

        An annotator who labelled a sentence twice has two places in y.

        >>> corpus = read_conll(
        ...     "# annotators = w2 w1\nAnn\tB-PER\tO\nran\tO\tO\n\n"
        ...     "# annotators = w3 w1\nHi\tO\tO\n\n"
        ... )
        >>> X, y, annotators = corpus.X_y()
        >>> X, annotators
        ([['Ann', 'ran'], ['Hi']], ('w1', 'w2', 'w3'))
        >>> y
        [[['O', 'O'], ['B-PER', 'O'], None], [['O'], None, ['O']]]

        """
        tokens = self._tokens(pos)
        if not any(sentence.annotators for sentence in self.sentences):
            return TaggerInput(tokens, [list(sentence.labels[0]) for sentence in self.sentences])
        for sentence in self.sentences:
            if not sentence.references:
                raise DataError(
                    f"{self.name}, {sentence.where()}: expected an annotator who labelled a"
                    " token of the sentence, got none"
                )
        labelled = [_by_place(sentence) for sentence in self.sentences]
        places = sorted({place for found in labelled for place in found})
        y = [[found.get(place) for place in places] for found in labelled]
        return TaggerInput(tokens, y, tuple(name for name, _ in places))

    def _tokens(self, pos: int | None) -> list[list[Any]]:
        """Words, with their parts of speech if these have a column."""
        if pos is None:
            return [list(sentence.tokens) for sentence in self.sentences]
        there = min((len(sentence.extra) for sentence in self.sentences), default=0)
        if not 2 <= pos <= there + 1:
            raise DataError(
                f"{self.name}: expected pos to be a column between token and labels, of which there"
                f" are {there}, got {pos}"
            )
        return [list(zip(s.tokens, s.extra[pos - 2], strict=True)) for s in self.sentences]


def _by_place(sentence: Sentence) -> dict[tuple[str, int], list[str] | None]:
    """Labels by annotator and time; None for those that have none."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], list[str] | None] = {}
    for name, labels in zip(sentence.annotators, sentence.labels, strict=True):
        found[name, seen[name]] = None if set(labels) == {MISSING} else list(labels)
        seen[name] += 1
    return found


def read_conll(
    source: Path | str, *, annotators: Annotators = 0, scheme: Scheme | None = None
) -> Corpus:
    r"""Sentences of a column file; a fault anywhere is a ``DataError`` that names the first one's line.

    Args:
        source: A file in the format of this module, or its text, a string with line ends.
        annotators: How many of the last columns are annotators'; with "all" all but the first, however
            many a sentence has. Needless where the file names its annotators.
        scheme: Labels must be tags of this scheme; by default they may be anything.

    >>> read_conll("Ann B-PER\nran O\n").sentences[0].labels
    (('B-PER', 'O'),)

    """
    sentences, found = _parse(*_read(source), annotators)
    if scheme is not None:
        found = sorted([*found, *tag_faults(sentences, scheme)])
    refuse(name_of(source), found)
    return Corpus(name_of(source), sentences)


def check_conll(
    source: Path | str, *, annotators: Annotators = 0, scheme: Scheme | None = None
) -> list[Fault]:
    """Every fault of a file in order, none if it is sound.

    Faults are what cannot be read, tags that break their scheme, and empty tokens. Without a
    ``scheme``, tags are judged by the one that :func:`find_scheme` finds. Tags and tokens of a
    sentence with a broken line are judged only once the line is mended: what stands beside them is
    not known.
    """
    try:
        lines, found = _read(source)
    except DataError as error:
        return [Fault(0, str(error))]
    sentences, found = _parse(lines, found, annotators)
    for sentence in sentences:
        found += [
            Fault(sentence.line + i, "the token is empty")
            for i, token in enumerate(sentence.tokens)
            if not token.strip(" ")
        ]
    scheme = scheme or find_scheme(sentences)
    return sorted([*found, *(tag_faults(sentences, scheme) if scheme else [])])


def _read(source: Path | str) -> tuple[list[str], list[Fault]]:
    """All lines of a file, and what is wrong with their characters."""
    lines: list[str] = []
    found: list[Fault] = []
    with opened(source) as file:
        for part in read_parts(file, name_of(source)):
            lines += clean_lines(part.lines)
            found += part.faults
    return lines, found


def find_scheme(sentences: Iterable[Sentence]) -> Scheme | None:
    """The scheme the labels follow, or break least often.

    None where they are no tags of entities, ``B-PER`` and its kin.

    >>> find_scheme([Sentence(("Ann", "Lee", "ran"), (("B-PER", "I-PER", "O"),))])
    'bio'
    >>> find_scheme([Sentence(("She", "ran"), (("PRP", "VBD"),))])
    """
    distinct = Counter(labels for sentence in sentences for _, _, labels in sentence.pieces())
    runs = Counter[tuple[str, ...]]()  # labels between two O, which break a scheme by themselves
    for labels, count in distinct.items():
        for outside, run in groupby(labels, OUTSIDE.__eq__):
            if not outside:
                runs[tuple(run)] += count
    if not any(_TAG.match(label) for label in set(chain.from_iterable(runs))):
        return None
    broken: dict[Scheme, int] = {}  # how often labels break the scheme
    for scheme in _SCHEMES:
        broken[scheme] = sum(count * len(faults(run, scheme)) for run, count in runs.items())
        if not broken[scheme]:
            break
    return min(broken, key=broken.__getitem__)


def tag_faults(sentences: Iterable[Sentence], scheme: Scheme) -> Iterator[Fault]:
    """Where labels break a scheme."""
    known: dict[
        tuple[str, ...], list[tuple[int, str]]
    ] = {}  # most sequences of a file, such as O O O, come again and again
    for sentence in sentences:
        for annotator, start, labels in sentence.pieces():
            if labels not in known:
                known[labels] = faults(labels, scheme)
            for place, message in known[labels]:
                whose = f"annotator {annotator}: " if annotator else ""
                at = f"{sentence.where(start + place)}: " if sentence.unit else ""
                line = 0 if at else sentence.line + start + place
                yield Fault(line, f"{at}{whose}{message} ({scheme})")


def to_conll(sentences: Iterable[Sentence]) -> str:
    r"""Sentences as the text of a column file with tabs, annotators by name, so that :func:`read_conll` reads the same sentences from it.

    >>> to_conll([Sentence(("Ann", "ran"), (("B-PER", "O"),))])
    'Ann\tB-PER\nran\tO\n\n'
    """
    sentences = list(sentences)
    pieces: list[str] = []
    for sentence in sentences:
        columns = (sentence.tokens, *sentence.extra, *sentence.labels)
        pieces.extend(f"{comment}\n" for comment in sentence.comments)
        if sentence.annotators:
            pieces.append(f"{NAMES} {' '.join(sentence.annotators)}\n")
        pieces.extend("\t".join(row) + "\n" for row in zip_longest(*columns, fillvalue=""))
        pieces.append("\n")
    text = "".join(pieces)
    try:
        written = read_conll(text).sentences if sentences else []
    except DataError as error:
        raise DataError(f"the sentences cannot be written in columns: {error}") from None
    for number, (sentence, found) in enumerate(zip_longest(sentences, written)):
        if sentence != found:
            raise DataError(
                f"sentence {number}: expected tokens and labels that can be written in columns"
                " (without tabs, line ends, spaces at the end of a line, or a first token such as"
                f" {DOCUMENT} or '# key ='), got {sentence}"
            )
    return text


class Block(NamedTuple):
    """A sentence as it stands in a file: the lines between two blank ones.

    Attributes:
        line: Of the first token, from 1.
        comments: The lines before it, with that which names the annotators.
        names: Of annotators, where a comment has them.
        names_line: The number of that line, 0 where there is none.
        widths: Columns of each line.
        columns: ``[column][token]``; none where widths differ.

    """

    line: int
    comments: tuple[str, ...]
    names: tuple[str, ...] | None
    names_line: int
    widths: list[int]
    columns: list[tuple[str, ...]]


def _parse(
    lines: list[str], found: list[Fault], annotators: Annotators
) -> tuple[list[Sentence], list[Fault]]:
    """Sentences without a fault, and all faults of the lines in order."""
    if annotators != "all" and annotators < 0:
        raise DataError(
            f"annotators must be 'all' or a number of columns, 0 or more, got {annotators}"
        )
    tabs = has_tabs(lines)
    blocks = _blocks_of(lines, tabs, found)
    counts = [_count_labels(block, annotators) for block in blocks]
    others = 1 if annotators == "all" else _count_others(blocks, counts)
    sentences = []
    for block, count in zip(blocks, counts, strict=True):
        found += _column_faults(block, others, count, tabs)
        if block.names is not None and annotators not in (0, "all", count):
            found.append(
                Fault(block.names_line, f"expected names of {annotators} annotators, got {count}")
            )
        if len(block.columns) == others + count:
            sentences.append(_as_sentence(block, others, numbered=annotators != 0))
    wrong = {fault.line for fault in found}
    if wrong:
        sentences = [
            s
            for s in sentences
            if wrong.isdisjoint(range(s.line - len(s.comments) - 1, s.line + len(s.tokens)))
        ]
    return sentences, sorted(found)


def _as_sentence(block: Block, others: int, *, numbered: bool) -> Sentence:
    """Tokens and other columns, then labels; of annotators without names, who are ``numbered``."""
    tokens, *rest = block.columns
    extra, labels = tuple(rest[: others - 1]), tuple(rest[others - 1 :])
    names = block.names or (tuple(str(k + 1) for k in range(len(labels))) if numbered else ())
    comments = tuple(comment for comment in block.comments if not _NAMES.match(comment))
    return Sentence(tokens, labels, names, extra, block.line, comments)


def _blocks_of(lines: list[str], tabs: bool, found: list[Fault]) -> list[Block]:
    """Blocks of a file; if some name their annotators, those that do not are faults."""
    blocks = list(split_blocks(lines, tabs, found))
    if not blocks and not found:
        found.append(Fault(0, "no sentences: expected lines of a token and its label"))
    named = [block for block in blocks if block.names is not None]
    found += [
        Fault(block.line, f"expected a line '{NAMES} …' before this sentence, as before others")
        for block in blocks
        if named and block.names is None
    ]
    return named or blocks


def _most_common(numbers: Iterable[int]) -> int:
    return Counter(numbers).most_common(1)[0][0]


def _count_labels(block: Block, annotators: Annotators) -> int:
    if block.names is not None:
        return len(block.names)
    return max(1, _most_common(block.widths) - 1 if annotators == "all" else annotators)


def _count_others(blocks: list[Block], counts: list[int]) -> int:
    """Columns that are no labels, as most lines have them; the first is the token."""
    usual = [
        width - count for block, count in zip(blocks, counts, strict=True) for width in block.widths
    ]
    return max(1, _most_common(usual)) if usual else 1


def _column_faults(block: Block, others: int, labels: int, tabs: bool) -> Iterator[Fault]:
    """Lines with more or fewer columns than a token, other columns and labels."""
    if block.widths.count(others + labels) == len(block.widths):
        return
    between = f", {others - 1} more" if others > 1 else ""
    columns = f"token{between}, {'label' if labels == 1 else f'{labels} labels'}"
    expected = f"{others + labels} columns separated by {'tabs' if tabs else 'spaces'} ({columns})"
    for line, width in enumerate(block.widths, block.line):
        if width != others + labels:
            yield Fault(line, f"expected {expected}, got {width}")


def clean_lines(lines: Iterable[str]) -> list[str]:
    """Lines without the spaces at their ends; blank ones are empty."""
    return [line.rstrip(" ") if line.strip(" \t") else "" for line in lines]


def has_tabs(lines: Sequence[str]) -> bool:
    """Whether tabs separate the columns.

    What may be comments decides only where there is nothing else.
    """
    with_tabs = [line for line in lines if "\t" in line]
    if any(not line.startswith("# ") for line in with_tabs):
        return True
    return bool(with_tabs) and all(line.startswith("# ") for line in lines if line)


def _take_comments(lines: Sequence[str], tabs: bool) -> tuple[str, ...]:
    """Lines before the first token: no tokens of a sentence with as many columns as its last line."""
    marked = list(takewhile(lambda line: line.startswith("# "), lines))
    width = len(_SPACES.split(lines[-1])) if marked else 0

    def is_comment(line: str) -> bool:
        columns = "\t" in line if tabs else len(_SPACES.split(line)) == width
        return not columns or _COMMENT.match(line) is not None

    return tuple(takewhile(is_comment, marked))


def split_blocks(
    whole: Iterable[str], tabs: bool, found: list[Fault], first: int = 1
) -> Iterator[Block]:
    """Blocks of lines, the first of which has this number.

    What is wrong with single lines goes to ``found``.
    """
    without_documents = (
        "" if line.startswith(DOCUMENT) and _DOCUMENT.match(line) else line for line in whole
    )
    for start, lines in split_sentences(without_documents, first):
        comments = _take_comments(lines, tabs)
        names, names_line = _find_names(comments, start, found)
        rows = [_split(line, tabs) for line in lines[len(comments) :]]
        if names is not None and not (names and rows):
            got = "no sentence" if names else "no name"
            message = f"expected names of annotators and a sentence after them, got {got}"
            found.append(Fault(names_line, message))
        elif rows:
            begin = start + len(comments)
            found += _empty_columns(rows, begin, tabs)
            widths = list(map(len, rows))
            ragged = len(set(widths)) > 1
            columns = [] if ragged else [tuple(map(intern, c)) for c in zip(*rows, strict=True)]
            yield Block(begin, comments, names, names_line, widths, columns)


def _empty_columns(rows: Sequence[Sequence[str]], begin: int, tabs: bool) -> list[Fault]:
    """Between tabs the token may be empty; among spaces an empty one is a line that begins with a space."""
    return [
        Fault(line, f"column {k} is empty")
        for line, row in enumerate(rows, begin)
        if not all(map(str.strip, row))  # which also takes other white space for nothing
        for k, column in enumerate(row, start=1)
        if not column.strip(" ") and (k > 1 or not tabs)
    ]


def _find_names(
    comments: Sequence[str], start: int, found: list[Fault]
) -> tuple[tuple[str, ...] | None, int]:
    """Names of annotators and their line; None and 0 where no comment has them."""
    places = [place for place, line in enumerate(comments, start) if _NAMES.match(line)]
    found += [
        Fault(place, f"expected one line '{NAMES} …' before a sentence, got a second one")
        for place in places[1:]
    ]
    if not places:
        return None, 0
    return tuple(map(intern, comments[places[0] - start].partition("=")[2].split())), places[0]


def _split(line: str, tabs: bool) -> list[str]:
    if tabs:
        return line.split("\t")
    return _SPACES.split(line) if "  " in line else line.split(" ")
