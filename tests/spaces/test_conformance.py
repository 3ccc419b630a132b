"""Every distribution against enumeration.

Values, gradients, ragged lengths, -inf, extreme scores, batches, padding.
"""

import inspect
import math
import threading

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

import oracle
import softq
import softq.spaces
from families import FAMILIES
from scale import draws
from softq.errors import InfeasibleError, SoftqError

BATCH = 8
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
backends = pytest.mark.parametrize("backend", ["fast", "reference"])


def length_of(lengths, index, family):
    return family.size if lengths is None else int(lengths[index])


def test_every_distribution_is_in_the_suite():
    public = [
        c
        for _, c in inspect.getmembers(softq.spaces, inspect.isclass)
        if issubclass(c, softq.Distribution)
    ]
    concrete = {c for c in public if not inspect.isabstract(c)}
    assert concrete == {f.cls for f in FAMILIES}


@families
@backends
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("forbid", [0.0, 0.25])
def test_values_against_enumeration(family, backend, dtype, forbid):
    scores = family.random_scores((BATCH,), dtype=dtype, forbid=forbid, seed=1)
    lengths = family.lengths(BATCH)
    tol = 1e-10 if dtype == torch.float64 else 2e-5
    with softq.backend(backend):
        p = family.make(*scores, lengths)
        log_z, marginals, entropy = p.log_partition, p.marginals, p.entropy()
        for b in range(BATCH):
            outputs, values = family.enumerate(
                family.example(scores, BATCH, b), length_of(lengths, b, family)
            )
            expected = oracle.log_sum_exp(values)
            assert log_z[b].item() == pytest.approx(expected, abs=tol)
            want = torch.zeros(marginals.shape[1:], dtype=torch.float64)
            if expected > -math.inf:
                probs = oracle.probabilities(values)
                assert entropy[b].item() == pytest.approx(oracle.entropy(probs), abs=10 * tol)
                for y, prob in zip(outputs, probs, strict=True):
                    for part in family.parts(y):
                        want[part] += prob
            assert_close(marginals[b].double(), want, atol=tol, rtol=0)


@families
def test_log_prob_of_every_output_and_sample_shape(family):
    scores = family.random_scores((2,), forbid=0.15, seed=2)
    p = family.make(*scores)
    outputs = family.outputs(family.size)
    found = p.log_prob(
        torch.tensor([[family.pad(y, family.size)] * 2 for y in outputs])
    )  # sample shape (len,)
    assert found.shape == (len(outputs), 2)
    for b in range(2):
        _, values = family.enumerate(family.example(scores, 2, b), family.size)
        want = [v - oracle.log_sum_exp(values) if v > -math.inf else -math.inf for v in values]
        assert_close(found[:, b], torch.tensor(want, dtype=torch.float64), atol=1e-10, rtol=0)


@families
def test_gradients(family):
    scores = [
        s.requires_grad_() for s in family.random_scores((3,), 3 if family.size else None, seed=3)
    ]
    lengths = torch.tensor([3, 2, 0]) if family.size else None

    def log_z(*s):
        return family.make(*s, lengths).log_partition

    def entropy(*s):
        return family.make(*s, lengths).entropy()

    def marginals(*s):
        return family.make(*s, lengths).marginals

    assert torch.autograd.gradcheck(log_z, scores)
    assert torch.autograd.gradgradcheck(log_z, scores)
    assert torch.autograd.gradcheck(entropy, scores)
    assert torch.autograd.gradgradcheck(entropy, scores)
    assert torch.autograd.gradcheck(marginals, scores)


@families
def test_gradient_of_log_partition_is_the_marginals_with_a_weight_per_example(family):
    scores = [s.requires_grad_() for s in family.random_scores((BATCH,), seed=4)]
    p = family.make(*scores, family.lengths(BATCH))
    weights = torch.linspace(-1, 2, BATCH, dtype=torch.float64)
    (grad,) = torch.autograd.grad((p.log_partition * weights).sum(), scores[:1])
    shaped = weights.reshape(-1, *[1] * (grad.dim() - 1))
    assert_close(grad, shaped * p.marginals.detach(), atol=1e-12, rtol=0)


