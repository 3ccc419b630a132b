"""Neighbours against plain Python, and candidates drawn from their references."""

import itertools
import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare
from torch.overrides import TorchFunctionMode

from softq.errors import DataError, DtypeError, SamplerError, ShapeError
from softq.neural import neighbours as module
from softq.neural.examples import Examples
from softq.neural.neighbours import NeighbourReferences, nearest

CHANCE = 1e-6  # of a chi-square test failing although all is well


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def cosine(a, b):
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(
        math.fsum(x * x for x in a) * math.fsum(y * y for y in b)
    )


def neighbours(vectors, count):
    """Best first, -1 where there are fewer."""
    out = []
    for i, vector in enumerate(vectors):
        others = [j for j in range(len(vectors)) if j != i]
        ranked = sorted(others, key=lambda j: -cosine(vector, vectors[j]))[:count]
        out.append(ranked + [-1] * (count - len(ranked)))
    return out


@pytest.mark.parametrize("count", [1, 5, 39, 60])
@pytest.mark.parametrize("held", [1, 40 * 7, 1 << 25])
def test_neighbours_are_the_nearest_for_any_size_of_blocks(count, held, monkeypatch):
    monkeypatch.setattr(module, "_SCORES", held)
    vectors = torch.randn(40, 6, generator=gen(1), dtype=torch.float64) * torch.rand(
        40, 1, generator=gen(2), dtype=torch.float64
    )
    kept = vectors.clone()
    expected = neighbours(vectors.tolist(), count)
    assert nearest(vectors, count).tolist() == expected
    assert nearest(vectors, count, device="cpu").dtype == torch.int64
    assert torch.equal(vectors, kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_neighbours_in_coarser_types(dtype):
    """The vectors are as coarse as they are; cosines of them are not."""
    vectors = torch.randn(60, 16, generator=gen(4)).to(dtype)
    exact = vectors.double()
    cosines = torch.nn.functional.normalize(exact) @ torch.nn.functional.normalize(exact).T
    found = nearest(vectors, 10)
    assert torch.allclose(
        cosines.gather(1, found), cosines.fill_diagonal_(-2).topk(10).values, atol=1e-6
    )


def test_a_vector_without_direction_is_near_to_nothing():
    vectors = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.5, 0.1], [-1.0, 0.0]])
    assert nearest(vectors, 3)[0].tolist() == [2, 1, 3]  # cosines 0.98, 0, -1


class PrecisionOfProducts(TorchFunctionMode):
    """Notes the precision that matrix products are done with."""

    def __init__(self):
        self.seen = []
        super().__init__()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__):
            self.seen.append(torch.get_float32_matmul_precision())
        return function(*args, **(kwargs or {}))


def test_cosines_are_not_coarser_where_others_have_asked_for_speed():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with PrecisionOfProducts() as products:
            nearest(torch.randn(5, 3, generator=gen()), 2)
        assert products.seen == ["highest"]
        assert torch.get_float32_matmul_precision() == "high"  # as it was
    finally:
        torch.set_float32_matmul_precision(before)


def test_no_vectors():
    assert nearest(torch.zeros(0, 4), 3).shape == (0, 3)
    assert nearest(torch.ones(1, 4), 2).tolist() == [[-1, -1]]


def test_vectors_that_cannot_be():
    with pytest.raises(ShapeError, match=r"vectors must have shape \[N, D\], got \[3\]"):
        nearest(torch.zeros(3), 1)
    with pytest.raises(DtypeError, match=r"floating-point numbers, got torch\.int64"):
        nearest(torch.zeros(3, 2, dtype=torch.int64), 1)
    with pytest.raises(SamplerError, match="count must be a whole number from 1, got 0"):
        nearest(torch.zeros(3, 2), 0)
    with pytest.raises(DataError, match="vector 1 has length nan"):
        nearest(torch.tensor([[1.0], [math.nan], [math.inf]]), 1)
    with pytest.raises(DataError, match="vector 1 has length inf"):
        nearest(torch.tensor([[1.0], [math.inf]]), 1)
    large = torch.tensor([[1.0, 0.0], [0.0, -1e30], [1.0, 1.0]])
    with pytest.raises(DataError, match=r"the features of row 2 of 3 are too large, up to 1e\+30:"):
        nearest(large, 1)
    assert nearest(large.double(), 1).tolist() == [[2], [0], [0]]


