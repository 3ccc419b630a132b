"""Scenes of two coloured shapes, with a distribution of captions given the scene known exactly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from softq.errors import DataError
from softq.lab.worlds.grammar import (
    GrammarWorld,
    Phrase,
    Symbol,
    Texts,
    check_probability,
    choose,
    derivations,
    seeded_generator,
)

SHAPES = ("circle", "square", "triangle", "star", "heart")
COLOURS = ("red", "yellow", "green", "blue", "purple", "black")
SIZES = ("small", "big")
RELATIONS = ("above", "left")
JITTERS = 10_000
"""Number of ways in which one scene may lie in its picture."""


class Thing(NamedTuple):
    """One shape of a scene."""

    shape: str
    colour: str
    size: str


@dataclass(frozen=True, slots=True)
class Scene:
    """Two things in a relation: the first is above or to the left of the second.

    Attributes:
        first: The thing above or to the left.
        second: The thing below or to the right; of another colour.
        relation: How they lie.
        jitter: Seed, 0 to `JITTERS` - 1, of what no caption tells: exact places, sizes and angles,
            and the tint of the background.

    >>> scene = Scene(Thing("circle", "red", "small"), Thing("square", "blue", "big"), "above", 17)
    >>> scene.name
    'small-red-circle_above_big-blue-square_17.png'
    >>> Scene.from_name(scene.name) == scene
    True

    """

    first: Thing
    second: Thing
    relation: str
    jitter: int = 0

    def __post_init__(self) -> None:
        for shape, colour, size in (self.first, self.second):
            if shape not in SHAPES or colour not in COLOURS or size not in SIZES:
                raise DataError(
                    f"expected a thing of a shape ({', '.join(SHAPES)}), a colour "
                    f"({', '.join(COLOURS)}) and a size ({', '.join(SIZES)}), "
                    f"got {(shape, colour, size)}"
                )
        if self.relation not in RELATIONS or not 0 <= self.jitter < JITTERS:
            raise DataError(
                f"expected a relation ({', '.join(RELATIONS)}) and a jitter of 0 to {JITTERS - 1}, "
                f"got {self.relation!r} and {self.jitter}"
            )
        if self.first.colour == self.second.colour:
            raise DataError(
                f"expected things of different colours, got two {self.first.colour} ones"
            )

    @property
    def name(self) -> str:
        """A file name for the scene's picture that tells all of the scene."""
        first, second = (
            f"{thing.size}-{thing.colour}-{thing.shape}" for thing in (self.first, self.second)
        )
        return f"{first}_{self.relation}_{second}_{self.jitter}.png"

    @classmethod
    def from_name(cls, name: str) -> Scene:
        """The scene of a name, with or without a folder before it."""
        thing = r"(\w+)-(\w+)-([a-z]+)"
        parts = re.fullmatch(rf"(?:.*/)?{thing}_([a-z]+)_{thing}_(0|[1-9]\d*)\.png", name)
        if parts is None:
            raise DataError(
                "expected a scene's name, such as 'small-red-circle_above_big-blue-square_17.png', "
                f"got {name!r}"
            )
        size, colour, shape, relation, size_2, colour_2, shape_2, jitter = parts.groups()
        first, second = Thing(shape, colour, size), Thing(shape_2, colour_2, size_2)
        return cls(first, second, relation, int(jitter))


# The grammar of plain captions.

_WORDS: dict[str, Texts] = {  # P(word | meaning). What is not listed has one word: its own name.
    "circle": [("circle", 0.85), ("disc", 0.15)],
    "square": [("square", 0.85), ("box", 0.15)],
    "small": [("small", 0.9), ("little", 0.1)],
    "big": [("big", 0.9), ("large", 0.1)],
}
_TOLD: dict[str, float] = {"small": 0.1, "big": 0.9}  # P(a caption tells this size)
_RELATIONS: dict[str, tuple[Texts, Texts]] = {  # from the first thing, and from the second
    "above": (
        [("above", 0.85), ("over", 0.15)],
        [("below", 0.85), ("under", 0.15)],
    ),
    "left": (
        [("to the left of", 0.85), ("left of", 0.15)],
        [("to the right of", 0.85), ("right of", 0.15)],
    ),
}
_P_FORWARD = 0.85
_OPENINGS: Texts = [("", 0.45), ("there is", 0.3), ("we see", 0.25)]

# The words of florid captions.
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


