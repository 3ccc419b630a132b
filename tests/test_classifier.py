"""softq.RewardClassifier: scikit-learn's own checks, the paper's four-class problem, plain torch and plain Python as oracles."""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import json
import math
import os
import warnings

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.parallel import Parallel, delayed

import oracle
import softq
from softq import theory
from softq.errors import (
    DataError,
    DtypeError,
    EstimatorError,
    OutputError,
    RewardError,
    ScoreError,
    ShapeError,
    SoftqError,
    TemperatureError,
)
from softq.estimators import RewardClassifier
from softq.estimators.inverse import expected_rewards
from softq.estimators.labels import MISSING, learn_labels
from softq.estimators.training import first_parameters, layers_of, target_table

OBJECTIVES = ["ml", "raml", "sqdml"]


@parametrize_with_checks(
    [
        RewardClassifier(max_epochs=30),
        RewardClassifier(objective="ml", max_epochs=30),
        RewardClassifier(objective="raml", tau=20.0, temperature_scaled=True, hidden=(6,), max_epochs=30),
        RewardClassifier(objective="raml", tau=0.5, hidden=(), batch_size=50, max_epochs=50),
        RewardClassifier(early_stopping=True, patience=5, max_epochs=30),
    ]
)
def test_scikit_learn(estimator, check):
    check(estimator)


def random_problem(seed, size=4, rows=6):
    """Rows P(·|x) and a reward table."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(size), rows), rng.normal(size=(size, size)) * rng.choice([0.5, 5.0])


def draw_four_classes(rows, labels, seed):
    """Points of the square, labels drawn for each, and P(y|x)."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(rows, 2, generator=generator, dtype=torch.float64) * 2 - 1
    corners = torch.tensor([[1, 1], [1, -1], [-1, -1], [-1, 1]], dtype=torch.float64)
    p = torch.softmax(-torch.cdist(inputs, corners), -1)
    return inputs.numpy(), torch.multinomial(p, labels, replacement=True, generator=generator).numpy(), p.numpy()


REWARDS = theory.four_class_problem(1).rewards.numpy()


def blobs(rows=120, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=rows)
    return rng.normal(size=(rows, 2)) + 3.0 * np.stack([np.cos(y * 2.0), np.sin(y * 2.0)], 1), y


# --- the paper's four-class problem -------------------------------------------------------------------


@pytest.fixture(scope="module")
def four_classes():
    return draw_four_classes(20_000, 10, seed=0), draw_four_classes(50_000, 1, seed=1)


def share_of_bayes(model, test):
    inputs, _, p = test
    earned = p @ REWARDS.T
    return earned[np.arange(len(p)), model.predict(inputs)].mean() / earned.max(1).mean()


@pytest.mark.parametrize("options", [{"tau": 1.1}, {"tau": 0.1}, {"tau": 1000.0, "temperature_scaled": True}], ids=str)
def test_sqdml_decides_like_the_bayes_rule(four_classes, options):
    (inputs, labels, _), test = four_classes
    sqdml = RewardClassifier(reward=REWARDS, max_epochs=20, random_state=0, **options).fit(inputs, labels)
    assert share_of_bayes(sqdml, test) > 0.995
    assert share_of_bayes(clone(sqdml).set_params(objective="ml").fit(inputs, labels), test) < 0.96  # 2.18019 / 2.31555 in the limit


def test_expected_reward_of_trained_models(four_classes):
    (inputs, labels, _), (points, _, p) = four_classes
    truth = p @ REWARDS.T  # up to 4.5, 0.97 from its mean on average
    # The third: ten labels leave SQDML's target a little short of Q.
    for objective, tau, error in [("ml", 1.0, 0.06), ("raml", 2.4, 0.08), ("sqdml", 2.4, 0.08)]:
        model = RewardClassifier(reward=REWARDS, objective=objective, tau=tau, max_epochs=20, random_state=0).fit(inputs, labels)
        assert np.abs(model.expected_reward(points) - truth).mean() < error, objective