@families
@backends
def test_extreme_scores(family, backend):
    scores = family.random_scores((BATCH,), scale=1e4, forbid=0.1, seed=5)
    lengths = family.lengths(BATCH)
    with softq.backend(backend):
        p = family.make(*scores, lengths)
        for b in range(BATCH):
            outputs, values = family.enumerate(
                family.example(scores, BATCH, b), length_of(lengths, b, family)
            )
            want = oracle.log_sum_exp(values)
            assert p.log_partition[b].item() == pytest.approx(want, abs=1e-8)
            if want > -math.inf:
                probs = oracle.probabilities(values)
                best = outputs[max(range(len(probs)), key=probs.__getitem__)]
                for part in family.parts(best):
                    held = sum(
                        q for y, q in zip(outputs, probs, strict=True) if part in family.parts(y)
                    )
                    assert p.marginals[b][part].item() == pytest.approx(held, abs=1e-7)


@families
@pytest.mark.parametrize("scale", [30.0, 120.0, 400.0])
def test_wide_scores_stay_exact_where_probability_space_ends(family, scale):
    scores = family.random_scores((32,), scale=scale, seed=6)
    with softq.backend("reference"):
        reference = family.make(*scores)
        want, want_marginals = reference.log_partition, reference.marginals
    p = family.make(*scores)
    assert_close(p.log_partition, want, atol=1e-9, rtol=1e-13)
    assert_close(p.marginals, want_marginals, atol=1e-9, rtol=0)


@families
@pytest.mark.parametrize("forbid", [0.0, 0.3])
def test_mode_and_mbr_are_the_best_outputs(family, forbid):
    scores = family.random_scores((BATCH,), forbid=forbid, scale=2.0, seed=7)
    lengths = family.lengths(BATCH)
    for b in range(BATCH):
        one = family.example(scores, BATCH, b)
        length = length_of(lengths, b, family)
        p = family.make(*one, None if lengths is None else lengths[b])
        outputs, values = family.enumerate(one, length)
        if max(values) == -math.inf:
            with pytest.raises(InfeasibleError, match="forbid every output"):
                p.mode()
            continue
        mode, mbr = p.mode(), p.mbr()
        probs = oracle.probabilities(values)
        assert p.score(mode).item() == pytest.approx(max(values), abs=1e-9)

        def gain(y, outputs=outputs, probs=probs):
            return sum(q * family.reward(y, other) for q, other in zip(probs, outputs, strict=True))

        possible = [y for y, q in zip(outputs, probs, strict=True) if q > 0]
        cut = int(mbr) if not family.size else tuple(mbr.tolist()[:length])
        assert cut in possible
        assert gain(cut) == pytest.approx(max(map(gain, possible)), abs=1e-9)
        if family.size:
            assert mode.tolist()[length:] == [0] * (family.size - length)


def cut(family, output, length):
    """An output as plain numbers, without its padding, which is 0."""
    if not family.size:
        return int(output)
    assert output[length:].eq(0).all()
    return tuple(output[:length].tolist())


def check_topk(family, p, one, length, k, tol):
    """The k best of one example against all outputs, sorted; ties in any order, each once."""
    outputs, values = family.enumerate(one, length)
    score = dict(zip(outputs, values, strict=True))
    log_z = oracle.log_sum_exp(values)
    ranked = sorted((v for v in values if v > -math.inf), reverse=True)[:k]
    best = p.topk(k)
    assert best.outputs.shape == (k, *p.event_shape)
    assert best.log_probs.shape == (k,)
    assert best.present.tolist() == [True] * len(ranked) + [False] * (k - len(ranked))
    assert not best.outputs[~best.present].any()
    found = [cut(family, y, length) for y in best.outputs[: len(ranked)]]
    assert len(set(found)) == len(found)
    assert [score[y] for y in found] == pytest.approx(ranked, abs=tol)
    assert best.log_probs[: len(ranked)].tolist() == pytest.approx(
        [v - log_z for v in ranked], abs=tol
    )


