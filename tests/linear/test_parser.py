"""softq.DependencyParser by itself.

Sentences, objectives, annotators, crossing arcs, batches, searches, errors.
"""

# ruff: noqa: N803, N806 -- scikit-learn calls the inputs X

import copy
import dataclasses
import itertools
import math
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score

from softq import DependencyParser
from softq.errors import (
    ConvergenceWarning,
    DataError,
    DtypeError,
    EstimatorError,
    OutputError,
    ShapeError,
    SoftqError,
    WeightError,
)
from softq.formats.conllu import TreeSentence
from softq.formats.trees import is_projective, projectivise, tree_faults
from softq.lab.worlds import TreeWorld
from softq.linear.parser import NonprojectiveWarning
from softq.linear.parsing import Parse, Trees, TreeTargets

WORLD = TreeWorld(crossing=0.0, lemmas=6)
TRAIN, TEST = WORLD.sample(60, seed=0), WORLD.sample(30, seed=1)
TEMPLATES = ("head.upos|dep.upos", "head.word|dep.word", "dep.upos", "head.upos[1]|dep.upos[-1]")
SMALL = {"bits": 12, "relation_bits": 8, "min_freq": 1, "random_state": 0, "templates": TEMPLATES}


pytestmark = pytest.mark.usefixtures("one_thread")


def parser(**options):
    return DependencyParser(**{**SMALL, "epochs": 3, **options})


def heads_of(sentences):
    return [sentence.heads for sentence in sentences]


def check_same(model, other, atol=0.0):
    np.testing.assert_allclose(model.parser_.weights, other.parser_.weights, rtol=0, atol=atol)
    np.testing.assert_allclose(
        model.parser_.relation_weights, other.parser_.relation_weights, rtol=0, atol=atol
    )


# --- sentences ----------------------------------------------------------------------------------------


def test_sentences_may_be_written_in_several_ways():
    bare = [
        dataclasses.replace(
            s, lemmas=("_",) * len(s.forms), xpos=("_",) * len(s.forms), feats=("_",) * len(s.forms)
        )
        for s in TRAIN
    ]
    pairs = [list(zip(s.forms, s.upos, strict=True)) for s in TRAIN]
    dicts = [[{"form": form, "upos": tag} for form, tag in sentence] for sentence in pairs]
    trees = [(s.heads, s.relations) for s in TRAIN]
    expected = parser(templates=None).fit(bare)
    for X in (pairs, dicts, [tuple(sentence) for sentence in pairs]):
        model = parser(templates=None).fit(X, trees)
        check_same(model, expected)
        assert model.predict(X) == expected.predict(bare)
        assert model.score(X, trees) == expected.score(bare) > 0.8
    words = parser(templates=None).fit([s.forms for s in TRAIN], heads_of(TRAIN))
    assert (words.relations_, words.predict([["no", "tags"]])[0].relations) == ([], ())
    assert not {"lemma", "upos", "xpos", "feats"} & set(words.index_.strings)
    triples = parser(templates=["head.xpos|dep.xpos"]).fit(
        [list(zip(s.forms, s.upos, s.upos, strict=True)) for s in TRAIN], trees
    )
    assert set(triples.index_.strings["xpos"]) == {tag for s in TRAIN for tag in s.upos}


def test_trees_may_be_written_in_several_ways():
    expected = parser().fit(TRAIN)
    lists = [[list(s.heads), list(s.relations)] for s in TRAIN]
    arrays = [(np.array(s.heads), np.array(s.relations)) for s in TRAIN]
    parses = [Parse(s.heads, s.relations, (0.5,) * len(s.heads)) for s in TRAIN]
    for y in (lists, arrays, parses, TRAIN, [[s] for s in TRAIN], [[tree] for tree in arrays]):
        check_same(parser().fit(TRAIN, y), expected)
    bare = parser().fit(TRAIN, heads_of(TRAIN))
    for y in (
        [np.array(s.heads) for s in TRAIN],
        [np.array([s.heads] * 2) for s in TRAIN],
        [(s.heads, ()) for s in TRAIN],
    ):
        check_same(parser().fit(TRAIN, y), bare)
    missing = [[s.heads, None] for s in TRAIN]  # two annotators, who have two weights
    check_same(parser().fit(TRAIN, missing, ref_weights=[[1, 1]] * len(TRAIN)), bare)
    assert bare.relations_ == []
    np.testing.assert_array_equal(
        bare.parser_.weights, expected.parser_.weights
    )  # relations are learnt beside the trees


