"""Rewards by name, abstention, progress and threads of softq.RewardClassifier."""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import math

import numpy as np
import pytest
import torch

from classifier_problems import OBJECTIVES, blobs, draw_four_classes
from softq import RewardClassifier
from softq.errors import EstimatorError, RewardError, ShapeError

FAST = {"hidden": (), "alpha": 1.0, "tau": 1.0, "random_state": 0}


def shares(counts):
    """Rows of two features that say nothing, with so many labels of each class."""
    y = np.repeat(np.arange(len(counts)), counts)
    return np.zeros((len(y), 1)), y


# --- rewards by name ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("absolute", lambda a, b, i, j: -abs(a - b)),
        ("squared", lambda a, b, i, j: -((a - b) ** 2)),
        ("quadratic-kappa", lambda a, b, i, j: 1 - (i - j) ** 2 / 4),
    ],
)
def test_rewards_of_ordered_classes(name, of, tmp_path):
    X, y = np.zeros((30, 1)), np.array([1, 2, 5] * 10)
    model = RewardClassifier(reward=name, **FAST).fit(X, y)
    table = [[of(a, b, i, j) for j, b in enumerate((1, 2, 5))] for i, a in enumerate((1, 2, 5))]
    np.testing.assert_allclose(model.reward_, table)
    model.save(tmp_path / "classifier")
    loaded = RewardClassifier.load(tmp_path / "classifier")
    assert loaded.reward == name
    assert np.array_equal(loaded.reward_, model.reward_)
    assert loaded.score(X, y) == model.score(X, y)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_absolute_rewards_decide_for_the_median_and_squared_for_the_mean(objective):
    # of 40 % at 0, 15 % at 1, 5 % at 2, and 40 % at 6 the mode is 0 or 6, the median 1, the mean 2.65
    values, counts = np.array([0, 1, 2, 6]), [40, 15, 5, 40]
    X, y = shares(counts)
    X, y = np.tile(X, (5, 1)), values[np.tile(y, 5)]
    for name, best in (("absolute", 1), ("squared", 2)):
        model = RewardClassifier(reward=name, objective=objective, **FAST | {"tau": 6.0})
        assert model.fit(X, y).predict([[0.0]]).tolist() == [best]


def test_names_need_numbers_and_must_be_known():
    X, y = np.zeros((4, 1)), ["low", "high", "low", "medium"]
    with pytest.raises(RewardError, match="'high', 'low', 'medium', which would be in alphabet"):
        RewardClassifier(reward="absolute", **FAST).fit(X, y)
    with pytest.raises(RewardError, match=r"one of absolute, squared, .* did you mean 'squared'"):
        RewardClassifier(reward="square", **FAST).fit(X, [0, 1, 2, 1])


@pytest.mark.parametrize(
    ("cost", "got"),
    [
        ([[0, 1, 2], [1, 0], [1, 1, 0]], "rows of different lengths: 3 in row 0, 2 in row 1"),
        ([[0, 1], [1, "x"]], "a list with other values among them"),
        ("abc", "got str"),
        (object(), "got object"),
    ],
)
def test_what_is_no_table_is_told(cost, got):
    with pytest.raises(RewardError, match=got):
        RewardClassifier(cost=cost, **FAST).fit(np.zeros((3, 1)), [0, 1, 2])


# --- abstention -----------------------------------------------------------------------------------

COSTS = np.array([[0.0, 4.0, 1.0], [1.0, 0.0, 6.0], [2.0, 1.0, 0.0]])


@pytest.mark.parametrize("price", [0.2, 0.8, 1.2, 3.0])
def test_to_abstain_is_the_bayes_rule_with_one_more_decision(price):
    # P(y|x) is known where x says nothing: of likelihood the shares, up to the penalty of nothing
    for counts in ([60, 30, 10], [20, 60, 20], [5, 5, 90], [34, 33, 33]):
        X, y = shares(counts)
        model = RewardClassifier(cost=COSTS, abstain=price, objective="ml", **FAST).fit(X, y)
        with_abstaining = np.vstack([COSTS, np.full(3, price)])  # [K + 1, K], as a row of its own
        expected = with_abstaining @ np.array(counts) / 100
        decided = None if expected.argmin() == 3 else int(expected.argmin())
        assert model.predict([[0.0]]).tolist() == [decided]
        assert model.score(X, y) == pytest.approx(-expected.min(), abs=1e-6)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_abstains_by_its_expected_reward(objective):
    X, labels, _ = draw_four_classes(300, 5, seed=0)
    rewards = np.array([[3.0, 0, 0, 0], [0, 2.0, 0, 0], [0, 0, 2.5, 0], [0, 0, 0, 2.0]])
    model = RewardClassifier(reward=rewards, objective=objective, **FAST).fit(X, labels)
    always, expected = model.predict(X), model.expected_reward(X)
    price = float(np.median(expected.max(1)))
    model.set_params(abstain=price)  # which training does not depend on
    found = model.predict(X)
    silent = np.array([label is None for label in found])
    assert 0.4 < silent.mean() < 0.6
    assert np.array_equal(silent, expected.max(1) < price)
    assert found[~silent].tolist() == always[~silent].tolist()
    earned = rewards[always][np.arange(300)[:, None], labels].mean(1)
    assert model.score(X, labels) == pytest.approx(np.where(silent, price, earned).mean())
    assert model.set_params(abstain=None).predict(X).dtype == always.dtype


