"""softq.CRFTagger by itself: objectives, annotators, constraints, batches, files, searches."""

# ruff: noqa: N806 -- scikit-learn calls the inputs X

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

import softq
from softq import CRFTagger
from softq.annotators.reliability import estimate
from softq.errors import DataError, EstimatorError, RecipeError, SoftqError
from softq.formats.tags import faults
from softq.lab.worlds import EntityWorld
from softq.linear import entity_f1_scorer, training
from softq.linear.lbfgs import LBFGS
from softq.linear.saved_model import Parameters
from softq.metrics import SpanScores, span_statistics

TEMPLATES = ("bias", "word[0]", "lower[-1]", "lower[1]", "suffix[0]{2:3}", "shape[0]")
WORLD = EntityWorld()


pytestmark = pytest.mark.usefixtures("one_thread")


def corpus(count, seed=0):
    sentences = WORLD.sample(count, seed=seed)
    return [list(sentence.tokens) for sentence in sentences], [
        list(sentence.labels[0]) for sentence in sentences
    ]


def crowd(count, seed=0):
    sentences = WORLD.annotate(WORLD.sample(count, seed=seed), seed=seed)
    return [list(sentence.tokens) for sentence in sentences], [
        [list(labels) for labels in sentence.labels] for sentence in sentences
    ]


def tagger(**options):
    return CRFTagger(**{"templates": TEMPLATES, "c2": 0.5, **options})


def weights(model):
    return {**model.state_features_, **model.transition_features_}


def check_same_weights(model, other, atol=2e-3):
    ours, others = weights(model), weights(other)
    assert max(abs(ours.get(key, 0.0) - others.get(key, 0.0)) for key in {*ours, *others}) < atol


# --- tokens -------------------------------------------------------------------------------------------


def test_words_pairs_and_features_of_one_s_own():
    X, y = corpus(60)
    test, gold = corpus(60, seed=1)
    pairs, test_pairs = (
        [[(word, word[-1]) for word in sentence] for sentence in part] for part in (X, test)
    )
    features, test_features = (
        [[{"w": word, "s": word[-2:]} for word in sentence] for sentence in part]
        for part in (X, test)
    )
    for train, held_out, options in (
        (X, test, {}),
        (pairs, test_pairs, {"templates": (*TEMPLATES, "pos[0]")}),
        (features, test_features, {"templates": None}),
    ):
        model = tagger(**options).fit(train, y)
        assert model.score(held_out, gold) > 0.8
        assert model.predict_single(held_out[0]) == model.predict(held_out)[0]
        assert model.predict_marginals_single(held_out[0]) == model.predict_marginals(held_out)[0]
    assert any(
        "pos[0]" in name for name in tagger(templates=None).fit(pairs[:5], y[:5]).attributes_
    )


def test_hashing_with_many_bits_changes_nothing_but_names():
    X, y = corpus(40)
    model, hashed = tagger().fit(X, y), tagger(hash_bits=18).fit(X, y)
    assert hashed.predict(X) == model.predict(X)
    assert hashed.loss_curve_[-1] == pytest.approx(model.loss_curve_[-1], rel=1e-4)
    assert hashed.num_attributes_ == model.num_attributes_
    with pytest.raises(RecipeError, match="keeps no names"):
        _ = hashed.attributes_


def test_marginals_are_probabilities_of_the_same_model():
    X, y = corpus(40)
    model = tagger(decoding="mbr").fit(X, y)
    predicted, marginals = model.predict(X), model.predict_marginals(X)
    for labels, sentence in zip(predicted, marginals, strict=True):
        for label, token in zip(labels, sentence, strict=True):
            assert list(token) == model.classes_ == sorted(model.classes_)
            assert sum(token.values()) == pytest.approx(1.0, abs=1e-5)
            assert token[label] == max(token.values())  # what MBR without constraints is


def test_a_single_label_and_a_single_token():
    model = tagger().fit([["a"]], [["X"]])
    assert model.predict([["b", "c"]]) == [["X", "X"]]
    assert model.converged_
    assert model.kl_ == pytest.approx(0.0, abs=1e-6)


# --- objectives and annotators ------------------------------------------------------------------------


