"""Images with their captions, as lines of tab-separated columns or Karpathy's JSON (plain, .gz or .xz), and vectors of their features.

A line is the name of an image, a tab and a caption, and further tabs and captions where there are more; one image may stand on several
lines, anywhere. A number behind the name, as in Flickr's own files (``1000268201_693b08cb0e.jpg#0``), is dropped.

Karpathy's JSON is a record for each image, in one object:
``{"images": [{"filepath": "val2014", "filename": "a.jpg", "split": "val", "sentences": [{"raw": "A dog.", "tokens": ["a", "dog"]}]}]}``.
An image is called by path and name, ``val2014/a.jpg``, or by its name where there is no path. A caption is the ``raw`` text of a sentence,
or its tokens with spaces between where there is none. Whatever else stands there is passed over.

Features are an array in NumPy's own format, a row for each image; a text file beside it may say whose each row is.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from softq.errors import DataError
from softq.formats.file_checks import ARRAY_FAULTS, in_one_line, parse_json
from softq.formats.rows import Keyed, Row, gather, read_rows
from softq.formats.text import Fault, file_type, read_lines, read_whole, refuse

Split = Literal["train", "val", "test"]
"""A part of Karpathy's JSON."""

Features = npt.NDArray[np.floating[Any]]

_FILES_SPLITS: dict[Split, tuple[str, ...]] = {
    "train": ("train", "restval"),
    "val": ("val",),
    "test": ("test",),
}
_NUMBER = re.compile(r"#\d+$")
_BREAK = re.compile(r"[\t\r\n]")  # what ends a name in files of columns and of names
_NO_WORD = frozenset(
    string.punctuation
)  # beside what Unicode calls punctuation: it calls some of these symbols
_FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))
_CHUNK = 1 << 22  # numbers at a time: a file may be larger than memory
_SHOWN = 5  # names in a message


@dataclass(frozen=True, slots=True)
class Captions(Keyed):
    """Images, each with one or more captions.

    Attributes:
        images: N names.
        captions: Those of each image, one or more.
        lines: Where each image first stands in its file, from 1: a line, or a record of JSON; empty
            for captions that were made, not read.
        name: What errors call the file; empty for captions that were made.

    >>> captions = Captions(["a.jpg", "b.jpg"], [["A dog."], ["A cat."]], [1, 2], "d.json.gz")
    >>> captions.place(1), captions.take([1]).captions
    ('d.json.gz, record 2', [['A cat.']])

    """

    noun: ClassVar[str] = "image"
    images: list[str]
    captions: list[list[str]]
    lines: list[int] = field(default_factory=list)
    name: str = ""


def read_captions(path: Path, split: Split | None = None) -> Captions:
    """Images and their captions, in order of first appearance.

    A caption that an image has twice counts twice.

    Args:
        path: A file of lines, or of Karpathy's JSON if it is called .json, .json.gz or .json.xz.
        split: The part of JSON to read; "train" is the records of "train" and "restval". All of it
            if None.

    Raises DataError, with file and line or record, for an image without captions, a caption without
    an image, and an empty caption.

    """
    found, faults = _parse(path, split)
    refuse(str(path), faults)
    return found


def check_captions(path: Path, split: Split | None = None) -> list[Fault]:
    """Every fault of a file in order, none if it is sound.

    Those of JSON name the record and have no line.

    A caption of punctuation alone is one of them, though `read_captions` takes it: it says nothing
    of its image.
    """
    try:
        return _parse(path, split, wants_words=True)[1]
    except DataError as error:
        return [Fault(0, str(error))]


def is_json(path: Path) -> bool:
    """Whether a file is JSON by its name.

    >>> is_json(Path("dataset_coco.JSON.gz")), is_json(Path("json.tsv"))
    (True, False)
    """
    return file_type(path) == ".json"


def names_file(features: Path) -> Path:
    """Where the names of a features file's images stand, one per row.

    >>> names_file(Path("train.features.npy")).name
    'train.features.names.txt'
    """
    return features.with_suffix(".names.txt")


def features_beside(captions: Path) -> Path:
    """The features that belong to a file of captions if nobody says otherwise.

    >>> [features_beside(Path(name)).name for name in ("train.captions.tsv.gz", "d.json", "x.tsv")]
    ['train.features.npy', 'd.features.npy', 'x.features.npy']
    """
    name = captions.name.removesuffix(".gz").removesuffix(".xz")
    return captions.with_name(Path(name).stem.removesuffix(".captions") + ".features.npy")


