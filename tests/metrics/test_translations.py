"""Scores of translations.

Corpus BLEU against sacreBLEU and multi-bleu.perl's rules in plain Python, sentences against NLTK.
"""

import math
import random
import sys
from collections import Counter

import pytest
import torch
from nltk.translate.bleu_score import SmoothingFunction
from nltk.translate.bleu_score import sentence_bleu as nltk_bleu
from sacrebleu.metrics import BLEU

from softq.errors import DependencyError, ShapeError
from softq.metrics import (
    TRANSLATION_METRICS,
    TRANSLATION_STATISTICS,
    caption_statistics,
    corpus_bleu,
    sacre_bleu,
    translation_statistics,
)

METHOD3 = SmoothingFunction().method3


def sentence(rng, words, low, high):
    return [rng.choice(words) for _ in range(rng.randint(low, high))]


def edited(rng, sentence, words):
    """A copy with some words replaced, dropped or doubled."""
    result = []
    for word in sentence:
        chance = rng.random()
        result += (
            []
            if chance < 0.1
            else [word, word]
            if chance < 0.2
            else [rng.choice(words)]
            if chance < 0.35
            else [word]
        )
    return result


def corpus(seed, size, *, longest=14, most=4, vocabulary=12):
    """Hypotheses and one to four references each.

    Few words, so that n-grams repeat and clipping matters.
    """
    rng = random.Random(seed)
    words = [f"w{i}" for i in range(vocabulary)]
    truths = [sentence(rng, words, 0 if seed % 2 else 1, longest) for _ in range(size)]
    hypotheses = [edited(rng, truth, words) for truth in truths]
    references = [
        [edited(rng, truth, words) if i else truth for i in range(rng.randint(1, most))]
        for truth in truths
    ]
    return hypotheses, references


def scores_of(rows):
    return {name: float(metric(rows.sum(0))) for name, metric in TRANSLATION_METRICS.items()}


def column(rows, name):
    return rows[:, TRANSLATION_STATISTICS.index(name)]


# --- oracles --------------------------------------------------------------------------------------------


def grams(words, order):
    return Counter(tuple(words[i : i + order]) for i in range(len(words) - order + 1))


def multi_bleu(hypotheses, references):
    """The rules of multi-bleu.perl, sentence by sentence.

    Clipped matches, closest reference length, no smoothing.
    """
    right, total = [0] * 5, [0] * 5
    length = reference_length = 0
    for words, several in zip(hypotheses, references, strict=True):
        closest = several[0]
        for other in several[1:]:
            gap, best = abs(len(other) - len(words)), abs(len(closest) - len(words))
            if gap < best or (gap == best and len(other) < len(closest)):
                closest = other
        length += len(words)
        reference_length += len(closest)
        for order in range(1, 5):
            for gram, count in grams(words, order).items():
                total[order] += count
                right[order] += min(count, max(grams(other, order)[gram] for other in several))
    if length == 0 or 0 in right[1:]:
        return 0.0
    brevity = math.exp(1 - reference_length / length) if length < reference_length else 1.0
    return brevity * math.prod(right[order] / total[order] for order in range(1, 5)) ** 0.25


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("size", [1, 2, 5, 40, 600])
@pytest.mark.parametrize("seed", range(4))
def test_corpus_bleu_is_that_of_multi_bleu_and_of_sacrebleu(seed, size, most):
    hypotheses, references = corpus(seed, size, most=most)
    found = scores_of(translation_statistics(hypotheses, references))["corpus_bleu"]
    assert found == pytest.approx(multi_bleu(hypotheses, references), abs=1e-12)
    streams = [
        [" ".join(several[i]) if i < len(several) else None for several in references]
        for i in range(most)
    ]
    peer = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(
        [" ".join(words) for words in hypotheses], streams
    )
    assert 100 * found == pytest.approx(peer.score, abs=1e-9)


def test_corpora_in_which_an_order_is_missing():
    words = ["a", "b", "c", "d", "e"]
    assert scores_of(translation_statistics([words], [[words]]))["corpus_bleu"] == 1
    for hypothesis in (words[:3], [], list("vwxyz"), list("abcz"), ["a", "b", "b", "c"]):
        assert scores_of(translation_statistics([hypothesis], [[words]]))["corpus_bleu"] == 0, (
            hypothesis
        )
    # the first four words of five: all n-grams match, and the brevity penalty is exp(1 - 5/4)
    assert scores_of(translation_statistics([words[:4]], [[words]]))[
        "corpus_bleu"
    ] == pytest.approx(math.exp(-0.25))
    assert scores_of(translation_statistics([[]], [[[]]])) == {
        "sentence_bleu": 0.0,
        "corpus_bleu": 0.0,
        "average_reward": 0.0,
        "exact_match": 1.0,
        "length_ratio": 0.0,
    }
    nothing = translation_statistics([], [])
    assert nothing.shape == (0, len(TRANSLATION_STATISTICS))
    assert set(scores_of(nothing).values()) == {0.0}


