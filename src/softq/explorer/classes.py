"""Decisions under a table of rewards or costs, computed by `softq.theory`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from operator import mul
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from softq.errors import DataError, ScoreError
from softq.explorer.sentences import SettingError
from softq.theory import (
    Problem,
    Theorem2Bounds,
    TheoryRow,
    expected_reward,
    q_prime,
    softmax_q,
    theorem2_bounds,
    theorem2_constants,
    theorem2_limit,
    theory_table,
)

TableKind = Literal["rewards", "costs"]
Rule = Literal["ml", "raml", "bayes"]

RULES: dict[Rule, str] = {"ml": "ML", "raml": "RAML", "bayes": "Bayes rule = SQDML"}

Shares = tuple[float, ...]
"""A point of the triangle or line between the drawn classes: how they share their mass."""

MOST_CLASSES = 20
_LARGEST = 1e12  # of a table: differences and quotients by a temperature stay finite
_ROUNDING = 1e-12  # a share of the triangle that is only rounding

EXAMPLE = """\
           healthy  flu  pneumonia
healthy          0    2         30
flu              1    0         12
pneumonia        6    5          0
"""
"""The costs that the page starts with: rows are decisions, columns are right answers."""
EXAMPLE_PROBABILITIES = "0.70 0.22 0.08"


class ClassTable(NamedTuple):
    """Classes by name and the reward r(decision, right), float64 ``[K, K]``; minus the costs."""

    labels: tuple[str, ...]
    rewards: Tensor

    @property
    def range(self) -> float:
        """The largest difference of two rewards, the unit of temperatures; 1 if it is 0."""
        return float(self.rewards.max() - self.rewards.min()) or 1.0


def parse_table(text: str, kind: TableKind = "rewards") -> ClassTable:
    r"""A table as people paste it: cells between tabs, commas or spaces, with or without names.

    >>> parse_table("0 -10\n-1 0").rewards.tolist()
    [[0.0, -10.0], [-1.0, 0.0]]
    >>> parse_table("fair, fraud\n 0, 10\n 1, 0", "costs").labels
    ('fair', 'fraud')
    """
    separator = "\t" if "\t" in text else "," if "," in text else None
    rows = [
        (number, [cell.strip() for cell in line.rstrip(f" {separator or ''}").split(separator)])
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip()
    ]
    if not rows:
        raise DataError("expected a table with a row for each class, got none; paste one")
    above = None if any(map(_is_number, rows[0][1])) else rows.pop(0)[1]
    if not rows:
        raise DataError("expected a row of numbers for each class below the names, got none")
    size = len(rows)
    named = not any(_is_number(cells[0]) for _, cells in rows)
    for line, cells in rows:
        for column, cell in enumerate(cells[named:], 1 + named):
            if not (_is_number(cell) and abs(float(cell)) <= _LARGEST):
                raise DataError(
                    f"line {line}, column {column}: expected a number of at most {_LARGEST:g}, "
                    f"got {cell!r}"
                )
        if len(cells) - named != size:
            raise DataError(
                f"line {line}: expected {size} numbers, one for each of the {size} rows, "
                f"got {len(cells) - named}"
            )
    if not 2 <= size <= MOST_CLASSES:
        raise DataError(f"expected 2 to {MOST_CLASSES} classes, got {size}")
    labels = _labels(above, [cells[0] for _, cells in rows] if named else None, size)
    numbers = [[float(cell) for cell in cells[named:]] for _, cells in rows]
    rewards = torch.tensor(numbers, dtype=torch.float64)
    return ClassTable(labels, 0.0 - rewards if kind == "costs" else rewards)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _labels(above: list[str] | None, names: list[str] | None, size: int) -> tuple[str, ...]:
    """The class names from either side of the table; numbers from 0 where it has none."""
    if above is not None and len(above) == size + 1:
        above = above[1:]  # a corner over the names in front
    if above is not None and len(above) != size:
        raise DataError(f"expected {size} names above the {size} columns, got {len(above)}")
    if above is not None and names is not None and above != names:
        raise DataError(
            "expected the same names above and in front, "
            f"got {', '.join(above)} and {', '.join(names)}"
        )
    found = tuple(above or names or map(str, range(size)))
    if "" in found or len(set(found)) < size:
        raise DataError(f"expected {size} different names, got {', '.join(found)}")
    return found


def parse_probabilities(text: str, count: int) -> Tensor:
    """P(·|x) of ``count`` classes, float64 ``[K]``: numbers or fractions by spaces or commas.

    >>> parse_probabilities("1/2 0.25 0.25", 3)
    tensor([0.5000, 0.2500, 0.2500], dtype=torch.float64)
    """
    found = []
    for part in filter(None, re.split(r"[\s,;]+", text)):
        over, _, under = part.partition("/")
        try:
            found.append(float(over) / float(under or 1))
        except (ValueError, ZeroDivisionError):
            raise DataError(f"expected numbers such as 0.25 or 1/4, got {part!r}") from None
        if not 0.0 <= found[-1] <= 1.0:
            raise DataError(f"expected probabilities from 0 to 1, got {part}")
    total = math.fsum(found)
    if len(found) != count:
        raise DataError(f"expected {count} probabilities, one for each class, got {len(found)}")
    if not abs(total - 1.0) <= 1e-6:
        raise DataError(f"expected probabilities that sum to one, got a sum of {total:g}")
    return torch.tensor(found, dtype=torch.float64) / total


class ClassPoint(NamedTuple):
    """One input at one temperature."""

    q_prime: Tensor
    """What RAML estimates, ``[K]`` (eq. 16)."""
    q: Tensor
    """What SQDML estimates, ``[K]`` (eq. 12)."""
    expected: Tensor
    """E[r(z, Y)] of each decision z, ``[K]``."""
    decisions: dict[Rule, str]
    """The class that each rule decides for."""
    row: TheoryRow
    """The gap between Q' and Q, and its bounds."""


