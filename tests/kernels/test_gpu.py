"""GPU kernels against the CPU's.

Compiled where there is a GPU, else run by Triton's interpreter on CPU tensors.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from torch import Tensor

# First, because Triton must be told to interpret before a kernel is imported.
from triton_world import (  # noqa: F401 -- a fixture
    DEVICE,
    HAS_GPU,
    interpreter_takes_loop_bounds_from_tensors,
    mark_for,
    on_gpu,
)

# isort: split
import chance
import oracle
import softq
from families import FAMILIES
from softq.kernels import chain, projective, segments, spanning
from softq.kernels.chain import cpu as chain_cpu
from softq.kernels.chain import gpu as chain_gpu
from softq.kernels.operator import Expected
from softq.kernels.projective import gpu as projective_gpu
from softq.kernels.random import seed_tensor
from softq.kernels.segments import cpu as segments_cpu
from softq.kernels.segments import gpu as segments_gpu
from softq.kernels.spanning import gpu as spanning_gpu

kernels_run = mark_for(chain_gpu._recursions)
pytestmark = (
    pytest.mark.no_cover
)  # it follows no Triton kernel, and makes their interpreter twice as slow

both_types = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32], ids=["float64", "float32"]
)
both_roots = pytest.mark.parametrize("multiroot", [False, True], ids=["single", "multi"])
both_trees = pytest.mark.parametrize("kind", ["projective", "spanning"])
scales = pytest.mark.parametrize("scale", [1.0, 1e4])
# The interpreter takes seconds for a tree: without a GPU each type and each scale is tried once.
types_and_scales = pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (torch.float64, 1.0),
        (torch.float32, 1e4),
        *([(torch.float64, 1e4), (torch.float32, 1.0)] if HAS_GPU else []),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)

TREES = {
    "projective": (projective._cpu, projective_gpu.infer, softq.ProjectiveTree),
    "spanning": (spanning._cpu, spanning_gpu.infer, softq.SpanningTree),
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
LENGTHS = torch.tensor([6, 0, 1, 2, 4, 3])


def rand(*shape, dtype, seed, scale=1.0, forbid=0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(shape, dtype=torch.float64, generator=generator) * scale
    barred = torch.rand(shape, dtype=torch.float64, generator=generator) < forbid
    return scores.masked_fill(barred, -math.inf).to(dtype)


def chain_scores(shared, dtype, scale=1.0, forbid=0.2, labels=5, feasible=False):
    """Six sequences with NaN on all padding; the last one is infeasible."""
    emissions = rand(6, 6, labels, dtype=dtype, scale=scale, forbid=forbid, seed=1)
    emissions[5, 2] = 0.0 if feasible else -math.inf
    for b, n in enumerate(LENGTHS.tolist()):
        emissions[b, n:] = math.nan
    if shared:
        return emissions, rand(
            1, 1, labels, labels, dtype=dtype, scale=scale, forbid=forbid / 2, seed=2
        ).expand(6, -1, -1, -1)
    table = rand(6, 5, labels, labels, dtype=dtype, scale=scale, forbid=forbid / 2, seed=2)
    for b, n in enumerate(LENGTHS.tolist()):
        table[b, max(n - 1, 0) :] = math.nan
    return emissions, table


def arc_scores(dtype, scale=1.0, forbid=0.2):
    """Six sentences with junk wherever no arc can be; the last one is infeasible."""
    arcs = rand(6, 7, 7, dtype=dtype, scale=scale, forbid=forbid, seed=3)
    arcs[0, 1:, 4] = -math.inf  # only the root may head word 4
    arcs[0, 0, 4] = 0.0
    arcs[5, :, 2] = -math.inf
    for b, n in enumerate(LENGTHS.tolist()):
        arcs[b, n + 1 :] = math.nan
        arcs[b, :, n + 1 :] = math.nan
    arcs[:, :, 0] = math.nan
    arcs.diagonal(0, 1, 2).fill_(math.inf)
    return arcs


def segment_scores(dtype, scale=1.0, forbid=0.2, longest=3, labels=5, feasible=False):
    """Six sequences with NaN on all padding; the last one is infeasible."""
    scores = rand(6, 6, longest, labels, dtype=dtype, scale=scale, forbid=forbid, seed=1)
    scores[5, 0] = 0.0 if feasible else -math.inf
    ends = torch.arange(6).unsqueeze(-1) + torch.arange(longest)
    scores[ends >= LENGTHS.reshape(-1, 1, 1)] = math.nan
    table = rand(1, labels, labels, dtype=dtype, scale=scale, forbid=forbid / 2, seed=2)
    return scores, table


def agree(found, expected, dtype, rtol=None, atol=None):
    tolerance = TOLERANCE[dtype]
    for f, e in zip(found, expected, strict=True):
        assert f.device.type == DEVICE
        assert f.dtype == e.dtype == dtype
        torch.testing.assert_close(
            f.cpu(),
            e,
            rtol=tolerance if rtol is None else rtol,
            atol=tolerance if atol is None else atol,
        )


def rounding(dtype, scale):
    """Absolute tolerance for long inputs.

    Float32 scores near 1e4 are a thousandth apart, and a tree or sequence adds up many.
    """
    return None if scale == 1.0 else 0.1 if dtype == torch.float32 else 1e-6


def moved(target: Expected) -> Expected:
    given = [None if part is None else part.to(DEVICE) for part in target[:3]]
    return Expected(*given, tuple(part.to(DEVICE) for part in target.parts))


def label_targets(lengths, shape):
    """No target; two references, one of them without weight or label; the same with peaked laws.

    Dense parts.
    """
    batch, size, labels, steps = shape
    generator = torch.Generator().manual_seed(20)
    outputs = torch.randint(labels, (batch, 2, size), generator=generator)
    weights = torch.rand(batch, 2, generator=generator, dtype=torch.float64)
    weights[::2, 1] = 0.0
    peaks = torch.rand(1, labels + 1, 2, generator=generator, dtype=torch.float64)
    peaks[:, labels, 1] = 0.0
    unknown = outputs.clone()
    unknown[:, :, ::3] = labels
    parts = (
        torch.rand(batch, size, labels, generator=generator),
        torch.rand(batch, steps, labels, labels, generator=generator),
    )
    real = torch.arange(size) < lengths.unsqueeze(1)
    parts[0][~real] = 0.0
    if steps > 1:
        parts[1][~real[:, 1:]] = 0.0
    else:
        parts[1][lengths < 2] = 0.0
    return [
        Expected(),
        Expected(outputs, weights),
        Expected(unknown, weights, peaks),
        Expected(parts=parts),
    ]


def check_chain(lengths, emissions, table, dtype, atol=None):
    shape = (*emissions.shape, table.shape[1])
    targets = (
        label_targets(lengths, shape) if shape[2] <= 64 and emissions.numel() else [Expected()]
    )
    finite = [not bool((x == -math.inf).any()) for x in (emissions, table)]
    for target in targets if all(finite) else targets[:1]:
        target = target._replace(parts=tuple(part.to(dtype) for part in target.parts))
        found = chain_cpu.infer(emissions, table, lengths, target, True)
        there = table.to(DEVICE) if table.stride(0) else table[:1].to(DEVICE)
        got = chain_gpu.infer(emissions.to(DEVICE), there, lengths.to(DEVICE), moved(target), True)
        agree(got, found, dtype, atol=atol)
    return chain_cpu.infer(emissions, table, lengths, Expected(), True)[0]


def segment_targets(lengths, scores, table):
    """As `label_targets`; no segment is peaked."""
    generator = torch.Generator().manual_seed(20)
    inside = scores.nan_to_num(nan=-math.inf)
    outputs = segments_cpu.sample(lengths, inside, table, 2, generator).movedim(0, 1)
    weights = torch.rand(len(lengths), 2, generator=generator, dtype=torch.float64)
    weights[::2, 1] = 0.0
    outputs[::2, 1] = 0
    parts = [torch.rand(len(lengths), *x.shape[1:], generator=generator) for x in (scores, table)]
    parts[0][scores.isnan()] = 0.0
    return [Expected(outputs), Expected(outputs, weights), Expected(parts=tuple(parts))]


def check_segments(lengths, scores, table, dtype, atol=None):
    """The kernel against the CPU's, also where the tensors lie otherwise in memory."""
    finite = not any(bool((x == -math.inf).any()) for x in (scores, table))
    targets = [Expected(), *(segment_targets(lengths, scores, table) if finite else [])]
    for target in targets:
        target = target._replace(parts=tuple(part.to(dtype) for part in target.parts))
        want = segments_cpu.infer(scores, table, lengths, target, True)
        given = (x.to(DEVICE).mT.contiguous().mT for x in (scores, table))
        got = segments_gpu.infer(*given, lengths.to(DEVICE), moved(target), True)
        agree(got, want, dtype, atol=atol)
    return segments_cpu.infer(scores, table, lengths, Expected(), True)[0]


