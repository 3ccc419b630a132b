"""Decisions under a table of rewards or costs: what the page shows of classes, all of it computed by `softq.theory`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import mul
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from softq.errors import DataError, ScoreError
from softq.theory import (
    Problem,
    Theorem2Bounds,
    TheoryRow,
    bayes_rule,
    expected_reward,
    q_prime,
    softmax_q,
    theorem2_bounds,
    theorem2_limit,
    theory_table,
)

TableKind = Literal["rewards", "costs"]
Rule = Literal["ml", "raml", "bayes"]

Shares = tuple[float, ...]
"""Of the drawn classes in their mass, a point of the triangle or line between them; they sum to one."""

MOST_CLASSES = 20
_LARGEST = 1e12  # of a table: differences and quotients by a temperature stay numbers
_NOTHING = 1e-12  # a share of the triangle that is only rounding

EXAMPLE = """\
           healthy  flu  pneumonia
healthy          0    2         30
flu              1    0         12
pneumonia        6    5          0
"""
"""Costs to begin with: rows are decided, columns are right."""
EXAMPLE_PROBABILITIES = "0.70 0.22 0.08"


@dataclass(frozen=True, eq=False)
class ClassTable:
    """Classes by name and the reward r(decided, right), float64 ``[K, K]``; of costs, minus the cost."""

    labels: tuple[str, ...]
    rewards: Tensor

    @property
    def range(self) -> float:
        """The largest difference of two rewards; 1 where they are all the same, so that a temperature can be measured by it."""
        return float(self.rewards.max() - self.rewards.min()) or 1.0

    @cached_property
    def shift(self) -> float:
        """What to take from all rewards so that none is negative: Theorem 1 wants them in 0..R, and no target depends on it."""
        return min(float(self.rewards.min()), 0.0)


def parse_table(text: str, kind: TableKind = "rewards") -> ClassTable:
    r"""A table as people paste it: cells between tabs, commas or spaces, with or without names above and in front.

    >>> parse_table("0 -10\n-1 0").rewards.tolist()
    [[0.0, -10.0], [-1.0, 0.0]]
    >>> parse_table("fair, fraud\n 0, 10\n 1, 0", "costs").labels
    ('fair', 'fraud')
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise DataError("expected a table with a row for each class, got none; paste one")
    tabs, commas = any("\t" in line for _, line in lines), any("," in line for _, line in lines)
    rows = [
        (number, _cells(line, "\t" if tabs else "," if commas else None)) for number, line in lines
    ]
    above = None if any(map(_is_number, rows[0][1])) else rows.pop(0)[1]
    if not rows:
        raise DataError("expected a row of numbers for each class below the names, got none")
    named = all(not _is_number(cells[0]) for _, cells in rows)
    names = [cells[0] for _, cells in rows] if named else None
    numbers = [
        [_number(cell, line, column) for column, cell in enumerate(cells[named:], 1 + named)]
        for line, cells in rows
    ]
    size = len(rows)
    for (line, _), row in zip(rows, numbers, strict=True):
        if len(row) != size:
            raise DataError(
                f"line {line}: expected {size} numbers, one for each of the {size} rows, got {len(row)}"
            )
    if not 2 <= size <= MOST_CLASSES:
        raise DataError(f"expected 2 to {MOST_CLASSES} classes, got {size}")
    rewards = torch.tensor(numbers, dtype=torch.float64)
    return ClassTable(_labels(above, names, size), 0.0 - rewards if kind == "costs" else rewards)


def _cells(line: str, separator: str | None) -> list[str]:
    return (
        line.split()
        if separator is None
        else [cell.strip() for cell in line.rstrip(separator + " ").split(separator)]
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str, line: int, column: int) -> float:
    if not _is_number(cell):
        raise DataError(f"line {line}, column {column}: expected a number, got {cell!r}")
    if not abs(float(cell)) <= _LARGEST:
        raise DataError(
            f"line {line}, column {column}: expected a number of at most {_LARGEST:g}, got {cell}"
        )
    return float(cell)


def _labels(above: list[str] | None, names: list[str] | None, size: int) -> tuple[str, ...]:
    """Names of the classes, from either side of the table; numbers from 0 where it has none."""
    if above is not None and len(above) == size + 1:
        above = above[1:]  # a corner over the names in front
    if above is not None and len(above) != size:
        raise DataError(f"expected {size} names above the {size} columns, got {len(above)}")
    if above is not None and names is not None and above != names:
        raise DataError(
            f"expected the same names above and in front, got {', '.join(above)} and {', '.join(names)}"
        )
    found = tuple(above or names or map(str, range(size)))
    if "" in found or len(set(found)) < size:
        raise DataError(f"expected {size} different names, got {', '.join(found)}")
    return found


