"""What `softq predict` does with a captioner: a caption for every row of a file of features, or for every image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from softq.cli.data_features import progress_of_images
from softq.cli.predict_sentences import FileWriter, Searching
from softq.errors import DataError
from softq.formats.captions import Captions, Features, names_file, read_features
from softq.formats.text import read_lines
from softq.lab.loop import Watcher
from softq.lab.processes import find_device
from softq.neural.generation import GeneratedText

_AT_A_TIME = 1000  # images
_FEATURES = ".npy"


class FileCaptioner(FileWriter):
    """A captioner and how it searches."""

    @classmethod
    def load(cls, path: Path, searching: Searching) -> FileCaptioner:
        """The best model of a run folder, or that of a file; on a GPU if there is one."""
        return cls.read(path, "captioner", searching)

    def check(self, size: int, where: str) -> None:
        """An error if features are not of the size that the model was trained on."""
        expected = self.model.inputs
        if size != expected:
            of = f" of {self.model.encoder}" if self.model.encoder else ""
            raise DataError(
                f"{where}: expected features{of} with {expected} numbers for each image, as {self.path} learnt from, got {size}"
            )

    def caption(self, features: Features, watcher: Watcher) -> Iterator[list[GeneratedText]]:
        """Captions of images with these features ``[N, D]``, which follow those of the calls before, some at a time."""
        watcher.begin(len(features), 0)
        for first in range(0, len(features), _AT_A_TIME):
            some = features[first : first + _AT_A_TIME]
            yield self.model.generate(some, **self.options_for(len(some)))
            watcher.advance(len(some), "")


class _Pictured(NamedTuple):
    """Features of images, ``[N, D]``, and what the images are called; None if nobody says."""

    features: Features
    names: list[str] | None
    where: str


def _read_all(
    model: FileCaptioner, files: Sequence[Path], watch: Callable[..., Watcher]
) -> list[_Pictured]:
    """Features of files (.npy), or of images and folders of images, all of them and checked before anything is said of one."""
    of_features = [path.suffix == _FEATURES for path in files]
    if all(of_features):
        found = [_read_table(path) for path in files]
        named = {one.names is not None for one in found}
        if len(named) > 1:
            lacking = next(one.where for one in found if one.names is None)
            raise DataError(
                f"expected names of images beside all files of features or none, got no {names_file(Path(lacking))}"
            )
        for one in found:
            model.check(one.features.shape[1], one.where)
        return found
    if any(of_features):
        raise DataError(
            f"expected files of features ({_FEATURES}) or images, got both: caption them one after the other"
        )
    if files == [Path("-")]:
        raise DataError(
            f"{model.path} is a captioner, which reads no text: name a file of features ({_FEATURES}), images, or a folder of them"
        )
    return [_encode(model, files, watch)]


def _read_table(path: Path) -> _Pictured:
    names = (
        [line.strip() for line in read_lines(names_file(path))]
        if names_file(path).exists()
        else None
    )
    called = (
        names
        if names is not None
        else [f"row {number}" for number in range(1, _count_rows(path) + 1)]
    )
    return _Pictured(read_features(path, Captions(called, [[] for _ in called])), names, str(path))


def _count_rows(path: Path) -> int:
    """How many rows an array has; 0 of what is none, which whoever reads it next will say."""
    try:
        return len(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError, EOFError, TypeError):
        return 0


def _encode(
    model: FileCaptioner, files: Sequence[Path], watch: Callable[..., Watcher]
) -> _Pictured:
    """Features by the encoder that the captioner learnt from."""
    name = model.model.encoder
    if not name:
        raise DataError(
            f"{model.path} does not know what made the features it learnt from, so it cannot see images: "
            f"encode them with softq data features, and name the file ({_FEATURES})"
        )
    from softq.neural.images import encode, find_images, load_encoder

    images = find_images(files)
    encoder = load_encoder(name).to(find_device("auto"))
    model.check(encoder.features, name)
    progress = progress_of_images(watch("encoding", unit="images"), len(images))
    progress(0)
    return _Pictured(
        encode(list(images.values()), encoder, progress=progress), list(images), "images"
    )


def write_captions(
    model: FileCaptioner,
    files: Sequence[Path],
    target: IO[bytes],
    watch: Callable[..., Watcher],
    *,
    probabilities: bool,
    at_once: bool,
) -> dict[str, int]:
    """Write a line for each image, with its name and a tab in front if it has one; how much it was."""
    counts = {"files": len(files), "sentences": 0, "tokens": 0}
    for features, names, where in _read_all(model, files, watch):
        called = iter(names or ())
        for found in model.caption(features, watch(where, unit="images")):
            for said in found:
                columns = [next(called)] if names is not None else []
                columns += [said.text, f"{said.log_prob:.4f}"] if probabilities else [said.text]
                target.write(("\t".join(columns) + "\n").encode())
            if at_once:
                target.flush()
            counts["sentences"] += len(found)
            counts["tokens"] += sum(len(said.words) for said in found)
    return counts
