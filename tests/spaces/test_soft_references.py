"""Priors, soft references and references labelled in part, against enumeration; distillation."""

import math

import pytest
import torch
from torch.testing import assert_close

import oracle
import softq
from families import FAMILIES
from softq import rewards
from softq.errors import DtypeError, IntractableError, OutputError, ShapeError

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
BATCH = 3
DOUBLE = {"dtype": torch.float64}


def lengths_of(family):
    return torch.tensor([family.size, family.size - 1, 1]) if family.size else None


def length_of(family, b):
    lengths = lengths_of(family)
    return family.size if lengths is None else int(lengths[b])


def enumerated(family, scores):
    """Outputs and scores of each example."""
    return [
        family.enumerate(family.example(scores, BATCH, b), length_of(family, b))
        for b in range(BATCH)
    ]


def table_of(family, scores):
    """Random probabilities of parts, one row for each token, as a model of the family has them."""
    return family.make(*scores, lengths_of(family)).marginals


def expected_reward(family, y, table):
    """The natural reward of an output against soft references: the mass of its parts."""
    return sum(float(table[part]) for part in family.parts(y))


def cross_entropy(target, log_model):
    return -sum(q * v for q, v in zip(target, log_model, strict=True) if q > 0)


def log_normalised(values):
    total = oracle.log_sum_exp(values)
    return [v - total for v in values]


# --- priors ---------------------------------------------------------------------------------------


@families
@pytest.mark.parametrize("objective", ["raml", "sqdml"])
@pytest.mark.parametrize("power", [1.0, 0.3])
@pytest.mark.parametrize("forbid", [0.0, 0.15])
def test_prior_against_enumeration(family, objective, power, forbid):
    scores = family.random_scores((BATCH,), forbid=forbid, seed=3)
    others = family.random_scores((BATCH,), seed=8)
    lengths, tau = lengths_of(family), 0.4
    model = family.make(*scores, lengths)
    prior = family.make(*others, lengths)
    refs = torch.stack(
        [prior.sample(generator=torch.Generator().manual_seed(i)) for i in (1, 2)], 1
    )
    make = getattr(softq, objective)
    target = make(model, refs, tau, prior=prior, prior_weight=power)
    found = softq.cross_entropy(target, model)
    own, given = enumerated(family, scores), enumerated(family, others)
    for b in range(BATCH):
        outputs, values = own[b]
        plain = refs[b].tolist()
        if family.size:
            plain = [tuple(ref[: length_of(family, b)]) for ref in plain]
        rows = []
        for ref in plain:
            rewarded = [family.reward(y, ref) for y in outputs]
            rows.append(rewarded)
        if objective == "sqdml":
            rows = [[sum(r) / len(rows) for r in zip(*rows, strict=True)]]
        mixture = [0.0] * len(outputs)
        for row in rows:
            total = [
                r / tau + power * prior_value if value > -math.inf else -math.inf
                for r, prior_value, value in zip(row, given[b][1], values, strict=True)
            ]
            for i, q in enumerate(oracle.probabilities(total)):
                mixture[i] += q / len(rows)
        want = cross_entropy(mixture, log_normalised(values))
        assert found[b].item() == pytest.approx(want, abs=1e-9)
    none = softq.cross_entropy(make(model, refs, tau, prior=prior, prior_weight=0.0), model)
    assert_close(none, softq.cross_entropy(make(model, refs, tau), model))


def test_the_prior_is_a_constant():
    scores = torch.randn(2, 3, 4, **DOUBLE, requires_grad=True)
    model = softq.Chain(scores, torch.zeros(4, 4, **DOUBLE))
    target = softq.sqdml(model, torch.zeros(2, 3, dtype=torch.long), 1.0, prior=model)
    (with_prior,) = torch.autograd.grad(softq.cross_entropy(target, model).sum(), scores)
    expected = model.marginals - target.expected_parts(model)[0]
    assert_close(with_prior, expected.detach())


def test_prior_of_candidates():
    cands = softq.Candidates(*softq.Sentences.pack([[[1, 2], [1, 3], [4, 4]]]))
    prior = torch.tensor([[0.5, 0.3, 0.2]], **DOUBLE).log()
    target = softq.raml(
        cands, [[1, 2]], 0.5, rewards.TokenAccuracy(), prior=prior, prior_weight=2.0
    )
    reward = torch.tensor([2.0, 1.0, 0.0], **DOUBLE)
    assert_close(target.weights[0], torch.softmax(reward / 0.5 + 2 * prior[0], -1))
    assert "prior=2" in target.signature


