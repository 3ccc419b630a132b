"""Annotators of classes: against the Bayes rule that knows their tables, and against crowd-kit."""

import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from softq.annotators import estimate, estimate_classes, reference_weights, reliability
from softq.errors import DataError, ShapeError
from softq.formats.conll import Sentence

_spec = spec_from_file_location("made_crowds", Path(__file__).with_name("made_crowds.py"))
made_crowds = module_from_spec(_spec)
_spec.loader.exec_module(made_crowds)
made_crowd = made_crowds.made_crowd


def with_nan(crowd):
    return np.where(crowd.labels < 0, np.nan, crowd.labels)


def accuracy(crowd, found):
    if not isinstance(found, np.ndarray):
        found = np.concatenate(found.posteriors).argmax(1)
    return (found == crowd.truth).mean()


@pytest.mark.parametrize(
    ("classes", "annotators"), [(3, 12), (3, 20), (5, 10), (6, 8), (8, 12), (8, 20)]
)
@pytest.mark.parametrize("seed", [0, 1])
def test_tables_are_worth_as_much_as_known_ones(classes, annotators, seed):
    """Over 10 seeds of such crowds the loss against the Bayes rule had a mean of at most 0.4 % and a

    standard deviation below 0.25 %, so a new seed would fail about once in a hundred times.
    """
    crowd = made_crowd(seed, classes, annotators)
    best = accuracy(crowd, crowd.bayes_rule())
    found = accuracy(crowd, estimate_classes(with_nan(crowd)))
    assert best - 0.01 < found
    assert found > accuracy(crowd, crowd.vote()) + 0.001


@pytest.mark.parametrize(("classes", "annotators"), [(3, 5), (4, 8), (8, 20)])
def test_one_coin_is_enough_where_it_is_true(classes, annotators):
    """Its one number per annotator is known to 1.2 % from 1,400 labels, which costs less than 0.3 %."""
    crowd = made_crowd(3, classes, annotators, one_coin=True)
    best = accuracy(crowd, crowd.bayes_rule())
    found = estimate_classes(with_nan(crowd), model="one-coin")
    assert accuracy(crowd, found) > best - 0.01
    right = np.diagonal(crowd.tables, axis1=1, axis2=2)[:, 0]
    counts = (crowd.labels >= 0).sum(0)
    # five standard errors, and 3 % for the truth that is only estimated
    error = 5 * np.sqrt(right * (1 - right) / counts) + 0.03
    assert (np.abs([row.accuracy for row in found.annotators] - right) < error).all()


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_five_annotators_lose_a_percent_on_average(missing):
    crowds = [made_crowd(seed, 3, 5, missing=missing) for seed in range(8)]
    lost = [
        accuracy(crowd, crowd.bayes_rule()) - accuracy(crowd, estimate_classes(with_nan(crowd)))
        for crowd in crowds
    ]
    assert np.mean(lost) < 0.01  # a standard error is 0.25 %, the mean of ten other seeds 0.8 %


def test_classes_are_sentences_of_one_token():
    crowd = made_crowd(5, 3, 4, items=60)
    sentences = [
        Sentence(("item",), tuple((str(k),) if k >= 0 else ("?",) for k in row), tuple("abcd"))
        for row in crowd.labels.tolist()
    ]
    for model in ("one-coin", "dawid-skene"):
        found = estimate_classes(with_nan(crowd).tolist(), "abcd", model, smoothing=0.3)
        other = estimate(sentences, model, smoothing=0.3)
        assert found.objective == pytest.approx(other.objective)
        assert (found.model, found.labels) == (model, ("0.0", "1.0", "2.0"))
        np.testing.assert_allclose(found.confusions, other.confusions)
        np.testing.assert_allclose(found.posteriors, other.posteriors)
        assert [row._replace(name="") for row in found.annotators] == [
            pytest.approx(row._replace(name="")) for row in other.annotators
        ]
        assert [row.name for row in found.annotators] == list("abcd")
        weights = reference_weights(sentences[0], found)
        assert sum(weights) == pytest.approx(1.0)


