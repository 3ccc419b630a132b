"""Minimum Bayes risk against plain Python."""

import random

import pytest
import torch

from softq.decode import mbr
from softq.errors import OutputError, RewardError, ShapeError, WeightError
from softq.rewards import ExactMatch, MultiReferenceBLEU, NegativeEditDistance, SentenceBLEU
from softq.sentences import Sentences
from softq.spaces import Candidates


def pack(sentences):
    return Candidates(*Sentences.pack(sentences))


def random_sentences(seed, examples, most):
    rng = random.Random(seed)
    return [
        [
            [rng.randrange(4, 7) for _ in range(rng.randint(1, 5))]
            for _ in range(rng.randint(1, most))
        ]
        for _ in range(examples)
    ]


@pytest.mark.parametrize("own_evidence", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_it_is_the_best_on_average(own_evidence, weighted):
    reward = SentenceBLEU()
    candidates = random_sentences(0, 25, 8)
    evidence = candidates if own_evidence else random_sentences(1, 25, 6)
    packed = pack(evidence)
    weights = (
        torch.rand(packed.lengths.shape, generator=torch.Generator().manual_seed(2))
        if weighted
        else None
    )
    found = mbr(
        pack(candidates), reward, evidence=None if own_evidence else packed, weights=weights
    )
    assert found.index.dtype == torch.int64
    assert found.expected_reward.dtype == torch.float64
    for b in range(25):
        shares = [float(weights[b, s]) if weighted else 1.0 for s in range(len(evidence[b]))]

        def expected(y, b=b, shares=shares):
            values = [
                float(reward(*Sentences.pack([[y]]), *Sentences.pack([[other]])))
                for other in evidence[b]
            ]
            return sum(w * r for w, r in zip(shares, values, strict=True)) / sum(shares)

        values = [expected(y) for y in candidates[b]]
        assert values[int(found.index[b])] == pytest.approx(max(values), abs=1e-12)
        assert float(found.expected_reward[b]) == pytest.approx(max(values), abs=1e-12)
        assert found.sentences.unpack()[b] == candidates[b][int(found.index[b])]


def test_repeats_count_as_often_as_they_were_drawn_and_the_first_best_is_taken():
    found = mbr(pack([[[4], [5], [5]], [[4], [5], [6]]]), ExactMatch())
    assert found.index.tolist() == [1, 0]
    assert found.expected_reward.tolist() == pytest.approx([2 / 3, 1 / 3])


def test_what_is_missing_counts_nothing():
    tokens = torch.tensor([[[4, 4], [5, 5], [5, 5]]])
    one = Candidates(tokens, torch.tensor([[2, 2, -1]]))
    assert mbr(one, ExactMatch()).expected_reward.tolist() == [0.5]
    assert mbr(
        one, ExactMatch(), weights=torch.tensor([[1.0, 3.0, 100.0]])
    ).expected_reward.tolist() == [0.75]
    none_first = Candidates(tokens, torch.tensor([[-1, 2, 2]]))
    assert mbr(none_first, ExactMatch()).index.tolist() == [1]
    other = Candidates(
        *Sentences.pack([[[6], [7], [8]]])
    )  # all differ: a missing candidate must not win by its 0
    assert mbr(none_first, NegativeEditDistance(), evidence=other).index.tolist() == [1]


def test_what_cannot_be_asked_for():
    good = pack([[[4], [5]], [[6], [7]]])
    nobody = Candidates(good.tokens, torch.tensor([[1, 1], [-1, -1]]))
    with pytest.raises(OutputError, match="every example needs a candidate, example 1 has none"):
        mbr(nobody, ExactMatch())
    with pytest.raises(
        OutputError, match="every example needs a sentence of evidence, example 1 has none"
    ):
        mbr(good, ExactMatch(), evidence=nobody)
    with pytest.raises(RewardError, match="one value per reference"):
        mbr(good, MultiReferenceBLEU())
    with pytest.raises(ShapeError, match=r"weights must have shape \[2, 2\]"):
        mbr(good, ExactMatch(), weights=torch.ones(2, 3))
    for bad in (
        [[1.0, -1.0], [1.0, 1.0]],
        [[0.0, 0.0], [1.0, 1.0]],
        [[float("nan"), 1.0], [1.0, 1.0]],
        [[float("inf"), 1.0], [1.0, 1.0]],
    ):
        with pytest.raises(WeightError, match="weights must be finite and not negative"):
            mbr(good, ExactMatch(), weights=torch.tensor(bad))
