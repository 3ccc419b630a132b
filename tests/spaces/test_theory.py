"""softq.theory against the published numbers, a plain-Python oracle, and its own inequalities."""

import itertools
import math
import random

import pytest
import torch

import oracle
from softq import theory
from softq.errors import ScoreError, ShapeError, SoftqError, TemperatureError

TAUS = [0.05, 0.3, 1.0, 4.0, 50.0]


def random_problem(seed, size=None, ceiling=None):
    """P(·|x) and rewards in 0..ceiling as plain lists; some probabilities tiny, some exactly 0."""
    rng = random.Random(seed)
    size = size or rng.randint(2, 6)
    ceiling = ceiling or rng.choice([0.5, 1.0, 7.0])
    weights = [rng.choice([0.0, 1e-9, 1.0]) * rng.random() for _ in range(size)]
    weights[rng.randrange(size)] += 0.1
    p = [w / sum(weights) for w in weights]
    return p, [[ceiling * rng.random() for _ in range(size)] for _ in range(size)]


def tensors(p, rewards):
    return torch.tensor(p, dtype=torch.float64), torch.tensor(rewards, dtype=torch.float64)


def mean_rewards(p, rewards):
    return [math.fsum(p[y] * row[y] for y in range(len(p))) for row in rewards]


def oracle_q(p, rewards, tau):
    return oracle.probabilities([m / tau for m in mean_rewards(p, rewards)])


def oracle_payoffs(p, rewards, tau):
    return [oracle.probabilities([row[y] / tau for row in rewards]) for y in range(len(p))]


def oracle_q_prime(p, rewards, tau):
    payoffs = oracle_payoffs(p, rewards, tau)
    return [math.fsum(p[y] * payoffs[y][z] for y in range(len(p))) for z in range(len(p))]


def oracle_kl(a, b):
    return math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x > 0)


# --- the paper's four-class problem -------------------------------------------------------------------


@pytest.fixture(scope="module")
def four_classes():
    return theory.theory_table(theory.four_class_problem(1000), [0.5, 1.0, 1.5, 2.0, 2.4, 3.0])


def test_four_class_rewards(four_classes):
    assert four_classes.reward_bayes == pytest.approx(2.31555, abs=1e-4)
    assert four_classes.reward_ml == pytest.approx(2.18019, abs=1e-4)
    expected = [2.18257, 2.22472, 2.27531, 2.30220, 2.31109, 2.31505]
    assert [row.reward_raml for row in four_classes.rows] == pytest.approx(expected, abs=1e-4)
    assert [row.reward_sqdml for row in four_classes.rows] == pytest.approx(
        [four_classes.reward_bayes] * 6, abs=1e-12
    )


def test_four_class_bounds_stand_in_order(four_classes):
    for row in four_classes.rows:
        assert 0 < row.kl < row.mean_kl < row.hoeffding <= row.closed_form < row.theorem1
    assert [row.kl for row in four_classes.rows] == sorted(
        (row.kl for row in four_classes.rows), reverse=True
    )


def test_four_class_problem_is_the_papers():
    problem = theory.four_class_problem(2)  # midpoints (±1/2, ±1/2)
    corners = [(1, 1), (1, -1), (-1, -1), (-1, 1)]
    for point, p in zip(problem.inputs.tolist(), problem.p.tolist(), strict=True):
        assert p == pytest.approx(
            oracle.probabilities([-math.dist(point, corner) for corner in corners])
        )
    for y, power in enumerate([2.0, 1.6, 1.2, 1.1]):
        assert problem.rewards[y].tolist() == pytest.approx(
            [math.exp(power) if z == y else 0.0 for z in range(4)]
        )


# --- definitions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("seed", range(12))
def test_definitions_against_plain_python(seed, tau):
    p, rewards = random_problem(seed)
    q, q_prime = oracle_q(p, rewards, tau), oracle_q_prime(p, rewards, tau)
    assert theory.softmax_q(*tensors(p, rewards), tau).tolist() == pytest.approx(q, abs=1e-12)
    assert theory.q_prime(*tensors(p, rewards), tau).tolist() == pytest.approx(q_prime, abs=1e-12)
    assert theory.kl_q_qprime(*tensors(p, rewards), tau).item() == pytest.approx(
        oracle_kl(q, q_prime), rel=1e-9, abs=1e-12
    )
    payoffs = oracle_payoffs(p, rewards, tau)
    mean_kl = math.fsum(p[y] * oracle_kl(q, payoffs[y]) for y in range(len(p)))
    assert theory.sharp_bounds(*tensors(p, rewards), tau).mean_kl.item() == pytest.approx(
        mean_kl, rel=1e-9, abs=1e-10
    )


