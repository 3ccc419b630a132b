"""Candidates of several kinds in one set: their weights, recipes that ask for them, learners that draw them from the model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import softq
from softq import distributions
from softq.errors import RecipeError
from softq.generation import learner as learners
from softq.generation.candidates import TargetMaker, target_signature
from softq.generation.examples import Examples, Vectors
from softq.generation.learner import SequenceLearner
from softq.generation.near import NearReferences
from softq.generation.recipe import Candidates, Optimizer, SequenceTraining
from softq.models.captioner import ImageCaptioner
from softq.recipe import Objective, build, parse_flags
from softq.samplers import NgramReplacement, Recombination
from softq.sentences import Sentences
from softq.tasks.captioning_recipe import CaptioningRecipe
from softq.tasks.translation_recipe import TranslationRecipe
from softq.train import OneProcess

pytestmark = pytest.mark.usefixtures("one_thread")

WORKERS = OneProcess(torch.device("cpu"))
VOCAB, SIZE = 12, 5
BLEU = softq.rewards.SentenceBLEU()
REFERENCES = Sentences.pack([[[5, 6, 7, 8], [5, 9, 7], [5, 6, 7, 8]], [[7, 7, 4]]])  # one of them is there twice
GIVEN = distributions.Candidates(*Sentences.pack([[[5, 9, 7], [5, 6, 9, 8], [5, 6, 9, 8]], [[7, 4], [11, 11]]]))  # a reference among them
OTHERS = distributions.Candidates(*Sentences.pack([[[10], [5, 6, 9, 8]], [[7, 7, 5]]]))


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def of_size(cands, size):
    """The same with some missing behind them, as whoever gives them has it."""
    more = size - cands.lengths.shape[1]
    return distributions.Candidates(
        torch.nn.functional.pad(cands.tokens, (0, 0, 0, more)), torch.nn.functional.pad(cands.lengths, (0, more), value=-1)
    )


# --- targets ----------------------------------------------------------------------------------------------


def weights_of(target):
    """What each sentence of each example weighs, whatever the order."""
    found = []
    for sentences, weights in zip(target.outputs.tokens, target.weights, strict=True):
        row = {}
        for words, weight in zip(sentences.tolist(), weights.tolist(), strict=True):
            if weight:
                key = tuple(word for word in words if word)
                assert key not in row
                row[key] = weight
        found.append(row)
    return found


def by_hand(name, sentences, references, tau):
    """Softmax over a set of distinct sentences of the reward with each reference (mixed after it), or of its mean over references."""
    sentences = sorted(sentences)
    rewards = BLEU(*Sentences.pack([[list(words) for words in sentences]]), *Sentences.pack([references]))[0].double()
    weights = (rewards / tau).softmax(0).mean(1) if name == "raml" else (rewards.mean(1) / tau).softmax(0)
    return {words: pytest.approx(weight, rel=1e-9) for words, weight in zip(sentences, weights.tolist(), strict=True)}


def all_of(sets, references):
    sentences = [set(map(tuple, several)) for several in references]
    for each in sets:
        for row, several in zip(sentences, each.sentences.unpack(), strict=True):
            row |= set(map(tuple, several))
    return sentences


@pytest.mark.parametrize("name", ["raml", "sqdml"])
@pytest.mark.parametrize(
    ("sampler", "given"),
    [
        ("recombined", []),
        ("near", [GIVEN]),
        ("model", [GIVEN]),
        ("model+near", [GIVEN, OTHERS]),
        ("model+recombined", [GIVEN]),
        ("near+recombined", [OTHERS]),
        ("ngram+recombined", []),
        ("recombined+ngram+near+model", [GIVEN, OTHERS]),
    ],
)
def test_weights_are_those_of_the_joined_set(name, sampler, given):
    settings = Candidates(sampler=sampler, size=6 * len(sampler.split("+")), max_n=2)
    made = TargetMaker(Objective(name, 0.4), settings, VOCAB)(REFERENCES, gen(), *given)
    generator, sets = gen(), list(given)
    if "ngram" in sampler:
        sets.append(NgramReplacement(VOCAB, 2, 6, specials=range(4))(REFERENCES, generator=generator))
    if "recombined" in sampler:
        sets.append(Recombination(6, 2)(REFERENCES, generator=generator))
    joined = sets[0].beside(*sets[1:]).with_references(REFERENCES)
    expected = getattr(softq, name)(joined, REFERENCES, 0.4, BLEU)
    assert weights_of(made) == [{words: pytest.approx(weight) for words, weight in row.items()} for row in weights_of(expected)]
    references = REFERENCES.unpack()
    sentences = all_of(sets, references)
    assert weights_of(made) == [by_hand(name, *both, 0.4) for both in zip(sentences, references, strict=True)]
    torch.testing.assert_close(made.weights.sum(1), torch.ones(2, dtype=torch.float64))
    assert made.is_reference.sum(1).tolist() == [2, 1]  # each once
    assert made.outputs.sentences.unpack()[0][:2] == [[5, 6, 7, 8], [5, 9, 7]]


def test_an_example_without_any_other_candidate_has_its_references():
    nothing = distributions.Candidates(torch.zeros((2, 3, 0), dtype=torch.int64), torch.full((2, 3), -1))
    made = TargetMaker(Objective("sqdml", 0.4), Candidates(sampler="near", size=3), VOCAB)(REFERENCES, gen(), nothing)
    assert weights_of(made)[1] == {(7, 7, 4): 1.0}
    alone = TargetMaker(Objective("raml", 0.4), Candidates(sampler="recombined", size=6), VOCAB)(REFERENCES, gen())
    assert weights_of(alone)[1] == {(7, 7, 4): 1.0}  # one reference has nothing to be recombined with


@pytest.mark.parametrize("estimator", ["set", "paper"])
def test_of_a_mixture_a_step_may_use_some(estimator):
    settings = Candidates(sampler="recombined+near", size=12, k=4, estimator=estimator, max_n=2)
    make = TargetMaker(Objective("sqdml", 0.4), settings, VOCAB)
    seen = [make(REFERENCES, gen(seed), OTHERS) for seed in range(10)]
    for target in seen:
        assert target.weights.shape == (2, 4)
        assert target.is_reference.sum(1).tolist()[1] == 1
    assert len({words for target in seen for words in weights_of(target)[0]}) > 4
    if estimator == "set":  # weights sum to one on average; five standard errors are left out once in a million times
        sums = torch.stack([make(REFERENCES, gen(seed), OTHERS).weights.sum(1) for seed in range(300)])[:, 0]
        assert abs(float(sums.mean()) - 1) < 5 * float(sums.std()) / 300**0.5
        assert float(sums.std()) > 0


@pytest.mark.parametrize(
    "options",
    [
        {"sampler": "ngram+near+model", "size": 12, "k": 12},
        {"sampler": "recombined+near+model", "size": 12, "k": 12},
        {"sampler": "recombined+near+model", "size": 12},
        {"sampler": "recombined+near+model", "size": 12, "k": 3},
    ],
)
def test_references_leave_room_in_every_part_of_a_mixture(options):
    many = Sentences.pack([[[5, word, 7, 8] for word in range(4, 10)], [[7, 7, 4]]])
    make = TargetMaker(Objective("sqdml", 0.4), Candidates(**options), VOCAB)
    for seed in range(5):
        target = make(many, gen(seed), of_size(GIVEN, 4), of_size(OTHERS, 4))
        taken, alone = target.is_reference.sum(1).tolist()
        assert 1 <= taken <= min(4, options.get("k", 4)) // 2  # of the four that each of three makes
        assert alone == 1


def test_what_is_wanted_of_the_caller():
    make = TargetMaker(Objective("raml", 0.4), Candidates(sampler="model+near"), VOCAB)
    assert (make.wants("model"), make.wants("near"), make.wants("ngram")) == (True, True, False)
    ml = TargetMaker(Objective("ml"), Candidates(sampler="model+near"), VOCAB)
    assert not ml.wants("model")
    assert ml(REFERENCES, gen()).weights[1].tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"expected candidates of all of model\+near, got 1 sets"):
        make(REFERENCES, gen(), GIVEN)


# --- recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "beam"}, "sampler must be one of ngram, hamming, model, near, recombined, or several joined by .*got 'beam'"),
        ({"sampler": "model+beam"}, r"several joined by \+, got 'model\+beam'"),
        ({"sampler": "model+"}, r"got 'model\+'"),
        ({"sampler": ""}, "got ''"),
        ({"sampler": "model+near+model"}, r"got 'model\+near\+model'"),
        ({"sampler": "hamming+near"}, r"cannot be joined with others, got 'hamming\+near'"),
        ({"sampler": "model+recombined", "estimator": "importance"}, r"needs the probability of a draw.*got sampler = model\+recombined"),
        ({"sampler": "near", "estimator": "importance"}, "needs the probability of a draw.*got sampler = near"),
        ({"sampler": "recombined", "estimator": "importance"}, "needs the probability of a draw"),
        ({"sampler": "model", "estimator": "importance", "refresh": "epoch"}, "estimator = importance.*refresh = step"),
        ({"refresh": "epoch"}, "refresh = epoch is for what the model says, sampler = model, got sampler = ngram"),
        ({"sampler": "near+recombined", "refresh": "epoch"}, r"got sampler = near\+recombined"),
        ({"sampler": "near", "neighbours": 0}, "neighbours must be at least 1"),
        ({"sampler": "ngram+recombined", "size": 3}, "size must be at least 4"),
        ({"sampler": "model+near+recombined", "size": 11, "k": 10}, "k must not exceed size, got k = 10 of 9"),
        ({"sampler": "model+near", "reward": "hamming"}, "draw them with sampler = hamming"),
        ({"sampler": "model+near", "estimator": "paper"}, "needs k"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(RecipeError, match=message):
        Candidates(**options)


def test_what_does(tmp_path):
    for options in ({"sampler": "near", "size": 1}, {"sampler": "model", "refresh": "epoch", "k": 2}, {"sampler": "model+near", "size": 2}):
        Candidates(**options)
    shares = {sampler: Candidates(sampler=sampler, size=11).share for sampler in ("near", "near+model", "near+model+ngram")}
    assert list(shares.values()) == [11, 5, 3]


RAML = ["--objective", "raml", "--tau", "1"]


@pytest.mark.parametrize("recipe_type", [CaptioningRecipe, TranslationRecipe])
def test_recombination_needs_several_references(recipe_type):
    flags = [*RAML, "--sampler", "model+recombined"]
    assert build(recipe_type, parse_flags(recipe_type, flags)).candidates.samplers == ("model", "recombined")
    with pytest.raises(RecipeError, match=r"sampler = recombined takes n-grams of other references, and merge = false leaves .* with one"):
        build(recipe_type, parse_flags(recipe_type, [*flags, "--no-merge"]))


def test_sentences_have_no_neighbours():
    with pytest.raises(RecipeError, match="sampler = near needs inputs that have features, such as images"):
        build(TranslationRecipe, parse_flags(TranslationRecipe, [*RAML, "--sampler", "near+ngram"]))
    near = build(CaptioningRecipe, parse_flags(CaptioningRecipe, [*RAML, "--sampler", "near+ngram", "--neighbours", "7"]))
    assert near.candidates.neighbours == 7


def test_signatures_tell_targets_apart():
    raml = Objective("raml", 0.4)
    begin = "raml:tau=0.4:sentence-bleu:order=4:smoothing=nltk3:bp=on:effective-order=off"
    expected = {
        "recombined": "recombined:n=4:size=10",
        "near": "near:of=10:size=10",
        "model": "model:size=10",
        "model+recombined": "model+recombined:n=4:size=10",
    }
    for sampler, text in expected.items():
        assert target_signature(raml, Candidates(sampler=sampler)) == f"{begin}:{text}:estimator=set"
    every = [
        target_signature(raml, Candidates(**options))
        for options in (
            {"sampler": "model"},
            {"sampler": "model", "refresh": "epoch"},
            {"sampler": "near"},
            {"sampler": "near", "neighbours": 5},
            {"sampler": "recombined"},
            {"sampler": "recombined", "max_n": 2},
            {"sampler": "near+recombined"},
            {"sampler": "near+recombined", "k": 4},
        )
    ]
    assert len(set(every)) == len(every)
    assert target_signature(Objective("ml"), Candidates(sampler="near")) == "ml"


# --- learners ---------------------------------------------------------------------------------------------


def examples(count, seed=0):
    """Vectors, and sentences that follow from them."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(count, SIZE)).astype(np.float32)
    words = [(4 + np.abs(vector * 3).astype(int) % (VOCAB - 4)).tolist() for vector in vectors]
    return Examples(Vectors(vectors), [[said, said[:-1]] if i % 3 == 0 else [said[: 2 + i % 3]] for i, said in enumerate(words)])