def check_tree(kind, lengths, arcs, multiroot, dtype, atol=None):
    cpu, gpu, _ = TREES[kind]
    generator = torch.Generator().manual_seed(21)
    size = arcs.shape[1] - 1
    heads = (
        torch.rand(len(lengths), 2, size, generator=generator) * (lengths + 1).reshape(-1, 1, 1)
    ).long()
    weights = torch.rand(len(lengths), 2, generator=generator, dtype=torch.float64)
    weights[::2, 1] = 0.0
    targets = [Expected()]
    if not bool((arcs == -math.inf).any()):  # no word heads itself
        heads = torch.where(heads == torch.arange(1, size + 1), 0, heads)
        targets.append(Expected(heads, weights))
    for target in targets:
        got = gpu(arcs.to(DEVICE), lengths.to(DEVICE), moved(target), multiroot, True)
        agree(got, cpu(arcs, lengths, target, multiroot, True), dtype, atol=atol)
    return cpu(arcs, lengths, Expected(), multiroot, True)[0]


# --- the kernels, in either world -------------------------------------------------------------------------


@kernels_run
@both_types
@scales
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-step"])
def test_chain_kernel(shared, scale, dtype):
    # float32 scores near 1e4 are a thousandth apart, and so are the marginals of neighbours
    atol = 3e-3 if (scale, dtype) == (1e4, torch.float32) else None
    log_z = check_chain(LENGTHS, *chain_scores(shared, dtype, scale), dtype, atol=atol)
    assert log_z[1] == 0.0
    assert log_z[5] == -math.inf
    assert bool(torch.isfinite(log_z[[0, 2, 3, 4]]).all())