def test_one_annotator_makes_raml_and_sqdml_the_same():
    X, y = corpus(60)
    raml, sqdml = (
        tagger(objective=objective, tau=0.7).fit(X, y) for objective in ("raml", "sqdml")
    )
    check_same_weights(raml, sqdml, atol=1e-6)
    ml, cold = tagger().fit(X, y), tagger(objective="raml", tau=0.05).fit(X, y)
    check_same_weights(ml, cold, atol=1e-2)
    assert max(map(abs, weights(raml).values())) < max(
        map(abs, weights(ml).values())
    )  # a softer target


def test_several_annotators_are_a_mixture():
    X, y = crowd(50)
    alike = [[labels[0]] * 3 for labels in y]
    check_same_weights(tagger().fit(X, alike), tagger().fit(X, [labels[0] for labels in y]))
    # half a sentence for each of two annotators, or a whole one for each under twice the penalty
    doubled = tagger(c2=1.0).fit(X + X, [labels[0] for labels in y] + [labels[1] for labels in y])
    check_same_weights(doubled, tagger(c2=0.5).fit(X, [labels[:2] for labels in y]))
    # three quarters and one quarter
    uneven = tagger(c2=0.5).fit(X, [labels[:2] for labels in y], ref_weights=[[3, 1]] * len(y))
    check_same_weights(
        uneven,
        tagger(c2=0.5).fit(X, [[labels[0], labels[1], labels[0], labels[0]] for labels in y]),
    )


@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
def test_missing_annotators_and_weights_of_zero_are_not_there(objective):
    X, y = crowd(30)
    plain = tagger(objective=objective, tau=0.5).fit(X, y)
    missing = tagger(objective=objective, tau=0.5).fit(X, [[None, *labels, None] for labels in y])
    check_same_weights(plain, missing, atol=1e-9)
    rubbish = [
        [*labels, ["RUBBISH"] * len(sentence)] for sentence, labels in zip(X, y, strict=True)
    ]
    weighted = tagger(objective=objective, tau=0.5).fit(
        X, rubbish, ref_weights=[[2.0] * len(labels) + [0] for labels in y]
    )
    check_same_weights(plain, weighted, atol=1e-6)
    assert "RUBBISH" not in weighted.classes_


def test_sqdml_is_not_raml_where_annotators_disagree():
    X, y = crowd(40)
    raml, sqdml = (
        tagger(objective=objective, tau=0.5).fit(X, y) for objective in ("raml", "sqdml")
    )
    ours, others = weights(raml), weights(sqdml)
    assert max(abs(ours[key] - others[key]) for key in ours) > 0.05


def test_a_soft_target_is_trained_as_far_as_a_hard_one(monkeypatch):
    searches = []

    class Watched(LBFGS):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            searches.append(self)

    monkeypatch.setattr(training, "LBFGS", Watched)
    X, y = corpus(200)
    for options in ({}, {"objective": "raml", "tau": 0.9}):
        assert tagger(**options).fit(X, y).converged_
    hard, soft = (search.relative_norm for search in searches)
    assert 0.1 < soft / hard < 10


def test_rewards():
    X, y = corpus(40)
    classes = sorted({label for labels in y for label in labels})
    by_weight = tagger(objective="raml", tau=1.0, entity_weight=3.0).fit(X, y)
    diagonal = np.diag([1.0 if label == "O" else 3.0 for label in classes])
    entities = {label: 3.0 for label in classes if label != "O"}
    for reward in (
        diagonal,
        diagonal.tolist(),
        softq.rewards.TokenReward(torch.from_numpy(diagonal)),
        entities,
    ):
        check_same_weights(
            by_weight, tagger(objective="raml", tau=1.0, reward=reward).fit(X, y), atol=1e-6
        )
    plain = tagger(objective="raml", tau=1.0).fit(X, y)
    assert sum(label != "O" for labels in by_weight.predict(X) for label in labels) > sum(
        label != "O" for labels in plain.predict(X) for label in labels
    )


