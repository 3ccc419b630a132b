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
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from softq.errors import DataError

_PART = 1 << 18  # bytes that are read at once
_LONGEST_LINE = 1 << 26  # bytes: a device such as /dev/zero has no line end
_LARGEST_FILE = 1 << 30  # bytes of a file that is read whole
_BYTE_ORDER_MARK = "\ufeff"
_FORBIDDEN = {
    "\0": "the line holds a NUL character",
    "\r": "the line holds a carriage return that does not end it",
    _BYTE_ORDER_MARK: "the line begins with a byte-order mark: were files joined?",
}
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


def refuse(where: str, found: Sequence[Fault]) -> None:
    """Raise the first fault, if there is one."""
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


def name_of(source: Path | str) -> str:
    """What errors call a source.

    Its path, or "the text" where a string with line ends is the text itself.
    """
    return "the text" if isinstance(source, str) and "\n" in source else str(source)


@contextmanager
def opened(source: Path | str) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed, or those of a string that is the text itself."""
    if isinstance(source, str) and "\n" in source:
        # A lone surrogate becomes bytes that are not UTF-8, which is a fault with its line.
        yield BytesIO(source.encode(errors="surrogatepass"))
        return
    path = Path(source)
    with readable(str(source)), path.open("rb") as packed, unpacked(packed, path) as file:
        yield file


def unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    """An open file, decompressed if its name ends in .gz or .xz."""
    unpack: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, lambda packed: packed)
    return cast(IO[bytes], unpack(file))


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn what keeps a file from being opened, read or decompressed into a `DataError`."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"cannot read {where}: {error}") from error


def read_whole(path: Path | str) -> bytes:
    """All bytes of a file, decompressed, for formats that cannot be read part by part."""
    with opened(path) as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise DataError(
            f"{path}: expected a file of at most {_LARGEST_FILE >> 20} MiB, got a larger one"
        )
    return content


def read_parts(
    file: IO[bytes],
    where: str,
    size: int = _PART,
    *,
    sentences: bool = True,
    strict: bool = True,
) -> Iterator[Part]:
    """Whole lines of an open file, part by part, for files of any size.

    Args:
        file: The bytes, decompressed.
        where: What errors call it.
        size: Bytes of a part, about.
        sentences: Parts go on to the next blank line, so that they hold whole sentences. Without,
            a part ends where a pipe has no more lines yet.
        strict: NUL, a carriage return that does not end a line, and a byte-order mark at the start
            of a line but the first are faults.

    """
    first, offset = 1, 0
    with readable(where):
        for data in _blocks_of_sentences(file, size) if sentences else _blocks(file, size):
            last = data.rfind(b"\n", 0, -1) + 1
            if len(data) - last >= _LONGEST_LINE:
                line, limit = first + data.count(b"\n", 0, last), f"{_LONGEST_LINE >> 20} MiB"
                raise DataError(
                    f"{where}, line {line}: expected at most {limit}, got a longer line"
                )
            if first == 1 and data.startswith(_UTF_16):
                hint = "convert it, for example with `iconv -f UTF-16 -t UTF-8`"
                yield Part(1, [""], [Fault(1, f"expected UTF-8, got UTF-16; {hint}")])
                return  # one fault says it all
            part = _decode(data, first, offset, strict)
            yield part
            first += len(part.lines)
            offset += len(data)


def _blocks_of_sentences(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Whole lines up to a blank one, or to a line that is too long."""
    while data := file.read(size):
        pieces = [data]
        if not data.endswith(b"\n"):
            pieces.append(file.readline(_LONGEST_LINE))
        while len(pieces[-1]) < _LONGEST_LINE:
            pieces.append(file.readline(_LONGEST_LINE))
            if not pieces[-1].strip(b" \t\r\n"):  # a blank line, or the end of the file
                break
        yield b"".join(pieces)


def _blocks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Whole lines, as many as are there, or the beginning of a line that is too long."""
    rest: list[bytes] = []
    while sum(map(len, rest)) < _LONGEST_LINE and (block := cast(Any, file).read1(size)):
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join([*rest, block[:end]])
            rest.clear()
        rest.append(block[end:])
    if any(rest):
        yield b"".join(rest)


def _decode(data: bytes, first: int, offset: int, strict: bool) -> Part:
    """Whole lines as text, from line ``first`` on, which begins at a byte of the file."""
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
                hint = "convert it, for example with iconv"
                found.append(Fault(number, f"expected UTF-8, got {got}; {hint}"))
            offset += len(line) + 1
    text = text.replace("\r\n", "\n").removesuffix("\n")
    lines = text.split("\n")
    for mark, message in _FORBIDDEN.items() if strict else ():
        if mark in text:
            held = str.startswith if mark == _BYTE_ORDER_MARK else str.__contains__
            found += [
                Fault(number, message)
                for number, line in enumerate(lines, first)
                if held(line, mark)
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
                f"{path}, line {number}: expected one or more sentences separated by tabs, got an"
                " empty one"
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