@kernels_run
@types_and_scales
@both_roots
@both_trees
def test_tree_kernel(kind, multiroot, scale, dtype):
    log_z = check_tree(kind, LENGTHS, arc_scores(dtype, scale, forbid=0.15), multiroot, dtype)
    assert log_z[1] == 0.0
    assert log_z[5] == -math.inf
    assert bool(torch.isfinite(log_z[[0, 3, 4]]).all())


@kernels_run
@types_and_scales
def test_segment_kernel(scale, dtype):
    atol = 3e-3 if (scale, dtype) == (1e4, torch.float32) else None
    log_z = check_segments(LENGTHS, *segment_scores(dtype, scale), dtype, atol=atol)
    assert log_z[1] == 0.0
    assert log_z[5] == -math.inf
    assert bool(torch.isfinite(log_z[[0, 2, 3, 4]]).all())


@kernels_run
@pytest.mark.parametrize(("longest", "labels"), [(3, 5), (8, 1)])
def test_segment_kernel_with_targets(longest, labels):
    scores = segment_scores(torch.float64, 1.0, 0.0, longest, labels, feasible=True)
    check_segments(LENGTHS, *scores, torch.float64)


@kernels_run
@pytest.mark.parametrize("kind", ["chain", "segments"])
def test_log_partition_alone(kind):
    given = chain_scores(True, torch.float32) if kind == "chain" else segment_scores(torch.float32)
    cpu, gpu = (chain_cpu, chain_gpu) if kind == "chain" else (segments_cpu, segments_gpu)
    want = cpu.infer(*given, LENGTHS, Expected(), True)[0]
    there = (x.to(DEVICE) for x in (*given, LENGTHS))
    agree([gpu.infer(*there, Expected(), False)[0]], [want], torch.float32)


@kernels_run
def test_stretches_of_segments_meet():
    scores, lengths = rand(1, 20, 2, 3, dtype=torch.float64, seed=30), torch.tensor([19])
    check_segments(lengths, scores, rand(1, 3, 3, dtype=torch.float64, seed=31), torch.float64)


@kernels_run
@pytest.mark.parametrize(("longest", "labels"), [(2, 65), (65, 2)])
def test_segments_too_large_for_the_kernel_run_plainly(longest, labels):
    scores = rand(1, 3, longest, labels, dtype=torch.float64, seed=32)
    table = rand(1, labels, labels, dtype=torch.float64, seed=33)
    want = segments_cpu.infer(scores, table, torch.tensor([3]), Expected(), True)
    given = (x.to(DEVICE) for x in (scores, table, torch.tensor([3])))
    agree(segments_gpu.infer(*given, Expected(), True), want, torch.float64)


@kernels_run
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-step"])
def test_chain_kernel_with_targets(shared):
    check_chain(
        LENGTHS, *chain_scores(shared, torch.float64, forbid=0.0, feasible=True), torch.float64
    )


@kernels_run
@both_trees
def test_tree_kernel_with_targets(kind):
    check_tree(kind, LENGTHS, rand(6, 7, 7, dtype=torch.float64, seed=22), False, torch.float64)


@kernels_run
def test_chain_kernel_reads_strides():
    emissions, table = (x.to(DEVICE) for x in chain_scores(False, torch.float64))
    straight = chain_gpu.infer(emissions, table, LENGTHS.to(DEVICE), Expected(), True)
    turned = (
        emissions.permute(2, 0, 1).contiguous().permute(1, 2, 0),
        table.transpose(2, 3).contiguous().transpose(2, 3),
    )
    strided = chain_gpu.infer(*turned, LENGTHS.to(DEVICE), Expected(), True)
    torch.testing.assert_close(strided, straight)


@kernels_run
@both_trees
def test_tree_kernel_reads_strides(kind):
    arcs, lengths = arc_scores(torch.float64)[4:5].to(DEVICE), LENGTHS[4:5].to(DEVICE)
    straight = TREES[kind][1](arcs, lengths, Expected(), False, True)
    strided = TREES[kind][1](
        arcs.transpose(1, 2).contiguous().transpose(1, 2), lengths, Expected(), False, True
    )
    torch.testing.assert_close(strided, straight)


