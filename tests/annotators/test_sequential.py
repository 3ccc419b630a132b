"""Variational EM of the sequential model, step by step against all label sequences."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import digamma, gammaln

import oracle
from softq.annotators.crowd import Crowd
from softq.annotators.known import KnownLabels
from softq.annotators.reliability import estimate
from softq.annotators.sequential import SequentialFit
from softq.annotators.tables import AnnotatorTables, TablePriors
from softq.errors import DataError
from softq.formats.conll import MISSING, Sentence
from softq.formats.partial_labels import alternatives, spelled
from tagging_cases import follows

LABELS = ("O", "B-P", "I-P")


def noisy_crowd(seed, sentences=8, *, longest=4, people=3):
    """Annotators who copy a made truth with errors and gaps, in sentences of 0 to 4 tokens."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(sentences):
        length = (longest, 1, 0)[number] if number < 3 else int(rng.integers(1, longest + 1))
        gold = rng.choice([0, 0, 1, 2], length)
        rows = []
        for _ in range(people):
            wrong = rng.random(length) < 0.3
            row = np.where(wrong, rng.integers(0, 3, length), gold)
            rows.append(tuple(MISSING if rng.random() < 0.15 else LABELS[k] for k in row.tolist()))
        made.append(Sentence(("w",) * length, tuple(rows), tuple("xyz"[:people])))
    return made


def em_by_hand(sentences, scheme, *, previous, priors, temper, iterations):
    """Posteriors, log Z of each iteration, and the best sequences after the last, by enumeration."""
    size, names = len(LABELS), sorted({name for one in sentences for name in one.annotators})
    contexts = range(size + 1) if previous else [0]
    everything = [
        [
            y
            for y in oracle.label_sequences(len(one.tokens), size)
            if follows([LABELS[k] for k in y], scheme)
        ]
        for one in sentences
    ]
    pairs_allowed = [
        [follows([*(["B-P"] if i == 2 else []), LABELS[i], LABELS[j]], scheme) for j in range(size)]
        for i in range(size)
    ]
    first_allowed = [follows([LABELS[k]], scheme) for k in range(size)]
    counts = {}  # (who, context, right, given) -> expected number

    def alpha(who, context, right):
        plain = [
            sum(counts.get((who, c, right, m), 0.0) for c in contexts)
            + (priors.right if m == right else priors.wrong)
            for m in range(size)
        ]
        if not previous:
            return plain
        return [
            counts.get((who, context, right, m), 0.0) + priors.backoff * plain[m] / sum(plain)
            for m in range(size)
        ]

    def dirichlet(found, allowed):
        total = sum(f + 0.1 for f, ok in zip(found, allowed, strict=True) if ok)
        return [
            max(digamma(f + 0.1) - digamma(total), -20.0) if ok else -math.inf
            for f, ok in zip(found, allowed, strict=True)
        ]

    first = [0.0 if ok else -math.inf for ok in first_allowed]
    between = [[0.0 if ok else -math.inf for ok in row] for row in pairs_allowed]
    objective = []

    def all_scores():
        found = []
        for sentence, possible in zip(sentences, everything, strict=True):
            evidence = [[0.0] * size for _ in sentence.tokens]
            for name, row in zip(sentence.annotators, sentence.labels, strict=True):
                before = MISSING
                for t, label in enumerate(row):
                    context = LABELS.index(before) if before != MISSING else size
                    before = label
                    if label == MISSING:
                        continue
                    for right in range(size):
                        a = alpha(name, context if previous else 0, right)
                        mean = digamma(a[LABELS.index(label)]) - digamma(sum(a))
                        evidence[t][right] += temper * max(mean, priors.floor)
            found.append(
                [
                    (first[y[0]] if y else 0.0)
                    + oracle.label_score(evidence, [between] * len(y), y)
                    for y in possible
                ]
            )
        return found

    for _ in range(iterations):
        scores = all_scores()
        objective.append(sum(oracle.log_sum_exp(row) for row in scores))
        counts_next, starts, pairs, posterior = {}, [0.0] * size, [[0.0] * size for _ in LABELS], []
        for sentence, possible, values in zip(sentences, everything, scores, strict=True):
            unary = [[0.0] * size for _ in sentence.tokens]
            for y, p in zip(possible, oracle.probabilities(values), strict=True):
                for t, k in enumerate(y):
                    unary[t][k] += p
                if y:
                    starts[y[0]] += p
                for i, j in itertools.pairwise(y):
                    pairs[i][j] += p
            for name, row in zip(sentence.annotators, sentence.labels, strict=True):
                before = MISSING
                for t, label in enumerate(row):
                    context = LABELS.index(before) if before != MISSING else size
                    before = label
                    if label == MISSING:
                        continue
                    for right in range(size):
                        cell = (name, context if previous else 0, right, LABELS.index(label))
                        counts_next[cell] = counts_next.get(cell, 0.0) + unary[t][right]
            posterior += unary
        counts.clear()
        counts.update(counts_next)
        first = dirichlet(starts, first_allowed)
        between = [dirichlet(*rows) for rows in zip(pairs, pairs_allowed, strict=True)]
    best = [
        tuple(LABELS[k] for k in possible[max(range(len(row)), key=row.__getitem__)])
        for possible, row in zip(everything, all_scores(), strict=True)
    ]
    assert names == sorted({who for who, *_ in counts})
    return posterior, objective, best


