"""Scores of captions against the published formulas in plain Python, sentence by sentence.

BLEU against NLTK.
"""

import itertools
import math
import random
from collections import Counter

import pytest
import torch
from nltk.translate.bleu_score import SmoothingFunction
from nltk.translate.bleu_score import sentence_bleu as nltk_bleu

from softq.metrics import (
    CAPTION_METRICS,
    CAPTION_STATISTICS,
    TRANSLATION_METRICS,
    TRANSLATION_STATISTICS,
    caption_statistics,
    reference_agreement,
    translation_statistics,
)

METHOD3 = SmoothingFunction().method3
WORDS = [f"w{i}" for i in range(15)]


def edited(rng, sentence):
    """A copy with some words replaced, dropped or doubled."""
    result = []
    for word in sentence:
        chance = rng.random()
        result += (
            []
            if chance < 0.1
            else [word, word]
            if chance < 0.2
            else [rng.choice(WORDS)]
            if chance < 0.35
            else [word]
        )
    return result


def captions(seed, size, *, shortest=0, longest=12, most=5):
    """Captions and one to five references each.

    Few words, so that n-grams repeat within sentences and between images.
    """
    rng = random.Random(seed)
    scenes = [
        [rng.choice(WORDS) for _ in range(rng.randint(shortest, longest))] for _ in range(size)
    ]
    return [edited(rng, scene) for scene in scenes], [
        [edited(rng, scene) for _ in range(rng.randint(1, most))] for scene in scenes
    ]


def column(rows, name):
    return rows[:, CAPTION_STATISTICS.index(name)].tolist()


def scores_of(rows):
    return {name: float(metric(rows.sum(0))) for name, metric in CAPTION_METRICS.items()}


# --- oracles --------------------------------------------------------------------------------------------


def bleu(words, reference):
    return nltk_bleu([reference], words, smoothing_function=METHOD3) if words else 0.0


def grams(words):
    return Counter(
        tuple(words[i : i + order]) for order in range(1, 5) for i in range(len(words) - order + 1)
    )


def subsequence(left, right):
    """Length of the longest common subsequence, by the textbook table."""
    table = [[0] * (len(right) + 1) for _ in range(len(left) + 1)]
    for i, j in itertools.product(range(len(left)), range(len(right))):
        table[i + 1][j + 1] = (
            table[i][j] + 1 if left[i] == right[j] else max(table[i][j + 1], table[i + 1][j])
        )
    return table[-1][-1]


def rouge(words, references):
    common = [subsequence(words, reference) for reference in references]
    precision = max(length / max(len(words), 1) for length in common)
    recall = max(
        length / max(len(reference), 1)
        for length, reference in zip(common, references, strict=True)
    )
    return (1 + 1.2**2) * precision * recall / (recall + 1.2**2 * precision) if precision else 0.0


def cider(hypotheses, references):
    """CIDEr-D (Vedantam, Zitnick and Parikh 2015, section 4 and 7) of each hypothesis."""
    documents = Counter(
        gram
        for several in references
        for gram in {gram for words in several for gram in grams(words)}
    )

    def vector(words, order):
        return {
            gram: count * (math.log(len(references)) - math.log(max(1, documents[gram])))
            for gram, count in grams(words).items()
            if len(gram) == order
        }

    def norm(weights):
        return math.sqrt(sum(weight**2 for weight in weights.values()))

    found = []
    for words, several in zip(hypotheses, references, strict=True):
        total = 0.0
        for reference, order in itertools.product(several, range(1, 5)):
            ours, theirs = vector(words, order), vector(reference, order)
            product = sum(
                min(ours.get(gram, 0), weight) * weight for gram, weight in theirs.items()
            )
            scale = norm(ours) * norm(theirs)
            gap = len(words) - len(reference)
            total += (
                10
                / 4
                / len(several)
                * math.exp(-(gap**2) / (2 * 6**2))
                * (product / scale if scale else 0)
            )
        found.append(total)
    return found


# --- scores ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 30, 300])
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_formulas(seed, size):
    hypotheses, references = captions(seed, size)
    rows = caption_statistics(hypotheses, references)
    pairs = list(zip(hypotheses, references, strict=True))
    best = [max(bleu(words, reference) for reference in several) for words, several in pairs]
    assert rows.dtype == torch.float64
    assert rows.shape == (size, 17)
    assert column(rows, "max_reward") == pytest.approx(best, abs=1e-12)
    assert column(rows, "rouge_l") == pytest.approx(
        [rouge(words, several) for words, several in pairs], abs=1e-12
    )
    assert column(rows, "cider_d") == pytest.approx(cider(hypotheses, references), abs=1e-12)
    found = scores_of(rows)
    assert found["max_reward"] == pytest.approx(sum(best) / size)
    assert found["rouge_l"] == pytest.approx(sum(column(rows, "rouge_l")) / size)
    assert found["cider_d"] == pytest.approx(sum(column(rows, "cider_d")) / size)


