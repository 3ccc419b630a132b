"""The paper's theory for any reward table and any P(y|x).

Q, Q', the gap between them, its bounds, the Bayes rule.

``p`` is ``[*X, K]``, one row P(·|x) per input; ``rewards`` is ``[K, K]``, r(y, y*) with the
predicted class first. Where a value is per input it has shape ``[*X]``; mean it over the inputs for
the joint quantities of the paper (Q(X) = Q'(X) = P(X)). Computed in float64. Proofs and the two
corrections stand in docs/math.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from softq.checks import check_tau
from softq.errors import ScoreError, ShapeError


def softmax_q(p: Tensor, rewards: Tensor, tau: float) -> Tensor:
    """Softmax Q-distribution Q(z|x; τ) ∝ exp( E_{Y|x}[r(z, Y)] / τ ), ``[*X, K]`` (eq. 12).

    >>> softmax_q(torch.tensor([0.5, 0.5]), torch.eye(2), 1.0)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    p, rewards, tau = _check(p, rewards, tau)
    return _log_q(p @ rewards.T, tau).exp()


def q_prime(p: Tensor, rewards: Tensor, tau: float) -> Tensor:
    """What RAML estimates: Q'(z|x; τ) = E_{Y|x}[ q(z|Y; τ) ], ``[*X, K]`` (eq. 16)."""
    p, rewards, tau = _check(p, rewards, tau)
    return p @ _log_q(rewards.T, tau).exp()


def _log_q(expected: Tensor, tau: float) -> Tensor:
    """Log of the distribution ∝ exp(expected reward / τ), ``[*X, K]``.

    Q(z|x; τ) of the rewards expected under P(·|x), ``p @ rewards.T``; q(z|y; τ), y first, of those
    against each y, ``rewards.T``.
    """
    return torch.log_softmax(expected / tau, -1)


def kl_q_qprime(p: Tensor, rewards: Tensor, tau: float) -> Tensor:
    """Exact KL(Q ‖ Q') per input, ``[*X]``.

    The error RAML makes in place of SQDML (Theorems 1 and 2).
    """
    p, rewards, tau = _check(p, rewards, tau)
    return _kl(p, _log_q(p @ rewards.T, tau), _log_q(rewards.T, tau))


def _kl(p: Tensor, log_q: Tensor, log_each: Tensor) -> Tensor:
    q_prime = p @ log_each.exp()
    if bool((q_prime > 1e-300).all()):
        log_q_prime = q_prime.log()
    else:  # at a small τ, log Q'(z) = logsumexp_y log P(y) + log q(z|y): no tiny Q' underflows
        log_q_prime = torch.logsumexp(p.log().unsqueeze(-1) + log_each, -2)
    return (log_q.exp() * (log_q - log_q_prime)).sum(-1).clamp_min(0.0)


def theorem1_bound(bound: float, tau: float) -> float:
    """Theorem 1 of the paper: KL(Q ‖ Q') ≤ 2R/τ for rewards in 0..R (eq. 19).

    >>> theorem1_bound(1.0, 0.5)
    4.0
    """
    return 2.0 * bound / check_tau(tau)


class SharpBounds(NamedTuple):
    """Bounds on KL(Q ‖ Q') that are sharper than Theorem 1; see `sharp_bounds`."""

    mean_kl: Tensor
    closed_form: float
    hoeffding: float


def sharp_bounds(p: Tensor, rewards: Tensor, tau: float) -> SharpBounds:
    """Three sharper bounds than 2R/τ, each implying the next.

    ``mean_kl [*X]`` is E_Y[ KL(Q ‖ q(·|Y)) ] (convexity of KL), ``hoeffding`` is min(R/τ, R²/(8τ²))
    and ``closed_form`` is min(R/τ, R²/(2τ²)); R is the range of the rewards. So the gap closes like
    1/τ².
    """
    p, rewards, tau = _check(p, rewards, tau)
    return _sharp_bounds(p, p @ rewards.T, rewards, tau)


def _sharp_bounds(p: Tensor, expected: Tensor, rewards: Tensor, tau: float) -> SharpBounds:
    # E_Y[log Z_Y] - log Σ_z exp(E[r(z,Y)]/τ)
    mean_kl = p @ torch.logsumexp(rewards / tau, 0) - torch.logsumexp(expected / tau, -1)
    ratio = float(rewards.max() - rewards.min()) / tau
    return SharpBounds(mean_kl.clamp_min(0.0), min(ratio, ratio**2 / 2), min(ratio, ratio**2 / 8))