@kernels_run
def test_kernels_of_nothing():
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    found = chain_gpu.infer(
        torch.zeros(0, 3, 2, device=DEVICE),
        torch.zeros(0, 2, 2, 2, device=DEVICE),
        none,
        Expected(),
        True,
    )
    assert [x.shape for x in found] == [(0,), (0, 3, 2), (0, 2, 2, 2)]
    empty = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    found = chain_gpu.infer(
        torch.zeros(2, 0, 3, device=DEVICE),
        torch.zeros(2, 0, 3, 3, device=DEVICE),
        empty,
        Expected(),
        True,
    )
    assert found[0].tolist() == [0.0, 0.0]
    for size, lengths in ((3, none), (0, empty)):
        shape = (len(lengths), size, 2, 4)
        given = (torch.zeros(each, device=DEVICE) for each in (shape, (1, 4, 4)))
        found = segments_gpu.infer(*given, lengths, Expected(), True)
        assert [x.shape for x in found] == [shape[:1], shape, (len(lengths), 4, 4)]
        assert bool((found[0] == 0.0).all())
    for _, infer, _ in TREES.values():
        assert infer(torch.zeros(0, 4, 4, device=DEVICE), none, Expected(), False, True)[
            1
        ].shape == (0, 4, 4)
        log_z, found = infer(
            torch.full((2, 1, 1), math.nan, device=DEVICE), empty, Expected(), False, True
        )
        assert log_z.tolist() == [0.0, 0.0]
        assert found.tolist() == [[[0.0]], [[0.0]]]


@kernels_run
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-step"])
def test_chain_of_one_position(shared):
    emissions = rand(3, 1, 4, dtype=torch.float64, seed=4)
    check_chain(
        torch.tensor([1, 0, 1]),
        emissions,
        torch.zeros(3, 1 if shared else 0, 4, 4, dtype=torch.float64),
        torch.float64,
    )


@kernels_run
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-step"])
def test_chain_of_too_many_labels_runs_plainly(shared):
    log_z = check_chain(LENGTHS, *chain_scores(shared, torch.float64, labels=65), torch.float64)
    assert log_z[5] == -math.inf


def test_a_target_without_a_kernel_counts_or_is_refused():
    emissions, transitions = chain_scores(True, torch.float64, labels=65)
    scores = [x[:4].nan_to_num() for x in (emissions, transitions)]
    lengths = torch.full((4,), emissions.shape[1])
    parts = tuple(torch.rand(4, *x.shape[1:], dtype=torch.float64) for x in scores)
    target = Expected(parts=parts)
    for found, want in zip(
        chain_gpu.infer(*scores, lengths, target, True),
        chain_cpu.infer(*scores, lengths, target, True),
        strict=True,
    ):
        torch.testing.assert_close(found, want)
    outputs = torch.zeros(4, 1, emissions.shape[1], dtype=torch.int64)
    with pytest.raises(NotImplementedError, match="needs a kernel"):
        chain_gpu.infer(*scores, lengths, Expected(outputs), True)


@kernels_run
@both_roots
def test_spanning_of_too_many_words_runs_plainly(multiroot):
    arcs = rand(2, 66, 66, dtype=torch.float64, seed=5, forbid=0.2)
    arcs[1, 4:] = math.nan
    arcs[1, :, 4:] = math.nan
    check_tree("spanning", torch.tensor([65, 3]), arcs, multiroot, torch.float64)


@kernels_run
@both_roots
def test_projective_tiles_meet(multiroot):
    # More words than a tile is wide, so sums run over several tiles.
    check_tree(
        "projective",
        torch.tensor([34]),
        rand(1, 36, 36, dtype=torch.float64, seed=6, forbid=0.1),
        multiroot,
        torch.float64,
    )


DECODERS = {
    "chain": chain.DECODER,
    "segments": segments.DECODER,
    "projective": projective.DECODER,
    "spanning": spanning.DECODER,
}
RECURSIONS = [family for family in FAMILIES if family.name.split("-")[0] in DECODERS]
recursions = pytest.mark.parametrize("family", RECURSIONS, ids=lambda family: family.name)


def decode(kind, given, count=0, seed=0):
    """The GPU's best outputs, or samples."""
    there = [x.to(DEVICE) if isinstance(x, Tensor) else x for x in given]
    generator = torch.Generator().manual_seed(seed)
    seeds = seed_tensor(count * len(there[0]), generator).reshape(count, len(there[0])).to(DEVICE)
    found = DECODERS[kind.split("-")[0]].decode(
        seeds if count else there[0].unsqueeze(0), count > 0, *there
    )
    assert found.device.type == DEVICE
    return found.cpu() if count else found[0].cpu()


