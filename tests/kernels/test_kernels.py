"""What the conformance suite is too small to see.

Long chains, larger trees, threads, fallbacks, samplers' corners.
"""

import math
import multiprocessing

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import oracle
import softq
from scale import draws
from softq.kernels import jit, random, semiring
from softq.kernels.spanning import cpu as spanning


@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_chain_of_ten_thousand(scale, dtype):
    """Against a plain float64 log-space forward pass."""
    generator = torch.Generator().manual_seed(0)
    emissions = (torch.randn(2, 10_000, 4, generator=generator, dtype=torch.float64) * scale).to(
        dtype
    )
    transitions = (torch.randn(4, 4, generator=generator, dtype=torch.float64) * scale).to(dtype)
    lengths = torch.tensor([10_000, 9_999])
    alpha = emissions[:, 0].double()
    for t in range(1, 10_000):
        moved = (
            torch.logsumexp(alpha.unsqueeze(-1) + transitions.double(), 1)
            + emissions[:, t].double()
        )
        alpha = moved if t < 9_999 else torch.stack([moved[0], alpha[1]])
    want = torch.logsumexp(alpha, 1)
    emissions.requires_grad_()
    p = softq.Chain(emissions, transitions, lengths)
    assert_close(
        p.log_partition.double(), want, rtol=1e-6 if dtype == torch.float32 else 1e-12, atol=0
    )
    (grad,) = torch.autograd.grad(p.log_partition.sum(), emissions)
    assert torch.isfinite(grad).all()
    assert_close(grad.sum(-1)[0], torch.ones(10_000, dtype=dtype), atol=1e-4, rtol=0)
    assert p.score(p.mode()).double().le(want * (1 + 1e-6)).all()


@pytest.mark.parametrize("size", [5, 6])
@pytest.mark.parametrize("multiroot", [False, True])
def test_trees_of_up_to_six_words(size, multiroot):
    arcs = torch.randn(
        size + 1, size + 1, generator=torch.Generator().manual_seed(size), dtype=torch.float64
    )
    plain = arcs.tolist()
    spanning_trees = oracle.trees(size, multiroot=multiroot, projective=False)
    for cls, trees in (
        (softq.SpanningTree, spanning_trees),
        (softq.ProjectiveTree, [t for t in spanning_trees if oracle.is_projective(t)]),
    ):
        values = [oracle.tree_score(plain, heads) for heads in trees]
        probs = oracle.probabilities(values)
        p = cls(arcs, multiroot=multiroot)
        assert p.log_partition.item() == pytest.approx(oracle.log_sum_exp(values), abs=1e-10)
        want = torch.zeros_like(arcs)
        for heads, q in zip(trees, probs, strict=True):
            for word, head in enumerate(heads, start=1):
                want[head, word] += q
        assert_close(p.marginals, want, atol=1e-12, rtol=0)
        assert p.entropy().item() == pytest.approx(oracle.entropy(probs), abs=1e-9)
        assert p.score(p.mode()).item() == pytest.approx(max(values), abs=1e-10)
        assert tuple(p.mode().tolist()) == trees[values.index(max(values))]


@pytest.mark.parametrize("multiroot", [False, True])
def test_projective_never_exceeds_spanning(multiroot):
    arcs = torch.randn(20, 31, 31, dtype=torch.float64) * 3
    lengths = torch.arange(11, 31)
    low = softq.ProjectiveTree(arcs, lengths, multiroot).log_partition
    high = softq.SpanningTree(arcs, lengths, multiroot).log_partition
    assert (low < high).all()
    assert (
        softq.SpanningTree(arcs, lengths, False).log_partition
        <= softq.SpanningTree(arcs, lengths, True).log_partition
    ).all()


