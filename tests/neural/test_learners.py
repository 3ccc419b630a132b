"""Learners of models of sentences.

What they sample and when, runs that are interrupted, learning rates, what they refuse.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from sequence_learners import SIZE, captions, copies, learner, model_of, train_epochs
from softq.errors import DataError, RunError
from softq.lab.loop import NonFiniteLossError
from softq.lab.recipe import Objective
from softq.neural import learner as learners
from softq.neural.examples import Examples, Vectors
from softq.neural.perplexity import perplexity
from softq.neural.recipe import Optimizer, SequenceTraining

pytestmark = pytest.mark.usefixtures("one_thread")

MIXES = [
    ("translator", {}),
    ("translator", {"sampler": "model", "estimator": "importance"}),
    ("captioner", {"sampler": "model", "refresh": "epoch"}),
    ("deep captioner", {"sampler": "model", "refresh": "step"}),
    ("captioner", {"sampler": "near"}),
    ("deep captioner", {"sampler": "model+near+recombined", "refresh": "epoch", "size": 9}),
    ("captioner", {"sampler": "near+model+ngram", "refresh": "step", "size": 9, "k": 5}),
]


def copied(state):
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize(("kind", "mix"), MIXES)
def test_training_lowers_the_loss_and_ends_alike_after_an_interruption(kind, mix):
    def make(seed=0):
        return learner(kind, Objective("sqdml", 0.5), model=model_of(kind, seed=seed), **mix)

    whole, broken = make(), make()
    losses = []
    for epoch in range(4):
        whole.train(epoch, 0, whole.steps, [True])
        losses.append(whole.end_epoch([True])["loss"][0])
        broken.train(epoch, 0, 2, [True])
        if epoch in (1, 2):  # inside an epoch, and between two
            state = copied(broken.state())
            assert ("samples.tokens" in state) == (mix.get("refresh") == "epoch")
            broken._close()
            broken = make(seed=9)
            broken.load_state(state)
        broken.train(epoch, 2, broken.steps, [True])
        broken.end_epoch([True])
        if epoch == 0:
            state = broken.state()
            broken = make(seed=8)
            broken.load_state(state)
    assert losses[-1] < losses[0]
    expected, found = whole.state(), broken.state()
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    assert "samples.tokens" not in expected  # of an epoch that is over nothing is kept


def test_samples_of_an_epoch_are_those_of_the_model_before_it(monkeypatch):
    trained = learner("captioner", sampler="model", refresh="epoch")
    before, everything = copied(trained.state()), torch.arange(30)
    trained.train(0, 0, 2, [True])
    found = trained._samples.unpack()
    seed = learners.generator_for(3, 0, learners._SAMPLES).initial_seed()
    same = learner("captioner", sampler="model", refresh="epoch")
    same.load_state(before)
    wanted = same._model.eval().generate(
        same._train.take_inputs(everything),
        method="sample",
        size=4,
        max_length=int(same._train.references.lengths.max()) + learners._MORE_WORDS,
        generator=torch.Generator().manual_seed(seed),
    )
    assert found == wanted.sentences.unpack()
    # they matter to training, and are those of a checkpoint
    state = copied(trained.state())
    trained._close()
    weights = []
    for change in (0, 1):
        resumed = learner("captioner", sampler="model", refresh="epoch")
        lengths = (state["samples.lengths"] - change).clamp(min=0)
        resumed.load_state(state | {"samples.lengths": lengths})
        resumed.train(0, 2, resumed.steps, [True])
        weights.append(resumed.state()["model.output.weight"])
    assert not torch.equal(*weights)
    # of many examples they are drawn in groups
    monkeypatch.setattr(learners, "_SAMPLES_TOGETHER", 28)
    grouped = learner("captioner", sampler="model", refresh="epoch")
    grouped.train(0, 0, 1, [True])
    assert grouped._samples.lengths.shape == (30, 4)


def test_samples_in_steps_are_those_of_the_model_at_the_time():
    trained, seen = learner("captioner", sampler="model", refresh="step"), []
    sample = trained._sample

    def watched(inputs, longest, generator):
        seen.append(trained._model.output.bias.detach().clone())
        assert longest <= SIZE + learners._MORE_WORDS
        return sample(inputs, longest, generator)

    trained._sample = watched
    trained.train(0, 0, trained.steps, [True])
    assert len(seen) == trained.steps
    assert all(not torch.equal(*pair) for pair in itertools.pairwise(seen))


@pytest.mark.parametrize(
    "mix",
    [
        {"sampler": "near"},
        {"sampler": "near+recombined", "size": 8},
        {"sampler": "model+near", "size": 8},
    ],
)
def test_near_candidates_reach_the_target(mix):
    trained = learner("captioner", Objective("sqdml", 0.5), **mix)
    seen, steps = [], trained._steps
    trained._steps = lambda batch, *given: seen.append(batch) or steps(batch, *given)
    numbers = torch.cat(trained._batches(0)).tolist()
    trained.train(0, 0, trained.steps, [True])
    references = trained._train.take_references(torch.arange(30)).unpack()
    batches = [zip(batch.tokens, batch.lengths, batch.weights, strict=True) for batch in seen]
    rows, lent = itertools.chain(*batches), 0
    for number, (tokens, lengths, weights) in zip(numbers, rows, strict=True):
        own = references[number]
        there = [
            words[:length].tolist()
            for words, length, weight in zip(tokens, lengths, weights, strict=True)
            if weight > 0
        ]
        near = [
            words
            for place in (1, 2)
            for words in references[(number + place) % 30]
            if words not in own
        ]
        assert float(weights.sum()) == pytest.approx(1)
        assert all(words in there for words in own)
        lent += sum(words in near for words in there)
        if mix["sampler"] == "near":  # four of them at most are lent
            assert sorted(there) == sorted(map(list, {tuple(words) for words in [*own, *near]}))
    assert lent >= 45


def test_ml_asks_nobody():
    def nobody(numbers, size, generator):
        raise AssertionError

    options = {"near": nobody, "sampler": "model+near", "refresh": "epoch"}
    trained = learner("captioner", Objective("ml"), **options)
    trained.train(0, 0, trained.steps, [True])
    assert "samples.tokens" not in trained.state()


def test_a_run_goes_on_with_the_data_it_began_with():
    data = captions(30)
    references = [list(several) for several in data.take_references(torch.arange(30)).unpack()]
    moved = Examples(Vectors(data.inputs.table + 1), references)
    for kind, other in (("captioner", moved), ("translator", copies(30, seed=5))):
        begun = learner(kind).state()
        learner(kind).load_state(begun)
        with pytest.raises(RunError, match="differs from that with which it began"):
            learner(kind, data=other).load_state(begun)


# --- learning rates ---------------------------------------------------------------------------------------


def rates(trained, epochs):
    return [row["learning_rate"][0] for row in train_epochs(trained, epochs)]


def test_the_rate_falls_when_perplexity_rises():
    trained = learner("translator", Objective("ml"), optimizer=Optimizer(learning_rate=2.0))
    measured = train_epochs(trained, 6)  # the rate is far too high
    perplexities = [row["dev_perplexity"][0] for row in measured]
    found = [row["learning_rate"][0] for row in measured]
    for i in range(1, 6):
        fell = perplexities[i - 1] > min(perplexities[: i - 1], default=math.inf)
        assert found[i] == pytest.approx(found[i - 1] * (0.5 if fell else 1.0))
    assert trained.state()["learning_rate"] < 2.0


def test_the_rate_has_a_floor():
    optimizer = Optimizer(learning_rate=0.01, min_learning_rate=0.004)
    trained = learner("translator", Objective("ml"), optimizer=optimizer)
    never_better = {"lowest_perplexity": torch.tensor(0.0, dtype=torch.float64)}
    trained.load_state(trained.state() | never_better)
    assert rates(trained, 4) == pytest.approx([0.01, 0.005, 0.004, 0.004])


def test_a_rate_may_fall_evenly_to_nothing():
    options = {
        "optimizer": Optimizer(learning_rate=0.01, schedule="linear"),
        "training": SequenceTraining(epochs=4, batch_size=8),
    }
    trained = learner("translator", Objective("ml"), **options)
    first = rates(trained, 2)
    resumed = learner("translator", Objective("ml"), **options)
    resumed.load_state(trained.state())
    assert first + rates(resumed, 2) == pytest.approx([0.01, 0.0075, 0.005, 0.0025])


# --- what is not finite -----------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_names_its_batch():
    trained = learner("translator")
    with torch.no_grad():
        trained._model.attentional.fill_(math.nan)
    with pytest.raises(NonFiniteLossError, match="epoch 1, step 0") as caught:
        trained.train(0, 0, trained.steps, [True])
    assert len(caught.value.batch["examples"]) == 8


def test_a_gradient_that_is_not_finite_stops_it_too():
    trained = learner("translator", Objective("ml"))
    trained.train(0, 0, 1, [True])
    trained._model.attentional.register_hook(lambda gradient: gradient * math.inf)
    before = trained._model.attentional.detach().clone()
    with pytest.raises(NonFiniteLossError, match="epoch 1, step 1, or its gradient") as caught:
        trained.train(0, 1, trained.steps, [True])
    assert torch.equal(caught.value.batch["examples"], trained._batches(0)[1])
    assert torch.equal(trained._model.attentional, before)


# --- examples ---------------------------------------------------------------------------------------------


@torch.no_grad()
def test_perplexity_is_that_of_words_and_ends():
    model, examples, index = model_of("translator").eval(), copies(5, seed=4), torch.arange(5)
    source, references = examples.take_inputs(index), examples.take_references(index)
    total = float(model.log_prob(source, references).sum())
    assert perplexity(model, examples) == pytest.approx(math.exp(-total / examples.words))
    words = [words for several in references.unpack() for words in several]
    assert examples.words == sum(map(len, words)) + len(words)


def test_batches_hold_every_example_once_and_differ_from_epoch_to_epoch():
    examples = copies(30)
    first, second = (examples.batches(8, 0, epoch) for epoch in (0, 1))
    assert sorted(torch.cat(first).tolist()) == list(range(30))
    assert [len(batch) for batch in first] == [8, 8, 8, 6]
    assert [batch.tolist() for batch in first] != [batch.tolist() for batch in second]
    lengths = [examples.take_references(batch).lengths[:, 0] for batch in first]
    assert np.mean([int(part.max() - part.min()) for part in lengths]) < 3


def test_vectors_that_are_shared_are_known_by_their_rows():
    table = np.eye(3, dtype=np.float16)
    one, two = (Vectors(table, np.array(rows)).arrays() for rows in ([0, 0, 1], [0, 1, 1]))
    assert [array.tolist() for array in one] != [array.tolist() for array in two]
    (taken,) = Vectors(table, np.array([2, 0, 2])).take(np.array([0, 2]))
    assert taken.dtype == torch.float32
    assert taken.tolist() == [[0, 0, 1]] * 2


def test_examples_need_references():
    with pytest.raises(DataError, match="input 1 has none"):
        Examples([[4], [5]], [[[4]], []])
    with pytest.raises(DataError, match="each of 2 inputs, got 1"):
        Examples([[4], [5]], [[[4]]])
