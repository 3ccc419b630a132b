"""Training objectives of feature CRFs against enumeration of all label sequences, finite differences and the chains of softq itself."""

import math

import numpy as np
import pytest
import torch

from softq.errors import OutputError, ShapeError, TemperatureError, WeightError
from softq.kernels import jit
from softq.linear import tagging as target
from softq.linear.features import FeatureMatrix
from softq.linear.tagger_training import CRFObjective, Layout
from softq.linear.tagging import Forbidden, References, corpus_target, entity_reward
from softq.rewards import TokenReward
from tagging_cases import (
    LENGTHS,
    NAMES,
    SCHEMES,
    by_enumeration,
    evaluate,
    features,
    settings_for,
    some_references,
)

pytestmark = pytest.mark.usefixtures("one_thread")


CASES = [
    (labels, objective, constraints)
    for labels in LENGTHS
    for objective in ("ml", "raml", "sqdml")
    for constraints in ("none", "decode", "target", "model")
    if (labels in SCHEMES or constraints == "none") and (labels < 9 or constraints != "decode")
]


@pytest.mark.parametrize(("labels", "objective", "constraints"), CASES)
@pytest.mark.parametrize("valued", [False, True])
def test_value_and_gradient_by_enumeration(labels, objective, constraints, valued):
    names, lengths, seed = NAMES[labels], LENGTHS[labels], labels + 10 * valued
    scheme = SCHEMES[labels] if constraints in ("target", "model") else None
    # What breaks the scheme can be a reference of RAML and SQDML: it is outside the target, yet
    # what comes near it earns something.
    references = some_references(seed, lengths, names, scheme if objective == "ml" else None)
    table = (
        np.random.default_rng(seed).integers(-4, 9, (labels, labels)) / 4
    )  # R[predicted, right], neither symmetric nor 0 off the diagonal
    matrix = features(seed, lengths, valued=valued)
    settings = settings_for(
        names, objective, 0.7, constraints, reward=TokenReward(torch.from_numpy(table)), c2=0.3
    )
    whole = settings.whole(matrix, references)
    parameters = torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(seed))
    value, gradient = evaluate(whole, parameters)
    expected, slopes, unary, pairs, constant = by_enumeration(
        matrix,
        references,
        names,
        objective,
        0.7,
        table.tolist(),
        parameters.tolist(),
        c2=0.3,
        target_scheme=scheme,
        model_scheme=scheme if constraints == "model" else None,
    )
    assert value == pytest.approx(expected, rel=1e-6)
    assert np.allclose(gradient, slopes, rtol=1e-4, atol=2e-6)
    assert np.allclose(whole.target.labels, np.reshape(unary, (-1, labels)), atol=1e-6)
    assert np.allclose(whole.target.pairs, pairs, atol=1e-9)
    penalty = 0.3 * math.fsum(p * p for p in parameters.tolist())
    assert whole.cross_entropy == pytest.approx(expected - penalty, rel=1e-6, abs=1e-6)
    assert whole.kl == pytest.approx(expected - penalty - constant, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
@pytest.mark.parametrize("constraints", ["none", "model"])
def test_the_gradient_is_that_of_the_value(objective, constraints):
    names, lengths = NAMES[5], (6, 0, 1, 9, 3)
    references = some_references(1, (3, 0, 1, 3, 3), names, "bioes")
    references = References(
        [
            np.tile(sequence, times)
            for sequence, times in zip(references.labels, (2, 1, 1, 3, 1), strict=True)
        ],
        references.weights,
    )
    whole = settings_for(names, objective, 0.5, constraints, c2=0.1).whole(
        features(2, lengths, valued=True), references
    )
    parameters = torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(4))
    _, gradient = evaluate(whole, parameters)
    generator = torch.Generator().manual_seed(5)
    for _ in range(8):
        direction = torch.randn(len(parameters), generator=generator)
        # Parameters are float32 in the kernels: a step of 2^-7 leaves rounding at 1e-5 and the
        # third derivative at 1e-4.
        step = 2.0**-7 * direction / direction.norm()
        above, below = (evaluate(whole, parameters + sign * step)[0] for sign in (1, -1))
        assert (above - below) / 2 == pytest.approx(
            float(gradient.double() @ step.double()), rel=2e-3, abs=2e-6
        )


@pytest.mark.parametrize("scale", [100.0, 1e4])
@pytest.mark.parametrize("constraints", ["none", "model"])
def test_extreme_weights(scale, constraints):
    names, lengths = NAMES[5], (4, 1, 0, 3)
    scheme = "bioes" if constraints == "model" else None
    references = some_references(0, lengths, names, scheme)
    matrix = features(7, lengths, twice=False)
    whole = settings_for(names, "raml", 0.5, constraints).whole(matrix, references)
    parameters = (
        scale * torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(2))
    ).round()  # sums are exact in float32
    value, gradient = evaluate(whole, parameters)
    table = np.eye(5).tolist()
    expected, slopes, *_ = by_enumeration(
        matrix,
        references,
        names,
        "raml",
        0.5,
        table,
        parameters.tolist(),
        target_scheme=scheme,
        model_scheme=scheme,
    )
    assert value == pytest.approx(expected, rel=1e-6)
    assert np.allclose(gradient, slopes, atol=1e-5)