class Region(NamedTuple):
    """Inputs of one decision: a convex polygon between three classes, an interval between two."""

    decision: int
    corners: list[Shares]
    size: float
    """Its share of the triangle or line."""
    centre: Shares


class ClassStudy:
    """A table of rewards and an input's P(·|x), ready for any temperature.

    ``chosen`` are two or three classes between which regions are drawn; the others keep their
    probabilities.

    >>> table = parse_table(EXAMPLE, "costs")
    >>> study = ClassStudy(table, parse_probabilities(EXAMPLE_PROBABILITIES, 3))
    >>> study.at(1.0).decisions["ml"], study.at(1.0).decisions["bayes"]
    ('healthy', 'flu')

    """

    def __init__(self, table: ClassTable, p: Tensor, chosen: Sequence[int] = (0, 1, 2)) -> None:
        self.table, self.p = table, p
        self.chosen = [one for one in chosen if one < len(table.labels)]
        if not 2 <= len(set(self.chosen)) == len(self.chosen) <= 3:
            raise SettingError(
                "chosen",
                f"expected two or three different classes to draw, got {len(set(self.chosen))}",
            )
        self.mass = float(p[self.chosen].sum())
        if not self.mass > 0.0:
            raise SettingError(
                "chosen", "expected classes to draw with some probability between them, got none"
            )
        self.input: list[float] = (p[self.chosen] / self.mass).tolist()
        # Theorem 1 wants rewards in 0..R; no target depends on a constant.
        self._moved = table.rewards - min(float(table.rewards.min()), 0.0)

    def scores(self, rule: Rule, tau: float, p: Tensor) -> Tensor:
        """What a rule maximises at P(·|x) ``[..., K]``, linear in P; the same shape."""
        if rule == "ml":
            return p
        if rule == "raml":
            return q_prime(p, self.table.rewards, tau)
        every = torch.arange(p.shape[-1]).expand(p.shape)
        return expected_reward(every, p.unsqueeze(-2).expand(*p.shape, -1), self.table.rewards)

    def at(self, tau: float) -> ClassPoint:
        """The input at one temperature."""
        scores = {rule: self.scores(rule, tau, self.p) for rule in RULES}
        return ClassPoint(
            scores["raml"],
            softmax_q(self.p, self.table.rewards, tau),
            scores["bayes"],
            {rule: self.table.labels[int(score.argmax())] for rule, score in scores.items()},
            self.bounds([tau])[0],
        )

    def bounds(self, taus: Sequence[float]) -> list[TheoryRow]:
        """KL(Q‖Q') at the input and its bounds at each temperature, by `softq.theory`."""
        here = self.p.unsqueeze(0)
        return theory_table(Problem(here, here, self._moved), list(taus)).rows

    @cached_property
    def limit(self) -> float:
        """Of KL(Q‖Q') at the input as τ → 0, exact."""
        return float(theorem2_limit(self.p, self.table.rewards))

    @cached_property
    def theorem2(self) -> Theorem2Bounds | str:
        """The bounds of Theorem 2 at the input, or why it promises none."""
        try:
            return theorem2_bounds(*theorem2_constants(self.p, self._moved))
        except ScoreError as error:
            return str(error)

    def regions(self, rule: Rule, tau: float) -> list[Region]:
        """The decisions of a rule by region, exactly.

        Every rule decides by scores that are linear in P, so those at the corners are enough.
        """
        found = [Region(one, *_shape(lead)) for one, lead in self._leads(rule, tau).items()]
        return [region for region in found if region.size > _ROUNDING]

    def mean_reward(self, rule: Rule, tau: float) -> float:
        """The expected reward of a rule over uniformly distributed inputs of the regions; exact."""
        return math.fsum(
            size * float(self.scores("bayes", tau, self._between(centre))[decision])
            for decision, _, size, centre in self.regions(rule, tau)
        )

    def agreement(self, rule: Rule, tau: float) -> float:
        """The share of these inputs on which a rule decides as the Bayes rule does; exact."""
        mine, best = self._leads(rule, tau), self._leads("bayes", tau)
        both = [torch.cat([mine[one], best[one]], 1) for one in mine if one in best]
        return math.fsum(_shape(lead)[1] for lead in both)

    def _leads(self, rule: Rule, tau: float) -> dict[int, Tensor]:
        """By how much each decision is ahead of every other at the corners, ``[2 or 3, K]``.

        Of decisions with the same scores, the first counts.
        """
        corners = self._between(torch.eye(len(self.chosen), dtype=torch.float64))
        scores = self.scores(rule, tau, corners)
        leads = {one: scores[:, one : one + 1] - scores for one in range(scores.shape[1])}
        same = 1e-12 * float(scores.abs().max())
        return {
            one: lead
            for one, lead in leads.items()
            if not bool((lead[:, :one].abs() <= same).all(0).any())
        }

    def _between(self, shares: Tensor | Shares) -> Tensor:
        """P ``[..., K]`` where the chosen classes share their mass, ``shares [..., 2 or 3]``."""
        shares = torch.as_tensor(shares, dtype=torch.float64)
        p = self.p.expand(*shares.shape[:-1], -1).clone()
        p[..., self.chosen] = self.mass * shares
        return p


