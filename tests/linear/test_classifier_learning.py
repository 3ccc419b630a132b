"""What softq.RewardClassifier learns.

The paper's four-class problem, with plain torch and plain Python as oracles.
"""

# ruff: noqa: N803, N806 -- scikit-learn calls the inputs X

import math

import numpy as np
import pytest
import torch
from sklearn.base import clone

import oracle
import softq
from classifier_problems import OBJECTIVES, REWARDS, blobs, draw_four_classes, random_problem
from softq import theory
from softq.linear import RewardClassifier
from softq.linear.class_targets import class_targets, expected_rewards, learn_labels, mean_rewards

# --- the paper's four-class problem -------------------------------------------------------------------


@pytest.fixture(scope="module")
def four_classes():
    return draw_four_classes(20_000, 10, seed=0), draw_four_classes(50_000, 1, seed=1)


def share_of_bayes(model, test):
    inputs, _, p = test
    earned = p @ REWARDS.T
    return earned[np.arange(len(p)), model.predict(inputs)].mean() / earned.max(1).mean()


class MostProbable:
    """Decides for the most probable class of a model's distribution."""

    def __init__(self, model):
        self.model = model

    def predict(self, inputs):
        return self.model.predict_proba(inputs).argmax(1)


@pytest.mark.parametrize(
    "options", [{"tau": 1.1}, {"tau": 0.1}, {"tau": 1000.0, "temperature_scaled": True}], ids=str
)
def test_sqdml_decides_like_the_bayes_rule(four_classes, options):
    (inputs, labels, _), test = four_classes
    options |= {"hidden": (8, 8), "alpha": 0.0, "max_epochs": 20}
    sqdml = RewardClassifier(reward=REWARDS, random_state=0, **options).fit(inputs, labels)
    assert share_of_bayes(sqdml, test) > 0.995
    # The most probable class of SQDML is the Bayes rule's, that of ML is not (2.18019 / 2.31555 in
    # the limit): its rewards must be weighed.
    ml = clone(sqdml).set_params(objective="ml").fit(inputs, labels)
    assert share_of_bayes(ml, test) > 0.995
    assert share_of_bayes(MostProbable(sqdml), test) > 0.995
    assert share_of_bayes(MostProbable(ml), test) < 0.96


def test_expected_reward_of_trained_models(four_classes):
    (inputs, labels, _), (points, _, p) = four_classes
    truth = p @ REWARDS.T  # up to 4.5, 0.97 from its mean on average
    # The third: ten labels leave SQDML's target a little short of Q.
    for objective, tau, error in [("ml", 1.0, 0.06), ("raml", 2.4, 0.08), ("sqdml", 2.4, 0.08)]:
        model = RewardClassifier(
            reward=REWARDS, objective=objective, tau=tau, alpha=0.0, max_epochs=20, random_state=0
        )
        model.fit(inputs, labels)
        assert np.abs(model.expected_reward(points) - truth).mean() < error, objective


def test_the_gain_is_the_labels_not_the_objective():
    """With one label per row SQDML's target is RAML's."""
    inputs, labels, _ = draw_four_classes(500, 1, seed=3)
    raml, sqdml = (
        RewardClassifier(
            reward=REWARDS, objective=objective, tau=1.0, max_epochs=3, random_state=0
        ).fit(inputs, labels[:, 0])
        for objective in ("raml", "sqdml")
    )
    np.testing.assert_allclose(raml.predict_proba(inputs), sqdml.predict_proba(inputs), atol=1e-6)
    np.testing.assert_allclose(
        raml.expected_reward(inputs), sqdml.expected_reward(inputs), atol=1e-4
    )