def test_the_gain_is_the_labels_not_the_objective():
    """With one label per row SQDML's target is RAML's."""
    inputs, labels, _ = draw_four_classes(500, 1, seed=3)
    raml, sqdml = (
        RewardClassifier(reward=REWARDS, objective=objective, max_epochs=3, random_state=0).fit(inputs, labels[:, 0])
        for objective in ("raml", "sqdml")
    )
    np.testing.assert_allclose(raml.predict_proba(inputs), sqdml.predict_proba(inputs), atol=1e-6)
    np.testing.assert_allclose(raml.expected_reward(inputs), sqdml.expected_reward(inputs), atol=1e-4)


# --- targets and training against independent code ----------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tau", [0.3, 2.0])
def test_targets_against_plain_python(objective, tau):
    _, table = random_problem(5)
    y = [["d", "a", "a"], ["b", None, "c"], ["c", None, None], ["a", "d", "a"]]
    classes, patterns = learn_labels(y, 4)
    assert classes.tolist() == ["a", "b", "c", "d"]
    assert len(patterns.references) == 3  # the first and the last row say the same
    rows = target_table(objective, patterns, table, tau)[patterns.of_row].tolist()
    earned = patterns.mean_rewards(table)[patterns.of_row].tolist()
    for labels, row, earned_row in zip(y, rows, earned, strict=True):
        refs = ["abcd".index(label) for label in labels if label is not None]
        shares = [refs.count(z) / len(refs) for z in range(4)]
        payoffs = [oracle.probabilities([table[z][ref] / tau for z in range(4)]) for ref in refs]
        means = [math.fsum(table[z][ref] for ref in refs) / len(refs) for z in range(4)]
        raml = [math.fsum(payoff[z] for payoff in payoffs) / len(refs) for z in range(4)]
        expected = {"ml": shares, "raml": raml, "sqdml": oracle.probabilities([mean / tau for mean in means])}
        assert row == pytest.approx(expected[objective])
        assert earned_row == pytest.approx(means)


def test_many_patterns_are_taken_in_parts(monkeypatch):
    _, labels, _ = draw_four_classes(200, 6, seed=0)
    _, patterns = learn_labels(labels, 200)
    whole = target_table("sqdml", patterns, REWARDS, 0.7)
    monkeypatch.setattr("softq.estimators.training._CELLS_AT_ONCE", 100)
    torch.testing.assert_close(target_table("sqdml", patterns, REWARDS, 0.7), whole, rtol=0, atol=0)