def match_names(
    wanted: Iterable[str], there: Iterable[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Which names are meant.

    The same ones, or else those that differ in folders in front alone, as long as one fits and fits
    one only.

    Returns:
        The name that is there, for each that is found; and for those that cannot be told apart,
        what came in place of one name, as messages say it. A name in neither has nothing that fits.

    >>> match_names(["a.jpg", "val/b.jpg"], ["x/val/b.jpg", "val/a.jpg", "a.jpg"])
    ({'a.jpg': 'a.jpg', 'val/b.jpg': 'x/val/b.jpg'}, {})
    >>> match_names(["a.jpg", "x/b.jpg", "y/b.jpg"], ["x/a.jpg", "y/a.jpg", "b.jpg"])[1]
    {'a.jpg': "2: 'x/a.jpg', 'y/a.jpg'", 'y/b.jpg': "one for 'x/b.jpg' as well: 'b.jpg'"}

    """
    there, wanted = set(there), dict.fromkeys(wanted)
    found: dict[str, str] = {}
    unclear: dict[str, str] = {}
    called: defaultdict[str, list[str]] = defaultdict(list)  # names by their last part
    for name in sorted(there):
        called[name.rpartition("/")[2]].append(name)
    owner = {name: name for name in wanted if name in there}
    for name in wanted:
        fitting = (
            [name]
            if name in there
            else [
                k
                for k in called[name.rpartition("/")[2]]
                if name.endswith(f"/{k}") or k.endswith(f"/{name}")
            ]
        )
        if len(fitting) > 1:
            more = f" and {len(fitting) - _SHOWN} more" if len(fitting) > _SHOWN else ""
            unclear[name] = f"{len(fitting)}: {', '.join(map(repr, fitting[:_SHOWN]))}{more}"
        elif fitting and owner.setdefault(fitting[0], name) != name:
            unclear[name] = f"one for {owner[fitting[0]]!r} as well: {fitting[0]!r}"
        elif fitting:
            found[name] = fitting[0]
    return found, unclear


def read_features(path: Path, captions: Captions) -> Features:
    """Features of each image, ``[N, D]`` in the order of ``captions.images``, in the type they have in the file.

    With a `names_file` beside it, rows are found by name: the file may have more than are asked for, and names may differ in the folders
    in front (``val2014/a.jpg`` and ``a.jpg``) as long as only one fits. Without it, row i is the i-th image in order of first appearance,
    and there are no other rows. The file is mapped into memory where the rows are asked for as they stand.

    Raises DataError, with file and image, where an image has no features or they are NaN or infinite, and for a file that is no array
    of float16, float32 or float64 with two dimensions.

    """
    features, rows, faults = _match(path, captions)
    if faults:
        refuse(str(faults[0][0]), [fault for _, fault in faults])
    in_place = bool((np.diff(rows) == 1).all())
    return features[rows[0] : rows[-1] + 1] if in_place and len(rows) else features[rows]


def check_features(path: Path, captions: Captions) -> dict[Path, list[Fault]]:
    """Every fault of a features file, and of the file of names beside it if there is one.

    Lines are those of the names.
    """
    try:
        faults = _match(path, captions)[2]
    except _FileError as error:
        return {error.path: [error.fault]}
    except DataError as error:
        return {path: [Fault(0, str(error))]}
    files = [path, names_file(path)] if names_file(path).exists() else [path]
    return {file: [fault for where, fault in faults if where == file] for file in files}


class _FileError(DataError):
    """A file that is of no use at all, of which lists of faults name file and fault apart."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path, self.fault = path, Fault(0, message)


def _parse(
    path: Path, split: Split | None, *, wants_words: bool = False
) -> tuple[Captions, list[Fault]]:
    """What can be read of a file, and what cannot.

    With ``wants_words``, captions without any are faults, and are read all the same.
    """
    if split is not None and not is_json(path):
        expected = (
            f"expected Karpathy's JSON, called .json, for the split {split!r}, got lines, which"
            " have no splits"
        )
        return Captions([], []), [Fault(0, expected)]
    faults: list[Fault] = []
    kinds = "the name of an image", "caption"
    rows = (
        _records(path, split, faults)
        if is_json(path)
        else read_rows(path, kinds, faults, lambda name: _NUMBER.sub("", name))
    )
    found = Captions(
        *gather(_with_words(rows, is_json(path), faults) if wants_words else rows), str(path)
    )
    if not found and not faults:
        faults.append(Fault(0, "no images: expected at least one, with its captions"))
    return found, sorted(faults, key=lambda fault: fault.line)


def _with_words(rows: Iterable[Row], records: bool, faults: list[Fault]) -> Iterator[Row]:
    """The same rows; captions of punctuation alone are added to the faults."""
    for place, image, captions in rows:
        for caption in captions:
            if all(
                character in _NO_WORD or unicodedata.category(character)[0] in "PZ"
                for character in caption
            ):
                message = (
                    f"expected words, got none but punctuation: {caption!r}, a caption of the image"
                    f" {image!r}"
                )
                faults.append(
                    Fault(0, f"record {place}: {message}") if records else Fault(place, message)
                )
        yield place, image, captions


def _records(path: Path, split: Split | None, faults: list[Fault]) -> Iterator[Row]:
    content = read_whole(path)
    try:
        images = _images(parse_json(content, "it"), split)
    except DataError as error:
        faults.append(Fault(getattr(error.__cause__, "lineno", 0), str(error)))
        return
    for number, image in images:
        try:
            yield number, *_captions_of(image, needs_split=split is not None)
        except DataError as error:
            faults.append(Fault(0, f"record {number}: {error}"))


def _images(content: Any, split: Split | None) -> list[tuple[int, Any]]:
    """Records and their numbers: those of the split, and those that do not say theirs."""
    images = content.get("images") if isinstance(content, dict) else None
    if not isinstance(images, list):
        expected = '{"images": [{"filename": …, "sentences": [{"raw": …}, …]}, …]}'
        raise DataError(f'expected Karpathy\'s JSON, {expected}, got no list "images"')
    numbered = list(enumerate(images, start=1))
    if split is None:
        return numbered
    stated = [image.get("split") if isinstance(image, dict) else None for image in images]
    there = {str(name) for name in stated if name is not None}
    if there.isdisjoint(_FILES_SPLITS[split]):
        got = ", ".join(map(repr, sorted(there))) or "no split"
        raise DataError(f"expected images of the split {split!r}, got {got}")
    return [
        pair
        for pair, name in zip(numbered, stated, strict=True)
        if not isinstance(name, str) or name in _FILES_SPLITS[split]
    ]


def _captions_of(image: Any, *, needs_split: bool) -> tuple[str, list[str]]:
    """Name and captions of a record; what is wrong is an error without file and number."""
    if not isinstance(image, dict):
        raise DataError(
            f"expected an object with a filename and sentences, got {json.dumps(image)[:50]}"
        )
    name, split = _name_of(image), image.get("split")
    if needs_split and split is None:
        raise DataError(f"expected a split for the image {name!r}, got none")
    if split is not None and not isinstance(split, str):
        raise DataError(
            f'expected a split such as "train" for the image {name!r}, got {json.dumps(split)[:50]}'
        )
    sentences = image.get("sentences")
    if not isinstance(sentences, list) or not sentences:
        raise DataError(f"expected one or more sentences, got the image {name!r} without a caption")
    captions = [_text_of(sentence) for sentence in sentences]
    if "" in captions:
        raise DataError(
            "expected raw text or tokens in each sentence, got an empty caption of the image"
            f" {name!r}, number {captions.index('') + 1}"
        )
    return name, captions


def _name_of(image: Mapping[str, Any]) -> str:
    """Folder and name of an image."""
    name, folder = image.get("filename"), image.get("filepath") or ""
    if not isinstance(name, str) or not isinstance(folder, str) or not name.strip():
        raise DataError(
            "expected the name of an image under filename, and perhaps its folder under filepath,"
            " got captions without an image"
        )
    name = "/".join(filter(None, (folder.strip().rstrip("/"), name.strip())))
    if _BREAK.search(name):
        raise DataError(f"expected the name of an image on one line and without tabs, got {name!r}")
    return name


def _text_of(sentence: Any) -> str:
    """The caption in one line, "" where there is none."""
    if not isinstance(sentence, dict):
        return ""
    raw, tokens = sentence.get("raw"), sentence.get("tokens")
    if raw is None and isinstance(tokens, list):
        raw = " ".join(map(str, tokens))
    return " ".join(raw.split()) if isinstance(raw, str) else ""


def _match(
    path: Path, captions: Captions
) -> tuple[Features, npt.NDArray[np.int64], list[tuple[Path, Fault]]]:
    """The array of a file, the row of each image (-1 if it has none), and all that is wrong."""
    features = _map(path)
    number_of: dict[str, int] = {}  # where an image stands first
    for number, image in enumerate(captions.images):
        number_of.setdefault(image, number)
    places = {image: f"{image!r} ({captions.place(number)})" for image, number in number_of.items()}
    names = names_file(path)
    if names.exists():
        row_of, faults = _rows_by_name(path, names, len(features), places)
    else:
        row_of, faults = dict(zip(places, range(len(features)), strict=False)), []
        if len(features) != len(places):
            first = next(islice(places.values(), len(features), None), "")
            counted = f"expected {len(places):,} rows, one for each image, got {len(features):,}"
            hint = (
                f"if rows are not the images of the captions one by one, {names} must name them,"
                " one per line"
            )
            message = f"{counted}{f', none for image {first}' if first else ''}; {hint}"
            faults.append((path, Fault(0, message)))
    found = "the features of image {} in row {} are not finite: NaN or infinity"
    faults += [
        (path, Fault(0, found.format(places[image], row_of[image] + 1)))
        for image in _not_finite(features, row_of)
    ]
    rows = np.array([row_of.get(image, -1) for image in captions.images], dtype=np.int64)
    return features, rows, faults


def _map(path: Path) -> Features:
    try:
        # A private map, which can be written to without a change of the file: torch takes no other
        # without a warning.
        features = np.asarray(np.lib.format.open_memmap(path, mode="c"))

    except ARRAY_FAULTS as error:
        why = getattr(error, "strerror", None) or in_one_line(error)
        raise _FileError(
            path,
            f"cannot read it: expected an array of numbers as numpy.save writes it (.npy): {why}",
        ) from error
    if features.ndim != 2 or not features.shape[1]:
        raise _FileError(
            path,
            "expected features [images, size], a row for each image, got an array of shape"
            f" {list(features.shape)}",
        )
    if features.dtype not in _FLOATS:
        raise _FileError(
            path,
            f"expected features as float16, float32 or float64, got {features.dtype.str}: convert"
            " them with astype",
        )
    return features


def _rows_by_name(
    path: Path, names: Path, count: int, places: Mapping[str, str]
) -> tuple[dict[str, int], list[tuple[Path, Fault]]]:
    """The row of each image that has one, by the names of the rows.

    ``places`` are the images with where they stand, for messages.
    """
    rows: dict[str, int] = {}
    faults: list[tuple[Path, Fault]] = []
    lines = [line.strip() for line in read_lines(names)]
    if len(lines) != count:
        raise _FileError(
            names,
            f"expected a name for each of the {count:,} rows of {path}, one per line, got"
            f" {len(lines):,}",
        )
    for line, name in enumerate(lines, start=1):
        if not name:
            message = "expected the name of an image, got an empty line"
            faults.append((names, Fault(line, message)))
        elif rows.setdefault(name, line - 1) != line - 1:
            again = f"got {name!r} again, which is on line {rows[name] + 1}"
            faults.append((names, Fault(line, f"expected each image once, {again}")))
    found, unclear = match_names(places, rows)
    for image, place in places.items():
        if image not in found:
            got = f"got {unclear.get(image, 'none')} in {names}"
            faults.append((path, Fault(0, f"expected one row for image {place}, {got}")))
    return {image: rows[name] for image, name in found.items()}, faults


def _not_finite(features: Features, row_of: Mapping[str, int]) -> Iterator[str]:
    images = list(row_of)
    step = max(1, _CHUNK // features.shape[1])
    for first in range(0, len(images), step):
        part = images[first : first + step]
        finite = np.isfinite(features[[row_of[image] for image in part]])
        yield from (part[number] for number in np.flatnonzero(~finite.all(axis=1)))
