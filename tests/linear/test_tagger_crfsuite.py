"""softq.CRFTagger against python-crfsuite.

The same weights, objective, labels and marginals, and the same program around it.
"""

# ruff: noqa: N803, N806 -- scikit-learn calls the inputs X

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import expon
from sklearn.metrics import make_scorer
from sklearn.model_selection import RandomizedSearchCV

import softq
from softq.errors import ConvergenceWarning
from softq.lab.worlds import EntityWorld

sklearn_crfsuite = pytest.importorskip("sklearn_crfsuite")
metrics = pytest.importorskip("sklearn_crfsuite.metrics")


pytestmark = pytest.mark.usefixtures("one_thread")


def word2features(sent, i):
    word = sent[i]
    features = {
        "bias": 1.0,
        "word.lower()": word.lower(),
        "word[-3:]": word[-3:],
        "word[-2:]": word[-2:],
        "word.isupper()": word.isupper(),
        "word.istitle()": word.istitle(),
        "word.isdigit()": word.isdigit(),
    }
    if i > 0:
        before = sent[i - 1]
        features.update({"-1:word.lower()": before.lower(), "-1:word.istitle()": before.istitle()})
    else:
        features["BOS"] = True
    if i < len(sent) - 1:
        after = sent[i + 1]
        features.update({"+1:word.lower()": after.lower(), "+1:word.istitle()": after.istitle()})
    else:
        features["EOS"] = True
    return features


def sent2features(sent):
    return [word2features(sent, i) for i in range(len(sent))]


def corpus(count, seed, kinds=True):
    sentences = EntityWorld().sample(count, seed=seed)
    X = [sent2features(sentence.tokens) for sentence in sentences]
    return X, [
        [label if kinds else label[0] for label in sentence.labels[0]] for sentence in sentences
    ]


def names_and_values(token):
    """The features of a token by the rules of python-crfsuite, for tokens that are dicts of strings and numbers, or lists."""
    if not isinstance(token, dict):
        return [(name, 1.0) for name in token]
    return [
        (f"{key}:{value}", 1.0) if isinstance(value, str) else (key, float(value))
        for key, value in token.items()
    ]


def objective(model, X, y, c1, c2):
    """Σ -log P + c1 ‖w‖₁ + c2 ‖w‖², from nothing but the weights a model shows."""
    classes, states, pairs = list(model.classes_), model.state_features_, model.transition_features_
    transitions = torch.tensor(
        [[pairs.get((a, b), 0.0) for b in classes] for a in classes], dtype=torch.float64
    )
    value = 0.0
    for sentence, labels in zip(X, y, strict=True):
        scores = [
            [sum(v * states.get((n, k), 0.0) for n, v in names_and_values(token)) for k in classes]
            for token in sentence
        ]
        chain = softq.Chain(torch.tensor([scores], dtype=torch.float64), transitions)
        value -= float(chain.log_prob(torch.tensor([[classes.index(label) for label in labels]])))
    weights = np.array([*states.values(), *pairs.values()])
    return value + c1 * np.abs(weights).sum() + c2 * (weights**2).sum()


def largest_difference(ours, theirs):
    return max(abs(ours.get(key, 0.0) - theirs.get(key, 0.0)) for key in {*ours, *theirs})


def both(X, y, **options):
    return softq.CRFTagger(**options).fit(X, y), sklearn_crfsuite.CRF(**options).fit(X, y)