@pytest.mark.parametrize(("objective", "scaled"), [("ml", False), ("raml", False), ("sqdml", False), ("sqdml", True)])
def test_training_against_torch(objective, scaled):
    """Whole batches: the order of the rows does not matter, and torch's own network, loss and optimizer must end at the same weights."""
    inputs, labels, _ = draw_four_classes(60, 3, seed=0)
    inputs = inputs * [3.0, 0.2] + [5.0, -1.0]
    tau, epochs = 1.5, 5
    model = RewardClassifier(
        reward=REWARDS,
        objective=objective,
        tau=tau,
        temperature_scaled=scaled,
        hidden=(5,),
        batch_size=60,
        max_epochs=epochs,
        random_state=7,
    ).fit(inputs, labels)

    weights, biases = layers_of(first_parameters((2, 5, 4), np.random.RandomState(7)), (2, 5, 4))
    first, second = torch.nn.Linear(2, 5), torch.nn.Linear(5, 4)
    with torch.no_grad():
        for layer, weight, bias in zip((first, second), weights, biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weight.T))
            layer.bias.copy_(torch.from_numpy(bias))
    x = torch.from_numpy((inputs - inputs.mean(0)) / inputs.std(0)).float()
    refs = torch.from_numpy(labels)
    # Rewards and τ in units of a quarter of the rewards' range: the target is the same, scaled scores are of another size.
    unit = float(np.ptp(REWARDS)) / 4.0 if scaled else 1.0
    reward = softq.rewards.Matrix(torch.from_numpy(REWARDS / unit))
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1, momentum=0.9)
    losses = []
    for _ in range(epochs):
        space = softq.Categorical(second(first(x).relu()))
        target = softq.ml(space, refs) if objective == "ml" else getattr(softq, objective)(space, refs, tau / unit, reward)
        loss = softq.cross_entropy(target, space, temperature_scaled=scaled).mean()
        losses.append(loss.item() / ((tau / unit) ** 2 if scaled else 1.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        scores = second(first(x).relu()) / (tau / unit if scaled else 1.0)
    np.testing.assert_allclose(model.predict_proba(inputs), torch.softmax(scores, -1).numpy(), atol=2e-6)
    np.testing.assert_allclose(model.loss_curve_, losses, rtol=1e-5)


def test_the_loss_of_an_epoch_is_a_mean_over_rows():
    """Without steps to speak of, the last small batch must weigh by its rows: the loss is that of all rows at once."""
    X, y = blobs(50)
    options = {"learning_rate": 1e-12, "max_epochs": 1, "random_state": 0}
    whole, parts = (RewardClassifier(batch_size=size, **options).fit(X, y).loss_curve_ for size in (50, 48))
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


def test_the_network_is_the_mean_over_the_last_epoch():
    X, y = blobs(40)
    options = {"hidden": (), "random_state": 0, "momentum": 0.0, "max_epochs": 1}
    first = layers_of(first_parameters((2, 3), np.random.RandomState(0)), (2, 3))[0][0]
    one = RewardClassifier(batch_size=40, **options).fit(X, y).coefs_[0]
    # Two steps on the same rows are nearly the same step: after them 1 and 2, on average 1.5.
    two = RewardClassifier(batch_size=40, learning_rate=0.1, **options).fit(np.tile(X, (2, 1)), np.tile(y, 2)).coefs_[0]
    assert np.abs(two - first).sum() == pytest.approx(1.5 * np.abs(one - first).sum(), rel=0.3)


@pytest.mark.parametrize("options", [{"temperature_scaled": True}, {}], ids=["scaled", "plain"])
@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_units_of_the_reward_do_not_matter(objective, options):
    inputs, labels, _ = draw_four_classes(200, 3, seed=0)
    small, large = (
        RewardClassifier(reward=unit * REWARDS, tau=1.5 * unit, objective=objective, max_epochs=5, random_state=0, **options)
        for unit in (1.0, 1024.0)  # a power of two: no digit is lost
    )
    np.testing.assert_array_equal(small.fit(inputs, labels).predict_proba(inputs), large.fit(inputs, labels).predict_proba(inputs))
    np.testing.assert_allclose(1024 * small.expected_reward(inputs), large.expected_reward(inputs))


def test_ml_knows_no_temperature():
    X, y = blobs(60)
    plain, hot = (
        RewardClassifier(objective="ml", max_epochs=3, random_state=0, **options).fit(X, y)
        for options in ({}, {"tau": 50.0, "temperature_scaled": True})
    )
    np.testing.assert_array_equal(plain.predict_proba(X), hot.predict_proba(X))


def test_features_may_have_any_units():
    X, y = blobs(100)
    plain = RewardClassifier(max_epochs=5, random_state=0).fit(X, y)
    moved = clone(plain).fit(X * [1e6, 1e-6] + [1e8, 0.0], y)
    np.testing.assert_allclose(plain.predict_proba(X), moved.predict_proba(X * [1e6, 1e-6] + [1e8, 0.0]), atol=1e-4)


# --- expected rewards ---------------------------------------------------------------------------------


@pytest.mark.parametrize("warmth", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(5))
def test_expected_rewards_of_exact_targets(seed, warmth):
    p, table = random_problem(seed)
    tau = warmth * table.std()
    shift = np.arange(6.0)[:, None]  # scores are known up to a constant per row
    targets = {
        "ml": np.log(p),
        "raml": theory.q_prime(torch.from_numpy(p), torch.from_numpy(table), tau).log().numpy(),
        "sqdml": p @ table.T / tau,
    }
    for objective, log_model in targets.items():
        np.testing.assert_allclose(expected_rewards(objective, log_model + shift, table, tau), p @ table.T, atol=1e-6, err_msg=objective)


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_expected_rewards_where_right_classes_are_rewarded_alike(objective):
    """P(y|x) is not known then, but what it earns is."""
    p, table = random_problem(1)
    table[:, 2] = table[:, 0]
    q = (theory.q_prime if objective == "raml" else theory.softmax_q)(torch.from_numpy(p), torch.from_numpy(table), 1.3)
    np.testing.assert_allclose(expected_rewards(objective, q.log().numpy(), table, 1.3), p @ table.T, atol=1e-8)


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_expected_rewards_where_decisions_do_not_matter(objective):
    """Then Q says nothing of P(y|x), which is taken for uniform, and no rounding error is taken for a sign of it."""
    table = np.tile(np.linspace(0.1, 0.7, 7) / 3.0, (7, 1))
    scores = np.random.default_rng(0).normal(size=(4, 7))
    np.testing.assert_allclose(expected_rewards(objective, scores, table, 0.3), np.full((4, 7), 0.4 / 3.0))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_expected_reward_of_a_model_that_has_learned_its_target(objective):
    p, table = random_problem(2, rows=1)
    targets = {"ml": p, "raml": theory.q_prime, "sqdml": theory.softmax_q}
    target = targets[objective]
    if callable(target):
        target = target(torch.from_numpy(p), torch.from_numpy(table), 0.8).numpy()
    X, y = np.zeros((4, 2)), np.tile(np.arange(4), (4, 2))
    model = RewardClassifier(reward=table, objective=objective, tau=0.8, hidden=(), max_epochs=1).fit(X, y)
    model.coefs_, model.intercepts_ = [np.zeros((2, 4))], [np.log(target[0]) + 3.0]
    np.testing.assert_allclose(model.expected_reward(X), np.tile(p @ table.T, (4, 1)), atol=1e-9)
    np.testing.assert_allclose(model.predict_proba(X), np.tile(target, (4, 1)))
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(np.tile(target, (4, 1))))


# --- labels -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (np.array([3, 1, 3, 2]), [1, 2, 3]),
        (np.array([3, 1, 3, 2], dtype=np.uint8), [1, 2, 3]),
        (["x", "yy", "x", "x"], ["x", "yy"]),
        (np.array(["x", "yy", "x", "x"], dtype=object), ["x", "yy"]),
        (np.array([2.0, -1.0, 2.0, 0.0]), [-1.0, 0.0, 2.0]),
        ([True, False, False, True], [False, True]),
        ([7, 7, 7, 7], [7]),
        ([[1, 2], [1, 1], [3, 3], [2, 1]], [1, 2, 3]),
        ([[1.0, math.nan], [1.0, 1.0], [math.nan, 3.0], [2.0, 1.0]], [1.0, 2.0, 3.0]),
        ([["a", None], ["nan", "a"], [math.nan, "b"], ["b", "b"]], ["a", "b", "nan"]),
        (np.array([[1, None], [1, 1], [None, 3], [2, 1]], dtype=object), [1, 2, 3]),
    ],
    ids=lambda value: str(value).replace("\n", "")[:40],
)
def test_labels_of_any_type(y, classes):
    X = np.arange(8.0).reshape(4, 2)
    model = RewardClassifier(max_epochs=2, random_state=0).fit(X, y)
    assert model.classes_.tolist() == classes
    assert model.classes_.dtype == np.array(classes, dtype=getattr(y, "dtype", None) if np.array(y).dtype.kind == "u" else None).dtype
    assert model.predict(X).dtype == model.classes_.dtype
    assert set(model.predict(X).tolist()) <= set(classes)
    assert model.predict_proba(X).shape == (4, len(classes))


