"""Training on candidates.

Targets as recipes ask for them, steps, a learner that can be interrupted.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import softq
from softq.errors import DataError, RecipeError, RunError
from softq.formats.vocabulary import UNKNOWN
from softq.lab.loop import Evaluation, NonFiniteLossError
from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.metrics import reference_rewards
from softq.neural.examples import Examples
from softq.neural.learner import SequenceLearner
from softq.neural.modules.translator import AttentionalTranslator
from softq.neural.perplexity import perplexity
from softq.neural.recipe import CandidateSettings, Optimizer, SequenceTraining
from softq.neural.target_maker import recipe_targets
from softq.neural.training_steps import Batch, TrainingSteps
from softq.sentences import Sentences

pytestmark = pytest.mark.usefixtures("one_thread")

WORKERS = Workers(torch.device("cpu"))
REFERENCES = Sentences.pack([[[5, 6, 7, 8], [5, 6, 9]], [[7, 7, 4]]])
SOURCE = Sentences.pack([[5, 6], [7, 8, 9]])


def tiny(dropout=0.0, seed=0):
    return AttentionalTranslator(12, 12, embedding=6, hidden=6, dropout=dropout, seed=seed)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


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
    ml = recipe_targets(Objective("ml"), CandidateSettings(), 12)(REFERENCES, generator())
    assert ml.weights.tolist() == [[0.5, 0.5], [1.0, 0.0]]

    bleu = softq.rewards.SentenceBLEU()
    sampler = softq.samplers.NgramReplacement(12, size=6, specials=range(4))
    for name in ("raml", "sqdml"):
        made = recipe_targets(Objective(name, 0.4), CandidateSettings(size=6), 12)(
            REFERENCES, generator()
        )
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
    made = recipe_targets(Objective("raml", 0.9), settings, 12)(one, generator())
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
        ({"estimator": "importance", "k": 3}, "uses every draw"),
        ({"estimator": "printed"}, "sampler = hamming with reward = bleu"),
        ({"reward": "hamming"}, "sampler = hamming"),
        ({"reward": "hamming", "sampler": "hamming"}, "estimator = importance"),
        ({"sampler": "hamming", "estimator": "paper", "k": 3}, "only draws"),
        ({"size": 1}, "size must be at least 2"),
        ({"k": 1}, "leaves no place"),
    ],
)
def test_candidates_that_do_not_fit_together_are_refused(options, message):
    with pytest.raises(RecipeError, match=message):
        CandidateSettings(**options)


def test_gradient_of_the_loss_is_the_weighted_sum_of_single_gradients():
    model = tiny().double()
    target = recipe_targets(Objective("raml", 0.5), CandidateSettings(size=5), 12)(
        REFERENCES, generator()
    )
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
    batch = Batch.of(
        SOURCE, recipe_targets(Objective("ml"), CandidateSettings(), 12)(REFERENCES, generator())
    )
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
    batch = Batch.of(
        SOURCE, recipe_targets(Objective("ml"), CandidateSettings(), 12)(REFERENCES, generator())
    )
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
    target = recipe_targets(Objective("sqdml", 0.5), CandidateSettings(size=5), 12)(
        REFERENCES, generator()
    )
    batch = Batch.of(SOURCE, target)
    losses = [
        TrainingSteps(tiny(), Optimizer(), WORKERS)(each, 2, seed=0).item()
        for each in (batch, batch.rounded(4))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_nothing_changes_after_a_loss_that_is_not_finite():
    model = tiny()
    batch = Batch.of(
        SOURCE, recipe_targets(Objective("ml"), CandidateSettings(), 12)(REFERENCES, generator())
    )
    steps = TrainingSteps(model, Optimizer(), WORKERS)
    steps(batch, 2, seed=0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    bad = batch._replace(weights=batch.weights * math.inf)
    assert not math.isfinite(steps(bad, 2, seed=0).item())
    steps(batch, 2, seed=0)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_a_gradient_that_is_not_finite_stops_it_too():
    trained = learner(Objective("ml"))
    trained.train(0, 0, 1, [True])
    trained._model.attentional.register_hook(lambda gradient: gradient * math.inf)
    before = trained._model.attentional.detach().clone()
    with pytest.raises(NonFiniteLossError, match="epoch 1, step 1, or its gradient") as caught:
        trained.train(0, 1, trained.steps, [True])
    assert torch.equal(caught.value.batch["examples"], trained._batches(0)[1])
    assert torch.equal(trained._model.attentional, before)


def test_a_run_goes_on_with_the_data_it_began_with():
    begun, other = learner(), learner()
    other._train = copies(30, seed=5)
    with pytest.raises(RunError, match="differs from that with which it began"):
        other.load_state(begun.state())


def test_a_rate_may_fall_evenly_to_nothing():
    trained = learner(Objective("ml"), rate=0.01)
    trained._optimizer, trained._training = (
        Optimizer(learning_rate=0.01, schedule="linear"),
        SequenceTraining(epochs=4, batch_size=8),
    )
    rates = []
    for epoch in range(2):
        trained.train(epoch, 0, trained.steps, [True])
        rates += trained.end_epoch([True])["learning_rate"]
    resumed = learner(Objective("ml"), rate=0.01)
    resumed._optimizer, resumed._training = trained._optimizer, trained._training
    resumed.load_state(trained.state())
    for epoch in range(2, 4):
        resumed.train(epoch, 0, resumed.steps, [True])
        rates += resumed.end_epoch([True])["learning_rate"]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025])


def test_the_rate_has_a_floor():
    trained = learner(Objective("ml"), rate=0.01)
    trained._lowest = torch.tensor(0.0, dtype=torch.float64)
    trained._optimizer = Optimizer(learning_rate=0.01, min_learning_rate=0.004)
    rates = []
    for epoch in range(4):
        trained.train(epoch, 0, trained.steps, [True])
        rates += trained.end_epoch([True])["learning_rate"]
    assert rates == pytest.approx([0.01, 0.005, 0.004, 0.004])


class Verdict:
    """A judge that prefers low perplexity."""

    def __init__(self, examples):
        self.examples = examples

    def score(self, model):
        source, references = self.examples.take(torch.arange(len(self.examples)))
        return float(model.log_prob(source, references).mean())

    def judge(self, model):
        return Evaluation({}, [{"score": self.score(model)}])

    def notes(self, model):
        return {"about": torch.zeros(1)}


def copies(count, seed=0):
    random = np.random.default_rng(seed)
    sources = [random.integers(4, 12, random.integers(1, 5)).tolist() for _ in range(count)]
    return Examples(
        sources,
        [[source, source[::-1]] if i % 3 == 0 else [source] for i, source in enumerate(sources)],
    )


def learner(objective=None, model=None, workers=WORKERS, decay=0.5, rate=0.01, **candidates):
    data = copies(30)
    return SequenceLearner(
        model or tiny(dropout=0.1),
        data,
        copies(6, seed=1),
        Verdict(copies(6, seed=1)),
        objective=objective or Objective("raml", 0.5),
        candidates=CandidateSettings(**{"size": 4} | candidates),
        optimizer=Optimizer(learning_rate=rate, decay=decay),
        training=SequenceTraining(batch_size=8, seed=3),
        workers=workers,
    )


@pytest.mark.parametrize("candidates", [{}, {"sampler": "model", "estimator": "importance"}])
def test_training_lowers_the_loss_and_ends_alike_after_an_interruption(candidates):
    whole, broken = learner(**candidates), learner(**candidates)
    losses = []
    for epoch in range(4):
        whole.train(epoch, 0, whole.steps, [True])
        losses.append(whole.end_epoch([True])["loss"][0])
        if epoch == 1:
            broken.train(epoch, 0, 2, [True])
            state = broken.state()
            broken = learner(model=tiny(dropout=0.1, seed=9), **candidates)
            broken.load_state(state)
            broken.train(epoch, 2, broken.steps, [True])
        else:
            broken.train(epoch, 0, 2, [True])
            broken.train(epoch, 2, broken.steps, [True])
        broken.end_epoch([True])
    assert losses[-1] < losses[0]
    for name, value in whole.state().items():
        assert torch.equal(value, broken.state()[name]), name


def test_the_rate_falls_when_perplexity_rises():
    trained = learner(Objective("ml"), rate=2.0)  # far too high
    rates, perplexities = [], []
    for epoch in range(6):
        trained.train(epoch, 0, trained.steps, [True])
        measured = trained.end_epoch([True])
        rates += measured["learning_rate"]
        perplexities += measured["dev_perplexity"]
    for i in range(1, 6):
        fell = perplexities[i - 1] > min(perplexities[: i - 1], default=math.inf)
        assert rates[i] == pytest.approx(rates[i - 1] * (0.5 if fell else 1.0))
    assert trained.state()["learning_rate"] < 2.0


@torch.no_grad()
def test_perplexity_is_that_of_words_and_ends():
    trained, examples = learner(), copies(5, seed=4)
    source, references = (
        examples.take_inputs(torch.arange(5)),
        examples.take_references(torch.arange(5)),
    )
    total = float(trained._model.eval().log_prob(source, references).sum())
    assert perplexity(trained._model, examples) == pytest.approx(math.exp(-total / examples.words))
    assert examples.words == sum(
        len(words) + 1 for several in references.unpack() for words in several
    )


def test_a_loss_that_is_not_finite_names_its_batch():
    trained = learner()
    with torch.no_grad():
        trained._model.attentional.fill_(math.nan)
    with pytest.raises(NonFiniteLossError, match="epoch 1, step 0") as caught:
        trained.train(0, 0, trained.steps, [True])
    assert len(caught.value.batch["examples"]) == 8


def test_batches_hold_every_example_once_and_differ_from_epoch_to_epoch():
    examples = copies(30)
    first, second = (examples.batches(8, 0, epoch) for epoch in (0, 1))
    assert sorted(torch.cat(first).tolist()) == list(range(30))
    assert [len(batch) for batch in first] == [8, 8, 8, 6]
    assert [batch.tolist() for batch in first] != [batch.tolist() for batch in second]
    lengths = [examples.references.lengths[examples._first[batch.numpy()]] for batch in first]
    assert np.mean([part.max() - part.min() for part in lengths]) < 3


def test_examples_need_references():
    with pytest.raises(DataError, match="input 1 has none"):
        Examples([[4], [5]], [[[4]], []])
    with pytest.raises(DataError, match="each of 2 inputs, got 1"):
        Examples([[4], [5]], [[[4]]])