def test_score_counts_tokens_and_the_annotators_who_agree():
    X, y = corpus(40)
    model = tagger().fit(X, y)
    predicted = model.predict(X)
    pairs = [
        (a, b)
        for right, guess in zip(y, predicted, strict=True)
        for a, b in zip(right, guess, strict=True)
    ]
    assert model.score(X, y) == pytest.approx(np.mean([a == b for a, b in pairs]))
    assert model.score(X, predicted) == 1.0
    assert model.score(X[:1], [[predicted[0], ["no"] * len(X[0]), None]]) == 0.5
    # tokens that an annotator left out are judged by the others
    assert model.score(X[:1], [[predicted[0], ["?"] * len(X[0]), None]]) == 1.0
    assert model.score([], []) == 0.0


# --- constraints --------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoding", ["viterbi", "mbr"])
@pytest.mark.parametrize("constraints", ["decode", "target", "model"])
def test_constraints_leave_only_what_the_scheme_allows(constraints, decoding):
    X, y = corpus(60)
    rng = np.random.default_rng(0)
    test = [rng.permutation(sentence).tolist() for sentence in X]  # words where they do not belong
    options = {
        "c2": 0.05,
        "decoding": decoding,
        "templates": ("bias", "word[0]"),
        "objective": "raml",
        "tau": 0.3,
    }
    free = tagger(**options).fit(X, y)
    assert any(
        faults(labels, "bio") for labels in free.predict(test)
    )  # else there is nothing to see
    model = tagger(**options, constraints=constraints).fit(X, y)
    assert not any(faults(labels, "bio") for labels in model.predict(test))
    again = tagger(**options, constraints=constraints, scheme="bio").fit(X, y)
    assert again.predict(test) == model.predict(test)


def test_constraints_of_the_model_are_in_its_marginals():
    X, y = corpus(25)
    model = tagger(constraints="model").fit(X, y)
    for sentence in model.predict_marginals(X):
        assert all(sentence[0][label] == 0.0 for label in model.classes_ if label.startswith("I-"))


@pytest.mark.parametrize(
    ("labels", "scheme"), [(["B-X", "E-X"], "bioes"), (["I-X", "I-X"], "iob1")]
)
@pytest.mark.parametrize("constraints", ["decode", "target", "model"])
@pytest.mark.parametrize("algorithm", ["lbfgs", "adagrad"])
def test_constraints_always_leave_a_sequence(labels, scheme, constraints, algorithm):
    options = {
        "objective": "raml",
        "tau": 0.5,
        "max_epochs": 2,
        "constraints": constraints,
        "scheme": scheme,
        "algorithm": algorithm,
    }
    model = tagger(**options).fit([["a", "b"], ["a"]], [labels, labels[:1]])
    assert model.classes_ == sorted({*labels, "O"})
    assert np.isfinite(model.loss_curve_).all()
    assert not any(faults(found, scheme) for found in model.predict([["a"], ["b", "a", "a"]]))
    assert "O" not in tagger().fit([["a", "b"]], [labels]).classes_


# --- batches ------------------------------------------------------------------------------------------


def test_adagrad_comes_near_the_minimum():
    X, y = corpus(120)
    X, y = [[], *X], [[], *y]
    best = tagger(c2=1.0, all_possible_states=True, all_possible_transitions=True).fit(X, y)
    model = tagger(
        c2=1.0, algorithm="adagrad", max_epochs=30, batch_size=8, learning_rate=0.2, random_state=0
    ).fit(X, y)

    def loss(model):
        return model.kl_ * len(X) + sum(weight**2 for weight in weights(model).values())

    assert loss(best) == pytest.approx(best.loss_curve_[-1], rel=1e-4)
    assert loss(model) == pytest.approx(loss(best), rel=0.03)
    assert loss(model) >= loss(best) * (1 - 1e-4)
    agree = [
        a == b
        for one, other in zip(model.predict(X), best.predict(X), strict=True)
        for a, b in zip(one, other, strict=True)
    ]
    assert np.mean(agree) > 0.98
    assert (model.n_iter_, len(model.loss_curve_), model.converged_) == (30, 30, None)


def test_adagrad_follows_its_random_state():
    X, y = corpus(40)

    def fit(random_state):
        return (
            tagger(algorithm="adagrad", max_epochs=2, random_state=random_state)
            .fit(X, y)
            .tagger_.weights
        )

    assert np.array_equal(fit(3), fit(3))
    assert np.array_equal(fit(np.random.RandomState(3)), fit(np.random.RandomState(3)))
    assert not np.array_equal(fit(3), fit(4))