def theorem2_limit(p: Tensor, rewards: Tensor) -> Tensor:
    """Exact limit of KL(Q ‖ Q') as τ → 0, per input ``[*X]``.

    +inf where Q' misses an output that Q keeps.

    Q tends to the uniform distribution on the Bayes-optimal outputs, q(·|y) to that on the outputs
    best for y.
    """
    p, rewards, _ = _check(p, rewards, 1.0)
    q = _on_best(p @ rewards.T, -1)
    limit = p @ _on_best(rewards, 0).T
    return (torch.xlogy(q, q) - torch.xlogy(q, limit)).sum(-1)


class Theorem2Bounds(NamedTuple):
    """Bounds on the limit of KL(Q ‖ Q') as τ → 0; see `theorem2_bounds`."""

    printed: float
    corrected: float
    sharp: float


def theorem2_bounds(c: float, gamma: float) -> Theorem2Bounds:
    """Theorem 2 (eq. 20-21) as printed and as it should be, for tail constant c and reward gap γ.

    Let b = γ²/(1-γ)². The paper's last step turns e^{-cb}/(1 - e^{-cb}) into 1/(1 + e^{cb}); it is
    1/(e^{cb} - 1). ``printed`` is the former (false in general), ``corrected`` the latter,
    ``sharp`` the line before it, -log(1 - e^{-cb}). The proof also needs e^{-cb} < γ/(1+γ), which
    the theorem does not say: without it the Bayes rule may prefer another output.

    >>> bounds = theorem2_bounds(c=math.log(10), gamma=0.5)  # P(y*|x) = 0.9
    >>> [round(bound, 4) for bound in bounds]  # the true limit is -log 0.9 = 0.1054
    [0.0909, 0.1111, 0.1054]
    """
    if not (c > 0.0 and 0.0 < gamma < 1.0):
        raise ScoreError(f"Theorem 2 needs c > 0 and 0 < gamma < 1, got c={c} and gamma={gamma}")
    cb = c * gamma**2 / (1.0 - gamma) ** 2
    none = math.exp(-cb)  # 0 where cb is large, and then so are all bounds
    if none == 1.0:  # cb is too small to tell from 0
        return Theorem2Bounds(0.5, math.inf, math.inf)
    return Theorem2Bounds(none / (1.0 + none), none / -math.expm1(-cb), -math.log1p(-none))


def theorem2_constants(p: Tensor, rewards: Tensor) -> tuple[float, float]:
    """The largest c and γ for which the assumptions of Theorem 2 hold at P(·|x) ``[K]``.

    With y* the most probable class, the reward gap is r(y, y) - r(y', y) ≥ γR for all y' ≠ y; the
    tail is P(r(y*, y*) - r(Y, y*) ≥ tR) ≤ exp(-c t²/(1-t)²) for 0 ≤ t < 1, which binds where the
    left side steps; R is the largest reward and none is negative. The proof also needs
    e^{-cb} < γ/(1+γ), b = γ²/(1-γ)². Raises ScoreError that says which of them fails.

    >>> c, gamma = theorem2_constants(torch.tensor([0.9, 0.05, 0.05]), 0.5 + 0.5 * torch.eye(3))
    >>> round(c, 4), gamma  # docs/math.md: c = -log 0.1
    (2.3026, 0.5)
    """
    largest, size = float(rewards.max()), len(p)
    others = rewards.masked_fill(torch.eye(size, dtype=torch.bool), -math.inf)
    gamma = float((rewards.diagonal() - others.amax(0)).min()) / largest if largest > 0.0 else 0.0
    if not 0.0 < gamma < 1.0:
        raise ScoreError(f"the reward gap must satisfy 0 < γ < 1, got γ = {gamma:.4g}")
    best = int(p.argmax())
    drop = (rewards[best, best] - rewards[:, best]) / largest
    steps = [(t, float(p[drop >= t].sum())) for t in sorted(set(drop[p > 0].tolist())) if t > 0.0]
    if any(t >= 1.0 for t, _ in steps):
        raise ScoreError(
            "the tail bound asks for probability 0 of a class whose reward falls by all of R"
        )
    c = min(((1.0 - t) ** 2 / t**2 * -math.log(tail) for t, tail in steps), default=math.inf)
    if not 0.0 < c < math.inf:
        raise ScoreError("the tail bound needs a class that is neither certain nor impossible")
    if not math.exp(-c * gamma**2 / (1.0 - gamma) ** 2) < gamma / (1.0 + gamma):
        raise ScoreError(
            "the tail is too heavy: the proof needs exp(-cb) < γ/(1+γ), "
            f"and c = {c:.4g}, γ = {gamma:.4g}"
        )
    return c, gamma


def bayes_rule(p: Tensor, rewards: Tensor) -> Tensor:
    """Decision of highest expected reward, h*(x) = argmax_y E_{Y|x}[r(y, Y)], ``[*X]`` (eq. 8)."""
    p, rewards, _ = _check(p, rewards, 1.0)
    return (p @ rewards.T).argmax(-1)