def test_sentences_without_words_teach_nothing():
    empty = dataclasses.replace(
        TRAIN[0], forms=(), lemmas=(), upos=(), xpos=(), feats=(), heads=(), relations=()
    )
    model = parser().fit([empty, *TRAIN])
    check_same(model, parser().fit(TRAIN))
    assert model.predict([empty]) == [Parse((), (), ())]
    assert model.predict([]) == []
    assert model.score([]) == 0.0


def all_trees(n):
    heads = itertools.product(range(n + 1), repeat=n)
    return [tree for tree in heads if not tree_faults(tree) and is_projective(tree)]


@pytest.mark.parametrize("decoding", ["mode", "mbr"])
def test_decodings_are_what_they_say(decoding):
    short = [s for s in WORLD.sample(300, seed=2) if len(s.forms) <= 4][:25]
    model = parser(decoding=decoding, epochs=1).fit(TRAIN[:15])
    for sentence, parse, table in zip(
        short, model.predict(short), model.predict_marginals(short), strict=True
    ):
        n = len(sentence.forms)
        assert table.shape == (n + 1, n + 1)
        np.testing.assert_allclose(table[:, 1:].sum(0), 1.0, atol=1e-5)
        assert not table[:, 0].any()
        [(_, space)] = model.parser_.trees(model.index_.encode([sentence]))
        arcs = table if decoding == "mbr" else space.scores[0].numpy()

        def total(heads, arcs=arcs):
            return sum(arcs[head, word] for word, head in enumerate(heads, start=1))

        assert total(parse.heads) == pytest.approx(max(map(total, all_trees(n))), abs=1e-5)


# --- objectives and annotators ------------------------------------------------------------------------


def test_one_annotator_makes_raml_and_sqdml_the_same():
    raml, sqdml, ml = (
        parser(objective=name, tau=0.7).fit(TRAIN) for name in ("raml", "sqdml", "ml")
    )
    check_same(raml, sqdml, atol=1e-5)
    assert abs(raml.parser_.weights - ml.parser_.weights).max() > 1e-3
    check_same(parser(objective="raml", tau=0.02).fit(TRAIN), ml, atol=1e-4)


def crowd():
    return WORLD.annotate(TRAIN, annotators=2, carelessness=0.9, seed=0)


@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
def test_weights_and_missing_annotators(objective):
    y = [list(trees) for trees in crowd()]
    assert any(one != other for one, other in y)
    plain = parser(objective=objective, tau=0.5).fit(TRAIN, y)
    check_same(
        parser(objective=objective, tau=0.5).fit(TRAIN, [[None, *trees, None] for trees in y]),
        plain,
    )
    chains = [tuple(range(len(s.forms))) for s in TRAIN]
    zero = [[*trees, chain] for trees, chain in zip(y, chains, strict=True)]
    check_same(
        parser(objective=objective, tau=0.5).fit(TRAIN, zero, ref_weights=[[2, 2, 0]] * len(y)),
        plain,
        atol=1e-6,
    )
    # by a search: where a derivative is nothing but rounding, AdaGrad takes a whole step
    search = {"objective": objective, "tau": 0.5, "optimizer": "lbfgs", "c2": 1.0}
    uneven = parser(**search).fit(TRAIN, y, ref_weights=[[3, 1]] * len(y))
    again = parser(**search).fit(TRAIN, [[one, one, other, one] for one, other in y])
    check_same(uneven, again, atol=1e-4)
    assert abs(uneven.parser_.weights - parser(**search).fit(TRAIN, y).parser_.weights).max() > 1e-2


