"""Reading of text files, on which every format rests.

A file, plain, .gz or .xz, or a string is read part by part: its lines, and what is wrong with them.
Lines end at LF or CR LF and nowhere else: a CR elsewhere, a form feed or U+2028 is white space
inside a line. Text is UTF-8; a byte-order mark at its start is dropped.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import IO, NamedTuple, cast

from softq.errors import DataError

_PART = 1 << 13  # lines that are read at once
_BYTE_ORDER_MARK = "\ufeff"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Fault(NamedTuple):
    """What is wrong with a line of a file, counted from 1; line 0 is the file as a whole."""

    line: int
    message: str


class Part(NamedTuple):
    """Consecutive lines of a file, without their ends; ``first`` is the number of the first one.

    Bytes that are not UTF-8 are replaced in the lines, and are among the faults.
    """

    first: int
    lines: list[str]
    faults: list[Fault]


def refuse(where: str, found: Sequence[tuple[int | str, str]]) -> None:
    """Raise the first fault, if there is one; its line may be a text that says more than a number."""
    if found:
        line, message = found[0]
        more = f" (and {len(found) - 1} more; `softq data check` lists them)" if found[1:] else ""
        raise DataError(f"{where}{f', line {line}' if line else ''}: {message}{more}")


def file_type(path: Path) -> str:
    """The end of a file's name in lower case, less .gz or .xz.

    >>> file_type(Path("dataset_coco.JSON.gz")), file_type(Path("json.tsv"))
    ('.json', '.tsv')
    """
    name = path.with_suffix("") if path.suffix in (".gz", ".xz") else path
    return name.suffix.lower()


def is_text(source: Path | str) -> bool:
    """Whether a source is the text itself, a string with line ends, and not the path of a file."""
    return isinstance(source, str) and "\n" in source


def name_of(source: Path | str) -> str:
    """What errors call a source."""
    return "the text" if is_text(source) else str(source)


@contextmanager
def opened(source: Path | str) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked, or those of a string that `is_text`."""
    if is_text(source):
        # A lone surrogate becomes bytes that are not UTF-8, which is a fault with its line.
        yield BytesIO(cast(str, source).encode(errors="surrogatepass"))
        return
    path = Path(source)
    with readable(str(source)), path.open("rb") as packed, unpacked(packed, path) as file:
        yield file


def unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    """What is in an open file, by the end of its name: .gz, .xz, or as it is."""
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(file))
    if path.suffix == ".xz":
        return lzma.open(file)
    return file


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn what keeps a file from being opened, read or unpacked into a `DataError`."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"cannot read {where}: {error}") from error


def read_parts(
    file: IO[bytes],
    where: str,
    size: int = _PART,
    *,
    sentences: bool = True,
    strict: bool = True,
) -> Iterator[Part]:
    """Parts of at least ``size`` lines of an open file, for files of any size.

    Args:
        file: The bytes, unpacked.
        where: What errors call it.
        size: Lines of a part, but the last.
        sentences: Parts go on to the next blank line, so that they hold whole sentences.
        strict: Characters are faults that `decode` names.

    """
    first, offset = 1, 0
    with readable(where):
        for lines in _cut(file, size, sentences):
            data = b"".join(lines)
            yield decode(data, first, offset, strict=strict)
            if first == 1 and data.startswith(_UTF_16):
                return  # one fault says it all
            first += len(lines)
            offset += len(data)


def _cut(file: IO[bytes], size: int, sentences: bool) -> Iterator[list[bytes]]:
    while lines := list(islice(file, size)):
        while sentences and lines[-1].strip(b" \t\r\n"):
            lines.append(file.readline())  # an empty one at the end of the file
        yield lines


def decode(data: bytes, first: int = 1, offset: int = 0, *, strict: bool = True) -> Part:
    """Whole lines of a file as text, and what is wrong with their characters.

    Args:
        data: The bytes.
        first: The number of their first line.
        offset: How many bytes come before them in the file.
        strict: NUL, a carriage return that does not end a line, and a byte-order mark at the start
            of a line but the first are faults.

    """
    if first == 1 and data.startswith(_UTF_16):
        message = (
            "expected UTF-8, got UTF-16; convert it, for example with `iconv -f UTF-16 -t UTF-8`"
        )
        return Part(1, [""], [Fault(1, message)])
    encoding = "utf-8-sig" if first == 1 else "utf-8"
    found = []
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = data.decode(encoding, errors="replace")
        for number, line in enumerate(data.split(b"\n"), start=first):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                got = f"byte 0x{line[error.start]:02x} at offset {offset + error.start} of the file"
                found.append(
                    Fault(number, f"expected UTF-8, got {got}; convert it, for example with iconv")
                )
            offset += len(line) + 1
    text = text.replace("\r\n", "\n").removesuffix("\n")
    lines = text.split("\n")
    if strict:
        for mark, name in (
            ("\0", "a NUL character"),
            ("\r", "a carriage return that does not end it"),
        ):
            if mark in text:
                found += [
                    Fault(k, f"the line holds {name}")
                    for k, line in enumerate(lines, first)
                    if mark in line
                ]
        if _BYTE_ORDER_MARK in text:
            message = "the line begins with a byte-order mark: were files joined?"
            found += [
                Fault(k, message)
                for k, line in enumerate(lines, first)
                if line.startswith(_BYTE_ORDER_MARK)
            ]
    return Part(first, lines, found)


def split_sentences(lines: Iterable[str], first: int = 1) -> Iterator[tuple[int, list[str]]]:
    """Lines between empty ones, with the number of the first of them.

    >>> list(split_sentences(["a", "b", "", "c"]))
    [(1, ['a', 'b']), (4, ['c'])]
    """
    block: list[str] = []
    for number, line in enumerate(chain(lines, [""]), start=first):
        if line:
            block.append(line)
        elif block:
            yield number - len(block), block
            block = []


def read_lines(path: Path | str) -> Iterator[str]:
    """Lines of a text file without their ends; what is not text is an error, with its line."""
    with opened(path) as file:
        for part in read_parts(file, name_of(path), sentences=False, strict=False):
            wrong = {fault.line: fault for fault in part.faults}
            for number, line in enumerate(part.lines, start=part.first):
                if number in wrong:
                    refuse(name_of(path), [wrong[number]])
                yield line


def read_references(path: Path, limit: int | None = None) -> list[list[list[str]]]:
    """References of each example as words, ``[example][reference][word]``.

    An example is a line, its references separated by tabs, words by white space. There are at most
    ``limit`` of them.
    """
    examples: list[list[list[str]]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if limit is not None and len(examples) >= limit:
            break
        references = [part.split() for part in line.split("\t")]
        if not all(references):
            raise DataError(
                f"{path}, line {number}: expected one or more sentences separated by tabs, got an empty one"
            )
        examples.append(references)
    if not examples:
        raise DataError(f"{path} is empty: expected one example per line")
    return examples


def number_words(
    examples: Sequence[Sequence[Sequence[str]]],
) -> tuple[list[list[list[int]]], list[str]]:
    """Words as numbers in order of appearance, and the words by number.

    >>> number_words([[["a", "b", "a"]]])
    ([[[0, 1, 0]]], ['a', 'b'])
    """
    vocab: dict[str, int] = {}
    numbers = [
        [[vocab.setdefault(word, len(vocab)) for word in sentence] for sentence in example]
        for example in examples
    ]
    return numbers, list(vocab)
