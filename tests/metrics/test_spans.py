"""Span metrics against seqeval and against conlleval's rules, counted word by word as that script does."""

import itertools
import random
from collections import Counter

import pytest
import torch
from seqeval.metrics.sequence_labeling import accuracy_score, precision_recall_fscore_support

from softq.errors import OutputError, ShapeError
from softq.formats.tags import convert
from softq.metrics import (
    SPAN_STATISTICS,
    KindScores,
    SpanScores,
    exact_match,
    paired_bootstrap,
    span_f1,
    span_precision,
    span_recall,
    span_statistics,
    token_accuracy,
)

SCHEMES = ["iob1", "bio", "bioes"]
PREFIXES = {"iob1": "BI", "bio": "BI", "bioes": "BIES"}
KINDS = ["LOC", "MISC-X", "PER"]


def corpus(scheme, seed, sentences=60, valid=False):
    """Gold and predicted labels.

    Predictions are gold with some labels replaced, so that some entities are right.
    """
    rng = random.Random(seed)
    inventory = [
        "O",
        "O",
        *(f"{prefix}-{kind}" for kind in KINDS[: rng.randint(1, 3)] for prefix in PREFIXES[scheme]),
    ]
    gold = [rng.choices(inventory, k=rng.randint(0, 12)) for _ in range(sentences)]
    rate = rng.choice([0.0, 0.1, 0.5, 1.0])
    predicted = [
        [rng.choice(inventory) if rng.random() < rate else label for label in labels]
        for labels in gold
    ]
    if valid:
        gold, predicted = (
            [convert(labels, scheme, scheme) for labels in side] for side in (gold, predicted)
        )
    return gold, predicted


def conlleval(gold, predicted):
    """Counts (right, predicted, gold) of chunks by type and the share of right words, from the state of one pass over all words.

    The pairs of neighbouring prefixes that begin and end a chunk are those of the CoNLL-2000 script for the prefixes B, I and O.
    """
    begins, ends = {"BB", "IB", "OB", "OI"}, {"BB", "BO", "IB", "IO"}

    def split(label):
        return (label[0], label[2:])

    right, guessed, true = Counter(), Counter(), Counter()
    words = right_words = 0
    in_right = False
    before = (("O", ""), ("O", ""))
    for pair in itertools.chain.from_iterable(
        [*zip(*sentence, strict=True), ("O", "O")] for sentence in zip(gold, predicted, strict=True)
    ):
        now = (split(pair[0]), split(pair[1]))
        ended = [
            old[0] + new[0] in ends or (old[0] != "O" and old[1] != new[1])
            for old, new in zip(before, now, strict=True)
        ]
        begun = [
            old[0] + new[0] in begins or (new[0] != "O" and old[1] != new[1])
            for old, new in zip(before, now, strict=True)
        ]
        if in_right:
            if all(ended):
                right[before[0][1]] += 1
            if any(ended) or now[0][1] != now[1][1]:
                in_right = False
        if all(begun) and now[0][1] == now[1][1]:
            in_right = True
        true[now[0][1]] += begun[0]
        guessed[now[1][1]] += begun[1]
        before = now
    for labels in zip(gold, predicted, strict=True):
        words += len(labels[0])
        right_words += sum(a == b for a, b in zip(*labels, strict=True))
    return {
        kind: (right[kind], guessed[kind], true[kind])
        for kind in KINDS
        if guessed[kind] + true[kind]
    }, right_words / words


def conlleval_scores(right, guessed, true):
    precision = right / guessed if guessed else 0.0
    recall = right / true if true else 0.0
    return (
        precision,
        recall,
        2 * precision * recall / (precision + recall) if precision + recall else 0.0,
    )


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_are_those_of_seqeval(scheme, valid):
    for seed in range(25):
        gold, predicted = corpus(scheme, seed, valid=valid)
        scores = SpanScores.of(span_statistics(gold, predicted, scheme))
        overall = precision_recall_fscore_support(gold, predicted, average="micro", zero_division=0)
        assert (scores.precision, scores.recall, scores.f1) == pytest.approx(overall[:3], abs=1e-12)
        table = list(
            zip(
                *precision_recall_fscore_support(gold, predicted, average=None, zero_division=0),
                strict=True,
            )
        )
        found = [
            (kind.precision, kind.recall, kind.f1, kind.gold) for kind in scores.kinds.values()
        ]
        assert [value for row in found for value in row] == pytest.approx(
            [value for row in table for value in row], abs=1e-12
        )
        assert scores.token_accuracy == pytest.approx(accuracy_score(gold, predicted), abs=1e-12)


@pytest.mark.parametrize("valid", [True, False])
@pytest.mark.parametrize("scheme", ["iob1", "bio"])  # the script of 2000 does not know S-
def test_scores_are_those_of_conlleval(scheme, valid):
    for seed in range(50):
        gold, predicted = corpus(scheme, seed, valid=valid)
        scores = SpanScores.of(span_statistics(gold, predicted, scheme))
        table, accuracy = conlleval(gold, predicted)
        assert list(scores.kinds) == sorted(table)
        for kind, counts in table.items():
            assert scores.kinds[kind][:3] == pytest.approx(conlleval_scores(*counts), abs=1e-12)
            assert scores.kinds[kind][3:] == counts[1:]
        overall = conlleval_scores(*map(sum, zip(*table.values(), strict=True)))
        assert (scores.precision, scores.recall, scores.f1) == pytest.approx(overall, abs=1e-12)
        assert scores.token_accuracy == pytest.approx(accuracy, abs=1e-12)