def test_without_a_table_the_price_is_a_probability(tmp_path):
    X, y = shares([70, 30])
    y = np.array(["no", "yes"])[y]
    model = RewardClassifier(objective="ml", abstain=0.65, **FAST).fit(X, y)
    assert model.predict([[0.0]]).tolist() == ["no"]
    model.save(tmp_path / "classifier")
    assert RewardClassifier.load(tmp_path / "classifier").abstain == 0.65
    assert model.set_params(abstain=0.75).predict([[0.0]]).tolist() == [None]
    with pytest.raises(EstimatorError, match="abstain must be a finite number, got inf"):
        RewardClassifier(abstain=math.inf, **FAST).fit(X, y)


def test_rewards_for_each_row_can_be_abstained_from():
    X, y = shares([60, 40])
    tables = np.tile(np.eye(2), (100, 1, 1))
    model = RewardClassifier(objective="sqdml", abstain=1.0, **FAST).fit(X, y, rewards=tables)
    tables = np.array([np.eye(2), 5 * np.eye(2)])
    assert model.predict(np.zeros((2, 1)), rewards=tables).tolist() == [None, 0]
    with pytest.raises(RewardError, match=r"give rewards, \[n, K, K\], for the rows of X"):
        model.predict([[0.0]])


# --- progress and threads -------------------------------------------------------------------------


def test_verbose_tells_what_inner_folds_find(capsys):
    X, y = blobs(40)
    RewardClassifier(random_state=0).fit(X, y)
    assert not capsys.readouterr().out
    model = RewardClassifier(random_state=0, verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:6]] == [
        f"hidden {hidden}, alpha {alpha:g}" for hidden in ((), (32,)) for alpha in (1.0, 3.0, 10.0)
    ]
    assert [line.partition(":")[0] for line in lines[6:10]] == [
        f"tau {tau:g}" for tau in (0.005, 0.3, 1.0, 3.0)
    ]
    assert lines[10].endswith(f"after {model.n_iter_} iterations")


def test_small_fits_take_one_thread_and_give_the_others_back(monkeypatch):
    seen, before = [], torch.get_num_threads()
    original = torch.addmm

    def noted(*arguments):
        seen.append(torch.get_num_threads())
        return original(*arguments)

    monkeypatch.setattr(torch, "addmm", noted)
    torch.set_num_threads(2)
    try:
        X, y = blobs(40)
        RewardClassifier(**FAST).fit(X, y)
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
        seen.clear()
        monkeypatch.setattr("softq.linear.classifier_training._WORTH_THREADS", 1)
        RewardClassifier(**FAST).fit(X, y)
        assert set(seen) == {2}
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [np.array, list, lambda table: torch.tensor(np.array(table))])
def test_one_table_of_other_rewards_decides_for_all_rows(kind):
    X, y = blobs(40, seed=0)
    model = RewardClassifier(objective="ml", **FAST).fit(X, y)
    p, table = model.predict_proba(X), np.random.default_rng(0).normal(size=(3, 3))
    rewards = kind(table.tolist())
    np.testing.assert_allclose(model.expected_reward(X, rewards), p @ table.T)
    assert np.array_equal(model.predict(X, rewards), model.classes_[(p @ table.T).argmax(1)])
    each = np.broadcast_to(table, (len(X), 3, 3))
    assert model.score(X, y, rewards=rewards) == pytest.approx(model.score(X, y, rewards=each))
    with pytest.raises(RewardError, match="rows of different lengths: 3 in row 0, 2 in row 1"):
        model.predict(X, [[1.0, 0.0, 0.0], [0.0, 1.0], [0.0, 0.0, 1.0]])
    with pytest.raises(ShapeError, match=r"rewards must be \[3, 3\]"):
        model.predict(X, np.eye(2))
