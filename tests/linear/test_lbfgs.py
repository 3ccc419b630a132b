"""L-BFGS.

Optima that are known, the textbook's directions, and searches that are broken off, stuck or fed
nonsense.
"""

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from softq.linear.lbfgs import LBFGS, OWLQN

pytestmark = pytest.mark.usefixtures("one_thread")


def objective(function):
    """A differentiable function of a tensor as `LBFGS` wants it."""

    def evaluate(point, gradient):
        leaf = point.detach().clone().requires_grad_()
        value = function(leaf)
        gradient.copy_(torch.autograd.grad(value, leaf)[0])
        return float(value.detach())

    return evaluate


def run(search, most=2000):
    """Iterate to the end; the values on the way."""
    values = [search.value]
    while search.status == "going" and search.iterations < most:
        search.iterate()
        values.append(search.value)
    return values


def quadratic(size, condition, seed=0, dtype=torch.float64):
    """½ (x - m)ᵀ A (x - m) with eigenvalues from 1 to ``condition``, and m."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))[0]
    matrix = (basis * torch.logspace(0, math.log10(condition), size, dtype=torch.float64)) @ basis.T
    minimum = torch.randn(size, dtype=torch.float64, generator=generator)
    matrix, minimum = matrix.to(dtype), minimum.to(dtype)
    return objective(lambda x: 0.5 * (x - minimum) @ matrix @ (x - minimum)), minimum


@pytest.mark.parametrize("memory", [1, 8, 30])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_quadratics(condition, memory):
    evaluate, minimum = quadratic(12, condition)
    search = LBFGS(torch.zeros(12, dtype=torch.float64), evaluate, tolerance=1e-9, memory=memory)
    values = run(search, 20_000)
    assert search.status == "converged"
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(values))
    # ‖x - m‖ ≤ ‖gradient‖ / least eigenvalue, which is 1
    assert float((search.point - minimum).norm()) <= 1e-9 * search.scale * (1 + 1e-6)


def test_logistic_regression_agrees_with_scipy():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(200, 12, dtype=torch.float64, generator=generator) * torch.logspace(
        -1, 1, 12, dtype=torch.float64
    )
    labels = (torch.rand(200, generator=generator) < 0.4).double()

    def loss(weights):
        return (
            torch.nn.functional.binary_cross_entropy_with_logits(
                inputs @ weights, labels, reduction="sum"
            )
            + 0.1 * weights @ weights
        )

    evaluate = objective(loss)
    search = LBFGS(torch.zeros(12, dtype=torch.float64), evaluate, tolerance=1e-10)
    run(search)

    def for_scipy(weights):
        gradient = torch.empty(12, dtype=torch.float64)
        return evaluate(torch.from_numpy(weights), gradient), gradient.numpy().copy()

    best = minimize(
        for_scipy,
        np.zeros(12),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000},
    )
    assert search.status == "converged"
    assert search.value == pytest.approx(best.fun, rel=1e-10)
    assert np.allclose(search.point.numpy(), best.x, atol=1e-5)


# --- the direction ----------------------------------------------------------------------------------------


def two_loops(gradient, steps, changes):
    """-H g by Nocedal and Wright, algorithm 7.4.

    Steps and changes of the gradient from the oldest to the latest.
    """
    q = gradient.clone()
    alphas = []
    for s, y in zip(reversed(steps), reversed(changes), strict=True):
        alphas.append(float(s @ q) / float(s @ y))
        q -= alphas[-1] * y
    r = q * (float(steps[-1] @ changes[-1]) / float(changes[-1] @ changes[-1])) if steps else q
    for s, y, alpha in zip(steps, changes, reversed(alphas), strict=True):
        r += (alpha - float(y @ r) / float(s @ y)) * s
    return -r


@pytest.mark.parametrize("memory", [1, 2, 5])
def test_directions_are_those_of_the_two_loops(memory, monkeypatch):
    seen = []
    search_along = LBFGS._search

    def spy(self, origin, direction, *rest):
        seen.append(direction.clone())
        return search_along(self, origin, direction, *rest)

    monkeypatch.setattr(LBFGS, "_search", spy)
    softplus = objective(
        lambda x: torch.nn.functional.softplus(x * torch.arange(1, 8)).sum() + 0.05 * x @ x
    )
    search = LBFGS(
        torch.linspace(-1, 2, 7, dtype=torch.float64), softplus, tolerance=1e-8, memory=memory
    )
    steps, changes = [], []
    for _ in range(9):
        point, gradient = search.point.clone(), search.gradient.clone()
        search.iterate()
        assert torch.allclose(
            seen[-1], two_loops(gradient, steps[-memory:], changes[-memory:]), rtol=1e-9, atol=1e-12
        )
        steps.append(search.point - point)
        changes.append(search.gradient - gradient)
    assert search.iterations == 9


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (torch.nn.functional.softplus(3 * x) + 0.1 * x**2 + 0.02 * x**4).sum(),
        lambda x: 0.01 * (x**2).sum(),  # the first step, of length 1, is much too short
    ],
)
def test_steps_meet_the_strong_wolfe_conditions(function):
    search = LBFGS(
        torch.linspace(-60, 90, 5, dtype=torch.float64), objective(function), tolerance=1e-7
    )
    while search.status == "going":
        point, gradient, value = search.point.clone(), search.gradient.clone(), search.value
        search.iterate()
        moved = search.point - point
        slope, after = float(gradient @ moved), float(search.gradient @ moved)
        assert slope < 0
        assert search.value <= value + 1e-4 * slope + 1e-7 * abs(
            value
        )  # values count as equal below their rounding
        assert abs(after) <= 0.9 * abs(slope) * (1 + 1e-9)


# --- how it ends ------------------------------------------------------------------------------------------


def test_the_tolerance_is_a_part_of_the_first_gradient():
    evaluate, _ = quadratic(10, 100.0)
    start = torch.zeros(10, dtype=torch.float64)
    for tolerance in (1e-1, 1e-3, 1e-6):
        search = LBFGS(start, evaluate, tolerance=tolerance)
        first = search.norm
        assert search.scale == first
        norms = []
        while search.status == "going":
            search.iterate()
            norms.append(search.norm)
        assert norms[-1] <= tolerance * first
        assert all(norm > tolerance * first for norm in norms[:-1])
        assert search.relative_norm == norms[-1] / first
    assert LBFGS(start, evaluate, tolerance=1.0).status == "converged"  # by definition


@pytest.mark.parametrize("make", [LBFGS, partial(OWLQN, c1=0.5)], ids=["L-BFGS", "OWL-QN"])
def test_where_no_step_helps_it_is_stuck(make):
    def wrong_way(point, gradient):  # a gradient that points downhill, so that every step goes up
        gradient.copy_(-2 * point)
        return float(point @ point)

    search = make(torch.ones(3, dtype=torch.float64), wrong_way, tolerance=1e-6)
    before = search.value
    run(search)
    assert search.status == "stuck"
    assert torch.equal(search.point, torch.ones(3, dtype=torch.float64))
    assert search.value == before


def test_before_it_is_stuck_it_tries_without_its_memory():
    walls = False
    bowl, _ = quadratic(6, 50.0)

    def evaluate(point, gradient):
        value = bowl(point, gradient)
        return math.nan if walls else value

    search = LBFGS(torch.zeros(6, dtype=torch.float64), evaluate, tolerance=1e-12)
    search.iterate()
    search.iterate()
    walls, before, value = True, search.point.clone(), search.value
    search.iterate()
    assert search.status == "going"
    walls = False
    search.iterate()  # there was something to be found without it
    assert search.value < value
    walls, before = True, search.point.clone()
    search.iterate()
    search.iterate()
    assert search.status == "stuck"
    assert torch.equal(search.point, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_at_the_start_is_an_error(bad):
    def evaluate(point, gradient):
        gradient.fill_(1.0)
        return bad

    with pytest.raises(FloatingPointError, match=f"the objective is {bad}"):
        LBFGS(torch.zeros(2), evaluate, tolerance=1e-3)
    with pytest.raises(FloatingPointError, match="its gradient's norm nan"):
        LBFGS(
            torch.zeros(2),
            lambda point, gradient: float(gradient.fill_(math.nan)[0] * 0 == 1),
            tolerance=1e-3,
        )


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_wall_is_kept_away_from(bad):
    def barrier(point, gradient):  # its minimum is at -1, and from 1 on there is nothing
        if float(point) >= 1:
            gradient.fill_(bad)
            return bad
        gradient.copy_(1 / (1 - point) - 0.5)
        return float(-torch.log(1 - point) - 0.5 * point)

    search = LBFGS(torch.tensor([0.999999], dtype=torch.float64), barrier, tolerance=1e-9)
    run(search)
    assert search.status == "converged"
    assert search.point.item() == pytest.approx(-1.0, abs=1e-2)
    from_afar = LBFGS(torch.tensor([-50.0], dtype=torch.float64), barrier, tolerance=1e-9)
    run(from_afar)
    assert from_afar.point.item() == pytest.approx(-1.0, abs=1e-6)


# --- broken off and gone on with --------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [1, 3])
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_a_search_goes_on_bit_for_bit(memory, at):
    evaluate, _ = quadratic(12, 1e3, dtype=torch.float32)
    whole = LBFGS(torch.zeros(12), evaluate, tolerance=1e-4, memory=memory)
    first = LBFGS(torch.zeros(12), evaluate, tolerance=1e-4, memory=memory)
    for _ in range(at):
        whole.iterate()
        first.iterate()
    kept = {name: tensor.clone() for name, tensor in first.state().items()}
    first.iterate()  # what was kept does not depend on it any more
    other = LBFGS(torch.ones(12), evaluate, tolerance=1e-4, memory=memory)
    other.load_state(kept)
    run(whole)
    run(other)
    assert whole.status == "converged"
    assert {name: tensor.tolist() for name, tensor in other.state().items()} == {
        name: tensor.tolist() for name, tensor in whole.state().items()
    }
    over = LBFGS(torch.zeros(12), evaluate, tolerance=1e-4, memory=memory)
    over.load_state(whole.state())
    assert (over.status, over.iterations, over.evaluations) == (
        "converged",
        whole.iterations,
        whole.evaluations,
    )


# --- OWL-QN -------------------------------------------------------------------------------------------


def logistic(seed, rows=80, columns=25, c2=0.05):
    """f of a logistic regression whose columns are of very different scales, and its gradient, in numpy."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(rows, columns)) * np.exp(rng.normal(size=columns))
    truth = rng.normal(size=columns) * (rng.random(columns) < 0.3)
    signs = np.where(rng.random(rows) < 1 / (1 + np.exp(-inputs @ truth)), 1.0, -1.0)

    def f(x):
        margins = signs * (inputs @ x)
        value = np.logaddexp(0, -margins).sum() + c2 * x @ x
        return value, inputs.T @ (-signs / (1 + np.exp(margins))) + 2 * c2 * x

    steepest = np.linalg.eigvalsh(inputs.T @ inputs / 4)[-1] + 2 * c2
    return f, columns, steepest