def parse_probabilities(text: str, count: int) -> Tensor:
    """P(·|x) of ``count`` classes, float64 ``[K]``, from numbers or fractions between spaces or commas.

    >>> parse_probabilities("1/2 0.25 0.25", 3)
    tensor([0.5000, 0.2500, 0.2500], dtype=torch.float64)
    """
    found = [_share(part) for part in re.split(r"[\s,;]+", text.strip()) if part]
    if len(found) != count:
        raise DataError(f"expected {count} probabilities, one for each class, got {len(found)}")
    if not abs(math.fsum(found) - 1.0) <= 1e-6:
        raise DataError(
            f"expected probabilities that sum to one, got a sum of {math.fsum(found):g}"
        )
    return torch.tensor(found, dtype=torch.float64) / math.fsum(found)


def _share(text: str) -> float:
    """A probability as a number or as a fraction."""
    over, _, under = text.partition("/")
    try:
        found = float(over) / float(under or 1)
    except (ValueError, ZeroDivisionError):
        raise DataError(f"expected numbers such as 0.25 or 1/4, got {text!r}") from None
    if not 0.0 <= found <= 1.0:
        raise DataError(f"expected probabilities from 0 to 1, got {text}")
    return found


class Theorem2(NamedTuple):
    """Theorem 2 at one input: the exact limit of KL(Q‖Q') as τ → 0, and the bounds, or why it promises none."""

    limit: float
    bounds: Theorem2Bounds | None
    reason: str


class Decision(NamedTuple):
    """What a rule decides at one input."""

    label: str
    reward: float


class ClassPoint(NamedTuple):
    """Everything that is shown of one input at one temperature."""

    q_prime: Tensor
    """What RAML estimates, ``[K]`` (eq. 16)."""
    q: Tensor
    """What SQDML estimates, ``[K]`` (eq. 12)."""
    row: TheoryRow
    """The gap between them, its bounds, and what deciding by each earns."""
    decisions: dict[Rule, Decision]


class Region(NamedTuple):
    """Inputs that are decided alike: a convex polygon between three classes, a stretch between two."""

    decision: int
    corners: list[Shares]


class ClassStudy:
    """A table of rewards and an input's P(·|x), ready for any temperature.

    ``chosen`` are two or three classes between which regions are drawn; the others keep their probabilities.

    >>> study = ClassStudy(parse_table(EXAMPLE, "costs"), parse_probabilities(EXAMPLE_PROBABILITIES, 3))
    >>> study.at(1.0).decisions["ml"].label, study.at(1.0).decisions["bayes"].label
    ('healthy', 'flu')

    """

    def __init__(self, table: ClassTable, p: Tensor, chosen: Sequence[int] | None = None) -> None:
        self.table, self.p = table, p
        self.chosen = tuple(range(min(len(table.labels), 3))) if chosen is None else tuple(chosen)
        if not 2 <= len(set(self.chosen)) == len(self.chosen) <= 3:
            raise DataError(
                f"expected two or three different classes to draw, got {len(set(self.chosen))}"
            )
        self.mass = float(p[list(self.chosen)].sum())
        if not self.mass > 0.0:
            raise DataError("expected classes to draw with some probability between them, got none")
        self._moved = table.rewards - table.shift  # none is negative

    @property
    def expected_rewards(self) -> Tensor:
        """E[r(z, Y)] of each decision z at the input, ``[K]``."""
        return self._earned(self.p)

    def at(self, tau: float) -> ClassPoint:
        """The input at one temperature."""
        rewards = self.table.rewards
        q_raml, q_sqdml = q_prime(self.p, rewards, tau), softmax_q(self.p, rewards, tau)
        decisions: dict[Rule, int] = {
            "ml": int(self.p.argmax()),
            "raml": int(q_raml.argmax()),
            "bayes": int(bayes_rule(self.p, rewards)),
        }
        earned = self.expected_rewards
        return ClassPoint(
            q_raml,
            q_sqdml,
            self._theory([tau])[0],
            {
                rule: Decision(self.table.labels[one], float(earned[one]))
                for rule, one in decisions.items()
            },
        )

    def bounds(self, taus: Sequence[float]) -> list[TheoryRow]:
        """KL(Q‖Q') at the input and its bounds, for each temperature."""
        return self._theory(taus)

    def regions(self, rule: Rule, tau: float) -> list[Region]:
        """What a rule decides where, exactly: each decides by scores that are linear in P, so those at the corners are enough."""
        leads = self._leads(rule, tau)
        found = [Region(one, _polygon(lead)) for one, lead in leads.items()]
        return [region for region in found if _measure(region.corners)[0] > _NOTHING]

    def mean_reward(self, rule: Rule, tau: float) -> float:
        """What a rule earns on average over the inputs that regions are drawn of, all equally likely; exact."""
        total = 0.0
        for decision, corners in self.regions(rule, tau):
            size, middle = _measure(corners)
            total += size * float(
                self._earned(self._between(torch.tensor(middle, dtype=torch.float64)))[decision]
            )
        return total

    def agreement(self, rule: Rule, tau: float) -> float:
        """The share of these inputs on which a rule decides as the Bayes rule does; exact."""
        mine, best = self._leads(rule, tau), self._leads("bayes", tau)
        return math.fsum(
            _measure(_polygon(torch.cat([mine[one], best[one]], 1)))[0]
            for one in mine
            if one in best
        )

    def _leads(self, rule: Rule, tau: float) -> dict[int, Tensor]:
        """By how much each decision is ahead of every other at the corners, ``[2 or 3, K]``; of decisions that are the same, the first."""
        corners = self._between(torch.eye(len(self.chosen), dtype=torch.float64))
        scores = {
            "ml": corners,
            "raml": q_prime(corners, self.table.rewards, tau),
            "bayes": self._earned(corners),
        }[rule]
        leads = {one: scores[:, one : one + 1] - scores for one in range(scores.shape[1])}
        same = 1e-12 * float(scores.abs().max())
        return {
            one: lead
            for one, lead in leads.items()
            if not bool((lead[:, :one].abs() <= same).all(0).any())
        }

    @cached_property
    def theorem2(self) -> Theorem2:
        """What Theorem 2 says of the input."""
        limit = float(theorem2_limit(self.p, self.table.rewards))
        try:
            return Theorem2(limit, theorem2_bounds(*theorem2_constants(self.p, self._moved)), "")
        except ScoreError as error:
            return Theorem2(limit, None, str(error))

    def _earned(self, p: Tensor) -> Tensor:
        """E[r(z, Y)] of each decision z, ``[..., K]``."""
        every = torch.arange(p.shape[-1]).expand(*p.shape[:-1], -1)
        return expected_reward(every, p.unsqueeze(-2).expand(*p.shape, -1), self.table.rewards)

    def _theory(self, taus: Sequence[float]) -> list[TheoryRow]:
        """`softq.theory.theory_table` of the input, in the units of the table."""
        here, shift = self.p.unsqueeze(0), self.table.shift
        found = theory_table(Problem(here, here, self._moved), list(taus)).rows
        return [
            row._replace(reward_raml=row.reward_raml + shift, reward_sqdml=row.reward_sqdml + shift)
            for row in found
        ]

    def _between(self, shares: Tensor) -> Tensor:
        """P with the mass of the chosen classes shared among them so; ``shares [..., 2 or 3]``."""
        p = self.p.expand(*shares.shape[:-1], -1).clone()
        p[..., list(self.chosen)] = self.mass * shares
        return p