# --- targets and training against independent code ----------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tau", [0.3, 2.0])
def test_targets_against_plain_python(objective, tau):
    _, table = random_problem(5)
    y = [["d", "a", "a"], ["b", None, "c"], ["c", None, None], ["a", "d", "a"]]
    classes, patterns = learn_labels(y, 4)
    assert classes.tolist() == ["a", "b", "c", "d"]
    assert len(patterns.shares) == 3  # the first and the last row say the same
    rows = class_targets(objective, patterns.shares, table, tau)[patterns.of_row].tolist()
    earned = mean_rewards(table, patterns.shares)[patterns.of_row].tolist()
    each = np.stack([table] * 3)  # a table for each pattern
    np.testing.assert_allclose(
        class_targets(objective, patterns.shares, each, tau)[patterns.of_row], rows
    )
    np.testing.assert_allclose(mean_rewards(each, patterns.shares)[patterns.of_row], earned)
    for labels, row, earned_row in zip(y, rows, earned, strict=True):
        refs = ["abcd".index(label) for label in labels if label is not None]
        shares = [refs.count(z) / len(refs) for z in range(4)]
        payoffs = [oracle.probabilities([table[z][ref] / tau for z in range(4)]) for ref in refs]
        means = [math.fsum(table[z][ref] for ref in refs) / len(refs) for z in range(4)]
        raml = [math.fsum(payoff[z] for payoff in payoffs) / len(refs) for z in range(4)]
        expected = {
            "ml": shares,
            "raml": raml,
            "sqdml": oracle.probabilities([mean / tau for mean in means]),
        }
        assert row == pytest.approx(expected[objective])
        assert earned_row == pytest.approx(means)


def first_layers(X, y, **options):
    """Weights and biases that training starts from.

    A step that moves no float32 leaves them alone.
    """
    options |= {
        "objective": "ml",
        "solver": "sgd",
        "alpha": 0.0,
        "learning_rate": 1e-30,
        "batch_size": len(X),
        "max_epochs": 1,
    }
    model = RewardClassifier(**options).fit(X, y)
    return model.coefs_, model.intercepts_


