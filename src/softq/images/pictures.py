"""Files of images: which there are, and the square of RGB values that an encoder sees of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from softq.data.captions import Captions, match_names
from softq.errors import DataError, DependencyError

try:
    from PIL import Image
except ImportError as error:
    raise DependencyError("images are read by Pillow, which is not installed: pip install 'softq[images]'") from error

Interpolation = Literal["bilinear", "bicubic"]

_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"})
_ORIENTATION = 0x0112  # the tag of EXIF that says how the camera was held
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_SPARE = 2  # a JPEG is decoded this many times larger than needed, or more, so that what is seen hardly depends on the decoder's shortcut
_SHOWN = 5  # names in a message


def find_images(paths: Sequence[Path]) -> dict[str, Path]:
    """Files of images by name: those of folders sorted, each called by its path below the folder, and files as given, by their names.

    Folders are searched to the bottom for .jpg, .jpeg, .png, .gif, .bmp, .webp, .tif and .tiff; what begins with a dot is passed over.

    Raises DataError for a path that is not there, a folder without images, and a name that two files have.

    """
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            below = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.suffix.lower() in _SUFFIXES}
            files = {name: below[name] for name in sorted(below) if not any(part.startswith(".") for part in name.split("/"))}
            if not files:
                raise DataError(f"{path}: expected a folder with images ({' '.join(sorted(_SUFFIXES))}), got none in it")
        elif path.is_file():
            files = {path.name: path}
        else:
            raise DataError(f"cannot read {path}: expected an image or a folder of images, and nothing is there")
        for name, file in files.items():
            if name in found:
                raise DataError(f"expected each image once, got two that are called {name!r}: {found[name]} and {file}")
            found[name] = file
    for name, file in found.items():
        if not name.isprintable():
            raise DataError(f"{str(file)!r}: the name of an image must fit on a line, as it names a row of features; rename it")
    return found


def images_of_captions(images: Mapping[str, Path], captions: Captions) -> dict[str, Path]:
    """The images that captions name, in their order and by their names, as `match_names` finds them.

    >>> images_of_captions({"2014/a.jpg": Path("x/2014/a.jpg"), "b.jpg": Path("x/b.jpg")}, Captions(["a.jpg"], [["A dog."]]))
    {'a.jpg': PosixPath('x/2014/a.jpg')}
    """
    found, unclear = match_names(captions.images, images)
    missing = []
    for number, wanted in enumerate(captions.images):
        if wanted in unclear:
            raise DataError(f"expected one image {wanted!r} ({captions.place(number)}), got {unclear[wanted]}")
        if wanted not in found:
            missing.append(f"{wanted!r} ({captions.place(number)})")
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise DataError(f"expected an image for each name, got none for {', '.join(missing[:_SHOWN])}{more}")
    return {wanted: images[name] for wanted, name in found.items()}


def read_picture(file: Path, size: int, crop: float, interpolation: Interpolation) -> npt.NDArray[np.uint8]:
    """The middle of the image in a file as RGB, ``[size, size, 3]``, not to be written to.

    Args:
        file: Anything that Pillow reads; of several frames the first.
        size: Pixels along a side of what is wanted.
        crop: Side of the square in the middle that is seen, as a share of the image's shorter side.
        interpolation: How pixels are weighted. Where an image shrinks, all of its pixels count.

    """
    enough = _SPARE * round(size / crop)
    with Image.open(file) as image:
        if min(image.size) >= 2 * enough:
            image.draft("RGB", (enough, enough))  # of JPEGs: decode at half the size or less
        return square(image, size, crop, interpolation, image.getexif().get(_ORIENTATION))


def square(image: Image.Image, size: int, crop: float, interpolation: Interpolation, orientation: Any = None) -> npt.NDArray[np.uint8]:
    """The same of an image in memory. Turning comes last, as the middle of an image is the same however it is turned."""
    image = _as_rgb(image)
    width, height = image.size
    side = crop * min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    seen = image.resize((size, size), _RESAMPLING[interpolation], box=(left, top, left + side, top + side))
    if orientation in _UPRIGHT:
        seen = seen.transpose(_UPRIGHT[orientation])
    return np.frombuffer(seen.tobytes(), dtype=np.uint8).reshape(size, size, 3)


def _as_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: 16 bits become 8, and what is transparent is seen before white."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")