@families
@pytest.mark.parametrize("k", [1, 2, 7, 1000])
@pytest.mark.parametrize("forbid", [0.0, 0.3])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_topk_is_the_best_of_all_outputs(family, k, forbid, scale):
    scores = family.random_scores((BATCH,), forbid=forbid, scale=scale, seed=21)
    lengths = family.lengths(BATCH)
    for b in range(BATCH):
        one, length = family.example(scores, BATCH, b), length_of(lengths, b, family)
        p = family.make(*one, None if lengths is None else lengths[b])
        if p.log_partition == -math.inf:
            with pytest.raises(InfeasibleError, match="forbid every output"):
                p.topk(k)
            continue
        check_topk(family, p, one, length, k, 1e-10 * scale)
        assert p.score(p.topk(k).outputs[0]).item() == pytest.approx(p.score(p.mode()).item())


@families
@pytest.mark.parametrize("size", [1, 2])
def test_topk_of_short_outputs_and_of_ties(family, size):
    for scale in (0.0, 1.0):  # with 0, all are as good
        scores = [s.round() for s in family.random_scores((), size, scale=scale, seed=22)]
        p = family.make(*scores)
        for k in (1, 3, 40):
            check_topk(family, p, scores, size if family.size else 0, k, 1e-10)


@families
def test_topk_of_any_distribution_that_has_a_mode(family):
    scores = family.random_scores((2, 4), forbid=0.1, seed=23)
    lengths = None if not family.size else family.lengths(8).reshape(2, 4)
    p = family.make(*scores, lengths)
    outputs, log_probs = p.topk(6)
    others, losses = softq.Distribution._topk(p, 6)
    assert outputs.shape == others.shape == (2, 4, 6, *p.event_shape)
    present = losses < math.inf
    assert_close(log_probs[..., :1] - log_probs, losses)
    same = (outputs == others).reshape(2, 4, 6, -1).all(-1)
    assert same[present].all()
    flat = family.make(
        *[s.flatten(0, 1) if family._per_example(i) else s for i, s in enumerate(scores)],
        None if lengths is None else lengths.flatten(),
    ).topk(6)
    assert torch.equal(p.topk(6).outputs.flatten(0, 1), flat.outputs)
    assert_close(p.topk(6).log_probs.flatten(0, 1), flat.log_probs)


@families
def test_topk_of_nothing_and_of_no_k(family):
    empty = family.make(*family.random_scores((0,))).topk(2)
    assert empty.outputs.shape == (0, 2, *([family.size] if family.size else []))
    with pytest.raises(SoftqError, match="k must be a whole number from 1, got 0"):
        family.make(*family.random_scores((2,))).topk(0)


class Undirected(softq.rewards.PartReward):
    """1 for a right arc, and half of it for one that points the other way."""

    parts = "arcs"
    signature, bound = "undirected", 1.0

    def on_parts(self, reference):
        return reference + 0.5 * reference.transpose(-1, -2)

    def score(self, candidates, references):
        raise NotImplementedError


def part_reward(family, seed):
    """A reward over the parts of a family, and what one output earns against another."""
    generator = torch.Generator().manual_seed(seed)
    kind = family.cls.natural_reward.parts
    if kind == "arcs":
        return Undirected(), lambda part, right: (part in right) + 0.5 * (part[::-1] in right)
    count = family.score_shapes((), family.size)[0][-1]
    if kind == "segments":
        weights = 4 * torch.rand(count, generator=generator, dtype=torch.float64)
        earned = weights.tolist()
        return softq.rewards.SegmentAccuracy(
            weights
        ), lambda part, right: earned[part[-1]] * (part in right)
    table = torch.rand(count, count, generator=generator, dtype=torch.float64)
    table += 2 * torch.diag(torch.rand(count, generator=generator, dtype=torch.float64))
    rows = table.tolist()
    made = softq.rewards.Matrix if kind == "classes" else softq.rewards.TokenReward
    return made(table), lambda part, right: sum(
        rows[part[-1]][other[-1]] for other in right if other[:-1] == part[:-1]
    )


