"""Costs, penalties, chosen temperatures, weights of rows, tables for each row and soft labels of softq.RewardClassifier."""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import math

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from classifier_problems import OBJECTIVES, REWARDS, blobs, draw_four_classes
from softq.errors import DataError, EstimatorError, OutputError, RewardError, ShapeError
from softq.linear import RewardClassifier
from softq.linear.classifier import RewardWarning
from softq.linear.classifier_training import ALPHAS, TEMPERATURES
from softq.linear.lbfgs import LBFGS

COSTS = np.array([[0.0, 4.0, 1.0], [1.0, 0.0, 6.0], [2.0, 1.0, 0.0]])
LINEAR = {"hidden": (), "alpha": 1.0, "tau": 2.0, "max_epochs": 1000, "random_state": 0}


def noisy(rows=120, seed=0):
    """Points of three classes that overlap."""
    X, y = blobs(rows, seed=seed)
    return X + np.random.default_rng(seed).normal(size=X.shape) * 2.0, y


# --- the penalty --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 10.0])
def test_a_linear_model_is_logistic_regression(alpha):
    X, y = noisy()
    weights = np.random.default_rng(1).uniform(0.1, 3.0, len(X))
    model = RewardClassifier(**LINEAR | {"objective": "ml", "alpha": alpha}).fit(
        X, y, sample_weight=weights
    )
    scaler = StandardScaler().fit(X, sample_weight=weights)
    peer = LogisticRegression(C=1.0 / alpha, tol=1e-10, max_iter=10_000).fit(
        scaler.transform(X), y, sample_weight=weights
    )
    np.testing.assert_allclose(
        model.predict_proba(X), peer.predict_proba(scaler.transform(X)), atol=1e-4
    )
    assert model.alpha_ == alpha


@pytest.mark.parametrize("scaled", [False, True])
def test_the_gradient_of_networks_is_that_of_autograd(monkeypatch, scaled):
    X, y = noisy()
    tau, scale = 30.0, 20.0 if scaled else 1.0  # 30 over a quarter of the rewards' range
    weights = np.random.default_rng(1).uniform(0.1, 3.0, len(X))
    found = []

    class Recorder(LBFGS):
        def __init__(self, point, evaluate, **options):
            gradient = torch.empty_like(point)
            found.append((point.clone(), evaluate(point, gradient), gradient))
            super().__init__(point, evaluate, **options)

    monkeypatch.setattr("softq.linear.classifier_training.LBFGS", Recorder)
    options = {
        "tau": tau,
        "temperature_scaled": scaled,
        "hidden": (5, 4),
        "alpha": 7.0,
        "max_epochs": 1,
    }
    model = RewardClassifier(cost=COSTS, **options).fit(X, y, sample_weight=weights)
    point, value, gradient = found[0]
    leaf = point.requires_grad_()
    x = torch.from_numpy((X - model.mean_) / model.scale_)
    first, a, second, b, third, c = torch.split(leaf, [10, 5, 20, 4, 12, 3])
    hidden = ((x @ first.view(5, 2).T + a).relu() @ second.view(4, 5).T + b).relu()
    targets = torch.from_numpy(-COSTS / tau).softmax(0).T[torch.from_numpy(y)]
    by_row = -(targets * ((hidden @ third.view(3, 4).T + c) / scale).log_softmax(1)).sum(1)
    rows = torch.from_numpy(weights)
    penalty = 7.0 / (2 * rows.sum()) * sum((part**2).sum() for part in (first, second, third))
    loss = scale**2 * (rows @ by_row) / rows.sum() + penalty
    torch.testing.assert_close(torch.tensor(value, dtype=torch.float64), loss.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(loss, leaf)[0])


def test_both_solvers_find_the_same_minimum():
    X, y = noisy()
    exact = RewardClassifier(cost=COSTS, **LINEAR | {"alpha": 5.0}).fit(X, y)
    steps = clone(exact).set_params(solver="sgd", batch_size=len(X)).fit(X, y)
    np.testing.assert_allclose(steps.predict_proba(X), exact.predict_proba(X), atol=1e-3)