def lasso(seed, rows=40, columns=60):
    """Least squares with more unknowns than equations."""
    rng = np.random.default_rng(seed)
    inputs, right = rng.normal(size=(rows, columns)), rng.normal(size=rows)

    def f(x):
        residual = inputs @ x - right
        return residual @ residual / 2, inputs.T @ residual

    return f, columns, np.linalg.eigvalsh(inputs.T @ inputs)[-1]


def as_evaluate(f):
    def evaluate(x, gradient):
        value, slopes = f(x.double().numpy())
        gradient.copy_(torch.from_numpy(slopes))
        return float(value)

    return evaluate


def minimise(search, most=5000):
    while search.status == "going" and search.iterations < most:
        search.iterate()
    return search


def by_proximal_steps(f, columns, steepest, c1, steps=20000):
    """FISTA with restarts: gradient steps of a fixed length, each followed by soft thresholding."""
    x = ahead = np.zeros(columns)
    momentum = 1.0
    for _ in range(steps):
        before = x
        stepped = ahead - f(ahead)[1] / steepest
        x = np.sign(stepped) * np.maximum(np.abs(stepped) - c1 / steepest, 0)
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        if (ahead - x) @ (x - before) > 0:
            following, momentum = 1.0, 1.0
        ahead = x + (momentum - 1) / following * (x - before)
        momentum = following
    return x


