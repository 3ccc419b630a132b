"""Training on candidates.

Targets as recipes ask for them, and steps toward them.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import softq
from softq.errors import RecipeError
from softq.formats.vocabulary import UNKNOWN
from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.metrics import reference_rewards
from softq.neural.modules.translator import AttentionalTranslator
from softq.neural.recipe import CandidateSettings, Optimizer
from softq.neural.target_maker import recipe_targets
from softq.neural.training_steps import Batch, TrainingSteps
from softq.sentences import Sentences

pytestmark = pytest.mark.usefixtures("one_thread")

WORKERS = Workers(torch.device("cpu"))
REFERENCES = Sentences.pack([[[5, 6, 7, 8], [5, 6, 9]], [[7, 7, 4]]])
SOURCE = Sentences.pack([[5, 6], [7, 8, 9]])
SETTINGS = CandidateSettings()


def tiny(dropout=0.0, seed=0):
    return AttentionalTranslator(12, 12, embedding=6, hidden=6, dropout=dropout, seed=seed)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def target_of(objective, settings=SETTINGS, seed=0, references=REFERENCES):
    return recipe_targets(objective, settings, 12)(references, generator(seed))


@pytest.mark.parametrize("name", ["raml", "sqdml"])
@pytest.mark.parametrize("sampler", ["ngram", "hamming", "recombined"])
def test_unknown_words_never_match_as_in_evaluation(name, sampler):
    """The reward of every candidate is the sentence BLEU that an evaluation on words gives it."""
    settings = CandidateSettings(sampler=sampler, size=8)
    references = Sentences.pack([[[5, UNKNOWN, 7, 8, 9], [UNKNOWN, 7, 8, 6]], [[6, 5, 7, 4, 8]]])
    make = recipe_targets(Objective(name, 0.3), settings, 12)
    target = make(references, generator())
    cands = target.outputs.sentences
    rewards = make.reward(*cands, *references)
    for b, several in enumerate(references.unpack()):
        for s, candidate in enumerate(cands.unpack()[b]):
            words = [["<unk>" if token == UNKNOWN else str(token) for token in candidate]]
            plain = [
                ["rare" if token == UNKNOWN else str(token) for token in one] for one in several
            ]
            assert rewards[b, s, : len(several)].tolist() == pytest.approx(
                reference_rewards(words, [plain])[0]
            )
    assert float(make.reward(*references, *references)[0, 0, 0]) < 0.7  # a reference against itself


def test_every_kind_of_target_is_that_of_the_library():
    ml = target_of(Objective("ml"), CandidateSettings())
    assert ml.weights.tolist() == [[0.5, 0.5], [1.0, 0.0]]

    bleu = softq.rewards.SentenceBLEU()
    sampler = softq.samplers.NgramReplacement(12, size=6, specials=range(4))
    for name in ("raml", "sqdml"):
        made = target_of(Objective(name, 0.4), CandidateSettings(size=6))
        expected = getattr(softq, name)(
            sampler(REFERENCES, generator=generator()), REFERENCES, 0.4, bleu
        )
        torch.testing.assert_close(made.weights, expected.weights)
        assert torch.equal(made.outputs.tokens, expected.outputs.tokens)

    paper = recipe_targets(
        Objective("raml", 0.4), CandidateSettings(size=6, k=4, estimator="paper"), 12
    )(REFERENCES, generator())
    assert paper.weights.shape == (2, 4)
    assert "estimator=paper" in paper.signature


def test_draws_of_the_hamming_payoff_weigh_alike():
    settings = CandidateSettings(
        sampler="hamming", reward="hamming", estimator="importance", size=8
    )
    one = Sentences.pack([[[5, 6, 7, 8]], [[7, 7, 4]]])
    made = target_of(Objective("raml", 0.9), settings, references=one)
    torch.testing.assert_close(made.weights, torch.full((2, 8), 1 / 8, dtype=torch.float64))
    drawn = softq.samplers.HammingStratified(12, 0.9, 8, specials=range(4), rescale=True)(
        one, generator=generator()
    )
    assert torch.equal(made.outputs.tokens, drawn.tokens)


def test_the_printed_formula_of_importance_sampling():
    tau, one = 0.7, Sentences.pack([[[5, 6, 7, 8, 9]]])
    settings = CandidateSettings(sampler="hamming", estimator="printed", size=30)
    made = recipe_targets(Objective("raml", tau), settings, 12)(one, generator(1))
    cands = made.outputs
    bleu = softq.rewards.SentenceBLEU()(*cands.sentences, *one)[0, :, 0]
    distance = (cands.tokens[0] != one.tokens[0, 0]).sum(1)
    expected = torch.exp(bleu / tau) / torch.exp(-distance / tau)
    assert len(distance.unique()) > 2
    torch.testing.assert_close(made.weights[0], expected / expected.sum())


def test_references_that_are_missing_do_not_come_near():
    settings = CandidateSettings(sampler="hamming", estimator="printed", size=6)
    alone = Sentences.pack([[[7, 7, 4]]])
    beside = Sentences(torch.cat([alone.tokens, alone.tokens], 1), torch.tensor([[3, -1]]))
    weights = [
        recipe_targets(Objective("raml", 0.7), settings, 12)(refs, generator(1)).weights
        for refs in (alone, beside)
    ]
    torch.testing.assert_close(*weights)


def test_of_many_references_a_step_takes_some():
    many = Sentences.pack([[[5, word, 7, 8] for word in range(4, 12)], [[7, 7, 4]]])
    make = recipe_targets(Objective("sqdml", 0.5), CandidateSettings(size=6), 12)
    seen = [make(many, generator(seed)) for seed in range(20)]
    for target in seen:
        assert target.components.is_reference.sum(1).tolist() == [3, 1]
        assert target.outputs.present.all()
    words = torch.stack([target.outputs.tokens[0, :3, 1] for target in seen])
    assert words.unique().tolist() == list(range(4, 12))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 11}, "k must not exceed size"),
        ({"estimator": "paper"}, "needs k"),
        ({"estimator": "importance", "k": 3}, "uses every sample"),
        ({"estimator": "printed"}, "sampler = hamming with reward = bleu"),
        ({"reward": "hamming"}, "sampler = hamming"),
        ({"reward": "hamming", "sampler": "hamming"}, "estimator = importance"),
        (
            {"sampler": "hamming", "estimator": "paper", "k": 3},
            "candidates that include the references",
        ),
        ({"size": 1}, "size must be at least 2"),
        ({"k": 1}, "leaves no place"),
    ],
)
def test_candidates_that_do_not_fit_together_are_refused(options, message):
    with pytest.raises(RecipeError, match=message):
        CandidateSettings(**options)


def test_gradient_of_the_loss_is_the_weighted_sum_of_single_gradients():
    model = tiny().double()
    target = target_of(Objective("raml", 0.5), CandidateSettings(size=5))
    batch = Batch.of(SOURCE, target)
    steps = TrainingSteps(model, Optimizer(clip=0), WORKERS)
    steps._share.fill_(1.0)
    total = steps._sweep(batch)
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    sums = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    losses = 0.0
    for b, source in enumerate(SOURCE.unpack()):
        for words, weight in zip(
            Sentences(*target.outputs.sentences).unpack()[b],
            target.weights[b].tolist(),
            strict=True,
        ):
            model.zero_grad()
            log_prob = model.log_prob(Sentences.pack([source]), Sentences.pack([[words]])).sum()
            (-weight * log_prob).backward()
            losses -= weight * log_prob.item()
            for name, parameter in model.named_parameters():
                sums[name] += parameter.grad
    assert total.item() == pytest.approx(losses)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, sums[name], rtol=1e-5, atol=1e-7, msg=name)
    loss = softq.cross_entropy(target, model.log_prob(SOURCE, target.outputs)).sum()
    assert total.item() == pytest.approx(loss.item())


def test_a_step_is_adam_on_a_clipped_gradient():
    batch = Batch.of(SOURCE, target_of(Objective("ml")))
    ours, theirs = tiny(), tiny()
    steps = TrainingSteps(ours, Optimizer(learning_rate=0.01, clip=0.5), WORKERS)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.01)
    for _ in range(3):
        steps(batch, 2, seed=0)
        adam.zero_grad()
        weights = batch.weights
        (
            -(weights * theirs.log_prob(SOURCE, Sentences(batch.tokens, batch.lengths))).sum() / 2
        ).backward()
        assert nn.utils.clip_grad_norm_(theirs.parameters(), 0.5) > 0.5
        adam.step()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6, msg=name)


def test_the_rate_still_rules_after_a_checkpoint_is_loaded():
    model = tiny()
    batch = Batch.of(SOURCE, target_of(Objective("ml")))
    begun, steps = (
        TrainingSteps(tiny(), Optimizer(), WORKERS),
        TrainingSteps(model, Optimizer(), WORKERS),
    )
    begun(batch, 2, seed=0)
    steps.load_state(begun.state())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    steps.learning_rate = 0.0
    steps(batch, 2, seed=0)
    assert all(
        torch.equal(parameter, old)
        for parameter, old in zip(model.parameters(), before, strict=True)
    )


def test_rounded_batches_lose_nothing():
    target = target_of(Objective("sqdml", 0.5), CandidateSettings(size=5))
    batch = Batch.of(SOURCE, target)
    losses = [
        TrainingSteps(tiny(), Optimizer(), WORKERS)(each, 2, seed=0).item()
        for each in (batch, batch.rounded(4))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_nothing_changes_after_a_loss_that_is_not_finite():
    model = tiny()
    batch = Batch.of(SOURCE, target_of(Objective("ml")))
    steps = TrainingSteps(model, Optimizer(), WORKERS)
    steps(batch, 2, seed=0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    bad = batch._replace(weights=batch.weights * math.inf)
    assert not math.isfinite(steps(bad, 2, seed=0).item())
    steps(batch, 2, seed=0)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