# --- decisions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tau", [0.05, 5.0])
def test_decisions_are_those_of_the_highest_expected_reward(objective, tau):
    X, y = noisy()
    model = RewardClassifier(cost=COSTS, **LINEAR | {"objective": objective, "tau": tau}).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), model.expected_reward(X).argmax(1))
    bayes = RewardClassifier(cost=COSTS, **LINEAR | {"objective": "ml"}).fit(X, y).predict(X)
    assert (model.predict(X) == bayes).mean() > 0.7


def test_costs_are_rewards_with_the_opposite_sign():
    X, y = noisy()
    cost, reward = (
        RewardClassifier(cost=COSTS, **LINEAR).fit(X, y),
        RewardClassifier(reward=-COSTS, **LINEAR).fit(X, y),
    )
    np.testing.assert_array_equal(cost.expected_reward(X), reward.expected_reward(X))
    np.testing.assert_array_equal(cost.reward_, -COSTS)
    assert cost.score(X, y) == -COSTS[cost.predict(X), y].mean()


def test_costs_in_the_place_of_rewards_are_noticed():
    X, y = noisy()
    with pytest.warns(
        RewardWarning,
        match=(
            "where 0 is right, predicting it earns 0 and predicting 2 earns 2; if these are costs,"
            " give"
        ),
    ):
        RewardClassifier(reward=COSTS, **LINEAR).fit(X, y)
    tables = np.stack([-COSTS] * len(X))
    tables[7] = COSTS
    with pytest.warns(RewardWarning, match=r"where 0 is right \(row 7\)"):
        RewardClassifier(**LINEAR).fit(X, y, rewards=tables)


# --- options that are chosen --------------------------------------------------------------------------


def test_chosen_options_are_of_their_lists():
    X, y = noisy(40)
    for unit in (1.0, 100.0):
        model = RewardClassifier(cost=unit * COSTS, random_state=0).fit(X, y)
        assert model.alpha_ in ALPHAS
        assert min(abs(model.tau_ / (unit * 6.0) - factor) for factor in TEMPERATURES) < 1e-12
    assert clone(model).fit(X, y).tau_ == model.tau_
    given = clone(model).set_params(tau=model.tau_, alpha=model.alpha_).fit(X, y)
    assert (given.tau_, given.alpha_) == (model.tau_, model.alpha_)
    assert RewardClassifier(objective="ml", alpha=2.0).fit(X, y).tau_ == 1.0


def test_a_large_penalty_is_chosen_for_noise_and_a_small_one_for_clear_classes():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(100, 10)), rng.integers(2, size=100)
    assert RewardClassifier(tau=1.0, random_state=0).fit(X, y).alpha_ == max(ALPHAS)
    assert RewardClassifier(tau=1.0, random_state=0).fit(X, X[:, 0] > 0).alpha_ < max(ALPHAS)


def test_several_labels_need_no_cold_temperature():
    """SQDML's target at a cold temperature would be a hard decision.

    Few rows, as many labels each.
    """
    inputs, labels, _ = draw_four_classes(300, 10, seed=0)
    model = RewardClassifier(reward=REWARDS, alpha=1.0, random_state=0).fit(inputs, labels)
    assert model.tau_ >= 0.05 * REWARDS.max()
    points, _, p = draw_four_classes(5000, 1, seed=1)
    earned = p @ REWARDS.T
    assert earned[np.arange(5000), model.predict(points)].mean() > 0.98 * earned.max(1).mean()


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_are_enough_to_choose_by(rows):
    model = RewardClassifier(random_state=0).fit(np.arange(float(rows))[:, None], np.arange(rows))
    assert model.predict_proba([[0.0]]).shape == (1, rows)


def test_many_rows_are_not_all_needed_to_choose(monkeypatch):
    monkeypatch.setattr("softq.linear.classifier_training._MOST_ROWS_TO_CHOOSE_BY", 20)
    X, y = noisy(60)
    assert RewardClassifier(max_epochs=5, random_state=0).fit(X, y).predict(X).shape == (60,)