@pytest.mark.parametrize("cls", [softq.ProjectiveTree, softq.SpanningTree])
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_larger_trees_against_the_reference(cls, multiroot, scale):
    arcs = (
        torch.randn(6, 26, 26, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        * scale
    )
    lengths = torch.tensor([25, 24, 17, 9, 2, 1])
    p = cls(arcs, lengths, multiroot)
    with softq.backend("reference"):
        reference = cls(arcs, lengths, multiroot)
        want, want_marginals = reference.log_partition, reference.marginals
    assert_close(p.log_partition, want, rtol=1e-12, atol=1e-10)
    assert_close(p.marginals, want_marginals, atol=1e-9, rtol=0)
    assert_close(p.marginals.sum((1, 2)), lengths.double())  # one head for each word
    if not multiroot:
        assert_close(p.marginals[:, 0].sum(1), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("multiroot", [False, True])
def test_sentences_that_share_charts_do_not_touch_each_other(multiroot):
    """Of four at once some leave the range of numbers, one has no tree, and lengths differ."""
    generator = torch.Generator().manual_seed(3)
    arcs = torch.randn(7, 16, 16, dtype=torch.float64, generator=generator)
    arcs *= torch.tensor([1.0, 300.0, 1.0, 30.0, 1.0, 1000.0, 1.0]).reshape(7, 1, 1)
    arcs[2, :, 4] = -math.inf
    lengths = torch.tensor([15, 15, 14, 15, 0, 3, 1])
    together = softq.ProjectiveTree(arcs, lengths, multiroot)
    for b in range(7):
        alone = softq.ProjectiveTree(arcs[b], lengths[b], multiroot)
        assert together.log_partition[b] == alone.log_partition
        assert torch.equal(together.marginals[b], alone.marginals)
    with softq.backend("reference"):
        want = softq.ProjectiveTree(arcs, lengths, multiroot)
        assert_close(together.log_partition, want.log_partition)
        assert_close(together.marginals, want.marginals, atol=1e-9, rtol=0)


@pytest.mark.parametrize("multiroot", [False, True])
def test_best_spanning_tree_against_enumeration_with_many_cycles(multiroot):
    """Integer scores make ties and nested cycles common.

    Forbidden arcs make some sentences infeasible.
    """
    generator = torch.Generator().manual_seed(2)
    trees = oracle.trees(5, multiroot=multiroot, projective=False)
    for trial in range(200):
        arcs = torch.randint(-3, 4, (6, 6), generator=generator).double()
        arcs[torch.rand(6, 6, generator=generator) < 0.35 * (trial % 2)] = -math.inf
        best = max(oracle.tree_score(arcs.tolist(), heads) for heads in trees)
        p = softq.SpanningTree(arcs, multiroot=multiroot)
        if best == -math.inf:
            assert p.log_partition.item() == -math.inf
        else:
            assert p.score(p.mode()).item() == best


def test_samplers_agree_when_the_walk_is_given_up(monkeypatch):
    """Heads drawn one by one follow the same distribution as Wilson's walks (failure rate 1e-6 each)."""
    arcs = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    count = draws(20_000)
    for multiroot in (False, True):
        trees = oracle.trees(3, multiroot=multiroot, projective=False)
        probs = oracle.probabilities(
            [oracle.tree_score(arcs[0].tolist(), heads) for heads in trees]
        )
        for patience in (0, 1, 50):
            monkeypatch.setattr(spanning, "PATIENCE", patience)
            drawn = softq.SpanningTree(arcs, multiroot=multiroot).sample(
                (count,), generator=torch.Generator().manual_seed(4)
            )
            seen = [int((drawn[:, 0] == torch.tensor(heads)).all(1).sum()) for heads in trees]
            assert sum(seen) == count
            statistic = sum(
                (o - count * q) ** 2 / (count * q) for o, q in zip(seen, probs, strict=True)
            )
            assert stats.chi2.sf(statistic, len(trees) - 1) > 1e-6


@pytest.mark.parametrize("cls", [softq.ProjectiveTree, softq.SpanningTree])
def test_arcs_whose_weights_underflow_still_count(cls):
    """Every tree needs an arc that is e^-9900 times weaker than its rival.

    In probability space there would be none.
    """
    arcs = torch.zeros(3, 3, dtype=torch.float64)
    arcs[1, 2] = arcs[2, 1] = 1e4
    arcs[0, 1] = 100.0
    p = cls(arcs)
    assert p.log_partition.item() == pytest.approx(10_100.0)
    assert p.marginals[0, 1].item() == pytest.approx(1.0)


@pytest.mark.parametrize("cls", [softq.ProjectiveTree, softq.SpanningTree])
def test_samples_of_two_words_that_insist_on_each_other(cls):
    """Weights that underflow and walks that would never end.

    Still a tree, and the better of the two.
    """
    arcs = torch.zeros(1, 3, 3, dtype=torch.float64)
    arcs[0, 1, 2] = arcs[0, 2, 1] = 1e4
    arcs[0, 0, 1] = 100.0
    drawn = cls(arcs).sample((50,), generator=torch.Generator().manual_seed(0))
    assert (drawn == torch.tensor([0, 1])).all()


@pytest.mark.parametrize("openmp", [True, False])
def test_work_is_shared_between_threads_and_gives_the_same_result(openmp, monkeypatch):
    if not openmp:
        monkeypatch.setattr(jit, "_OPENMP", None)
    threads = torch.get_num_threads()
    emissions, transitions = torch.randn(300, 40, 12), torch.randn(12, 12)
    arcs = torch.randn(40, 31, 31)
    try:
        results = []
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            chain, tree = softq.Chain(emissions, transitions), softq.ProjectiveTree(arcs)
            drawn = chain.sample((3,), generator=torch.Generator().manual_seed(0))
            results.append(
                [
                    chain.log_partition,
                    chain.marginals,
                    drawn,
                    tree.log_partition,
                    tree.marginals,
                    softq.SpanningTree(arcs).marginals,
                ]
            )
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("openmp", [True, False])
def test_an_error_in_a_share_reaches_the_caller(openmp, monkeypatch):
    if not openmp:
        monkeypatch.setattr(jit, "_OPENMP", None)

    def kernel(first, stride):
        if first == 1:
            raise ArithmeticError("share 1")

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ArithmeticError, match="share 1"):
            jit.run_batch(kernel, 8, 10**9)
    finally:
        torch.set_num_threads(threads)


def _count_shares(queue):
    seen = []
    jit.run_batch(lambda first, stride: seen.append(first), 16, 10**9)
    queue.put(len(seen))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("openmp", [True, False])
def test_a_forked_process_starts_its_own_threads(openmp, monkeypatch):
    """The parent's threads are not there in a child; work handed to them would wait for ever."""
    if not openmp:
        monkeypatch.setattr(jit, "_OPENMP", None)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        jit.run_batch(lambda first, stride: None, 16, 10**9)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=_count_shares, args=(queue,), daemon=True)
        child.start()
        child.join(timeout=60)
        assert child.exitcode == 0
        assert queue.get() == 2 * jit._SHARES_PER_THREAD
    finally:
        child.kill()
        torch.set_num_threads(threads)


