"""Labels, options and files of softq.RewardClassifier.

What is accepted, what is refused and how, what is kept.
"""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import json
import math
import os
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from classifier_problems import blobs, random_problem
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
from softq.linear import RewardClassifier
from softq.linear.class_targets import learn_labels

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
    assert (
        model.classes_.dtype
        == np.array(
            classes, dtype=getattr(y, "dtype", None) if np.array(y).dtype.kind == "u" else None
        ).dtype
    )
    assert model.predict(X).dtype == model.classes_.dtype
    assert set(model.predict(X).tolist()) <= set(classes)
    assert model.predict_proba(X).shape == (4, len(classes))


class Frame:
    """What a data frame of nullable integers looks like to numpy."""

    def __init__(self, rows):
        self.rows = rows

    def __array__(self, dtype=None, copy=None):
        return np.array(
            [["<NA>" if label is None else label for label in row] for row in self.rows],
            dtype=object,
        )

    def isna(self):
        return np.array([[label is None for label in row] for row in self.rows])


def test_labels_of_a_data_frame():
    classes, patterns = learn_labels(Frame([[1, None, 2], [5, 5, 5]]), 2)
    assert classes.tolist() == [1, 2, 5]
    assert patterns.shares[patterns.of_row].tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    assert patterns.labels_per_row == 2.5


def test_missing_labels_count_nothing():
    X, y = blobs(60)
    several = np.stack([y, np.roll(y, 1), y], 1).astype(float)
    wide = np.concatenate([several, np.full((60, 2), math.nan)], 1)[:, [3, 1, 0, 4, 2]]
    options = {"max_epochs": 3, "random_state": 0}
    one, other = (
        RewardClassifier(**options).fit(X, several),
        RewardClassifier(**options).fit(X, wide),
    )
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


# --- files --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::softq.linear.classifier.RewardWarning")
@pytest.mark.parametrize(
    "y",
    [
        np.array([0, 5, 9]),
        np.array(["a", "ä 𝄞", "c"]),
        np.array([-1.0, 0.0, 2.0]),
        np.array([True, False, True]),
    ],
    ids=str,
)
def test_a_saved_model_comes_back(tmp_path, y):
    X = np.random.default_rng(0).normal(size=(30, 3))
    y = np.tile(y, 10)
    table = random_problem(0, size=len(np.unique(y)))[1]
    model = RewardClassifier(
        reward=table,
        tau=np.float32(0.5),
        hidden=(np.int64(4),),
        early_stopping=True,
        max_epochs=3,
        random_state=np.int64(5),
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
    assert (loaded.hidden, loaded.tau, loaded.alpha) == ("auto", "auto", "auto")
    assert (loaded.tau_, loaded.alpha_) == (model.tau_, model.alpha_)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        np.testing.assert_array_equal(loaded.predict(X), expected)


def test_a_saved_model_is_the_fitted_one(tmp_path):
    """Options that were changed for the next fit are kept beside it, but for the rewards, and do not describe it."""
    X, y = blobs(30)
    model = RewardClassifier(
        reward=np.diag([1.0, 2.0, 3.0]), tau=1.0, max_epochs=1, random_state=0
    ).fit(X, y)
    expected = model.expected_reward(X)
    model.set_params(objective="ml", tau=5.0, hidden=(3,), reward=None).save(tmp_path / "model")
    loaded = RewardClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.expected_reward(X), expected)
    assert (loaded.objective_, loaded.tau_) == ("sqdml", 1.0)
    assert (loaded.objective, loaded.tau, loaded.hidden) == ("ml", 5.0, (3,))
    np.testing.assert_array_equal(loaded.reward, model.reward_)
    for kept in (model, loaded):
        with pytest.raises(OutputError, match="row 0 of y has another label"):
            kept.score(X, y + 7)


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
    with pytest.raises(
        DataError, match=r"must be a file of 'softq.RewardClassifier 3', .* got None"
    ):
        RewardClassifier.load(path)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda tensors, notes: tensors.pop("mean"), "mean"),
        (lambda tensors, notes: tensors.update({"coefs.1": np.eye(2)}), "coefs.1 must have shape"),
        (lambda tensors, notes: tensors.pop("classes"), "classes must be a list of strings"),
        (lambda tensors, notes: tensors.update(classes=np.array([0, 2, 1])), "sorted and distinct"),
        (lambda tensors, notes: notes["parameters"].update(hiden=3), "hiden"),
        (lambda tensors, notes: notes.update(objective="mle"), "objective must be one of"),
        (lambda tensors, notes: notes.update(tau=-1.0), "tau must be positive"),
    ],
)
def test_damaged_files(tmp_path, damage, text):
    X, y = blobs(30)
    path = tmp_path / "model"
    RewardClassifier(hidden=(32,), max_epochs=1).fit(X, y).save(path)
    tensors = load_file(path)
    header = path.read_bytes()
    metadata = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    notes = json.loads(metadata["softq"])
    damage(tensors, notes)
    save_file(tensors, path, {**metadata, "softq": json.dumps(notes)})
    with pytest.raises(
        DataError, match=f"is damaged or was not written by RewardClassifier.save: .*{text}"
    ):
        RewardClassifier.load(path)