def test_an_entity_is_right_only_with_its_type_and_both_ends():
    gold = [["B-PER", "I-PER", "O"]]
    guesses = {
        "B-PER I-PER O": 1,
        "B-PER O O": 0,
        "O B-PER O": 0,
        "B-PER I-PER I-PER": 0,
        "B-LOC I-LOC O": 0,
        "I-PER I-PER O": 1,
    }
    for guess, right in guesses.items():
        assert SpanScores.of(span_statistics(gold, [guess.split()], "bio")).f1 == right


def test_counts_of_a_sentence_are_in_the_named_columns():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC"], []]
    predicted = [["B-PER", "I-PER", "B-LOC", "O"], ["O", "B-LOC"], []]
    rows, kinds, by_kind = span_statistics(gold, predicted, "bio")
    assert kinds == ("LOC", "PER")
    assert by_kind.tolist() == [
        [[0, 1, 1], [1, 1, 1]],
        [[1, 1, 1], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 0]],
    ]
    named = [dict(zip(SPAN_STATISTICS, row, strict=True)) for row in rows.tolist()]
    assert named[0] == {
        "true_positives": 1,
        "predicted": 2,
        "gold": 2,
        "right_tokens": 2,
        "tokens": 4,
        "exact": 0,
        "sentences": 1,
    }
    assert named[1] == {
        "true_positives": 1,
        "predicted": 1,
        "gold": 1,
        "right_tokens": 2,
        "tokens": 2,
        "exact": 1,
        "sentences": 1,
    }
    assert named[2] == {
        "true_positives": 0,
        "predicted": 0,
        "gold": 0,
        "right_tokens": 0,
        "tokens": 0,
        "exact": 1,
        "sentences": 1,
    }
    sums = rows.sum(0)
    values = [
        float(metric(sums))
        for metric in (span_precision, span_recall, span_f1, token_accuracy, exact_match)
    ]
    assert values == pytest.approx([2 / 3, 2 / 3, 2 / 3, 4 / 6, 2 / 3])


def test_swapping_gold_and_predicted_swaps_precision_and_recall():
    for seed, scheme in itertools.product(range(5), SCHEMES):
        gold, predicted = corpus(scheme, seed)
        there, back = (
            SpanScores.of(span_statistics(*pair, scheme))
            for pair in ((gold, predicted), (predicted, gold))
        )
        assert (there.precision, there.recall, there.f1) == (back.recall, back.precision, back.f1)
        assert (there.token_accuracy, there.exact_match) == (back.token_accuracy, back.exact_match)


def test_valid_sentences_score_alike_in_every_scheme():
    for seed in range(5):
        gold, predicted = corpus("bio", seed, valid=True)
        counts = []
        for scheme in SCHEMES:
            sides = [
                [convert(labels, "bio", scheme) for labels in side] for side in (gold, predicted)
            ]
            counts.append(span_statistics(*sides, scheme).by_kind)
        assert torch.equal(counts[0], counts[1])
        assert torch.equal(counts[0], counts[2])


def test_ratios_of_nothing_are_zero():
    nothing = SpanScores(0.0, 0.0, 0.0, 0.0, 0.0, {})
    assert SpanScores.of(span_statistics([], [], "bio")) == nothing
    outside = SpanScores.of(span_statistics([["O"]], [["O"]], "bio"))
    assert outside == SpanScores(0.0, 0.0, 0.0, 1.0, 1.0, {})
    missed = SpanScores.of(span_statistics([["B-PER"]], [["O"]], "bio"))
    assert missed == SpanScores(0.0, 0.0, 0.0, 0.0, 0.0, {"PER": KindScores(0.0, 0.0, 0.0, 0, 1)})


def test_rows_feed_the_bootstrap():
    gold, _ = corpus("bio", 0, sentences=40, valid=True)
    changed = [
        gold[:20] + [["O"] * len(labels) for labels in gold[20:]],
        [["O"] * len(labels) for labels in gold],
    ]
    perfect, half, none = (span_statistics(gold, guess, "bio") for guess in (gold, *changed))
    systems = torch.stack([perfect.rows[None], half.rows[None]])
    generator = torch.Generator().manual_seed(0)
    better, part = paired_bootstrap(
        systems, none.rows[None], span_f1, resamples=200, generator=generator
    )
    assert better == (1.0, 1.0, 1.0)
    assert part.value == pytest.approx(SpanScores.of(half).f1)
    assert 0.0 < part.low < part.value < part.high < 1.0


def test_sentences_must_pair_up():
    with pytest.raises(ShapeError, match="predicted labels for each of 2 sentences, got 1"):
        span_statistics([["O"], ["O"]], [["O"]], "bio")
    with pytest.raises(
        ShapeError, match="sentence 1: expected predicted labels for 1 words, got 2"
    ):
        span_statistics([["O"], ["O"]], [["O"], ["O", "O"]], "bio")
    with pytest.raises(OutputError, match="label 0 is no tag of bio"):
        span_statistics([["O"]], [["S-PER"]], "bio")
