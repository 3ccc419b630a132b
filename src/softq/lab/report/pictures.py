"""Small pictures of images for a page: the built-in world's scenes, and thumbnails of photographs.

Matplotlib brings Pillow along.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, NamedTuple

from softq.lab.worlds import Scene
from softq.lab.worlds.scene_pictures import render

SIDE = 144
"""Pixels along the longer side of a picture: small, for a page holds them all."""


class Picture(NamedTuple):
    """A picture as a file of this kind ("png", "jpeg"), and its size in CSS pixels."""

    content: bytes
    kind: str
    width: int
    height: int


def scene_picture(name: str) -> Picture | None:
    """A scene of the built-in world by its name; None without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return None
    # few colours: as a palette it is small, and without loss
    return _save(Image.fromarray(render(Scene.from_name(name), SIDE)).quantize(256), "png")


def thumbnail(folder: str, name: str) -> Picture | None:
    """A small copy of an image in a folder, under its name or the last part of it.

    None where there is none, or no Pillow, or no ``folder``.
    """
    found = [path for path in (Path(folder, name), Path(folder, Path(name).name)) if path.is_file()]
    try:
        from PIL import Image, ImageOps
    except ImportError:
        return None
    if not folder or not found:
        return None
    # whatever Pillow finds wrong with a file
    wrong = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
    try:
        with Image.open(found[0]) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))  # decode no more of a large JPEG than needed
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except wrong:
        return None
    upright.thumbnail((SIDE, SIDE))
    return _save(upright, "jpeg", quality=80)


def _save(image: Any, kind: str, **options: Any) -> Picture:
    buffer = io.BytesIO()
    image.save(buffer, kind, optimize=True, **options)
    return Picture(buffer.getvalue(), kind, *image.size)
