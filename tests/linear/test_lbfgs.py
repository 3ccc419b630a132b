"""L-BFGS.

Optima that are known, the textbook's directions, and searches that are broken off, stuck or fed
nonsense.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from softq.linear.lbfgs import LBFGS

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


@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_quadratics_in_single_precision(condition):
    evaluate, minimum = quadratic(30, condition, dtype=torch.float32)
    search = LBFGS(torch.zeros(30), evaluate, tolerance=1e-4)
    run(search)
    assert search.status == "converged"
    assert float((search.point - minimum).norm()) <= 2e-4 * search.scale
    assert search.iterations < 300


@pytest.mark.parametrize("start", [-3.0, 3.0, 1e3])
def test_one_dimension(start):
    log_cosh = objective(lambda x: (torch.nn.functional.softplus(2 * (x - 1)) - (x - 1)).sum())
    search = LBFGS(torch.tensor([start], dtype=torch.float64), log_cosh, tolerance=1e-8)
    run(search)
    assert search.status == "converged"
    assert search.point.item() == pytest.approx(1.0, abs=1e-6)


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


def test_rosenbrock():
    rosenbrock = objective(lambda x: (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())
    search = LBFGS(torch.tensor([-1.2, 1.0] * 3, dtype=torch.float64), rosenbrock, tolerance=1e-8)
    values = run(search)
    assert search.status == "converged"
    assert all(after < before for before, after in itertools.pairwise(values))
    assert torch.allclose(search.point, torch.ones(6, dtype=torch.float64), atol=1e-5)


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


def test_a_start_without_a_slope_has_converged():
    search = LBFGS(torch.ones(3), objective(lambda x: ((x - 1) ** 2).sum()), tolerance=1e-6)
    assert (search.status, search.relative_norm, search.iterations) == ("converged", 0.0, 0)


def test_the_start_is_not_changed():
    start = torch.ones(4)
    search = LBFGS(start, objective(lambda x: (x**2).sum()), tolerance=1e-6)
    run(search)
    assert torch.equal(start, torch.ones(4))


def test_where_no_step_helps_it_is_stuck():
    def wrong_way(point, gradient):  # a gradient that points downhill, so that every step goes up
        gradient.copy_(-2 * point)
        return float(point @ point)

    search = LBFGS(torch.ones(3, dtype=torch.float64), wrong_way, tolerance=1e-6)
    run(search)
    assert search.status == "stuck"
    assert torch.equal(search.point, torch.ones(3, dtype=torch.float64))
    assert search.value == 3.0


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
