"""Images decoded by worker processes ahead of the encoder, so that neither waits for the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from softq.errors import DataError
from softq.neural.images.encoders import Encoder
from softq.neural.images.pictures import read_picture


class Encoded(NamedTuple):
    """A batch of images.

    Attributes:
        features: float32 ``[B, D]``; rows of corrupt images mean nothing.
        corrupt: Why the image in a row cannot be read.

    """

    features: npt.NDArray[np.float32]
    corrupt: dict[int, str]


class _Pictures(Dataset[tuple[Tensor, str]]):
    """Pixels of image files, uint8 ``[size, size, 3]``, and why they cannot be read, if so."""

    def __init__(self, files: Sequence[Path], encoder: Encoder) -> None:
        self._files = files
        self._view = encoder.size, encoder.crop, encoder.interpolation

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, row: int) -> tuple[Tensor, str]:
        try:
            return torch.from_numpy(read_picture(self._files[row], *self._view)), ""
        except Exception as error:  # damaged files make Pillow raise all kinds
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())
            size = self._view[0]
            return torch.zeros(size, size, 3, dtype=torch.uint8), reason or type(error).__name__


def stream(
    files: Sequence[Path],
    encoder: Encoder,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
) -> Iterator[Encoded]:
    """Features of images, batch after batch, in their order.

    Args:
        files: The images.
        encoder: On the device it is to run on.
        batch_size: Images that are encoded together; 256 on a GPU and 32 on a CPU if None.
        workers: Processes that decode; 0 for none, and one for each core, at most one for each
            batch but the first, if None.

    """
    on_gpu = encoder.device.type == "cuda"
    batch_size = batch_size or (256 if on_gpu else 32)
    if workers is None:
        workers = min(len(os.sched_getaffinity(0)), max(0, len(files) - 1) // batch_size)
    loader = DataLoader(
        _Pictures(files, encoder), batch_size, num_workers=workers, pin_memory=on_gpu
    )
    for pixels, reasons in loader:
        # [B, size, size, 3] as [B, 3, size, size] is what torch calls channels last.
        features = encoder(pixels.permute(0, 3, 1, 2)).cpu().numpy()
        yield Encoded(features, {row: why for row, why in enumerate(reasons) if why})


def encode(
    files: Sequence[Path],
    encoder: Encoder,
    *,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> npt.NDArray[np.float32]:
    """Features of images in memory, ``[N, D]``; raises DataError where any image is corrupt.

    After each batch ``progress`` is called with the number of images that are done.
    """
    found = np.empty((len(files), encoder.features), dtype=np.float32)
    corrupt: dict[str, str] = {}
    done = 0
    for batch in stream(files, encoder, batch_size=batch_size, workers=workers):
        found[done : done + len(batch.features)] = batch.features
        corrupt |= {str(files[done + row]): why for row, why in batch.corrupt.items()}
        done += len(batch.features)
        progress(done)
    refuse_corrupt(corrupt)
    return found


def refuse_corrupt(corrupt: dict[str, str], hint: str = "") -> None:
    """Raise an error that names all corrupt images, if any, and why they cannot be read."""
    if corrupt:
        named = "; ".join(f"{name} ({why})" for name, why in corrupt.items())
        count = f"{len(corrupt)} image{'s' if len(corrupt) > 1 else ''}"
        raise DataError(f"{count} cannot be read: {named}{hint}")
