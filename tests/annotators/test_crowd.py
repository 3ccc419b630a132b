"""Sums over what annotators wrote against loops, and Dirichlet tables against scipy."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import digamma

import softq
from softq.annotators.crowd import Crowd
from softq.annotators.tables import AnnotatorTables, TablePriors
from softq.errors import DataError, ShapeError
from softq.formats.conll import MISSING, Sentence

NAMES = ("ann", "bob", "cy", "dan")
LABELS = ("O", "B-P", "I-P")


def random_crowd(seed, sentences=9):
    """Ragged sentences with two to four annotators, one twice, missing labels, an empty sentence."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(sentences):
        length = int(rng.integers(1, 5)) if number != 3 else 0
        who = [*rng.permutation(NAMES)[: rng.integers(2, 5)].tolist()]
        if number == 1:
            who[1] = who[0]
        rows = rng.choice([*LABELS, MISSING], (len(who), length), p=[0.5, 0.2, 0.15, 0.15])
        made.append(Sentence(("w",) * length, tuple(map(tuple, rows.tolist())), tuple(who)))
    made.append(Sentence(("w", "w"), (("O", "B-P"), ("I-P", MISSING)), ("ann", "bob")))
    return made


def given_labels(sentences, previous):
    """(token, annotator, label before it, label) of each label, one by one."""
    start = 0
    for sentence in sentences:
        for name, row in zip(sentence.annotators, sentence.labels, strict=True):
            before = MISSING
            for place, label in enumerate(row):
                if label != MISSING:
                    context = LABELS.index(before) if before in LABELS else len(LABELS)
                    yield (
                        start + place,
                        NAMES.index(name),
                        context if previous else 0,
                        LABELS.index(label),
                    )
                before = label
        start += len(sentence.tokens)


def shares(seed, tokens, labels=3):
    return np.random.default_rng(seed).dirichlet(np.ones(labels), tokens)


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_sums_over_labels_agree_with_loops(seed, previous):
    sentences = random_crowd(seed)
    crowd = Crowd.read(sentences, LABELS, previous=previous)
    assert crowd.annotators == NAMES
    tokens, contexts = sum(len(one.tokens) for one in sentences), 4 if previous else 1
    assert (len(crowd.patterns), crowd.contexts) == (tokens, contexts)
    assert crowd.lengths.tolist() == [len(one.tokens) for one in sentences]
    posterior = shares(seed, tokens)
    tables = np.random.default_rng(seed).normal(size=(4, contexts, 3, 3))
    counts, evidence = np.zeros((4, contexts, 3, 3)), np.zeros((tokens, 3))
    for token, who, context, label in given_labels(sentences, previous):
        for right in range(3):
            counts[who, context, right, label] += posterior[token, right]
            evidence[token, right] += tables[who, context, right, label]
    np.testing.assert_allclose(crowd.counts(posterior), counts, atol=1e-12)
    np.testing.assert_allclose(crowd.evidence(tables)[crowd.patterns], evidence, atol=1e-12)
    sums = np.zeros((len(crowd.sentence), 3))
    for token, pattern in enumerate(crowd.patterns):
        sums[pattern] += posterior[token]
    np.testing.assert_allclose(crowd.per_pattern(posterior), sums, atol=1e-12)
    # tokens share a pattern if and only if all annotators of their sentence gave the same label there
    owner = np.repeat(np.arange(len(sentences)), crowd.lengths)
    written = {}
    for token, who, context, label in given_labels(sentences, previous):
        written.setdefault(token, []).append((who, context, label))
    for a, b in itertools.combinations(range(tokens), 2):
        if crowd.patterns[a] == crowd.patterns[b]:
            assert owner[a] == owner[b] == crowd.sentence[crowd.patterns[a]]
            assert written.get(a) == written.get(b)
        elif owner[a] == owner[b] and not previous:
            assert written.get(a) != written.get(b)