def test_components_of_a_target_are_a_prior_like_any_other():
    model = softq.Chain(torch.randn(2, 3, 4, **DOUBLE), torch.randn(4, 4, **DOUBLE))
    refs, others = torch.tensor([[0, 1, 2], [3, 3, 3]]), torch.tensor([[0, 0, 0], [1, 2, 3]])
    payoff = softq.sqdml(model, others, 0.5).components
    plain = softq.Independent(payoff.scores.clone())
    expected = softq.sqdml(model, refs, 0.4, prior=plain).log_prob(refs)
    assert_close(softq.sqdml(model, refs, 0.4, prior=payoff).log_prob(refs), expected)
    assert_close(payoff.tempered(2.0).scores, plain.scores / 2.0)


def test_priors_that_do_not_fit():
    model = softq.Categorical(torch.zeros(2, 3))
    with pytest.raises(DtypeError, match="prior must be a distribution on the same outputs"):
        softq.raml(model, torch.tensor([0, 1]), 1.0, prior=torch.zeros(2, 3))
    with pytest.raises(ShapeError, match="one output space"):
        softq.raml(model, torch.tensor([0, 1]), 1.0, prior=softq.Categorical(torch.zeros(2, 4)))


# --- soft references --------------------------------------------------------------------------------


@families
def test_hard_references_as_tables_are_the_same(family):
    scores = family.random_scores((BATCH,), seed=3)
    model = family.make(*scores, lengths_of(family))
    refs = model.sample(generator=torch.Generator().manual_seed(0))
    soft = model.indicator(model.zero_padding(refs))
    for make in (softq.ml, lambda p, y: softq.raml(p, y, 0.4), lambda p, y: softq.sqdml(p, y, 0.4)):
        expected = softq.cross_entropy(make(model, refs), model)
        assert_close(softq.cross_entropy(make(model, soft), model), expected)


@families
def test_ml_on_soft_references_matches_expected_parts(family):
    scores = family.random_scores((BATCH,), seed=3)
    table = table_of(family, family.random_scores((BATCH,), seed=9))
    model = family.make(*scores, lengths_of(family))
    found = softq.cross_entropy(softq.ml(model, table), model)
    local = (table * model.scores.masked_fill(table == 0, 0.0)).flatten(1).sum(1)
    expected = model.log_partition - local
    if isinstance(model, softq.Chain):  # labels count as independent: pairs have the product
        pairs = table[:, :-1, :, None] * table[:, 1:, None, :]
        expected = expected - (pairs * model.transitions).flatten(1).sum(1)
    if isinstance(model, softq.SemiMarkov):  # what meets at a cut counts as independent, given it
        for t in range(1, model.event_shape[0]):
            ended = sum(table[:, t - 1 - d, d] for d in range(min(t, table.shape[2])))
            begun = table[:, t].sum(1)
            pairs = ended[:, :, None] * begun[:, None] / begun.sum(1).clamp(min=1e-9)[:, None, None]
            expected = expected - (pairs * model.transitions).flatten(1).sum(1)
    assert_close(found, expected)


def test_ml_on_soft_classes_is_torchs_soft_cross_entropy():
    logits, table = torch.randn(5, 4), torch.rand(5, 4).softmax(-1)
    model = softq.Categorical(logits)
    found = softq.cross_entropy(softq.ml(model, table), model).mean()
    assert_close(found, torch.nn.functional.cross_entropy(logits, table))


@families
def test_sqdml_on_soft_references_against_enumeration(family):
    scores = family.random_scores((BATCH,), seed=3)
    table = table_of(family, family.random_scores((BATCH,), seed=9))
    model = family.make(*scores, lengths_of(family))
    found = softq.cross_entropy(softq.sqdml(model, table, 0.3), model)
    for b, (outputs, values) in enumerate(enumerated(family, scores)):
        total = [expected_reward(family, y, table[b]) / 0.3 for y in outputs]
        want = cross_entropy(oracle.probabilities(total), log_normalised(values))
        assert found[b].item() == pytest.approx(want, abs=1e-9)