class Frame:
    """What a data frame of nullable integers looks like to numpy."""

    def __init__(self, rows):
        self.rows = rows

    def __array__(self, dtype=None, copy=None):
        return np.array([["<NA>" if label is None else label for label in row] for row in self.rows], dtype=object)

    def isna(self):
        return np.array([[label is None for label in row] for row in self.rows])


def test_labels_of_a_data_frame():
    classes, patterns = learn_labels(Frame([[1, None, 2], [5, 5, 5]]), 2)
    assert classes.tolist() == [1, 2, 5]
    assert patterns.references[patterns.of_row].tolist() == [[MISSING, 0, 1], [2, 2, 2]]
    assert patterns.labels_per_row == 2.5


def test_missing_labels_count_nothing():
    X, y = blobs(60)
    several = np.stack([y, np.roll(y, 1), y], 1).astype(float)
    wide = np.concatenate([several, np.full((60, 2), math.nan)], 1)[:, [3, 1, 0, 4, 2]]
    options = {"max_epochs": 3, "random_state": 0}
    one, other = RewardClassifier(**options).fit(X, several), RewardClassifier(**options).fit(X, wide)
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    assert one.score(X, several) == other.score(X, wide)
    assert other.labels_per_row_ == 3.0


@pytest.mark.parametrize(
    ("y", "error", "text"),
    [
        (None, DataError, "requires y to be passed"),
        ([0, 1, 2], ShapeError, "a row for each of the 4 rows of X, got 3"),
        (np.zeros((4, 2, 2), dtype=int), ShapeError, r"several, \[n, m\], got shape \[4, 2, 2\]"),
        (np.zeros((4, 0)), ShapeError, r"got shape \[4, 0\]"),
        (3, ShapeError, r"got shape \[\]"),
        ([[0, 1], [0], [1], [1]], ShapeError, "fill those with fewer labels up with None"),
        ([0, 1, None, 1], DataError, "row 2 has none"),
        (np.array([[0, 1], [math.nan, math.nan], [1, 1], [0, 0]]), DataError, "row 1 has none"),
        ([0, "a", 1, 1], DtypeError, "all strings or all numbers"),
        ([b"a", b"b", b"a", b"a"], DtypeError, "strings, integers, whole floats or booleans"),
        ([0.0, math.inf, 1.0, 1.0], DataError, "infinite"),
        ([0.5, 1.5, 1.0, 1.0], ValueError, "Unknown label type"),
    ],
)
def test_bad_labels(y, error, text):
    with pytest.raises(error, match=text):
        RewardClassifier().fit(np.zeros((4, 2)), y)