class Verdict:
    """A judge that prefers low perplexity."""

    def __init__(self, parts):
        self.parts = parts

    def score(self, model):
        everything = torch.arange(len(self.parts))
        return float(model.log_prob(self.parts.take_inputs(everything), self.parts.take_references(everything)).mean())

    def measures(self, model):
        return {"test": self.score(model)}

    def notes(self, model):
        return {"about": torch.zeros(1)}


def tiny(dropout=0.1, seed=0, layers=1):
    return ImageCaptioner(SIZE, VOCAB, embedding=6, hidden=6, dropout=dropout, layers=layers, seed=seed)


NEIGHBOURS = torch.stack([torch.arange(30).roll(-1), torch.arange(30).roll(-2)], 1)


def learner(objective=None, model=None, near=None, workers=WORKERS, data=None, **candidates):
    data = data or examples(30)
    return SequenceLearner(
        model or tiny(),
        data,
        examples(6, seed=1),
        Verdict(examples(6, seed=1)),
        objective=objective or Objective("raml", 0.5),
        candidates=Candidates(**{"size": 4} | candidates),
        optimizer=Optimizer(learning_rate=0.01),
        training=SequenceTraining(batch_size=8, seed=3),
        near=near or NearReferences(data, NEIGHBOURS[: len(data)]),
        workers=workers,
    )