# --- among scikit-learn's tools -----------------------------------------------------------------------


def test_searches_clones_and_copies():
    X, y = corpus(40)
    model = tagger(objective="raml", tau=0.5)
    assert clone(model).get_params() == model.get_params()
    assert "tau=0.5" in repr(model)
    search = GridSearchCV(model, {"tau": [0.2, 1.0], "c1": [0.0, 0.2]}, cv=2).fit(X, y)
    assert search.best_estimator_.tau == search.best_params_["tau"]
    assert search.best_score_ > 0.7
    several = crowd(30)
    assert cross_val_score(tagger(objective="sqdml", tau=0.5), *several, cv=2).min() > 0.6
    weighted = GridSearchCV(tagger(), {"c2": [0.5]}, cv=2).fit(
        *several, ref_weights=[[1.0] * len(labels) for labels in several[1]]
    )
    assert weighted.best_score_ > 0.6
    fitted = model.fit(X, y)
    assert copy.deepcopy(fitted).predict_marginals(X) == fitted.predict_marginals(X)


def test_entity_f1_chooses_in_searches():
    world = EntityWorld(common=20, names=4, shared=3, double=3)
    sentences = world.sample(40, seed=0)
    X, y = ([list(s.tokens) for s in sentences], [list(s.labels[0]) for s in sentences])
    tagger = CRFTagger(templates=["word[0]", "word[-1]"])
    search = GridSearchCV(tagger, {"c2": [0.1, 1e4]}, scoring=entity_f1_scorer, cv=2).fit(X, y)
    assert search.best_params_ == {"c2": 0.1}
    predicted = search.predict(X)
    expected = SpanScores.of(span_statistics(y, predicted, "bio")).f1
    assert search.score(X, y) == expected
    assert expected != pytest.approx(search.best_estimator_.score(X, y))  # which is accuracy
    with pytest.raises(DataError, match="one label sequence for each sentence, got several"):
        entity_f1_scorer(search, X[:1], [[y[0], y[0]]])
    outside = [["O"] * len(labels) for labels in y]
    assert entity_f1_scorer(search, X, outside) == 0.0


def test_works_without_scikit_learn():
    code = (
        "import sys; sys.modules['sklearn'] = None\nimport softq\n"
        "t = softq.CRFTagger(c2=0.1, templates=['bias', 'word[0]']).set_params(c1=0.01)\n"
        "print(t); print(t.fit([['a', 'b'], ['b']], [['X', 'Y'], ['Y']]).predict([['b', 'a']]))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert said.splitlines() == [
        "CRFTagger(c1=0.01, c2=0.1, templates=['bias', 'word[0]'])",
        "[['Y', 'X']]",
    ]


def test_parameters_are_those_of_the_constructor():
    class Rule(Parameters):
        def __init__(self, *, depth=2, width=None):
            self.depth, self.width = depth, width

    assert Rule(width=3).get_params() == {"depth": 2, "width": 3}
    assert repr(Rule(width=3).set_params(depth=2)) == "Rule(width=3)"
    with pytest.raises(EstimatorError, match="Rule has no parameter 'height'; it has depth, width"):
        Rule().set_params(height=1)


def test_verbose_tells_of_every_step(capsys):
    X, y = corpus(10)
    model = tagger(verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[0].startswith("iteration 1: loss ")
    tagger(algorithm="adagrad", max_epochs=3, verbose=True).fit(X, y)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "epoch 1",
        "epoch 2",
        "epoch 3",
    ]
    tagger().fit(X, y)
    assert capsys.readouterr().out == ""


def test_held_out_sentences_are_scored_and_not_learnt_from(capsys):
    (X, y), (X_dev, y_dev) = corpus(40), corpus(30, seed=1)
    model = tagger(verbose=True).fit(X, y, X_dev, y_dev)
    assert model.dev_score_ == model.score(X_dev, y_dev)
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == f"share of right labels on X_dev: {model.dev_score_:.4f}"
    )
    alone = tagger().fit(X, y)
    assert alone.dev_score_ is None
    check_same_weights(alone, model, atol=1e-12)
    for held_out, text in (
        ((X_dev, None), "expected both or neither, got X_dev alone"),
        ((None, y_dev), "expected both or neither, got y_dev alone"),
        ((X_dev, y_dev[1:]), "X_dev and y_dev: y must have an entry for each of the 30 sentences"),
        (
            ([[{"w": 1}]], [["O"]]),
            r"each token of X_dev must be a word \(a string\), as in X, got a dict",
        ),
    ):
        with pytest.raises(SoftqError, match=text):
            tagger(max_iterations=1).fit(X, y, *held_out)


