"""Pictures of images for a page: PNG files from pixels, the built-in world's scenes, small copies of photographs."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from softq.lab.report.figures import Picture
from softq.lab.worlds import Scene
from softq.lab.worlds.scene_pictures import render

Array = np.ndarray[Any, Any]

SIDE = 144
"""Pixels along the longer side of a picture: small, for a page holds them all."""

_COLOURS = 256  # most that a palette has


def png(pixels: Array) -> bytes:
    """A PNG file of pixels ``[height, width, 3]``, red, green and blue in 0..255; without loss, by a palette where that is enough.

    >>> png(np.zeros((2, 3, 3), np.uint8))[1:4]
    b'PNG'
    """
    height, width, _ = pixels.shape
    colours, numbers = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    if len(colours) <= _COLOURS:
        kind, extra, plain = (
            3,
            _chunk(b"PLTE", colours.astype(np.uint8).tobytes()),
            numbers.reshape(height, width).astype(np.uint8),
        )
    else:
        kind, extra, plain = 2, b"", pixels.reshape(height, width * 3).astype(np.uint8)
    above = np.vstack([np.zeros_like(plain[:1]), plain[:-1]])
    rows = {0: plain, 2: plain - above}  # PNG's filters "none" and "up"; bytes wrap around
    packed = [
        zlib.compress(np.insert(row, 0, filter_, axis=1).tobytes(), 9)
        for filter_, row in rows.items()
    ]
    head = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + extra
        + _chunk(b"IDAT", min(packed, key=len))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def scene_picture(scene: Scene) -> Picture:
    """A scene of the built-in world."""
    return Picture(png(render(scene, SIDE)), SIDE, SIDE)


def small_copy(folder: Path, name: str) -> Picture | None:
    """A small copy of an image that lies in a folder under its name or the last part of it; None where there is none, or no Pillow."""
    path = next(
        (path for path in (folder / name, folder / Path(name).name) if path.is_file()), None
    )
    if path is None:
        return None
    try:
        from PIL import Image, ImageOps
    except ImportError:
        return None
    try:
        with Image.open(path) as image:
            image.draft(
                "RGB", (2 * SIDE, 2 * SIDE)
            )  # of a large JPEG, decode no more than is of use
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
    ):  # whatever Pillow finds wrong with a file
        return None
    upright.thumbnail((SIDE, SIDE))
    pixels = np.asarray(upright.quantize(_COLOURS).convert("RGB"))
    return Picture(png(pixels), pixels.shape[1], pixels.shape[0])
