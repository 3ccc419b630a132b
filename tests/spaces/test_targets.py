"""ML, RAML and SQDML against enumeration, and the algebra that ties them together."""

import math

import pytest
import torch

import oracle
import softq
from families import FAMILIES
from softq import rewards
from softq.errors import IntractableError, RewardError, SoftqError

BATCH, REFS = 3, 3
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
OBJECTIVES = {"raml": (softq.raml, oracle.raml), "sqdml": (softq.sqdml, oracle.sqdml)}
objectives = pytest.mark.parametrize("objective", OBJECTIVES)


def natural(space):
    if isinstance(space, softq.Categorical):
        return rewards.ExactMatch()
    if isinstance(space, softq.SemiMarkov):
        return rewards.SegmentAccuracy()
    return (
        rewards.TokenAccuracy()
        if isinstance(space, (softq.Chain, softq.Independent))
        else rewards.Attachment()
    )


def draw_references(family, lengths, seed=0):
    """[BATCH, REFS, *E] random outputs and the plain tuples they are."""
    generator = torch.Generator().manual_seed(seed)
    plain = []
    for b in range(BATCH):
        outputs = family.outputs(family.size if lengths is None else int(lengths[b]))
        plain.append(
            [
                outputs[int(torch.randint(len(outputs), (), generator=generator))]
                for _ in range(REFS)
            ]
        )
    return torch.tensor([[family.pad(y, family.size) for y in row] for row in plain]), plain


def target_by_enumeration(family, objective, scores, lengths, plain, weights, tau, reward=None):
    """Target and model probabilities of each example's outputs.

    What the model forbids, the target forbids.
    """
    made, reward = [], reward or family.reward
    for b in range(BATCH):
        length = family.size if lengths is None else int(lengths[b])
        outputs, values = family.enumerate(family.example(scores, BATCH, b), length)
        allowed = [v > -math.inf for v in values]
        table = [
            [reward(y, ref) if ok else -math.inf for y, ok in zip(outputs, allowed, strict=True)]
            for ref in plain[b]
        ]
        made.append(
            (
                outputs,
                OBJECTIVES[objective][1](table, weights[b].tolist(), tau),
                oracle.probabilities(values),
            )
        )
    return made