def test_threads_change_no_bit(monkeypatch):
    names = NAMES[17]
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 150)
    matrix = features(1, lengths, size=200, valued=True)
    references = References(
        [rng.integers(0, 17, (1, n)) for n in lengths], [np.ones(1)] * len(lengths)
    )
    whole = settings_for(names, "raml", 0.5, c2=0.1).whole(matrix, references)
    parameters = torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(jit, "_OPERATIONS_PER_THREAD", 1)
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(jit.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(evaluate(whole, parameters))
    for value, gradient in found[1:]:
        assert value == found[0][0]
        assert torch.equal(gradient, found[0][1])


def test_a_second_evaluation_does_not_remember_the_first():
    names, lengths = NAMES[3], LENGTHS[3]
    references, matrix = some_references(5, lengths, names), features(5, lengths)
    settings = settings_for(names, "sqdml", 0.5, all_states=False, all_transitions=False, c2=0.2)
    whole = settings.whole(matrix, references)
    parameters = torch.randn(whole.layout.size, generator=torch.Generator().manual_seed(0))
    evaluate(whole, 3 - parameters)
    value, gradient = evaluate(whole, parameters)
    other, slopes = evaluate(settings.whole(matrix, references), parameters)
    assert value == other
    assert torch.equal(gradient, slopes)


def test_sizes_that_do_not_fit_are_refused():
    names = NAMES[3]
    references, matrix = some_references(0, (2, 3), names), features(0, (2, 3))
    settings = settings_for(names, "raml", 1.0)
    corpus = settings.target(references)
    with pytest.raises(
        ShapeError,
        match=r"expected a layout of 6 features and a target of shape \[5, 3\], got 5 and \[5, 3\]",
    ):
        CRFObjective(matrix, corpus, Layout(5, 3, None, None), c2=0.0, forbidden=settings.forbidden)
    with pytest.raises(ShapeError, match=r"of shape \[5, 4\], got 6 and \[5, 3\]"):
        CRFObjective(matrix, corpus, Layout(6, 4, None, None), c2=0.0, forbidden=settings.forbidden)
    with pytest.raises(
        ShapeError, match=r"expected references of 2 sentences with 5 tokens.* got 2 with 5"
    ):
        settings.whole(features(0, (3, 2)), references)
    with pytest.raises(
        ShapeError, match=r"expected references of 3 sentences with 6 tokens.* got 2 with 5"
    ):
        settings.whole(features(0, (2, 3, 1)), references)


# --- targets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
@pytest.mark.parametrize("scheme", [None, "bioes"])
def test_targets_do_not_depend_on_batches(monkeypatch, objective, scheme):
    names = NAMES[5]
    lengths = np.random.default_rng(0).integers(0, 5, 30)
    references = some_references(2, lengths, names, scheme)
    forbidden = Forbidden.by(scheme, names)
    one = corpus_target(objective, references, forbidden, tau=0.6)
    for cells in (1, 100, 700):
        monkeypatch.setattr(target, "_TARGET_CELLS", cells)
        other = corpus_target(objective, references, forbidden, tau=0.6)
        assert np.allclose(one.labels, other.labels, atol=1e-7)
        assert np.allclose(one.pairs, other.pairs, rtol=1e-12)
        assert one.entropy == pytest.approx(other.entropy, rel=1e-12)
    order = np.random.default_rng(1).permutation(30)
    shuffled = corpus_target(objective, references.take(order), forbidden, tau=0.6)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in order])
    assert np.allclose(shuffled.labels, one.labels[rows], atol=1e-7)
    assert np.allclose(shuffled.pairs, one.pairs, rtol=1e-12)


@pytest.mark.parametrize("scheme", [None, "bioes"])
def test_with_one_reference_raml_is_sqdml_and_without_temperature_ml(scheme):
    names, lengths = NAMES[5], (3, 0, 1, 4)
    references = some_references(3, lengths, names, "bioes", most=1)
    forbidden = Forbidden.by(scheme, names)
    raml, sqdml = (
        corpus_target(objective, references, forbidden, tau=0.8) for objective in ("raml", "sqdml")
    )
    assert np.allclose(raml.labels, sqdml.labels, atol=1e-7)
    assert np.allclose(raml.pairs, sqdml.pairs)
    assert raml.entropy == pytest.approx(sqdml.entropy)
    ml = corpus_target("ml", references, forbidden)
    for objective in ("raml", "sqdml"):
        cold = corpus_target(objective, references, forbidden, tau=0.01)
        assert np.allclose(cold.labels, ml.labels, atol=1e-12)
        assert np.allclose(cold.pairs, ml.pairs)
        assert cold.entropy == pytest.approx(0.0, abs=1e-12)