def test_score_counts_heads_and_the_annotators_who_agree():
    model = parser().fit(TRAIN)
    found = model.predict(TEST)
    pairs = [
        (a, b)
        for s, parse in zip(TEST, found, strict=True)
        for a, b in zip(s.heads, parse.heads, strict=True)
    ]
    assert model.score(iter(TEST)) == model.score(TEST)  # X is read once
    assert (
        model.score(TEST)
        == model.score(TEST, heads_of(TEST))
        == pytest.approx(np.mean([a == b for a, b in pairs]))
    )
    assert model.score(TEST, found) == 1.0
    heads = found[0].heads
    other = next(
        tree
        for tree in itertools.permutations(range(len(heads)))
        if not tree_faults(tree) and tree != heads
    )
    same = sum(a == b for a, b in zip(heads, other, strict=True)) / len(heads)
    assert model.score(TEST[:1], [[heads, other, None]]) == pytest.approx((1 + same) / 2)


# --- crossing arcs ------------------------------------------------------------------------------------


def test_crossing_arcs_are_lifted_skipped_refused_or_learnt():
    wild = TreeWorld(crossing=1.0, lemmas=6).sample(40, seed=3)
    crossing = [s for s in wild if not is_projective(s.heads)]
    flat = [s for s in wild if is_projective(s.heads)]
    assert len(crossing) > 5
    assert len(flat) > 5
    with pytest.warns(
        NonprojectiveWarning,
        match=f"{len(crossing)} of 40 sentences have .* they are lifted until none cross",
    ):
        lifted = parser().fit(wild)
    by_hand = parser().fit(wild, [tuple(projectivise(s.heads)) for s in wild])
    np.testing.assert_array_equal(lifted.parser_.weights, by_hand.parser_.weights)
    assert lifted.nonprojective_ == len(crossing)
    with pytest.warns(
        NonprojectiveWarning,
        match=f"{len(crossing)} of 40 sentences have .* these sentences are left out",
    ):
        skipped = parser(nonprojective="skip").fit(wild)
    check_same(skipped, parser().fit(flat))
    first = next(number for number, s in enumerate(wild) if not is_projective(s.heads))
    with pytest.raises(
        DataError,
        match=f"{len(crossing)} of 40 .*, the first is sentence {first}, and nonprojective='error'",
    ):
        parser(nonprojective="error").fit(wild)
    with pytest.raises(DataError, match="nothing is left to learn from"):
        parser(nonprojective="skip").fit(crossing)
    spanning = parser(spanning=True).fit(wild)  # a warning would be an error
    assert spanning.nonprojective_ == 0
    np.testing.assert_array_equal(
        spanning.parser_.relation_weights, lifted.parser_.relation_weights
    )  # of the arcs as they were
    assert any(
        not is_projective(parse.heads)
        for parse in parser(spanning=True, epochs=20).fit(wild).predict(wild)
    )
    assert all(is_projective(parse.heads) for parse in lifted.predict(wild))


# --- training -----------------------------------------------------------------------------------------


def test_batches_follow_the_random_state():
    def fit(random_state):
        return parser(batch_size=7, random_state=random_state).fit(TRAIN).parser_.weights

    assert np.array_equal(fit(3), fit(3))
    assert np.array_equal(fit(np.random.RandomState(3)), fit(np.random.RandomState(3)))
    assert not np.array_equal(fit(3), fit(4))


