"""What a review finds in crowds whose faults are known."""

import numpy as np
import pytest

from softq.annotators.reliability import estimate
from softq.annotators.review import Review
from softq.errors import DataError
from softq.formats.conll import MISSING, Sentence
from softq.lab.worlds import EntityWorld

NAMES = ("good", "fair", "poor", "mute", "copy", "still", "wild")


def noisy(rng, labels, missed, invented):
    """Labels with errors: entity tokens that were missed, and others that were invented."""
    chances = rng.random(len(labels))
    return tuple(
        ("O" if chance < missed else label)
        if label != "O"
        else ("B-PER" if chance < invented else "O")
        for label, chance in zip(labels, chances, strict=True)
    )


@pytest.fixture(scope="module")
def crowd():
    """Two are fair, one is mute but right, one copies, one says O, one is mute and wrong."""
    rng = np.random.default_rng(0)
    sentences = []
    for one in EntityWorld().sample(300, seed=0):
        (labels,) = one.labels
        poor = noisy(rng, labels, 0.3, 0.1)
        rows = (
            noisy(rng, labels, 0.02, 0.01),
            noisy(rng, labels, 0.1, 0.02),
            poor,
            noisy(rng, labels, 0.85, 0.0),
            poor,
            ("O",) * len(labels),
            noisy(rng, labels, 0.85, 0.1),
        )
        sentences.append(Sentence(one.tokens, rows, NAMES))
    return sentences


def test_suspicious_annotators_are_found_and_nobody_else(crowd):
    found = Review(crowd, estimate(crowd, "sequential")).suspicions()
    assert [(row.annotator, row.kind) for row in found] == [
        ("mute", "silent"),
        ("still", "one label"),
        ("poor", "copy"),
    ]
    assert found[1].evidence.startswith("O on all ")
    assert "copy or poor" in found[2].evidence


def test_few_labels_arouse_no_suspicion(crowd):
    few = crowd[:3]
    assert Review(few, estimate(few)).suspicions() == []


def test_confusions_are_expected_counts(crowd):
    sentences = [*crowd[:20], Sentence(("a",), ((MISSING,), ("O",)), ("good", "fair"))]
    found = estimate(sentences)
    rows = {
        (row.annotator, row.right, row.given): row for row in Review(sentences, found).confusions()
    }
    for name in ("good", "mute"):
        counts = np.zeros((len(found.labels),) * 2)
        for one, posterior in zip(sentences, found.posteriors, strict=True):
            if name in one.annotators:
                for token, label in enumerate(one.labels[one.annotators.index(name)]):
                    if label != MISSING:
                        counts[:, found.labels.index(label)] += posterior[token]
        for i, right in enumerate(found.labels):
            for j, given in enumerate(found.labels):
                row = rows[name, right, given]
                assert row.tokens == pytest.approx(counts[i].sum())
                assert row.share == pytest.approx(counts[i, j] / counts[i].sum())
                assert row.low <= row.share <= row.high


def test_disputes_count_pairs_that_differ():
    sentences = [
        Sentence(("a", "b"), (("X", "Y"), ("X", MISSING), ("X", "Y")), ("1", "2", "3")),
        Sentence(("a", "b"), (("X", "Y"), ("Y", "Y"), ("X", "Y"), ("X", "X")), tuple("1234")),
        Sentence(("a", "b"), (("X", "Y"), ("Y", "X")), ("1", "2")),
    ]
    found = Review(sentences, estimate(sentences)).disputes()
    # of four labels, one differs: 3 of 6 pairs
    assert found == [(2, 2.0, 2), (1, 1.0, 2)]


def test_doubts_are_the_labels_that_the_estimate_finds_improbable(crowd):
    found = estimate(crowd, "sequential")
    rows = Review(crowd, found).doubts(below=0.05)
    assert [row.probability for row in rows] == sorted(row.probability for row in rows)
    expected = {
        (number, token, name)
        for number, (one, posterior) in enumerate(zip(crowd, found.posteriors, strict=True))
        for name, labels in zip(one.annotators, one.labels, strict=True)
        for token, label in enumerate(labels)
        if posterior[token][found.labels.index(label)] < 0.05
    }
    assert {(row.sentence, row.token, row.annotator) for row in rows} == expected
    for row in rows[:20]:
        one = crowd[row.sentence]
        assert one.labels[one.annotators.index(row.annotator)][row.token] == row.given
        best = found.posteriors[row.sentence][row.token].argmax()
        assert row.likely == found.labels[best] != row.given


def test_other_sentences_than_those_of_the_estimate_are_refused(crowd):
    with pytest.raises(DataError, match="expected the 300 sentences that the truth was estimated"):
        Review(crowd[1:], estimate(crowd))
