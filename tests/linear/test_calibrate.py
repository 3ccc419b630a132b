"""Temperatures and sets of taggers, parsers and classifiers."""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import numpy as np
import pytest
import torch

from classifier_problems import blobs
from softq import CRFTagger, DependencyParser, RewardClassifier
from softq.calibration import calibration_scores
from softq.conformal import ConformalSets
from softq.errors import ConvergenceWarning, DataError, DataWarning, EstimatorError
from softq.lab.worlds import TreeWorld
from softq.linear.uncertainty import EstimatorSets, calibration_of
from strange_files import change_notes

pytestmark = pytest.mark.usefixtures("one_thread")

TREES = TreeWorld(crossing=0.0, lemmas=6).sample(120, seed=0)


def tagged(count):
    """Sentences of words with noisy labels."""
    random = np.random.default_rng(0)
    kinds = {"Ann": "B-PER", "Bob": "B-PER", "Paris": "B-LOC"}
    X, y = [], []
    for _ in range(count):
        sentence = random.choice(["Ann", "Bob", "Paris", "met", "in"], random.integers(1, 6))
        noise = random.choice(["", "", "", "O", "B-PER", "B-LOC"], len(sentence)).tolist()
        X.append(sentence.tolist())
        y.append([n or kinds.get(word, "O") for n, word in zip(noise, X[-1], strict=True)])
    return X, y


@pytest.fixture
def fitted(request):
    """An estimator, and data it was not trained on."""
    if request.param == "parser":
        parser = DependencyParser(bits=10, relation_bits=6, epochs=8, random_state=0)
        return parser.fit(TREES[:20]), TREES[20:], [one.heads for one in TREES[20:]]
    if request.param == "tagger":
        X, y = tagged(200)
        return (
            CRFTagger(c2=0.01, templates=["word[0]", "word[-1]|word[1]"]).fit(X[:40], y[:40]),
            X[40:],
            y[40:],
        )
    X, y = blobs(200, seed=0)
    X = X + np.random.default_rng(0).normal(size=X.shape) * 2.0
    model = RewardClassifier(objective="ml", hidden=(16,), alpha=0.1, random_state=0)
    return model.fit(X[:40], y[:40]), X[40:], y[40:]


EVERY = pytest.mark.parametrize("fitted", ["tagger", "parser", "classifier"], indirect=True)


@EVERY
def test_calibration_changes_probabilities_and_no_prediction(fitted):
    model, X, y = fitted
    before, scores = model.predict(X), calibration_of(model, X, y)
    assert model.temperature_ == 1.0
    assert model.calibrate(X, y) is model
    assert model.temperature_ != pytest.approx(1.0, rel=0.02)
    assert list(model.predict(X)) == list(before)
    assert calibration_of(model, X, y).nll < scores.nll  # of tokens: not what is minimised
    found = model.temperature_
    assert model.calibrate(X, y).temperature_ == found  # of the model as it was trained
    table, right = model.output_probabilities(X), model.output_ids(X, y)
    assert calibration_of(model, X, y) == calibration_scores(table, right)


@EVERY
def test_a_saved_model_keeps_its_temperature(fitted, tmp_path):
    model, X, y = fitted
    path = tmp_path / ("classifier" if isinstance(model, RewardClassifier) else "model")
    model.save(path)
    plain = model.output_probabilities(X)
    model.calibrate(X, y).save(tmp_path / "calibrated")
    loaded = type(model).load(tmp_path / "calibrated")
    assert loaded.temperature_ == model.temperature_
    for ours, theirs in zip(
        loaded.output_probabilities(X), model.output_probabilities(X), strict=True
    ):
        assert np.array_equal(ours, theirs)

    def without(notes):
        del notes["temperature"]
        return notes

    change_notes(path, without)  # a file of before there was a temperature
    old = type(model).load(path)
    assert old.temperature_ == 1.0
    for ours, theirs in zip(old.output_probabilities(X), plain, strict=True):
        assert np.array_equal(ours, theirs)
    for bad in (-1.0, 0.0, "1", True):
        change_notes(path, lambda notes, bad=bad: notes | {"temperature": bad})
        with pytest.raises(DataError, match="temperature must be a positive number"):
            type(model).load(path)


@EVERY
def test_fitting_again_forgets_the_temperature(fitted):
    model, X, y = fitted
    model.calibrate(X, y)
    assert model.fit(X[:40], y[:40]).temperature_ == 1.0


