"""Candidate sets side by side.

What is in them, and that targets count a sentence once however many sets hold it.
"""

import math

import pytest
import torch

import softq
from softq import Candidates, Sentences
from softq.errors import EstimatorError, ShapeError
from softq.rewards import SentenceBLEU
from softq.samplers import NgramReplacement, Recombination

REFS = [[[4, 5, 6, 7], [4, 5, 8]], [[9, 4, 5, 6, 8], [9, 4]]]
ONE = Candidates(*Sentences.pack([[*REFS[0], [4, 5, 6]], [*REFS[1], [9, 4, 5]]]))
TWO = Candidates(*Sentences.pack([[[4, 5, 6], [4, 5, 8, 9, 9, 9]], [[7, 7]]]))
THREE = Candidates(*Sentences.pack([[[4, 5, 8], [5, 6, 7]], [[9, 4, 5], [9, 5]]]))


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def mass(target):
    """Weight of each sentence, over all places where it stands."""
    out = []
    for several, lengths, weights in zip(
        target.outputs.tokens.tolist(),
        target.outputs.lengths.tolist(),
        target.weights.tolist(),
        strict=True,
    ):
        law = {}
        for row, length, weight in zip(several, lengths, weights, strict=True):
            if length >= 0:
                law[tuple(row[:length])] = law.get(tuple(row[:length]), 0.0) + weight
        out.append(law)
    return out


def test_all_of_each_in_order():
    joined = ONE.beside(TWO, THREE)
    expected = [
        a + b + c
        for a, b, c in zip(*(each.sentences.unpack() for each in (ONE, TWO, THREE)), strict=True)
    ]
    assert joined.sentences.unpack() == expected
    assert joined.tokens.shape == (2, 7, 6)
    assert joined.lengths[1].tolist() == [
        5,
        2,
        3,
        2,
        -1,
        3,
        2,
    ]  # what is missing stays where it was
    assert ONE.beside().sentences.unpack() == ONE.sentences.unpack()
    assert ONE.beside(TWO).beside(THREE).sentences.unpack() == expected
    assert ONE.tokens.shape == (2, 3, 5)


def test_types_are_never_cut():
    large = Candidates(torch.tensor([[[2**40]], [[1]]]), torch.tensor([[1], [1]]))
    small = Candidates(ONE.tokens.int(), ONE.lengths)
    assert small.beside(Candidates(TWO.tokens.int(), TWO.lengths)).tokens.dtype == torch.int32
    assert small.beside(large).tokens[0, 3, 0] == 2**40
    assert large.beside(small).tokens[0, 0, 0] == 2**40


def test_proposals_do_not_carry_over():
    drawn = NgramReplacement(20, size=5)(REFS, generator=gen())
    joined = drawn.beside(drawn)
    assert joined.log_proposal is joined.fixed is joined.draws is None
    assert not joined.certain.any()
    with pytest.raises(EstimatorError, match="needs candidates with log_proposal"):
        joined.measure("importance")


def test_what_the_model_said_stays():
    said = Candidates(
        TWO.tokens, TWO.lengths, log_model=torch.tensor([[-1.0, -2.0], [-3.0, -math.inf]])
    )
    assert ONE.beside(TWO).log_model is None
    assert torch.equal(said.beside(said).log_model, said.log_model.repeat(1, 2))
    joined = ONE.beside(said).log_model
    assert joined.shape == (2, 5)
    assert joined[:, :3].isnan().all()
    assert torch.equal(joined[:, 3:], said.log_model.double())


@pytest.mark.parametrize("objective", [softq.raml, softq.sqdml])
def test_a_sentence_counts_once(objective):
    """The target on joined sets is the softmax over the different sentences of them all."""
    reward, tau = SentenceBLEU(), 0.3
    joined = ONE.beside(TWO, THREE)
    assert joined.repeats().sum() == 3
    laws = mass(objective(joined, REFS, tau, reward))
    for refs, several, law in zip(REFS, joined.sentences.unpack(), laws, strict=True):
        different = list(dict.fromkeys(map(tuple, several)))
        paid = {
            y: [
                float(reward(*Sentences.pack([[list(y)]]), *Sentences.pack([[ref]])))
                for ref in refs
            ]
            for y in different
        }
        if objective is softq.raml:
            parts = [{y: math.exp(paid[y][r] / tau) for y in different} for r in range(len(refs))]
        else:
            parts = [{y: math.exp(sum(paid[y]) / len(refs) / tau) for y in different}]
        expected = {
            y: sum(part[y] / math.fsum(part.values()) for part in parts) / len(parts)
            for y in different
        }
        assert law == pytest.approx(expected)


@pytest.mark.parametrize("objective", [softq.raml, softq.sqdml])
def test_a_set_beside_itself_is_itself(objective):
    once = objective(ONE, REFS, 0.4, SentenceBLEU())
    twice = objective(ONE.beside(ONE), REFS, 0.4, SentenceBLEU())
    assert [pytest.approx(law) for law in mass(once)] == mass(twice)
    assert torch.allclose(once.entropy(), twice.entropy())
    assert torch.allclose(once.reference_mass(), twice.reference_mass())
    assert mass(softq.ml(ONE, REFS)) == mass(softq.ml(ONE.beside(ONE), REFS))


@pytest.mark.parametrize("estimator", ["set", "paper"])
def test_a_choice_of_joined_candidates_has_nothing_twice(estimator):
    joined = ONE.beside(TWO, THREE, ONE)
    all_of_them = mass(softq.sqdml(joined, REFS, 0.4, SentenceBLEU()))
    for seed in range(20):
        measured = joined.measure(estimator, 4, generator=gen(seed))
        some = softq.sqdml(measured, REFS, 0.4, SentenceBLEU())
        assert some.outputs.present.all()
        assert not some.outputs.repeats().any()
        assert some.components.is_reference.sum(1).tolist() == [2, 2]
        if estimator == "paper":
            for law, whole in zip(mass(some), all_of_them, strict=True):
                assert law == pytest.approx({y: whole[y] for y in law})


def test_references_come_to_the_front():
    joined = TWO.beside(THREE).with_references(Sentences.pack(REFS))
    assert joined.fixed.tolist() == [2, 2]
    assert joined.sentences.unpack()[0] == [*REFS[0], [4, 5, 6], [4, 5, 8, 9, 9, 9], [5, 6, 7]]
    recombined = Recombination(8)(REFS, generator=gen()).beside(
        NgramReplacement(20, size=6)(REFS, generator=gen())
    )
    joined = recombined.with_references(Sentences.pack(REFS))
    assert [several[:2] for several in joined.sentences.unpack()] == REFS
    assert joined.present.sum(1).tolist() == [12, 12]


def test_other_examples_are_refused():
    with pytest.raises(
        ShapeError, match="candidates must be of the same 2 examples, set 2 is of 1"
    ):
        ONE.beside(TWO, Candidates(*Sentences.pack([[[1]]])))