@kernels_run
@recursions
def test_the_best_output_by_enumeration(family):
    scores, lengths = family.random_scores((4,), forbid=0.1, seed=40), family.lengths(4)
    p = family.make(*scores, lengths)
    best = decode(family.name, (*p._arguments(), *p._flags))
    for b, length in enumerate(lengths.tolist()):
        outputs, values = family.enumerate(family.example(scores, 4, b), length)
        found = tuple(best[b, :length].tolist())
        assert values[outputs.index(found)] == pytest.approx(max(values))
        assert not bool(best[b, length:].any())


@kernels_run
def test_segment_kernel_by_enumeration():
    family = next(family for family in FAMILIES if family.name == "segments")
    scores, lengths = family.random_scores((4,), forbid=0.1, seed=41), family.lengths(4)
    lengths, *given = (x.to(DEVICE) for x in family.make(*scores, lengths)._arguments())
    found = segments_gpu.infer(*given, lengths, Expected(), True)
    log_z, marginals, pairs = (x.cpu() for x in found)
    for b, length in enumerate(lengths.tolist()):
        outputs, values = family.enumerate(family.example(scores, 4, b), length)
        assert log_z[b].item() == pytest.approx(oracle.log_sum_exp(values))
        want = torch.zeros_like(marginals[b]), torch.zeros_like(pairs[b])
        for y, share in zip(outputs, oracle.probabilities(values), strict=True):
            for part in family.parts(y):
                want[0][part] += share
            found = [label for _, _, label in oracle.segments_of(y, 2)]
            for i, j in itertools.pairwise(found):
                want[1][i, j] += share
        torch.testing.assert_close((marginals[b], pairs[b]), want)


@kernels_run
@recursions
def test_decoding_kernels_do_what_the_cpu_does(family):
    size = 5 + (family.score_shapes((), 5)[0][0] == 6)  # trees of 5 words, sequences of 6
    if family.name.startswith("segments"):
        size = 6
    scores = family.random_scores((3,), size, dtype=torch.float32, scale=2.0, seed=42)
    p = family.make(*scores, torch.tensor([size, 0, size - 1]))
    given = (*p._arguments(), *p._flags)
    assert torch.equal(decode(family.name, given), p.mode())
    want = p.sample((3,), generator=torch.Generator().manual_seed(43))
    # the chance that rounding tips a choice is one in 10^13
    assert torch.equal(decode(family.name, given, 3, seed=43), want)


@kernels_run
def test_best_spanning_trees_of_many_cycles():
    """Cycles within cycles; with small whole scores there are several best trees."""
    arcs = rand(2, 13, 13, dtype=torch.float64, seed=44, scale=3.0)
    arcs[1] = arcs[1].round()
    lengths = torch.tensor([12, 9])
    for multiroot in (False, True):
        best = decode("spanning", (lengths, arcs, multiroot))
        model = softq.SpanningTree(arcs, lengths, multiroot)
        assert torch.equal(model.score(best), model.score(model.mode()))


@kernels_run
@both_roots
def test_walks_that_are_given_up(multiroot, monkeypatch):
    """Heads drawn one by one follow the same distribution."""
    arcs = rand(1, 4, 4, dtype=torch.float64, seed=45)
    trees = oracle.trees(3, multiroot=multiroot, projective=False)
    monkeypatch.setattr(spanning.cpu, "PATIENCE", 0)
    found = decode("spanning", (torch.tensor([3]), arcs, multiroot), 500, seed=46)
    probs = oracle.probabilities([oracle.tree_score(arcs[0].tolist(), heads) for heads in trees])
    seen = Counter(tuple(heads) for heads in found[:, 0].tolist())
    assert chance.agrees(seen, dict(zip(trees, probs, strict=True)), 500)


@kernels_run
@pytest.mark.parametrize("kind", DECODERS)
def test_decoding_of_nothing(kind):
    flags = (False,) if kind in TREES else ()
    table = [] if kind in TREES else [torch.zeros(1, *[1] * (kind == "chain"), 2, 2)]
    for batch, size in ((0, 3), (2, 0)):
        parts = {"chain": (size, 2), "segments": (size, 3, 2)}.get(kind, (size + 1, size + 1))
        given = (torch.zeros(batch).long(), torch.zeros(batch, *parts), *table, *flags)
        assert decode(kind, given).shape == (batch, size)
        assert decode(kind, given, 4).shape == (4, batch, size)


