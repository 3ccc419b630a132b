"""EM over annotators of trees against all trees of tiny sentences, and what it finds in made crowds."""

import math

import numpy as np
import pytest
import torch

import oracle
import softq
from softq.annotators.heads import estimate_heads
from softq.errors import DataError, ShapeError

LENGTHS = [3, 1, 4, 2]
ROOT, LEFT, RIGHT, TRUE = range(4)


def tiny_crowd(seed=0):
    """Four sentences of three annotators, one of whom is missing twice and comes twice in one; gaps."""
    rng = np.random.default_rng(seed)
    heads = np.full((4, 3, 4), -100)
    for b, length in enumerate(LENGTHS):
        for r in range(3):
            for t in range(length):
                heads[b, r, t] = rng.choice([h for h in range(length + 1) if h != t + 1])
    heads[0, 1, 2] = heads[2, 0, 0] = -100  # left out
    who = np.array([[0, 1, 2], [1, -1, 0], [2, 0, 2], [0, 1, -1]])
    return torch.from_numpy(heads), torch.from_numpy(who), torch.tensor(LENGTHS)


def side(head, word):
    return ROOT if head == 0 else LEFT if head < word else RIGHT


def em_by_hand(crowd, model, arcs, trees_of, smoothing, iterations):
    """Tables, arc marginals and objective, tree by tree."""
    heads, who, lengths = (part.tolist() for part in crowd)
    tables = np.full((3, 3, 4), 0.1)
    tables[..., TRUE] = 0.7
    objective = []

    def given(b):
        for r, person in enumerate(who[b]):
            for t in range(lengths[b]):
                if person >= 0 and heads[b][r][t] >= 0:
                    yield person, t, heads[b][r][t]

    def outcome(b, t, head, right):
        """What was given, and how many heads would have been given so."""
        if head == right:
            return TRUE, 1
        words = [h for h in range(lengths[b] + 1) if h not in (t + 1, right)]
        return side(head, t + 1), sum(side(h, t + 1) == side(head, t + 1) for h in words)

    for _ in range(iterations):
        counts, marginals, value = np.full((3, 3, 4), smoothing), [], 0.0
        for b, length in enumerate(lengths):
            possible = trees_of(length)
            before = [oracle.tree_score(arcs[b], tree) for tree in possible]
            scores = []
            for tree, score in zip(possible, before, strict=True):
                for person, t, head in given(b):
                    cell, ways = outcome(b, t, head, tree[t])
                    score += math.log(tables[person, side(tree[t], t + 1), cell] / ways)
                scores.append(score)
            value += oracle.log_sum_exp(scores) - oracle.log_sum_exp(before)
            arc = np.zeros((5, 5))
            for tree, share in zip(possible, oracle.probabilities(scores), strict=True):
                for t, right in enumerate(tree):
                    arc[right, t + 1] += share
                for person, t, head in given(b):
                    counts[person, side(tree[t], t + 1), outcome(b, t, head, tree[t])[0]] += share
            marginals.append(arc)
        objective.append(value + smoothing * np.log(tables).sum())
        plain = (counts - smoothing).sum(1)
        if model == "one-coin":
            counts = np.broadcast_to(counts.sum(1, keepdims=True), counts.shape)
        tables = counts / counts.sum(-1, keepdims=True)
    return tables, marginals, objective, plain[:, TRUE] / plain.sum(1)


@pytest.mark.parametrize("model", ["one-coin", "direction"])
@pytest.mark.parametrize("projective", [True, False])
@pytest.mark.parametrize("with_prior", [False, True])
@pytest.mark.parametrize("iterations", [1, 4])
def test_em_agrees_with_all_trees(model, projective, with_prior, iterations):
    crowd = tiny_crowd()
    arcs = torch.zeros(4, 5, 5, dtype=torch.float64)
    prior = None
    if with_prior:
        arcs = torch.randn(
            4, 5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        ).requires_grad_()
        prior = (softq.ProjectiveTree if projective else softq.SpanningTree)(arcs, crowd[2])
    found = estimate_heads(
        *crowd,
        model,
        prior=prior,
        projective=projective,
        smoothing=0.4,
        iterations=iterations,
        tolerance=-math.inf,
    )

    def trees_of(length):
        return oracle.trees(length, multiroot=False, projective=projective)

    tables, marginals, objective, accuracy = em_by_hand(
        crowd, model, arcs.tolist(), trees_of, 0.4, iterations
    )
    np.testing.assert_allclose(found.objective, objective, rtol=1e-9)
    np.testing.assert_allclose(found.tables, tables, atol=1e-9)
    np.testing.assert_allclose(found.posterior.marginals.detach(), marginals, atol=1e-9)
    np.testing.assert_allclose(found.accuracy, accuracy, atol=1e-9)
    assert not found.posterior.scores.requires_grad