# --- on the disk --------------------------------------------------------------------------------------


INPUTS = {
    "words": str,
    "pairs": lambda word: (word, word[-1]),
    "features": lambda word: {"w": word, "n": len(word)},
}


@pytest.mark.parametrize("kind", INPUTS)
def test_save_and_load(tmp_path, kind):
    X, y = corpus(30)
    X = [[INPUTS[kind](word) for word in sentence] for sentence in X]
    templates = TEMPLATES if kind == "words" else None
    reward = {"O": np.float64(0.5)}
    model = tagger(
        templates=templates,
        objective="raml",
        tau=np.float64(0.5),
        reward=reward,
        constraints="decode",
        decoding="mbr",
    )
    model.fit(X, y).save(tmp_path / "a.softq")
    loaded = CRFTagger.load(tmp_path / "a.softq")
    assert loaded.predict(X) == model.predict(X)
    assert loaded.predict_marginals(X) == model.predict_marginals(X)
    assert loaded.state_features_ == model.state_features_
    assert loaded.size_ == model.size_
    for name in ("classes_", "n_iter_", "converged_", "loss_curve_", "kl_"):
        assert getattr(loaded, name) == getattr(model, name)
    assert {**loaded.get_params(), "templates": templates} == model.get_params()
    assert loaded.fit(X, y).predict(X) == model.predict(X)


def test_files_keep_what_json_can_hold(tmp_path):
    X, y = corpus(10)
    count = len({label for labels in y for label in labels})
    model = tagger(reward=np.eye(count), random_state=np.random.RandomState(0), hash_bits=12).fit(
        X, y
    )
    model.save(tmp_path / "a")
    loaded = CRFTagger.load(tmp_path / "a")
    assert np.array_equal(loaded.reward, np.eye(count))
    assert loaded.random_state is None
    assert loaded.predict(X) == model.predict(X)


# --- annotators weighed by their agreement --------------------------------------------------------------


def test_estimated_weights_are_those_of_the_estimate(tmp_path):
    world = EntityWorld()
    crowd = world.annotate(world.sample(150, seed=7), seed=7)
    names = sorted({name for sentence in crowd for name in sentence.annotators})
    x = [list(sentence.tokens) for sentence in crowd]
    by_name = [dict(zip(sentence.annotators, sentence.labels, strict=True)) for sentence in crowd]
    y = [[labels.get(name) for name in names] for labels in by_name]
    options = {"objective": "sqdml", "tau": 0.2, "templates": ["word[0]"], "c2": 0.1}
    fitted = CRFTagger(**options).fit(x, y, ref_weights="dawid-skene")
    found = estimate(crowd, "dawid-skene")
    rows = {row.name: row for row in found.annotators}
    assert len(names) > 10  # so that 10 comes before 2 in the order of letters
    assert [row.name for row in fitted.annotators_] == [str(place) for place in range(len(names))]
    for row in fitted.annotators_:
        assert row[1:] == pytest.approx(rows[names[int(row.name)]][1:], rel=1e-6)
    weights = [
        [rows[name].weight if name in labels else 0.0 for name in names] for labels in by_name
    ]
    by_hand = CRFTagger(**options).fit(x, y, ref_weights=weights)
    assert by_hand.annotators_ == ()
    np.testing.assert_allclose(by_hand.tagger_.weights, fitted.tagger_.weights, atol=1e-3)
    fitted.save(tmp_path / "tagger")
    assert CRFTagger.load(tmp_path / "tagger").annotators_ == fitted.annotators_
    with pytest.raises(
        EstimatorError, match="ref_weights must be one of one-coin, dawid-skene, got 'dawid'"
    ):
        CRFTagger(**options).fit(x, y, ref_weights="dawid")