@pytest.mark.parametrize("scheme", [None, "bio"])
@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize(("temper", "iterations"), [(1.0, 1), (0.6, 4)])
def test_em_agrees_with_all_sequences(scheme, previous, temper, iterations):
    sentences = noisy_crowd(3)
    priors = TablePriors(right=2.0, wrong=0.3, backoff=5.0, floor=-3.0)
    crowd = Crowd.read(sentences, LABELS, previous=previous)
    fit = SequentialFit(
        AnnotatorTables(crowd, priors),
        LABELS,
        crowd.lengths,
        scheme,
        temper=temper,
        iterations=iterations,
    )
    posterior, objective, best = em_by_hand(
        sentences, scheme, previous=previous, priors=priors, temper=temper, iterations=iterations
    )
    np.testing.assert_allclose(fit.posterior.labels, posterior, atol=1e-9)
    np.testing.assert_allclose(fit.objective, objective, rtol=1e-9)
    assert list(fit.best()) == best


def test_estimates_are_those_of_the_fit():
    sentences = noisy_crowd(3)
    found = estimate(sentences, "sequential", iterations=3)
    crowd = Crowd.read(sentences, previous=True)
    fit = SequentialFit(AnnotatorTables(crowd), crowd.labels, crowd.lengths, "bio", iterations=3)
    assert (found.labels, found.objective) == (LABELS, tuple(fit.objective))
    np.testing.assert_array_equal(np.concatenate(found.posteriors), fit.posterior.labels)
    assert [len(rows) for rows in found.posteriors] == crowd.lengths.tolist()
    assert list(found.best) == list(fit.best())
    for labels in found.best:
        assert follows(labels, "bio")