def test_a_search_finds_the_minimum():
    options = {"c2": 0.5, "optimizer": "lbfgs", "tolerance": 1e-4}
    best = parser(**options).fit(TRAIN)
    assert best.converged_ is True
    assert (best.n_iter_, best.best_iter_) == (len(best.loss_curve_) - 1,) * 2
    assert all(after < before for before, after in itertools.pairwise(best.loss_curve_))
    penalty = 0.5 * float(np.square(best.parser_.weights, dtype=np.float64).sum())
    assert best.kl_ * len(TRAIN) + penalty == pytest.approx(
        best.loss_curve_[-1], rel=1e-4
    )  # of ML and one tree the entropy is 0
    descent = parser(epochs=30, batch_size=4).fit(TRAIN)
    assert descent.converged_ is None
    # at the start all trees are alike: of n words, C(3n - 2, n - 1) / n projective ones with one
    # root
    count = {n: math.comb(3 * n - 2, n - 1) // n for n in range(1, 40)}
    assert [count[n] for n in range(1, 5)] == [len(all_trees(n)) for n in range(1, 5)]
    start = sum(math.log(count[len(s.forms)]) for s in TRAIN)
    whole = parser(epochs=1, batch_size=len(TRAIN)).fit(TRAIN)
    assert (best.loss_curve_[0], whole.loss_curve_[0]) == pytest.approx((start, start), rel=1e-5)
    assert descent.loss_curve_[-1] < descent.loss_curve_[0] < start
    soft = parser(**options, objective="raml", tau=1.0).fit(TRAIN)
    assert 0 < soft.kl_ * len(TRAIN) < soft.loss_curve_[-1] / 2
    entropy = TreeTargets(Trees.single(heads_of(TRAIN)), "raml", 1.0).entropy(np.arange(len(TRAIN)))
    by_batches = parser(objective="raml", tau=1.0).fit(TRAIN)
    assert by_batches.kl_ * len(TRAIN) == pytest.approx(by_batches.loss_curve_[-1] - entropy)
    assert len(best.relation_loss_curve_) == 3
    assert best.relation_loss_curve_[-1] < best.relation_loss_curve_[0]
    with pytest.warns(
        ConvergenceWarning, match="training stopped after 2 iterations, before it converged"
    ):
        assert parser(**options, max_iterations=2).fit(TRAIN).converged_ is False
    assert parser(**options).fit(TRAIN, heads_of(TRAIN)).relation_loss_curve_ == []


def test_held_out_sentences_choose_the_epoch():
    model = parser(epochs=12, patience=2, batch_size=4, learning_rate=0.3).fit(
        TRAIN[:12], None, TEST
    )
    scores = model.dev_scores_
    best = scores.index(max(scores)) + 1
    assert (model.best_iter_, model.n_iter_, model.dev_score_) == (best, len(scores), max(scores))
    assert len(scores) == min(12, best + 2) < 12
    assert model.score(TEST) == pytest.approx(model.dev_score_)
    short = parser(epochs=best, batch_size=4, learning_rate=0.3).fit(TRAIN[:12])
    check_same(model, short)
    assert (short.dev_scores_, short.dev_score_) == ([], None)
    whole = parser(epochs=12, patience=0, batch_size=4, learning_rate=0.3).fit(
        TRAIN[:12], None, TEST
    )
    assert whole.n_iter_ == 12
    assert (
        len(
            parser(optimizer="lbfgs", tolerance=0.1)
            .fit(TRAIN, None, TEST, heads_of(TEST))
            .dev_scores_
        )
        == 1
    )
    for held_out, text in (
        ((None, heads_of(TEST)), "expected both or neither, got y_dev alone"),
        (
            (TEST, heads_of(TEST)[1:]),
            "X_dev and y_dev: y must have an entry for each of the 30 sentences",
        ),
        (
            ([["a", "b"]], [(0, 1)]),
            (
                "X_dev and y_dev: each word of X must have its upos or its xpos, as in fit, got X"
                " without any"
            ),
        ),
    ):
        with pytest.raises(SoftqError, match=text):
            parser().fit(TRAIN, None, *held_out)


def test_verbose_tells_of_every_step(capsys):
    parser(verbose=True).fit(TRAIN[:5], None, TEST[:5])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1", "epoch 2", "epoch 3"]
    assert all("UAS on X_dev 0." in line for line in lines)
    model = parser(verbose=True, optimizer="lbfgs", epochs=1).fit(TRAIN[:5], None, TEST[:5])
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[0][:11]) == (model.n_iter_ + 1, "iteration 1")
    assert "epoch 1: cross-entropy of relations" in lines[-1]
    assert "UAS on X_dev" in lines[-1]
    parser().fit(TRAIN[:5])
    assert capsys.readouterr().out == ""