@pytest.mark.parametrize("seed", range(3))
def test_sentences_are_scored_as_by_nltk(seed):
    hypotheses, references = corpus(seed, 300)
    rows = translation_statistics(hypotheses, references)

    def peer(several, words):
        return nltk_bleu(several, words, smoothing_function=METHOD3) if words else 0.0

    pairs = list(zip(hypotheses, references, strict=True))
    together = [peer(several, words) for words, several in pairs]
    apart = [sum(peer([one], words) for one in several) / len(several) for words, several in pairs]
    assert column(rows, "sentence_bleu").tolist() == pytest.approx(together, abs=1e-12)
    assert column(rows, "reward").tolist() == pytest.approx(apart, abs=1e-12)
    found = scores_of(rows)
    assert found["sentence_bleu"] == pytest.approx(sum(together) / 300)
    assert found["average_reward"] == pytest.approx(sum(apart) / 300)
    assert found["exact_match"] == pytest.approx(
        sum(words in several for words, several in pairs) / 300
    )
    assert 0 < found["exact_match"] < 1
    assert 0 < found["average_reward"] < found["sentence_bleu"] < 1


def test_a_single_reference_makes_one_reward_of_both():
    rows = translation_statistics(*corpus(2, 300, most=1))
    assert torch.allclose(column(rows, "sentence_bleu"), column(rows, "reward"), rtol=0, atol=1e-12)


def test_counts_are_exact_however_long_the_corpus_and_its_sentences():
    hypotheses, references = corpus(5, 1000, vocabulary=3)
    hypotheses[700], references[700] = (
        ["w1"] * 500,
        [["w1"] * 400, ["w1"] * 600],
    )  # as near one as the other: the shorter
    rows = translation_statistics(hypotheses, references)
    assert column(rows, "length").tolist() == [len(words) for words in hypotheses]
    assert column(rows, "reference_length")[700] == 400
    assert column(rows, "match_4")[700] == 497  # by the longer one
    assert column(rows, "sentences").sum() == 1000
    alone = torch.cat(
        [
            translation_statistics([words], [several])
            for words, several in zip(hypotheses, references, strict=True)
        ]
    )
    assert torch.allclose(rows, alone, rtol=0, atol=1e-12)
    assert float(corpus_bleu(rows.sum(0))) == pytest.approx(
        multi_bleu(hypotheses, references), abs=1e-12
    )


def test_the_order_of_references_does_not_matter():
    hypotheses, references = corpus(3, 200)
    rows = translation_statistics(hypotheses, references)
    assert torch.allclose(
        rows,
        translation_statistics(hypotheses, [several[::-1] for several in references]),
        rtol=0,
        atol=1e-12,
    )


def test_an_unknown_word_is_never_right():
    reference = ["the", "<unk>", "sat", "on", "a", "mat"]
    same, other = translation_statistics(
        [reference, [word.replace("<unk>", "dog") for word in reference]], [[reference]] * 2
    )
    assert torch.equal(same, other)
    assert same[0] == 5
    assert column(same[None], "exact") == 0
    named = ["the", "cat", *reference[2:]]
    assert column(translation_statistics([named], [[reference, named]]), "exact") == 1


def test_lengths_of_hypotheses_and_references():
    rows = translation_statistics([["a"] * 3, ["a"] * 5], [[["a"] * 4], [["a"] * 6, ["a"] * 1]])
    assert scores_of(rows)["length_ratio"] == pytest.approx(8 / 10)


def test_sacrebleu_takes_text_with_any_number_of_references():
    hypotheses = ["The cat's on the mat.", "Where is it? Here."]
    references = [["The cat is on the mat.", "A cat's on the mat."], ["Where is it? Here!"]]
    found = sacre_bleu(hypotheses, references)
    streams = [["The cat is on the mat.", "Where is it? Here!"], ["A cat's on the mat.", None]]
    assert found.score == BLEU().corpus_score(hypotheses, streams).score
    assert 0 < found.score < 100
    assert found.signature.startswith("nrefs:var|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert sacre_bleu(hypotheses, [several[:1] for several in references]).signature.startswith(
        "nrefs:1|"
    )


def test_without_sacrebleu(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(DependencyError, match=r"pip install 'softq\[translation\]'"):
        sacre_bleu(["a"], [["a"]])


@pytest.mark.parametrize("score", [translation_statistics, caption_statistics, sacre_bleu])
def test_references_that_do_not_fit(score):
    with pytest.raises(ShapeError, match="for each of 1 sentences, got 2"):
        score(["a", "b"], [["a"]])
    with pytest.raises(ShapeError, match="got none for number 1"):
        score(["a", "b"], [["a"], []])


def test_no_hypotheses_have_no_sacrebleu():
    with pytest.raises(ShapeError, match="at least one hypothesis"):
        sacre_bleu([], [])