def test_only_a_fitted_model_is_saved(tmp_path):
    with pytest.raises(NotFittedError):
        RewardClassifier().save(tmp_path / "model")


# --- bad options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"reward": np.eye(2)}, ShapeError, r"reward must be \[3, 3\] .* 0, 1, 2; got \[2, 2\]"),
        (
            {"reward": np.diag([1, math.nan, 1])},
            RewardError,
            r"must be finite, got nan at \(1, 1\)",
        ),
        (
            {"reward": [[1, 0], [0]]},
            RewardError,
            r"a table of numbers, \[3, 3\], got rows of different",
        ),
        ({"objective": "SQDM"}, EstimatorError, "got 'SQDM'; did you mean 'sqdml'?"),
        ({"tau": 0.0}, TemperatureError, "positive and finite, got 0.0"),
        ({"tau": "hot"}, TemperatureError, "positive number, got str"),
        ({"hidden": (8, 0)}, EstimatorError, "each layer of hidden must be a whole .*, got 0"),
        ({"learning_rate": 0.0}, EstimatorError, "learning_rate must be a positive number, got 0"),
        ({"momentum": 1.0}, EstimatorError, "a number of at least 0 and below 1, got 1.0"),
        ({"batch_size": 0}, EstimatorError, r'batch_size \(or "auto"\) must be a whole number'),
        ({"max_epochs": True}, EstimatorError, "max_epochs must be a whole number .* got True"),
        ({"early_stopping": True, "validation_fraction": 1.0}, EstimatorError, "and below 1"),
        ({"early_stopping": True, "validation_fraction": 0.99}, DataError, "out 30 of n_samples"),
        ({"alpha": -1.0}, EstimatorError, r'alpha \(or "auto"\) must be a number from 0, got -1.0'),
        ({"solver": "adam"}, EstimatorError, "solver must be one of auto, lbfgs, sgd, got 'adam'"),
        ({"solver": "lbfgs", "early_stopping": True}, EstimatorError, "set solver='sgd'"),
        ({"reward": np.eye(3), "cost": 1 - np.eye(3)}, EstimatorError, "give one of them"),
        ({"cost": np.ones((2, 2))}, ShapeError, r"cost must be \[3, 3\] \(predicted, right\)"),
        ({"cost": np.diag([1, math.inf, 1])}, RewardError, "got inf .* a large cost forbids"),
        ({"device": "abacus"}, EstimatorError, "torch can use here, such as 'cpu', got 'abacus'"),
    ],
)
def test_bad_options(options, error, text):
    assert issubclass(error, SoftqError)
    X, y = blobs(30)
    model = RewardClassifier(max_epochs=1).set_params(
        **options
    )  # accepted: scikit-learn's tools set options before they are sane
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
    with pytest.raises(
        ScoreError,
        match=(
            r"training diverged in epoch \d+: .* Lower learning_rate \(1e\+20\) or momentum \(0.9\)"
        ),
    ):
        RewardClassifier(solver="sgd", alpha=0.0, tau=1.0, learning_rate=1e20, random_state=0).fit(
            X, y
        )


def test_inputs_out_of_range():
    X, y = blobs(30)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ScoreError, match="deviation of feature 1 of X is beyond float64"):
            RewardClassifier(max_epochs=1).fit(X * [1.0, 1e300], y)
        model = RewardClassifier(max_epochs=1).fit(X * [1.0, 1e-100], y)
        with pytest.raises(ScoreError, match="scores of row 2 of X are not finite"):
            model.predict(np.where(np.arange(30)[:, None] == 2, 1e300, X))