def test_exponential_is_exact_to_rounding_and_keeps_minus_infinity():
    x = np.concatenate(
        [-np.random.default_rng(0).exponential(30.0, 10_000), [0.0, -1e-300, -699.9]]
    )
    found = np.array([semiring.fast_exp(v) for v in x])
    np.testing.assert_allclose(found, np.exp(x), rtol=1e-15)
    assert semiring.fast_exp(-np.inf) == 0.0
    assert semiring.fast_exp(-1e4) == 0.0


def test_generator_of_the_kernels_is_uniform():
    state = np.array([12345], dtype=np.uint64)
    drawn = np.array([random.next_random(state) for _ in range(20_000)])
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    assert stats.kstest(drawn, "uniform").pvalue > 1e-6


def test_unknown_backend():
    with pytest.raises(ValueError, match="reference"), softq.backend("slow"):
        pass
    with softq.backend("reference"):
        assert not softq.kernels.use_kernels()
    assert softq.kernels.use_kernels()


@pytest.mark.parametrize("steps", [True, False])
def test_transitions_shared_by_the_batch_per_step(steps):
    """[n-1, K, K] for all examples equals the same table given to each."""
    emissions = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    table = torch.randn((4, 4, 4) if steps else (4, 4), dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([5, 3, 1])
    shared = softq.Chain(emissions, table, lengths)
    each = softq.Chain(
        emissions, (table if steps else table.expand(4, 4, 4)).expand(3, 4, 4, 4), lengths
    )
    refs = torch.randint(4, (3, 2, 5))
    for make in (
        lambda p: softq.ml(p, refs),
        lambda p: softq.raml(p, refs, 0.5),
        lambda p: softq.sqdml(p, refs, 0.5),
    ):
        a, b = softq.cross_entropy(make(shared), shared), softq.cross_entropy(make(each), each)
        assert_close(a, b)
        for x, y in zip(
            torch.autograd.grad(a.sum(), [emissions, table]),
            torch.autograd.grad(b.sum(), [emissions, table]),
            strict=True,
        ):
            assert_close(x, y)
    assert_close(shared.pair_marginals, each.pair_marginals)
    assert_close(
        shared.pair_marginals.sum(-1)[:, 0], shared.marginals[:, 0] * (lengths > 1).unsqueeze(1)
    )


def test_large_inputs_take_the_same_path_to_the_same_gradient():
    emissions = torch.randn(64, 30, 24, dtype=torch.float64, requires_grad=True)
    transitions = torch.randn(24, 24, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(64, dtype=torch.float64)
    refs = torch.randint(24, (64, 30))
    found, want = [], []
    for result, name in ((found, "fast"), (want, "reference")):
        with softq.backend(name):
            p = softq.Chain(emissions, transitions)
            loss = (softq.cross_entropy(softq.raml(p, refs, 0.3), p) * weights).sum()
            result += [loss, *torch.autograd.grad(loss, [emissions, transitions])]
    for a, b in zip(found, want, strict=True):
        assert_close(a, b, atol=1e-9, rtol=1e-9)