def test_labels_of_nobody_and_bad_labels():
    crowd = Crowd.read([Sentence(("a", "b"), ())], LABELS)
    assert crowd.counts(shares(0, 2)).shape == (0, 1, 3, 3)
    assert crowd.evidence(np.zeros((0, 1, 3, 3))).tolist() == [[0.0] * 3]
    with pytest.raises(DataError, match="expected labels among O, B-P, got 'I-P'"):
        Crowd.read(random_crowd(0), LABELS[:2])


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_hiding_takes_whole_pairs_and_leaves_each_sentence_somebody(share, previous):
    sentences = random_crowd(5, 300)
    crowd = Crowd.read(sentences, LABELS, previous=previous)
    rest, hidden = crowd.hide(share, seed=3)

    def labels(part):
        rows = (part.pattern, part.annotator, part.previous, part.label)
        return sorted(zip(*(row.tolist() for row in rows), strict=True))

    def pairs(part):
        return {
            (int(part.sentence[p]), int(a))
            for p, a in zip(part.pattern, part.annotator, strict=True)
        }

    assert sorted(labels(rest) + labels(hidden)) == labels(crowd)
    assert not pairs(rest) & pairs(hidden)
    everybody = pairs(crowd)
    assert {s for s, _ in pairs(rest)} == {s for s, _ in everybody}
    free = len(everybody) - len({s for s, _ in everybody})  # who may be hidden at the most
    count = len(pairs(hidden))
    if share in (0.0, 1.0):
        assert count == share * free
    else:
        # a pair is hidden if its number is below the share, but never the last of its sentence
        sizes = [sum(s == one for s, _ in everybody) for one in {s for s, _ in everybody}]
        expected = sum(n * share - share**n for n in sizes)
        spread = math.sqrt(len(everybody) * share * (1 - share))
        assert abs(count - expected) < 5 * spread  # fails by chance less than once in a million
    again = crowd.hide(share, seed=3)
    assert labels(again[1]) == labels(hidden)
    if share == 0.3:
        assert labels(crowd.hide(share, seed=4)[1]) != labels(hidden)


@pytest.mark.parametrize("previous", [False, True])
def test_tables_are_dirichlet_posteriors(previous):
    sentences = random_crowd(7, 40)
    crowd = Crowd.read(sentences, LABELS, previous=previous)
    priors = TablePriors(right=2.5, wrong=0.3, backoff=4.0, floor=-2.2)
    tables = AnnotatorTables(crowd, priors)
    tokens = len(crowd.patterns)
    contexts = crowd.contexts
    for posterior in (np.zeros((tokens, 3)), shares(8, tokens)):
        tables.update(posterior)
        counts = np.zeros((4, contexts, 3, 3))
        for token, who, context, label in given_labels(sentences, previous):
            counts[who, context, :, label] += posterior[token]
        alpha, evidence = np.zeros_like(counts), np.zeros((2, tokens, 3))
        for who in range(4):
            plain = np.array(
                [
                    [counts[who, :, k, m].sum() + (2.5 if k == m else 0.3) for m in range(3)]
                    for k in range(3)
                ]
            )
            means = plain / plain.sum(1, keepdims=True)
            np.testing.assert_allclose(tables.confusions[who], means, rtol=1e-12)
            for context in range(contexts):
                alpha[who, context] = counts[who, context] + 4.0 * means if previous else plain
        np.testing.assert_allclose(tables.concentrations, alpha, rtol=1e-12)
        floored = 0
        for token, who, context, label in given_labels(sentences, previous):
            for k in range(3):
                row = alpha[who, context, k]
                mean = digamma(row[label]) - digamma(row.sum())
                floored += mean < -2.2
                evidence[0, token, k] += max(mean, -2.2)
                evidence[1, token, k] += math.log(row[label] / row.sum())
        assert floored  # the floor is used
        np.testing.assert_allclose(tables.evidence(), evidence[0], atol=1e-10)
        np.testing.assert_allclose(tables.likelihood(crowd), evidence[1], atol=1e-10)
    rest, hidden = crowd.hide(0.4, 1)
    np.testing.assert_allclose(
        tables.likelihood(rest) + tables.likelihood(hidden), tables.likelihood(crowd), atol=1e-10
    )
    with pytest.raises(DataError, match="backoff must be a positive number, got 0"):
        TablePriors(backoff=0)


