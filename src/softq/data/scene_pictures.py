"""Pictures of the scenes of `softq.data.scene_world`, and a small fixed encoder for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from softq.data.scene_grammar import Colour, Relation, Scene, Shape, Size
from softq.data.scene_world import SceneWorld
from softq.errors import DataError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float32]
Array: TypeAlias = npt.NDArray[Any]

FEATURES = 128
"""How many numbers `scene_features` tells of an image."""

_PAINTS: dict[Colour, tuple[int, int, int]] = {
    "red": (214, 48, 49),
    "yellow": (250, 211, 60),
    "green": (58, 158, 80),
    "blue": (45, 110, 205),
    "purple": (130, 70, 165),
    "black": (45, 52, 60),
}
_GROUNDS = ((246, 243, 236), (238, 243, 247), (242, 246, 239), (245, 240, 244))
_OUTLINE, _SHADE = 0.1, 0.75  # how wide a border is, as a share of the radius, and how bright

# In shares of the picture's side.
_CENTRES: dict[Relation, tuple[tuple[float, float], tuple[float, float]]] = {  # (x, y) of first and second
    "above": ((0.4, 0.27), (0.6, 0.73)),
    "left": ((0.27, 0.4), (0.73, 0.6)),
}
_RADII: dict[Size, float] = {"small": 0.13, "big": 0.205}
_SHIFT, _STRETCH, _TURN = 0.025, 0.06, 0.1  # most that jitter does to centres, radii and, in radians, angles

# The encoder.
_SIDE = 48  # pixels, to which images are brought
_CELLS, _EDGE_CELLS = 2, 8  # along each side of the grids on which it pools what it finds, and edges
_NEAR = 0.3  # distance from a paint, of a cube of colours with sides 1, at which a pixel no longer looks like it
_FAINT = 0.05  # strength of an edge that counts half
_STANDARD = 200  # scenes by which features are standardised
_LEAST = 0.05  # added to standard deviations
_BATCH = 128


class _Place(NamedTuple):
    """Where a shape lies on a picture of side 1."""

    x: float
    y: float
    radius: float
    angle: float


def render(scene: Scene, size: int = 96) -> Bytes:
    """The picture of a scene: ``[size, size, 3]``, red, green and blue in 0..255.

    >>> picture = render(Scene.from_name("small-red-circle_above_big-blue-square_17.png"), 48)
    >>> picture.shape, picture[13, 19].tolist(), picture[35, 29].tolist()
    ((48, 48, 3), [214, 48, 49], [45, 110, 205])
    """
    if size < 8:
        raise DataError(f"expected pictures of 8 pixels a side or more, got {size}")
    rng = np.random.default_rng([scene.jitter, *b"picture"])
    ground = _GROUNDS[int(rng.integers(len(_GROUNDS)))]
    picture = np.empty((size, size, 3))
    picture[:] = ground
    shift, stretch, turn = rng.uniform(-_SHIFT, _SHIFT, (2, 2)), rng.uniform(1 - _STRETCH, 1 + _STRETCH, 2), rng.uniform(-_TURN, _TURN, 2)
    for number, thing in enumerate((scene.first, scene.second)):
        x, y = _CENTRES[scene.relation][number] + shift[number]
        _paint(picture, thing.shape, _PAINTS[thing.colour], _Place(x, y, _RADII[thing.size] * stretch[number], turn[number]))
    return np.rint(picture).astype(np.uint8)


def _paint(picture: Array, shape: Shape, paint: tuple[int, int, int], place: _Place) -> None:
    """Mix a shape into a picture. Within a pixel of its outline it covers a pixel in part, so that edges are smooth."""
    size = len(picture)
    reach = 1.3 * place.radius  # of the shape that reaches farthest, in every direction
    left, top = (max(0, int((centre - reach) * size)) for centre in (place.x, place.y))
    right, bottom = (min(size, int((centre + reach) * size) + 1) for centre in (place.x, place.y))
    across, down = (
        ((np.arange(begin, end) + 0.5) / size - centre) / place.radius
        for begin, end, centre in ((left, right, place.x), (top, bottom, place.y))
    )
    cosine, sine = np.cos(place.angle), np.sin(place.angle)
    depth = _DEPTHS[shape](cosine * across + sine * down[:, None], cosine * down[:, None] - sine * across)  # [h, w]
    pixels = place.radius * size
    covered, filled = (((depth - from_depth) * pixels + 0.5).clip(0, 1)[..., None] for from_depth in (0, _OUTLINE))
    colour = np.array(paint) * (_SHADE * covered + (1 - _SHADE) * filled)
    window = picture[top:bottom, left:right]
    window *= 1 - covered
    window += colour


# How deep a point lies in a shape, at most and about its distance from the outline; negative outside. y points downward.


def _circle(x: Array, y: Array) -> Array:
    depth: Array = 1 - np.hypot(x, y)
    return depth


def _square(x: Array, y: Array) -> Array:
    depth: Array = 0.86 - np.maximum(abs(x), abs(y))
    return depth


def _triangle(x: Array, y: Array) -> Array:
    """Equilateral, with its centre a little below the middle, where it looks centred."""
    depth: Array = 0.6 - np.maximum(y - 0.12, (np.sqrt(3) * abs(x) - y + 0.12) / 2)
    return depth


def _star(x: Array, y: Array) -> Array:
    """Five points: in each of ten sectors, what lies below the line from a point to the notch beside it."""
    sector, tip, notch = 2 * np.pi / 5, 1.12, 0.5
    angle, radius = abs((np.arctan2(x, -y) + sector / 2) % sector - sector / 2), np.hypot(x, y)  # angle from the nearest point
    normal = np.array([notch * np.sin(sector / 2), tip - notch * np.cos(sector / 2)])
    normal /= np.linalg.norm(normal)
    depth: Array = normal[0] * tip - radius * (np.cos(angle) * normal[0] + np.sin(angle) * normal[1])
    return depth


def _heart(x: Array, y: Array) -> Array:
    """A square on its corner, and discs on its upper sides."""
    half, y = 0.85, y - 0.1
    depth: Array = np.maximum(half / np.sqrt(2) - np.hypot(abs(x) - half / 2, y + half / 2), (half - abs(x) - abs(y)) / np.sqrt(2))
    return depth


_DEPTHS: dict[Shape, Callable[[Array, Array], Array]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "heart": _heart,
}


def scene_features(images: Bytes) -> Floats:
    """Features of images by a small fixed encoder, ``[N, FEATURES]``, from which a linear layer can read what is to be seen.

    Images are brought to 48 × 48 pixels and filtered by what the world consists of: how near each pixel is to each of its paints, and how
    well the edges around it agree with the outline of each of its shapes in each of its sizes (squared, so that the best agreement stands
    out), of which the maxima in each quarter of the picture are taken; and how strong edges are, pooled on a grid of 8 × 8. All are
    standardised by their means and standard deviations over scenes of a fixed seed.

    Args:
        images: ``[N, H, W, 3]``, red, green and blue in 0..255, of 48 × 48 pixels or more.

    >>> scene_features(render(Scene.from_name("small-red-circle_above_big-blue-square_17.png"))[None]).shape
    (1, 128)

    """
    if images.ndim != 4 or images.shape[3] != 3 or min(images.shape[1:3]) < _SIDE or images.dtype != np.uint8:
        raise DataError(
            f"expected uint8 images [N, H, W, 3] of {_SIDE} pixels a side or more, got {images.dtype} of shape {list(images.shape)}"
        )
    means, deviations = _standard()
    found: Floats = ((_responses(images) - means) / deviations).numpy()
    return found


@lru_cache(maxsize=1)
def _standard() -> tuple[Tensor, Tensor]:
    scenes = SceneWorld().draw(_STANDARD, seed=0, captions=1).scenes
    features = _responses(np.stack([render(scene) for scene in scenes]))
    return features.mean(0), features.std(0) + _LEAST  # some cells are empty in every scene


@torch.no_grad()
def _responses(images: Bytes) -> Tensor:
    batches = [_filtered(torch.from_numpy(images[first : first + _BATCH])) for first in range(0, len(images), _BATCH)]
    return torch.cat(batches) if batches else torch.empty(0, FEATURES)


def _filtered(images: Tensor) -> Tensor:
    pixels = functional.adaptive_avg_pool2d(images.permute(0, 3, 1, 2).float() / 255, _SIDE)  # [N, 3, side, side]
    paints = torch.tensor(list(_PAINTS.values())) / 255
    distances = (pixels.unsqueeze(1) - paints[:, :, None, None]).square().sum(2).sqrt()
    maxima = [functional.adaptive_max_pool2d((1 - distances / _NEAR).relu(), _CELLS)]
    padded = functional.pad(pixels, (1, 1, 1, 1), mode="replicate")
    slopes = torch.cat([padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2], padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]], 1)
    strength = slopes.square().sum(1, keepdim=True)
    edges = strength / (strength + _FAINT)  # saturates, so that faint colours have shapes too
    for radius in _RADII.values():
        outlines = _outlines(radius)
        agreement = functional.conv2d(edges, outlines, padding=outlines.shape[-1] // 2)
        maxima.append(functional.adaptive_max_pool2d(agreement.relu().square(), _CELLS))
    pooled = [*maxima, functional.adaptive_avg_pool2d(edges, _EDGE_CELLS)]
    return torch.cat([part.flatten(1) for part in pooled], 1)


@cache
def _outlines(radius: float) -> Tensor:
    """Outlines of the shapes in a square window, soft, of mean zero and norm one, ``[shapes, 1, w, w]``."""
    pixels = radius * _SIDE
    half = int(1.3 * pixels) + 1
    places = np.arange(-half, half + 1) / pixels
    depths = np.stack([depth(places[None], places[:, None]) for depth in _DEPTHS.values()]) * pixels
    soft = torch.from_numpy(np.exp(-np.square(depths) / 2)).float().unsqueeze(1)
    centred = soft - soft.mean((2, 3), keepdim=True)
    return centred / centred.square().sum((2, 3), keepdim=True).sqrt()
