"""softq.nn.CRF: what pytorch-crf does, and what it does not."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import softq
from softq.nn import CRF

torchcrf = pytest.importorskip("torchcrf")

# pytorch-crf makes a mask of bytes where it gets none, of which torch warns
pytestmark = pytest.mark.filterwarnings("ignore:where received a uint8 condition tensor")

DOUBLE = {"dtype": torch.float64}
LENGTHS = torch.tensor([5, 1, 3])


def pair(batch_first=False, **options):
    torch.manual_seed(0)
    theirs = torchcrf.CRF(4, batch_first=batch_first).double()
    ours = CRF(4, batch_first=batch_first, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def batch(batch_first=False):
    torch.manual_seed(1)
    emissions, tags = torch.randn(3, 5, 4, **DOUBLE), torch.randint(4, (3, 5))
    mask = torch.arange(5) < LENGTHS.unsqueeze(1)
    given = emissions, tags, mask
    return given if batch_first else tuple(each.transpose(0, 1) for each in given)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean", "token_mean"])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_log_likelihood_and_gradients_are_those_of_pytorch_crf(masked, batch_first, reduction):
    found = []
    for crf in pair(batch_first):
        emissions, tags, mask = batch(batch_first)
        emissions = emissions.clone().requires_grad_()
        value = crf(emissions, tags, mask=mask if masked else None, reduction=reduction)
        value.sum().backward()
        found.append((value, emissions.grad, *(p.grad for p in crf.parameters())))
    for ours, theirs in zip(*found, strict=True):
        assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_decoding_is_that_of_pytorch_crf(masked, batch_first):
    emissions, _, mask = batch(batch_first)
    ours, theirs = pair(batch_first)
    mask = mask if masked else None
    assert ours.decode(emissions, mask=mask) == theirs.decode(emissions, mask=mask)


def test_the_readme_of_pytorch_crf_runs():
    seq_length, batch_size, num_tags = 3, 2, 5
    model = CRF(num_tags)
    emissions = torch.randn(seq_length, batch_size, num_tags)
    tags = torch.tensor([[0, 1], [2, 4], [3, 1]], dtype=torch.long)
    assert model(emissions, tags).shape == ()
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]], dtype=torch.uint8)
    assert model(emissions, tags, mask=mask).item() < 0
    assert [len(best) for best in model.decode(emissions)] == [3, 3]
    assert [len(best) for best in model.decode(emissions, mask=mask)] == [3, 2]
    assert repr(model) == "CRF(num_tags=5)"


def test_one_precision():
    torch.manual_seed(2)
    ours, theirs = CRF(9, batch_first=True), torchcrf.CRF(9, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    emissions, tags = torch.randn(8, 30, 9), torch.randint(9, (8, 30))
    expected = theirs(emissions, tags, reduction="token_mean")
    assert_close(ours(emissions, tags, reduction="token_mean"), expected, rtol=1e-6, atol=0)


def test_tags_not_labelled_are_summed_over():
    crf, _ = pair(batch_first=True)
    emissions, tags, _ = batch(batch_first=True)
    hidden = tags.clone()
    hidden[:, 1] = hidden[:, 4] = -100
    total = torch.zeros(3, **DOUBLE)
    for i, j in itertools.product(range(4), repeat=2):
        full = tags.clone()
        full[:, 1], full[:, 4] = i, j
        total += crf(emissions, full, reduction="none").exp()
    assert_close(crf(emissions, hidden, reduction="none"), total.log())


def test_a_mask_with_holes_takes_tokens_out():
    crf, _ = pair(batch_first=True)
    emissions, tags, _ = batch(batch_first=True)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[:, [0, 3]] = False
    kept = [1, 2, 4]
    expected = crf(emissions[:, kept], tags[:, kept], reduction="none")
    assert_close(crf(emissions, tags, mask=mask, reduction="none"), expected)
    assert crf.decode(emissions, mask=mask) == crf.decode(emissions[:, kept])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("objective", ["raml", "sqdml"])
def test_objectives_of_several_annotators(objective, batch_first):
    crf, _ = pair(batch_first, objective=objective, tau=0.7)
    emissions, _, mask = batch(batch_first)
    tags = torch.randint(4, (*mask.shape, 3))
    weights = torch.tensor([[1.0, 2.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]], **DOUBLE)
    found = crf(emissions, tags, mask=mask, reduction="none", ref_weights=weights)
    if not batch_first:
        emissions, tags = emissions.transpose(0, 1), tags.transpose(0, 1)
    borders = {"start": crf.start_transitions, "end": crf.end_transitions}
    model = softq.Chain(emissions, crf.transitions, LENGTHS, **borders)
    make = getattr(softq, objective)
    target = make(model, tags.transpose(1, 2), 0.7, ref_weights=weights)
    assert_close(found, -softq.cross_entropy(target, model))


def test_soft_tags():
    crf, _ = pair(batch_first=True)
    emissions, tags, mask = batch(batch_first=True)
    soft = torch.nn.functional.one_hot(tags, 4).double()
    expected = crf(emissions, tags, mask=mask)
    assert_close(crf(emissions, soft, mask=mask), expected)
    both = torch.stack([soft, soft], 2)  # two annotators who agree
    assert_close(crf(emissions, both, mask=mask), expected)


def test_half_precision_emissions():
    crf = CRF(4, batch_first=True)
    emissions, tags, _ = batch(batch_first=True)
    half = emissions.bfloat16().requires_grad_()
    value = crf(half, tags)
    expected = crf(half.detach().float(), tags)
    assert_close(value, expected)
    (-value).backward()
    assert half.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_tags": 0}, softq.errors.ShapeError, "num_tags must be positive, got 0"),
        ({"num_tags": 3, "objective": "mle"}, ValueError, "one of ml, raml, sqdml, got 'mle'"),
        (
            {"num_tags": 3, "objective": "raml"},
            softq.errors.TemperatureError,
            "needs a temperature",
        ),
        ({"num_tags": 3, "tau": 0.5}, softq.errors.TemperatureError, "takes no tau"),
    ],
)
def test_options_that_do_not_fit(options, error, message):
    with pytest.raises(error, match=message):
        CRF(**options)


def test_inputs_that_do_not_fit():
    crf = CRF(4, batch_first=True)
    emissions, tags = torch.randn(3, 5, 4), torch.zeros(3, 5, dtype=torch.long)
    with pytest.raises(softq.errors.ShapeError, match=r"emissions must be .* with K = 4"):
        crf(torch.randn(3, 5, 6), tags)
    with pytest.raises(softq.errors.ShapeError, match=r"tags must be \[3, 5\]"):
        crf(emissions, tags[:, :4])
    with pytest.raises(softq.errors.ShapeError, match=r"mask must be \[3, 5\]"):
        crf(emissions, tags, mask=torch.ones(3, 4))
    with pytest.raises(ValueError, match="reduction must be one of"):
        crf(emissions, tags, reduction="average")
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    with pytest.raises(softq.errors.LengthError, match="1 has none"):
        crf(emissions, tags, mask=mask)
    with pytest.raises(softq.errors.OutputError, match="got 4 at index"):
        crf(emissions, tags + 4)


def test_borders_are_checked_where_labels_are_forbidden():
    emissions = torch.zeros(1, 2, 3).index_fill(-1, torch.tensor([0]), -torch.inf)
    with pytest.raises(softq.errors.ScoreError, match=r"end must be finite or -inf .* got NaN"):
        softq.Chain(emissions, torch.zeros(3, 3), end=torch.tensor([0.0, torch.nan, 0.0]))
