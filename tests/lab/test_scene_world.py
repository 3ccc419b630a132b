"""The world of scenes.

Its probabilities against what it draws, and that the most probable caption is not the best one.
"""

import math
from collections import Counter
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from softq.errors import DataError, ShapeError
from softq.lab.worlds import Scene, SceneWorld, Thing
from softq.lab.worlds import scenes as grammar
from softq.rewards import MultiReferenceBLEU, SentenceBLEU

CHANCE = 1e-9  # how often each comparison with a probability fails by chance
FAR = NormalDist().inv_cdf(1 - CHANCE / 2)  # standard errors that chance reaches as rarely

WORLD = SceneWorld()
DRAWN = WORLD.sample(300, seed=1)
SCENE = Scene(Thing("circle", "red", "big"), Thing("star", "yellow", "small"), "left", 5)


def agrees(counted, probabilities, total):
    """Chi-square of counts, those with an expected count below 5 taken together."""
    frequent = [key for key, p in probabilities.items() if p * total >= 5]
    observed, expected = (
        [counted[key] for key in frequent],
        [probabilities[key] * total for key in frequent],
    )
    rest = total - sum(expected)
    if rest > 1e-6:
        observed, expected = [*observed, total - sum(observed)], [*expected, rest]
    return (
        chisquare(observed, np.array(expected) * total / sum(expected)).pvalue > CHANCE
    )  # scaled by no more than rounding


def test_probabilities_are_probabilities_of_all_that_is_drawn():
    for scene, captions in zip(DRAWN.scenes, DRAWN.captions, strict=True):
        shares = WORLD.outputs(scene)
        assert math.fsum(shares.values()) == pytest.approx(1, abs=1e-12)
        assert min(shares.values()) > 0
        assert 100 < len(shares) < 500
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
        assert len(captions) == 5
        assert set(captions) <= shares.keys()


@pytest.mark.parametrize("florid", [0.0, 0.2, 0.9])
def test_captions_are_drawn_with_their_probabilities(monkeypatch, florid):
    world, count = SceneWorld(florid=florid), 20_000
    monkeypatch.setattr(SceneWorld, "sample_input", lambda world, uniforms: SCENE)
    drawn = world.sample(count // 4, seed=2, captions=4)
    shares = world.outputs(SCENE)
    assert agrees(
        Counter(caption for captions in drawn.captions for caption in captions), shares, count
    )
    # And each for itself: two captions of one scene are as a pair what independence makes of them.
    pairs = Counter((first, second) for first, second, *_ in drawn.captions)
    assert agrees(
        pairs, {(a, b): p * q for (a, p), (b, q) in product(shares.items(), repeat=2)}, count // 4
    )


def test_captions_are_as_probable_as_they_should_be():
    # E[-log P(Y | x)] is the entropy of P(. | x), whatever the scene.
    surprise = []
    for scene, captions in zip(DRAWN.scenes, DRAWN.captions, strict=True):
        shares = WORLD.outputs(scene)
        entropy = -math.fsum(p * math.log(p) for p in shares.values())
        surprise += [-math.log(shares[caption]) - entropy for caption in captions]
    assert abs(sum(surprise)) < FAR * math.sqrt(sum(value**2 for value in surprise))


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


def test_the_share_of_florid_captions():
    for share in (0.0, 0.2, 1.0):
        world = SceneWorld(florid=share)
        for scene in DRAWN.scenes[:20]:
            assert world.outputs(scene).get(grammar.florid_caption(scene), 0.0) == pytest.approx(
                share
            )


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


def test_a_seed_says_all():
    again = WORLD.sample(50, seed=1)
    assert again.scenes == DRAWN.scenes[:50]
    assert again.captions == DRAWN.captions[:50]
    assert WORLD.sample(50, seed=2) != WORLD.sample(50, seed=3)


def test_expected_rewards_are_those_of_a_loop():
    reward = SentenceBLEU()
    scene = Scene(
        Thing("triangle", "red", "big"), Thing("star", "yellow", "small"), "left"
    )  # of the fewest words, for the loop's sake
    shares = WORLD.outputs(scene)
    texts = [*shares, "a red thing unheard of", ""]
    numbers = {
        word: number
        for number, word in enumerate({word for text in texts for word in text.split()})
    }

    def one(text, reference):
        pair = [
            torch.tensor([[[numbers[word] for word in some.split()]]], dtype=torch.int64)
            for some in (text, reference)
        ]
        lengths = [torch.tensor([[some.shape[2]]]) for some in pair]
        return reward(pair[0], lengths[0], pair[1], lengths[1]).item()

    values = {
        text: math.fsum(p * one(text, reference) for reference, p in shares.items())
        for text in (*texts[:3], *texts[-2:])
    }
    for text, value in values.items():
        assert WORLD.expected_reward(scene, text.split(), reward) == pytest.approx(value, abs=1e-12)
    best = WORLD.bayes(scene, reward)
    assert best.reward == pytest.approx(
        max(WORLD.expected_reward(scene, text.split(), reward) for text in shares)
    )
    assert best.reward == pytest.approx(WORLD.expected_reward(scene, best.text.split(), reward))
    assert WORLD.mode(scene, reward) == (texts[0], pytest.approx(values[texts[0]]))


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


def test_what_cannot_be():
    for share in (1.5, -0.1, math.nan):
        with pytest.raises(DataError, match=f"must lie in 0..1, got {share}"):
            SceneWorld(florid=share)
    for size, captions in ((-1, 1), (1, 0)):
        with pytest.raises(
            DataError,
            match=(
                f"expected 0 or more inputs with 1 or more outputs each, got {size} with {captions}"
            ),
        ):
            WORLD.sample(size, seed=0, captions=captions)
    with pytest.raises(DataError, match="seed must be 0 or more, got -1"):
        WORLD.sample(1, seed=-1)
    with pytest.raises(
        ShapeError, match=r"a reward of each hypothesis for each reference, .*, got \[1, 1, 1\]"
    ):
        WORLD.expected_reward(SCENE, ["a"], MultiReferenceBLEU())