@pytest.mark.parametrize(
    "problem", [logistic(0), logistic(1), lasso(2)], ids=["logistic", "another", "lasso"]
)
@pytest.mark.parametrize("c1", [0.3, 3.0])
def test_agrees_with_proximal_gradient_steps(problem, c1):
    f, columns, steepest = problem
    right = by_proximal_steps(f, columns, steepest, c1)
    search = minimise(
        OWLQN(torch.zeros(columns, dtype=torch.float64), as_evaluate(f), c1=c1, tolerance=1e-9)
    )
    assert search.status == "converged"
    np.testing.assert_allclose(search.point.numpy(), right, atol=1e-6)
    assert search.value == pytest.approx(f(right)[0] + c1 * np.abs(right).sum(), rel=1e-10)
    assert ((search.point.numpy() == 0) == (right == 0)).all()
    assert 0 < (right == 0).sum() < columns


@pytest.mark.parametrize("start", ["zero", "random"])
def test_conditions_of_a_minimum(start):
    f, columns, _ = logistic(3)
    first = (
        torch.zeros(columns)
        if start == "zero"
        else torch.randn(columns, generator=torch.Generator().manual_seed(0))
    )
    c1 = 2.0
    search = minimise(OWLQN(first.double(), as_evaluate(f), c1=c1, tolerance=1e-8))
    x = search.point.numpy()
    slopes = f(x)[1]
    assert (np.abs(slopes[x == 0]) <= c1 + 1e-5).all()
    np.testing.assert_allclose(slopes[x != 0], -c1 * np.sign(x[x != 0]), atol=1e-5)


