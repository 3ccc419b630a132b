"""Captions from a seed: a world of scenes whose distribution of captions given the scene is known exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from softq.data.decisions import Decision, SequenceReward, best_of, chances, expected_rewards, most_probable_of, pick
from softq.data.scene_grammar import COLOURS, JITTERS, RELATIONS, SHAPES, SIZES, Scene, Thing, florid, orders, plain
from softq.errors import DataError


class DrawnScenes(NamedTuple):
    """Scenes with the captions that were drawn for each."""

    scenes: list[Scene]
    captions: list[list[str]]


@dataclass(frozen=True)
class SceneWorld:
    """Scenes of two coloured shapes, with all that may be said of them.

    **Scenes** (`softq.data.scene_grammar.Scene`) are uniform over pairs of shapes, each in one of six colours and two sizes, of which the
    first is above or to the left of the second. `softq.data.scene_pictures` makes pictures of them.

    **Captions.** With probability 1 - s, s = `florid`, a writer is plain: says one of the things and where it is from the other, begins
    in one of three ways, takes one word for a shape or another, and tells sizes or not, of big things more often. So

        P(y | x) = (1 - s) · Π over choices of P(choice | x)  +  s · [y is the florid caption of x]

    With probability s, a writer is florid, and there is one florid caption of a scene: all of it, in words that nobody else uses.

    **Why florid writers.** The florid caption is the most probable of all (`mode`), for the plain ones share 1 - s among them; but it is
    like none of these, while they are like each other, so that the caption that agrees best with all writers (`bayes`, the *consensus*) is
    plain. Likelihood leads to the former, objectives that know the reward to the latter; and of five captions of a scene, their mean
    reward tells which one is the consensus, while each alone does not.

    Attributes:
        florid: Share s of florid writers.

    >>> world = SceneWorld()
    >>> drawn = world.draw(1, seed=0, captions=2)
    >>> drawn.scenes[0].name
    'small-yellow-circle_above_small-purple-square_2495.png'
    >>> drawn.captions[0]
    ['this humble golden orb hovers proudly atop that humble violet tile', 'a yellow disc above a small purple square']
    >>> captions = world.captions(drawn.scenes[0])
    >>> len(captions), round(sum(captions.values()), 9)
    (433, 1.0)

    """

    florid: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.florid <= 1:
            raise DataError(f"florid, the share of florid writers, must lie in 0..1, got {self.florid}")

    def draw(self, size: int, *, seed: int, captions: int = 5) -> DrawnScenes:
        """Scenes with captions drawn from P(y | x), each for itself; another seed draws others from the same world."""
        if size < 0 or captions < 1:
            raise DataError(f"expected 0 or more scenes with 1 or more captions, got {size} with {captions}")
        numbers = chances(seed, "scenes")
        found = DrawnScenes([], [])
        for _ in range(size):
            scene = _draw_scene(numbers)
            found.scenes.append(scene)
            found.captions.append([self._write(scene, numbers) for _ in range(captions)])
        return found

    def _write(self, scene: Scene, numbers: Iterator[float]) -> str:
        if next(numbers) < self.florid:
            return florid(scene)
        (forward, share), (backward, _) = orders(scene)
        choices = forward if next(numbers) < share else backward
        return plain(*(pick(variants, next(numbers)) for variants in choices))

    def captions(self, scene: Scene) -> dict[str, float]:
        """All captions of a scene with their probabilities P(y | x), the most probable first; exact."""
        found = {florid(scene): self.florid}
        for choices, p_order in orders(scene):
            for chosen in product(*choices):
                text = plain(*(variant for variant, _ in chosen))
                found[text] = found.get(text, 0.0) + (1 - self.florid) * p_order * math.prod(p for _, p in chosen)
        return {text: p for text, p in sorted(found.items(), key=lambda pair: (-pair[1], pair[0])) if p}

    def expected_reward(self, scene: Scene, words: Sequence[str], reward: SequenceReward) -> float:
        """E[r(words, Y)] over captions Y of the scene, for any words; exact.

        Args:
            scene: What is to be seen.
            words: A caption, good or bad.
            reward: Such as `softq.rewards.SentenceBLEU()`: compares with one reference at a time.

        """
        return expected_rewards(self.captions(scene), [words], reward)[0]

    def bayes(self, scene: Scene, reward: SequenceReward) -> Decision:
        """The consensus: of all captions of the scene, the one of the highest expected reward."""
        return best_of(self.captions(scene), reward)

    def mode(self, scene: Scene, reward: SequenceReward) -> Decision:
        """The most probable caption of the scene, and the reward to be expected of it."""
        return most_probable_of(self.captions(scene), reward)


def _draw_scene(numbers: Iterator[float]) -> Scene:
    def number_below(count: int) -> int:
        return int(next(numbers) * count)

    relation = RELATIONS[number_below(len(RELATIONS))]
    colour = number_below(len(COLOURS))
    colours = colour, (colour + 1 + number_below(len(COLOURS) - 1)) % len(COLOURS)  # another one
    first, second = (Thing(SHAPES[number_below(len(SHAPES))], COLOURS[colour], SIZES[number_below(len(SIZES))]) for colour in colours)
    return Scene(first, second, relation, number_below(JITTERS))