def test_inputs_in_a_batch_are_each_on_their_own():
    p = torch.tensor(
        [random_problem(seed, 4)[0] for seed in range(6)], dtype=torch.float64
    ).reshape(2, 3, 4)
    rewards = torch.tensor(random_problem(0, 4)[1], dtype=torch.float64)
    for function in (theory.softmax_q, theory.q_prime, theory.kl_q_qprime):
        alone = torch.stack([function(row, rewards, 0.7) for row in p.reshape(6, 4)])
        torch.testing.assert_close(function(p, rewards, 0.7).reshape(alone.shape), alone)


def test_kl_survives_a_tiny_q_prime():
    # Both references rule out the compromise that Q picks: Q'(2) underflows, KL is about 1/τ · (1 -
    # 0.6).
    p, rewards = tensors([0.5, 0.5, 0.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.6, 0.6, 1.0]])
    assert theory.kl_q_qprime(p, rewards, 1e-4).item() == pytest.approx(4000.0, rel=1e-3)


# --- bounds on the gap --------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", TAUS)
def test_bounds_hold_in_order(tau):
    for seed in range(200):
        p, rewards = tensors(*random_problem(seed))
        kl = theory.kl_q_qprime(p, rewards, tau).item()
        bounds = theory.sharp_bounds(p, rewards, tau)
        chain = [
            kl,
            bounds.mean_kl.item(),
            bounds.hoeffding,
            bounds.closed_form,
            theory.theorem1_bound(float(rewards.max()), tau),
        ]
        assert all(low <= high + 1e-12 for low, high in itertools.pairwise(chain)), (seed, chain)


def test_closed_forms():
    _, closed, hoeffding = theory.sharp_bounds(
        *tensors([0.5, 0.5], [[3.0, 1.0], [1.0, 3.0]]), 4.0
    )  # a range of 2, not 3
    assert (closed, hoeffding) == (0.125, 0.03125)
    _, closed, hoeffding = theory.sharp_bounds(*tensors([0.5, 0.5], [[3.0, 1.0], [1.0, 3.0]]), 0.1)
    assert (closed, hoeffding) == (20.0, 20.0)
    assert theory.theorem1_bound(3.0, 4.0) == 1.5


def test_the_gap_closes_like_one_over_tau_squared_or_faster():
    p, rewards = tensors([0.6, 0.3, 0.1], [[1.0, 0.0, 0.2], [0.3, 0.9, 0.0], [0.1, 0.4, 0.8]])
    at = {tau: theory.sharp_bounds(p, rewards, tau).mean_kl.item() for tau in (100.0, 200.0)}
    assert at[100.0] / at[200.0] == pytest.approx(4.0, rel=0.02)
    assert theory.kl_q_qprime(p, rewards, 100.0).item() <= at[100.0]


# --- Theorem 2 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.3, 0.1, 0.01])
def test_theorem2_as_printed_is_false(epsilon):
    """r = 1 on the diagonal, 1/2 off it, so γ = 1/2 and b = 1; P(y*|x) = 1 - ε, so c = -log ε."""
    size = 4
    p, rewards = tensors(
        [1 - epsilon, *[epsilon / (size - 1)] * (size - 1)], (0.5 + 0.5 * torch.eye(size)).tolist()
    )
    limit = theory.theorem2_limit(p, rewards).item()
    bounds = theory.theorem2_bounds(c=-math.log(epsilon), gamma=0.5)
    assert limit == pytest.approx(-math.log(1 - epsilon))
    assert bounds.printed == pytest.approx(epsilon / (1 + epsilon))
    assert limit > bounds.printed
    assert limit == pytest.approx(bounds.sharp)
    assert bounds.corrected == pytest.approx(epsilon / (1 - epsilon))
    assert limit < bounds.corrected


def test_theorem2_corrected_holds_where_its_condition_does():
    checked = 0
    for seed in range(400):
        rng = random.Random(seed)
        size, epsilon = rng.randint(2, 5), rng.uniform(0.01, 0.3)
        rest = [rng.random() for _ in range(size - 1)]
        p = [1 - epsilon, *[epsilon * w / sum(rest) for w in rest]]
        # Diagonal R = 1; r(y', y) ≤ 1 - γ off it, and exactly 1 - γ in column y* = 0, so that c =
        # -log(ε) / b fits the tail.
        gamma = rng.uniform(0.3, 0.7)
        rewards = [
            [
                1.0 if z == y else 1 - gamma if y == 0 else (1 - gamma) * rng.random()
                for y in range(size)
            ]
            for z in range(size)
        ]
        if epsilon >= gamma / (1 + gamma):
            continue
        checked += 1
        b = gamma**2 / (1 - gamma) ** 2
        bounds = theory.theorem2_bounds(c=-math.log(epsilon) / b, gamma=gamma)
        limit = theory.theorem2_limit(*tensors(p, rewards)).item()
        assert limit <= bounds.sharp + 1e-12 <= bounds.corrected + 1e-12
    assert checked > 100