# --- weights of rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"objective": "ml"}], ids=str)
def test_a_weight_is_a_number_of_copies(options):
    X, y = noisy()
    weights = np.arange(len(X)) % 4
    weighted = RewardClassifier(cost=COSTS, **LINEAR | options).fit(X, y, sample_weight=weights)
    copies = clone(weighted).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    np.testing.assert_allclose(weighted.predict_proba(X), copies.predict_proba(X), atol=1e-4)
    assert weighted.score(X, y, sample_weight=weights) == pytest.approx(
        copies.score(np.repeat(X, weights, axis=0), np.repeat(y, weights))
    )


def test_gradient_descent_draws_rows_by_their_weights():
    X, y = np.zeros((400, 1)), np.arange(400) % 2
    model = RewardClassifier(
        **LINEAR | {"objective": "ml", "solver": "sgd", "alpha": 0.0, "max_epochs": 200}
    )
    assert model.fit(X, y, sample_weight=1.0 + 3.0 * y).predict_proba([[0.0]])[
        0, 1
    ] == pytest.approx(0.8, abs=0.08)
    alone = clone(model).fit(X, y, sample_weight=np.where(y == 1, 1.0, 0.0))
    assert alone.classes_.tolist() == [0, 1]
    assert alone.predict_proba([[0.0]])[0, 1] > 0.95


def test_bad_weights():
    X, y = noisy(20)
    with pytest.raises(ValueError, match="at least one non-zero number"):
        RewardClassifier(**LINEAR).fit(X, y, sample_weight=np.zeros(20))
    with pytest.raises(ValueError, match="Negative values"):
        RewardClassifier(**LINEAR).fit(X, y, sample_weight=-np.ones(20))


