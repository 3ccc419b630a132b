"""The chain behind annotations against all label sequences of tiny sentences."""

import itertools
import math

import numpy as np
import pytest
import torch

import oracle
from softq.annotators import truth
from softq.annotators.truth import MarkovPrior, Posterior, TruthScores, bordered, predictive
from tagging_cases import follows

LENGTHS = np.array([3, 0, 1, 4, 2, 0, 1, 3])
GROUPS = np.array([0, 1, 2, 1, 0, 0, 0, 2])


def some_scores(seed, labels, forbid=0.0, groups=3):
    """Random scores of the sentences; a share of them is -inf, though never of label 0."""
    rng = np.random.default_rng(seed)
    emissions = rng.normal(0, 2, (LENGTHS.sum(), labels))
    tables = rng.normal(0, 2, (groups, labels, labels))
    for scores in (emissions, tables):
        scores[rng.random(scores.shape) < forbid] = -np.inf
    emissions[:, 0] = np.where(emissions[:, 0] == -np.inf, 0.5, emissions[:, 0])
    tables[:, 0, 0] = np.where(tables[:, 0, 0] == -np.inf, 0.5, tables[:, 0, 0])
    return TruthScores(emissions, torch.from_numpy(tables), GROUPS % groups, LENGTHS)


def enumerated(scores):
    """Each sentence's sequences and their scores, by group, in plain Python."""
    start = 0
    for length, group in zip(scores.lengths.tolist(), scores.groups.tolist(), strict=True):
        rows = scores.emissions[start : start + length].tolist()
        table = scores.transitions[group].tolist()
        start += length
        possible = oracle.label_sequences(length, len(table))
        yield length, possible, [oracle.label_score(rows, [table] * length, y) for y in possible]


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("forbid", [0.0, 0.3])
@pytest.mark.parametrize("cells", [1, 12, 1 << 18])
def test_the_posterior_is_that_of_all_sequences(labels, forbid, cells, monkeypatch):
    monkeypatch.setattr(truth, "_CELLS", cells)  # one sentence a batch, some, or all
    scores = some_scores(labels, labels, forbid)
    names = [f"label{k}" for k in range(labels)]
    found, best = Posterior.of(scores), scores.decode(names)
    start = 0
    for number, (length, possible, values) in enumerate(enumerated(scores)):
        shares = oracle.probabilities(values)
        unary = [[0.0] * labels for _ in range(length)]
        pairs = [[0.0] * labels for _ in range(labels)]
        for y, share in zip(possible, shares, strict=True):
            for t, k in enumerate(y):
                unary[t][k] += share
            for i, j in itertools.pairwise(y):
                pairs[i][j] += share
        own = found.labels[start : start + length]
        start += length
        np.testing.assert_allclose(own, np.reshape(unary, (length, labels)), atol=1e-10)
        np.testing.assert_allclose(found.pairs[number], pairs, atol=1e-10)
        assert found.entropy[number] == pytest.approx(oracle.entropy(shares), abs=1e-9)
        assert found.log_z[number] == pytest.approx(oracle.log_sum_exp(values), abs=1e-9)
        top = possible[max(range(len(values)), key=values.__getitem__)]
        assert best[number] == tuple(names[k] for k in top)


def test_sentences_of_a_posterior_in_another_order():
    found = Posterior.of(some_scores(5, 3))
    which = np.array([3, 1, 6, 0])
    taken = found.take(which)
    starts = np.cumsum(LENGTHS) - LENGTHS
    rows = [found.labels[starts[i] : starts[i] + LENGTHS[i]] for i in which]
    np.testing.assert_array_equal(taken.labels, np.concatenate(rows))
    for name in ("pairs", "entropy", "log_z", "lengths"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(found, name)[which])
    shown = found.shown(3)
    assert set(np.unique(shown[found.labels < 0.01])) <= {0.0}
    np.testing.assert_array_equal(shown[found.labels >= 0.01], found.labels[found.labels >= 0.01])
    total = found.pairs.sum(0)
    np.testing.assert_array_equal(found.pairs_shown(3), np.where(total >= 0.01, total, 0.0))


@pytest.mark.parametrize("forbid", [0.0, 0.3])
def test_hidden_labels_are_as_likely_as_over_all_sequences(forbid):
    scores = some_scores(11, 3, forbid)
    likelihood = np.random.default_rng(12).normal(-2, 1, scores.emissions.shape)
    expected, start = 0.0, 0
    for length, possible, values in enumerated(scores):
        rows = likelihood[start : start + length].tolist()
        start += length
        seen = [sum(rows[t][k] for t, k in enumerate(y)) for y in possible]
        shares = oracle.probabilities(values)
        expected += math.log(math.fsum(p * math.exp(s) for p, s in zip(shares, seen, strict=True)))
    assert predictive(scores, likelihood) == pytest.approx(expected, abs=1e-9)
    assert predictive(scores, np.zeros_like(likelihood)) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("scheme", [None, "bio", "bioes"])
def test_the_first_prior_knows_the_scheme_and_nothing_else(scheme):
    names = ("O", "B-P", "I-P") if scheme != "bioes" else ("O", "B-P", "I-P", "E-P", "S-P")
    lengths = np.array([3, 0, 1, 2])
    scores = MarkovPrior(names, scheme).scores(np.zeros((6, len(names))), lengths)
    assert (scores.transitions.shape, scores.groups.tolist()) == ((1, *(len(names),) * 2), [0] * 4)
    for (length, possible, values), log_z in zip(
        enumerated(scores), Posterior.of(scores).log_z, strict=True
    ):
        allowed = [follows([names[k] for k in y], scheme) for y in possible]
        assert values == [0.0 if ok else -math.inf for ok in allowed], length
        assert log_z == pytest.approx(math.log(sum(allowed)))


def test_the_border_scores_go_to_the_ends_of_sentences_that_have_tokens():
    emissions = np.zeros((4, 2))
    first, last = torch.tensor([1.0, 2.0]).double(), torch.tensor([10.0, 20.0]).double()
    lengths = np.array([0, 1, 0, 3, 0])
    found = bordered(emissions, first, last, torch.zeros(1, 2, 2), np.zeros(5, np.int64), lengths)
    assert found.emissions.tolist() == [[11.0, 22.0], [1.0, 2.0], [0.0, 0.0], [10.0, 20.0]]
    assert not emissions.any()  # inputs are never changed


def test_an_impossible_sentence_leaves_the_others_as_they_are():
    scores = some_scores(6, 3)
    expected = Posterior.of(scores)
    scores.emissions[3] = -np.inf  # the only token of the third sentence
    found = Posterior.of(scores)
    assert found.log_z[2] == -np.inf
    others = np.arange(len(LENGTHS)) != 2
    for name in ("pairs", "entropy", "log_z"):
        np.testing.assert_allclose(
            getattr(found, name)[others], getattr(expected, name)[others], atol=1e-12
        )
    tokens = np.arange(LENGTHS.sum()) != 3
    np.testing.assert_allclose(found.labels[tokens], expected.labels[tokens], atol=1e-12)