@EVERY
def test_sets_hold_the_right_outputs(fitted):
    model, X, y = fitted
    for unit in ("token", "sentence"):
        sets = EstimatorSets.calibrate(model, X[::2], y[::2], alpha=0.2, unit=unit)
        # of 80 or 50 sentences, a coverage of 0.8 has a standard error below 0.06
        assert sets.coverage(X[1::2], y[1::2], unit=unit).value > 0.8 - 6 * 0.06
        thresholds = ConformalSets.calibrate(
            model.output_probabilities(X[::2]), model.output_ids(X[::2], y[::2]), 0.2, unit=unit
        )
        assert np.array_equal(sets.sets.scores, thresholds.scores)
    found = sets.predict(X[1::2])
    assert len(found) == len(X[1::2])
    held = thresholds.predict(model.output_probabilities(X[1::2]))
    if isinstance(model, CRFTagger):
        assert [[model.classes_[k] for k in np.flatnonzero(row)] for row in held[0]] == found[0]
        assert set().union(*map(set, found[0])) <= set(model.classes_)
    elif isinstance(model, DependencyParser):
        assert [np.flatnonzero(row).tolist() for row in held[0]] == found[0]
    else:
        assert [model.classes_[row].tolist() for row in held] == found


def test_sequences_and_not_tokens_are_what_is_fitted():
    X, y = tagged(200)
    tagger = CRFTagger(c2=0.01).fit(X[:40], y[:40])
    X, y = X[40:], y[40:]
    ids = tagger.output_ids(X, y)

    def loss(temperature):
        total = 0.0
        for batch, chain in tagger.tagger_.chains(tagger.features(X)):
            outputs = torch.zeros(len(batch), chain.event_shape[0], dtype=torch.int64)
            for row, sentence in enumerate(batch):
                outputs[row, : len(ids[sentence])] = torch.from_numpy(ids[sentence])
            total -= float(chain.tempered(temperature).log_prob(outputs).double().sum())
        return total

    best = CRFTagger(c2=0.01).fit(*(part[:40] for part in tagged(200))).calibrate(X, y).temperature_
    assert loss(best) < min(loss(best * 1.02), loss(best / 1.02)) < loss(1.0)


def test_trees_and_labels_that_a_model_cannot_give_are_left_out():
    parser = DependencyParser(bits=10, relation_bits=6, epochs=2, random_state=0).fit(TREES[:20])
    X = [[(form, tag) for form, tag in zip(one.forms, one.upos, strict=True)] for one in TREES[20:]]
    y = [list(one.heads) for one in TREES[20:]]
    expected = parser.calibrate(X, y).temperature_
    crossing = [("a", "DET"), ("dog", "NOUN"), ("a", "DET"), ("dog", "NOUN")]
    with pytest.warns(DataWarning, match="1 of 101 outputs are impossible at any temperature"):
        parser.calibrate([crossing, *X], [[3, 4, 0, 3], *y])
    assert parser.temperature_ == pytest.approx(expected, rel=1e-6)

    X, y = tagged(100)
    tagger = CRFTagger(c2=0.01).fit(X[:40], y[:40])
    expected = tagger.calibrate(X[40:], y[40:]).temperature_
    with pytest.warns(DataWarning, match="1 of 61 outputs are impossible at any temperature"):
        tagger.calibrate([["He"], *X[40:]], [["B-NEW"], *y[40:]])
    assert tagger.temperature_ == pytest.approx(expected, rel=1e-6)
    assert tagger.output_ids([["He", "ran"]], [["B-NEW", "O"]])[0].tolist() == [-1, 2]


def test_taggers_that_forbid_sequences_can_be_calibrated():
    X = [["Ann", "Lee"], ["Ann", "met"], ["Ann", "Lee"], ["met", "Lee"]] * 5
    y = [["B-P", "I-P"], ["B-P", "O"], ["O", "B-P"], ["B-P", "I-P"]] * 5
    tagger = CRFTagger(c2=0.1, constraints="decode").fit(X, y)
    expected = tagger.calibrate(X, y).temperature_
    with pytest.warns(DataWarning, match="1 of 21 outputs are impossible"):
        tagger.calibrate([*X, ["Lee"]], [*y, ["I-P"]])
    assert tagger.temperature_ == pytest.approx(expected, rel=1e-6)


