"""The world of scenes.

Its probabilities against what it draws, and that the most probable caption is not the best one.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch

from chance import agrees
from softq.errors import DataError
from softq.lab.worlds import Scene, SceneWorld, Thing
from softq.lab.worlds import scenes as grammar
from softq.rewards import SentenceBLEU

WORLD = SceneWorld()
DRAWN = WORLD.sample(300, seed=1)
SCENE = Scene(Thing("circle", "red", "big"), Thing("star", "yellow", "small"), "left", 5)


def test_scenes_are_uniform():
    scenes = WORLD.sample(5000, seed=3, captions=1).scenes
    for kind, values in (
        ("shape", grammar.SHAPES),
        ("colour", grammar.COLOURS),
        ("size", grammar.SIZES),
    ):
        for number in (0, 1):
            counted = Counter(
                getattr((scene.first, scene.second)[number], kind) for scene in scenes
            )
            assert agrees(counted, dict.fromkeys(values, 1 / len(values)), len(scenes))
    assert agrees(
        Counter(scene.relation for scene in scenes),
        dict.fromkeys(grammar.RELATIONS, 0.5),
        len(scenes),
    )
    tenths = Counter(scene.jitter * 10 // grammar.JITTERS for scene in scenes)
    assert agrees(tenths, dict.fromkeys(range(10), 0.1), len(scenes))
    pairs = Counter((scene.first.colour, scene.second.colour) for scene in scenes)
    different = [pair for pair in product(grammar.COLOURS, repeat=2) if pair[0] != pair[1]]
    assert agrees(pairs, dict.fromkeys(different, 1 / len(different)), len(scenes))


def test_captions_by_hand():
    shares = WORLD.outputs(SCENE)
    assert shares[
        "this majestic crimson orb dwells westward beyond that humble golden sparkler"
    ] == pytest.approx(0.2)
    told, untold = (
        0.9,
        0.1,
    )  # of a big thing, that it is big; of a small one it is the other way round
    assert shares["a big red circle to the left of a yellow star"] == pytest.approx(
        0.8 * 0.85 * 0.45 * (told * 0.9 * 0.85) * 0.85 * told
    )
    assert shares["there is a little yellow star right of a red disc"] == pytest.approx(
        0.8 * 0.15 * 0.3 * (untold * 0.1) * 0.15 * (untold * 0.15)
    )
    above = WORLD.outputs(
        Scene(Thing("circle", "green", "small"), Thing("square", "black", "big"), "above")
    )
    assert above["we see a small green disc over a large black box"] == pytest.approx(
        0.8 * 0.85 * 0.25 * (untold * 0.9 * 0.15) * 0.15 * (told * 0.1 * 0.15)
    )
    assert "a black box below a green circle" in above
    assert "a black box above a green circle" not in above


def test_florid_words_are_nobody_elses_and_captions_are_short():
    florid, plain = set(), set()
    for captions in WORLD.sample(2000, seed=4).captions:
        for caption in captions:
            words = caption.split()
            assert 6 <= len(words) <= 14
            (florid if words[0] == "this" else plain).update(words)
    assert florid.isdisjoint(plain)
    assert 50 <= len(florid | plain) <= 100


def test_names_tell_scenes():
    assert len(set(DRAWN.scenes)) == len({scene.name for scene in DRAWN.scenes}) == 300
    for scene in DRAWN.scenes:
        assert Scene.from_name(scene.name) == scene
        assert Scene.from_name(f"pictures/of/{scene.name}") == scene
    assert SCENE.name == "big-red-circle_left_small-yellow-star_5.png"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "expected a scene's name"),
        ("big-red-circle_left_small-blue-star_5.jpg", "expected a scene's name"),
        ("big-red-circle_left_small-blue-star_05.png", "expected a scene's name"),
        ("big-red-circle_left_small-blue.png", "expected a scene's name"),
        ("big-red-blob_left_small-blue-star_5.png", r"expected a thing of a shape .*, got"),
        ("big-red-circle_left_small-pink-star_5.png", r"expected a thing of a shape .*, got"),
        ("huge-red-circle_left_small-blue-star_5.png", r"and a size \(small, big\), got"),
        ("big-red-circle_beside_small-blue-star_5.png", r"expected a relation \(above, left\)"),
        ("big-red-circle_left_small-blue-star_10000.png", "a jitter of 0 to 9999, got 'left' and"),
        ("big-red-circle_left_small-red-star_5.png", "expected things of different colours, got"),
    ],
)
def test_what_is_no_scene(name, message):
    with pytest.raises(DataError, match=message):
        Scene.from_name(name)


def test_the_most_probable_caption_is_florid_and_the_best_one_is_plain():
    reward, florid, gain = SentenceBLEU(), [], []
    for scene in DRAWN.scenes[:25]:
        best, mode = WORLD.bayes(scene, reward), WORLD.mode(scene, reward)
        florid.append(mode.text == grammar.florid_caption(scene))
        assert best.text == next(
            text for text in WORLD.outputs(scene) if text != grammar.florid_caption(scene)
        )
        gain.append(
            best.reward
            - WORLD.expected_reward(scene, grammar.florid_caption(scene).split(), reward)
        )
    assert np.mean(florid) > 0.8
    assert min(gain) > 0.2
    honest = SceneWorld(florid=0.0)
    for scene in DRAWN.scenes[:10]:
        best = honest.bayes(scene, reward)
        assert honest.mode(scene, reward) == (best.text, pytest.approx(best.reward, abs=1e-12))


def test_five_captions_tell_the_consensus():
    # Of five captions, the one with the highest mean reward is plain and nearly as good as the best
    # of all; a single one is not.
    reward = SentenceBLEU()
    chosen, single, ceiling = [], [], []
    for scene, captions in zip(DRAWN.scenes[:50], DRAWN.captions, strict=False):
        numbers = {
            word: number
            for number, word in enumerate({word for text in captions for word in text.split()})
        }
        tokens = torch.zeros(1, 5, 20, dtype=torch.int64)
        lengths = torch.tensor([[len(text.split()) for text in captions]])
        for row, text in zip(tokens[0], captions, strict=True):
            row[: len(text.split())] = torch.tensor([numbers[word] for word in text.split()])
        best = reward(tokens, lengths, tokens, lengths)[0].mean(1).argmax()
        chosen.append(WORLD.expected_reward(scene, captions[best].split(), reward))
        single.append(WORLD.expected_reward(scene, captions[0].split(), reward))
        ceiling.append(WORLD.bayes(scene, reward).reward)
    assert np.mean(chosen) > 0.85 * np.mean(ceiling)
    assert np.mean(single) < 0.75 * np.mean(ceiling)
