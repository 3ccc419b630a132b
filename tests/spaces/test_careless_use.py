"""What careless or unusual use meets.

An error that names it, or the right number, and never a wrong one.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

import softq
from ner_commands import softq as run_softq
from softq import cli
from softq.errors import (
    DtypeError,
    LengthError,
    OutputError,
    RewardError,
    ShapeError,
    TemperatureError,
    WeightError,
)
from softq.rewards import Matrix, PartReward, Reward, TokenReward
from softq.temperature import CandidateCurve, HammingCurve
from softq.theory import theorem2_bounds

TREES = [
    (kind, multiroot)
    for kind in (softq.ProjectiveTree, softq.SpanningTree)
    for multiroot in (False, True)
]


@pytest.mark.parametrize("model", TREES)
@pytest.mark.parametrize("target", TREES)
def test_a_model_must_have_all_trees_of_its_target(target, model):
    arcs = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
    p, q = (kind(arcs, multiroot=multiroot) for kind, multiroot in (target, model))
    within = target[0] is softq.ProjectiveTree or model[0] is softq.SpanningTree
    if within and target[1] <= model[1]:
        assert bool((softq.kl(p, q) >= -1e-6).all())
        return
    heads = p.mode()
    with pytest.raises(ShapeError, match="include those of the target"):
        softq.kl(p, q)
    for make in (
        lambda: softq.ml(p, heads),
        lambda: softq.raml(p, heads, 1.0),
        lambda: softq.sqdml(p, heads, 1.0),
    ):
        with pytest.raises(ShapeError, match="which leaves some of them out"):
            softq.cross_entropy(make(), q)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_targets_are_as_precise_under_autocast(dtype):
    draw = torch.Generator().manual_seed(1)
    scores, transitions, labels = (
        torch.randn(2, 4, 3, generator=draw),
        torch.randn(3, 3, generator=draw),
        torch.tensor([[0, 1, 2, 0], [1, 0, 0, 0]]),
    )
    table = torch.tensor([[1.1, 0.3, 0.7], [0.123, 2.0, 0.5], [0.0, -1.0, 1.377]])
    several = torch.stack([labels, labels.flip(0)], 1)

    def losses():
        p, c, free = (
            softq.Chain(scores, transitions),
            softq.Categorical(scores[:, 0]),
            softq.Independent(scores),
        )
        yield softq.cross_entropy(softq.raml(c, labels[:, 0], 0.1, Matrix(table)), c)
        yield softq.cross_entropy(softq.raml(p, labels, 0.1, TokenReward(table)), p)
        yield softq.cross_entropy(softq.sqdml(p, several, 0.1, TokenReward(table)), p)
        yield softq.kl(free, p)
        yield softq.kl(softq.Independent(scores.clone().requires_grad_()), p).detach()

    right = list(losses())
    with torch.autocast("cpu", dtype):
        found = list(losses())
    for a, b in zip(found, right, strict=True):
        assert a.dtype == torch.float32
        assert_close(a, b)


class Returning(Reward):
    signature, bound = "returning", 1.0

    def __init__(self, score):
        self.score = score

    def score(self, candidates, references):
        raise NotImplementedError


CANDIDATES = softq.Candidates(*softq.Sentences.pack([[[1, 2], [1, 3], [5]], [[4], [4, 5], [4, 4]]]))
REFERENCES = [[1, 2], [4]]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.ones(2, 1, 3), r"shape \[2, 3, 1\], \[B, S, R\], got \[2, 1, 3\]"),
        (torch.ones(2, 3), r"got \[2, 3\]"),
        (np.ones((2, 3, 1)), "got ndarray"),
        (None, "got NoneType"),
        (
            torch.tensor([0.0, 1.0, math.nan, 0.0, 0.0, 0.0]).view(2, 3, 1),
            "got nan for example 0, candidate 2, reference 0",
        ),
        (torch.full((2, 3, 1), -math.inf), "finite numbers, got -inf"),
    ],
)
def test_what_a_reward_returns_is_checked(returned, message):
    reward = Returning(lambda candidates, references: returned)
    for objective in (softq.raml, softq.sqdml):
        with pytest.raises(RewardError, match=message):
            objective(CANDIDATES, REFERENCES, 0.5, reward)
    with pytest.raises(RewardError, match=message):
        reward(*CANDIDATES.sentences, *softq.Sentences.pack([[one] for one in REFERENCES]))
    with pytest.raises(RewardError, match=message):
        CandidateCurve(CANDIDATES, REFERENCES, reward).suggest(0.5)


def test_rewards_are_detached():
    learnt = torch.rand(2, 3, 1, requires_grad=True)
    assert not softq.raml(
        CANDIDATES, REFERENCES, 0.5, Returning(lambda candidates, references: learnt)
    ).weights.requires_grad


class ByPlace(PartReward):
    """A hit at place t earns ``weights[t]``."""

    parts, signature, bound = "labels", "by-place", 5.0

    def __init__(self, weights):
        self.weights = torch.tensor(weights)

    def on_parts(self, reference):
        return reference * self.weights.unsqueeze(-1)

    def score(self, candidates, references):
        raise NotImplementedError


@pytest.mark.parametrize("labels", [3, 4])
def test_a_reward_may_depend_on_the_place(labels):
    p, gold = (
        softq.Chain(torch.zeros(1, 3, labels), torch.zeros(labels, labels)),
        torch.tensor([[1, 1, 1]]),
    )
    for objective in (softq.raml, softq.sqdml):
        found, *_ = objective(p, gold, 0.5, ByPlace([1.0, 0.0, 5.0])).expected_parts(p)
        right = [math.exp(2 * w) / (math.exp(2 * w) + labels - 1) for w in (1.0, 0.0, 5.0)]
        assert found[0, :, 1].tolist() == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("objective", [softq.raml, softq.sqdml])
def test_rewards_of_parts_are_checked(objective):
    p, gold = softq.Chain(torch.zeros(1, 3, 3), torch.zeros(3, 3)), torch.tensor([[1, 1, 1]])
    with pytest.raises(RewardError, match="finite numbers"):
        objective(p, gold, 0.5, ByPlace([1.0, math.nan, 5.0]))
    short = ByPlace([1.0, 2.0, 5.0])
    short.on_parts = lambda reference: reference[..., :2]
    with pytest.raises(RewardError, match="shaped like its argument"):
        objective(p, gold, 0.5, short)


def nothing_allowed():
    rows = torch.zeros(2, 4, 3)
    rows[0, 1] = -math.inf
    arcs = torch.zeros(2, 4, 4)
    arcs[0, :, 2] = -math.inf
    yield softq.Chain(rows, torch.zeros(3, 3)), torch.tensor([[0, 1, 2, 0]] * 2)
    yield softq.Independent(rows), torch.tensor([[0, 1, 2, 0]] * 2)
    yield softq.Categorical(rows[:, 1]), torch.tensor([1, 1])
    yield softq.ProjectiveTree(arcs), torch.tensor([[0, 1, 2]] * 2)
    yield softq.SpanningTree(arcs), torch.tensor([[0, 1, 2]] * 2)


@pytest.mark.parametrize(
    ("p", "gold"),
    list(nothing_allowed()),
    ids=lambda one: type(one).__name__ if not isinstance(one, torch.Tensor) else "",
)
def test_a_model_that_forbids_everything_has_infinite_loss(p, gold):
    targets = softq.ml(p, gold), softq.raml(p, gold, 0.5), softq.sqdml(p, gold, 0.5)
    for loss in [
        *(softq.cross_entropy(target, p) for target in targets),
        softq.cross_entropy(p, p),
    ]:
        assert loss[0] == math.inf
        assert math.isfinite(loss[1])


@pytest.mark.parametrize(
    ("weights", "dtype"),
    [
        ((40000.0, 40000.0), torch.float16),
        ((3e38, 3e38), torch.float32),
        ((1.0, 3.0), torch.bfloat16),
    ],
)
def test_weights_of_any_size(weights, dtype):
    p = softq.Categorical(torch.zeros(1, 2))
    target = softq.raml(
        p, torch.tensor([[0, 1]]), 0.5, ref_weights=torch.tensor([weights], dtype=dtype)
    )
    assert target.references.weights[0].tolist() == pytest.approx(
        [weights[0] / sum(weights), weights[1] / sum(weights)]
    )
    with pytest.raises(WeightError, match="finite sum"):
        softq.raml(
            p,
            torch.tensor([[0, 1]]),
            0.5,
            ref_weights=torch.tensor([[1.7e308, 1.7e308]], dtype=torch.float64),
        )


@pytest.mark.parametrize("tau", [1e-320, 1e-39, 1e300])
def test_temperatures_beyond_reason(tau):
    p = softq.Categorical(torch.zeros(1, 2))
    with pytest.raises(TemperatureError, match="must lie between"):
        softq.raml(p, torch.tensor([0]), tau)


@pytest.mark.parametrize("tau", [np.float32(0.5), np.int64(1), np.float64(0.5), torch.tensor(0.5)])
def test_numbers_of_numpy_are_temperatures(tau):
    p = softq.Categorical(torch.zeros(1, 2))
    assert softq.raml(p, torch.tensor([0]), tau).tau == float(tau)


@pytest.mark.parametrize("kind", ["chain", "projective", "spanning"])
def test_the_coldest_temperature_of_a_recursion_is_right(kind):
    """Colder ones are refused: sums of scores would have no digits left for ties."""
    if kind == "chain":
        barred = torch.zeros(3, 3, dtype=torch.float64)
        barred[0, 0] = barred[1, 1] = -math.inf
        p = softq.Chain(torch.zeros(1, 4, 3, dtype=torch.float64), barred)
        outputs = [torch.tensor([y]) for y in itertools.product(range(3), repeat=4)]
    else:
        cls = softq.ProjectiveTree if kind == "projective" else softq.SpanningTree
        p = cls(torch.zeros(1, 5, 5, dtype=torch.float64))
        outputs = [torch.tensor([y]) for y in itertools.product(range(5), repeat=4)]
    outputs = [y for y in outputs if _possible(p, y)]
    references = outputs if kind != "chain" else [torch.tensor([[0, 0, 0, 1]])]
    for reference in references[:75]:
        with pytest.raises(TemperatureError, match=r"too cold.*at least tau = 4e-10"):
            softq.raml(p, reference, 1e-16)
        target = softq.raml(p, reference, 4e-10).components
        matches = [int((y == reference).sum()) for y in outputs]
        best = [y for y, m in zip(outputs, matches, strict=True) if m == max(matches)]
        want = torch.stack([p.indicator(y) for y in best]).mean(0)
        assert_close(target.marginals[:, 0], want, atol=1e-5, rtol=0)


def _possible(p, output):
    try:
        return bool(p.log_prob(output) > -math.inf)
    except OutputError:  # no tree
        return False


@pytest.mark.parametrize("tau", [1e-18, 1e18])
@pytest.mark.parametrize("scaled", [False, True])
def test_extreme_temperatures_give_numbers(tau, scaled):
    p = softq.Chain(torch.zeros(1, 4, 3), torch.zeros(3, 3))
    for objective in (softq.raml, softq.sqdml):
        assert math.isfinite(
            softq.cross_entropy(
                objective(p, torch.tensor([[0, 1, 2, 0]]), tau), p, temperature_scaled=scaled
            )
        )


def test_sixteen_bits_of_candidates_are_summed_in_more():
    target = softq.raml(CANDIDATES, REFERENCES, 0.5, softq.rewards.SentenceBLEU())
    log_probs = torch.full((2, 3), -3.3, dtype=torch.bfloat16)
    found = softq.cross_entropy(target, log_probs)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([-float(log_probs[0, 0])] * 2, rel=1e-6)


@pytest.mark.parametrize("table", [[[1, 2], [3]], None, "x"])
def test_tables_that_are_none(table):
    with pytest.raises(DtypeError, match="K lists of K numbers"):
        Matrix(table)


def test_small_things():
    assert TokenReward.weighted([1.0, 2.0]).table.tolist() == [[1.0, 0.0], [0.0, 2.0]]
    assert softq.samplers.NgramReplacement(20, size=3)([]).tokens.shape[:2] == (0, 3)
    for lengths in ([math.nan], [2.5], [-1]):
        with pytest.raises(LengthError, match="whole numbers"):
            HammingCurve(4, lengths)
    assert theorem2_bounds(c=1e6, gamma=0.9) == (0.0, 0.0, 0.0)
    assert theorem2_bounds(c=1e-320, gamma=0.01) == (0.5, math.inf, math.inf)


def test_tables_are_whole_where_nobody_watches():
    told = (
        CliRunner()
        .invoke(
            cli.app,
            ["theory", "--tau", "0.01,10000", "--grid", "20"],
            env={"COLUMNS": "80", "NO_COLOR": "1"},
        )
        .stdout
    )
    rows = [
        cells for line in told.splitlines() if (cells := line.split())[:1] in (["0.01"], ["10000"])
    ]
    assert [len(cells) for cells in rows] == [8, 8]
    assert [float(cells[-2]) <= float(cells[-1]) for cells in rows] == [True, True]
    assert float(rows[0][5]) == pytest.approx(1477.8112, abs=1e-3)  # Theorem 1: 2R/τ, R = e²


def test_a_seed_beyond_reason(tmp_path):
    (tmp_path / "refs.txt").write_text("a b c\nd e\n")
    found = run_softq("theory", "--references", tmp_path / "refs.txt", "--seed", 10**23)
    assert found.exit_code == 2
    assert "Invalid value for '--seed'" in found.output


def test_a_space_of_ones_own_without_a_natural_reward_asks_for_one():
    class Classes(softq.Categorical):
        natural_reward = None

    p = Classes(torch.zeros(2, 3))
    with pytest.raises(
        softq.errors.RewardError, match="Classes has no natural reward: give one as reward="
    ):
        softq.raml(p, torch.tensor([0, 1]), 1.0)
    assert softq.raml(p, torch.tensor([0, 1]), 1.0, softq.rewards.ExactMatch()).tau == 1.0
