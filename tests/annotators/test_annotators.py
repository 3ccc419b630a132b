"""Votes by hand and by law.

EM against plain Python, against what it should find, and what it must never do.
"""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softq.annotators.reliability import LEAST_WEIGHT, estimate, reference_weights, vote
from softq.errors import DataError
from softq.formats.conll import MISSING, Sentence
from softq.lab.worlds import EntityWorld

QUICK = settings(max_examples=60, deadline=None)
RULES = ["random", "entity", "outside", "first"]

labels_of_a_token = st.lists(
    st.sampled_from(["O", "B-P", "I-P", "B-L", MISSING]), min_size=4, max_size=4
)


def one_token(*given):
    return Sentence(
        ("word",),
        tuple((label,) for label in given),
        tuple(f"w{number}" for number in range(len(given))),
        line=7,
    )


@pytest.mark.parametrize(
    ("given_labels", "entity", "outside", "first"),
    [
        (("O", "O", "B-P"), "O", "O", "O"),
        (("B-P", "O"), "B-P", "O", "B-P"),
        (("O", "B-P"), "B-P", "O", "O"),
        (("O", "I-P", "B-P", "O", "B-P"), "B-P", "O", "O"),
        (("O", "B-L", "B-P"), "B-L", "O", "O"),
        (("B-P", "B-L", "B-L", "B-P", "O"), "B-P", "B-P", "B-P"),
        (("?", "B-L", "?", "O", "B-L"), "B-L", "B-L", "B-L"),
        (("?", "O", "B-P"), "B-P", "O", "O"),
    ],
)
def test_votes_by_hand(given_labels, entity, outside, first):
    sentence = one_token(*given_labels)
    assert [vote(sentence, rule)[0] for rule in ("entity", "outside", "first")] == [
        entity,
        outside,
        first,
    ]


@QUICK
@given(
    columns=st.lists(
        labels_of_a_token.filter(lambda labels: set(labels) != {MISSING}), min_size=1, max_size=5
    ),
    seed=st.integers(0, 9),
)
def test_the_winner_has_the_most_votes_and_rules_matter_for_ties_alone(columns, seed):
    rows = tuple(zip(*columns, strict=True))
    sentence = Sentence(tuple("abcde"[: len(columns)]), rows, ("1", "2", "3", "4"))
    found = {rule: vote(sentence, rule, seed=seed) for rule in RULES}
    for place, given_labels in enumerate(columns):
        votes = Counter(given_labels)
        del votes[MISSING]
        tied = {label for label, count in votes.items() if count == max(votes.values())}
        winners = {rule: labels[place] for rule, labels in found.items()}
        assert set(winners.values()) <= tied
        assert (winners["outside"] == "O") == ("O" in tied)
        assert (winners["entity"] == "O") == (tied == {"O"})
        assert winners["first"] == next(label for label in given_labels if label in tied)
    shuffled = Sentence(sentence.tokens, rows[::-1], ("4", "3", "2", "1"))
    assert vote(shuffled, "random", seed=seed) == found["random"]


def test_random_ties_fall_each_way_alike_and_hang_on_seed_and_tokens_alone():
    sentences = [
        Sentence((f"word{number}",) * 2, (("O", "B-P"), ("B-P", "O")), ("1", "2"), line=number)
        for number in range(1000)
    ]
    found = [vote(sentence, "random", seed=4) for sentence in sentences]
    assert found[::-1] == [vote(sentence, "random", seed=4) for sentence in reversed(sentences)]
    assert found != [vote(sentence, "random", seed=5) for sentence in sentences]
    # 2,000 fair coins: five standard deviations are 112, which chance exceeds less than once in a
    # million.
    assert abs(sum(label == "O" for labels in found for label in labels) - 1000) < 112
    assert (
        abs(sum(first == second for first, second in found) - 500) < 80
    )  # and the tokens of one sentence fall apart, likewise


def test_votes_refuse_what_they_cannot_count():
    sentence = Sentence(("a", "b"), (("O", "?"), ("O", "?")), ("1", "2"), line=12)
    with pytest.raises(
        DataError, match=r"line 13: expected a label of one annotator or more, got none for 'b'"
    ):
        vote(sentence, "first")
    with pytest.raises(
        DataError, match="expected one of random, entity, outside, first, got 'last'"
    ):
        vote(sentence, "last")


def small_crowd():
    """Few sentences with everything in them.

    Missing labels, an annotator who comes twice, tokens nobody labelled.
    """
    return [
        Sentence(
            ("a", "b", "c"), (("B", "O", "O"), ("B", "I", "O"), ("O", "O", "?")), ("x", "y", "z")
        ),
        Sentence(("d", "e"), (("O", "B"), ("O", "O"), ("O", "B")), ("y", "x", "y")),
        Sentence(("f", "g"), (("?", "O"), ("?", "B")), ("z", "x")),
    ]