def dirichlet_kl(alpha, prior):
    """KL of Dirichlet distributions, rows of the last axis."""
    alpha, prior = np.broadcast_arrays(np.asarray(alpha, float), prior)
    total = alpha.sum(-1)
    mean = digamma(alpha) - digamma(total)[..., None]
    return float(
        (
            gammaln(total)
            - gammaln(alpha).sum(-1)
            - gammaln(prior.sum(-1))
            + gammaln(prior).sum(-1)
            + ((alpha - prior) * mean).sum(-1)
        ).sum()
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_evidence_lower_bound_never_falls(seed):
    """It is log Z less the KL of all tables, with evidence that is not tempered and has no floor.

    The first E-step is left out, whose chain over the truth is none that the M-step could find.
    """
    sentences = noisy_crowd(seed, 30)
    crowd = Crowd.read(sentences, LABELS)
    priors = TablePriors(floor=-1e9)
    beforehand = np.where(np.eye(3, dtype=bool), priors.right, priors.wrong)
    bounds, penalty = [], None
    for iterations in range(1, 9):
        tables = AnnotatorTables(crowd, priors)
        fit = SequentialFit(tables, LABELS, crowd.lengths, None, temper=1.0, iterations=iterations)
        assert len(fit.objective) == iterations
        if penalty is not None:
            bounds.append(fit.objective[-1] - penalty)
        starts = np.cumsum(crowd.lengths) - crowd.lengths
        chain = np.concatenate(
            [fit.posterior.labels[starts].sum(0)[None], fit.posterior.pairs.sum(0)]
        )
        penalty = dirichlet_kl(tables.concentrations, beforehand)
        penalty += dirichlet_kl(chain + 0.1, np.full(3, 0.1))
    assert len(bounds) == 7
    assert min(np.diff(bounds)) > -1e-9
    assert bounds[-1] > bounds[0]


def test_a_sentence_without_an_allowed_sequence_is_named():
    known = KnownLabels([("O",), ("O", "I-P")], LABELS)
    with pytest.raises(DataError, match=r"sentence 1 \(counted from 0\).* tag scheme bio"):
        SequentialFit(known, LABELS, [1, 2], "bio")


@pytest.mark.parametrize("scheme", [None, "bio"])
def test_labels_known_in_part_leave_what_they_allow(scheme):
    sequences = [("O", "B-P|O", "?"), (), ("?",), ("B-P=0.75|I-P=0.25", "I-P|O")]
    fit = SequentialFit(
        KnownLabels(sequences, LABELS),
        LABELS,
        [len(row) for row in sequences],
        scheme,
        temper=1.0,
        iterations=1,
    )
    posterior = []
    for row in sequences:
        weights = [
            [alternatives(label).get(name, 0.0) if label != "?" else 1.0 for name in LABELS]
            for label in row
        ]
        possible = [
            y
            for y in oracle.label_sequences(len(row), 3)
            if follows([LABELS[k] for k in y], scheme)
        ]
        mass = [math.prod(weights[t][k] for t, k in enumerate(y)) for y in possible]
        posterior += [
            [
                sum(m for m, y in zip(mass, possible, strict=True) if y[t] == k) / sum(mass)
                for k in range(3)
            ]
            for t in range(len(row))
        ]
    np.testing.assert_allclose(fit.posterior.labels, posterior, atol=1e-12)


@pytest.mark.parametrize(
    "label",
    [
        "",
        "|",
        "A|",
        "A|A",
        "A=0.5|B",
        "A=x|B=0.5",
        "A=-1|B=0.5",
        "A=nan|B=1",
        "A=2|B=0.1",
        "=1|B=1",
    ],
)
def test_spellings_of_uncertain_labels_that_mean_nothing(label):
    with pytest.raises(DataError, match="expected a label, "):
        alternatives(label)


def test_spellings_of_uncertain_labels():
    with pytest.raises(DataError, match="expected a probability above 0"):
        alternatives("A=0|B=0")
    for given, expected in [
        (None, {}),
        ("?", {}),
        ("O", {"O": 1.0}),
        ("A=0.5", {"A=0.5": 1.0}),  # a name as any other
        (["B", "A"], {"A": 1.0, "B": 1.0}),
        ({"B", "A"}, {"A": 1.0, "B": 1.0}),
        ({"A": 0.2, "B": np.float64(0.8)}, {"A": 0.2, "B": 0.8}),
        ({"A": 1e-7, "B": 1}, {"A": 1e-7, "B": 1.0}),
        ({"A": 0.3}, {"A": 1.0}),
    ]:
        assert alternatives(spelled(given)) == expected
    with pytest.raises(DataError, match="labels among O, B-P, I-P, got 'X'"):
        KnownLabels([("X|O",)], LABELS)