def test_classes_of_any_kind_in_their_order():
    found = estimate_classes([[10, 10, 2], [2, None, 2], [9, 9, np.nan], [10, 10, 10]] * 5)
    assert found.labels == ("2", "9", "10")
    assert [row.name for row in found.annotators] == ["0", "1", "2"]
    assert [row.tokens for row in found.annotators] == [20, 15, 15]
    assert found.best == (("10",), ("2",), ("9",), ("10",)) * 5
    strings = estimate_classes(np.array([["b", "a"], ["b", "b"], ["a", "a"]]))
    assert strings.labels == ("a", "b")
    unlabelled = estimate_classes([[0, 0], [1, 1], [None, None], [1, 1]], smoothing=0.5)
    np.testing.assert_allclose(unlabelled.posteriors[2][0], unlabelled.prior, atol=1e-4)


def test_a_weight_is_the_log_odds_of_being_right_where_no_label_is_outside():
    found = estimate_classes(with_nan(made_crowd(6, 4, 12)))
    for row in found.annotators:
        right = (row.accuracy * row.tokens + 0.5) / (row.tokens + 1)
        assert row.weight == pytest.approx(max(np.log(right / (1 - right)), 0.05))
    assert max(row.weight for row in found.annotators) > 1.2


@pytest.mark.parametrize(
    ("labels", "options", "text"),
    [
        ([0, 1], {}, r"shape \[n, m\], got \[2\]"),
        ([[0, 1]], {"names": ("a",)}, "expected 2 different names"),
        ([[0, 1]], {"names": ("a", "a")}, r"expected 2 different names.*got \['a', 'a'\]"),
    ],
)
def test_bad_shapes(labels, options, text):
    with pytest.raises(ShapeError, match=text):
        estimate_classes(labels, **options)


@pytest.mark.parametrize(
    ("labels", "options", "text"),
    [
        ([[0, "a"]], {}, "classes must be of one type"),
        ([[0, 0]], {}, r"two different classes or more, got \[0\]"),
        ([[None, None]], {}, r"two different classes or more, got \[\]"),
        ([[0, 1]], {"model": "sequential"}, "one of one-coin, dawid-skene, got 'sequential'"),
        ([[0, 1]], {"smoothing": 0.0}, "smoothing must be a positive number, got 0"),
    ],
)
def test_bad_labels(labels, options, text):
    with pytest.raises(DataError, match=text):
        estimate_classes(labels, **options)


# --- crowd-kit ------------------------------------------------------------------------------------------


def peer_posteriors(crowd, iterations):
    aggregation = pytest.importorskip("crowdkit.aggregation", reason="crowd-kit is not installed")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    items, who = np.nonzero(crowd.labels >= 0)
    frame = pandas.DataFrame({"task": items, "worker": who, "label": crowd.labels[items, who]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses options that pandas will drop
        found = aggregation.DawidSkene(iterations, tol=-np.inf).fit(frame).probas_
    return found.sort_index()[sorted(found.columns)].to_numpy()


def our_posteriors(crowd, iterations):
    found = estimate_classes(
        with_nan(crowd), smoothing=1e-10, iterations=iterations, tolerance=-np.inf
    )
    assert len(found.objective) == iterations
    return np.concatenate(found.posteriors)


@pytest.mark.parametrize(("classes", "annotators"), [(3, 8), (5, 10), (8, 20)])
def test_dawid_skene_ends_where_crowd_kit_ends(classes, annotators):
    """The starts differ: softq adds 0.001 to the votes for each class, so the first posteriors do."""
    crowd = made_crowd(1, classes, annotators)
    first = np.abs(our_posteriors(crowd, 1) - peer_posteriors(crowd, 1)).max()
    assert 1e-6 < first < 1e-3
    np.testing.assert_allclose(our_posteriors(crowd, 100), peer_posteriors(crowd, 100), atol=1e-6)


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_dawid_skene_is_crowd_kits_from_the_same_votes(iterations, monkeypatch):
    """All that is left is its clipping of small counts, where softq adds as much to each."""
    crowd = made_crowd(2, 5, 10)
    expected = peer_posteriors(crowd, iterations)

    def plain_votes(crowd):
        votes = np.zeros((len(crowd.sentence), len(crowd.labels)))
        np.add.at(votes, (crowd.pattern, crowd.label), 1.0)
        return votes / votes.sum(1, keepdims=True)

    monkeypatch.setattr(reliability, "_vote_shares", plain_votes)
    np.testing.assert_allclose(our_posteriors(crowd, iterations), expected, atol=1e-8)