def by_hand(sentences, model, smoothing, iterations):
    """EM in plain Python, token by token.

    The objective of each iteration, and all that was estimated.
    """
    labels, names = ["O", "B", "I"], ["x", "y", "z"]
    tokens = [
        [
            (name, column[place])
            for name, column in zip(s.annotators, s.labels, strict=True)
            if column[place] != "?"
        ]
        for s in sentences
        for place in range(len(s.tokens))
    ]
    posterior = []
    for given_labels in tokens:
        votes = Counter(label for _, label in given_labels)
        total = sum(votes[label] + 1e-3 for label in labels)
        posterior.append({label: (votes[label] + 1e-3) / total for label in labels})
    objectives = []
    for _ in range(iterations):
        counts = defaultdict(float)
        for p, given_labels in zip(posterior, tokens, strict=True):
            for name, label in given_labels:
                for right in labels:
                    counts[name, right, label] += p[right]
        prior = {k: sum(p[k] for p in posterior) + smoothing for k in labels}
        prior = {k: value / sum(prior.values()) for k, value in prior.items()}
        confusion = {}
        penalty = sum(math.log(value) for value in prior.values())
        for name in names:
            hits = sum(counts[name, k, k] for k in labels)
            everything = sum(counts[name, k, m] for k in labels for m in labels)
            p = (hits + smoothing) / (everything + 3 * smoothing)
            for k in labels:
                row = sum(counts[name, k, m] + smoothing for m in labels)
                for m in labels:
                    coin = p if k == m else (1 - p) / 2
                    confusion[name, k, m] = (
                        coin if model == "one-coin" else (counts[name, k, m] + smoothing) / row
                    )
            rows = labels[:1] if model == "one-coin" else labels
            penalty += sum(math.log(confusion[name, k, m]) for k in rows for m in labels)
        objective = smoothing * penalty
        for number, given_labels in enumerate(tokens):
            chances = {
                k: prior[k] * math.prod(confusion[name, k, label] for name, label in given_labels)
                for k in labels
            }
            objective += math.log(sum(chances.values()))
            posterior[number] = {k: chance / sum(chances.values()) for k, chance in chances.items()}
        objectives.append(objective)
    return objectives, posterior, prior, confusion


@pytest.mark.parametrize("model", ["one-coin", "dawid-skene"])
@pytest.mark.parametrize("iterations", [1, 4])
def test_em_agrees_with_plain_python(model, iterations):
    found = estimate(small_crowd(), model, smoothing=0.3, iterations=iterations, tolerance=-1.0)
    objectives, posterior, prior, confusion = by_hand(small_crowd(), model, 0.3, iterations)
    order = found.labels
    assert order == ("O", "B", "I")
    np.testing.assert_allclose(found.objective, objectives, rtol=1e-12)
    np.testing.assert_allclose(
        np.concatenate(found.posteriors), [[p[k] for k in order] for p in posterior], rtol=1e-10
    )
    np.testing.assert_allclose(found.prior, [prior[k] for k in order], rtol=1e-10)
    np.testing.assert_allclose(
        found.confusions,
        [[[confusion[n, k, m] for m in order] for k in order] for n in "xyz"],
        rtol=1e-10,
    )
    # The rows, from the posterior that was found: x gave six labels, y seven (twice in one
    # sentence), z three.
    assert [(row.name, row.tokens) for row in found.annotators] == [("x", 6), ("y", 7), ("z", 3)]
    for row in found.annotators:
        given_labels = [
            (p, label)
            for s, rows in zip(small_crowd(), found.posteriors, strict=True)
            for name, column in zip(s.annotators, s.labels, strict=True)
            for p, label in zip(rows, column, strict=True)
            if name == row.name and label != "?"
        ]
        right = [(p[order.index(label)], p, label) for p, label in given_labels]
        entity = sum(hit for hit, _, label in right if label != "O")
        marked = sum(label != "O" for _, _, label in right)
        inside = sum(1 - p[0] for _, p, _ in right)
        assert row.accuracy == pytest.approx(sum(hit for hit, _, _ in right) / len(right))
        assert row.precision == pytest.approx(entity / marked if marked else 0.0)
        assert row.recall == pytest.approx(entity / inside)
        outside = sum(hit for hit, _, label in right if label == "O")
        balanced = ((entity + 0.5) / (inside + 1) + (outside + 0.5) / (len(right) - inside + 1)) / 2
        assert row.weight == pytest.approx(max(math.log(balanced / (1 - balanced)), LEAST_WEIGHT))


