"""torch.compile, torch.export, torch.func and operator checks through every exact space."""

import shutil

import pytest
import torch
from torch.testing import assert_close

import softq
from families import FAMILIES
from softq.kernels import chain, projective, segments, spanning
from softq.kernels.operator import Expected, by_autograd

families = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
BATCH = 3


def inputs(family):
    """Scores, lengths and an output of each example."""
    scores = family.random_scores((BATCH,), seed=1)
    lengths = torch.tensor([family.size, 2, family.size - 1]) if family.size else None
    return scores, lengths, family.make(*scores, lengths).mode()


def values(family, lengths, outputs):
    """Everything that has to pass, as a function of the scores."""

    def compute(*scores):
        p = family.make(*scores, lengths)
        return (
            p.log_partition,
            p.marginals,
            p.log_prob(outputs),
            p.entropy(),
            softq.cross_entropy(softq.ml(p, outputs), p),
            softq.cross_entropy(softq.raml(p, outputs, 0.5), p),
            softq.kl(softq.sqdml(p, outputs, 0.5), p),
        )

    return compute


def agree(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, atol=1e-9, rtol=1e-9)


def gradients(function, scores):
    leaves = [score.clone().requires_grad_() for score in scores]
    found = function(*leaves)
    return found, torch.autograd.grad(sum(each.sum() for each in found), leaves)


@families
def test_compiled_as_one_graph(family):
    scores, lengths, outputs = inputs(family)
    compute = values(family, lengths, outputs)
    torch._dynamo.reset()
    # aot_eager traces forward and backward as inductor does, and takes a tenth of the time
    compiled = torch.compile(compute, fullgraph=True, backend="aot_eager")
    for found, expected in zip(
        gradients(compiled, scores), gradients(compute, scores), strict=True
    ):
        agree(found, expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
def test_compiled_by_inductor():
    family = next(f for f in FAMILIES if f.name == "chain-shared")
    scores, lengths, outputs = inputs(family)

    def loss(*given):
        p = family.make(*given, lengths)
        return (softq.cross_entropy(softq.ml(p, outputs), p),)

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True)
    for found, expected in zip(gradients(compiled, scores), gradients(loss, scores), strict=True):
        agree(found, expected)


@families
def test_gradients_by_torch_func(family):
    scores, lengths, outputs = inputs(family)
    compute = values(family, lengths, outputs)
    places = tuple(range(len(scores)))
    for i in range(7):
        found = torch.func.grad(lambda *s, i=i: compute(*s)[i].sum(), argnums=places)(*scores)
        leaves = [score.clone().requires_grad_() for score in scores]
        agree(found, torch.autograd.grad(compute(*leaves)[i].sum(), leaves))


@families
def test_batches_by_vmap(family):
    scores, lengths, outputs = inputs(family)
    compute = values(family, lengths, outputs)
    several = [torch.stack([score, 0.5 * score]) for score in scores]
    expected = zip(compute(*scores), compute(*(0.5 * score for score in scores)), strict=True)
    agree(torch.func.vmap(compute)(*several), [torch.stack(pair) for pair in expected])
    first_only = (0,) + (None,) * (len(scores) - 1)
    found = torch.func.vmap(compute, in_dims=first_only)(several[0], *scores[1:])
    agree([each[0] for each in found], compute(*scores))


@families
def test_gradients_per_example(family):
    scores, lengths, outputs = inputs(family)
    compute = values(family, lengths, outputs)
    several = [torch.stack([score, 0.5 * score]) for score in scores]
    found = torch.func.vmap(torch.func.grad(lambda *s: compute(*s)[4].sum()))(*several)
    for one, factor in zip(found, (1.0, 0.5), strict=True):
        leaf = (factor * scores[0]).requires_grad_()
        rest = [factor * score for score in scores[1:]]
        (expected,) = torch.autograd.grad(compute(leaf, *rest)[4].sum(), leaf)
        assert_close(one, expected, atol=1e-9, rtol=1e-9)


@families
def test_exported(family):
    scores, lengths, outputs = inputs(family)
    compute = values(family, lengths, outputs)

    class Module(torch.nn.Module):
        def forward(self, *given):
            return compute(*given)

    program = torch.export.export(Module(), tuple(scores))
    agree(program.module()(*scores), compute(*scores))


def operator_calls():
    generator = torch.Generator().manual_seed(0)

    def rand(*shape):
        made = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return made.requires_grad_()

    lengths = torch.tensor([4, 2])
    labels, heads = torch.randint(3, (2, 1, 4), generator=generator), torch.zeros(2, 1, 4).long()
    half = torch.full((2, 1), 0.5, dtype=torch.float64)
    none = [None, None, None]
    yield "chain", chain.OPERATOR, [rand(2, 4, 3), rand(1, 1, 3, 3), lengths, *none, None, None]
    with_labels = [labels, half, None, None, None]
    yield "chain-target", chain.OPERATOR, [rand(2, 4, 3), rand(2, 3, 3, 3), lengths, *with_labels]
    scores = [rand(2, 4, 3, 2), rand(1, 2, 2), lengths]
    yield "segments", segments.OPERATOR, [*scores, *none, None, None]
    values = torch.tensor([[[4, 0, 3, 2]], [[2, 3, 0, 0]]])
    yield "segments-target", segments.OPERATOR, [*scores, values, half, None, None, None]
    for name, kernel in (("projective", projective), ("spanning", spanning)):
        yield name, kernel.OPERATOR, [rand(2, 5, 5), lengths, *none, None, False]
        yield (
            f"{name}-target",
            kernel.OPERATOR,
            [rand(2, 5, 5), lengths, heads, half, None, None, True],
        )


@pytest.mark.parametrize(
    ("operator", "given"),
    [call[1:] for call in operator_calls()],
    ids=[call[0] for call in operator_calls()],
)
def test_operators_keep_torchs_rules(operator, given):
    checked = torch.library.opcheck(operator.operator, (*given, True))
    assert set(checked.values()) == {"SUCCESS"}


def test_loss_and_gradient_of_one_call_share_a_table():
    """A table for the whole batch gets the sum of what it would get as one for each example, from the loss and from the marginals."""
    generator = torch.Generator().manual_seed(0)
    emissions = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    shared = torch.randn(1, 1, 2, 2, generator=generator, dtype=torch.float64)
    found = []
    for table in (shared, shared.expand(3, -1, -1, -1).clone()):
        leaf = table.requires_grad_()
        log_z, marginals, _ = chain.OPERATOR(torch.tensor([4, 2, 3]), (emissions, leaf))
        total = log_z.sum() + (marginals * emissions).sum()
        found.append(torch.autograd.grad(total, leaf)[0].sum(0))
    assert_close(*found)


def test_autograd_of_the_reference_within_an_operator():
    """There torch has switched autograd off; large inputs on a GPU need it all the same."""
    emissions, table, lengths = torch.randn(2, 3, 4), torch.randn(1, 1, 4, 4), torch.tensor([3, 2])
    with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
        scores = (emissions, table)
        found = by_autograd(chain.reference.log_partition, lengths, scores, Expected())
    assert_close(found[:2], chain.OPERATOR(lengths, (emissions, table), gradient=True)[:2])