def spaces(kind, seed, lengths, dtype):
    generator = torch.Generator().manual_seed(seed)
    n, k = max(lengths), len(LABELS)
    scores = torch.randn(len(lengths), n, k, generator=generator, dtype=dtype).requires_grad_()
    between = torch.randn(k, k, generator=generator, dtype=dtype).requires_grad_()
    if kind == "chain":
        return softq.Chain(scores, between, lengths=lengths)
    if kind == "independent":
        return softq.Independent(scores, lengths=lengths)
    return softq.Categorical(scores[:, 0].detach().requires_grad_())


@pytest.mark.parametrize("kind", ["chain", "independent", "classes"])
@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize(("temper", "weight"), [(1.0, 1.0), (0.5, 1.3), (0.85, 0.0)])
def test_the_target_of_a_batch_is_model_times_evidence(kind, previous, temper, weight):
    sentences = [one for one in random_crowd(9, 12) if one.tokens]
    if kind == "classes":
        sentences = [
            Sentence(one.tokens[:1], tuple(row[:1] for row in one.labels), one.annotators)
            for one in sentences
        ]
    crowd = Crowd.read(sentences, LABELS, previous=previous)
    tables = AnnotatorTables(crowd)
    tables.update(shares(10, len(crowd.patterns)))
    batch = [4, 0, 7]
    lengths = [len(sentences[i].tokens) for i in batch]
    model = spaces(kind, 1, lengths, torch.float64)
    target = tables.target(model, batch, temper=temper, weight=weight)
    assert not target.scores.requires_grad
    starts = np.cumsum(crowd.lengths) - crowd.lengths
    for row, (sentence, length) in enumerate(zip(batch, lengths, strict=True)):
        evidence = tables.evidence()[starts[sentence] : starts[sentence] + length]
        possible = list(itertools.product(range(3), repeat=length))
        padded = [[*y, *[0] * (max(lengths) - length)] for y in possible]
        outputs = torch.zeros(len(possible), len(batch), max(lengths), dtype=torch.long)
        outputs[:, row] = torch.tensor(padded)
        if kind == "classes":
            outputs = outputs[..., 0]
        own = model.log_prob(outputs)[:, row].exp().tolist()
        mass = [
            p**weight * math.exp(temper * sum(evidence[t][k] for t, k in enumerate(y)))
            for p, y in zip(own, possible, strict=True)
        ]
        found = target.log_prob(outputs)[:, row].exp().tolist()
        np.testing.assert_allclose(found, np.array(mass) / sum(mass), rtol=1e-9)


def test_a_target_wants_a_model_of_these_labels_and_tokens():
    crowd = Crowd.read([Sentence(("a", "b"), (("O", "B-P"),), ("x",))], LABELS)
    tables = AnnotatorTables(crowd)
    for model, text in [
        (
            softq.Independent(torch.zeros(1, 1, 3)),
            "and 2 tokens for sentence 0, got 3 labels and 1",
        ),
        (
            softq.Independent(torch.zeros(1, 2, 2)),
            "a model of 3 labels .* got 2 labels and 2 tokens",
        ),
        (softq.Independent(torch.zeros(1, 3, 3)), "got 3 labels and 3 tokens"),
        (softq.Independent(torch.zeros(1, 3, 3), lengths=[1]), "got 3 labels and 1 tokens"),
        (softq.Independent(torch.zeros(2, 2, 3)), r"a model of 1 sentences, got \[2\]"),
    ]:
        with pytest.raises(ShapeError, match=text):
            tables.target(model, [0])