# --- score --------------------------------------------------------------------------------------------


def test_score_is_what_predictions_earn():
    inputs, labels, _ = draw_four_classes(300, 3, seed=0)
    names = np.array(["d", "c", "b", "a"])[labels]  # classes_ turns them round
    table = random_problem(0)[1]
    model = RewardClassifier(reward=table, max_epochs=2, random_state=0).fit(inputs, names)
    decided = ["abcd".index(label) for label in model.predict(inputs)]
    expected = [table[k]["abcd".index(label)] for k, row in zip(decided, names.tolist(), strict=True) for label in row]
    assert model.score(inputs, names) == pytest.approx(math.fsum(expected) / len(expected))


def test_score_without_rewards_is_accuracy():
    X, y = blobs(100)
    model = RewardClassifier(max_epochs=2, random_state=0).fit(X[y < 2], y[y < 2])
    assert model.score(X, y) == accuracy_score(y, model.predict(X))  # class 2 was never seen: every answer is wrong
    assert model.score(X, y.tolist()) == model.score(X, y.astype(float)) == model.score(X, y)


def test_score_of_unknown_labels():
    X, y = blobs(20, classes=2)
    model = RewardClassifier(reward=np.eye(2), max_epochs=1).fit(X, y)
    with pytest.raises(OutputError, match="classes 0, 1, row 4 of y has another label"):
        model.score(X, np.where(np.arange(20) == 4, 9, y))
    with pytest.raises(DtypeError, match="labels like those of fit"):
        model.score(X, y.astype(str))


# --- early stopping, randomness, scikit-learn's tools -------------------------------------------------


def test_early_stopping_keeps_the_best_epoch():
    inputs, labels, _ = draw_four_classes(150, 1, seed=0)
    model = RewardClassifier(
        reward=REWARDS,
        hidden=(30,),
        learning_rate=0.3,
        max_epochs=500,
        early_stopping=True,
        validation_fraction=0.3,
        patience=7,
        random_state=0,
    ).fit(inputs, labels[:, 0])
    rewards = model.validation_rewards_
    best = int(rewards.argmax())
    assert model.n_iter_ == len(rewards) == len(model.loss_curve_) == best + 1 + 7 < 500
    ended_there = clone(model).set_params(max_epochs=best + 1).fit(inputs, labels[:, 0])
    np.testing.assert_array_equal(model.coefs_[0], ended_there.coefs_[0])
    last = clone(model).set_params(patience=500, max_epochs=best + 1 + 7).fit(inputs, labels[:, 0])
    np.testing.assert_array_equal(last.validation_rewards_, rewards)
    # 45 rows are held out, and each earns nothing or one of four rewards: the kept network must earn on them what was noted.
    held_out = np.random.RandomState(0).permutation(150)[:45]
    assert model.score(inputs[held_out], labels[held_out, 0]) == pytest.approx(rewards[best])


