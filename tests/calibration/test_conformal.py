"""Conformal sets: the quantile exactly, the guarantee by leaving out, coverage by sampling."""

import math
from fractions import Fraction

import numpy as np
import pytest

from chance import FAR
from softq.conformal import ConformalSets, conformal_rank, coverage, mean_set_size
from softq.errors import DataError, EstimatorError, ShapeError


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.2, 0.3, 0.5])
def test_the_rank_is_the_smallest_that_covers(alpha):
    # A new score is equally likely to take each of the n + 1 places among n others without ties:
    # it is at most the k-th of these with probability k / (n + 1), exactly.
    exact = Fraction(str(alpha))
    for n in range(200):
        k = conformal_rank(n, alpha)
        assert Fraction(k, n + 1) >= 1 - exact > Fraction(k - 1, n + 1)


def made_sentences(random, count, longest):
    """Tables of two options whose first one is right with the score 1 - p; distinct scores."""
    lengths = random.integers(1, longest + 1, count)
    # the tokens of a sentence are nearly alike: far from independent
    centres = random.random(count)
    p = [
        np.clip(c + 0.1 * random.random(n), 0, 1.1) / 1.2
        for c, n in zip(centres, lengths, strict=True)
    ]
    return [np.stack([one, 1 - one], 1) for one in p], [np.zeros(len(one), int) for one in p]


def left_out(tables, right, alpha, **options):
    """Each sentence covered by the others: the counts that exchangeability averages over."""
    for i in range(len(tables)):
        rest = [k for k in range(len(tables)) if k != i]
        sets = ConformalSets.calibrate(
            [tables[k] for k in rest], [right[k] for k in rest], alpha, **options
        )
        found = sets.predict([tables[i]])[0]
        yield found[np.arange(len(found)), right[i]]


@pytest.mark.parametrize("score", ["lac", "adaptive"])
@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_coverage_is_guaranteed_for_any_sentences(score, alpha):
    # Given the set of N exchangeable sentences, each is the new one with probability 1/N. So the
    # expected coverage is that of leaving out each in turn: no sampling, and no failure by chance.
    for seed in range(25):
        tables, right = made_sentences(np.random.default_rng(seed), 15, 1 + seed % 8)
        tokens = sum(map(len, tables))
        held = list(left_out(tables, right, alpha, score=score))
        assert sum(int(one.sum()) for one in held) >= (1 - alpha) * tokens - 1e-9
        held = list(left_out(tables, right, alpha, score=score, unit="sentence"))
        assert sum(bool(one.all()) for one in held) >= (1 - alpha) * len(held) - 1e-9


def test_tokens_as_independent_observations_would_break_the_guarantee():
    # what the threshold for m tokens is for: with the quantile of single choices, some sentences
    # of a strange length are covered too seldom
    worst = 1.0
    for seed in range(25):
        tables, _ = made_sentences(np.random.default_rng(seed), 15, 1 + seed % 8)
        covered = 0
        for i, table in enumerate(tables):
            rest = [k for k in range(len(tables)) if k != i]
            scores = np.sort(np.concatenate([1 - tables[k][:, 0] for k in rest]))
            k = conformal_rank(len(scores), 0.1)
            covered += int((1 - table[:, 0] <= scores[k - 1]).sum())
        worst = min(worst, covered / sum(map(len, tables)))
    assert worst < 0.9


def test_classes_are_sentences_of_one_token():
    random = np.random.default_rng(0)
    table = random.dirichlet([1.0, 1.0, 1.0], 40)
    right = random.integers(0, 3, 40)
    sets = ConformalSets.calibrate(table, right, 0.2)
    k = math.ceil(41 * 0.8)
    assert sets.threshold() == np.sort(1 - table[np.arange(40), right])[k - 1]
    as_sentences = ConformalSets.calibrate(list(table[:, None]), list(right[:, None]), 0.2)
    assert np.array_equal(as_sentences.scores, sets.scores)
    assert np.array_equal(np.concatenate(as_sentences.predict(table[:, None])), sets.predict(table))
    assert np.array_equal(sets.predict(table), 1 - table <= sets.threshold())


