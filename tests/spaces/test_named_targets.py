"""Label smoothing and softmax-margin against enumeration."""

import math

import pytest
import torch
from torch.testing import assert_close

import oracle
import softq
from families import FAMILIES
from softq.errors import IntractableError, RewardError, TemperatureError

BATCH = 4
families = pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
labelled = pytest.mark.parametrize(
    "family",
    [f for f in FAMILIES if f.cls.natural_reward.parts in ("classes", "labels")],
    ids=lambda f: f.name,
)


def case(family, forbid, seed):
    """A model, a possible reference of each example, and all its outputs with their scores."""
    lengths = family.lengths(BATCH)
    for more in range(20):  # until every example has an output
        scores = family.random_scores((BATCH,), forbid=forbid, seed=seed + more)
        p = family.make(*scores, lengths)
        if bool((p.log_partition > -math.inf).all()):
            break
    gold = p.sample(generator=torch.Generator().manual_seed(seed))
    outputs = [
        family.enumerate(
            family.example(scores, BATCH, b), family.size if lengths is None else int(lengths[b])
        )
        for b in range(BATCH)
    ]
    plain = [
        int(y) if not family.size else tuple(y.tolist()[: len(outputs[b][0][0])])
        for b, y in enumerate(gold)
    ]
    return p, gold, plain, outputs


@labelled
@pytest.mark.parametrize("forbid", [0.0, 0.1])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7])
def test_label_smoothing(family, forbid, epsilon):
    p, gold, plain, enumerated = case(family, forbid, 31)
    count = p.scores.shape[-1]
    target = softq.label_smoothing(p, gold, epsilon)
    found = softq.cross_entropy(target, p)
    for b, (outputs, values) in enumerate(enumerated):

        def mass(y, b=b):
            pairs = [(y, plain[b])] if not family.size else zip(y, plain[b], strict=True)
            return math.prod(epsilon / count + (1 - epsilon) * (k == right) for k, right in pairs)

        weights = [mass(y) if v > -math.inf else 0.0 for y, v in zip(outputs, values, strict=True)]
        law = [w / math.fsum(weights) for w in weights]
        want = oracle.cross_entropy(law, oracle.probabilities(values))
        assert found[b].item() == pytest.approx(want, abs=1e-9)


def test_label_smoothing_of_classes_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    gold = torch.randint(5, (6,), generator=generator)
    p = softq.Categorical(logits)
    for epsilon in (0.0, 1e-9, 0.2, 0.99):
        want = torch.nn.functional.cross_entropy(
            logits, gold, label_smoothing=epsilon, reduction="none"
        )
        assert_close(softq.cross_entropy(softq.label_smoothing(p, gold, epsilon), p), want)
    both = torch.stack([gold, (gold + 1) % 5], 1)
    weights = torch.tensor([[1.0, 0.0]]).expand(6, 2)
    one = softq.label_smoothing(p, both, 0.2, ref_weights=weights)
    assert_close(
        softq.cross_entropy(one, p), softq.cross_entropy(softq.label_smoothing(p, gold, 0.2), p)
    )


@families
@pytest.mark.parametrize("forbid", [0.0, 0.1])
def test_softmax_margin(family, forbid):
    p, gold, plain, enumerated = case(family, forbid, 32)
    loss = softq.cross_entropy(softq.ml(p, gold), softq.softmax_margin(p, gold))
    for b, (outputs, values) in enumerate(enumerated):
        right = family.reward(plain[b], plain[b])
        score = dict(zip(outputs, values, strict=True))
        raised = [v + right - family.reward(y, plain[b]) for y, v in score.items()]
        want = oracle.log_sum_exp(raised) - score[plain[b]]
        assert loss[b].item() == pytest.approx(want, abs=1e-9)
    assert bool((loss >= softq.cross_entropy(softq.ml(p, gold), p) - 1e-12).all())


def test_softmax_margin_has_the_gradient_of_the_model_and_any_reward():
    scores = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    gold = torch.tensor([[0, 2], [1, 1]])
    table = torch.tensor([[1.0, 0.5, -4.0], [0.5, 1.0, 0.0], [0.0, 0.5, 2.0]]).double()

    def loss(scores):
        p = softq.Categorical(scores)
        raised = softq.softmax_margin(p, gold, softq.rewards.Matrix(table))
        return softq.cross_entropy(softq.ml(p, gold), raised)

    assert torch.autograd.gradcheck(loss, scores)
    mean = table[:, gold].mean(-1).T  # [B, K]
    mixed = torch.nn.functional.one_hot(gold, 3).double().mean(1)
    want = (scores - mean).logsumexp(1) - (mixed * (scores - mean)).sum(1)
    assert_close(loss(scores), want)


def test_what_does_not_fit_is_said():
    p, tree = softq.Chain(torch.zeros(1, 3, 2), torch.zeros(2, 2)), softq.SpanningTree
    gold = torch.tensor([[0, 1, 1]])
    for epsilon in (-0.1, 1.0, math.nan, "0.1", True):
        with pytest.raises(TemperatureError, match="epsilon must be"):
            softq.label_smoothing(p, gold, epsilon)
    with pytest.raises(IntractableError, match="classes and label sequences"):
        softq.label_smoothing(tree(torch.zeros(1, 4, 4)), torch.tensor([[0, 1, 1]]), 0.1)
    for refs in (torch.tensor([[0, -100, 1]]), torch.full((1, 3, 2), 0.5)):
        with pytest.raises(IntractableError, match="cannot be smoothed"):
            softq.label_smoothing(p, refs, 0.1)
    with pytest.raises(RewardError, match="does not split over"):
        softq.softmax_margin(p, gold, softq.rewards.Attachment())
