"""softq.RewardClassifier among scikit-learn's tools.

Their own checks, scores, searches, randomness, and life without scikit-learn.
"""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import softq
from classifier_problems import REWARDS, blobs, draw_four_classes, random_problem
from softq.errors import DtypeError, OutputError
from softq.linear import RewardClassifier


def weights_and_copies(estimator):
    """A row of weight 2 is like two rows where a minimum is reached.

    Not for steps on batches or for inner folds, which are drawn.
    """
    chosen = "auto" in (estimator.alpha, estimator.hidden) or (
        estimator.tau == "auto" and estimator.objective != "ml"
    )
    drawn = chosen or estimator.early_stopping or estimator.solver == "sgd"
    return {"check_sample_weight_equivalence_on_dense_data": "rows are drawn"} if drawn else {}


@parametrize_with_checks(
    [
        RewardClassifier(max_epochs=30),
        RewardClassifier(objective="ml", alpha=1.0, hidden=(32,), max_epochs=30),
        RewardClassifier(
            objective="raml", tau=20.0, alpha=1.0, hidden=(6,), solver="sgd", max_epochs=30
        ),
        RewardClassifier(objective="raml", tau=0.5, alpha=1.0, hidden=()),
        RewardClassifier(alpha=0.01, tau=0.1, early_stopping=True, patience=5, max_epochs=30),
    ],
    expected_failed_checks=weights_and_copies,
)
def test_scikit_learn(estimator, check):
    check(estimator)


def without_scikit_learn(code):
    """What a fresh Python without scikit-learn prints."""
    code = f"import sys; sys.modules['sklearn'] = None\n{code}"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize(
    "attempt", ["import softq; softq.RewardClassifier", "from softq.linear import RewardClassifier"]
)
def test_scikit_learn_is_named_where_it_is_missing(attempt):
    said = without_scikit_learn(
        f"from softq.errors import DependencyError\ntry: {attempt}\nexcept DependencyError as e:"
        " print(e)"
    )
    assert (
        said == "softq.RewardClassifier needs scikit-learn, which is not installed: pip install"
        " 'softq[sklearn]'\n"
    )


def test_everything_else_is_imported_without_scikit_learn():
    assert "RewardClassifier" in softq.__all__
    names = "from softq import *; print([name for name in dir() if not name.startswith('_')])"
    assert set(softq.__all__) - set(eval(without_scikit_learn(names))) == {"RewardClassifier"}  # noqa: S307


# --- score --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::softq.linear.classifier.RewardWarning")
def test_score_is_what_predictions_earn():
    inputs, labels, _ = draw_four_classes(300, 3, seed=0)
    names = np.array(["d", "c", "b", "a"])[labels]  # classes_ turns them round
    table = random_problem(0)[1]
    model = RewardClassifier(reward=table, max_epochs=2, random_state=0).fit(inputs, names)
    decided = ["abcd".index(label) for label in model.predict(inputs)]
    expected = [
        table[k]["abcd".index(label)]
        for k, row in zip(decided, names.tolist(), strict=True)
        for label in row
    ]
    assert model.score(inputs, names) == pytest.approx(math.fsum(expected) / len(expected))


def test_score_without_rewards_is_accuracy():
    X, y = blobs(100)
    model = RewardClassifier(max_epochs=2, random_state=0).fit(X[y < 2], y[y < 2])
    assert model.score(X, y) == accuracy_score(
        y, model.predict(X)
    )  # class 2 was never seen: every answer is wrong
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
        tau=1.0,
        alpha=0.0,
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
    # 45 rows are held out, and each earns nothing or one of four rewards: the kept network must
    # earn on them what was noted.
    held_out = np.random.RandomState(0).permutation(150)[:45]
    assert model.score(inputs[held_out], labels[held_out, 0]) == pytest.approx(rewards[best])


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


def test_grid_search_over_several_labels_per_row():
    inputs, labels, _ = draw_four_classes(1500, 10, seed=0)
    labels = np.where(np.random.default_rng(0).random(labels.shape) < 0.1, math.nan, labels)
    model = make_pipeline(
        StandardScaler(), RewardClassifier(reward=REWARDS, max_epochs=20, random_state=0)
    )
    grid = {
        "rewardclassifier__objective": ["ml", "sqdml"],
        "rewardclassifier__tau": np.array([1, 2]),
    }
    search = GridSearchCV(model, grid, cv=KFold(3), error_score="raise").fit(inputs, labels)
    assert search.cv_results_["mean_test_score"] == pytest.approx(2.31, abs=0.1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_gpu_learns_what_the_cpu_does():
    inputs, labels, _ = draw_four_classes(2000, 3, seed=0)
    options = {"reward": REWARDS, "max_epochs": 3, "early_stopping": True, "random_state": 0}
    cpu, gpu = (
        RewardClassifier(device=device, **options).fit(inputs, labels) for device in ("cpu", "cuda")
    )
    np.testing.assert_allclose(gpu.predict_proba(inputs), cpu.predict_proba(inputs), atol=1e-3)