def _shape(leads: Tensor) -> tuple[list[Shares], float, Shares]:
    """Where a decision is behind no other: corners, share of the whole and centre of mass.

    ``leads [2 or 3, …]`` are linear between the corners; the triangle or line is cut at the zero
    of each.
    """
    size = len(leads)
    corners: list[Shares] = [tuple(row) for row in torch.eye(size, dtype=torch.float64).tolist()]
    for slopes in leads.T.tolist():
        kept: list[Shares] = []
        for here, there in zip(corners, corners[1:] + corners[:1], strict=True):
            now, then = (sum(map(mul, slopes, corner)) for corner in (here, there))
            if now >= 0.0:
                kept.append(here)
            if (now < 0.0) != (then < 0.0):  # this side is cut
                share = now / (now - then)
                kept.append(
                    tuple((1.0 - share) * a + share * b for a, b in zip(here, there, strict=True))
                )
        corners = [min(kept), max(kept)] if size == 2 and kept else list(dict.fromkeys(kept))
    if len(corners) < size:
        return [], 0.0, ()
    simplices = [corners] if size == 2 else [[corners[0], *pair] for pair in pairwise(corners[1:])]
    places = torch.tensor(simplices, dtype=torch.float64)  # [simplices, size, size]
    areas = torch.linalg.det(places).abs()
    total = float(areas.sum())
    centre = areas @ places.mean(1) / total if total else places[0, 0]
    return corners, total, tuple(centre.tolist())