def said_of(learned, epoch):
    """Draws from the model as it is, one by one for groups of examples as a learner has them, from the seed of an epoch."""
    generator = torch.Generator().manual_seed(learners.generator_for(3, epoch, learners._SAID).initial_seed())
    data = learned._train
    longest = int(data.references.lengths.max()) + learners._MORE_WORDS
    found = learned._model.eval().generate(
        data.take_inputs(torch.arange(len(data))), method="sample", size=4, max_length=longest, generator=generator
    )
    return found.sentences.unpack()


@pytest.mark.parametrize("objective", [Objective("raml", 0.5), Objective("sqdml", 0.5)])
def test_draws_are_those_of_the_model_before_the_epoch(objective):
    trained = learner(objective, sampler="model", refresh="epoch")
    before = said_of(trained, 0)
    targets, make = [], trained._target

    class Watched(TargetMaker):
        def __call__(self, references, generator, *given):
            targets.append((references, given))
            return super().__call__(references, generator, *given)

    trained._target = Watched(objective, make.settings, VOCAB)
    trained.train(0, 0, trained.steps, [True])
    assert trained._said.unpack() == before
    assert trained._model.training
    everything = trained._train.take_references(torch.arange(30)).unpack()
    rows = [(words, draws) for refs, (given,) in targets for words, draws in zip(refs.unpack(), given.sentences.unpack(), strict=True)]
    assert len(rows) == 30
    for words, draws in rows:  # each example has its own draws
        assert (words, draws) in list(zip(everything, before, strict=True))
    after = said_of(trained, 0)
    assert after != before  # the model has learnt
    expected = said_of(trained, 1)
    trained.train(1, 0, 1, [True])
    assert trained._said.unpack() == expected
    assert expected != after  # and the seed is of the epoch