def _plain_captions(scene: Scene) -> Symbol:
    """The plain captions of a scene: the first thing comes first, or the second."""
    first, second = _thing(scene.first), _thing(scene.second)
    forward, backward = _RELATIONS[scene.relation]
    return [
        (Phrase([_OPENINGS, first, forward, second]), _P_FORWARD),
        (Phrase([_OPENINGS, second, backward, first]), 1 - _P_FORWARD),
    ]


def _thing(thing: Thing) -> Texts:
    told = _TOLD[thing.size]
    size: Symbol = [("", 1 - told), (_WORDS[thing.size], told)]
    return derivations(Phrase(["a", size, thing.colour, _WORDS.get(thing.shape, thing.shape)]))


def florid_caption(scene: Scene) -> str:
    """The only florid caption of a scene.

    >>> florid_caption(Scene.from_name("small-red-circle_above_big-blue-square_17.png"))
    'this humble crimson orb hovers proudly atop that majestic azure tile'
    """
    (shape, colour, size), (shape_2, colour_2, size_2) = scene.first, scene.second
    words = ("this", size, colour, shape, scene.relation, "that", size_2, colour_2, shape_2)
    return " ".join(_FLORID.get(word, word) for word in words)


class CaptionedScenes(NamedTuple):
    """Scenes with the captions of each."""

    scenes: list[Scene]
    captions: list[list[str]]


@dataclass(frozen=True)
class SceneWorld(GrammarWorld[Scene]):
    """Scenes of two coloured shapes, with all their captions.

    **Scenes** (`Scene`) are uniform over pairs of shapes, each in one of six colours and two sizes,
    of which the first is above or to the left of the second. `softq.lab.worlds.scene_pictures`
    renders them.

    **Captions.** With probability 1 - s, s = `florid`, a caption is plain: it tells where one of
    the things lies relative to the other, has one of three openings, uses one word for a shape or
    another, and tells sizes or not, those of big things more often. So

        P(y | x) = (1 - s) · Π over choices of P(choice | x)  +  s · [y is the florid caption of x]

    With probability s a caption is florid, and a scene has only one florid caption: it tells all of
    the scene, in words that no plain caption uses.

    **Why florid captions.** The florid caption is the most probable of all (`mode`), for the plain
    ones share 1 - s among them; but it resembles none of these, while they resemble each other, so
    that the caption that agrees best with all others (`bayes`, the *consensus*) is plain.
    Likelihood leads to the former, objectives that know the reward to the latter; and of five
    captions of a scene, their mean reward tells which one is the consensus, while each alone does
    not.

    Attributes:
        florid: Probability s of a florid caption.

    >>> world = SceneWorld()
    >>> sampled = world.sample(1, seed=0, captions=2)
    >>> sampled.scenes[0].name
    'small-yellow-circle_above_small-purple-square_2495.png'
    >>> for caption in sampled.captions[0]:
    ...     print(caption)
    this humble golden orb hovers proudly atop that humble violet tile
    a yellow disc above a small purple square
    >>> captions = world.outputs(sampled.scenes[0])
    >>> len(captions), round(sum(captions.values()), 9)
    (433, 1.0)

    """

    florid: float = 0.2

    def __post_init__(self) -> None:
        check_probability("florid, the probability of a florid caption,", self.florid)

    def sample(self, size: int, *, seed: int, captions: int = 5) -> CaptionedScenes:
        """Scenes with independent captions of each; another seed gives others."""
        rng = seeded_generator(0, seed, "scenes")
        return CaptionedScenes(*self.sample_pairs(size, captions, rng))

    def sample_input(self, uniforms: Iterator[float]) -> Scene:
        """A random scene."""
        relation = choose(RELATIONS, next(uniforms))
        colour = choose(range(len(COLOURS)), next(uniforms))
        other = colour + 1 + choose(range(len(COLOURS) - 1), next(uniforms))
        first, second = (
            Thing(
                choose(SHAPES, next(uniforms)),
                COLOURS[number % len(COLOURS)],
                choose(SIZES, next(uniforms)),
            )
            for number in (colour, other)
        )
        return Scene(first, second, relation, choose(range(JITTERS), next(uniforms)))

    def grammar(self, given: Scene) -> Symbol:
        """The florid caption of a scene, or a plain one."""
        return [(florid_caption(given), self.florid), (_plain_captions(given), 1 - self.florid)]