# --- tables for each row ------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_same_table_for_each_row_changes_nothing(objective):
    X, y = noisy()
    tables = np.stack([-COSTS] * len(X))
    one = RewardClassifier(cost=COSTS, **LINEAR | {"objective": objective}).fit(X, y)
    each = RewardClassifier(**LINEAR | {"objective": objective}).fit(X, y, rewards=tables)
    np.testing.assert_allclose(each.predict_proba(X), one.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(
        each.expected_reward(X, rewards=tables), one.expected_reward(X), atol=1e-4
    )
    assert each.score(X, y, rewards=tables) == pytest.approx(one.score(X, y))
    assert each.reward_ is None


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_decisions_follow_the_table_of_their_row(objective):
    """Nothing is known of the class but P = 1/2; a row's own costs decide."""
    X, y = np.zeros((200, 1)), np.arange(200) % 2
    high = np.where(np.arange(200) // 2 % 2 == 0, 5.0, 0.2)  # what it costs to miss class 1
    tables = np.zeros((200, 2, 2))
    tables[:, 0, 1], tables[:, 1, 0] = -high, -1.0
    options = LINEAR | {"objective": objective, "tau": 0.1}
    model = RewardClassifier(**options).fit(X, y, rewards=tables)
    np.testing.assert_array_equal(model.predict(X, rewards=tables), np.where(high > 1.0, 1, 0))
    # A model with one table for all decides by others, too.
    shared = RewardClassifier(**options).fit(X, y)
    np.testing.assert_array_equal(shared.predict(X, rewards=tables), np.where(high > 1.0, 1, 0))
    with pytest.raises(
        RewardError, match=r"fitted with a reward table for each row: give rewards, \[n, K, K\]"
    ):
        model.expected_reward(X)
    if objective == "ml":
        with pytest.raises(RewardError, match="give rewards"):
            model.predict(X)
    else:
        np.testing.assert_array_equal(model.predict(X), model.predict_proba(X).argmax(1))


def test_tables_for_each_row_may_differ_with_the_inputs(tmp_path):
    """To miss class 1 is dear on the right and cheap on the left.

    Without tables at hand, the model has learned where.
    """
    rng = np.random.default_rng(0)
    X, y = rng.choice([-1.0, 1.0], size=(400, 1)), rng.integers(2, size=400)
    tables = np.zeros((400, 2, 2))
    tables[:, 0, 1], tables[:, 1, 0] = np.where(X[:, 0] > 0, -5.0, -0.2), -1.0
    model = RewardClassifier(**LINEAR | {"tau": 5.0}).fit(X, y, rewards=tables)
    assert model.predict([[-1.0], [1.0]]).tolist() == [0, 1]
    model.save(tmp_path / "model")
    loaded = RewardClassifier.load(tmp_path / "model")
    assert loaded.reward_ is None
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(
        loaded.expected_reward(X, rewards=tables), model.expected_reward(X, rewards=tables)
    )


def test_bad_tables_for_each_row():
    X, y = noisy(20)
    tables = np.stack([-COSTS] * 20)
    with pytest.raises(
        ShapeError,
        match=r"rewards must be \[20, 3, 3\] \(row, predicted, right\) .*; got \[19, 3, 3\]",
    ):
        RewardClassifier(**LINEAR).fit(X, y, rewards=tables[1:])
    with pytest.raises(EstimatorError, match="take the place of reward and cost"):
        RewardClassifier(cost=COSTS, **LINEAR).fit(X, y, rewards=tables)
    model = RewardClassifier(**LINEAR).fit(X, y)
    with pytest.raises(RewardError, match=r"every reward must be finite, got nan at \(3, 1, 1\)"):
        model.predict(X, rewards=np.where(np.arange(180).reshape(20, 3, 3) == 31, math.nan, tables))
    with pytest.raises(OutputError, match="row 4 of y has another label"):
        model.score(X, np.where(np.arange(20) == 4, 9, y), rewards=tables)


# --- soft labels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_soft_labels_are_shares_of_labels(objective):
    X, y = noisy()
    labels = np.stack([y, np.roll(y, 1), y, y], 1)
    shares = np.stack([(labels == k).mean(1) for k in range(3)], 1)
    options = LINEAR | {"objective": objective}
    hard, soft = (
        RewardClassifier(cost=COSTS, **options).fit(X, labels),
        RewardClassifier(cost=COSTS, **options).fit(X, shares),
    )
    np.testing.assert_allclose(soft.predict_proba(X), hard.predict_proba(X), atol=1e-7)
    np.testing.assert_allclose(soft.expected_reward(X), hard.expected_reward(X), atol=1e-5)
    assert soft.score(X, shares) == pytest.approx(hard.score(X, labels))
    assert soft.classes_.tolist() == [0, 1, 2]
    np.testing.assert_allclose(
        clone(soft).fit(X, shares.tolist()).predict_proba(X), soft.predict_proba(X)
    )


def test_bad_soft_labels():
    X = np.zeros((3, 1))
    with pytest.raises(DataError, match=r"a row must sum to one: row 1 is \[0.5, 0.4\]"):
        RewardClassifier(**LINEAR).fit(X, [[0.5, 0.5], [0.5, 0.4], [1.0, 0.0]])
    with pytest.raises(DataError, match="row 2 is"):
        RewardClassifier(**LINEAR).fit(X, [[0.5, 0.5], [0.5, 0.5], [1.5, -0.5]])
    with pytest.raises(ShapeError, match="a row for each of the 3 rows of X, got 2"):
        RewardClassifier(**LINEAR).fit(X, [[0.5, 0.5], [0.5, 0.5]])
    model = RewardClassifier(**LINEAR).fit(X, [[0.5, 0.5], [0.9, 0.1], [0.0, 1.0]])
    with pytest.raises(
        ShapeError, match=r"soft labels must be \[n, 2\], a probability of each class, got \[3, 3\]"
    ):
        model.score(X, [[0.5, 0.5, 0.0], [0.9, 0.1, 0.0], [0.0, 1.0, 0.0]])
