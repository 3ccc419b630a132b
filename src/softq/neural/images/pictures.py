"""Image files: which there are, and the square of RGB values that an encoder sees of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from softq.errors import DataError, DependencyError
from softq.formats.captions import Captions, match_names

try:
    from PIL import ExifTags, Image, ImageOps
except ImportError as error:
    raise DependencyError(
        "images are read by Pillow, which is not installed: pip install 'softq[images]'"
    ) from error

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"})
# A JPEG is decoded so many times larger than needed, or more: what is seen hardly changes by it.
_SPARE = 2
_SHOWN = 5  # names in a message


def find_images(paths: Sequence[Path]) -> dict[str, Path]:
    """Image files by name: those of folders sorted, by their path below the folder; files as given.

    Folders are searched recursively for .jpg, .jpeg, .png, .gif, .bmp, .webp, .tif and .tiff;
    hidden files and folders are skipped.

    Raises DataError for a path that does not exist, a folder without images, and a name that two
    files have.

    """
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            below = (file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES)
            names = sorted(file.relative_to(path).as_posix() for file in below)
            files = {name: path / name for name in names if "/." not in f"/{name}"}
        elif path.is_file():
            files = {path.name: path}
        else:
            raise DataError(
                f"cannot read {path}: expected an image or a folder of images, and nothing is there"
            )
        if not files:
            suffixes = " ".join(sorted(_SUFFIXES))
            raise DataError(f"{path}: expected a folder with images ({suffixes}), got none in it")
        for name, file in files.items():
            if name in found:
                raise DataError(
                    f"expected each image once, got two that are called {name!r}: {found[name]} "
                    f"and {file}"
                )
            if not name.isprintable():
                raise DataError(
                    f"{str(file)!r}: the name of an image must fit on a line, as it names a row of "
                    "features; rename it"
                )
            found[name] = file
    return found


def images_of_captions(images: Mapping[str, Path], captions: Captions) -> dict[str, Path]:
    """The images that captions name, by these names and in their order, found by `match_names`.

    >>> captions = Captions(["a.jpg"], [["A dog."]])
    >>> images_of_captions({"2014/a.jpg": Path("x/2014/a.jpg"), "b.jpg": Path("x/b.jpg")}, captions)
    {'a.jpg': PosixPath('x/2014/a.jpg')}
    """
    found, unclear = match_names(captions.images, images)
    missing = []
    for number, wanted in enumerate(captions.images):
        place = f"{wanted!r} ({captions.place(number)})"
        if wanted in unclear:
            raise DataError(f"expected one image {place}, got {unclear[wanted]}")
        if wanted not in found:
            missing.append(place)
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise DataError(
            f"expected an image for each name, got none for {', '.join(missing[:_SHOWN])}{more}"
        )
    return {wanted: images[name] for wanted, name in found.items()}


def read_picture(file: Path, size: int, crop: float, interpolation: str) -> npt.NDArray[np.uint8]:
    """The middle of the image in a file as RGB, ``[size, size, 3]``.

    Args:
        file: Anything that Pillow reads; of several frames the first.
        size: Pixels along a side of the result.
        crop: Side of the square in the middle that is seen, as a share of the image's shorter side.
        interpolation: How pixels are weighted: ``bilinear``, ``bicubic`` or another of Pillow's.
            Where an image shrinks, all of its pixels count.

    """
    enough = _SPARE * round(size / crop)
    with Image.open(file) as image:
        if min(image.size) >= 2 * enough:
            image.draft("RGB", (enough, enough))  # of JPEGs: decode at half the size or less
        image.load()  # which turns some formats upright; others say in EXIF how to do it
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        rgb = _as_rgb(image)
        width, height = rgb.size
        side = crop * min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        seen = rgb.resize((size, size), Image.Resampling[interpolation.upper()], box)
        seen.getexif()[ExifTags.Base.Orientation] = orientation
        # last: the middle is the middle however it turns
        ImageOps.exif_transpose(seen, in_place=True)
        return np.array(seen)


def _as_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: 16 bits become 8, and transparent pixels are seen before white."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")