def test_soft_and_hard_references_of_one_example():
    model = softq.Independent(torch.randn(2, 3, 4, **DOUBLE))
    hard = model.indicator(torch.tensor([[0, 1, 2], [3, 3, 3]]))
    soft = torch.rand(2, 3, 4, **DOUBLE).softmax(-1)
    both = softq.ml(model, torch.stack([hard, soft], 1))
    each = [softq.cross_entropy(softq.ml(model, table), model) for table in (hard, soft)]
    assert_close(softq.cross_entropy(both, model), (each[0] + each[1]) / 2)


def test_tables_that_are_no_probabilities():
    model = softq.Chain(torch.zeros(1, 2, 3), torch.zeros(3, 3))
    with pytest.raises(OutputError, match=r"got a sum of 3 at \(0, 0, 0\)"):
        softq.ml(model, torch.ones(1, 2, 3))
    with pytest.raises(OutputError, match="not negative"):
        softq.ml(model, torch.tensor([[[-0.5, 0.5, 1.0], [1.0, 0.0, 0.0]]]))
    with pytest.raises(ShapeError, match="floats are probabilities of parts"):
        softq.ml(model, torch.zeros(1, 2))


# --- references labelled in part ----------------------------------------------------------------------


@families
def test_marginal_likelihood_against_enumeration(family):
    scores = family.random_scores((BATCH,), seed=3)
    model = family.make(*scores, lengths_of(family))
    refs = model.sample(generator=torch.Generator().manual_seed(0))
    partial = refs.clone()
    if family.size:
        partial[:, ::2] = -100
    else:
        partial[1] = -100
    found = softq.cross_entropy(softq.ml(model, partial), model)
    for b, (outputs, values) in enumerate(enumerated(family, scores)):
        known = partial[b].tolist()
        known = known[: length_of(family, b)] if family.size else [known]
        agrees = [
            all(k in (-100, t) for k, t in zip(known, y if family.size else [y], strict=True))
            for y in outputs
        ]
        kept = [v if ok else -math.inf for v, ok in zip(values, agrees, strict=True)]
        want = oracle.log_sum_exp(values) - oracle.log_sum_exp(kept)
        assert found[b].item() == pytest.approx(want, abs=1e-9)


@families
def test_gradient_of_the_marginal_likelihood(family):
    scores = [s.requires_grad_() for s in family.random_scores((BATCH,), seed=3)]
    refs = family.make(*scores, lengths_of(family)).mode()
    refs = refs.index_fill(-1, torch.tensor([0]), -100)

    def loss(*given):
        model = family.make(*given, lengths_of(family))
        return softq.cross_entropy(softq.ml(model, refs), model)

    assert torch.autograd.gradcheck(loss, scores)


@families
def test_a_token_without_label_earns_no_reward(family):
    if not family.size:
        pytest.skip("a class without label leaves nothing")
    scores = family.random_scores((BATCH,), seed=3)
    model = family.make(*scores, lengths_of(family))
    refs = model.sample(generator=torch.Generator().manual_seed(0))
    refs[:, 1] = -100
    found = softq.cross_entropy(softq.sqdml(model, refs, 0.5), model)
    for b, (outputs, values) in enumerate(enumerated(family, scores)):
        known = refs[b].tolist()[: length_of(family, b)]
        total = [family.reward(y, known) / 0.5 for y in outputs]
        want = cross_entropy(oracle.probabilities(total), log_normalised(values))
        assert found[b].item() == pytest.approx(want, abs=1e-9)


def test_zero_rows_and_missing_labels_mean_the_same():
    model = softq.Independent(torch.randn(2, 3, 4, **DOUBLE))
    refs = torch.tensor([[0, -100, 2], [-100, 1, 1]])
    table = model.indicator(refs)
    for make in (softq.ml, lambda p, y: softq.sqdml(p, y, 0.5)):
        expected = softq.cross_entropy(make(model, refs), model)
        assert_close(softq.cross_entropy(make(model, table), model), expected)


def test_soft_references_of_trees_have_no_entropy():
    model = softq.SpanningTree(torch.zeros(1, 3, 3))
    one, two = model.marginals, model.indicator(torch.tensor([[0, 1]]))
    for table in (one, torch.stack([one, two], 1)):
        with pytest.raises(IntractableError, match="no entropy"):
            softq.ml(model, table).entropy()