def check_alike(ours, theirs, X, y, test, c1=0.0, c2=1.0, atol=0.01):
    assert objective(ours, X, y, c1, c2) == pytest.approx(objective(theirs, X, y, c1, c2), rel=5e-5)
    assert ours.loss_curve_[-1] == pytest.approx(objective(ours, X, y, c1, c2), rel=1e-5)
    assert sorted(ours.classes_) == sorted(theirs.classes_)
    predicted = list(
        zip(np.concatenate(ours.predict(test)), np.concatenate(theirs.predict(test)), strict=True)
    )
    assert np.mean([a == b for a, b in predicted]) > 0.995
    marginals = zip(ours.predict_marginals(test), theirs.predict_marginals(test), strict=True)
    pairs = [(a, b) for one, other in marginals for a, b in zip(one, other, strict=True)]
    assert max(largest_difference(a, b) for a, b in pairs) < atol
    assert np.mean([largest_difference(a, b) for a, b in pairs]) < 0.002


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"c2": 0.05},
        {"all_possible_states": True},
        {"all_possible_transitions": True, "c2": 0.2},
        {"all_possible_states": True, "all_possible_transitions": True},
    ],
)
def test_the_same_weights_without_l1(options):
    (X, y), (test, _) = corpus(150, 0), corpus(60, 1)
    ours, theirs = both(X, y, **options)
    check_alike(ours, theirs, X, y, test, c2=options.get("c2", 1.0))
    assert set(ours.state_features_) == set(theirs.state_features_)
    assert set(ours.transition_features_) == set(theirs.transition_features_)
    assert largest_difference(ours.state_features_, theirs.state_features_) < 0.02
    assert largest_difference(ours.transition_features_, theirs.transition_features_) < 0.02
    assert sorted(ours.attributes_) == sorted(theirs.attributes_)
    assert ours.num_attributes_ == theirs.num_attributes_
    assert ours.converged_


@pytest.mark.parametrize(
    "options", [{"c1": 0.5, "c2": 0.1}, {"c1": 0.3, "c2": 0.0, "all_possible_transitions": True}]
)
def test_the_same_objective_with_l1(options):
    (X, y), (test, _) = corpus(120, 0), corpus(60, 1)
    ours, theirs = both(X, y, **options)
    check_alike(ours, theirs, X, y, test, options["c1"], options["c2"], atol=0.1)
    counts = [len(model.state_features_) for model in (ours, theirs)]
    assert counts[0] == pytest.approx(counts[1], rel=0.05)
    dense = softq.CRFTagger(c2=0.1).fit(X, y)
    assert counts[0] < len(dense.state_features_) / 2  # weights of 0 are 0, not small


def test_rare_features_have_no_weight():
    (X, y), (test, _) = (
        corpus(150, 0, kinds=False),
        corpus(60, 1),
    )  # O, B and I: no two neighbours of them are rare
    ours, theirs = both(X, y, min_freq=4, c2=0.2)
    check_alike(ours, theirs, X, y, test, c2=0.2)
    assert set(ours.state_features_) == set(theirs.state_features_)
    assert len(ours.state_features_) < len(softq.CRFTagger().fit(X, y).state_features_) / 2


def test_features_with_values_and_lists_of_features():
    (X, y), (test, _) = corpus(120, 0), corpus(60, 1)

    def with_values(sentences):
        return [
            [
                {**token, "length": len(token["word.lower()"]) / 4, "place": i / 10}
                for i, token in enumerate(s)
            ]
            for s in sentences
        ]

    X_values, test_values = with_values(X), with_values(test)
    ours, theirs = both(X_values, y, c2=0.3)
    check_alike(ours, theirs, X_values, y, test_values, c2=0.3)
    assert largest_difference(ours.state_features_, theirs.state_features_) < 0.02

    X_lists, test_lists = (
        [[[f"w={t['word.lower()']}", "bias"] for t in s] for s in part] for part in (X, test)
    )
    ours, theirs = both(X_lists, y, c2=0.3)
    check_alike(ours, theirs, X_lists, y, test_lists, c2=0.3)


def test_empty_sentences_change_nothing():
    X, y = corpus(40, 0)
    ours = softq.CRFTagger().fit([[], *X, []], [[], *y, []])
    assert objective(ours, X, y, 0.0, 1.0) == pytest.approx(
        objective(sklearn_crfsuite.CRF().fit(X, y), X, y, 0.0, 1.0), rel=2e-4
    )
    assert ours.predict([[], X[0]]) == [[], ours.predict_single(X[0])]
    assert ours.predict_marginals([[]]) == [[]]
    assert ours.predict([]) == []