def expected_reward(decisions: Tensor, p: Tensor, rewards: Tensor) -> Tensor:
    """Conditional reward R(h(x)|x) of ``decisions [*X]``, per input; its mean is R(h) (eq. 7)."""
    p, rewards, _ = _check(p, rewards, 1.0)
    return (p @ rewards.T).gather(-1, decisions.unsqueeze(-1)).squeeze(-1)


class Problem(NamedTuple):
    """A classification problem with known P(y|x)."""

    inputs: Tensor  # [N, 2]
    p: Tensor  # [N, K]
    rewards: Tensor  # [K, K]


def four_class_problem(grid: int = 1000) -> Problem:
    """The paper's four-class problem (§4.1.1) on the midpoints of a partition of [-1, 1]².

    log P(y|x) = -‖x - x_y‖ + const with one base point per corner (eq. 22); a right answer earns
    e^2.0, e^1.6, e^1.2 or e^1.1 by its class, a wrong one nothing.
    """
    axis = (torch.arange(grid, dtype=torch.float64) + 0.5) * (2.0 / grid) - 1.0
    return four_classes_at(torch.cartesian_prod(axis, axis))


def four_classes_at(inputs: Tensor) -> Problem:
    """The same problem at inputs ``[N, 2]`` of one's own.

    >>> four_classes_at(torch.zeros(1, 2)).p
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]], dtype=torch.float64)
    """
    inputs = inputs.double()
    corners = torch.tensor([[1, 1], [1, -1], [-1, -1], [-1, 1]], dtype=torch.float64)
    rewards = torch.diag(torch.tensor([2.0, 1.6, 1.2, 1.1], dtype=torch.float64).exp())
    return Problem(inputs, torch.softmax(-torch.cdist(inputs, corners), -1), rewards)


class TheoryRow(NamedTuple):
    """Everything the theory says of one problem at one temperature; means over the inputs."""

    tau: float
    kl: float
    mean_kl: float
    hoeffding: float
    closed_form: float
    theorem1: float
    reward_raml: float
    reward_sqdml: float


class TheoryTable(NamedTuple):
    """`TheoryRow`s, the expected rewards that no temperature changes, and the limit τ → 0."""

    reward_bayes: float
    reward_ml: float
    theorem2_limit: float
    rows: list[TheoryRow]


def theory_table(problem: Problem, taus: list[float]) -> TheoryTable:
    """The exact gap, every bound and every expected reward of a problem, for each τ."""
    p, rewards, _ = _check(problem.p, problem.rewards, 1.0)
    expected = p @ rewards.T  # E_{Y|x}[r(z, Y)]: what every row below is made of

    def reward_of(decisions: Tensor) -> float:
        return float(expected.gather(-1, decisions.unsqueeze(-1)).mean())

    rows = []
    for tau in map(check_tau, taus):
        sharp = _sharp_bounds(p, expected, rewards, tau)
        log_q, log_each = _log_q(expected, tau), _log_q(rewards.T, tau)
        rows.append(
            TheoryRow(
                tau=tau,
                kl=float(_kl(p, log_q, log_each).mean()),
                mean_kl=float(sharp.mean_kl.mean()),
                hoeffding=sharp.hoeffding,
                closed_form=sharp.closed_form,
                theorem1=theorem1_bound(float(rewards.max()), tau),
                reward_raml=reward_of((p @ log_each.exp()).argmax(-1)),
                reward_sqdml=reward_of(log_q.argmax(-1)),
            )
        )
    return TheoryTable(
        reward_of(expected.argmax(-1)),
        reward_of(p.argmax(-1)),
        float(theorem2_limit(p, rewards).mean()),
        rows,
    )


def _on_best(values: Tensor, dim: int) -> Tensor:
    """Uniform distribution over the largest entries along ``dim``."""
    best = (values == values.amax(dim, keepdim=True)).double()
    return best / best.sum(dim, keepdim=True)


def _check(p: Tensor, rewards: Tensor, tau: float) -> tuple[Tensor, Tensor, float]:
    p, rewards = torch.as_tensor(p).double(), torch.as_tensor(rewards).double()
    size = p.shape[-1] if p.dim() else 0
    if p.dim() < 1 or rewards.shape != (size, size):
        raise ShapeError(
            f"p must be [*X, K] and rewards [K, K], got {list(p.shape)} and {list(rewards.shape)}"
        )
    if not bool(torch.isfinite(rewards).all()):
        raise ScoreError("rewards must be finite")
    if bool((~(p >= 0)).any()) or bool(((p.sum(-1) - 1.0).abs() > 1e-6).any()):
        raise ScoreError(
            "each row of p must be a probability distribution: not negative, summing to one"
        )
    return p, rewards, check_tau(tau)
