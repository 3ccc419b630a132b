"""Calibration errors, proper scores, and the temperature of the highest likelihood."""

import math
from itertools import product

import numpy as np
import pytest
import torch

import oracle
import softq
from softq.calibration import (
    ReliabilityBin,
    calibration_error,
    calibration_scores,
    fit_temperature,
    reliability_diagram,
)
from softq.errors import ConvergenceWarning, DataError, DataWarning, OutputError, ShapeError
from softq.numerics import wilson_interval

pytestmark = pytest.mark.usefixtures("one_thread")


def expected_error(table, right, bins):
    """Bins of equal width by their definition: (b/B, (b+1)/B], in plain Python."""
    held = [[] for _ in range(bins)]
    for row, k in zip(table, right, strict=True):
        top = max(row)
        held[max(math.ceil(top * bins) - 1, 0)].append((top, row.index(top) == k))
    total = sum(map(len, held))
    error = 0.0
    for one in filter(None, held):
        confidence = sum(p for p, _ in one) / len(one)
        accuracy = sum(hit for _, hit in one) / len(one)
        error += len(one) / total * abs(confidence - accuracy)
    return error


@pytest.fixture
def made():
    random = np.random.default_rng(0)
    table = random.dirichlet([0.4, 0.4, 0.4], 300)
    return table, random.integers(0, 3, 300)


def test_calibration_error_is_its_definition(made):
    table, right = made
    for bins in (1, 4, 15):
        found = calibration_error(reliability_diagram(table, right, bins=bins))
        assert found == pytest.approx(expected_error(table.tolist(), right.tolist(), bins))
    assert calibration_scores(table, right).error == pytest.approx(
        expected_error(table.tolist(), right.tolist(), 15)
    )


def test_bins_of_equal_mass_hold_equally_many(made):
    table, right = made
    bins = reliability_diagram(table, right, bins=10, binning="mass")
    assert [one.predictions for one in bins] == [30] * 10
    means = np.sort(table.max(1)).reshape(10, 30).mean(1)
    assert [one.confidence for one in bins] == pytest.approx(means.tolist())
    hits = (table.argmax(1) == right)[np.argsort(table.max(1))].reshape(10, 30).mean(1)
    assert [one.accuracy for one in bins] == pytest.approx(hits.tolist())
    # predictions of one confidence are one bin, whatever its mass
    sure = np.repeat([[1.0, 0.0]], 50, 0)
    bins = reliability_diagram(sure, np.zeros(50, int), bins=5, binning="mass")
    assert bins == [ReliabilityBin(1.0, 1.0, 50)]


def test_proper_scores_are_their_definitions(made):
    table, right = made
    scores = calibration_scores(table, right)
    rows = list(zip(table.tolist(), right.tolist(), strict=True))
    brier = sum(sum((p - (j == k)) ** 2 for j, p in enumerate(row)) for row, k in rows) / 300
    assert scores.brier == pytest.approx(brier)
    assert scores.nll == pytest.approx(-sum(math.log(row[k]) for row, k in rows) / 300)
    assert scores.choices == 300


def test_sentences_of_different_sizes_are_one_table():
    # heads: the first sentence has two options for each word, the second three
    tables = [np.array([[0.5, 0.5]]), np.array([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])]
    flat = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    right = [np.array([1]), np.array([0, 2])]
    assert calibration_scores(tables, right) == calibration_scores(flat, np.array([1, 0, 2]))
    unknown = calibration_scores(flat, [1, 0, -1])
    assert unknown.nll == math.inf
    assert unknown.brier == pytest.approx((0.5 + 0.64 + 0.09 + 0.25 + 2.0) / 3)


def test_calibrated_probabilities_have_a_small_error():
    # Each of 15 bins has an accuracy that misses its confidence by less than 5 deviations; the
    # expected error is at most Σ_b n_b/n · sqrt(1/(4 n_b)) ≤ sqrt(15 / (4 · 20000)) = 0.0137.
    # By McDiarmid (each choice changes the error by 1/n at most) it exceeds that by 0.023 with
    # probability exp(-2 n 0.023²) < 1e-9.
    random = np.random.default_rng(1)
    table = random.dirichlet([1.0, 1.0, 1.0], 20_000)
    right = (random.random((20_000, 1)) > table.cumsum(1)).sum(1).clip(max=2)
    scores = calibration_scores(table, right)
    assert max(scores.error, scores.error_mass) < 0.0137 + 0.023
    sharpened = table**3 / (table**3).sum(1, keepdims=True)
    assert calibration_scores(sharpened, right).error > 0.1


@pytest.mark.parametrize(
    ("table", "right", "error", "message"),
    [
        ([[0.5, 0.6]], [0], DataError, "row 0 sums to 1.1"),
        ([[math.nan, 0.6]], [0], DataError, "row 0 sums to nan"),
        ([[0.5, 0.5]], [2], OutputError, r"0\.\.1, or be -1 .* got 2 in row 0"),
        ([[0.5, 0.5]], [0.5], OutputError, "whole numbers, got float64"),
        ([[0.5, 0.5]], [0, 1], ShapeError, r"each of the 1 rows or sentences .* got 2"),
    ],
)
def test_what_is_no_table_of_probabilities_is_refused(table, right, error, message):
    with pytest.raises(error, match=message):
        calibration_scores(np.array(table), right)


