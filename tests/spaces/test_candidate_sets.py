"""CandidateSettings of several kinds in one set.

Their weights, recipes that ask for them, learners that draw them from the model.
"""

from __future__ import annotations

import pytest
import torch

import softq
from softq import spaces
from softq.errors import RecipeError
from softq.lab.recipe import Objective, build, parse_flags
from softq.lab.tasks.sequence_recipe import CaptioningRecipe, TranslationRecipe
from softq.neural.recipe import CandidateSettings
from softq.neural.target_maker import recipe_targets, target_signature
from softq.samplers import NgramReplacement, Recombination
from softq.sentences import Sentences

pytestmark = pytest.mark.usefixtures("one_thread")

VOCAB = 12
BLEU = softq.rewards.SentenceBLEU()
REFERENCES = Sentences.pack(
    [[[5, 6, 7, 8], [5, 9, 7], [5, 6, 7, 8]], [[7, 7, 4]]]
)  # one of them is there twice
GIVEN = spaces.Candidates(
    *Sentences.pack([[[5, 9, 7], [5, 6, 9, 8], [5, 6, 9, 8]], [[7, 4], [11, 11]]])
)  # a reference among them
OTHERS = spaces.Candidates(*Sentences.pack([[[10], [5, 6, 9, 8]], [[7, 7, 5]]]))


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def of_size(cands, size):
    """The same with some missing behind them, as whoever gives them has it."""
    more = size - cands.lengths.shape[1]
    return spaces.Candidates(
        torch.nn.functional.pad(cands.tokens, (0, 0, 0, more)),
        torch.nn.functional.pad(cands.lengths, (0, more), value=-1),
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
    rewards = BLEU(
        *Sentences.pack([[list(words) for words in sentences]]), *Sentences.pack([references])
    )[0].double()
    weights = (
        (rewards / tau).softmax(0).mean(1) if name == "raml" else (rewards.mean(1) / tau).softmax(0)
    )
    return {
        words: pytest.approx(weight, rel=1e-9)
        for words, weight in zip(sentences, weights.tolist(), strict=True)
    }


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
    settings = CandidateSettings(sampler=sampler, size=6 * len(sampler.split("+")), max_n=2)
    made = recipe_targets(Objective(name, 0.4), settings, VOCAB)(REFERENCES, gen(), *given)
    generator, sets = gen(), list(given)
    size = 6 + (
        REFERENCES.lengths.shape[1] if "+" in sampler else 0
    )  # of several, each makes its share beside the references
    if "ngram" in sampler:
        sets.append(
            NgramReplacement(VOCAB, 2, size, specials=range(4))(REFERENCES, generator=generator)
        )
    if "recombined" in sampler:
        sets.append(Recombination(size, 2)(REFERENCES, generator=generator))
    joined = sets[0].beside(*sets[1:]).with_references(REFERENCES)
    expected = getattr(softq, name)(joined, REFERENCES, 0.4, BLEU)
    assert weights_of(made) == [
        {words: pytest.approx(weight) for words, weight in row.items()}
        for row in weights_of(expected)
    ]
    references = REFERENCES.unpack()
    sentences = all_of(sets, references)
    assert weights_of(made) == [
        by_hand(name, *both, 0.4) for both in zip(sentences, references, strict=True)
    ]
    torch.testing.assert_close(made.weights.sum(1), torch.ones(2, dtype=torch.float64))
    assert made.components.is_reference.sum(1).tolist() == [2, 1]  # each once
    assert made.outputs.sentences.unpack()[0][:2] == [[5, 6, 7, 8], [5, 9, 7]]


def test_an_example_without_any_other_candidate_has_its_references():
    nothing = spaces.Candidates(torch.zeros((2, 3, 0), dtype=torch.int64), torch.full((2, 3), -1))
    made = recipe_targets(
        Objective("sqdml", 0.4), CandidateSettings(sampler="near", size=3), VOCAB
    )(REFERENCES, gen(), nothing)
    assert weights_of(made)[1] == {(7, 7, 4): 1.0}
    alone = recipe_targets(
        Objective("raml", 0.4), CandidateSettings(sampler="recombined", size=6), VOCAB
    )(REFERENCES, gen())
    assert weights_of(alone)[1] == {
        (7, 7, 4): 1.0
    }  # one reference has nothing to be recombined with


@pytest.mark.parametrize("estimator", ["set", "paper"])
def test_of_a_mixture_a_step_may_use_some(estimator):
    settings = CandidateSettings(
        sampler="recombined+near", size=12, k=4, estimator=estimator, max_n=2
    )
    make = recipe_targets(Objective("sqdml", 0.4), settings, VOCAB)
    seen = [make(REFERENCES, gen(seed), OTHERS) for seed in range(10)]
    for target in seen:
        assert target.weights.shape == (2, 4)
        assert target.components.is_reference.sum(1).tolist()[1] == 1
    assert len({words for target in seen for words in weights_of(target)[0]}) > 4
    if (
        estimator == "set"
    ):  # weights sum to one on average; five standard errors are left out once in a million times
        sums = torch.stack(
            [make(REFERENCES, gen(seed), OTHERS).weights.sum(1) for seed in range(300)]
        )[:, 0]
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
def test_a_mixture_has_all_references_that_a_step_has_room_for(options):
    many = Sentences.pack([[[5, word, 7, 8] for word in range(4, 10)], [[7, 7, 4]]])
    make = recipe_targets(Objective("sqdml", 0.4), CandidateSettings(**options), VOCAB)
    for seed in range(5):
        target = make(many, gen(seed), of_size(GIVEN, 4), of_size(OTHERS, 4))
        taken, alone = target.components.is_reference.sum(1).tolist()
        assert taken == min(6, options.get("k", 12) // 2)
        assert alone == 1


def test_ml_takes_every_reference_and_nothing_else():
    make = recipe_targets(Objective("ml"), CandidateSettings(sampler="model+near"), VOCAB)
    assert make(REFERENCES, gen()).weights[1].tolist() == [1.0, 0.0, 0.0]


# --- recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sampler": "beam"},
            (
                "sampler must be one of ngram, hamming, model, near, recombined, or several joined"
                " by .*got 'beam'"
            ),
        ),
        ({"sampler": "model+beam"}, r"several joined by \+, got 'model\+beam'"),
        ({"sampler": "model+"}, r"got 'model\+'"),
        ({"sampler": ""}, "got ''"),
        ({"sampler": "model+near+model"}, r"got 'model\+near\+model'"),
        ({"sampler": "hamming+near"}, r"cannot be joined with others, got 'hamming\+near'"),
        (
            {"sampler": "model+recombined", "estimator": "importance"},
            r"needs the probability of a sample.*got sampler = model\+recombined",
        ),
        (
            {"sampler": "near", "estimator": "importance"},
            "needs the probability of a sample.*got sampler = near",
        ),
        ({"sampler": "recombined", "estimator": "importance"}, "needs the probability of a sample"),
        (
            {"sampler": "model", "estimator": "importance", "refresh": "epoch"},
            "estimator = importance.*refresh = step",
        ),
        (
            {"refresh": "epoch"},
            "refresh = epoch is for samples from the model, sampler = model, got sampler = ngram",
        ),
        ({"sampler": "near+recombined", "refresh": "epoch"}, r"got sampler = near\+recombined"),
        ({"sampler": "near", "neighbours": 0}, "neighbours must be at least 1"),
        ({"sampler": "ngram+recombined", "size": 1}, "size must be at least 2"),
        (
            {"sampler": "model+near+recombined", "size": 11, "k": 10},
            "k must not exceed size, got k = 10 of 9",
        ),
        ({"sampler": "model+near", "reward": "hamming"}, "sample them with sampler = hamming"),
        ({"sampler": "model+near", "estimator": "paper"}, "needs k"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(RecipeError, match=message):
        CandidateSettings(**options)


def test_what_does(tmp_path):
    for options in (
        {"sampler": "near", "size": 1},
        {"sampler": "model", "refresh": "epoch", "k": 2},
        {"sampler": "model+near", "size": 2},
    ):
        CandidateSettings(**options)
    shares = {
        sampler: CandidateSettings(sampler=sampler, size=11).share
        for sampler in ("near", "near+model", "near+model+ngram")
    }
    assert list(shares.values()) == [11, 5, 3]


RAML = ["--objective", "raml", "--tau", "1"]


@pytest.mark.parametrize("recipe_type", [CaptioningRecipe, TranslationRecipe])
def test_recombination_needs_several_references(recipe_type):
    flags = [*RAML, "--sampler", "model+recombined"]
    assert build(recipe_type, parse_flags(recipe_type, flags)).candidates.samplers == (
        "model",
        "recombined",
    )
    with pytest.raises(
        RecipeError,
        match=(
            r"sampler = recombined takes n-grams of other references, and merge = false leaves .*"
            r" with one"
        ),
    ):
        build(recipe_type, parse_flags(recipe_type, [*flags, "--no-merge"]))


def test_sentences_have_no_neighbours():
    with pytest.raises(
        RecipeError, match="sampler = near needs inputs that have features, such as images"
    ):
        build(TranslationRecipe, parse_flags(TranslationRecipe, [*RAML, "--sampler", "near+ngram"]))
    near = build(
        CaptioningRecipe,
        parse_flags(CaptioningRecipe, [*RAML, "--sampler", "near+ngram", "--neighbours", "7"]),
    )
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
        assert (
            target_signature(raml, CandidateSettings(sampler=sampler))
            == f"{begin}:{text}:estimator=set"
        )
    every = [
        target_signature(raml, CandidateSettings(**options))
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
    assert target_signature(Objective("ml"), CandidateSettings(sampler="near")) == "ml"
