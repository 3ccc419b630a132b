"""SQDML on annotators' log-probabilities, with the model as the prior, is the E-step."""

import itertools
import math

import numpy as np
import pytest
import torch

import softq
from softq.errors import RewardError, ShapeError
from softq.rewards.annotators import Annotators

K, PEOPLE = 3, 4
LENGTHS = [3, 1, 0, 2]
WHO = torch.tensor([[0, 2, 3], [1, -1, 1], [0, 1, -1], [3, -1, -1]])  # 1 twice, nobody elsewhere


def problem(kind, seed=0):
    """A model, tables, and what annotators gave, with tokens that they left out."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.rand(PEOPLE, K, K, generator=generator, dtype=torch.float64) + 0.05
    tables /= tables.sum(-1, keepdim=True)
    scores = torch.randn(4, 3, K, generator=generator, dtype=torch.float64)
    between = torch.randn(K, K, generator=generator, dtype=torch.float64).requires_grad_()
    refs = torch.randint(0, K, (4, 3, 3), generator=generator)
    refs[0, 1, 2] = refs[0, 2, 0] = refs[1, 0, 0] = refs[3, 0, 0] = -100
    refs[WHO < 0] = -100
    if kind == "classes":
        leaf = scores[:, 0].clone().requires_grad_()
        return softq.Categorical(leaf), tables, refs[..., 0], (leaf,)
    leaf = scores.requires_grad_()
    if kind == "independent":
        return softq.Independent(leaf, lengths=LENGTHS), tables, refs, (leaf,)
    return softq.Chain(leaf, between, lengths=LENGTHS), tables, refs, (leaf, between)


def e_step(kind, model, tables, refs, power=1.0):
    """q(y) ∝ model(y)^power · Π_a Π_t π_a(l_at | y_t) over all outputs: per example, [(output, q)]."""
    given, scores = refs.tolist(), model.given()
    emissions = scores[0].tolist()
    between = scores[1].tolist() if kind == "chain" else [[0.0] * K] * K
    for b, length in enumerate([1] * 4 if kind == "classes" else LENGTHS):
        rows = [emissions[b]] if kind == "classes" else emissions[b]
        outputs = list(itertools.product(range(K), repeat=length))
        masses = []
        for y in outputs:
            score = sum(rows[t][k] for t, k in enumerate(y))
            score += sum(between[i][j] for i, j in itertools.pairwise(y))
            mass = math.exp(power * score)
            for who, labels in zip(WHO[b].tolist(), given[b], strict=True):
                labels = [labels] if kind == "classes" else labels
                for t, k in enumerate(y):
                    if who >= 0 and labels[t] != -100:
                        mass *= float(tables[who, k, labels[t]])
            masses.append(mass)
        yield [(y, mass / sum(masses)) for y, mass in zip(outputs, masses, strict=True)]


def marginals(law, length, width):
    found = np.zeros((width, K))
    for y, share in law:
        for t in range(length):
            found[t, y[t]] += share
    return found


@pytest.mark.parametrize("kind", ["chain", "independent", "classes"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sqdml_with_the_model_as_prior_is_the_e_step(kind, weighted):
    model, tables, refs, leaves = problem(kind)
    reward = Annotators(tables, WHO, "classes" if kind == "classes" else "labels")
    weights = (WHO >= 0).double() if weighted else None  # nobody may be missing, or silent
    target = softq.sqdml(model, refs, 1.0, reward, prior=model, ref_weights=weights)
    width = 1 if kind == "classes" else 3
    found = target.components.marginals.reshape(4, width, K)
    laws = list(e_step(kind, model, tables, refs))
    model_laws = list(e_step(kind, model, torch.ones_like(tables), refs))
    lengths = [1] * 4 if kind == "classes" else LENGTHS
    gradient = np.zeros((4, width, K))
    pairs = np.zeros((K, K))
    loss = 0.0
    for b, (law, own, length) in enumerate(zip(laws, model_laws, lengths, strict=True)):
        expected = marginals(law, length, width)
        np.testing.assert_allclose(found[b], expected, atol=1e-10)
        gradient[b] = marginals(own, length, width) - expected
        for (y, q), (_, p) in zip(law, own, strict=True):
            loss -= q * math.log(p)
            for i, j in itertools.pairwise(y):
                pairs[i, j] += p - q
    value = softq.cross_entropy(target, model).sum()
    assert value.item() == pytest.approx(loss, abs=1e-9)
    value.backward()
    np.testing.assert_allclose(leaves[0].grad.reshape(4, width, K), gradient, atol=1e-9)
    if kind == "chain":
        np.testing.assert_allclose(leaves[1].grad, pairs, atol=1e-9)


@pytest.mark.parametrize("kind", ["chain", "independent", "classes"])
def test_temperature_and_prior_weight_are_powers(kind):
    model, tables, refs, _ = problem(kind, 3)
    reward = Annotators(tables, WHO, "classes" if kind == "classes" else "labels")
    target = softq.sqdml(model, refs, 2.0, reward, prior=model, prior_weight=0.7)
    width = 1 if kind == "classes" else 3
    found = target.components.marginals.reshape(4, width, K)
    lengths = [1] * 4 if kind == "classes" else LENGTHS
    for b, law in enumerate(e_step(kind, model, tables.sqrt(), refs, 0.7)):
        np.testing.assert_allclose(found[b], marginals(law, lengths[b], width), atol=1e-10)


def test_one_reference_and_an_annotator_who_counts_double():
    model, tables, refs, _ = problem("classes", 5)
    reward = Annotators(tables, WHO[:, 0], "classes")
    with pytest.raises(ShapeError, match="one for each reference"):
        softq.sqdml(model, refs, 1.0, reward)
    alone = softq.sqdml(
        model, refs[:, :1], 1.0, Annotators(tables, WHO[:, :1], "classes"), prior=model
    )
    twice = softq.sqdml(
        model,
        refs[:, [0, 0]],
        1.0,
        Annotators(tables.sqrt(), WHO[:, [0, 0]], "classes"),
        prior=model,
    )
    torch.testing.assert_close(alone.components.marginals, twice.components.marginals)
    # weights are shares of what all annotators say together
    weights = torch.tensor([[3.0, 1.0]]).double().expand(4, -1)
    uneven = softq.sqdml(
        model,
        refs[:, [0, 0]],
        1.0,
        Annotators(tables.sqrt(), WHO[:, [0, 0]], "classes"),
        prior=model,
        ref_weights=weights,
    )
    torch.testing.assert_close(alone.components.marginals, uneven.components.marginals)


def test_bad_tables():
    with pytest.raises(ShapeError, match=r"shape \[A, K, K\]"):
        Annotators(torch.ones(2, 2), WHO)
    with pytest.raises(RewardError, match="positive"):
        Annotators(torch.zeros(1, 2, 2), WHO)
    model, tables, refs, _ = problem("classes")
    with pytest.raises(ShapeError, match="3 labels"):
        softq.sqdml(model, refs, 1.0, Annotators(tables[:, :2, :2], WHO, "classes"))
    with pytest.raises(RewardError, match="from -1 to 1"):
        softq.sqdml(model, refs, 1.0, Annotators(tables[:2], WHO, "classes"))