def test_the_first_columns_are_those_of_translations():
    hypotheses, references = captions(4, 300)
    rows = caption_statistics(hypotheses, references)
    assert torch.equal(rows[:, :14], translation_statistics(hypotheses, references))
    assert CAPTION_STATISTICS[:14] == TRANSLATION_STATISTICS
    for name, metric in TRANSLATION_METRICS.items():
        assert float(metric(rows.sum(0))) == scores_of(rows)[name]
    found = scores_of(rows)
    assert (
        0 < found["average_reward"] < found["max_reward"] <= found["sentence_bleu"] < 1
    )  # more references match more


def test_one_reference_makes_one_reward_of_both():
    found = scores_of(caption_statistics(*captions(5, 200, most=1)))
    assert found["average_reward"] == pytest.approx(found["max_reward"], abs=1e-12)
    assert found["average_reward"] == pytest.approx(found["sentence_bleu"], abs=1e-12)


def test_orders_of_images_and_references_do_not_matter():
    hypotheses, references = captions(6, 200)
    rows = caption_statistics(hypotheses, references)
    turned = caption_statistics(hypotheses[::-1], [several[::-1] for several in references[::-1]])
    assert torch.allclose(rows, turned.flip(0), rtol=0, atol=1e-12)


def test_images_are_documents_of_cider_and_nothing_else():
    hypotheses, references = captions(7, 100, shortest=1)
    rows = caption_statistics(hypotheses, references)
    part = caption_statistics(hypotheses[:50], references[:50])
    assert torch.allclose(
        rows[:50, :16], part[:, :16], rtol=0, atol=1e-12
    )  # only CIDEr-D looks at the others
    assert not torch.allclose(rows[:50, 16], part[:, 16])
    doubled = caption_statistics(
        hypotheses, [several * 2 for several in references]
    )  # as often an n-gram has in each image
    assert torch.allclose(rows[:, 16], doubled[:, 16], rtol=0, atol=1e-12)


def test_the_truth_has_the_highest_scores():
    own = [
        ["a", "red", "ball", "lies", "here"],
        ["two", "small", "dogs", "run", "fast"],
        ["she", "sat", "near", "him", "again"],
    ]
    found = scores_of(caption_statistics(own, [[words] for words in own]))
    assert found == pytest.approx(dict.fromkeys(CAPTION_METRICS, 1.0) | {"cider_d": 10.0})
    strange = scores_of(
        caption_statistics([["x", "y", "z", "u", "v"]] * 3, [[words] for words in own])
    )
    assert strange == dict.fromkeys(CAPTION_METRICS, 0.0) | {"length_ratio": 1.0}


def test_a_caption_that_repeats_a_word_is_clipped():
    references = [[["red", "ball"]], [["blue", "box"]]]
    once, thrice = (
        caption_statistics([words, ["blue", "box"]], references)[0, 16]
        for words in (["red"], ["red"] * 3)
    )
    assert thrice < once


def test_an_unknown_word_is_never_right():
    references = [[["the", "<unk>", "sat", "on", "a", "mat"]], [["two", "dogs"]]]
    others = [["two", "dogs"]]
    same = caption_statistics([references[0][0], *others], references)
    other = caption_statistics([["the", "zebra", "sat", "on", "a", "mat"], *others], references)
    assert torch.equal(same, other)
    assert column(same, "rouge_l")[0] == pytest.approx(5 / 6)


def test_nothing_and_empty_captions():
    nothing = caption_statistics([], [])
    assert nothing.shape == (0, 17)
    assert set(scores_of(nothing).values()) == {0.0}
    assert scores_of(caption_statistics([[]], [[[]]])) == dict.fromkeys(CAPTION_METRICS, 0.0) | {
        "exact_match": 1.0
    }
    rows = caption_statistics([[], ["a"]], [[["b", "c"]], [[], ["a"]]])
    assert column(rows, "rouge_l") == [0.0, 1.0]
    assert column(rows, "cider_d") == [
        0.0,
        pytest.approx(10 / 4 / 2),
    ]  # of two references, one order of four


# --- agreement ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 300])
def test_agreement_is_the_mean_of_all_ordered_pairs(size):
    _, references = captions(9, size)
    means = [
        sum(bleu(left, right) for left, right in itertools.permutations(several, 2))
        / (len(several) * (len(several) - 1))
        for several in references
        if len(several) > 1
    ]
    assert 0 < len(means) < size
    assert reference_agreement(references) == pytest.approx(sum(means) / len(means), abs=1e-12)
    assert 0 < sum(means) / len(means) < 1


def test_agreement_of_single_references_is_not_known():
    assert math.isnan(reference_agreement([[["a"]], [["b"]]]))
    assert math.isnan(reference_agreement([]))
    assert reference_agreement([[["a"]], [["b", "c", "d", "e"], ["f", "g", "h", "i"]]]) == 0