@pytest.mark.parametrize("score", ["lac", "adaptive"])
def test_coverage_by_sampling(score):
    # 2,000 times 30 sentences, a strange model, and one new sentence. The guarantee is a lower
    # bound; the test fails by chance with probability below 1e-9.
    random = np.random.default_rng(3)
    times, alpha = 2000, 0.2
    hits, sentence_hits, tokens = [], [], []
    for _ in range(times):
        lengths = random.integers(1, 5, 31)
        true = [random.dirichlet([0.5, 0.5, 0.5]) for _ in lengths]  # one for a whole sentence
        right = [random.choice(3, n, p=p) for n, p in zip(lengths, true, strict=True)]
        model = [
            np.repeat((p**2 / (p**2).sum())[None], n, 0) for n, p in zip(lengths, true, strict=True)
        ]
        for unit, kept in (("token", hits), ("sentence", sentence_hits)):
            sets = ConformalSets.calibrate(model[1:], right[1:], alpha, score=score, unit=unit)
            held = sets.predict(model[:1])[0][np.arange(lengths[0]), right[0]]
            kept.append(held.sum() if unit == "token" else held.all())
        tokens.append(lengths[0])
    over = np.array(hits) - (1 - alpha) * np.array(tokens)
    assert over.mean() > -FAR * over.std() / times**0.5
    assert np.mean(sentence_hits) > 1 - alpha - FAR * 0.5 / times**0.5
    # and the sets are not larger than need be
    assert over.mean() < 0.2 * np.mean(tokens)


def test_adaptive_sets_are_the_most_probable_outputs():
    # by definition: an output's score is the mass of those before it
    table = np.array([[0.2, 0.5, 0.3], [0.9, 0.06, 0.04]])
    sets = ConformalSets(np.array([0.5]), 0.5, "adaptive")
    assert sets.predict(table).tolist() == [[False, True, True], [True, False, False]]
    never_empty = ConformalSets(np.array([0.0]), 0.5, "adaptive").predict(table)
    assert never_empty.sum(1).tolist() == [1, 1]


def test_unknown_outputs_are_never_covered():
    table = np.full((20, 2), 0.5)
    right = np.array([-1] * 3 + [0] * 17)
    sets = ConformalSets.calibrate(table, right, 0.1)  # 18 of 21 at most
    assert sets.threshold() == math.inf
    assert sets.predict(table).all()
    assert coverage(sets.predict(table), right).value == pytest.approx(17 / 20)


def test_sentences_longer_than_the_data_allow_get_all_outputs():
    tables, right = made_sentences(np.random.default_rng(0), 20, 1)
    sets = ConformalSets.calibrate(tables, right, 0.1)
    assert sets.threshold(2) < math.inf == sets.threshold(3)  # ⌈0.9 · 23⌉ is the 21st of 20
    assert sets.predict([np.full((3, 2), 0.5)])[0].all()
    assert ConformalSets.calibrate(tables, right, 0.1, unit="sentence").threshold(3) < math.inf


def test_coverage_and_sizes_are_counted_by_tokens_or_sentences():
    sets = [
        np.array([[True, False], [True, True]]),
        np.zeros((0, 2), bool),
        np.array([[False, True]]),
    ]
    right = [np.array([1, 0]), np.zeros(0, int), np.array([1])]
    assert coverage(sets, right).value == pytest.approx(2 / 3)
    found = coverage(sets, right, unit="sentence")
    assert found.value == 0.5
    assert 0 < found.low < 0.5 < found.high < 1
    assert mean_set_size(sets) == pytest.approx(4 / 3)


def test_too_few_data_are_refused_with_how_many_it_takes():
    table = np.full((8, 2), 0.5)
    with pytest.raises(DataError, match=r"alpha = 0.1 needs at least 9 tokens .* got 8"):
        ConformalSets.calibrate(table, np.zeros(8, int), 0.1)
    with pytest.raises(DataError, match=r"at least 19 sentences .* got 1"):
        ConformalSets.calibrate([table], [np.zeros(8, int)], 0.05, unit="sentence")
    for alpha in (0.0, 1.0, math.nan):
        with pytest.raises(EstimatorError, match="alpha must lie above 0 and below 1"):
            ConformalSets.calibrate(table, np.zeros(8, int), alpha)
    with pytest.raises(EstimatorError, match=r"'lac' or 'adaptive' .* got 'aps' and 'token'"):
        ConformalSets.calibrate(table, np.zeros(8, int), score="aps")
    sets = np.ones((2, 2), bool)
    with pytest.raises(ShapeError, match="each of the 1 sentences, got 2"):
        coverage([sets], [[0], [1]])
    with pytest.raises(ShapeError, match=r"entry 0 must be \[2\], got \[1\]"):
        coverage([sets], [[0]])
    with pytest.raises(DataError, match="at least one sentence, got none"):
        coverage([], [], unit="sentence")