@pytest.mark.parametrize(
    ("objective", "scaled"), [("ml", False), ("raml", False), ("sqdml", False), ("sqdml", True)]
)
def test_training_against_torch(objective, scaled):
    """Whole batches.

    The order of the rows does not matter, and torch's own network, loss and optimizer must end at
    the same weights.
    """
    inputs, labels, _ = draw_four_classes(60, 3, seed=0)
    inputs = inputs * [3.0, 0.2] + [5.0, -1.0]
    tau, epochs, alpha = 3.0, 5, 2.5
    model = RewardClassifier(
        reward=REWARDS,
        objective=objective,
        tau=tau,
        temperature_scaled=scaled,
        alpha=alpha,
        hidden=(5,),
        solver="sgd",
        batch_size=60,
        max_epochs=epochs,
        random_state=7,
    ).fit(inputs, labels)

    weights, biases = first_layers(inputs, labels, hidden=(5,), random_state=7)
    first, second = torch.nn.Linear(2, 5), torch.nn.Linear(5, 4)
    with torch.no_grad():
        for layer, weight, bias in zip((first, second), weights, biases, strict=True):
            layer.weight.copy_(torch.from_numpy(weight.T))
            layer.bias.copy_(torch.from_numpy(bias))
    x = torch.from_numpy((inputs - inputs.mean(0)) / inputs.std(0)).float()
    refs = torch.from_numpy(labels)
    # Rewards and τ in units of a quarter of the rewards' range: the target is the same, scaled
    # scores are of another size.
    unit = float(np.ptp(REWARDS)) / 4.0 if scaled else 1.0
    reward = softq.rewards.Matrix(torch.from_numpy(REWARDS / unit))
    weights = {"params": [first.weight, second.weight], "weight_decay": alpha / 60}
    optimizer = torch.optim.SGD(
        [weights, {"params": [first.bias, second.bias]}], lr=0.1, momentum=0.9
    )
    losses = []
    for _ in range(epochs):
        space = softq.Categorical(second(first(x).relu()))
        target = (
            softq.ml(space, refs)
            if objective == "ml"
            else getattr(softq, objective)(space, refs, tau / unit, reward)
        )
        loss = softq.cross_entropy(target, space, temperature_scaled=scaled).mean()
        losses.append(loss.item() / ((tau / unit) ** 2 if scaled else 1.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        scores = second(first(x).relu()) / (tau / unit if scaled else 1.0)
    np.testing.assert_allclose(
        model.predict_proba(inputs), torch.softmax(scores, -1).numpy(), atol=2e-6
    )
    np.testing.assert_allclose(model.loss_curve_, losses, rtol=1e-5)


def test_the_network_is_the_mean_over_the_last_epoch():
    X, y = blobs(40)
    options = {
        "solver": "sgd",
        "alpha": 0.0,
        "objective": "ml",
        "hidden": (),
        "random_state": 0,
        "momentum": 0.0,
        "max_epochs": 1,
    }
    first = first_layers(X, y, hidden=(), random_state=0)[0][0]
    one = RewardClassifier(batch_size=40, **options).fit(X, y).coefs_[0]
    # Two steps on the same rows are nearly the same step: after them 1 and 2, on average 1.5.
    two = (
        RewardClassifier(batch_size=40, learning_rate=0.1, **options)
        .fit(np.tile(X, (2, 1)), np.tile(y, 2))
        .coefs_[0]
    )
    assert np.abs(two - first).sum() == pytest.approx(1.5 * np.abs(one - first).sum(), rel=0.3)


@pytest.mark.parametrize(
    "options",
    [{"temperature_scaled": True}, {"temperature_scaled": False}],
    ids=["scaled", "plain"],
)
@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_units_of_the_reward_do_not_matter(objective, options):
    inputs, labels, _ = draw_four_classes(200, 3, seed=0)
    small, large = (
        RewardClassifier(
            reward=unit * REWARDS,
            tau=1.5 * unit,
            objective=objective,
            max_epochs=5,
            random_state=0,
            **options,
        )
        for unit in (1.0, 1024.0)  # a power of two: no digit is lost
    )
    np.testing.assert_array_equal(
        small.fit(inputs, labels).predict_proba(inputs),
        large.fit(inputs, labels).predict_proba(inputs),
    )
    np.testing.assert_allclose(1024 * small.expected_reward(inputs), large.expected_reward(inputs))


def test_ml_knows_no_temperature():
    X, y = blobs(60)
    plain, hot = (
        RewardClassifier(objective="ml", max_epochs=3, random_state=0, **options).fit(X, y)
        for options in ({"temperature_scaled": False}, {"tau": 50.0, "temperature_scaled": True})
    )
    np.testing.assert_array_equal(plain.predict_proba(X), hot.predict_proba(X))


def test_features_may_have_any_units():
    X, y = blobs(100)
    plain = RewardClassifier(max_epochs=5, random_state=0).fit(X, y)
    moved = clone(plain).fit(X * [1e6, 1e-6] + [1e8, 0.0], y)
    np.testing.assert_allclose(
        plain.predict_proba(X), moved.predict_proba(X * [1e6, 1e-6] + [1e8, 0.0]), atol=1e-4
    )


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
        np.testing.assert_allclose(
            expected_rewards(objective, log_model + shift, table, tau),
            p @ table.T,
            atol=1e-6,
            err_msg=objective,
        )


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_expected_rewards_where_right_classes_are_rewarded_alike(objective):
    """P(y|x) is not known then, but what it earns is."""
    p, table = random_problem(1)
    table[:, 2] = table[:, 0]
    q = (theory.q_prime if objective == "raml" else theory.softmax_q)(
        torch.from_numpy(p), torch.from_numpy(table), 1.3
    )
    np.testing.assert_allclose(
        expected_rewards(objective, q.log().numpy(), table, 1.3), p @ table.T, atol=1e-8
    )


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_expected_rewards_where_decisions_do_not_matter(objective):
    """Then Q says nothing of P(y|x), which is taken for uniform, and no rounding error is taken for a sign of it."""
    table = np.tile(np.linspace(0.1, 0.7, 7) / 3.0, (7, 1))
    scores = np.random.default_rng(0).normal(size=(4, 7))
    np.testing.assert_allclose(
        expected_rewards(objective, scores, table, 0.3), np.full((4, 7), 0.4 / 3.0)
    )


@pytest.mark.filterwarnings("ignore::softq.linear.classifier.RewardWarning")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_expected_reward_of_a_model_that_has_learned_its_target(objective):
    p, table = random_problem(2, rows=1)
    targets = {"ml": p, "raml": theory.q_prime, "sqdml": theory.softmax_q}
    target = targets[objective]
    if callable(target):
        target = target(torch.from_numpy(p), torch.from_numpy(table), 0.8).numpy()
    X, y = np.zeros((4, 2)), np.tile(np.arange(4), (4, 2))
    model = RewardClassifier(
        reward=table, objective=objective, tau=0.8, hidden=(), max_epochs=1
    ).fit(X, y)
    model.coefs_, model.intercepts_ = [np.zeros((2, 4))], [np.log(target[0]) + 3.0]
    np.testing.assert_allclose(model.expected_reward(X), np.tile(p @ table.T, (4, 1)), atol=1e-9)
    np.testing.assert_allclose(model.predict_proba(X), np.tile(target, (4, 1)))
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(np.tile(target, (4, 1))))
