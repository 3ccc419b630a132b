"""A file of features, one row per image, that appears under its name only when it is whole.

Until then it is ``.NAME.ABOUT.part``, a memory-mapped array that is filled batch by batch. A row
with NaN in it is not done, so that the same call after a crash, at any moment, resumes where it
was. The names of the images are written to `softq.formats.captions.names_file`.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.format import open_memmap

from softq.errors import DataError, ModelError, RunError
from softq.formats.captions import names_file
from softq.formats.file_checks import ARRAY_FAULTS
from softq.lab.run import write_atomically
from softq.neural.images.encoders import Encoder
from softq.neural.images.pipeline import Encoded, refuse_corrupt, stream

Precision = Literal["float16", "float32"]
Rows = npt.NDArray[Any]

_OTHERS_ARE_DONE = (
    "; all others are done and kept: mend these and call again, or skip them (--skip-corrupt)"
)


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
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Extracted:
    """Write the features of images to ``out`` (.npy), ``[N, D]`` in their order, and their names.

    Called again after it was stopped, it resumes; images that were corrupt, or have been changed
    since, are read again.

    Args:
        images: Files by the names they are to have, as from `find_images`.
        encoder: From `load_encoder`, on the device it is to run on.
        out: The file; an existing one is replaced when the new one is whole.
        precision: Type of the features in the file.
        skip_corrupt: Leave out images that cannot be read. Otherwise they are an error, which names
            all of them, when all others are done.
        batch_size: As of `stream`.
        workers: As of `stream`.
        progress: Called with the number of images that are done, at the start and after each batch.

    """
    if out.suffix != ".npy":
        raise DataError(f"expected a file called .npy for the features, got {out}")
    if not images:
        raise DataError("expected images to encode, got none")
    names, files, done = list(images), list(images.values()), 0
    corrupt: dict[str, str] = {}
    try:
        part, rows = _open_part(out, names, encoder, precision)
        missing = _find_missing(rows, files, part.stat().st_mtime)
        before = done = len(names) - len(missing)
        progress(done)
        to_read = [files[row] for row in missing]
        for batch in stream(to_read, encoder, batch_size=batch_size, workers=workers):
            numbers = missing[done - before :][: len(batch.features)]
            batch_names = [names[row] for row in numbers]
            rows[numbers] = _as_rows(batch, batch_names, rows.dtype)
            corrupt |= {batch_names[place]: why for place, why in batch.corrupt.items()}
            done += len(numbers)
            progress(done)
        kept = [name for name in names if name not in corrupt]
        if not skip_corrupt:
            refuse_corrupt(corrupt, _OTHERS_ARE_DONE)
        if not kept:
            refuse_corrupt(corrupt, "; no other image is left")
        _finish(part, rows, out, kept)
    except OSError as error:
        hint = "; what is done is kept, and the same call resumes" if done else ""
        raise RunError(f"cannot write {out}: {error.strerror or error}{hint}") from error
    return Extracted(kept, encoder.features, corrupt, before)


def _open_part(
    out: Path, names: list[str], encoder: Encoder, precision: Precision
) -> tuple[Path, Rows]:
    """The unfinished file and its rows; a new one has NaN everywhere."""
    shape = (len(names), encoder.features)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    about = f"{encoder.name} {encoder.weights} {precision} {len(names)} images {digest}"
    part = out.with_name(f".{out.name}.{re.sub(r'[^0-9A-Za-z]+', '-', about)}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    for other in out.parent.glob(f".{glob.escape(out.name)}.*.part"):
        if other != part and other.name.count(".") == part.name.count("."):
            raise RunError(
                f"{out} was begun and not finished with other images, another encoder or another "
                f"precision ({other.name}, now {part.name}): finish it with the same ones, choose "
                f"another --out, or delete {other} to begin anew"
            )
    if not part.exists():
        new = part.with_suffix(".new")
        rows = open_memmap(new, "w+", precision, shape)
        with new.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, new.stat().st_size)  # a full disk is an error here
        rows[:] = np.nan
        os.replace(new, part)
    try:
        rows = open_memmap(part, "r")  # which, unlike r+, refuses a file that is too short
        fits = rows.shape == shape and rows.dtype == precision
    except OSError:
        raise
    except ARRAY_FAULTS:
        fits = False
    if not fits:
        raise RunError(
            f"{part} is damaged: expected {shape[0]:,} rows of {shape[1]:,} features in "
            f"{precision}; delete it to begin anew"
        )
    return part, open_memmap(part, "r+")


def _find_missing(rows: Rows, files: Sequence[Path], since: float) -> list[int]:
    """Rows that are not done, or whose file has changed since; these are marked as not done."""
    for row, file in enumerate(files):
        if not file.exists() or file.stat().st_mtime > since:
            rows[row] = np.nan
    return [number for number, row in enumerate(rows) if np.isnan(row).any()]


def _as_rows(batch: Encoded, names: Sequence[str], dtype: np.dtype[Any]) -> Rows:
    """The features of a batch in the file's type; NaN for corrupt images."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is found below
        values = batch.features.astype(dtype)
    values[list(batch.corrupt)] = np.nan
    for place, name in enumerate(names):
        if place not in batch.corrupt and not np.isfinite(values[place]).all():
            fits = np.isfinite(batch.features[place]).all()
            hint = "use --precision float32" if fits else "the encoder cannot be used"
            raise ModelError(
                f"expected finite features of {name}, got NaN or infinity in {dtype}: {hint}"
            )
    return values


def _finish(part: Path, rows: Rows, out: Path, names: Sequence[str]) -> None:
    """Put the file in its place, without rows that are not done, and the names beside it."""
    whole = part
    if len(names) < len(rows):
        whole = part.with_suffix(".whole")
        done = np.array([not np.isnan(row).any() for row in rows])
        kept = open_memmap(whole, "w+", rows.dtype, (len(names), rows.shape[1]))
        np.compress(done, rows, 0, kept)
        kept.flush()
    with whole.open("rb") as file:
        os.fsync(file.fileno())
    out.unlink(missing_ok=True)  # never beside names that are not its own
    write_atomically(names_file(out), "".join(f"{name}\n" for name in names).encode())
    os.replace(whole, out)
    part.unlink(missing_ok=True)