@pytest.mark.parametrize("model", ["one-coin", "direction"])
@pytest.mark.parametrize("smoothing", [0.01, 1.0])
def test_the_objective_never_falls_and_em_ends(model, smoothing):
    crowd = tiny_crowd(3)
    found = estimate_heads(*crowd, model, smoothing=smoothing, iterations=60, tolerance=-1.0)
    assert len(found.objective) == 60
    assert min(np.diff(found.objective)) > -1e-9
    short = estimate_heads(*crowd, model, smoothing=smoothing, tolerance=1e-3)
    assert 1 < len(short.objective) < 50


def made_annotators(seed, sentences=200, length=7):
    """Random projective trees and four annotators, who err most where the head is to the right."""
    generator = torch.Generator().manual_seed(seed)
    gold = softq.ProjectiveTree(torch.zeros(sentences, length + 1, length + 1)).sample(
        (), generator=generator
    )
    rng = np.random.default_rng(seed)
    right = np.array([[0.9, 0.9, 0.8], [0.8, 0.8, 0.5], [0.6, 0.7, 0.4], [0.5, 0.4, 0.3]])
    heads = gold.unsqueeze(1).repeat(1, 4, 1)
    for b, a, t in np.ndindex(*heads.shape):
        true = int(gold[b, t])
        if rng.random() > right[a, side(true, t + 1)]:
            others = [h for h in range(length + 1) if h not in (t + 1, true)]
            heads[b, a, t] = int(rng.choice(others))
    return gold, heads, torch.arange(4).expand(sentences, -1), torch.full((sentences,), length)


@pytest.mark.parametrize("model", ["one-coin", "direction"])
def test_made_annotators_are_found(model):
    gold, *crowd = made_annotators(0)
    found = estimate_heads(*crowd, model)
    true = (crowd[0] == gold.unsqueeze(1)).double().mean((0, 2))
    # 1,400 heads each, a standard error of 1.3 %; the rest is the truth that is only estimated
    assert (found.accuracy - true).abs().max() < 0.06
    assert found.accuracy.argsort().tolist() == [3, 2, 1, 0]

    def uas(heads):
        return float((heads == gold).double().mean())

    best = uas(found.posterior.mode())
    votes = uas(crowd[0].mode(1).values)
    assert best > max(votes, float(true.max())) + 0.01
    if model == "direction":
        share = found.tables[..., TRUE]
        assert (share[:, RIGHT] < share[:, LEFT]).all()


def test_heads_of_nobody_and_of_the_unheard():
    heads, who, lengths = tiny_crowd()
    nobody = estimate_heads(heads, torch.full_like(who, -1), lengths)
    assert nobody.tables.shape == (0, 3, 4)
    uniform = softq.ProjectiveTree(torch.zeros(4, 5, 5, dtype=torch.float64), lengths)
    torch.testing.assert_close(nobody.posterior.marginals, uniform.marginals)
    gap = estimate_heads(heads, torch.where(who == 2, 3, who), lengths)  # nobody is number 2
    assert gap.accuracy.isnan().tolist() == [False, False, True, False]


def test_bad_heads():
    heads, who, lengths = tiny_crowd()
    with pytest.raises(ShapeError, match=r"heads \[B, R, n\].*got \[4, 3, 4\], \[4, 2\]"):
        estimate_heads(heads, who[:, :2], lengths)
    for place, value in (((1, 0, 0), 2), ((0, 0, 1), 2)):
        bad = heads.clone()
        bad[place] = value
        with pytest.raises(DataError, match="other words of the sentence, or 0"):
            estimate_heads(bad, who, lengths)
    with pytest.raises(DataError, match="iterations"):
        estimate_heads(heads, who, lengths, iterations=0)
    with pytest.raises(DataError, match="one of one-coin, direction, got 'glad'"):
        estimate_heads(heads, who, lengths, "glad")
    with pytest.raises(DataError, match="smoothing must be a positive number, got 0"):
        estimate_heads(heads, who, lengths, smoothing=0.0)
    with pytest.raises(ShapeError, match="prior"):
        estimate_heads(heads, who, lengths, prior=softq.ProjectiveTree(torch.zeros(4, 4, 4)))
