"""What softq.CRFTagger says to data and options that do not fit."""

# ruff: noqa: N803 -- scikit-learn calls the inputs X

import numpy as np
import pytest

from softq import CRFTagger
from softq.errors import (
    ConvergenceWarning,
    DataError,
    DtypeError,
    EstimatorError,
    ShapeError,
    SoftqError,
)

A = [["a", "b"], ["c"]]
L = [["X", "Y"], ["Y"]]


@pytest.mark.parametrize(
    ("X", "y", "error", "text"),
    [
        ([[], []], [[], []], DataError, "at least one token to learn from, got 2 sentences"),
        ("ab", L, DataError, r"X must be a sequence of sentences, .*, got 'ab' \(str\)"),
        (["a b", ["c"]], L, DataError, "sentence 0 of X must be a sequence of tokens, .*split it"),
        ([[1], ["a"]], L, DataError, r"sentence 0, token 0: expected a word .*, or .*, got 1"),
        ([["a", {"b": 1}]], L, DataError, "0, token 1: expected a word .* tokens before, got {'b'"),
        ([[("b", "N", "x")], [("c", "N")]], L, DataError, "a tuple must be .word, part of speech"),
        (A, L[:1], ShapeError, "y must have an entry for each of the 2 sentences of X, got 1"),
        (A, None, DataError, "y must be a sequence with an entry for each sentence of X, got None"),
        (A, [["X"], ["Y"]], ShapeError, "sentence 0 has 1 labels for 2 tokens"),
        (A, [[["X", "Y"], ["X"]], ["Y"]], ShapeError, "annotator 1 of sentence 0 has 1 labels"),
        (A, [["X", "Y"], [None]], DataError, "1 has no labels: every annotator is missing"),
        (A, ["XY", ["Y"]], DataError, "labels of sentence 0 must be a list of strings, .*'XY'"),
        (A, [["X", 2], ["Y"]], DtypeError, r"labels of sentence 0 .*, got 2 \(int\) among them"),
        (A, [[["X", None]], ["Y"]], DtypeError, "annotator 0 .* has None .*the whole sentence"),
    ],
)
def test_data_that_does_not_fit(X, y, error, text):
    with pytest.raises(error, match=text):
        CRFTagger().fit(X, y)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"algorithm": "arow"}, "must be 'lbfgs' or 'adagrad', got 'arow'.*take 'adagrad'"),
        ({"algorithm": "lbfg"}, "algorithm must be one of .*, got 'lbfg'; did you mean 'lbfgs'"),
        ({"algorithm": "adagrad", "c1": 0.1}, "c1 is for algorithm='lbfgs'"),
        ({"c2": "x"}, "c2 must be a number from 0, got 'x'"),
        ({"max_iterations": 0}, "max_iterations must be a whole number of at least 1, got 0"),
        ({"learning_rate": 0}, "learning_rate must be a positive number"),
        ({"objective": "raml"}, "objective='raml' needs a temperature: set tau"),
        ({"objective": "raml", "tau": -1.0}, "tau must be positive and finite, got -1.0"),
        ({"reward": np.eye(3)}, r"reward must be \[2, 2\] .* labels of y, X, Y; got \[3, 3\]"),
        ({"reward": {"Z": 1.0}}, "reward must name labels that occur in y, X, Y; got 'Z'"),
        ({"reward": {"X": "much"}}, "reward of X must be a number from 0, got 'much'"),
        ({"reward": "token-accuracy"}, r"reward must be a table \[K, K\] of numbers, .*, got str"),
        ({"reward": np.eye(2), "entity_weight": 2.0}, "entity_weight=2 do not go together"),
        ({"constraints": "all"}, "constraints must be one of none, decode, target, model, got"),
        ({"constraints": "decode"}, "tags of entities such as B-PER, and the labels of y are X, Y"),
        ({"scheme": "bilou"}, "scheme must be one of auto, iob1, bio, bioes, got 'bilou'"),
        ({"templates": ["colour["]}, "colour"),
        ({"hash_bits": 99}, "hash_bits must be None or a whole number in 1..30"),
    ],
)
def test_options_that_do_not_fit(options, text):
    with pytest.raises(SoftqError, match=text):
        CRFTagger(**options).fit(A, L)


def test_what_is_asked_too_early_or_of_the_wrong_kind():
    model = CRFTagger()
    for ask in (lambda: model.predict(A), lambda: model.save("x"), lambda: model.score(A, L)):
        with pytest.raises(EstimatorError, match="has learnt nothing yet: call fit"):
            ask()
    assert not hasattr(model, "state_features_")
    model = CRFTagger(templates=["word[0]"]).fit(A, L)
    with pytest.raises(
        DataError,
        match=(
            r"each token of X must be a word \(a string\), as in fit, got a dict, list or set of"
            r" features"
        ),
    ):
        model.predict([[{"w": 1}]])
    with pytest.raises(DataError, match="templates make features of words"):
        CRFTagger(templates=["word[0]"]).fit([[["a"]]], [["X"]])
    with pytest.raises(EstimatorError, match="decoding must be one of viterbi, mbr, got 'best'"):
        model.set_params(decoding="best").predict(A)


def test_values_beyond_reason():
    huge = [[{"a": 3e38}, {"b": 3e38}], [{"a": 3e38}]]
    with pytest.warns(
        ConvergenceWarning,
        match="no step that makes the loss smaller: .*rescale features with large values",
    ):
        assert CRFTagger(c2=0.0).fit(huge, L).converged_ is False
    with pytest.raises(
        SoftqError, match=r"training diverged: iteration 0: the objective is .*; rescale features"
    ):
        CRFTagger().fit([*huge, [{"b": 3e38}] * 9], [*L, ["X"] * 9])
    with (
        pytest.raises(
            SoftqError, match=r"training diverged: in epoch 2 the loss is .*; lower learning_rate"
        ),
        np.errstate(all="ignore"),
    ):
        CRFTagger(algorithm="adagrad", learning_rate=1e39).fit(A, L)


def test_a_scheme_that_the_labels_do_not_follow():
    x, y = [["Ann", "Lee", "ran"]], [["B-PER", "I-PER", "O"]]
    with pytest.raises(
        DataError,
        match=(
            r"scheme='bioes' does not fit: sentence 0, token 2: expected .* got O; the labels of y"
            r" follow bio"
        ),
    ):
        CRFTagger(scheme="bioes", constraints="decode").fit(x, y)


@pytest.mark.parametrize(
    ("y", "got"), [([["O", "B-PER"]], "1"), ([[["O", "B-PER"]] * 2, [["O", "O"]] * 3], "2, 3")]
)
def test_weighed_annotators_keep_their_places(y, got):
    with pytest.raises(DataError, match=f"None where an annotator is missing, got {got}$"):
        CRFTagger().fit([["a", "b"]] * len(y), y, ref_weights="dawid-skene")
