"""Learners whose candidates come from the model or from near inputs.

What they draw and when, and runs that are interrupted.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from softq.errors import RunError
from softq.lab.loop import Evaluation
from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.neural import learner as learners
from softq.neural.examples import Examples, Vectors
from softq.neural.learner import SequenceLearner
from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.neighbours import NeighbourReferences
from softq.neural.recipe import CandidateSettings, Optimizer, SequenceTraining

pytestmark = pytest.mark.usefixtures("one_thread")

WORKERS = Workers(torch.device("cpu"))
VOCAB, SIZE = 12, 5


def examples(count, seed=0):
    """Vectors, and sentences that follow from them."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(count, SIZE)).astype(np.float32)
    words = [(4 + np.abs(vector * 3).astype(int) % (VOCAB - 4)).tolist() for vector in vectors]
    return Examples(
        Vectors(vectors),
        [[said, said[:-1]] if i % 3 == 0 else [said[: 2 + i % 3]] for i, said in enumerate(words)],
    )


class Verdict:
    """A judge that prefers low perplexity."""

    def __init__(self, parts):
        self.parts = parts

    def score(self, model):
        everything = torch.arange(len(self.parts))
        return float(
            model.log_prob(
                self.parts.take_inputs(everything), self.parts.take_references(everything)
            ).mean()
        )

    def judge(self, model):
        return Evaluation({}, [{"score": self.score(model)}])

    def notes(self, model):
        return {"about": torch.zeros(1)}


def tiny(dropout=0.1, seed=0, layers=1):
    return ImageCaptioner(
        SIZE, VOCAB, embedding=6, hidden=6, dropout=dropout, layers=layers, seed=seed
    )


NEIGHBOURS = torch.stack([torch.arange(30).roll(-1), torch.arange(30).roll(-2)], 1)


def learner(objective=None, model=None, near=None, workers=WORKERS, data=None, **candidates):
    data = data or examples(30)
    return SequenceLearner(
        model or tiny(),
        data,
        examples(6, seed=1),
        Verdict(examples(6, seed=1)),
        objective=objective or Objective("raml", 0.5),
        candidates=CandidateSettings(**{"size": 4} | candidates),
        optimizer=Optimizer(learning_rate=0.01),
        training=SequenceTraining(batch_size=8, seed=3),
        near=near or NeighbourReferences(data, NEIGHBOURS[: len(data)]),
        workers=workers,
    )


def samples_of(learned, epoch):
    """Draws from the model as it is, one by one for groups of examples as a learner has them, from the seed of an epoch."""
    generator = torch.Generator().manual_seed(
        learners.generator_for(3, epoch, learners._SAMPLES).initial_seed()
    )
    data = learned._train
    longest = int(data.references.lengths.max()) + learners._MORE_WORDS
    found = learned._model.eval().generate(
        data.take_inputs(torch.arange(len(data))),
        method="sample",
        size=4,
        max_length=longest,
        generator=generator,
    )
    return found.sentences.unpack()


@pytest.mark.parametrize("objective", [Objective("raml", 0.5), Objective("sqdml", 0.5)])
def test_draws_are_those_of_the_model_before_the_epoch(objective):
    trained = learner(objective, sampler="model", refresh="epoch")
    before = samples_of(trained, 0)
    targets, make = [], trained._targets

    def watched(references, generator, *given):
        targets.append((references, given))
        return make(references, generator, *given)

    trained._targets = watched
    trained.train(0, 0, trained.steps, [True])
    assert trained._samples.unpack() == before
    assert trained._model.training
    everything = trained._train.take_references(torch.arange(30)).unpack()
    rows = [
        (words, draws)
        for refs, (given,) in targets
        for words, draws in zip(refs.unpack(), given.sentences.unpack(), strict=True)
    ]
    assert len(rows) == 30
    for words, draws in rows:  # each example has its own draws
        assert (words, draws) in list(zip(everything, before, strict=True))
    after = samples_of(trained, 0)
    assert after != before  # the model has learnt
    expected = samples_of(trained, 1)
    trained.train(1, 0, 1, [True])
    assert trained._samples.unpack() == expected
    assert expected != after  # and the seed is of the epoch


def test_many_examples_are_said_in_groups(monkeypatch):
    whole = learner(sampler="model", refresh="epoch")
    monkeypatch.setattr(learners, "_SAMPLES_TOGETHER", 28)  # seven examples at a time
    parts = learner(sampler="model", refresh="epoch")
    for trained in (whole, parts):
        trained._sample_all(0)
    assert parts._samples.lengths.shape == whole._samples.lengths.shape == (30, 4)
    longest = int(whole._train.references.lengths.max()) + learners._MORE_WORDS
    assert int(parts._samples.lengths.max()) <= longest
    assert parts._samples.tokens.dtype == torch.int32
    for row, several in enumerate(parts._samples.unpack()):
        assert len(several) == 4
        assert all(4 - 1 <= word < VOCAB for words in several for word in words), row


MIXES = [
    {"sampler": "model", "refresh": "epoch"},
    {"sampler": "model", "refresh": "step"},
    {"sampler": "near"},
    {"sampler": "model+near+recombined", "refresh": "epoch", "size": 9},
    {"sampler": "near+model+ngram", "refresh": "step", "size": 9, "k": 5},
]