def test_without_early_stopping_nothing_is_held_out():
    X, y = blobs(30)
    model = RewardClassifier(max_epochs=4).fit(X, y)
    assert model.validation_rewards_.shape == (0,)
    assert model.loss_curve_.shape == (4,)
    assert model.n_iter_ == 4


def test_randomness_is_an_argument():
    X, y = blobs(60)

    def probabilities(random_state):
        return RewardClassifier(max_epochs=2, random_state=random_state).fit(X, y).predict_proba(X)

    np.random.seed(0)
    state = np.random.get_state()[1].copy()
    before = torch.random.get_rng_state()
    np.testing.assert_array_equal(probabilities(3), probabilities(np.random.RandomState(3)))
    assert np.abs(probabilities(3) - probabilities(4)).max() > 1e-3
    shared = np.random.RandomState(3)
    assert np.abs(probabilities(shared) - probabilities(shared)).max() > 1e-3
    np.testing.assert_array_equal(np.random.get_state()[1], state)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_inputs_are_not_changed():
    X, y = blobs(40)
    table = np.eye(3)
    copies = X.copy(), y.copy(), table.copy()
    model = RewardClassifier(reward=table, max_epochs=2).fit(X, y)
    model.expected_reward(X)
    model.reward_[0, 0] = 9.0
    for given, copy in zip((X, y, table), copies, strict=True):
        np.testing.assert_array_equal(given, copy)


def test_unscaled_features_are_learned():
    X, y = load_iris(return_X_y=True)
    for objective in OBJECTIVES:
        accuracy = cross_val_score(RewardClassifier(objective=objective, random_state=0), X * [1e5, 1.0, 1e-5, 1.0], y, cv=3).mean()
        assert accuracy > 0.93, objective


def test_grid_search_finds_the_objective_that_earns_most():
    inputs, labels, _ = draw_four_classes(1500, 10, seed=0)
    labels = np.where(np.random.default_rng(0).random(labels.shape) < 0.1, math.nan, labels)
    model = make_pipeline(StandardScaler(), RewardClassifier(reward=REWARDS, max_epochs=20, random_state=0))
    grid = {"rewardclassifier__objective": ["ml", "sqdml"], "rewardclassifier__tau": np.array([1, 2])}
    search = GridSearchCV(model, grid, cv=KFold(3), error_score="raise").fit(inputs, labels)
    assert search.best_params_["rewardclassifier__objective"] == "sqdml"
    assert search.best_score_ == pytest.approx(2.31, abs=0.1)


