"""The k best as candidates: with all outputs among them, targets and losses are the exact ones."""

import pytest
import torch
from torch.testing import assert_close

import softq
from softq.errors import SamplerError, ShapeError
from softq.rewards import SpanF1, TokenAccuracy


def chain(seed=0, batch=3, size=4):
    generator = torch.Generator().manual_seed(seed)
    emissions = torch.randn(batch, size, 3, generator=generator, dtype=torch.float64)
    transitions = torch.randn(3, 3, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([size, 2, 0])[:batch]
    return softq.Chain(emissions.requires_grad_(), transitions, lengths)


def test_all_outputs_as_candidates_give_the_exact_targets_and_losses():
    p = chain()
    gold = torch.tensor([[[0, 1, 2, 1], [1, 1, 2, 0]], [[2, 0, 9, 9], [2, 0, 9, 9]], [[0] * 4] * 2])
    weights = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    cands, refs = softq.samplers.k_best(p, gold, 100, ref_weights=weights)
    assert cands.present.sum(1).tolist() == [81, 9, 1]
    assert refs.unpack() == [[[0, 1, 2, 1], [1, 1, 2, 0]], [[2, 0]], [[]]]
    for make in (softq.raml, softq.sqdml):
        exact = make(p, gold, 0.7, ref_weights=weights)
        listed = make(cands, refs, 0.7, TokenAccuracy())
        assert_close(softq.cross_entropy(listed, p), softq.cross_entropy(exact, p))
        grads = [
            torch.autograd.grad(softq.cross_entropy(t, p).sum(), p.scores, retain_graph=True)[0]
            for t in (listed, exact)
        ]
        assert_close(*grads)
        with_prior = make(cands, refs, 0.7, TokenAccuracy(), prior=p)
        exact = make(p, gold, 0.7, ref_weights=weights, prior=p)
        assert_close(softq.cross_entropy(with_prior, p), softq.cross_entropy(exact, p))


def test_references_come_first_and_candidates_are_the_best():
    p = chain(batch=1)
    worst = p.topk(81).outputs[:, -1]
    cands, refs = softq.samplers.k_best(p, worst, 5)
    assert cands.tokens[0, 0].tolist() == worst[0].tolist() == refs.tokens[0, 0].tolist()
    assert torch.equal(cands.tokens[:, 1:], p.topk(5).outputs)
    cands, _ = softq.samplers.k_best(p, p.mode(), 5)
    assert cands.present.sum().item() == 5  # the reference is one of them


def test_training_toward_entity_f1_finds_an_output_that_earns_it():
    p = chain(1, batch=1)
    emissions, gold = p.emissions, torch.tensor([[1, 2, 0, 1]])
    reward = SpanF1(["O", "B-PER", "I-PER"])
    for _ in range(60):
        p = softq.Chain(emissions, p.transitions)
        cands, refs = softq.samplers.k_best(p, gold, 8)
        loss = softq.cross_entropy(softq.sqdml(cands, refs, 0.1, reward), p).sum()
        (grad,) = torch.autograd.grad(loss, emissions)
        emissions = (emissions - grad).detach().requires_grad_()
    length = torch.tensor([[4]])
    assert reward(p.mode().unsqueeze(1), length, gold.unsqueeze(1), length).item() == 1.0


def test_what_does_not_fit_is_said():
    p, gold = chain(), torch.zeros(3, 4, dtype=torch.int64)
    with pytest.raises(SamplerError, match="size must be"):
        softq.samplers.k_best(p, gold, 0)
    with pytest.raises(ShapeError, match="one batch dimension"):
        softq.samplers.k_best(softq.Categorical(torch.zeros(2, 3)), torch.tensor([0, 1]), 2)
    cands, refs = softq.samplers.k_best(p, gold, 2)
    target = softq.raml(cands, refs, 1.0, TokenAccuracy())
    with pytest.raises(ShapeError, match="3 examples"):
        softq.cross_entropy(target, chain(batch=2))
    with pytest.raises(ShapeError, match="as long as"):
        softq.cross_entropy(target, softq.Chain(p.emissions, p.transitions))