def test_one_right_output_is_needed():
    X, y = tagged(20)
    tagger = CRFTagger().fit(X, y)
    with pytest.raises(DataError, match=r"one label sequence for each sentence.* 0 has 2"):
        tagger.calibrate(X[:1], [[y[0], y[0]]])
    parser = DependencyParser(bits=10, relation_bits=6, epochs=1, random_state=0).fit(TREES[:5])
    heads = list(TREES[0].heads)
    with pytest.raises(DataError, match=r"one tree for each sentence.* 0 has 2"):
        parser.calibrate(TREES[:1], [[heads, heads]])
    X, y = blobs(30, seed=0)
    model = RewardClassifier(objective="ml", hidden=(), alpha=1.0, random_state=0).fit(X, y)
    with pytest.raises(DataError, match=r"one label for each row.* row 1 has several"):
        model.calibrate(X[:2], [[y[0], y[0]], [y[0], (y[0] + 1) % 3]])


def test_decisions_of_a_classifier_follow_its_probabilities():
    X, y = blobs(200, seed=0)
    X = X + np.random.default_rng(0).normal(size=X.shape) * 2.0
    costs = np.array([[0.0, 4.0, 1.0], [1.0, 0.0, 6.0], [2.0, 1.0, 0.0]])
    options = {"cost": costs, "hidden": (16,), "alpha": 0.1, "random_state": 0}
    ml = RewardClassifier(objective="ml", **options).fit(X[:40], y[:40]).calibrate(X[40:], y[40:])
    np.testing.assert_allclose(ml.expected_reward(X), -ml.predict_proba(X) @ costs.T)
    np.testing.assert_allclose(np.exp(ml.predict_log_proba(X)), ml.predict_proba(X))
    raml = RewardClassifier(objective="raml", tau=3.0, **options).fit(X[:40], y[:40])
    before = raml.expected_reward(X), raml.predict_proba(X)
    raml.calibrate(X[40:], y[40:])
    np.testing.assert_array_equal(raml.expected_reward(X), before[0])
    assert not np.allclose(raml.predict_proba(X), before[1])


def test_rows_of_unseen_labels_are_left_out():
    X, y = blobs(60, seed=0)
    X = X + np.random.default_rng(0).normal(size=X.shape) * 2.0
    model = RewardClassifier(objective="ml", hidden=(), alpha=1.0, random_state=0).fit(X, y)
    expected = model.calibrate(X, y).temperature_
    with pytest.warns(DataWarning, match="1 of 61 outputs are impossible at any temperature"):
        model.calibrate(np.vstack([X, X[:1]]), [*y, 7])
    assert model.temperature_ == pytest.approx(expected)


def test_a_tagger_that_is_always_right_takes_the_coldest_temperature():
    X, y = [["Ann", "ran"]] * 5, [["B-PER", "O"]] * 5
    with pytest.warns(ConvergenceWarning, match="every output is the most probable one"):
        assert CRFTagger().fit(X, y).calibrate(X, y).temperature_ == pytest.approx(0.01)


# --- sets of whole sequences ----------------------------------------------------------------------


def test_sets_of_whole_sequences_and_trees_are_named_as_predictions_are():
    X, y = tagged(260)
    tagger = CRFTagger(c2=0.01).fit(X[:40], y[:40])
    sets = EstimatorSets.calibrate(tagger, X[40:160], y[40:160], 0.2, unit="sequence", most=30)
    found, best = sets.predict(X[160:]), tagger.predict(X[160:])
    assert [one.outputs[0] for one in found] == best  # in the order of X, the most probable first
    assert sets.coverage(X[160:], y[160:]).value == np.mean(
        [one.holds(labels) for one, labels in zip(found, y[160:], strict=True)]
    )
    parser = DependencyParser(bits=10, relation_bits=6, epochs=2, random_state=0).fit(TREES[:20])
    trees = EstimatorSets.calibrate(parser, TREES[20:70], alpha=0.2, unit="sequence", score="lac")
    heads = [list(one.heads) for one in parser.predict(TREES[70:])]
    for one, top in zip(trees.predict(TREES[70:]), heads, strict=True):
        assert not one.outputs or one.outputs[0] == top


def test_the_sets_of_a_classifier_are_of_classes():
    X, y = blobs(60, seed=0)
    model = RewardClassifier(objective="ml", hidden=(), alpha=1.0, random_state=0).fit(X, y)
    with pytest.raises(
        EstimatorError, match="unit='sequence' is for taggers and parsers, got a Re"
    ):
        EstimatorSets.calibrate(model, X, y, unit="sequence")