# --- among scikit-learn's tools -----------------------------------------------------------------------


def test_searches_clones_and_copies():
    model = parser(objective="raml", tau=0.5, epochs=1)
    assert clone(model).get_params() == model.get_params()
    assert "tau=0.5" in repr(model)
    search = GridSearchCV(model, {"tau": [0.2, 1.0]}, cv=2).fit(TRAIN)
    assert search.best_estimator_.tau == search.best_params_["tau"]
    assert search.best_score_ > 0.5
    assert (
        cross_val_score(parser(objective="sqdml", tau=0.5, epochs=1), TRAIN, crowd(), cv=2).min()
        > 0.4
    )
    assert copy.deepcopy(search.best_estimator_).predict(TEST) == search.predict(TEST)


# --- what does not fit --------------------------------------------------------------------------------

A = [[("a", "X"), ("b", "Y")], [("c", "X")]]
T = [(2, 0), (0,)]


@pytest.mark.parametrize(
    ("X", "y", "error", "text"),
    [
        ([[], []], [[], []], DataError, "at least one word to learn from, got 2 sentences"),
        ("ab", T, DataError, "X must be a sequence of sentences, .* got 'ab'"),
        (["a b", ["c"]], T, DataError, "sentence 0 of X must be a sequence of words, .*split it"),
        ([["a"], [1]], T, DataError, r"sentence 1, word 0: expected .* words before, got 1 \(int"),
        (
            [[1, "b"], ["c"]],
            T,
            DataError,
            r"sentence 0, word 0: expected a word .*, or a dict with",
        ),
        ([[("a", "X"), "b"], A[1]], T, DataError, r"sentence 0, word 1: expected a \(form, upos"),
        ([[{"form": "a", "pos": "X"}]], [(0,)], DataError, "expected .*, got {'form': 'a', 'pos'"),
        ([["a\nb"]], [(0,)], DataError, "sentence 0: expected text without line ends, or '_'"),
        ([["a"], ["b\ud800"]], [(0,)] * 2, DataError, "sentence 1: expected text that UTF-8 can"),
        ([TRAIN[0], ["a"]], [TRAIN[0], (0,)], DataError, "sentence 1 of X must be a TreeSentence"),
        (A, None, DataError, "without y, .* must be a TreeSentence .*, sentence 0 has none"),
        (A, [(2, 0)], ShapeError, "y must have an entry for each of the 2 sentences of X, got 1"),
        (A, [(2, 0), None], DataError, "sentence 1 has no tree: every annotator is missing"),
        (A, [(2, 0, 2), (0,)], ShapeError, "sentence 0 has 3 heads for 2 words"),
        (A, [((2, 0), ("x",)), ((0,), ("y",))], ShapeError, "0 has 1 relations for 2 words"),
        (A, [[(2, 0), (0,)], (0,)], ShapeError, "annotator 1 of sentence 0 has 1 heads for 2"),
        (A, [(2, 1), (0,)], OutputError, "sentence 0: expected a root, a word with head 0, got"),
        (A, [(0, 3), (0,)], OutputError, r"sentence 0, word 2 \(from 1\): expected a head in 0..2"),
        (A, [(2.0, 0.0), (0,)], DtypeError, r"sentence 0 must be heads .*, got 2.0 \(float\)"),
        (A, ["20", (0,)], DataError, "the tree of sentence 0 must be heads .*, got '20'"),
        (A, [[(2, 0), (True, 0)], (0,)], DtypeError, r"got \(True, 0\) \(tuple\) among them"),
        (A, [((2, 0), ("x", "y")), (0,)], DataError, "expected relations with all trees or with"),
        (A, [((2, 0), ("x", "y")), ((0,), ("\ud800",))], DataError, "relations that UTF-8 can"),
    ],
)
def test_data_that_does_not_fit(X, y, error, text):
    with pytest.raises(error, match=text):
        parser().fit(X, y)


