"""The worlds whose outputs are derived from a grammar: probabilities against what is drawn."""

import math
from collections import Counter
from itertools import product

import pytest
import torch

from chance import FAR, agrees
from softq.errors import DataError, ShapeError
from softq.lab.worlds import LanguageWorld, Scene, SceneWorld, Thing
from softq.lab.worlds.languages import FEWEST, MOST, formal, parse
from softq.lab.worlds.scenes import florid_caption
from softq.rewards import MultiReferenceBLEU, SentenceBLEU

TEXT = LanguageWorld().sample(300, seed=1, references=3)
DRAWN = SceneWorld().sample(300, seed=1)
SCENE = Scene(Thing("triangle", "red", "big"), Thing("star", "yellow", "small"), "left")
# A world, its inputs with their outputs, and the least and most outputs of an input.
CASES = {
    "languages": (LanguageWorld(), TEXT.sources, TEXT.references, (FEWEST, MOST + 1)),
    "scenes": (SceneWorld(), DRAWN.scenes, DRAWN.captions, (100, 500)),
}
KINDS = {"languages": LanguageWorld, "scenes": SceneWorld}


def draw(world, size, seed, outputs):
    """Inputs and outputs of either world."""
    if isinstance(world, SceneWorld):
        drawn = world.sample(size, seed=seed, captions=outputs)
        return drawn.scenes, drawn.captions
    text = world.sample(size, seed=seed, references=outputs)
    return text.sources, text.references


@pytest.mark.parametrize("case", CASES)
def test_probabilities_are_probabilities_of_all_that_is_drawn(case):
    world, inputs, outputs, (fewest, most) = CASES[case]
    surprise = []
    for given, texts in zip(inputs, outputs, strict=True):
        shares = world.outputs(given)
        assert math.fsum(shares.values()) == pytest.approx(1, abs=1e-12)
        assert min(shares.values()) > 0
        assert fewest < len(shares) <= most
        assert list(shares.values()) == sorted(shares.values(), reverse=True)
        assert set(texts) <= shares.keys()
        entropy = -math.fsum(p * math.log(p) for p in shares.values())
        surprise += [-math.log(shares[text]) - entropy for text in texts]
    # E[-log P(Y | x)] is the entropy of P(. | x), whatever the input.
    assert abs(sum(surprise)) < FAR * math.sqrt(sum(value**2 for value in surprise))


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9])
@pytest.mark.parametrize(
    ("kind", "given"),
    [(LanguageWorld, TEXT.sources[3]), (LanguageWorld, TEXT.sources[44]), (SceneWorld, SCENE)],
)
def test_outputs_are_drawn_with_their_probabilities(monkeypatch, kind, given, share):
    world, count = kind(share), 20_000
    monkeypatch.setattr(kind, "sample_input", lambda world, uniforms: given)
    inputs, outputs = draw(world, count // 4, 2, 4)
    assert all(one == given for one in inputs)
    shares = world.outputs(given)
    assert agrees(Counter(text for texts in outputs for text in texts), shares, count)
    # And each for itself: two outputs of one input are as a pair what independence makes of them.
    pairs = Counter((first, second) for first, second, *_ in outputs)
    both = {(a, b): p * q for (a, p), (b, q) in product(shares.items(), repeat=2)}
    assert agrees(pairs, both, count // 4)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_of_formal_translations_and_florid_captions(share):
    languages, scenes = LanguageWorld(idiom=share), SceneWorld(florid=share)
    for source, scene in zip(TEXT.sources[:50], DRAWN.scenes[:50], strict=True):
        found = languages.outputs(source).get(formal(parse(source)), 0.0)
        assert found == pytest.approx(share)
        assert scenes.outputs(scene).get(florid_caption(scene), 0.0) == pytest.approx(share)


@pytest.mark.parametrize(
    ("case", "given"), [*(("languages", source) for source in TEXT.sources[:5]), ("scenes", SCENE)]
)
def test_expected_rewards_are_those_of_a_loop(case, given):
    world, reward = CASES[case][0], SentenceBLEU()
    shares = world.outputs(given)
    texts = [*shares, "na unheard of", ""]
    words = sorted({word for text in texts for word in text.split()})

    def one(*pair):
        tokens = [torch.tensor([[[words.index(w) for w in t.split()]]]).long() for t in pair]
        lengths = [torch.tensor([[some.shape[2]]]) for some in tokens]
        return reward(tokens[0], lengths[0], tokens[1], lengths[1]).item()

    for text in (*texts[:3], *texts[-2:]):
        value = math.fsum(p * one(text, reference) for reference, p in shares.items())
        found = world.expected_reward(given, text.split(), reward)
        assert found == pytest.approx(value, abs=1e-12)
    rewards = {text: world.expected_reward(given, text.split(), reward) for text in shares}
    best = world.bayes(given, reward)
    assert best.reward == pytest.approx(max(rewards.values()))
    assert best.reward == pytest.approx(rewards[best.text])
    assert world.mode(given, reward) == (texts[0], pytest.approx(rewards[texts[0]]))


@pytest.mark.parametrize("case", CASES)
def test_a_seed_says_all(case):
    world, inputs, outputs, _ = CASES[case]
    size = len(outputs[0])
    assert draw(KINDS[case](), 50, 1, size) == (inputs[:50], outputs[:50])
    assert draw(world, 50, 2, size) != draw(world, 50, 3, size)


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be(case):
    world, inputs, *_ = CASES[case]
    for share in (1.5, -0.1, math.nan):
        with pytest.raises(DataError, match=f"must lie in 0..1, got {share}"):
            KINDS[case](share)
    for size, outputs in ((-1, 1), (1, 0)):
        with pytest.raises(DataError, match=f"1 or more outputs each, got {size} with {outputs}"):
            draw(world, size, 0, outputs)
    with pytest.raises(DataError, match="seed must be 0 or more, got -1"):
        draw(world, 1, -1, 1)
    with pytest.raises(ShapeError, match=r"hypothesis for each reference, .*, got \[1, 1, 1\]"):
        world.expected_reward(inputs[0], ["a"], MultiReferenceBLEU())