def test_many_examples_are_said_in_groups(monkeypatch):
    whole = learner(sampler="model", refresh="epoch")
    monkeypatch.setattr(learners, "_SAID_TOGETHER", 28)  # seven examples at a time
    parts = learner(sampler="model", refresh="epoch")
    for trained in (whole, parts):
        trained._say_all(0)
    assert parts._said.lengths.shape == whole._said.lengths.shape == (30, 4)
    longest = int(whole._train.references.lengths.max()) + learners._MORE_WORDS
    assert int(parts._said.lengths.max()) <= longest
    assert parts._said.tokens.dtype == torch.int32
    for row, several in enumerate(parts._said.unpack()):
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
    assert ("said_tokens" in expected) == ("model" in mix["sampler"] and mix["refresh"] == "epoch")


def test_draws_of_a_checkpoint_matter():
    trained = learner(sampler="model", refresh="epoch")
    trained.train(0, 0, 2, [True])
    state = {name: value.clone() for name, value in trained.state().items()}
    trained._close()
    found = []
    for change in (0, 1):
        resumed = learner(model=tiny(seed=9), sampler="model", refresh="epoch")
        resumed.load_state(state | {"said_lengths": (state["said_lengths"] - change).clamp(min=0)})
        resumed.train(0, 2, resumed.steps, [True])
        found.append(resumed.state())
    assert not torch.equal(found[0]["model.output.weight"], found[1]["model.output.weight"])


