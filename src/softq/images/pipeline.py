"""Pictures decoded in threads ahead of the encoder, so that neither waits for the other.

Threads write what they decode into batches that stand ready (page-locked, where there is a GPU), a few images at a time. While they fill
the next ones, the encoder works on the last; its results are fetched only after the next batch is on its way.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from softq.errors import DataError
from softq.images.encoders import Encoder
from softq.images.pictures import read_picture

_AT_A_TIME = 8  # images of a task: fewer cost more in handing over, more leave threads idle at the end
_BATCHES = 4  # one in the encoder, one whose results are fetched, two that are filled


class Encoded(NamedTuple):
    """A batch of images.

    Attributes:
        features: float32 ``[B, D]``; rows of corrupt images mean nothing.
        corrupt: Why the image in a row cannot be read.

    """

    features: npt.NDArray[np.float32]
    corrupt: dict[int, str]


class _Batch(NamedTuple):
    """Images that are being decoded, ``[B, 3, size, size]``."""

    pixels: Tensor
    tasks: list[Future[dict[int, str]]]


def stream(files: Sequence[Path], encoder: Encoder, *, batch_size: int | None = None, threads: int | None = None) -> Iterator[Encoded]:
    """Features of images, batch after batch, in their order.

    Args:
        files: The images.
        encoder: On the device it is to run on.
        batch_size: Images that are encoded together; 256 on a GPU and 32 on a CPU if None.
        threads: That decode; one for each core if None.

    """
    on_gpu = encoder.device.type == "cuda"
    size = batch_size or (256 if on_gpu else 32)
    batches = [files[first : first + size] for first in range(0, len(files), size)]
    shape = (min(size, len(files)), encoder.size, encoder.size, 3)
    spare = deque(torch.empty(shape, dtype=torch.uint8, pin_memory=on_gpu) for _ in batches[:_BATCHES])
    waiting = iter(batches)
    pool = ThreadPoolExecutor(threads or len(os.sched_getaffinity(0)), thread_name_prefix="softq-images")
    filled: deque[tuple[Tensor, _Batch]] = deque()
    under_way: tuple[Tensor, dict[int, str], Tensor] | None = None  # room, corrupt images, features

    def fill() -> None:
        while spare and (part := next(waiting, None)) is not None:
            room = spare.popleft()
            filled.append((room, _decode(part, room, encoder, pool)))

    try:
        fill()
        while filled:
            room, batch = filled.popleft()
            corrupt = {row: why for task in batch.tasks for row, why in task.result().items()}
            found = encoder(batch.pixels)
            if under_way is not None:
                yield Encoded(under_way[2].cpu().numpy(), under_way[1])
                spare.append(under_way[0])
            under_way = room, corrupt, found
            fill()
        if under_way is not None:
            yield Encoded(under_way[2].cpu().numpy(), under_way[1])
    finally:
        pool.shutdown(cancel_futures=True)


def _decode(files: Sequence[Path], room: Tensor, encoder: Encoder, pool: ThreadPoolExecutor) -> _Batch:
    """Have threads write images into ``room [B, size, size, 3]``, which as ``[B, 3, size, size]`` is what torch calls channels last."""
    rows: npt.NDArray[np.uint8] = room.numpy()

    def read(first: int) -> dict[int, str]:
        corrupt = {}
        for row, file in enumerate(files[first : first + _AT_A_TIME], start=first):
            try:
                rows[row] = read_picture(file, encoder.size, encoder.crop, encoder.interpolation)
            except Exception as error:  # damaged files make Pillow raise all kinds
                rows[row] = 0  # not what was there before, which may be another's image
                corrupt[row] = _reason(error)
        return corrupt

    tasks = [pool.submit(read, first) for first in range(0, len(files), _AT_A_TIME)]
    return _Batch(room[: len(files)].permute(0, 3, 1, 2), tasks)


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def encode(
    files: Sequence[Path],
    encoder: Encoder,
    *,
    batch_size: int | None = None,
    threads: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> npt.NDArray[np.float32]:
    """Features of images in memory, ``[N, D]``; ``progress`` is told how many images are done. Raises DataError where any is corrupt."""
    found = np.empty((len(files), encoder.features), dtype=np.float32)
    corrupt: dict[str, str] = {}
    done = 0
    for batch in stream(files, encoder, batch_size=batch_size, threads=threads):
        found[done : done + len(batch.features)] = batch.features
        corrupt |= {str(files[done + row]): why for row, why in batch.corrupt.items()}
        done += len(batch.features)
        progress(done)
    refuse_corrupt(corrupt)
    return found


def refuse_corrupt(corrupt: dict[str, str], hint: str = "") -> None:
    """An error that names all corrupt images and why they cannot be read, if there are any."""
    if corrupt:
        named = "; ".join(f"{name} ({why})" for name, why in corrupt.items())
        raise DataError(f"{len(corrupt)} image{'s' if len(corrupt) > 1 else ''} cannot be read: {named}{hint}")
