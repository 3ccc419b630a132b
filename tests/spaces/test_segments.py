"""Segmentations: what they share with chains, targets toward segments, values of outputs, tags."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import oracle
import softq
from softq.errors import (
    DataError,
    DtypeError,
    IntractableError,
    OutputError,
    RewardError,
    ShapeError,
)
from softq.formats.tags import faults, segments_of_tags, tags_of_segments
from softq.kernels import segments
from softq.kernels.operator import Expected, by_autograd
from softq.rewards import SegmentAccuracy
from softq.spaces import Segment

DOUBLE = {"dtype": torch.float64}


def random(*shape, seed=0):
    return torch.randn(*shape, **DOUBLE, generator=torch.Generator().manual_seed(seed))


# --- chains -----------------------------------------------------------------------------------------


def test_segments_of_one_token_are_a_chain():
    emissions, transitions, lengths = random(4, 6, 3), random(3, 3, seed=1), [6, 3, 1, 0]
    chain = softq.Chain(emissions, transitions, lengths)
    p = softq.SemiMarkov(emissions.unsqueeze(2), transitions, lengths)
    assert_close(p.log_partition, chain.log_partition)
    assert_close(p.marginals.squeeze(2), chain.marginals)
    assert_close(p.pair_marginals, chain.pair_marginals.sum(1))
    assert_close(p.entropy(), chain.entropy())
    values = chain.zero_padding(chain.mode() + 3)  # length 1 · K + label
    assert torch.equal(p.mode(), values)
    assert torch.equal(p.mbr(), chain.zero_padding(chain.mbr() + 3))
    raml = [
        softq.cross_entropy(softq.raml(q, y, 0.4), q)
        for q, y in ((chain, chain.mode()), (p, values))
    ]
    assert_close(*raml)


def test_a_bio_chain_is_a_segmentation():
    """O B-1 I-1 B-2 I-2 with scores of labels and of neighbours, and segments with the same sums."""
    size, kinds = 6, 2
    emissions, table = random(2, size, 1 + 2 * kinds), random(5, 5, seed=1)
    begin, inside = [0, 1, 3], [0, 2, 4]  # of O and of both types
    between = torch.full((5, 5), -math.inf, **DOUBLE)
    for before, after in itertools.product(range(5), range(5)):
        if after in begin:  # the same whether the type before ends with B or with I
            between[before, after] = table[(before + 1) // 2, (after + 1) // 2]
        elif before in (after - 1, after):
            between[before, after] = table[3, after]
    start = torch.zeros(5, **DOUBLE).index_fill(0, torch.tensor(inside[1:]), -math.inf)
    chain = softq.Chain(emissions, between, [size, 4], start=start)

    def score(tokens, t, d, kind):
        if kind == 0:
            return tokens[t, 0] if d == 0 else torch.tensor(-math.inf, **DOUBLE)
        rest = tokens[t + 1 : t + d + 1, inside[kind]].sum() + d * table[3, inside[kind]]
        return tokens[t, begin[kind]] + rest

    scores = torch.tensor(
        [
            [[[score(e, t, d, k) for k in range(3)] for d in range(size)] for t in range(size)]
            for e in emissions
        ],
        **DOUBLE,
    )
    p = softq.SemiMarkov(scores, table[:3, :3], [size, 4])
    assert p.segments is scores
    assert_close(p.log_partition, chain.log_partition)
    assert_close(p.entropy(), chain.entropy())
    assert_close(p.marginals.sum(2)[..., 1], chain.marginals[..., 1])  # where type 1 begins


def test_sums_of_tokens_are_independent_labels_cut_anywhere():
    tokens = random(3, 5, 2)
    found = softq.segment_scores(tokens, 3)
    for t, d in itertools.product(range(5), range(3)):
        assert_close(found[:, t, d], tokens[:, t : t + d + 1].sum(1))
    assert softq.segment_scores(tokens, 9).shape == (3, 5, 9, 2)
    forbidden = tokens.clone()
    forbidden[0, 2, 1] = -math.inf
    cut = softq.segment_scores(forbidden, 3)[0, :, :, 1] == -math.inf
    assert cut.int().tolist() == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert torch.autograd.gradcheck(lambda x: softq.segment_scores(x, 3), tokens.requires_grad_())
    with pytest.raises(ShapeError, match="longest must be a whole number from 1, got 0"):
        softq.segment_scores(tokens, 0)
    with pytest.raises(ShapeError, match=r"must have shape \[\*B, n, K\], got \[5\]"):
        softq.segment_scores(torch.zeros(5), 2)


def test_memory_beyond_the_longest_segment_is_not_needed():
    """A long text: what takes O(n² K) elsewhere."""
    p = softq.SemiMarkov(torch.zeros(1, 3000, 2, 1))
    golden = math.log((1 + math.sqrt(5)) / 2)  # Fibonacci's numbers
    want = 3001 * golden - math.log(5) / 2
    assert p.log_partition.item() == pytest.approx(want, rel=1e-6)


# --- targets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_weights_by_label_against_enumeration(objective):
    weights = [0.3, 2.0]
    p = softq.SemiMarkov(random(1, 5, 3, 2), random(2, 2, seed=1))
    outputs = oracle.segmentations(5, 3, 2)
    refs = [outputs[3], outputs[40], outputs[11]]

    def reward(y, ref):
        hits = set(oracle.segments_of(y, 2)) & set(oracle.segments_of(ref, 2))
        return sum(weights[label] for _, _, label in hits)

    table = [[reward(y, ref) for y in outputs] for ref in refs]
    want = getattr(oracle, objective)(table, [1 / 3] * 3, 0.4)
    given = torch.tensor(refs)
    target = getattr(softq, objective)(p, given.unsqueeze(0), 0.4, SegmentAccuracy(weights))
    found = target.log_prob(torch.tensor(outputs).unsqueeze(1)).exp().squeeze(1)
    assert_close(found, torch.tensor(want, **DOUBLE))
    candidates = torch.tensor(outputs).unsqueeze(0)
    sizes = [torch.full((1, count), 5) for count in (len(outputs), 3)]
    scored = SegmentAccuracy(weights)(candidates, sizes[0], given.unsqueeze(0), sizes[1])
    assert_close(scored[0].T, torch.tensor(table, **DOUBLE))
    plain = SegmentAccuracy()(candidates, sizes[0], given.unsqueeze(0), sizes[1])
    matches = [[oracle.segment_matches(y, ref) for ref in refs] for y in outputs]
    assert_close(plain[0], torch.tensor(matches, **DOUBLE))


def test_what_weights_say_of_themselves():
    plain, weighted = SegmentAccuracy(), SegmentAccuracy(torch.tensor([-1.0, 2.0]))
    assert (plain.bound, weighted.bound) == (1.0, 3.0)
    assert plain.signature == "segment-accuracy"
    assert weighted.signature.startswith("segment-accuracy:2:")
    assert repr(plain) == "SegmentAccuracy()"
    assert repr(weighted) == "SegmentAccuracy([-1.0, 2.0])"
    with pytest.raises(ShapeError, match=r"weights must have shape \[K\], got \[1, 2\]"):
        SegmentAccuracy([[1.0, 2.0]])
    with pytest.raises(RewardError, match="weights must be finite"):
        SegmentAccuracy([1.0, math.inf])
    p = softq.SemiMarkov(torch.zeros(1, 2, 2, 3))
    with pytest.raises(ShapeError, match="for 2 labels, the output space has 3"):
        softq.raml(p, p.mode(), 1.0, weighted)
    with pytest.raises(
        RewardError, match=r"need a reward over segments, such as SegmentAccuracy\(\)"
    ):
        softq.raml(p, p.mode(), 1.0, softq.rewards.TokenAccuracy())


def test_marginals_as_soft_references_are_a_distribution():
    """Without scores of neighbours, marginals say all of a distribution; with them, only the parts."""
    free = softq.SemiMarkov(random(2, 5, 3, 2), lengths=[5, 2])
    target = softq.ml(free, free.marginals)
    every = free.sample((50,), generator=torch.Generator().manual_seed(0))
    assert_close(target.log_prob(every), free.log_prob(every))
    assert_close(target.entropy(), free.entropy())
    bound = softq.SemiMarkov(random(2, 5, 3, 2), random(2, 2), [5, 2])
    assert_close(softq.ml(bound, bound.marginals).expected_parts(bound)[0], bound.marginals)


def test_soft_references_in_which_a_token_has_no_segment():
    p = softq.SemiMarkov(torch.zeros(1, 4, 2, 1))
    table = p.indicator(torch.tensor([[2, 0, 1, -100]])).expand(1, 4, 2, 1)
    assert p.token_mass(table).tolist() == [[1.0, 1.0, 1.0, 0.0]]
    with pytest.raises(IntractableError, match="prior=model"):
        softq.cross_entropy(softq.ml(p, table), p)
    right = {(1, 1, 1, 1): 1, (2, 0, 1, 1): 2, (1, 2, 0, 1): 0, (1, 1, 2, 0): 0, (2, 0, 2, 0): 1}
    found = softq.sqdml(p, table, 0.5).log_prob(torch.tensor(list(right)).unsqueeze(1))
    want = (torch.tensor([*right.values()]) / 0.5).log_softmax(0)
    assert_close(found.squeeze(1), want)


def test_a_segment_known_to_begin_cuts_what_would_cross_it():
    p = softq.SemiMarkov(random(1, 6, 4, 2), random(2, 2), [5])
    known = torch.tensor([[-100, -100, 2 * 2 + 1, -100, -100, 7]])
    outputs = [y for y in oracle.segmentations(5, 4, 2) if y[2] == 5]
    given = torch.tensor([[*y, 0] for y in outputs]).unsqueeze(1)
    want = p.log_prob(given).logsumexp(0)
    assert_close(p.restricted(known).log_partition - p.log_partition, want)


def test_where_there_is_no_kernel_the_reference_runs():
    """As on a GPU for many labels or long segments."""
    lengths, scores = torch.tensor([4, 2]), [random(2, 4, 3, 2), random(1, 2, 2)]
    parts = tuple(0.1 * random(*shape, seed=1) for shape in ((2, 4, 3, 2), (2, 2, 2)))
    for target in (Expected(), Expected(parts=parts)):
        found = by_autograd(segments.reference.log_partition, lengths, scores, target)
        for one, other in zip(
            found, segments.cpu.infer(*scores, lengths, target, True), strict=True
        ):
            assert_close(one, other)


def test_a_table_of_neighbours_for_each_example():
    lengths, scores, tables = torch.tensor([4, 2]), random(2, 4, 3, 2), random(2, 2, 2)
    found = segments.OPERATOR(lengths, (scores, tables), gradient=True)
    for b in range(2):
        alone = (scores[b : b + 1], tables[b : b + 1])
        single = segments.OPERATOR(lengths[b : b + 1], alone, gradient=True)
        for one, other in zip(found, single, strict=True):
            assert_close(one[b : b + 1], other)


# --- outputs ----------------------------------------------------------------------------------------


def test_lists_of_segments_and_back():
    sentences = [[(2, 3, 0), (0, 2, 1)], [], [(0, 1, 1)]]
    packed = softq.pack_segments(sentences, labels=2)
    assert packed.tokens.tolist() == [[5, 0, 2], [0, 0, 0], [3, 0, 0]]
    assert packed.lengths.tolist() == [3, 0, 1]
    found = softq.unpack_segments(*packed, labels=2)
    assert found == [[(0, 2, 1), (2, 3, 0)], [], [(0, 1, 1)]]
    assert found[0][0] == Segment(start=0, end=2, label=1)
    p = softq.SemiMarkov(torch.zeros(3, 3, 2, 2), lengths=packed.lengths)
    p.check_outputs(packed.tokens)
    for wrong in [[(0, 1, 0), (2, 3, 0)], [(0, 2, 0), (1, 3, 0)], [(0, 0, 0)], [(0, 1, 2)]]:
        with pytest.raises(OutputError, match=r"expected a segment from token \d on"):
            softq.pack_segments([wrong], labels=2)
    with pytest.raises(ShapeError, match=r"outputs must have shape \[B, n\]"):
        softq.unpack_segments(torch.zeros(3), None, labels=2)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([4, 0, 1, 2], "got 1 at index"),
        ([8, 0, 0, 0], r"length in 1\.\.3 and a label in 0\.\.1, got 8"),
        ([2, 6, 0, 0], r"a segment ends behind the last token at token 1"),
        ([4, 2, 2, 0], "begins inside another at token 1"),
        ([2, 0, 2, 0], "should begin at token 1"),
        ([0, 2, 2, 0], "should begin at token 0"),
        ([2, -100, 2, 0], "got -100"),
    ],
)
def test_values_that_do_not_cut_the_tokens(values, text):
    p = softq.SemiMarkov(torch.zeros(2, 4, 3, 2), lengths=[4, 3])
    good = torch.tensor([2, 2, 2, 0])
    with pytest.raises(OutputError, match=text):
        p.log_prob(torch.stack([torch.tensor([2, 2, 2, 2]), torch.tensor(values)]))
    assert p.log_prob(torch.stack([torch.tensor([6, 0, 0, 3]), good])).isfinite().all()


def test_partial_values_are_checked_against_every_completion():
    """Whatever no segmentation agrees with is an error, and nothing else."""
    p = softq.SemiMarkov(torch.zeros(4, 2, 2))
    every = oracle.segmentations(4, 2, 2)
    for values in itertools.product([-100, 0, 2, 5], repeat=4):
        possible = any(all(v in (-100, w) for v, w in zip(values, y, strict=True)) for y in every)
        given = torch.tensor(values)
        if possible:
            assert p.check_values(given, None, True) == (-100 in values)
        else:
            with pytest.raises(OutputError, match="without gaps"):
                p.check_values(given, None, True)


@pytest.mark.parametrize("scheme", ["iob1", "bio", "bioes"])
def test_tags_are_segments_and_back(scheme):
    kinds = ["LOC", "O", "PER"]
    every = [y for n in range(5) for y in oracle.segmentations(n, 4, 3)]
    for y in every:
        parts = [(t, t + size, kind) for t, size, kind in oracle.segments_of(y, 3)]
        if any(kind == 1 and end > start + 1 for start, end, kind in parts):
            continue  # an O of several words is as many of one word
        labels = tags_of_segments(parts, scheme, kinds)
        assert faults(labels, scheme) == []
        assert segments_of_tags(labels, scheme, kinds) == parts
        assert tuple(softq.pack_segments([parts], labels=3).tokens[0].tolist()) == y
    assert tags_of_segments([(0, 3, 1), (3, 4, 2)], "bioes", kinds) == ["O", "O", "O", "S-PER"]
    for known in (["O", "LOC"], ["LOC", "PER"]):
        with pytest.raises(DataError, match=f"which is none of {', '.join(known)}"):
            segments_of_tags(["O", "B-PER"], "bio", known)


def test_scores_that_do_not_fit():
    with pytest.raises(ShapeError, match=r"segments must have shape \[\*B, n, L, K\] with L >= 1"):
        softq.SemiMarkov(torch.zeros(2, 4, 0, 3))
    with pytest.raises(ShapeError, match=r"transitions must have shape \[3, 3\], got \[2, 2\]"):
        softq.SemiMarkov(torch.zeros(2, 4, 2, 3), torch.zeros(2, 2))
    with pytest.raises(DtypeError, match=r"transitions must be like the segments, torch\.float32"):
        softq.SemiMarkov(torch.zeros(2, 4, 2, 3), torch.zeros(3, 3, **DOUBLE))
