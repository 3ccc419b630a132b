"""Recombination against enumeration.

What is drawn (chi-square), small spaces as a whole, and what the sets hold.
"""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

import oracle
import softq
from scale import COMPILED, draws
from softq import Candidates, Sentences
from softq.errors import EstimatorError, OutputError, SamplerError
from softq.samplers import Recombination

# of each chi-square test failing although all is well; some twenty of them: one run in 50,000
CHANCE = 1e-6


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def grams(sentence, max_n):
    """n-grams of a sentence with the probability of one that is drawn by n, then by place."""
    orders = min(max_n, len(sentence))
    return [
        (p, p + n, 1.0 / (orders * (len(sentence) - n + 1)))
        for n in range(1, orders + 1)
        for p in range(len(sentence) - n + 1)
    ]


def law(refs, max_n):
    """Of one draw, given that it is no reference."""
    different = [y for y in dict.fromkeys(refs) if y]
    pairs = [(a, b) for a in different for b in different if a != b]
    made = {}
    for a, b in pairs:
        for i, j, into in grams(a, max_n):
            for k, m, out_of in grams(b, max_n):
                y = a[:i] + b[k:m] + a[j:]
                made[y] = made.get(y, 0.0) + into * out_of / len(pairs)
    return oracle.normalised({y: p for y, p in made.items() if y not in refs})


REFS = {
    "two": [(0, 1, 2), (3, 4)],
    "three_of_three_lengths": [(0, 1, 2, 3), (0, 4, 2), (5,)],
    "the_same_twice": [(0, 1, 2), (0, 1, 2), (3, 1)],
    "repeated_words": [(1, 1, 2, 1), (2, 1, 1), (1, 1)],
    "an_empty_one": [(0, 1), (), (2, 3, 4)],
    "one_word_each": [(7,), (8,), (8, 7)],
}


@pytest.mark.parametrize("refs", REFS.values(), ids=REFS)
@pytest.mark.parametrize("max_n", [1, 2, 4])
def test_draws_follow_their_law(refs, max_n):
    expected = law(refs, max_n)
    sampler = Recombination(len(refs) + 1, max_n)
    assert sampler.enumerate(refs) == pytest.approx(expected)
    count, first = draws(20_000), len(set(refs))
    cands = sampler([[list(y) for y in refs]] * count, generator=gen(1))
    assert cands.fixed.eq(first).all()
    seen = Counter(
        tuple(row[:length])
        for row, length in zip(
            cands.tokens[:, first].tolist(), cands.lengths[:, first].tolist(), strict=True
        )
    )
    assert set(seen) <= set(expected)
    big = [y for y in expected if expected[y] * count >= 5]
    observed, wanted = [seen[y] for y in big], [expected[y] * count for y in big]
    if len(big) < len(expected):
        observed, wanted = [*observed, count - sum(observed)], [*wanted, count - sum(wanted)]
    assert len(observed) > 1
    assert chisquare(observed, np.array(wanted) * (count / sum(wanted))).pvalue > CHANCE


def test_draws_are_without_replacement():
    """Two in a row have the law P(a) P(b) / (1 - P(a))."""
    refs = [(0, 0, 1), (2,)]
    one = law(refs, 1)
    assert min(one.values()) < 0.6 * max(one.values())
    count = draws(20_000)
    cands = Recombination(4, 1)([[list(y) for y in refs]] * count, generator=gen(2))
    seen = Counter((tuple(several[2]), tuple(several[3])) for several in cands.sentences.unpack())
    pairs = {(a, b): one[a] * one[b] / (1 - one[a]) for a in one for b in one if a != b}
    assert set(seen) <= set(pairs)
    assert (
        chisquare([seen[pair] for pair in pairs], [pairs[pair] * count for pair in pairs]).pvalue
        > CHANCE
    )


@pytest.mark.parametrize("size", [3, 20, 200])
def test_small_spaces_are_exhausted(size):
    refs = [(0, 1, 2), (1, 3)]
    space = law(refs, 2)
    assert 20 < len(space) < 100
    cands = Recombination(size, 2, pad=9)([[list(y) for y in refs]] * 3, generator=gen())
    for several in cands.sentences.unpack():
        found = [tuple(y) for y in several[2:]]
        assert len(found) == len(set(found)) == min(size - 2, len(space))
        assert set(found) <= set(space)
    assert cands.lengths[:, min(size, 2 + len(space)) :].eq(-1).all()
    assert cands.tokens[~cands.token_mask].eq(9).all()


@pytest.mark.skipif(not COMPILED, reason="a hundred thousand draws")
def test_what_chance_does_not_find_is_listed_by_its_law():
    """Where nearly every draw is a reference, the last candidates come from the list.

    Which are left out must be even.
    """
    refs = [(0,) * 60, (0,) * 60 + (1,)]
    space = law(refs, 1)
    rare = [y for y in space if 1 in y]
    assert len(rare) == len(space) - 1 == 60
    cands = Recombination(2 + 57, 1)([[list(y) for y in refs]] * 300, generator=gen(3))
    assert cands.present.all()
    assert not cands.repeats().any()
    left_out = Counter(
        y for several in cands.sentences.unpack() for y in set(rare) - set(map(tuple, several))
    )
    assert left_out.total() >= 300 * 3
    # four of sixty at a time, without replacement: the counts vary a little less than chi-square
    # has it
    assert chisquare([left_out[y] for y in rare]).pvalue > CHANCE
    assert 0.5 < np.var([left_out[y] for y in rare]) / (left_out.total() / 60) < 2.0