REFERENCES = [[[10], [11, 12]], [[20, 21, 22]], [[30], [31], [32, 33], [34]], [[40]]]
EXAMPLES = Examples([[1], [2], [3], [4]], REFERENCES)


def test_draws_are_without_replacement_from_the_references_of_the_neighbours():
    """Every ordered choice of two of five references is as likely as any other."""
    pool = [tuple(y) for y in REFERENCES[1] + REFERENCES[2]]
    count = 20_000
    draw = NeighbourReferences(EXAMPLES, torch.tensor([[1, 2, -1]]))
    cands = draw(torch.zeros(count, dtype=torch.int64), 2, gen(6))
    seen = Counter(tuple(map(tuple, several)) for several in cands.sentences.unpack())
    choices = list(itertools.permutations(pool, 2))
    assert set(seen) == set(choices)
    assert chisquare([seen[choice] for choice in choices]).pvalue > CHANCE


@pytest.mark.parametrize("size", [1, 3, 6, 20])
def test_each_example_draws_from_its_own(size):
    table = [[1, 2], [0, 3], [3, -1], [-1, -1]]
    draw = NeighbourReferences(EXAMPLES, torch.tensor(table))
    numbers = torch.tensor([3, 0, 1, 0, 2])
    cands = draw(numbers, size, gen(7))
    assert cands.tokens.shape[:2] == (5, size)
    assert cands.tokens.shape[2] == max(int(cands.lengths.max()), 0)
    for number, several in zip(numbers.tolist(), cands.sentences.unpack(), strict=True):
        pool = [y for j in table[number] if j >= 0 for y in REFERENCES[j]]
        assert len(several) == min(size, len(pool))
        assert all(several.count(y) <= pool.count(y) for y in several)
    assert not cands.repeats().any()
    assert cands.log_proposal is None
    again = draw(numbers, size, gen(7))
    assert torch.equal(again.tokens, cands.tokens)


def test_a_sentence_of_two_neighbours_is_there_twice():
    examples = Examples([[1], [2], [3]], [[[7]], [[7], [8]], [[9]]])
    cands = NeighbourReferences(examples, torch.tensor([[0, 1]]))(torch.tensor([0]), 5, gen())
    assert sorted(cands.sentences.unpack()[0]) == [[7], [7], [8]]
    assert cands.repeats().sum() == 1


def test_inputs_need_not_be_the_examples():
    """One input for each caption of an image, candidates from all captions of near images."""
    images = torch.tensor([0, 0, 1, 2, 2, 2, 2, 3])
    of_images = torch.tensor([[1], [2], [3], [0]])
    split = NeighbourReferences(EXAMPLES, of_images[images])
    assert [
        sorted(several) for several in split(torch.tensor([1, 7, 2]), 4, gen()).sentences.unpack()
    ] == [REFERENCES[1], REFERENCES[0], sorted(REFERENCES[2])]


def test_no_neighbours_and_no_batch():
    assert (
        NeighbourReferences(EXAMPLES, torch.zeros(4, 0, dtype=torch.int64))(
            torch.tensor([1]), 2, gen()
        ).present.sum()
        == 0
    )
    assert NeighbourReferences(EXAMPLES, torch.tensor([[1]]))(
        torch.zeros(0, dtype=torch.int64), 2, gen()
    ).tokens.shape[:2] == (0, 2)


def test_neighbours_that_cannot_be():
    with pytest.raises(ShapeError, match=r"neighbours must be an int64 tensor \[N, K\], got"):
        NeighbourReferences(EXAMPLES, torch.tensor([1, 2]))
    with pytest.raises(ShapeError, match=r"got torch\.float32"):
        NeighbourReferences(EXAMPLES, torch.tensor([[1.0]]))
    for bad in (4, -2):
        with pytest.raises(
            DataError, match=rf"indices of examples, 0..3, or -1, got {bad} for input 1"
        ):
            NeighbourReferences(EXAMPLES, torch.tensor([[0], [bad]]))
    with pytest.raises(SamplerError, match="size must be a whole number from 1, got 0"):
        NeighbourReferences(EXAMPLES, torch.tensor([[0]]))(torch.tensor([0]), 0, gen())