def tutorial(CRF):
    """The tutorial of sklearn-crfsuite, with another corpus and a shorter search."""
    (X_train, y_train), (X_test, y_test) = corpus(120, 0), corpus(100, 1)
    crf = CRF(algorithm="lbfgs", c1=0.1, c2=0.1, max_iterations=100, all_possible_transitions=True)
    crf.fit(X_train, y_train)
    labels = list(crf.classes_)
    labels.remove("O")
    y_pred = crf.predict(X_test)
    f1 = metrics.flat_f1_score(y_test, y_pred, average="weighted", labels=labels)
    sorted_labels = sorted(labels, key=lambda name: (name[1:], name[0]))
    report = metrics.flat_classification_report(
        y_test, y_pred, labels=sorted_labels, digits=3, zero_division=0
    )

    crf = CRF(algorithm="lbfgs", max_iterations=30, all_possible_transitions=True)
    params_space = {"c1": expon(scale=0.5), "c2": expon(scale=0.05)}
    f1_scorer = make_scorer(metrics.flat_f1_score, average="weighted", labels=labels)
    rs = RandomizedSearchCV(
        crf, params_space, cv=2, verbose=0, n_jobs=1, n_iter=2, scoring=f1_scorer, random_state=0
    )
    rs.fit(X_train, y_train)
    crf = rs.best_estimator_
    transitions = Counter(crf.transition_features_).most_common(5)
    states = Counter(crf.state_features_).most_common(10)
    return (
        f1,
        report,
        rs.best_params_,
        rs.best_score_,
        transitions,
        states,
        crf.score(X_test, y_test),
    )


@pytest.mark.filterwarnings(
    "ignore::softq.errors.ConvergenceWarning", "ignore::sklearn.exceptions.UndefinedMetricWarning"
)
def test_the_tutorial_with_nothing_but_the_class_changed():
    ours, theirs = tutorial(softq.CRFTagger), tutorial(sklearn_crfsuite.CRF)
    assert ours[0] == pytest.approx(theirs[0], abs=0.01)
    assert ours[0] > 0.7
    assert ours[1].splitlines()[0] == theirs[1].splitlines()[0]
    assert ours[2] == theirs[2]
    assert ours[3] == pytest.approx(theirs[3], abs=0.02)
    assert {pair for pair, _ in ours[4][:3]} == {pair for pair, _ in theirs[4][:3]}
    assert len({pair for pair, _ in ours[5]} & {pair for pair, _ in theirs[5]}) >= 7
    assert ours[6] == pytest.approx(theirs[6], abs=0.01)


def test_none_is_the_default():
    X, y = corpus(40, 0)
    shared = set(softq.CRFTagger().get_params()) & set(sklearn_crfsuite.CRF().get_params())
    assert {
        "algorithm",
        "c1",
        "c2",
        "min_freq",
        "max_iterations",
        "num_memories",
        "epsilon",
        "delta",
        "period",
        "verbose",
    } <= shared
    nothing = dict.fromkeys(shared)
    default, ours, theirs = (
        softq.CRFTagger(),
        softq.CRFTagger(**nothing),
        sklearn_crfsuite.CRF(**nothing),
    )
    assert ours.get_params() == {
        **default.get_params(),
        **nothing,
    }  # kept as given, as scikit-learn's clone needs it
    assert ours.fit(X, y).state_features_ == default.fit(X, y).state_features_
    assert largest_difference(ours.state_features_, theirs.fit(X, y).state_features_) < 0.02


def test_crfsuites_rules_end_the_search():
    X, y = corpus(60, 0)
    exact = softq.CRFTagger(c2=0.1, delta=0.0, epsilon=0.0).fit(X, y)
    default = softq.CRFTagger(c2=0.1).fit(X, y)
    early = softq.CRFTagger(c2=0.1, delta=0.05, period=3).fit(X, y)
    sloppy = softq.CRFTagger(c2=0.1, epsilon=0.5).fit(X, y)
    assert early.n_iter_ < default.n_iter_ < exact.n_iter_
    assert sloppy.n_iter_ < default.n_iter_
    losses = early.loss_curve_
    assert len(losses) == early.n_iter_ + 1
    assert (losses[-4] - losses[-1]) / losses[-1] <= 0.05 < (losses[-5] - losses[-2]) / losses[-2]
    assert all(model.converged_ for model in (exact, default, early, sloppy))
    assert exact.loss_curve_[-1] == pytest.approx(default.loss_curve_[-1], rel=1e-4)
    with pytest.warns(
        ConvergenceWarning,
        match=r"stopped after 4 iterations, before it converged: the last 4 lowered .* delta=1e-05",
    ):
        model = softq.CRFTagger(max_iterations=4).fit(X, y)
    assert (model.n_iter_, model.converged_) == (4, False)