@pytest.mark.parametrize(
    ("weights", "error", "text"),
    [
        ([[1.0]], ShapeError, "ref_weights must have an entry for each of the 2 sentences"),
        ([[1.0], [1.0, 2.0]], ShapeError, "ref_weights of sentence 1 must be 1 numbers"),
        ([[1.0], [-1.0]], WeightError, "sentence 1 must be finite numbers from 0, got -1.0"),
        ([[1.0], [0.0]], DataError, "every annotator is missing or has the weight 0"),
    ],
)
def test_weights_that_do_not_fit(weights, error, text):
    with pytest.raises(error, match=text):
        parser().fit(A, T, ref_weights=weights)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"optimizer": "sgd"}, "optimizer must be one of adagrad, lbfgs, got 'sgd'; did you mean"),
        ({"objective": "sqdml"}, "objective='sqdml' needs a temperature: set tau"),
        ({"objective": "raml", "tau": -1.0}, "tau must be positive and finite, got -1.0"),
        ({"decoding": "viterbi"}, "decoding must be one of mode, mbr, got 'viterbi'"),
        ({"relation_bits": 31}, "relation_bits must be a whole number in 4..30, got 31"),
        ({"min_freq": 0}, "min_freq must be a whole number of at least 1"),
        ({"patience": -1}, "patience must be a whole number"),
        ({"relation_learning_rate": "x"}, "relation_learning_rate must be a positive number"),
        ({"optimizer": "lbfgs", "c2": -1}, "c2 must be a number from 0, got -1"),
        ({"random_state": "x"}, "random_state must be None, a seed from 0, or a generator"),
        ({"templates": ["head.colour"]}, "expected one of the columns .*, got 'head.colour'"),
    ],
)
def test_options_that_do_not_fit(options, text):
    with pytest.raises(SoftqError, match=text):
        parser(**options).fit(A, T)


def test_what_is_asked_too_early_or_of_the_wrong_kind():
    model = parser()
    for ask in (
        lambda: model.predict(A),
        lambda: model.save("x"),
        lambda: model.score(A, T),
        lambda: model.predict_marginals(A),
    ):
        with pytest.raises(
            EstimatorError, match="this DependencyParser has learnt nothing yet: call fit"
        ):
            ask()
    model.fit(A, T)
    with pytest.raises(
        DataError,
        match="each word of X must have its upos or its xpos, as in fit, got X without any",
    ):
        model.predict([["a", "b"]])
    with pytest.raises(EstimatorError, match="decoding must be one of mode, mbr, got 'best'"):
        model.set_params(decoding="best").predict(A)


def test_words_and_one_kind_of_tags_are_enough():
    """What is missing is absent.

    It is as an unknown string is, and a word's other columns count.
    """
    columns = {
        "forms": ("a", "b", "c"),
        "lemmas": ("a", "b", "c"),
        "upos": ("X", "Y", "Z"),
        "xpos": ("x", "y", "z"),
        "feats": ("F=1", "_", "F=2"),
    }
    whole = TreeSentence(**columns, heads=(2, 0, 2), relations=("l", "root", "r"))
    model = parser(templates=None, relation_templates=None).fit([whole] * 3)
    for kept in ("upos", "xpos"):
        known = columns | {name: ("_",) * 3 for name in columns if name not in ("forms", kept)}
        unknown = columns | {name: ("?",) * 3 for name in columns if name not in ("forms", kept)}
        unknown["feats"] = known["feats"]  # to have no morphology is something to be known
        found, other = model.predict([TreeSentence(**known), TreeSentence(**unknown)])
        assert found == other
        assert found.heads == whole.heads
    tuples = [("a", "X"), ("b", "Y"), ("c", "Z")]
    assert model.predict([tuples])[0].relations == whole.relations
    with pytest.raises(DataError, match="each word of X must have its upos or its xpos"):
        model.predict([["a", "b", "c"]])
    assert model.predict([[]]) == [Parse(())]


def test_a_rate_beyond_reason():
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        pytest.raises(SoftqError, match=r"training diverged: in epoch \d .* lower"),
    ):
        parser(learning_rate=1e39, epochs=9).fit(A, T)