def theorem2_constants(p: Tensor, rewards: Tensor) -> tuple[float, float]:
    """The largest c and γ for which the assumptions of Theorem 2 hold at P(·|x) ``[K]``, around its most probable class y*.

    The reward gap is r(y, y) - r(y', y) ≥ γR for all y' ≠ y; the tail is P(r(y*, y*) - r(Y, y*) ≥ tR) ≤ exp(-c t²/(1-t)²) for
    0 ≤ t < 1, which binds where the left side steps; R is the largest reward and none is negative. The proof also needs e^{-cb} < γ/(1+γ),
    b = γ²/(1-γ)². Raises ScoreError that says which of them fails.

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
            f"the tail is too heavy: the proof needs exp(-cb) < γ/(1+γ), and c = {c:.4g}, γ = {gamma:.4g}"
        )
    return c, gamma


def _polygon(leads: Tensor) -> list[Shares]:
    """Corners of where a decision is behind no other, [] if nowhere; ``leads [2 or 3, …]`` are linear between the corners.

    The triangle or line is cut at every zero of a lead, one after another.
    """
    size = len(leads)
    corners: list[Shares] = [tuple(float(i == j) for j in range(size)) for i in range(size)]
    for slopes in leads.T.tolist():
        kept: list[Shares] = []
        for here, there in zip(corners, [*corners[1:], *corners[:1]], strict=True):
            now, then = (sum(map(mul, slopes, corner)) for corner in (here, there))
            if now >= 0.0:
                kept.append(here)
            if (now < 0.0) != (then < 0.0):  # this side is cut
                share = now / (now - then)
                kept.append(
                    tuple((1.0 - share) * a + share * b for a, b in zip(here, there, strict=True))
                )
        corners = list(
            dict.fromkeys(kept if size == 3 or not kept else [min(kept), max(kept)])
        )  # a stretch has two ends
    return corners if len(corners) >= size else []


def _measure(corners: Sequence[Shares]) -> tuple[float, Shares]:
    """A region's share of the whole triangle or line, and its centre of mass."""
    if not corners:
        return 0.0, ()
    first = corners[0]
    parts = [corners] if len(first) == 2 else [(first, *pair) for pair in pairwise(corners[1:])]
    sizes = [
        abs(float(torch.linalg.det(torch.tensor(part, dtype=torch.float64)))) for part in parts
    ]
    total = math.fsum(sizes)
    if total == 0.0:
        return 0.0, first
    middles = [[math.fsum(each) / len(part) for each in zip(*part, strict=True)] for part in parts]
    return total, tuple(
        math.fsum(map(mul, sizes, each)) / total for each in zip(*middles, strict=True)
    )