@pytest.mark.parametrize("refs", [[[4, 5, 6]], [[4, 5], [4, 5], [4, 5]], [[4], []], [[]]])
def test_one_reference_has_nothing_to_combine_with(refs):
    cands = Recombination(6)([refs, [[1, 2], [3]]], generator=gen())
    different = [y for i, y in enumerate(refs) if y not in refs[:i]]
    assert cands.sentences.unpack()[0] == different
    assert cands.fixed.tolist() == [len(different), 2]
    assert cands.present.sum(1).tolist() == [len(different), 6]


def test_candidates_at_scale():
    """References in front, all of them recombinations, the same for any number of threads and either integer type."""
    g, batch = gen(4), draws(150)
    tokens = torch.randint(10, 30, (batch, 4, 12), generator=g)
    lengths = torch.randint(2, 13, (batch, 4), generator=g)
    lengths[::5, 1] = -1
    refs, kept = Sentences(tokens, lengths), tokens.clone()
    sampler = Recombination(40, 3, pad=7)
    cands = sampler(refs, generator=gen(5))
    assert cands.present.all()
    assert not cands.repeats().any()
    assert cands.tokens[~cands.token_mask].eq(7).all()
    assert cands.tokens.shape[2] == cands.lengths.max() > 12
    assert cands.log_proposal is None
    for rows, made in zip(refs.unpack()[:20], cands.sentences.unpack()[:20], strict=True):
        different = [y for i, y in enumerate(rows) if y not in rows[:i]]
        assert made[: len(different)] == different
        assert set(map(tuple, made[len(different) :])) <= set(law(list(map(tuple, rows)), 3))
    before = torch.get_num_threads()
    torch.set_num_threads(1 if before > 1 else 3)
    try:
        other_threads = sampler(refs, generator=gen(5))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(other_threads.tokens, cands.tokens)
    small = sampler(Sentences(tokens.int(), lengths), generator=gen(5))
    assert small.tokens.dtype == torch.int32
    assert torch.equal(small.tokens.long(), cands.tokens)
    assert torch.equal(tokens, kept)
    assert not torch.equal(sampler(refs, generator=gen(6)).lengths, cands.lengths)


def test_what_stands_behind_a_reference_does_not_matter():
    lengths = torch.tensor([[2, 3, -1]])
    tokens = torch.tensor([[[1, 2, 50], [3, 4, 5], [60, 60, 60]]])
    clean = Recombination(12)([[[1, 2], [3, 4, 5]]], generator=gen(7))
    cands = Recombination(12)(Sentences(tokens, lengths), generator=gen(7))
    assert cands.sentences.unpack() == clean.sentences.unpack()
    assert cands.tokens.max() == 5


def test_a_candidate_can_agree_with_several_references_better_than_each_of_them():
    """Why these candidates.

    One of them is nearer to all references than every reference is, and SQDML has it first.
    """
    told = list(range(1, 13))
    refs = [
        [*told[:8], 20, 21, 22, 23],
        [30, 31, 32, 33, *told[4:]],
        [*told[:4], 40, 41, 42, 43, *told[8:]],
    ]  # each tells two thirds
    cands = Candidates(*Sentences.pack([[*refs, *map(list, Recombination(10).enumerate(refs))]]))
    target = softq.sqdml(cands, [refs], 0.01, softq.rewards.SentenceBLEU())
    assert cands.sentences.unpack()[0][int(target.weights[0].argmax())] == told


def test_no_batch_at_all():
    assert Recombination(3)(
        Sentences(torch.zeros(0, 2, 4, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int64))
    ).tokens.shape == (0, 3, 0)


def test_importance_weights_are_refused():
    refs = [[[1, 2, 3], [4, 5]]]
    with pytest.raises(EstimatorError, match="needs candidates with log_proposal"):
        Recombination(5)(refs, generator=gen()).measure("importance")


def test_options_that_cannot_be():
    with pytest.raises(SamplerError, match="size must be a whole number from 1, got 0"):
        Recombination(0)
    with pytest.raises(SamplerError, match=r"max_n must be a whole number from 1, got 2\.5"):
        Recombination(5, 2.5)
    with pytest.raises(
        SamplerError,
        match="size must hold all references, got size 2 for the 3 references of example 1",
    ):
        Recombination(2)([[[1]], [[1], [2], [3]]])
    with pytest.raises(OutputError, match="every example needs a reference, example 1 has none"):
        Recombination(2)([[[1]], []])


@pytest.mark.skipif(not COMPILED, reason="a million draws")
def test_a_space_too_large_to_be_listed_is_refused():
    refs = [list(range(70)), list(range(70, 140))]
    with pytest.raises(SamplerError, match="there are 3e\\+05 replacements, too many to list"):
        Recombination(5).enumerate(refs)
    space = 2 * (70 + 69 + 68 + 67) ** 2
    cands = Sentences.pack([refs])
    with pytest.raises(
        SamplerError,
        match=rf"found only \d+ of {space + 10} candidates for example 0.*give a smaller size",
    ):
        Recombination(space + 10)(Sentences(cands.tokens.int(), cands.lengths), generator=gen(9))


def test_the_law_of_the_oracle_adds_up():
    for refs in REFS.values():
        assert math.fsum(law(refs, 3).values()) == pytest.approx(1.0)