@pytest.mark.parametrize("mix", MIXES, ids=lambda mix: "-".join(map(str, mix.values())))
@pytest.mark.parametrize("layers", [1, 2])
def test_training_lowers_the_loss_and_ends_alike_after_an_interruption(mix, layers):
    def make(seed=0):
        return learner(Objective("sqdml", 0.5), model=tiny(seed=seed, layers=layers), **mix)

    whole, broken = make(), make()
    losses = []
    for epoch in range(4):
        whole.train(epoch, 0, whole.steps, [True])
        losses.append(whole.end_epoch([True])["loss"][0])
        broken.train(epoch, 0, 2, [True])
        if epoch in (1, 2):  # inside an epoch, and between two
            state = {name: value.clone() for name, value in broken.state().items()}
            assert ("samples.tokens" in state) == (
                "model" in mix["sampler"] and mix["refresh"] == "epoch"
            )
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


def test_draws_of_a_checkpoint_matter():
    trained = learner(sampler="model", refresh="epoch")
    trained.train(0, 0, 2, [True])
    state = {name: value.clone() for name, value in trained.state().items()}
    trained._close()
    found = []
    for change in (0, 1):
        resumed = learner(model=tiny(seed=9), sampler="model", refresh="epoch")
        resumed.load_state(
            state | {"samples.lengths": (state["samples.lengths"] - change).clamp(min=0)}
        )
        resumed.train(0, 2, resumed.steps, [True])
        found.append(resumed.state())
    assert not torch.equal(found[0]["model.output.weight"], found[1]["model.output.weight"])


def test_draws_in_steps_are_those_of_the_model_at_the_time():
    trained, seen = learner(sampler="model", refresh="step"), []
    say = trained._sample

    def watched(inputs, longest, generator):
        seen.append(trained._model.output.bias.detach().clone())
        assert longest <= SIZE + learners._MORE_WORDS
        return say(inputs, longest, generator)

    trained._sample = watched
    trained.train(0, 0, trained.steps, [True])
    assert len(seen) == trained.steps
    assert all(not torch.equal(*pair) for pair in itertools.pairwise(seen))
    assert trained._samples is None


@pytest.mark.parametrize(
    "mix",
    [
        {"sampler": "near"},
        {"sampler": "near+recombined", "size": 8},
        {"sampler": "model+near", "size": 8},
    ],
)
def test_near_candidates_reach_the_target(mix):
    trained = learner(Objective("sqdml", 0.5), **mix)
    data, seen = trained._train, []
    steps = trained._steps

    class Watched:
        def __call__(self, batch, count, seed):
            seen.append(batch)
            return steps(batch, count, seed)

        def __getattr__(self, name):
            return getattr(steps, name)

    trained._steps = Watched()
    numbers = torch.cat(trained._batches(0))
    trained.train(0, 0, trained.steps, [True])
    references = data.take_references(torch.arange(30)).unpack()
    lent = 0
    rows = [
        row
        for batch in seen
        for row in zip(batch.tokens, batch.lengths, batch.weights, strict=True)
    ]
    for number, (tokens, lengths, weights) in zip(numbers.tolist(), rows, strict=True):
        there = [
            words[:length].tolist()
            for words, length, weight in zip(tokens, lengths, weights, strict=True)
            if weight > 0
        ]
        assert float(weights.sum()) == pytest.approx(1)
        assert all(words in there for words in references[number])
        near = [
            words
            for place in (1, 2)
            for words in references[(number + place) % 30]
            if words not in references[number]
        ]
        lent += sum(words in near for words in there)
        if mix["sampler"] == "near":
            assert all(words in near for words in there if words not in references[number])
            assert len(there) == len(
                {tuple(words) for words in [*references[number], *near]}
            )  # four of them at most are lent
    assert lent >= 45


def test_ml_asks_nobody():
    def nobody(numbers, size, generator):
        raise AssertionError

    trained = learner(Objective("ml"), near=nobody, sampler="model+near", refresh="epoch")
    trained.train(0, 0, trained.steps, [True])
    assert trained._samples is None
    assert "samples.tokens" not in trained.state()


def test_a_run_goes_on_with_the_data_it_began_with():
    begun = learner()
    data = examples(30)
    moved = Examples(
        Vectors(data.inputs.table + 1),
        [list(several) for several in data.take_references(torch.arange(30)).unpack()],
    )
    assert torch.equal(learner(data=examples(30))._data_fingerprint(), begun._data_fingerprint())
    with pytest.raises(RunError, match="differs from that with which it began"):
        learner(data=moved).load_state(begun.state())


def test_vectors_that_are_shared_are_known_by_their_rows():
    table = np.eye(3, dtype=np.float16)
    one, two = (
        b"".join(Vectors(table, np.array(rows)).contents()) for rows in ([0, 0, 1], [0, 1, 1])
    )
    assert one != two
    (taken,) = Vectors(table, np.array([2, 0, 2])).take(np.array([0, 2]))
    assert taken.dtype == torch.float32
    assert taken.tolist() == [[0, 0, 1]] * 2
