"""A file of features, a row for each image, that is there under its name only when it is whole.

Until then rows stand beside it in ``.NAME.part``, and ``.NAME.part.json`` says what it is to be and which rows are done; the same call
after a crash goes on from there. The names of the images are written to `softq.data.captions.names_file`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from softq.data.captions import names_file
from softq.errors import DataError, ModelError, RunError
from softq.images.encoders import Encoder
from softq.images.pipeline import refuse_corrupt, stream
from softq.run import as_json, read_json, write_atomically

Precision = Literal["float16", "float32"]

_SECONDS = 5.0  # between two notes of what is done: as much is lost by a crash


class Extracted(NamedTuple):
    """What is in a file of features.

    Attributes:
        names: Of the images, one for each row.
        features: Length of a row.
        skipped: Corrupt images, which have no row, and why they cannot be read.
        before: Images that an earlier call, which did not end, had done.

    """

    names: list[str]
    features: int
    skipped: dict[str, str]
    before: int


def extract(
    images: Mapping[str, Path],
    encoder: Encoder,
    out: Path,
    *,
    precision: Precision = "float16",
    skip_corrupt: bool = False,
    batch_size: int | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Extracted:
    """Write the features of images to ``out`` (.npy), ``[N, D]`` in their order, and their names beside it.

    Called again after it was stopped, it goes on where it was; images that were corrupt, or have been written to since, are read again.

    Args:
        images: Files by the names they are to have, as from `find_images`.
        encoder: From `load_encoder`, on the device it is to run on.
        out: The file; if there is one already it is replaced when the new one is whole.
        precision: Of the numbers in the file.
        skip_corrupt: Leave out images that cannot be read, which are an error else: one that names them all, when all others are done.
        batch_size: As of `stream`.
        threads: As of `stream`.
        progress: Is told how many images are done, once at the start and after each batch.

    """
    if out.suffix != ".npy":
        raise DataError(f"expected a file called .npy for the features, got {out}")
    if not images:
        raise DataError("expected images to encode, got none")
    names = list(images)
    rows: _Rows | None = None
    try:
        with _Rows.open(out, names, encoder, precision) as rows:
            before = _encode_missing(rows, images, encoder, batch_size, threads, progress)
            corrupt = {names[row]: why for row, why in sorted(rows.corrupt.items())}
            kept = [name for name in names if name not in corrupt]
            if not skip_corrupt:
                refuse_corrupt(corrupt, "; all others are done and kept: mend these and call again, or skip them (--skip-corrupt)")
            if not kept:
                refuse_corrupt(corrupt, "; no other image is left")
            rows.finish(out, kept)
    except OSError as error:
        kept_rows = "; what is done is kept, and the same call goes on with it" if rows is not None and rows.noted else ""
        raise RunError(f"cannot write {out}: {error.strerror or error}{kept_rows}") from error
    return Extracted(kept, encoder.features, corrupt, before)


def _encode_missing(
    rows: _Rows,
    images: Mapping[str, Path],
    encoder: Encoder,
    batch_size: int | None,
    threads: int | None,
    progress: Callable[[int], None],
) -> int:
    """Fill the rows that lack features; how many had them before."""
    names, files = list(images), list(images.values())
    missing = rows.missing(files)
    before = done = len(files) - len(missing)
    progress(done)
    noted = time.monotonic()
    for batch in stream([files[row] for row in missing], encoder, batch_size=batch_size, threads=threads):
        numbers = missing[done - before :][: len(batch.features)]
        with np.errstate(over="ignore"):  # what is too large becomes infinite, which is found below
            values = batch.features.astype(rows.dtype)
        for place in np.flatnonzero(~np.isfinite(values).all(axis=1)):
            if place not in batch.corrupt:
                hint = "use --precision float32" if np.isfinite(batch.features[place]).all() else "the encoder cannot be used"
                raise ModelError(f"expected finite features of {names[numbers[place]]}, got NaN or infinity in {rows.dtype}: {hint}")
        rows.put(numbers, values, batch.corrupt)
        done += len(numbers)
        progress(done)
        if time.monotonic() - noted > _SECONDS:
            rows.note()
            noted = time.monotonic()
    rows.note()
    return before


@dataclass
class _Rows:
    """The unfinished file: rows of numbers and nothing else, written where they belong."""

    file: BinaryIO
    notes: Path
    about: dict[str, Any]  # what the file is to be
    done: int = 0  # so many rows from the first one have features, except those of corrupt images
    corrupt: dict[int, str] = field(default_factory=dict)
    noted: int = 0  # how many were done at the last note: these outlast a stop

    @classmethod
    @contextmanager
    def open(cls, out: Path, names: list[str], encoder: Encoder, precision: Precision) -> Iterator[_Rows]:
        """Begin, or go on."""
        part, notes = out.with_name(f".{out.name}.part"), out.with_name(f".{out.name}.part.json")
        about: dict[str, Any] = {
            "encoder": encoder.name,
            "weights": encoder.weights,
            "features": encoder.features,
            "precision": precision,
            "images": len(names),
            "names": hashlib.sha256("\n".join(names).encode()).hexdigest()[:16],
        }
        out.parent.mkdir(parents=True, exist_ok=True)
        if not (part.exists() and notes.exists()):
            with part.open("w+b") as file:
                yield cls(file, notes, about)
            return
        kept = _check_notes(notes, read_json(notes))
        differing = [f"{key} {kept['about'].get(key)}, now {value}" for key, value in about.items() if kept["about"].get(key) != value]
        if differing:
            raise RunError(
                f"{out} was begun and not finished with other images or another encoder ({'; '.join(differing)}): "
                f"finish it with the same ones, choose another --out, or delete {notes} to begin anew"
            )
        with part.open("r+b") as file:
            rows = cls(file, notes, about, kept["done"], {int(row): why for row, why in kept["corrupt"].items()}, kept["done"])
            rows.check_size(part.stat().st_size)
            yield rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a number."""
        return np.dtype(str(self.about["precision"]))

    @property
    def row_bytes(self) -> int:
        """Of a row."""
        return int(self.about["features"]) * self.dtype.itemsize

    def check_size(self, size: int) -> None:
        """An error if a file of so many bytes has not all rows that are done."""
        if size < self.done * self.row_bytes:
            raise RunError(
                f"{self.file.name} is damaged: expected {self.done * self.row_bytes:,} bytes or more of {self.done:,} rows that are done, "
                f"got {size:,}; delete it to begin anew"
            )

    def missing(self, files: list[Path]) -> list[int]:
        """Rows that are to be filled: corrupt ones, those of files that have changed since, and all that were not reached."""
        if self.done:
            since = self.notes.stat().st_mtime
            for row, path in enumerate(files[: self.done]):
                if row not in self.corrupt and (not path.exists() or path.stat().st_mtime > since):
                    self.corrupt[row] = "it has changed and was not read again"  # until it is: a note of it outlasts another stop
        return [*sorted(self.corrupt), *range(self.done, len(files))]

    def put(self, numbers: Sequence[int], values: npt.NDArray[Any], corrupt: Mapping[int, str]) -> None:
        """Fill rows; what is there of a corrupt image is left out in the end."""
        for place, (row, value) in enumerate(zip(numbers, values, strict=True)):
            self.file.seek(row * value.nbytes)
            self.file.write(value.tobytes())
            self.corrupt.pop(row, None)
            if place in corrupt:
                self.corrupt[row] = corrupt[place]
        self.done = max(self.done, numbers[-1] + 1)

    def note(self) -> None:
        """Bring the rows to the disk, and then what is done."""
        self.file.flush()
        os.fsync(self.file.fileno())
        write_atomically(self.notes, as_json({"about": self.about, "done": self.done, "corrupt": self.corrupt}).encode())
        self.noted = self.done

    def finish(self, out: Path, names: Sequence[str]) -> None:
        """Put the file in its place, with the names beside it and without the rows of corrupt images."""
        whole = out.with_name(f".{out.name}.whole")
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (len(names), self.about["features"])}
        with whole.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for row in range(self.done):
                self.file.seek(row * self.row_bytes)
                content = self.file.read(self.row_bytes)
                if len(content) < self.row_bytes:
                    self.check_size(row * self.row_bytes + len(content))
                if row not in self.corrupt:
                    file.write(content)
            file.flush()
            os.fsync(file.fileno())
        out.unlink(missing_ok=True)  # never beside names that are not its own
        write_atomically(names_file(out), "".join(f"{name}\n" for name in names).encode())
        os.replace(whole, out)
        self.notes.unlink()
        Path(self.file.name).unlink()


def _check_notes(path: Path, notes: Any) -> dict[str, Any]:
    """Notes as `_Rows.note` writes them; an error that names their file where they are something else."""
    found = notes if isinstance(notes, dict) else {}
    about, done, corrupt = (found.get(key) for key in ("about", "done", "corrupt"))
    if not (
        isinstance(about, dict)
        and isinstance(done, int)
        and isinstance(about.get("images"), int)
        and 0 <= done <= about["images"]
        and isinstance(corrupt, dict)
        and all(row.isdecimal() and int(row) < done for row in corrupt)
    ):
        raise RunError(
            f"{path} is damaged: expected notes of what is done of a file of features, got something else; delete it to begin anew"
        )
    return found