@QUICK
@given(
    columns=st.lists(labels_of_a_token, min_size=1, max_size=12),
    model=st.sampled_from(["one-coin", "dawid-skene"]),
    smoothing=st.sampled_from([0.01, 0.1, 2.0]),
)
def test_the_objective_never_falls(columns, model, smoothing):
    columns = [*columns, ["O", "B-P", "O", "O"]]
    sentence = Sentence(
        ("w",) * len(columns), tuple(zip(*columns, strict=True)), ("1", "2", "3", "4")
    )
    found = estimate([sentence], model, smoothing=smoothing, iterations=30, tolerance=-1.0)
    assert len(found.objective) == 30
    assert min(np.diff(found.objective)) > -1e-9
    np.testing.assert_allclose(found.posteriors[0].sum(1), 1.0)
    np.testing.assert_allclose(found.confusions.sum(2), 1.0)


def test_dawid_skene_finds_how_reliable_the_annotators_of_the_world_are():
    world = EntityWorld()
    gold = world.sample(3000, seed=1)
    crowd = world.annotate(gold, seed=1)
    found = estimate(crowd)
    assert len(found.objective) < 100  # it ended by itself
    truth = defaultdict(Counter)
    for right, sentence in zip(gold, crowd, strict=True):
        for name, labels in zip(sentence.annotators, sentence.labels, strict=True):
            for a, b in zip(right.labels[0], labels, strict=True):
                truth[name].update(
                    tokens=1, hits=a == b, inside=a != "O", marked=b != "O", entity=a == b != "O"
                )
    for row in found.annotators:
        counts = truth[row.name]
        assert row.tokens == counts["tokens"]
        # Over 10,000 tokens and 2,500 of entities each: a standard error is below 0.01, but for the
        # precision of those who mark little.
        assert row.accuracy == pytest.approx(counts["hits"] / counts["tokens"], abs=0.015)
        assert row.recall == pytest.approx(counts["entity"] / counts["inside"], abs=0.04)
        assert row.precision == pytest.approx(counts["entity"] / counts["marked"], abs=0.05)

    def accuracy(guesses):
        pairs = [
            (a, b)
            for s, labels in zip(gold, guesses, strict=True)
            for a, b in zip(s.labels[0], labels, strict=True)
        ]
        return sum(a == b for a, b in pairs) / len(pairs)

    estimated = accuracy([[found.labels[k] for k in rows.argmax(1)] for rows in found.posteriors])
    votes = {rule: accuracy([vote(sentence, rule) for sentence in crowd]) for rule in RULES}
    assert estimated > max(votes.values()) + 0.02
    assert (
        votes["entity"] > votes["random"] > votes["outside"]
    )  # what goes wrong most is that entities are missed
    by_weight = sorted(found.annotators, key=lambda row: -row.weight)
    assert [row.name for row in by_weight[-3:]] == ["a14", "a15", "a16"]
    assert {row.name for row in by_weight[:3]} == {"a01", "a02", "a03"}


def test_reference_weights_are_shares_of_the_annotators_weights():
    crowd = small_crowd()
    found = estimate(crowd)
    weight = {row.name: row.weight for row in found.annotators}
    named = [weight[name] for name in crowd[0].annotators]  # one of them left out a token
    assert reference_weights(crowd[0], found) == pytest.approx(
        tuple(share / sum(named) for share in named)
    )
    total = weight["x"] + 2 * weight["y"]
    assert reference_weights(crowd[1], found) == pytest.approx(
        (weight["y"] / total, weight["x"] / total, weight["y"] / total)
    )
    with pytest.raises(
        DataError, match="line 3: expected one annotator or more who labelled a token"
    ):
        reference_weights(Sentence(("a",), (("?",),), ("x",), line=3), found)
    with pytest.raises(
        DataError, match="line 3: expected annotators whose reliability was estimated, got 'new'"
    ):
        reference_weights(Sentence(("a",), (("O",),), ("new",), line=3), found)


def test_bad_input_is_refused():
    crowd = small_crowd()
    with pytest.raises(DataError, match="one-coin, dawid-skene, sequential, got 'glad'"):
        estimate(crowd, "glad")
    with pytest.raises(DataError, match="smoothing must be a positive number, got 0"):
        estimate(crowd, smoothing=0)
    with pytest.raises(DataError, match="line 5: expected labels of annotators with names"):
        estimate([Sentence(("a",), (("O",),), line=5)])
    with pytest.raises(
        DataError, match=r"two different labels or more among those of the annotators, got \['O'\]"
    ):
        estimate([one_token("O", "O")])