@pytest.mark.parametrize("kind", ["chain", "segments"])
def test_scores_go_where_a_kernel_has_room_for_them(kind, monkeypatch):
    """On a GPU, and small enough; else the CPU decodes."""

    class OnGPU(torch.Tensor):
        is_cuda = True

    asked = []
    monkeypatch.setattr(DECODERS[kind], "_gpu", lambda *given: asked.append(given[-1]))
    for labels in (64, 65):
        scores = torch.zeros(1, 2, *[1] * (kind == "segments"), labels).as_subclass(OnGPU)
        given = (
            torch.tensor([2]),
            scores,
            torch.zeros(1, *[1] * (kind == "chain"), labels, labels),
        )
        assert DECODERS[kind].mode(*given).shape == (1, 2)
        assert DECODERS[kind].sample(*given, 3, None).shape == (3, 1, 2)
    assert asked == [False, True]


# --- the compiled kernels at full size, and the public classes on top of them --------------------------------


@pytest.mark.gpu
@on_gpu
@both_types
@scales
@pytest.mark.parametrize(
    ("batch", "size", "labels"),
    [(256, 100, 9), (16, 30, 1), (16, 30, 20), (8, 40, 64), (4, 2000, 9)],
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per-step"])
def test_chain_at_full_size(batch, size, labels, shared, scale, dtype):
    lengths = torch.randint(0, size + 1, (batch,), generator=torch.Generator().manual_seed(7))
    emissions = rand(
        batch, size, labels, dtype=dtype, seed=8, scale=scale, forbid=0.05 if labels > 1 else 0.0
    )
    steps = (1, 1) if shared else (batch, size - 1)
    table = rand(*steps, labels, labels, dtype=dtype, seed=9, scale=scale).expand(batch, *[-1] * 3)
    check_chain(lengths, emissions, table, dtype, rounding(dtype, scale))


@pytest.mark.gpu
@on_gpu
@both_types
@scales
@pytest.mark.parametrize(
    ("batch", "size", "longest", "labels"),
    [(128, 40, 8, 9), (16, 30, 1, 1), (16, 30, 5, 20), (4, 70, 64, 64), (4, 1000, 12, 9)],
)
def test_segments_at_full_size(batch, size, longest, labels, scale, dtype):
    lengths = torch.randint(0, size + 1, (batch,), generator=torch.Generator().manual_seed(7))
    forbid = 0.05 if labels > 1 else 0.0
    scores = rand(batch, size, longest, labels, dtype=dtype, seed=8, scale=scale, forbid=forbid)
    table = rand(1, labels, labels, dtype=dtype, seed=9, scale=scale)
    check_segments(lengths, scores, table, dtype, rounding(dtype, scale))
    check_segments(lengths, scores.clamp(min=-5.0), table, dtype, rounding(dtype, scale))


@pytest.mark.gpu
@on_gpu
@both_types
@both_roots
@both_trees
@scales
@pytest.mark.parametrize(("batch", "size"), [(64, 40), (128, 16), (8, 63), (4, 100)])
def test_trees_at_full_size(batch, size, kind, multiroot, scale, dtype):
    lengths = torch.randint(0, size + 1, (batch,), generator=torch.Generator().manual_seed(10))
    arcs = rand(batch, size + 1, size + 1, dtype=dtype, seed=11, scale=scale, forbid=0.05)
    check_tree(kind, lengths, arcs, multiroot, dtype, rounding(dtype, scale))


def make(kind, scores, lengths):
    if kind in ("chain", "chain-shared", "chain-steps"):
        return softq.Chain(*scores, lengths)
    if kind == "segments":
        return softq.SemiMarkov(*scores, lengths)
    return TREES[kind.split("-")[0]][2](*scores, lengths, kind.endswith("multi"))


def public_scores(kind, dtype):
    if kind == "chain-shared":
        return [rand(256, 100, 9, dtype=dtype, seed=12), rand(9, 9, dtype=dtype, seed=13)]
    if kind == "chain-steps":
        return [rand(32, 20, 5, dtype=dtype, seed=12), rand(32, 19, 5, 5, dtype=dtype, seed=13)]
    if kind == "segments":
        return [rand(128, 40, 8, 9, dtype=dtype, seed=12), rand(9, 9, dtype=dtype, seed=13)]
    return [rand(64, 41, 41, dtype=dtype, seed=14)]


public = pytest.mark.parametrize(
    "kind",
    [
        "chain-shared",
        "chain-steps",
        "segments",
        "projective-single",
        "projective-multi",
        "spanning-single",
        "spanning-multi",
    ],
)


def pair(kind, dtype):
    """The same distribution on the CPU and on the GPU, with leaves for scores."""
    scores = public_scores(kind, dtype)
    size = scores[0].shape[1] - (0 if kind.startswith(("chain", "segments")) else 1)
    lengths = torch.randint(
        1, size + 1, scores[0].shape[:1], generator=torch.Generator().manual_seed(15)
    )
    leaves = [[s.to(device).requires_grad_() for s in scores] for device in ("cpu", "cuda")]
    return [(x, make(kind, x, lengths.to(x[0].device))) for x in leaves]


@pytest.mark.gpu
@on_gpu
@both_types
@public
def test_public_values_and_gradients(kind, dtype):
    (here, p), (there, q) = pair(kind, dtype)
    agree(
        [q.log_partition, q.marginals, q.entropy()],
        [p.log_partition, p.marginals, p.entropy()],
        dtype,
    )
    weights = rand(p.batch_shape[0], dtype=dtype, seed=16)
    agree(
        torch.autograd.grad((q.log_partition * weights.cuda()).sum(), there),
        torch.autograd.grad((p.log_partition * weights).sum(), here),
        dtype,
        rtol=1e-3 if dtype == torch.float32 else None,
    )


@pytest.mark.gpu
@on_gpu
@public
def test_public_scores_may_lie_in_memory_in_any_order(kind):
    (here, p), (there, contiguous) = pair(kind, torch.float64)
    first = there[0].detach().transpose(0, 1).contiguous().requires_grad_()
    q = make(kind, [first.transpose(0, 1), *there[1:]], contiguous.lengths)
    agree(
        [q.log_partition, q.marginals, q.entropy()],
        [p.log_partition, p.marginals, p.entropy()],
        torch.float64,
    )
    (found,) = torch.autograd.grad(q.log_partition.sum(), first)
    (right,) = torch.autograd.grad(p.log_partition.sum(), here[0])
    agree([found.transpose(0, 1)], [right], torch.float64)


@pytest.mark.gpu
@on_gpu
@public
def test_public_decoding_and_samples(kind):
    (_, p), (_, q) = pair(kind, torch.float64)
    for here, there in ((p.mode(), q.mode()), (p.mbr(), q.mbr())):
        assert there.is_cuda
        assert torch.equal(there.cpu(), here)
    here, there = (d.sample((3,), generator=torch.Generator().manual_seed(17)) for d in (p, q))
    assert there.is_cuda
    assert there.shape == here.shape
    assert (there.cpu() == here).double().mean() > 0.99  # rounding may tip a rare draw
    agree([q.log_prob(here.cuda())], [p.log_prob(here)], torch.float64)


@pytest.mark.gpu
@on_gpu
@both_types
@pytest.mark.parametrize("objective", ["ml", "raml", "sqdml"])
@public
def test_public_cross_entropy(kind, objective, dtype):
    (here, p), (there, q) = pair(kind, dtype)
    refs = p.sample((2,), generator=torch.Generator().manual_seed(18)).movedim(0, 1)

    def loss(d):
        given = refs.to(d.device)
        target = (
            softq.ml(d, given)
            if objective == "ml"
            else getattr(softq, objective)(d, given, tau=0.4)
        )
        return softq.cross_entropy(target, d)

    a, b = loss(p), loss(q)
    agree([b], [a], dtype)
    agree(
        torch.autograd.grad(b.sum(), there),
        torch.autograd.grad(a.sum(), here),
        dtype,
        rtol=1e-3 if dtype == torch.float32 else None,
    )


@pytest.mark.gpu
@on_gpu
@public
def test_public_topk(kind):
    (_, p), (_, q) = pair(kind, torch.float64)
    few = slice(0, 4)  # sets of sets of trees take their time
    p, q = (
        make(kind, [x[few] if x.dim() > 2 else x for x in d.given()], d.lengths[few])
        for d in (p, q)
    )
    here, there = p.topk(3), q.topk(3)
    assert there.outputs.is_cuda
    agree([there.log_probs], [here.log_probs], torch.float64)
    assert torch.equal(there.outputs.cpu(), here.outputs)


@pytest.mark.gpu
@on_gpu
@public
def test_decoding_can_be_captured(kind):
    """So nothing is copied to the CPU, and the device is not waited for."""
    _, (_, model) = pair(kind, torch.float64)
    leaves = [each.detach() for each in model.given()]

    def decode():
        p = make(kind, leaves, model.lengths)
        found = [p.mode(), p.mbr()]
        if not kind.startswith("spanning"):  # whose walks may be given up
            found.append(p.sample((2,), generator=torch.cuda.default_generators[0]))
        return found

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decode()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decode()
    leaves[0].mul_(-1.0)
    graph.replay()
    for found, expected in zip(captured[:2], decode(), strict=False):
        assert torch.equal(found, expected)
    assert bool(torch.isfinite(make(kind, leaves, model.lengths).log_prob(captured[-1])).all())


def step(leaves, kind, lengths, outputs, objective):
    """Loss and gradients, as a training step has them."""
    model = make(kind, leaves, lengths)
    target = softq.ml(model, outputs) if objective == "ml" else softq.raml(model, outputs, 0.5)
    loss = softq.cross_entropy(target, model)
    return loss.detach(), *torch.autograd.grad(loss.sum(), leaves)


@pytest.mark.gpu
@on_gpu
@public
@pytest.mark.parametrize("objective", ["ml", "raml"])
def test_a_captured_step_sees_new_scores(kind, objective):
    _, (given, model) = pair(kind, torch.float64)
    leaves = [each.detach().requires_grad_() for each in given]  # of no stream's making
    outputs = model.mode()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(leaves, kind, model.lengths, outputs, objective)  # compiles, and fills caches
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(leaves, kind, model.lengths, outputs, objective)
    with torch.no_grad():
        for leaf in leaves:
            leaf.mul_(0.5)
    graph.replay()
    for found, expected in zip(
        captured, step(leaves, kind, model.lengths, outputs, objective), strict=True
    ):
        torch.testing.assert_close(found, expected)


@pytest.mark.gpu
@on_gpu
@public
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on its first import
def test_a_compiled_step(kind):
    _, (given, model) = pair(kind, torch.float64)
    leaves = [each.detach().requires_grad_() for each in given]
    outputs = model.mode()

    def loss(*scores):
        p = make(kind, scores, model.lengths)
        return softq.cross_entropy(softq.ml(p, outputs), p)

    torch._dynamo.reset()
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(*leaves)
    expected = loss(*leaves)
    torch.testing.assert_close(found, expected)
    pairs = (torch.autograd.grad(each.sum(), leaves) for each in (found, expected))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("kind", ["chain", "projective-single", "spanning-multi"])
def test_second_derivatives_on_gpu(kind):
    lengths = torch.tensor([4, 2])
    shapes = [(2, 4, 3), (3, 3)] if kind == "chain" else [(2, 5, 5)]
    scores = [rand(*shape, dtype=torch.float64, seed=19 + i) for i, shape in enumerate(shapes)]
    found = []
    for device in ("cpu", "cuda"):
        leaves = [s.to(device).requires_grad_() for s in scores]
        p = make(kind, leaves, lengths.to(device))
        found.append(torch.autograd.grad((p.marginals**2).sum(), leaves))
    agree(found[1], found[0], torch.float64)


# --- candidates: rewards and weights come from the CPU, everything else stays where it is -----------------------------


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("estimator", ["set", "paper", "importance"])
@pytest.mark.parametrize("objective", [softq.raml, softq.sqdml])
def test_targets_on_candidates(estimator, objective):
    refs = [[[3, 4, 5, 6, 7], [3, 4, 8, 7]], [[9, 10, 11]]]
    cands = softq.samplers.NgramReplacement(50, size=20)(
        refs, generator=torch.Generator().manual_seed(0)
    )
    cands = cands.measure(
        estimator, 6 if estimator == "paper" else None, generator=torch.Generator().manual_seed(1)
    )
    reward = softq.rewards.SentenceBLEU()
    plain = objective(cands, refs, 0.3, reward)
    there = objective(cands.to("cuda"), refs, 0.3, reward)
    assert there.weights.device.type == there.outputs.tokens.device.type == "cuda"
    assert torch.allclose(there.weights.cpu(), plain.weights)
    assert torch.equal(there.outputs.tokens.cpu(), plain.outputs.tokens)
    log_probs = torch.randn(plain.weights.shape, requires_grad=True)
    moved = log_probs.detach().cuda().requires_grad_()
    softq.cross_entropy(plain, log_probs).sum().backward()
    softq.cross_entropy(there, moved).sum().backward()
    assert torch.allclose(moved.grad.cpu(), log_probs.grad)


@on_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("method", ["ancestral", "top-p", "beam"])
def test_candidates_from_a_model(method):
    table = torch.randn(30, 30, generator=torch.Generator().manual_seed(0))

    def next_word(inputs, examples, prefixes):
        return inputs[prefixes[:, -1]]

    options = {
        "size": 5,
        "end": 0,
        "max_length": 7,
        "start": 1,
        "method": method,
        "top_p": 0.8 if method == "top-p" else None,
    }
    sampler = softq.samplers.FromModel(next_word, **options, references=True)
    refs = torch.tensor([[4, 5, 6], [7, 8, 9]])
    plain = sampler(refs, table, generator=torch.Generator().manual_seed(2))
    there = sampler(refs.cuda(), table.cuda(), generator=torch.Generator().manual_seed(2))
    assert there.tokens.device.type == "cuda"
    assert torch.equal(there.tokens.cpu(), plain.tokens)
    assert torch.allclose(there.log_model.cpu(), plain.log_model, atol=1e-5, equal_nan=True)


@on_gpu
@pytest.mark.gpu
def test_streams_hand_over_page_locked_batches():
    sampler = softq.samplers.NgramReplacement(50, size=10)
    batches = [
        torch.randint(1, 50, (4, 6), generator=torch.Generator().manual_seed(i)) for i in range(6)
    ]

    def prepare(refs, generator):
        return sampler(refs, generator=generator).pin_memory()

    with softq.samplers.CandidateStream(batches, prepare, seed=0, workers=2) as stream:
        for cands in stream:
            assert cands.tokens.is_pinned()
            assert torch.equal(cands.to("cuda", non_blocking=True).tokens.cpu(), cands.tokens)
