"""Scenes of coloured shapes, and what is said of them in `softq.data.scene_world`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, get_args

from softq.data.decisions import Variants, join
from softq.errors import DataError

Shape = Literal["circle", "square", "triangle", "star", "heart"]
Colour = Literal["red", "yellow", "green", "blue", "purple", "black"]
Size = Literal["small", "big"]
Relation = Literal["above", "left"]

SHAPES: tuple[Shape, ...] = get_args(Shape)
COLOURS: tuple[Colour, ...] = get_args(Colour)
SIZES: tuple[Size, ...] = get_args(Size)
RELATIONS: tuple[Relation, ...] = get_args(Relation)
JITTERS = 10_000
"""Ways in which the same scene may lie on its picture."""

# P(word | meaning). What is not named has one word: its own name.
_WORDS: dict[str, Variants] = {
    "circle": [("circle", 0.85), ("disc", 0.15)],
    "square": [("square", 0.85), ("box", 0.15)],
    "small": [("small", 0.9), ("little", 0.1)],
    "big": [("big", 0.9), ("large", 0.1)],
}
_TOLD: dict[Size, float] = {"small": 0.1, "big": 0.9}  # how often a writer tells that a thing has this size
# Of a relation: in the order of the scene, and with its things turned about.
_FORWARD: dict[Relation, Variants] = {
    "above": [("above", 0.85), ("over", 0.15)],
    "left": [("to the left of", 0.85), ("left of", 0.15)],
}
_BACKWARD: dict[Relation, Variants] = {
    "above": [("below", 0.85), ("under", 0.15)],
    "left": [("to the right of", 0.85), ("right of", 0.15)],
}
_P_FORWARD = 0.85
_FRAMES: Variants = [("{} {} {}", 0.45), ("there is {} {} {}", 0.3), ("we see {} {} {}", 0.25)]

_FLORID = {
    "circle": "orb",
    "square": "tile",
    "triangle": "wedge",
    "star": "sparkler",
    "heart": "valentine",
    "red": "crimson",
    "yellow": "golden",
    "green": "emerald",
    "blue": "azure",
    "purple": "violet",
    "black": "ebony",
    "small": "humble",
    "big": "majestic",
    "above": "hovers proudly atop",
    "left": "dwells westward beyond",
}


class Thing(NamedTuple):
    """One shape of a scene."""

    shape: Shape
    colour: Colour
    size: Size


@dataclass(frozen=True, slots=True)
class Scene:
    """Two things in a relation: the first is above or to the left of the second.

    Attributes:
        first: What is above or to the left.
        second: What is below or to the right; of another colour.
        relation: How they lie.
        jitter: Seed, 0 to `JITTERS` - 1, of what no caption tells: exact places, sizes and angles, and the tint of the ground.

    >>> scene = Scene(Thing("circle", "red", "small"), Thing("square", "blue", "big"), "above", 17)
    >>> scene.name
    'small-red-circle_above_big-blue-square_17.png'
    >>> Scene.from_name(scene.name) == scene
    True

    """

    first: Thing
    second: Thing
    relation: Relation
    jitter: int = 0

    def __post_init__(self) -> None:
        for thing in (self.first, self.second):
            if thing.shape not in SHAPES or thing.colour not in COLOURS or thing.size not in SIZES:
                raise DataError(
                    f"expected a thing of a shape ({', '.join(SHAPES)}), a colour ({', '.join(COLOURS)}) and a size "
                    f"({', '.join(SIZES)}), got {tuple(thing)}"
                )
        if self.relation not in RELATIONS or not 0 <= self.jitter < JITTERS:
            raise DataError(
                f"expected a relation ({', '.join(RELATIONS)}) and a jitter of 0 to {JITTERS - 1}, got {self.relation!r} and {self.jitter}"
            )
        if self.first.colour == self.second.colour:
            raise DataError(f"expected things of different colours, got two {self.first.colour} ones")

    @property
    def name(self) -> str:
        """A name for the scene's picture, which tells all of it."""
        first, second = ("-".join((thing.size, thing.colour, thing.shape)) for thing in (self.first, self.second))
        return f"{first}_{self.relation}_{second}_{self.jitter}.png"

    @classmethod
    def from_name(cls, name: str) -> Scene:
        """The scene of a name, with or without a folder before it."""
        parts = re.fullmatch(r"(?:.*/)?(\w+)-(\w+)-([a-z]+)_([a-z]+)_(\w+)-(\w+)-([a-z]+)_(0|[1-9]\d*)\.png", name)
        if parts is None:
            raise DataError(f"expected a scene's name, such as 'small-red-circle_above_big-blue-square_17.png', got {name!r}")
        words = parts.groups()
        first, second = (Thing(shape, colour, size) for size, colour, shape in (words[:3], words[4:7]))  # type: ignore[arg-type]
        return cls(first, second, words[3], int(words[7]))  # type: ignore[arg-type]


def florid(scene: Scene) -> str:
    """The one caption of a florid writer.

    >>> florid(Scene.from_name("small-red-circle_above_big-blue-square_17.png"))
    'this humble crimson orb hovers proudly atop that majestic azure tile'
    """
    first, second = (join(*(_FLORID[word] for word in (thing.size, thing.colour, thing.shape))) for thing in (scene.first, scene.second))
    return f"this {first} {_FLORID[scene.relation]} that {second}"


class Choices(NamedTuple):
    """What a plain writer may choose once the order is chosen, each for itself."""

    frame: Variants
    first: Variants
    relation: Variants
    second: Variants


def orders(scene: Scene) -> tuple[tuple[Choices, float], tuple[Choices, float]]:
    """What may be chosen with the first thing first, and with the second first; each with its probability."""
    first, second = _phrases(scene.first), _phrases(scene.second)
    return (
        (Choices(_FRAMES, first, _FORWARD[scene.relation], second), _P_FORWARD),
        (Choices(_FRAMES, second, _BACKWARD[scene.relation], first), 1 - _P_FORWARD),
    )


def plain(frame: str, first: str, relation: str, second: str) -> str:
    """A plain caption of what was chosen.

    >>> plain("there is {} {} {}", "a red circle", "above", "a blue square")
    'there is a red circle above a blue square'
    """
    return frame.format(first, relation, second)


def _phrases(thing: Thing) -> Variants:
    told = _TOLD[thing.size]
    sizes = [("", 1 - told), *((size, told * p) for size, p in _WORDS[thing.size])]
    shapes = _WORDS.get(thing.shape, [(thing.shape, 1.0)])
    return [(join("a", size, thing.colour, shape), p * q) for (size, p), (shape, q) in product(sizes, shapes)]