def test_models_train_side_by_side():
    X, y = blobs(80)
    alone = [RewardClassifier(max_epochs=5, random_state=seed).fit(X, y).predict_proba(X) for seed in range(4)]
    tasks = (delayed(RewardClassifier(max_epochs=5, random_state=seed).fit)(X, y) for seed in range(4))
    for model, expected in zip(Parallel(n_jobs=4, prefer="threads")(tasks), alone, strict=True):
        np.testing.assert_array_equal(model.predict_proba(X), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_gpu_learns_what_the_cpu_does():
    inputs, labels, _ = draw_four_classes(2000, 3, seed=0)
    options = {"reward": REWARDS, "max_epochs": 3, "early_stopping": True, "random_state": 0}
    cpu, gpu = (RewardClassifier(device=device, **options).fit(inputs, labels) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.predict_proba(inputs), cpu.predict_proba(inputs), atol=1e-3)


# --- files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "y", [np.array([0, 5, 9]), np.array(["a", "ä 𝄞", "c"]), np.array([-1.0, 0.0, 2.0]), np.array([True, False, True])], ids=str
)
def test_a_saved_model_comes_back(tmp_path, y):
    X = np.random.default_rng(0).normal(size=(30, 3))
    y = np.tile(y, 10)
    table = random_problem(0, size=len(np.unique(y)))[1]
    model = RewardClassifier(
        reward=table, tau=np.float32(0.5), hidden=(np.int64(4),), early_stopping=True, max_epochs=3, random_state=np.int64(5)
    ).fit(X, y)
    model.save(tmp_path / "new folder" / "model.safetensors")
    loaded = RewardClassifier.load(str(tmp_path / "new folder" / "model.safetensors"))
    assert os.listdir(tmp_path / "new folder") == ["model.safetensors"]
    for method in ("predict", "predict_proba", "predict_log_proba", "expected_reward"):
        np.testing.assert_array_equal(getattr(loaded, method)(X), getattr(model, method)(X))
    assert loaded.score(X, y) == model.score(X, y)
    assert loaded.classes_.dtype == model.classes_.dtype
    given, back = model.get_params(), loaded.get_params()
    np.testing.assert_array_equal(given.pop("reward"), back.pop("reward"))
    assert given == back
    fitted = {name for name in vars(model) if name.endswith("_")}
    assert fitted == {name for name in vars(loaded) if name.endswith("_")}
    np.testing.assert_array_equal(loaded.loss_curve_, model.loss_curve_)
    np.testing.assert_array_equal(clone(loaded).fit(X, y).predict_proba(X), model.predict_proba(X))


def test_names_of_features_and_defaults_are_saved(tmp_path):
    X, y = blobs(30)
    model = RewardClassifier(max_epochs=1, random_state=np.random.RandomState(0)).fit(X, y)
    expected = model.predict(X)
    model.feature_names_in_ = np.array(["width", "height"], dtype=object)  # as from a data frame
    model.save(tmp_path / "model")
    loaded = RewardClassifier.load(tmp_path / "model")
    assert loaded.feature_names_in_.tolist() == ["width", "height"]
    assert loaded.reward is None
    assert loaded.random_state is None
    assert loaded.hidden == (8, 8)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(loaded.predict(X), expected)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    X, y = blobs(30)
    model = RewardClassifier(max_epochs=1, random_state=0).fit(X, y)
    model.save(tmp_path / "model")
    old = (tmp_path / "model").read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        RewardClassifier(max_epochs=1, random_state=1).fit(X, y).save(tmp_path / "model")
    assert (tmp_path / "model").read_bytes() == old
    assert os.listdir(tmp_path) == ["model"]


def test_files_that_hold_no_model(tmp_path):
    path = tmp_path / "model"
    with pytest.raises(DataError, match="cannot be read as a safetensors file"):
        RewardClassifier.load(path)
    path.write_bytes(b"no model at all")
    with pytest.raises(DataError, match="cannot be read as a safetensors file"):
        RewardClassifier.load(path)
    save_file({"x": np.zeros(2)}, path)
    with pytest.raises(DataError, match=r"must be a file of 'softq.RewardClassifier 1', .* got None"):
        RewardClassifier.load(path)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda tensors, notes: tensors.pop("mean"), "mean"),
        (lambda tensors, notes: tensors.update({"coefs.1": np.zeros((2, 2))}), r"coefs.1 must have shape \[8, 8\], got \[2, 2\]"),
        (lambda tensors, notes: notes.pop("classes"), "classes"),
        (lambda tensors, notes: notes["classes"].pop(), r"shape \[2, 2\], got \[3, 3\]"),
        (lambda tensors, notes: notes["parameters"].update(hiden=3), "hiden"),
        (lambda tensors, notes: notes["parameters"].update(objective="mle"), "objective must be one of"),
        (lambda tensors, notes: notes.update(classes_dtype="O8O"), "O8O"),
    ],
)
def test_damaged_files(tmp_path, damage, text):
    X, y = blobs(30)
    path = tmp_path / "model"
    RewardClassifier(max_epochs=1).fit(X, y).save(path)
    tensors = load_file(path)
    header = path.read_bytes()
    metadata = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    notes = json.loads(metadata["softq"])
    damage(tensors, notes)
    save_file(tensors, path, {**metadata, "softq": json.dumps(notes)})
    with pytest.raises(DataError, match=f"is damaged or was not written by RewardClassifier.save: .*{text}"):
        RewardClassifier.load(path)