def test_sentences_that_do_not_fit_are_refused():
    table = np.array([[0.5, 0.5]])
    with pytest.raises(ShapeError, match=r"entry 1 must be \[1\], got \[2\]"):
        calibration_scores([table, table], [[0], [0, 1]])
    with pytest.raises(ShapeError, match=r"sentence 0 must be a table \[n, K\], got shape \[2\]"):
        calibration_scores([[0.5, 0.5]], [[0]])
    with pytest.raises(ShapeError, match="an array for each sentence, got int"):
        calibration_scores(3, [0])
    with pytest.raises(DataError, match="at least one class, token or word"):
        calibration_scores([], [])


# --- temperature scaling ---------------------------------------------------------------------------


def minimum(loss):
    """Golden-section search for the log-temperature of the smallest loss, in plain Python."""
    low, high = math.log(0.02), math.log(50.0)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, b) if loss(math.exp(a)) < loss(math.exp(b)) else (a, high)
    return math.exp((low + high) / 2)


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def enumerated(scores_of, outputs_of, right):
    """-Σ log p(y; T) by listing every output of every example."""

    def loss(t):
        total = 0.0
        for example, gold in enumerate(right):
            scores = [scores_of(example, y) / t for y in outputs_of(example)]
            total += oracle.log_sum_exp(scores) - scores_of(example, gold) / t
        return total

    return loss


def test_the_temperature_of_chains_is_that_of_the_whole_sequences():
    emissions, transitions = 2 * normal(6, 3, 2, seed=0), normal(2, 2, seed=1)
    lengths = [3, 1, 2, 3, 2, 3]
    right = [[0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1]]
    loss = enumerated(
        lambda i, y: oracle.label_score(emissions[i].tolist(), [transitions.tolist()] * 2, y),
        lambda i: product(range(2), repeat=lengths[i]),
        [row[:n] for row, n in zip(right, lengths, strict=True)],
    )
    chain = softq.Chain(emissions, transitions, lengths)
    found = fit_temperature([chain], [torch.tensor(right)])
    assert found == pytest.approx(minimum(loss), rel=1e-5)
    # batches of the same sentences
    halves = [
        softq.Chain(emissions[part].float(), transitions.float(), lengths[part])
        for part in (slice(2), slice(2, 6))
    ]
    outputs = [torch.tensor(right)[:2], torch.tensor(right)[2:]]
    assert fit_temperature(halves, outputs) == pytest.approx(found, rel=1e-5)


@pytest.mark.parametrize("projective", [True, False])
def test_the_temperature_of_trees_is_that_of_the_whole_trees(projective):
    arcs = 3 * normal(5, 4, 4, seed=3)
    right = [[2, 0, 2], [0, 1, 2], [3, 3, 0], [0, 1, 1], [2, 3, 0]]
    trees = list(oracle.trees(3, multiroot=False, projective=projective))
    loss = enumerated(lambda i, y: oracle.tree_score(arcs[i].tolist(), y), lambda i: trees, right)
    space = softq.ProjectiveTree if projective else softq.SpanningTree
    found = fit_temperature([space(arcs)], [torch.tensor(right)])
    assert found == pytest.approx(minimum(loss), rel=1e-5)


def test_sharpened_models_get_their_temperature_back():
    # labels from the model itself: the estimate of log T has the standard error
    # 1 / sqrt(Σ Var[score]); 7 of them are exceeded with probability below 1e-11
    model = softq.Categorical(normal(4000, 5, seed=4))
    right = model.sample(generator=torch.Generator().manual_seed(5))
    p = model.marginals
    variance = float(((p * model.scores**2).sum(1) - (p * model.scores).sum(1) ** 2).sum())
    found = fit_temperature([model.tempered(1 / 8)], [right])
    assert abs(math.log(found / 8)) < 7 / math.sqrt(variance)


def test_impossible_outputs_are_left_out():
    scores = torch.tensor([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [0.0, -math.inf]])
    with pytest.warns(DataWarning, match="1 of 4 outputs are impossible"):
        found = fit_temperature([softq.Categorical(scores)], [torch.tensor([0, 0, 1, 1])])
    assert found == pytest.approx(3.0 / math.log(2.0), rel=1e-6)
    with pytest.raises(DataError, match="got 1, all of which are impossible"):
        fit_temperature([softq.Categorical(scores[3:])], [torch.tensor([1])])


@pytest.mark.parametrize(("right", "end", "why"), [(0, 0.01, "most probable"), (1, 100, "nothing")])
def test_where_no_temperature_is_best_the_end_of_the_range_is_taken(right, end, why):
    model = softq.Categorical(torch.tensor([[2.0, 0.0]] * 3))
    with pytest.warns(ConvergenceWarning, match=why):
        assert fit_temperature([model], [torch.full((3,), right)]) == pytest.approx(end)


def test_intervals_cover_as_often_as_they_say():
    # Wilson's interval of 40 coins; over these shares it covers 92 to 98 % of the time
    counts = np.arange(41.0)
    low, high = wilson_interval(counts, np.full(41, 40.0))
    for share in (0.05, 0.3, 0.5, 0.9):
        log_choose = np.array([np.log(np.arange(k + 1, 41)).sum() for k in range(41)])
        log_choose -= [np.log(np.arange(1, 41 - k)).sum() for k in range(41)]
        chance = np.exp(log_choose + counts * np.log(share) + (40 - counts) * np.log(1 - share))
        assert 0.92 < chance[(low <= share) & (share <= high)].sum() < 0.98
    assert [ends.item() for ends in wilson_interval(np.array(0.0), np.array(0.0))] == [0, 1]