def test_what_partial_references_cannot_give():
    model = softq.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2))
    table = torch.tensor([[[1.0, 0.0], [0.0, 0.0], [0.3, 0.7]]])
    with pytest.raises(IntractableError, match="prior=model"):
        softq.cross_entropy(softq.ml(model, table), model)
    refs = torch.tensor([[0, -100, 1]])
    with pytest.raises(IntractableError, match="no mass"):
        softq.ml(model, refs).reference_mass()
    with pytest.raises(IntractableError, match="give no probabilities"):
        softq.ml(model, refs).log_prob(torch.tensor([[0, 0, 1]]))
    with pytest.raises(OutputError, match=r"or be -100, not labelled\), got -1 at index \(0, 1\)"):
        softq.ml(model, torch.tensor([[0, -1, 1]]))


# --- a distribution as a target -----------------------------------------------------------------------


@families
@pytest.mark.parametrize("temperature", [None, 2.5])
def test_distillation_against_enumeration(family, temperature):
    teacher_scores = family.random_scores((BATCH,), seed=4)
    scores = family.random_scores((BATCH,), seed=3)
    lengths = lengths_of(family)
    teacher, student = family.make(*teacher_scores, lengths), family.make(*scores, lengths)
    found = softq.cross_entropy(teacher, student, temperature=temperature)
    divergence = softq.kl(teacher, student, temperature=temperature)
    taught, own = enumerated(family, teacher_scores), enumerated(family, scores)
    for b in range(BATCH):
        target = oracle.probabilities([v / (temperature or 1.0) for v in taught[b][1]])
        want = cross_entropy(target, log_normalised(own[b][1]))
        assert found[b].item() == pytest.approx(want, abs=1e-9)
        assert divergence[b].item() == pytest.approx(want - oracle.entropy(target), abs=1e-9)


def test_distillation_at_a_temperature_scales_both():
    teacher, student = (softq.Chain(torch.randn(2, 3, 4), torch.randn(4, 4)) for _ in range(2))
    found = softq.cross_entropy(teacher, student, temperature=3.0, temperature_scaled=True)
    cooled = softq.Chain(student.emissions / 3.0, student.transitions / 3.0)
    expected = 9.0 * softq.cross_entropy(teacher, cooled, temperature=3.0)
    assert_close(found, expected)


def test_gradients_reach_a_teacher():
    scores = torch.randn(2, 3, 4, **DOUBLE, requires_grad=True)
    student = softq.Independent(torch.randn(2, 3, 4, **DOUBLE))

    def loss(given):
        return softq.cross_entropy(softq.Chain(given, torch.eye(4, **DOUBLE)), student)

    assert torch.autograd.gradcheck(loss, (scores,))


# --- where nobody may look ----------------------------------------------------------------------------


def missing_labels(family):
    """Scores, lengths, and references whose second example has a token without a label."""
    scores, lengths = family.random_scores((BATCH,), seed=3), lengths_of(family)
    refs = family.make(*scores, lengths).mode()
    if family.size:
        refs[1, 0] = -100
    else:
        refs[1] = -100
    return scores, lengths, refs


@families
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_a_missing_label_that_nobody_may_see_gives_nan(family, soft):
    scores, lengths, refs = missing_labels(family)
    looked = family.make(*scores, lengths)
    given = looked.indicator(looked.zero_padding(refs)) if soft else refs
    blind = family.make(*scores, lengths, validate=False)
    if soft and not blind.independent_tokens:
        blind_to_soft = softq.cross_entropy(softq.ml(blind, given[[0, 0, 2]]), blind)
        assert bool(blind_to_soft.isfinite().all())
        return
    found = softq.cross_entropy(softq.ml(blind, given), blind)
    expected = softq.cross_entropy(softq.ml(looked, given), looked)
    if soft:  # tables are looked at whenever that is possible
        assert_close(found, expected)
    else:
        assert found.isnan().tolist() == [False, True, False]
        assert_close(found[[0, 2]], expected[[0, 2]])


@families
def test_a_missing_label_in_a_traced_graph_gives_nan(family):
    scores, lengths, refs = missing_labels(family)

    def loss(*given):
        model = family.make(*given, lengths)
        return softq.cross_entropy(softq.ml(model, refs), model)

    jacobian, found = torch.func.jacrev(lambda *given: (loss(*given),) * 2, has_aux=True)(*scores)
    assert found.isnan().tolist() == [False, True, False]
    assert bool(jacobian[1].isnan().any())