def test_theorem2_needs_a_dominant_output():
    """Without e^{-cb} < γ/(1+γ) the Bayes rule may leave y*, and even the corrected bound fails."""
    p, rewards = tensors([0.5, 0.3, 0.2], [[1.0, 0.0, 0.0], [0.5, 1.0, 0.5], [0.5, 0.5, 1.0]])
    limit = theory.theorem2_limit(p, rewards).item()
    assert theory.bayes_rule(p, rewards).item() == 1
    assert limit == pytest.approx(-math.log(0.3))
    assert limit > theory.theorem2_bounds(c=math.log(2), gamma=0.5).corrected


@pytest.mark.parametrize("seed", range(20))
def test_theorem2_limit_is_the_limit(seed):
    # Rewards in steps of 1/4 and probabilities in eighths: ties are exact, and the rest is decided
    # at τ = 1/2000.
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, 8), 2))
    p = [cuts[0] / 8, (cuts[1] - cuts[0]) / 8, (8 - cuts[1]) / 8]
    rewards = [[1.0 if z == y else rng.randrange(4) / 4 for y in range(3)] for z in range(3)]
    near = theory.kl_q_qprime(*tensors(p, rewards), 1 / 2000).item()
    assert theory.theorem2_limit(*tensors(p, rewards)).item() == pytest.approx(near, abs=1e-9)


def test_theorem2_limit_is_infinite_for_a_compromise():
    p, rewards = tensors([0.5, 0.5, 0.0], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.6, 0.6, 1.0]])
    assert theory.theorem2_limit(p, rewards).item() == math.inf


# --- decisions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_bayes_rule_earns_the_most(seed):
    p, rewards = random_problem(seed)
    earned = mean_rewards(p, rewards)
    pair = tensors(p, rewards)
    best = theory.bayes_rule(*pair)
    assert theory.expected_reward(best, *pair).item() == pytest.approx(max(earned))
    for z, value in enumerate(earned):
        assert theory.expected_reward(torch.tensor(z), *pair).item() == pytest.approx(value)


@pytest.mark.parametrize("tau", TAUS)
def test_decoding_q_is_the_bayes_rule_at_any_temperature(tau):
    for seed in range(50):
        p, rewards = tensors(*random_problem(seed))
        decision = theory.softmax_q(p, rewards, tau).argmax(-1)
        assert theory.expected_reward(decision, p, rewards) == pytest.approx(
            theory.expected_reward(theory.bayes_rule(p, rewards), p, rewards)
        )


def test_decoding_q_prime_need_not_be():
    p, rewards = tensors([0.4, 0.35, 0.25], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.9, 0.9, 1.0]])
    assert theory.bayes_rule(p, rewards).item() == 2
    assert theory.q_prime(p, rewards, 0.01).argmax(-1).item() == 0


# --- bad input ----------------------------------------------------------------------------------------

P, R = [0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(
    "function", [theory.softmax_q, theory.q_prime, theory.kl_q_qprime, theory.sharp_bounds]
)
@pytest.mark.parametrize(
    ("p", "rewards", "tau", "error", "text"),
    [
        (P, R, 0.0, TemperatureError, "must be positive and finite, got 0.0"),
        (P, R, -1.0, TemperatureError, "got -1.0"),
        (P, R, math.nan, TemperatureError, "got nan"),
        (P, R, "hot", TemperatureError, "positive number, got str"),
        (
            P,
            [[1.0, 0.0]],
            1.0,
            ShapeError,
            r"p must be \[\*X, K\] and rewards \[K, K\], got \[2\] and \[1, 2\]",
        ),
        (0.5, R, 1.0, ShapeError, r"got \[\] and \[2, 2\]"),
        ([0.5, 0.4], R, 1.0, ScoreError, "summing to one"),
        ([1.5, -0.5], R, 1.0, ScoreError, "not negative"),
        ([math.nan, 1.0], R, 1.0, ScoreError, "probability distribution"),
        (P, [[1.0, 0.0], [0.0, math.inf]], 1.0, ScoreError, "rewards must be finite"),
    ],
)
def test_bad_input(function, p, rewards, tau, error, text):
    assert issubclass(error, SoftqError)
    with pytest.raises(error, match=text):
        function(*tensors(p, rewards), tau)


@pytest.mark.parametrize("tau", [0, -2.0, math.inf])
def test_bad_temperature_of_theorem1(tau):
    with pytest.raises(TemperatureError, match=f"got {tau}"):
        theory.theorem1_bound(1.0, tau)


@pytest.mark.parametrize(
    ("c", "gamma"), [(0.0, 0.5), (-1.0, 0.5), (1.0, 0.0), (1.0, 1.0), (math.nan, 0.5)]
)
def test_bad_constants_of_theorem2(c, gamma):
    with pytest.raises(
        ScoreError, match=f"needs c > 0 and 0 < gamma < 1, got c={c} and gamma={gamma}"
    ):
        theory.theorem2_bounds(c, gamma)