@families
@objectives
@pytest.mark.parametrize("forbid", [0.0, 0.15])
@pytest.mark.parametrize("tau", [0.2, 1.0, 7.0])
def test_cross_entropy_against_enumeration(family, objective, forbid, tau):
    scores = family.random_scores((BATCH,), forbid=forbid, seed=3)
    lengths = torch.tensor([family.size, family.size - 1, 1]) if family.size else None
    p = family.make(*scores, lengths)
    if bool((p.log_partition == -math.inf).any()):
        pytest.fail("the seed must leave something to predict")
    refs, plain = draw_references(family, lengths)
    weights = torch.tensor([[1.0, 2.0, 1.0], [0.0, 3.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    padded = refs.clone()
    padded[weights == 0] = -7  # a missing reference may hold anything
    target = OBJECTIVES[objective][0](p, padded, tau, ref_weights=weights)
    found = softq.cross_entropy(target, p)
    weights = weights / weights.sum(-1, keepdim=True)
    enumerated = target_by_enumeration(family, objective, scores, lengths, plain, weights, tau)
    for b, (outputs, probs, model) in enumerate(enumerated):
        assert found[b].item() == pytest.approx(oracle.cross_entropy(probs, model), abs=1e-8)
        mass = sum(
            q
            for y, q in zip(outputs, probs, strict=True)
            if y in [r for r, w in zip(plain[b], weights[b], strict=True) if w > 0]
        )
        assert target.reference_mass()[b].item() == pytest.approx(mass, abs=1e-9)
    for y_index in range(min(len(enumerated[0][0]), 4)):
        outputs = torch.tensor(
            [family.pad(made[0][y_index % len(made[0])], family.size) for made in enumerated]
        )
        for b, (_, probs, _) in enumerate(enumerated):
            assert target.log_prob(outputs)[b].exp().item() == pytest.approx(
                probs[y_index % len(probs)], abs=1e-9
            )


@families
@objectives
def test_gradient_is_model_minus_target_marginals(family, objective):
    """Appendix eq. 6."""
    scores = [s.requires_grad_() for s in family.random_scores((BATCH,), seed=4)]
    p = family.make(*scores)
    refs, plain = draw_references(family, None)
    target = OBJECTIVES[objective][0](p, refs, 0.7)
    (grad,) = torch.autograd.grad(softq.cross_entropy(target, p).sum(), scores[:1])
    uniform = torch.full((BATCH, REFS), 1 / REFS, dtype=torch.float64)
    for b, (outputs, probs, model) in enumerate(
        target_by_enumeration(family, objective, scores, None, plain, uniform, 0.7)
    ):
        want = torch.zeros(grad.shape[1:], dtype=torch.float64)
        for y, q, m in zip(outputs, probs, model, strict=True):
            for part in family.parts(y):
                want[part] += m - q
        torch.testing.assert_close(grad[b], want, atol=1e-9, rtol=0)


@families
@objectives
def test_loss_gradcheck(family, objective):
    scores = [
        s.requires_grad_() for s in family.random_scores((2,), 3 if family.size else None, seed=5)
    ]
    refs = torch.tensor([family.pad(family.outputs(3)[i], 3) for i in (0, 1)])

    def loss(*s):
        p = family.make(*s)
        return softq.cross_entropy(OBJECTIVES[objective][0](p, refs, 0.5), p)

    assert torch.autograd.gradcheck(loss, scores)
    assert torch.autograd.gradgradcheck(loss, scores)


@families
def test_ml_is_the_negative_log_likelihood(family):
    p = family.make(*family.random_scores((BATCH,), seed=6))
    refs, _ = draw_references(family, None)
    one = refs[:, 0]
    torch.testing.assert_close(softq.cross_entropy(softq.ml(p, one), p), -p.log_prob(one))
    weights = torch.tensor([[1.0, 1.0, 2.0]] * BATCH, dtype=torch.float64)
    want = -sum(w * p.log_prob(refs[:, i]) for i, w in enumerate((0.25, 0.25, 0.5)))
    target = softq.ml(p, refs, ref_weights=weights)
    torch.testing.assert_close(softq.cross_entropy(target, p), want)
    torch.testing.assert_close(target.reference_mass(), torch.ones(BATCH, dtype=torch.float64))
    torch.testing.assert_close(
        softq.ml(p, one).log_prob(one), torch.zeros(BATCH, dtype=torch.float64)
    )


@families
def test_raml_tends_to_ml_and_equals_sqdml_with_one_reference(family):
    p = family.make(*family.random_scores((BATCH,), seed=7))
    refs, _ = draw_references(family, None)
    one = refs[:, 0]
    torch.testing.assert_close(
        softq.cross_entropy(softq.raml(p, one, 1e-3), p), softq.cross_entropy(softq.ml(p, one), p)
    )
    for tau in (0.1, 1.0, 10.0):
        torch.testing.assert_close(
            softq.cross_entropy(softq.raml(p, one, tau), p),
            softq.cross_entropy(softq.sqdml(p, one, tau), p),
        )
        torch.testing.assert_close(
            softq.raml(p, one, tau).entropy(), softq.sqdml(p, one, tau).entropy()
        )
        many = one.unsqueeze(1).expand(
            BATCH, REFS, *one.shape[1:]
        )  # the same reference three times is one reference
        torch.testing.assert_close(
            softq.raml(p, many, tau).reference_mass(), softq.raml(p, one, tau).reference_mass()
        )
        torch.testing.assert_close(
            softq.raml(p, many, tau).entropy(), softq.raml(p, one, tau).entropy()
        )


@families
def test_jensen_raml_mass_and_kl(family):
    """KL is not negative and is 0 for the target itself; H(q, q) is the entropy."""
    p = family.make(*family.random_scores((BATCH,), seed=8))
    refs, _ = draw_references(family, None)
    target = softq.sqdml(p, refs, 0.8)
    q = target.components
    torch.testing.assert_close(target.entropy(), q.entropy())
    torch.testing.assert_close(
        softq.kl(target, p), softq.cross_entropy(target, p) - target.entropy()
    )
    assert bool((softq.kl(target, p) > 0).all())
    torch.testing.assert_close(softq.cross_entropy(p, p), p.entropy(), atol=1e-9, rtol=0)
    torch.testing.assert_close(
        softq.kl(p, p), torch.zeros(BATCH, dtype=torch.float64), atol=1e-9, rtol=0
    )


@families
def test_entropy_of_mixtures(family):
    p = family.make(*family.random_scores((BATCH,), seed=9))
    refs, plain = draw_references(family, None, seed=3)
    weights = [1 / REFS] * REFS
    ml_entropy = softq.ml(p, refs).entropy()
    for b in range(BATCH):
        together = {
            y: sum(w for w, other in zip(weights, plain[b], strict=True) if other == y)
            for y in plain[b]
        }
        assert ml_entropy[b].item() == pytest.approx(
            oracle.entropy(list(together.values())), abs=1e-12
        )
    target = softq.raml(p, refs, 0.5)
    probs = [
        made[1]
        for made in target_by_enumeration(
            family,
            "raml",
            family.random_scores((BATCH,), seed=9),
            None,
            plain,
            torch.full((BATCH, REFS), 1 / REFS, dtype=torch.float64),
            0.5,
        )
    ]
    if family.size == 0:
        for b in range(BATCH):
            assert target.entropy()[b].item() == pytest.approx(oracle.entropy(probs[b]), abs=1e-10)
        return
    with pytest.raises(IntractableError, match="component_entropy"):
        target.entropy()
    with pytest.raises(IntractableError, match="component_entropy"):
        softq.kl(target, p)
    for b in range(BATCH):
        assert target.component_entropy()[b].item() <= oracle.entropy(probs[b]) + 1e-12


@families
def test_natural_reward_is_the_overlap_of_indicators(family):
    p = family.make(*family.random_scores((1,)))
    outputs = family.outputs(family.size)[:: max(1, len(family.outputs(family.size)) // 6)]
    for y in outputs:
        for ref in outputs:
            a, b = (p.indicator(torch.tensor([family.pad(z, family.size)])) for z in (y, ref))
            assert (a * natural(p).on_parts(b)).sum().item() == family.reward(y, ref)


def test_full_reward_tables_stay_exact():
    table = torch.tensor([[1.0, 0.2, 0.0], [0.0, 3.0, 0.5], [0.1, 0.0, 2.0]], dtype=torch.float64)
    for family in FAMILIES:
        if family.cls not in (softq.Chain, softq.Independent):
            continue
        scores = family.random_scores((BATCH,), seed=10)
        p = family.make(*scores)
        refs, plain = draw_references(family, None)

        def reward(y, ref):
            return sum(table[a, b].item() for a, b in zip(y, ref, strict=True))

        for name, (make, _) in OBJECTIVES.items():
            found = softq.cross_entropy(make(p, refs, 0.6, rewards.TokenReward(table)), p)
            uniform = torch.full((BATCH, REFS), 1 / REFS, dtype=torch.float64)
            for b, (_, probs, model) in enumerate(
                target_by_enumeration(family, name, scores, None, plain, uniform, 0.6, reward)
            ):
                assert found[b].item() == pytest.approx(
                    oracle.cross_entropy(probs, model), abs=1e-9
                )
    p = softq.Categorical(torch.randn(2, 3, dtype=torch.float64))
    target = softq.raml(p, torch.tensor([1, 2]), 0.5, rewards.Matrix(table))
    want = torch.softmax(table.T[[1, 2]] / 0.5, -1)
    torch.testing.assert_close(target.components.marginals.squeeze(1), want)


def test_sqdml_mode_is_the_bayes_rule_and_raml_misses_it():
    table = torch.diag(torch.tensor([1.0, 1.0, 5.0]))
    p = softq.Categorical(torch.zeros(1, 3))
    votes = torch.tensor([[0, 0, 2]])
    for tau in (0.05, 1.0, 50.0):
        assert softq.sqdml(p, votes, tau, rewards.Matrix(table)).components.mode().item() == 2
    low = softq.raml(p, votes, 0.05, rewards.Matrix(table))
    assert max(range(3), key=lambda y: low.log_prob(torch.tensor([y])).item()) == 0


def test_targets_are_detached():
    emissions = torch.randn(2, 3, 4, requires_grad=True)
    p = softq.Chain(emissions, torch.zeros(4, 4))
    refs = torch.zeros(2, 3, dtype=torch.int64)
    for target in (softq.ml(p, refs), softq.raml(p, refs, 0.5), softq.sqdml(p, refs, 0.5)):
        for value in (target.entropy(), target.log_prob(refs), target.reference_mass()):
            assert not value.requires_grad


def test_two_batch_dimensions_equal_a_flat_batch():
    emissions, transitions = (
        torch.randn(2, 3, 4, 5, dtype=torch.float64),
        torch.randn(5, 5, dtype=torch.float64),
    )
    refs = torch.randint(5, (2, 3, 2, 4))
    lengths = torch.tensor([[4, 3, 2], [1, 4, 0]])
    for make in (softq.raml, softq.sqdml):
        grid, flat = (
            softq.Chain(emissions, transitions, lengths),
            softq.Chain(emissions.flatten(0, 1), transitions, lengths.flatten()),
        )
        a = softq.cross_entropy(make(grid, refs, 0.4), grid)
        torch.testing.assert_close(
            a.flatten(), softq.cross_entropy(make(flat, refs.flatten(0, 1), 0.4), flat)
        )
        assert make(grid, refs, 0.4).log_prob(refs[:, :, 0]).shape == (2, 3)
        torch.testing.assert_close(
            make(grid, refs, 0.4).reference_mass().flatten(),
            make(flat, refs.flatten(0, 1), 0.4).reference_mass(),
        )


def test_temperature_scaling():
    """Scores that estimate rewards.

    The optimum is the expected reward up to a constant, at any temperature.
    """
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    table = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    expected = table @ p
    refs = torch.tensor([[0] * 5 + [1] * 3 + [2] * 2])
    for tau in (1.0, 100.0, 10_000.0):
        scores = (expected + 7.0).unsqueeze(0).requires_grad_()
        model = softq.Categorical(scores)
        target = softq.sqdml(model, refs, tau, rewards.Matrix(table))
        loss = softq.cross_entropy(target, model, temperature_scaled=True)
        (grad,) = torch.autograd.grad(loss, scores)
        torch.testing.assert_close(grad, torch.zeros_like(grad), atol=1e-9, rtol=0)
        off = softq.Categorical((expected + torch.tensor([0.3, -0.1, 0.0])).unsqueeze(0))
        assert softq.kl(target, off, temperature_scaled=True).item() > 1e-3
    # as tau grows, tau² KL tends to half the variance of the error: least squares on the expected
    # reward
    error = torch.tensor([0.3, -0.1, 0.0], dtype=torch.float64)
    torch.testing.assert_close(
        softq.kl(target, off, temperature_scaled=True).item(),
        error.var(correction=0).item() / 2,
        atol=1e-4,
        rtol=0,
    )
    plain = softq.cross_entropy(target, off)
    torch.testing.assert_close(softq.cross_entropy(target, off, temperature_scaled=False), plain)
    with pytest.raises(SoftqError, match="temperature"):
        softq.cross_entropy(softq.ml(off, torch.tensor([0])), off, temperature_scaled=True)
    with pytest.raises(SoftqError, match="temperature"):
        softq.kl(off, off, temperature_scaled=True)


def test_a_forbidden_reference_gives_infinite_ml_loss_and_finite_raml_loss():
    scores = torch.zeros(1, 3)
    scores[0, 1] = -math.inf
    p = softq.Categorical(scores)
    refs = torch.tensor([1])
    assert softq.cross_entropy(softq.ml(p, refs), p).item() == math.inf
    assert softq.cross_entropy(softq.raml(p, refs, 0.5), p).item() == pytest.approx(math.log(2))
    free = softq.Categorical(torch.zeros(1, 3))
    assert softq.cross_entropy(softq.raml(free, refs, 0.5), p).item() == math.inf


def test_constraints_reach_the_target():
    """With a forbidden transition the target is a chain and gives no mass to sequences the model cannot produce."""
    transitions = torch.zeros(3, 3, dtype=torch.float64)
    transitions[0, 2] = -math.inf
    p = softq.Chain(torch.zeros(1, 4, 3, dtype=torch.float64), transitions)
    target = softq.raml(p, torch.tensor([[0, 1, 2, 2]]), 0.5)
    assert isinstance(target.components, softq.Chain)
    assert target.log_prob(torch.tensor([[0, 2, 1, 1]])).item() == -math.inf
    assert isinstance(
        softq.raml(
            softq.Chain(p.emissions, torch.ones_like(transitions)),
            torch.tensor([[0, 1, 2, 2]]),
            0.5,
        ).components,
        softq.Independent,
    )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p, y: softq.raml(p, y, 0.0), "positive"),
        (lambda p, y: softq.raml(p, y, -1), "positive"),
        (lambda p, y: softq.raml(p, y, math.nan), "positive"),
        (lambda p, y: softq.raml(p, y, math.inf), "finite"),
        (lambda p, y: softq.raml(p, y, "0.5"), "str"),
        (lambda p, y: softq.raml(p, y[:, :2], 0.5), r"\[2, 3\]"),
        (lambda p, y: softq.raml(p, y.tolist(), 0.5), "list"),
        (lambda p, y: softq.raml(p, y.float(), 0.5), "int64, floats are probabilities"),
        (lambda p, y: softq.raml(p, y + 9, 0.5), "0..3"),
        (lambda p, y: softq.raml(p, y, 0.5, rewards.Attachment()), "arcs"),
        (lambda p, y: softq.raml(p, y, 0.5, lambda a, b: 1.0), "need candidates from softq"),
        (lambda p, y: softq.raml(p, y, 0.5, rewards.TokenReward(torch.eye(3))), "3 labels"),
        (lambda p, y: softq.ml(p, y.unsqueeze(1), ref_weights=torch.zeros(2, 1)), "positive"),
        (lambda p, y: softq.ml(p, y.unsqueeze(1), ref_weights=-torch.ones(2, 1)), "negative"),
        (
            lambda p, y: softq.ml(p, y.unsqueeze(1), ref_weights=torch.full((2, 1), math.nan)),
            "finite",
        ),
        (lambda p, y: softq.ml(p, y.unsqueeze(1), ref_weights=torch.ones(2, 2)), r"\[2, 1\]"),
        (
            lambda p, y: softq.ml(
                p, y.unsqueeze(1), ref_weights=torch.ones(2, 1, dtype=torch.int64)
            ),
            "floating",
        ),
        (lambda p, y: softq.ml(p, y.unsqueeze(1)[:, :0]), "R"),
        (
            lambda p, y: softq.cross_entropy(
                softq.ml(p, y), softq.Chain(torch.zeros(2, 3, 5), torch.zeros(5, 5))
            ),
            "one output space",
        ),
        (
            lambda p, y: softq.cross_entropy(
                softq.ml(p, y), softq.Chain(p.emissions, p.transitions, torch.tensor([3, 2]))
            ),
            "lengths",
        ),
        (lambda p, y: softq.cross_entropy(y, p), "expected a target"),
        (lambda p, y: rewards.TokenReward(torch.zeros(2, 3)), "shape"),
        (lambda p, y: rewards.TokenReward(torch.full((2, 2), math.inf)), "finite"),
        (lambda p, y: rewards.TokenReward(torch.ones(2, 2, dtype=torch.bool)), "real"),
        (lambda p, y: rewards.TokenReward.weighted(torch.ones(2, 2)), "shape"),
    ],
)
def test_bad_input(call, text):
    p = softq.Chain(torch.zeros(2, 3, 4), torch.zeros(4, 4))
    with pytest.raises(SoftqError, match=text):
        call(p, torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize(
    ("heads", "text"),
    [
        ([2, 1, 0], "cycle"),
        ([0, 0, 1], "second word under the root"),
        ([0, 4, 1], "outside 0..3"),
        ([2, 0, 2], None),
        ([2, 3, 3], "cycle"),
    ],
)
def test_bad_trees(heads, text):
    p = softq.ProjectiveTree(torch.zeros(1, 4, 4))
    if text is None:
        p.check_outputs(torch.tensor([heads]))
        return
    for use in (p.log_prob, lambda y: softq.raml(p, y, 0.5), lambda y: softq.ml(p, y)):
        with pytest.raises(SoftqError, match=text):
            use(torch.tensor([heads]))


def test_crossing_arcs_are_for_spanning_trees_only():
    heads = torch.tensor([[3, 4, 0, 3]])
    softq.SpanningTree(torch.zeros(1, 5, 5)).log_prob(heads)
    with pytest.raises(SoftqError, match="crosses"):
        softq.ProjectiveTree(torch.zeros(1, 5, 5)).log_prob(heads)


def test_signatures_name_what_was_used():
    p = softq.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2))
    y = torch.zeros(1, 3, dtype=torch.int64)
    assert softq.ml(p, y).signature == "ml"
    assert softq.raml(p, y, 0.25).signature == "raml:tau=0.25:token-accuracy"
    one, two = rewards.TokenReward(torch.eye(2)), rewards.TokenReward(torch.eye(2) * 2)
    assert one.signature != two.signature
    assert softq.sqdml(p, y, 1, one).signature == f"sqdml:tau=1:{one.signature}"
    assert (one.bound, two.bound, rewards.TokenAccuracy().bound) == (1.0, 2.0, 1.0)
    assert "TokenAccuracy" in repr(rewards.TokenAccuracy())
    assert "TokenReward" in repr(one)
    assert "raml" in repr(softq.raml(p, y, 0.25))
    with pytest.raises(RewardError):
        softq.raml(p, y, 0.5, rewards.ExactMatch())