def test_a_penalty_that_is_too_strong_leaves_nothing():
    f, columns, _ = logistic(5)
    strongest = np.abs(f(np.zeros(columns))[1]).max()
    search = OWLQN(
        torch.zeros(columns, dtype=torch.float64), as_evaluate(f), c1=strongest, tolerance=1e-6
    )
    assert search.status == "converged"
    assert search.iterations == 0
    search = minimise(
        OWLQN(
            torch.ones(columns, dtype=torch.float64), as_evaluate(f), c1=strongest, tolerance=1e-6
        )
    )
    assert search.status == "converged"
    assert (search.point == 0).all()


def test_values_fall_and_every_trial_goes_downhill_in_every_coordinate():
    f, columns, _ = logistic(7)
    tried = []

    def evaluate(x, gradient):
        tried.append(x.clone())
        return as_evaluate(f)(x, gradient)

    start = torch.randn(columns, generator=torch.Generator().manual_seed(1)).double()
    search = OWLQN(start, evaluate, c1=0.3, tolerance=1e-6)
    while search.status == "going":
        point, gradient, value = search.point.clone(), search.gradient.clone(), search.value
        tried.clear()
        search.iterate()
        assert search.value <= value * (1 + 1e-7)
        assert (search.point * point >= 0).all()  # no step changes a sign
        assert all(((trial - point) * gradient <= 0).all() for trial in tried)


def test_the_memory_knows_the_smooth_part_alone():
    middle = torch.linspace(-2, 2, 9, dtype=torch.float64)
    bends = torch.linspace(1, 5, 9, dtype=torch.float64)

    def bowl(x, gradient):
        gradient.copy_(bends * (x - middle))
        return float((bends * (x - middle) ** 2).sum() / 2)

    search = OWLQN(-middle, bowl, c1=1.0, tolerance=1e-12, memory=4)
    while search.status == "going":
        search.iterate()
        steps, changes = search.state()["basis"].chunk(2)
        torch.testing.assert_close(changes, steps * bends)
    torch.testing.assert_close(
        search.point, torch.nn.functional.softshrink(bends * middle, 1.0) / bends
    )


def test_goes_on_from_its_state_as_if_nothing_had_been():
    f, columns, _ = logistic(9)
    start = torch.zeros(columns, dtype=torch.float64)
    unbroken = OWLQN(start, as_evaluate(f), c1=0.5, tolerance=1e-7)
    for _ in range(7):
        unbroken.iterate()
    state = {name: tensor.clone() for name, tensor in unbroken.state().items()}
    resumed = OWLQN(torch.ones_like(start), as_evaluate(f), c1=0.5, tolerance=1e-7)
    resumed.load_state(state)
    assert torch.equal(minimise(resumed).point, minimise(unbroken).point)
    assert resumed.iterations == unbroken.iterations


def test_a_search_that_is_over_stays_where_it_is():
    f, columns, _ = logistic(5)
    strongest = np.abs(f(np.zeros(columns))[1]).max()
    at_the_start = OWLQN(
        torch.zeros(columns, dtype=torch.float64), as_evaluate(f), c1=strongest, tolerance=1e-6
    )
    later = minimise(
        OWLQN(torch.zeros(columns, dtype=torch.float64), as_evaluate(f), c1=0.5, tolerance=1e-3)
    )
    for search in (at_the_start, later):
        assert search.status == "converged"
        before = search.iterations, search.evaluations, search.value, search.point.clone()
        search.iterate()
        assert (search.iterations, search.evaluations, search.value) == before[:3]
        assert torch.equal(search.point, before[3])