@families
@pytest.mark.parametrize("forbid", [0.0, 0.3])
def test_mbr_under_any_reward_over_parts(family, forbid):
    scores = family.random_scores((BATCH,), forbid=forbid, scale=1.5, seed=25)
    lengths = family.lengths(BATCH)
    changed = 0
    for b in range(BATCH):
        one, length = family.example(scores, BATCH, b), length_of(lengths, b, family)
        p = family.make(*one, None if lengths is None else lengths[b])
        outputs, values = family.enumerate(one, length)
        reward, earns = part_reward(family, b)
        if max(values) == -math.inf:
            with pytest.raises(InfeasibleError, match="forbid every output"):
                p.mbr(reward)
            continue
        probs = oracle.probabilities(values)

        def gain(y, outputs=outputs, probs=probs, earns=earns):
            parts = family.parts(y)
            return sum(
                q * sum(earns(part, family.parts(other)) for part in parts)
                for q, other in zip(probs, outputs, strict=True)
                if q > 0
            )

        found = cut(family, p.mbr(reward), length)
        possible = [y for y, q in zip(outputs, probs, strict=True) if q > 0]
        assert found in possible
        assert gain(found) == pytest.approx(max(map(gain, possible)), abs=1e-9)
        changed += found != cut(family, p.mbr(), length)
    # Forbidden segments leave few outputs, weights of one label no choice; arcs weigh alike.
    if family.cls.natural_reward.parts in ("classes", "labels") or (
        family.name == "segments" and not forbid
    ):
        assert changed  # the reward was asked


@families
def test_mbr_refuses_rewards_without_an_expectation(family):
    p = family.make(*family.random_scores((2,)))
    count = family.score_shapes((), family.size)[0][-1]
    if family.cls.natural_reward.parts in ("classes", "labels"):
        tables = torch.full((2, count, count), 1 / count)
        nobody = torch.full((2, 1), -1)
        reward = softq.rewards.Annotators(tables, nobody, family.cls.natural_reward.parts)
        with pytest.raises(SoftqError, match="has no expectation"):
            p.mbr(reward)
    with pytest.raises(SoftqError, match="splits over the parts"):
        p.mbr(softq.rewards.SentenceBLEU())