def test_the_target_is_a_distribution_on_what_is_allowed():
    names, lengths = NAMES[9], (5, 1, 0, 7)
    references = some_references(1, (3, 1, 0, 3), names)
    references = References(
        [np.tile(s, 3)[:, :n] for s, n in zip(references.labels, lengths, strict=True)],
        references.weights,
    )
    forbidden = Forbidden.by("bioes", names)
    for objective in ("raml", "sqdml"):
        found = corpus_target(objective, references, forbidden, tau=3.0)
        assert np.allclose(found.labels.sum(1), 1.0, atol=1e-6)
        assert found.pairs.sum() == pytest.approx(sum(n - 1 for n in lengths if n))
        assert not found.pairs[np.isneginf(forbidden.between.numpy())].any()
        assert not found.labels[[0, 5, 6], :][:, np.isneginf(forbidden.first.numpy())].any()
        assert not found.labels[[4, 5, 12], :][:, np.isneginf(forbidden.last.numpy())].any()


def test_references_that_cannot_be_are_refused():
    names = NAMES[5]
    nothing = Forbidden.by(None, names)
    for number in (5, -1):
        bad = References(
            [np.zeros((1, 4), np.int64), np.array([[0, 1], [2, number]])], [np.ones(1), np.ones(2)]
        )
        for objective in ("ml", "raml", "sqdml"):
            with pytest.raises(
                OutputError,
                match=(
                    r"reference 1 of sentence 1 \(counted from 0\): expected label ids in"
                    r" 0..4, got"
                ),
            ):
                corpus_target(objective, bad, nothing, tau=1.0)
    broken = References(
        [np.array([[2]]), np.array([[2, 2], [4, 2]])], [np.ones(1), np.ones(2)]
    )  # B-PER O
    with pytest.raises(
        OutputError,
        match=(
            r"reference 1 of sentence 1 \(counted from 0\) breaks the tag scheme, and ML gives all"
            r" its mass"
        ),
    ):
        corpus_target("ml", broken, Forbidden.by("bioes", names))
    corpus_target(
        "ml",
        broken._replace(weights=[np.ones(1), np.array([1.0, 0.0])]),
        Forbidden.by("bioes", names),
    )
    corpus_target("raml", broken, Forbidden.by("bioes", names), tau=1.0)
    for weights in (np.zeros(2), np.array([1.0, -0.5]), np.array([1.0, np.nan])):
        with pytest.raises(WeightError):
            corpus_target("raml", broken._replace(weights=[np.ones(1), weights]), nothing, tau=1.0)
    with pytest.raises(TemperatureError, match="sqdml needs a temperature"):
        corpus_target("sqdml", broken, nothing)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 0)])
def test_without_tokens_there_is_only_the_penalty(lengths):
    names = NAMES[3]
    references = References(
        [np.zeros((1, 0), np.int64)] * len(lengths), [np.ones(1)] * len(lengths)
    )
    matrix = FeatureMatrix(
        np.zeros(1, np.int64), np.zeros(0, np.int32), None, np.zeros(len(lengths), np.int64), 2
    )
    whole = settings_for(names, "raml", 1.0, c2=0.5).whole(matrix, references)
    value, gradient = evaluate(whole, torch.ones(whole.layout.size))
    assert value == pytest.approx(0.5 * 15)
    assert torch.equal(gradient, torch.ones(15))


def test_without_features_transitions_are_left():
    names, lengths = NAMES[3], (4, 1, 3)
    references = some_references(0, lengths, names)
    matrix = FeatureMatrix(np.zeros(9, np.int64), np.zeros(0, np.int32), None, np.array(lengths), 0)
    for all_states in (False, True):
        whole = settings_for(names, "sqdml", 1.0, all_states=all_states).whole(matrix, references)
        parameters = torch.randn(9, generator=torch.Generator().manual_seed(0))
        value, gradient = evaluate(whole, parameters)
        expected, slopes, *_ = by_enumeration(
            matrix, references, names, "sqdml", 1.0, np.eye(3).tolist(), parameters.tolist()
        )
        assert value == pytest.approx(expected, rel=1e-6)
        assert np.allclose(gradient, slopes, atol=1e-6)


def test_entity_reward():
    names = ["B-PER", "O", "I-PER", "I-LOC"]
    assert torch.equal(entity_reward(names).table, torch.eye(4, dtype=torch.float64))
    assert torch.equal(
        entity_reward(names, 2.5).table,
        torch.diag(torch.tensor([2.5, 1.0, 2.5, 2.5], dtype=torch.float64)),
    )
    expected = torch.tensor(
        [[2.0, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 2, 0], [0, 0, 0, 2]], dtype=torch.float64
    )
    assert torch.equal(entity_reward(names, 2.0, 0.25).table, expected)
