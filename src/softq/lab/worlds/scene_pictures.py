"""Pictures of the scenes of `softq.lab.worlds.scenes`, and a small fixed encoder for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from softq.errors import DataError
from softq.lab.worlds.scenes import Scene, SceneWorld

Bytes: TypeAlias = npt.NDArray[np.uint8]
Array: TypeAlias = npt.NDArray[Any]

FEATURES = 128
"""Number of features that `scene_features` extracts from an image."""

_PAINTS = {
    "red": (214, 48, 49),
    "yellow": (250, 211, 60),
    "green": (58, 158, 80),
    "blue": (45, 110, 205),
    "purple": (130, 70, 165),
    "black": (45, 52, 60),
}
_BACKGROUNDS = ((246, 243, 236), (238, 243, 247), (242, 246, 239), (245, 240, 244))
_OUTLINE, _SHADE = 0.1, 0.75  # width of a border as a share of the radius, and its brightness

# In shares of the picture's side.
_CENTRES = {  # (x, y) of the first and the second thing
    "above": ((0.4, 0.27), (0.6, 0.73)),
    "left": ((0.27, 0.4), (0.73, 0.6)),
}
_RADII = {"small": 0.13, "big": 0.205}
_REACH = 1.3  # radii within which every shape lies
_SHIFT, _STRETCH, _TURN = 0.025, 0.06, 0.1  # the most that jitter changes centres, radii, radians

# The encoder.
_SIDE = 48  # pixels, to which images are resized
_CELLS, _EDGE_CELLS = 2, 8  # along each side of the grids on which it pools responses, and edges
_NEAR = 0.3  # distance from a paint, colours in 0..1, at which a pixel no longer looks like it
_FAINT = 0.05  # strength of an edge that counts half
_STANDARD = 200  # scenes by which features are standardised
_LEAST = 0.05  # added to standard deviations
_BATCH = 128


def render(scene: Scene, size: int = 96) -> Bytes:
    """The picture of a scene: ``[size, size, 3]``, red, green and blue in 0..255.

    >>> picture = render(Scene.from_name("small-red-circle_above_big-blue-square_17.png"), 48)
    >>> picture.shape, picture[13, 19].tolist(), picture[35, 29].tolist()
    ((48, 48, 3), [214, 48, 49], [45, 110, 205])
    """
    if size < 8:
        raise DataError(f"expected pictures of 8 pixels a side or more, got {size}")
    rng = np.random.default_rng([scene.jitter, *b"picture"])
    background = _BACKGROUNDS[int(rng.integers(len(_BACKGROUNDS)))]
    picture = np.full((size, size, 3), background, dtype=np.float64)
    shifts = rng.uniform(-_SHIFT, _SHIFT, (2, 2))
    stretches = rng.uniform(1 - _STRETCH, 1 + _STRETCH, 2)
    angles = rng.uniform(-_TURN, _TURN, 2)
    for number, thing in enumerate((scene.first, scene.second)):
        centre = _CENTRES[scene.relation][number] + shifts[number]
        radius = _RADII[thing.size] * stretches[number]
        _paint(picture, thing.shape, _PAINTS[thing.colour], centre, radius, angles[number])
    return np.rint(picture).astype(np.uint8)


def _paint(
    picture: Array, shape: str, paint: tuple[int, ...], centre: Array, radius: float, angle: float
) -> None:
    """Mix a shape into a picture of side 1; pixels on its outline are covered in part."""
    size = len(picture)
    begin = np.maximum(0, ((centre - _REACH * radius) * size).astype(int))
    end = np.minimum(size, ((centre + _REACH * radius) * size).astype(int) + 1)
    x, y = (
        ((np.arange(*limits) + 0.5) / size - middle) / radius
        for middle, *limits in zip(centre, begin, end, strict=True)
    )
    cosine, sine = np.cos(angle), np.sin(angle)
    depth = _DEPTHS[shape](cosine * x + sine * y[:, None], cosine * y[:, None] - sine * x)  # [h, w]
    covered, filled = (
        ((depth - limit) * radius * size + 0.5).clip(0, 1)[..., None] for limit in (0, _OUTLINE)
    )
    window = picture[begin[1] : end[1], begin[0] : end[0]]
    window *= 1 - covered
    window += np.array(paint) * (_SHADE * covered + (1 - _SHADE) * filled)


def _star(x: Array, y: Array) -> Any:
    """Five points: in each of ten sectors, below the line from a point to the notch beside it."""
    sector, tip, notch = 2 * np.pi / 5, 1.12, 0.5
    angle = abs((np.arctan2(x, -y) + sector / 2) % sector - sector / 2)  # from the nearest point
    normal = np.array([notch * np.sin(sector / 2), tip - notch * np.cos(sector / 2)])
    normal /= np.linalg.norm(normal)
    along = np.cos(angle) * normal[0] + np.sin(angle) * normal[1]
    return normal[0] * tip - np.hypot(x, y) * along


def _heart(x: Array, y: Array) -> Any:
    """A square on its corner, and discs on its upper sides."""
    half, y = 0.85, y - 0.1
    disc = half / np.sqrt(2) - np.hypot(abs(x) - half / 2, y + half / 2)
    return np.maximum(disc, (half - abs(x) - abs(y)) / np.sqrt(2))


# How deep a point lies in a shape of radius 1: at most and about its distance from the outline,
# negative outside. y points downward. The triangle is equilateral, and a little below the middle,
# where it looks centred.
_DEPTHS: dict[str, Callable[[Array, Array], Any]] = {
    "circle": lambda x, y: 1 - np.hypot(x, y),
    "square": lambda x, y: 0.86 - np.maximum(abs(x), abs(y)),
    "triangle": lambda x, y: 0.6 - np.maximum(y - 0.12, (np.sqrt(3) * abs(x) - y + 0.12) / 2),
    "star": _star,
    "heart": _heart,
}


def scene_features(images: Bytes) -> npt.NDArray[np.float32]:
    """Features of images by a small fixed encoder, ``[N, FEATURES]``, that tell scenes linearly.

    Images are resized to 48 × 48 pixels and filtered by what the world consists of: how near each
    pixel is to each of its paints, and how well the edges around it agree with the outline of each
    of its shapes in each of its sizes (squared, so that the best agreement stands out), of which
    the maxima in each quarter of the picture are taken; and how strong edges are, pooled on a grid
    of 8 × 8. All are standardised by their means and standard deviations over scenes of a fixed
    seed.

    Args:
        images: ``[N, H, W, 3]``, red, green and blue in 0..255, of 48 × 48 pixels or more.

    >>> scene = Scene.from_name("small-red-circle_above_big-blue-square_17.png")
    >>> scene_features(render(scene)[None]).shape
    (1, 128)

    """
    shape = images.shape
    if images.dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or min(shape[1:3]) < _SIDE:
        raise DataError(
            f"expected uint8 images [N, H, W, 3] of {_SIDE} pixels a side or more, "
            f"got {images.dtype} of shape {list(shape)}"
        )
    means, deviations = _standard()
    return ((_responses(images) - means) / deviations).numpy()


@cache
def _standard() -> tuple[Tensor, Tensor]:
    scenes = SceneWorld().sample(_STANDARD, seed=0, captions=1).scenes
    features = _responses(np.stack([render(scene) for scene in scenes]))
    return features.mean(0), features.std(0) + _LEAST  # some cells are empty in every scene


@torch.no_grad()
def _responses(images: Bytes) -> Tensor:
    batches = [images[first : first + _BATCH] for first in range(0, len(images), _BATCH)]
    found = [_filtered(torch.from_numpy(batch)) for batch in batches]
    return torch.cat([torch.empty(0, FEATURES), *found])


def _filtered(images: Tensor) -> Tensor:
    planes = images.permute(0, 3, 1, 2).float() / 255
    pixels = functional.adaptive_avg_pool2d(planes, _SIDE)  # [N, 3, side, side]
    paints = torch.tensor(list(_PAINTS.values())) / 255
    distances = (pixels.unsqueeze(1) - paints[:, :, None, None]).square().sum(2).sqrt()
    maxima = [functional.adaptive_max_pool2d((1 - distances / _NEAR).relu(), _CELLS)]
    padded = functional.pad(pixels, (1, 1, 1, 1), mode="replicate")
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    strength = torch.cat([across, down], 1).square().sum(1, keepdim=True)
    edges = strength / (strength + _FAINT)  # saturates, so that faint colours have shapes too
    for radius in _RADII.values():
        outlines = _outlines(radius)
        agreement = functional.conv2d(edges, outlines, padding=outlines.shape[-1] // 2)
        maxima.append(functional.adaptive_max_pool2d(agreement.relu().square(), _CELLS))
    pooled = [*maxima, functional.adaptive_avg_pool2d(edges, _EDGE_CELLS)]
    return torch.cat([part.flatten(1) for part in pooled], 1)


@cache
def _outlines(radius: float) -> Tensor:
    """Soft outlines of the shapes, of mean zero and norm one, ``[shapes, 1, w, w]``."""
    pixels = radius * _SIDE
    half = int(_REACH * pixels) + 1
    places = np.arange(-half, half + 1) / pixels
    depths = np.stack([depth(places[None], places[:, None]) for depth in _DEPTHS.values()]) * pixels
    soft = torch.from_numpy(np.exp(-np.square(depths) / 2)).float().unsqueeze(1)
    centred = soft - soft.mean((2, 3), keepdim=True)
    return centred / centred.square().sum((2, 3), keepdim=True).sqrt()