def test_only_a_fitted_model_is_saved(tmp_path):
    with pytest.raises(NotFittedError):
        RewardClassifier().save(tmp_path / "model")


# --- bad options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"reward": np.eye(2)}, ShapeError, r"reward must be \[3, 3\] \(predicted, right\) .* 0, 1, 2; got \[2, 2\]"),
        ({"reward": [[1, 0, 0], [0, math.nan, 0], [0, 0, 1]]}, RewardError, r"must be finite, got nan at \(1, 1\)"),
        ({"reward": [[1, 0], [0]]}, RewardError, r"a table of numbers, \[3, 3\], got list"),
        ({"reward": "accuracy"}, RewardError, "a table of numbers, .* got str"),
        ({"objective": "SQDM"}, EstimatorError, "one of ml, raml, sqdml, got 'SQDM'; did you mean 'sqdml'?"),
        ({"objective": None}, EstimatorError, "one of ml, raml, sqdml, got None"),
        ({"tau": 0.0}, TemperatureError, "positive and finite, got 0.0"),
        ({"tau": "hot"}, TemperatureError, "positive number, got str"),
        ({"hidden": (8, 0)}, EstimatorError, "each layer of hidden must be a whole number of at least 1, got 0"),
        ({"hidden": 2.5}, EstimatorError, "hidden must be a whole number of at least 1, got 2.5"),
        ({"learning_rate": 0.0}, EstimatorError, "learning_rate must be a positive number, got 0.0"),
        ({"learning_rate": math.inf}, EstimatorError, "got inf"),
        ({"momentum": 1.0}, EstimatorError, "momentum must be a number of at least 0 and below 1, got 1.0"),
        ({"momentum": True}, EstimatorError, "got True"),
        ({"batch_size": 0}, EstimatorError, 'batch_size \\(or "auto"\\) must be a whole number of at least 1, got 0'),
        ({"batch_size": "all"}, EstimatorError, "got 'all'"),
        ({"max_epochs": True}, EstimatorError, "max_epochs must be a whole number of at least 1, got True"),
        ({"patience": -1}, EstimatorError, "patience must be"),
        ({"early_stopping": True, "validation_fraction": 1.0}, EstimatorError, "validation_fraction must be a number above 0 and below 1"),
        ({"early_stopping": True, "validation_fraction": 0.99}, DataError, "hold out 30 of n_samples = 30"),
        ({"device": "abacus"}, EstimatorError, "one that torch can use here, such as 'cpu', got 'abacus'"),
    ],
)
def test_bad_options(options, error, text):
    assert issubclass(error, SoftqError)
    X, y = blobs(30)
    model = RewardClassifier(max_epochs=1).set_params(**options)  # accepted: scikit-learn's tools set options before they are sane
    with pytest.raises(error, match=text):
        model.fit(X, y)
    with pytest.raises(NotFittedError):
        model.predict(X)


def test_one_hidden_layer_may_be_a_number():
    X, y = blobs(30)
    model = RewardClassifier(hidden=np.int64(5), max_epochs=1).fit(X, y)
    assert [weight.shape for weight in model.coefs_] == [(2, 5), (5, 3)]
    assert [bias.shape for bias in model.intercepts_] == [(5,), (3,)]


def test_divergence_is_an_error():
    X, y = blobs(60)
    with pytest.raises(ScoreError, match=r"training diverged in epoch \d+: .* Lower learning_rate \(1e\+20\) or momentum \(0.9\)"):
        RewardClassifier(learning_rate=1e20, random_state=0).fit(X, y)


def test_inputs_out_of_range():
    X, y = blobs(30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ScoreError, match="deviation of feature 1 of X is beyond float64"):
            RewardClassifier(max_epochs=1).fit(X * [1.0, 1e300], y)
        model = RewardClassifier(max_epochs=1).fit(X * [1.0, 1e-100], y)
        with pytest.raises(ScoreError, match="scores of row 2 of X are not finite"):
            model.predict(np.where(np.arange(30)[:, None] == 2, 1e300, X))