def test_draws_in_steps_are_those_of_the_model_at_the_time():
    trained, seen = learner(sampler="model", refresh="step"), []
    say = trained._say

    def watched(inputs, longest, generator):
        seen.append(trained._model.output.bias.detach().clone())
        assert longest <= SIZE + learners._MORE_WORDS
        return say(inputs, longest, generator)

    trained._say = watched
    trained.train(0, 0, trained.steps, [True])
    assert len(seen) == trained.steps
    assert all(not torch.equal(*pair) for pair in zip(seen, seen[1:], strict=False))
    assert trained._said is None


@pytest.mark.parametrize("mix", [{"sampler": "near"}, {"sampler": "near+recombined", "size": 8}, {"sampler": "model+near", "size": 8}])
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
    rows = [row for batch in seen for row in zip(batch.tokens, batch.lengths, batch.weights, strict=True)]
    for number, (tokens, lengths, weights) in zip(numbers.tolist(), rows, strict=True):
        there = [words[:length].tolist() for words, length, weight in zip(tokens, lengths, weights, strict=True) if weight > 0]
        assert float(weights.sum()) == pytest.approx(1)
        assert all(words in there for words in references[number])
        near = [words for place in (1, 2) for words in references[(number + place) % 30] if words not in references[number]]
        lent += sum(words in near for words in there)
        if mix["sampler"] == "near":
            assert all(words in near for words in there if words not in references[number])
            assert len(there) == len({tuple(words) for words in [*references[number], *near]})  # four of them at most are lent
    assert lent >= 45


def test_ml_asks_nobody():
    def nobody(numbers, size, generator):
        raise AssertionError

    trained = learner(Objective("ml"), near=nobody, sampler="model+near", refresh="epoch")
    trained.train(0, 0, trained.steps, [True])
    assert trained._said is None
    assert "said_tokens" not in trained.state()


def test_a_run_goes_on_with_the_data_it_began_with():
    begun = learner()
    data = examples(30)
    moved = Examples(Vectors(data.inputs.table + 1), [list(several) for several in data.take_references(torch.arange(30)).unpack()])
    assert torch.equal(learner(data=examples(30))._fingerprint(), begun._fingerprint())
    with pytest.raises(softq.errors.RunError, match="not those that it began with"):
        learner(data=moved).load_state(begun.state())


def test_vectors_that_are_shared_are_known_by_their_rows():
    table = np.eye(3, dtype=np.float16)
    one, two = (b"".join(Vectors(table, np.array(rows)).contents()) for rows in ([0, 0, 1], [0, 1, 1]))
    assert one != two
    (taken,) = Vectors(table, np.array([2, 0, 2])).take(np.array([0, 2]))
    assert taken.dtype == torch.float32
    assert taken.tolist() == [[0, 0, 1]] * 2