@families
def test_samples_follow_the_distribution(family):
    """Chi-square against enumeration; a right sampler fails a case with probability 1e-6."""
    scores = family.random_scores((2,), forbid=0.1, seed=8)
    p = family.make(*scores)
    count = draws(20_000)
    drawn = p.sample((count,), generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (count, 2, *p.event_shape)
    for b in range(2):
        outputs, values = family.enumerate(family.example(scores, 2, b), family.size)
        probs = oracle.probabilities(values)
        seen = dict.fromkeys(outputs, 0)
        for y in drawn[:, b].tolist():
            seen[tuple(y) if family.size else y] += 1
        assert all(seen[y] == 0 for y, q in zip(outputs, probs, strict=True) if q == 0)
        common = [
            (seen[y], count * q) for y, q in zip(outputs, probs, strict=True) if count * q >= 5
        ]
        rest = [
            (seen[y], count * q) for y, q in zip(outputs, probs, strict=True) if 0 < count * q < 5
        ]
        pooled = [*common, tuple(map(sum, zip(*rest, strict=True)))] if rest else common
        observed, expected = zip(*[pair for pair in pooled if pair[1] > 0], strict=True)
        statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
        assert stats.chi2.sf(statistic, len(observed) - 1) > 1e-6


@families
def test_samples_repeat_with_the_generator_and_pad_with_zero(family):
    scores = family.random_scores((BATCH,), seed=9)
    p = family.make(*scores, family.lengths(BATCH))
    first, again = (p.sample((3, 2), generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, p.sample((3, 2), generator=torch.Generator().manual_seed(5)))
    p.check_outputs(first)
    if family.size:
        assert first[:, :, 2].eq(0).all()  # length 0


@families
def test_batch_equals_loop_and_batch_dimensions(family):
    scores = family.random_scores((6,), seed=10)
    lengths = family.lengths(6)
    flat = family.make(*scores, lengths)
    singles = [
        family.make(*family.example(scores, 6, b), None if lengths is None else lengths[b])
        for b in range(6)
    ]
    assert singles[0].batch_shape == ()
    for name in ("log_partition", "marginals"):
        assert_close(
            getattr(flat, name),
            torch.stack([getattr(s, name) for s in singles]),
            atol=1e-12,
            rtol=0,
        )
    assert torch.equal(flat.mode(), torch.stack([s.mode() for s in singles]))
    grid = family.make(
        *[s.reshape(2, 3, *s.shape[1:]) if s.shape[0] == 6 else s for s in scores],
        None if lengths is None else lengths.reshape(2, 3),
    )
    assert grid.batch_shape == (2, 3)
    assert_close(grid.log_partition, flat.log_partition.reshape(2, 3))
    assert_close(grid.marginals, flat.marginals.reshape(2, 3, *flat.marginals.shape[1:]))
    assert_close(grid.entropy(), flat.entropy().reshape(2, 3))
    assert torch.equal(grid.mode(), flat.mode().reshape(2, 3, *flat.event_shape))
    drawn = grid.sample((4,), generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (4, 2, 3, *grid.event_shape)
    assert grid.log_prob(drawn).shape == (4, 2, 3)


@families
def test_empty_batch_and_empty_outputs(family):
    for batch in ((0,), (2, 0)):
        p = family.make(*family.random_scores(batch))
        assert p.log_partition.shape == batch
        assert p.marginals.shape == p.scores.shape
        assert p.entropy().shape == batch
        assert p.mode().shape == (*batch, *p.event_shape)
        assert p.sample((3,)).shape == (3, *batch, *p.event_shape)
    if family.size:
        shapes = [tuple(max(size, 0) for size in shape) for shape in family.score_shapes((2,), 0)]
        p = family.make(*[torch.zeros(shape) for shape in shapes])
        assert p.log_partition.tolist() == p.entropy().tolist() == [0.0, 0.0]
        assert p.mode().shape == p.sample().shape == (2, 0)
        assert p.log_prob(p.mode()).tolist() == [0.0, 0.0]
        for backend in ("fast", "reference"):
            with softq.backend(backend):
                p = family.make(*[torch.zeros(shape, requires_grad=True) for shape in shapes])
                assert p.log_partition.tolist() == [0.0, 0.0]
                (grad,) = torch.autograd.grad(p.log_partition.sum(), p.scores, create_graph=True)
                (second,) = torch.autograd.grad(grad.sum(), p.scores)
            assert not second.any()


@families
@backends
def test_padding_never_matters_and_inputs_are_left_alone(family, backend):
    if not family.size:
        pytest.skip("classes have no padding")
    scores = family.random_scores((BATCH,), seed=11)
    lengths = family.lengths(BATCH)
    poisoned = [s.clone() for s in scores]
    for b in range(BATCH):
        length = int(lengths[b])
        if issubclass(family.cls, softq.spaces.DependencyTree):
            poisoned[0][b, length + 1 :] = math.nan
            poisoned[0][b, :, length + 1 :] = math.nan
            poisoned[0][b, :, 0] = math.nan
            poisoned[0][b].fill_diagonal_(math.inf)
        else:
            poisoned[0][b, length:] = math.nan
            if family.cls is softq.SemiMarkov:  # what would end behind the last token
                for begin in range(length):
                    poisoned[0][b, begin, length - begin :] = math.nan
            if len(scores) == 2 and scores[1].dim() > 2:
                poisoned[1][b, max(length - 1, 0) :] = math.nan
    kept = [s.clone() for s in poisoned]
    with softq.backend(backend):
        results = []
        for given in (scores, poisoned):
            leaves = [s.clone().requires_grad_() for s in given]
            p = family.make(*leaves, lengths)
            y = p.mode()
            garbage = y.clone()
            garbage[torch.arange(family.size) >= lengths.unsqueeze(-1)] = -100
            loss = p.log_prob(garbage).sum() + p.entropy().sum() + p.marginals.square().sum()
            grads = torch.autograd.grad(loss, leaves)
            results.append(
                [
                    p.log_partition,
                    p.marginals,
                    p.entropy(),
                    y,
                    p.mbr(),
                    p.sample((2,), generator=torch.Generator().manual_seed(0)),
                    *grads,
                ]
            )
        for clean, dirty in zip(*results, strict=True):
            assert torch.equal(clean, dirty)
    assert all(
        torch.equal(a, b) or (torch.isnan(a) == torch.isnan(b)).all()
        for a, b in zip(kept, poisoned, strict=True)
    )
    frozen = [s.clone() for s in scores]
    p = family.make(*frozen, lengths)
    for use in (
        lambda: p.log_partition,
        lambda: p.marginals,
        p.entropy,
        p.mode,
        p.mbr,
        p.sample,
        lambda: softq.kl(p, p),
        lambda: p.log_prob(p.mode()),
    ):
        use()
    assert all(torch.equal(a, b) for a, b in zip(frozen, scores, strict=True))


@families
def test_entropy_cross_entropy_and_kl(family):
    scores, others = family.random_scores((3,), seed=12), family.random_scores((3,), seed=13)
    p, q = family.make(*scores), family.make(*others)
    assert_close(softq.cross_entropy(p, p), p.entropy(), atol=1e-10, rtol=0)
    assert_close(softq.kl(p, p), torch.zeros(3, dtype=torch.float64), atol=1e-10, rtol=0)
    for b in range(3):
        mine = oracle.probabilities(family.enumerate(family.example(scores, 3, b), family.size)[1])
        theirs = oracle.probabilities(
            family.enumerate(family.example(others, 3, b), family.size)[1]
        )
        want = oracle.cross_entropy(mine, theirs)
        assert softq.cross_entropy(p, q)[b].item() == pytest.approx(want, abs=1e-9)
        assert softq.kl(p, q)[b].item() == pytest.approx(want - oracle.entropy(mine), abs=1e-9)


@families
def test_same_results_from_two_threads_at_once(family):
    scores = family.random_scores((64,), seed=14)
    want = family.make(*scores).log_partition
    failures = []

    def work():
        for _ in range(20):
            p = family.make(*[s.clone().requires_grad_() for s in scores])
            p.log_partition.sum().backward()
            if not torch.equal(p.log_partition, want):
                failures.append(p)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@families
def test_infeasible(family):
    scores = [torch.full_like(s, -math.inf) for s in family.random_scores((1,))]
    p = family.make(*scores)
    assert p.log_partition.item() == -math.inf
    assert p.marginals.sum().item() == 0.0
    y = torch.tensor([family.pad(family.outputs(family.size)[0], family.size)])
    assert p.log_prob(y).item() == -math.inf
    for use in (p.mode, p.mbr, p.sample):
        with pytest.raises(InfeasibleError, match="forbid every output"):
            use()


@pytest.mark.parametrize("neighbours", [False, True])
def test_one_token_without_a_label_forbids_every_output(neighbours):
    scores = torch.zeros(1, 3, 2)
    scores[0, 1] = -math.inf
    scores.requires_grad_()
    p = softq.Chain(scores, torch.zeros(2, 2)) if neighbours else softq.Independent(scores)
    assert p.log_partition.item() == -math.inf
    assert not p.marginals.any()
    assert not torch.autograd.grad(p.log_partition.sum(), scores)[0].any()


@families
def test_bad_input(family):
    scores = family.random_scores((2,))
    for bad, text in ((math.nan, "NaN"), (math.inf, r"\+inf")):
        for i in range(len(scores)):
            spoilt = [s.clone() for s in scores]
            spoilt[i][
                (
                    (0, 1, 2)[: spoilt[i].dim()]
                    if spoilt[i].dim() > 2
                    else (1, 0)
                    if family.size == 0
                    else (0, 1)
                )
            ] = bad
            with pytest.raises(SoftqError, match=text):
                family.make(*spoilt)
    with pytest.raises(SoftqError, match="int64"):
        family.make(*[s.long() for s in scores])
    with pytest.raises(SoftqError, match=r"torch\.Tensor"):
        family.make(scores[0].tolist(), *scores[1:])
    with pytest.raises(SoftqError, match="must have shape"):
        family.make(torch.zeros(()), *scores[1:])
    p = family.make(*scores)
    good = p.mode()
    with pytest.raises(SoftqError, match="int64"):
        p.log_prob(good.double())
    with pytest.raises(SoftqError, match="must have shape"):
        p.log_prob(good[:1])
    with pytest.raises(SoftqError, match=r"0\.\."):
        p.log_prob(torch.full_like(good, 9))
    with pytest.raises(SoftqError, match=r"0\.\."):
        p.log_prob(torch.full_like(good, -1))
    if family.size:
        for lengths, text in (
            (torch.tensor([1, family.size + 1]), f"0..{family.size}"),
            (torch.tensor([-1, 1]), "-1"),
            (torch.tensor([1]), "shape"),
            (torch.tensor([1.0, 2.0]), "int64"),
        ):
            with pytest.raises(SoftqError, match=text):
                family.make(*scores, lengths)


@families
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(family, dtype):
    coarse = [s.to(dtype).requires_grad_() for s in family.random_scores((BATCH,), seed=15)]
    fine = [s.detach().float().requires_grad_() for s in coarse]
    lengths = family.lengths(BATCH)
    p, q = family.make(*coarse, lengths), family.make(*fine, lengths)
    assert p.log_partition.dtype == torch.float32
    assert torch.equal(p.log_partition, q.log_partition)
    gradients = [
        torch.autograd.grad(each.log_partition.sum(), leaves)
        for each, leaves in ((p, coarse), (q, fine))
    ]
    for half, full in zip(*gradients, strict=True):
        assert half.dtype == dtype
        assert torch.equal(half, full.to(dtype))


@families
def test_scores_changed_in_place_count_from_then_on(family):
    scores = family.random_scores((BATCH,), seed=16)
    p = family.make(*scores, family.lengths(BATCH))
    before = p.log_partition, p.marginals, p.entropy()
    for each in scores:
        each.mul_(0.5)
    fresh = family.make(*scores, family.lengths(BATCH))
    for now, old, right in zip(
        (p.log_partition, p.marginals, p.entropy()),
        before,
        (fresh.log_partition, fresh.marginals, fresh.entropy()),
        strict=True,
    ):
        assert_close(now, right)
        assert not torch.equal(now, old)


@families
def test_expanded_scores(family):
    one = family.random_scores((1,), seed=17)
    wide = [
        s.expand(5, *s.shape[1:]).requires_grad_() if family._per_example(i) else s
        for i, s in enumerate(one)
    ]
    p = family.make(*wide)
    assert_close(p.log_partition, family.make(*one).log_partition.expand(5))
    torch.autograd.grad(p.log_partition.sum(), wide[:1])


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family.size], ids=lambda family: family.name
)
@pytest.mark.parametrize("batch", [3, 40])  # the larger one in threads
def test_scores_may_lie_in_memory_in_any_order(family, batch):
    def values(turned):
        leaves = [scores.requires_grad_() for scores in family.random_scores((batch,), seed=1)]
        first, *rest = leaves
        p = family.make(
            first.transpose(0, 1).contiguous().transpose(0, 1) if turned else first, *rest
        )
        softq.cross_entropy(softq.ml(p, p.mode()), p).sum().backward()
        return [p.log_partition, p.marginals, p.entropy(), *(leaf.grad for leaf in leaves)]

    for plain, turned in zip(values(False), values(True), strict=True):
        assert_close(turned, plain)
