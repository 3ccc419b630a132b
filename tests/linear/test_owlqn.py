"""OWL-QN against another algorithm, against the conditions of a minimum, and its parts one by one."""

import numpy as np
import pytest
import torch

from softq.linear.lbfgs import LBFGS
from softq.linear.owlqn import OWLQN


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


def test_float32_converges_too():
    f, columns, steepest = logistic(4)
    search = minimise(OWLQN(torch.zeros(columns), as_evaluate(f), c1=0.5, tolerance=1e-5))
    assert search.status == "converged"
    np.testing.assert_allclose(
        search.point.numpy(), by_proximal_steps(f, columns, steepest, 0.5), atol=5e-3
    )


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


def test_the_smallest_penalty_is_none():
    f, columns, _ = logistic(6)
    start = torch.zeros(columns, dtype=torch.float64)
    plain = minimise(LBFGS(start, as_evaluate(f), tolerance=1e-9))
    nearly = minimise(OWLQN(start, as_evaluate(f), c1=1e-12, tolerance=1e-9))
    torch.testing.assert_close(nearly.point, plain.point, atol=1e-6, rtol=0)


def test_values_fall_and_no_step_changes_a_sign():
    f, columns, _ = logistic(7)
    search = OWLQN(
        torch.randn(columns, generator=torch.Generator().manual_seed(1)).double(),
        as_evaluate(f),
        c1=1.0,
        tolerance=1e-8,
    )
    while search.status == "going":
        point, value = search.point.clone(), search.value
        search.iterate()
        assert search.value <= value * (1 + 1e-7)
        assert (search.point * point >= 0).all()


def test_every_trial_goes_downhill_in_every_coordinate():
    f, columns, _ = logistic(7)
    tried = []

    def evaluate(x, gradient):
        tried.append(x.clone())
        return as_evaluate(f)(x, gradient)

    search = OWLQN(torch.zeros(columns, dtype=torch.float64), evaluate, c1=0.3, tolerance=1e-6)
    while search.status == "going":
        point, gradient = search.point.clone(), search.gradient.clone()
        tried.clear()
        search.iterate()
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


def test_memory_speeds_it_up():
    f, columns, _ = logistic(8)
    start = torch.zeros(columns, dtype=torch.float64)
    long = minimise(OWLQN(start, as_evaluate(f), c1=0.3, tolerance=1e-6, memory=8))
    short = minimise(OWLQN(start, as_evaluate(f), c1=0.3, tolerance=1e-6, memory=1))
    assert long.iterations < 200
    assert long.iterations < short.iterations / 1.5


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


def test_stuck_where_no_step_helps():
    def wrong(x, gradient):  # a gradient that lies: every step makes it worse
        gradient.fill_(5.0)
        return float((x**2).sum())

    search = minimise(OWLQN(torch.zeros(3, dtype=torch.float64), wrong, c1=1.0, tolerance=1e-6))
    assert search.status == "stuck"
    assert (search.point == 0).all()
    assert search.value == 0.0


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


def test_values_that_are_not_finite_are_refused():
    def broken(x, gradient):
        gradient.fill_(1.0)
        return float("nan")

    with pytest.raises(FloatingPointError, match="nan"):
        OWLQN(torch.zeros(3), broken, c1=1.0, tolerance=1e-6)
