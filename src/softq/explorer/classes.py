"""Decisions under a table of rewards or costs, computed by `softq.theory`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError, ScoreError
from softq.explorer.sentences import SettingError
from softq.options import check_conflicts
from softq.theory import (
    Problem,
    Theorem2Bounds,
    TheoryRow,
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


def _number(text: str) -> float:
    """A number or a fraction; nan if it is neither.

    >>> _number("0.25"), _number("1/4"), _number("x")
    (0.25, 0.25, nan)
    """
    over, _, under = text.partition("/")
    try:
        return float(over) / float(under or 1)
    except (ValueError, ZeroDivisionError):
        return math.nan


def parse_table(text: str, kind: TableKind = "rewards") -> ClassTable:
    r"""A table as people paste it: cells between tabs, commas or spaces, with or without names.

    >>> parse_table("0 -10\n-1 0").rewards.tolist()
    [[0.0, -10.0], [-1.0, 0.0]]
    >>> parse_table("fair, fraud\n 0, 10\n 1, 0", "costs").labels
    ('fair', 'fraud')
    """
    rows = _cells(text)
    is_heading = bool(rows) and all(math.isnan(_number(cell)) for cell in rows[0][1])
    above = rows.pop(0)[1] if is_heading else []
    is_named = all(math.isnan(_number(cells[0])) for _, cells in rows)
    front = [cells[0] for _, cells in rows if is_named]
    above = above[len(above) == len(rows) + 1 :]  # less a corner over the names in front
    numbers = {line: cells[is_named:] for line, cells in rows}
    check_conflicts(_conflicts(above, front, numbers), DataError)
    labels = tuple(above or front or map(str, range(len(rows))))
    values = [list(map(_number, cells)) for cells in numbers.values()]
    rewards = torch.tensor(values, dtype=torch.float64)
    return ClassTable(labels, 0.0 - rewards if kind == "costs" else rewards)


def _cells(text: str) -> list[tuple[int, list[str]]]:
    """The cells of each line that is not blank, with its number."""
    separator = next((mark for mark in "\t," if mark in text), None)
    lines = [
        (number, line.rstrip(f" {separator or ''}"))
        for number, line in enumerate(text.splitlines(), 1)
    ]
    return [
        (number, [cell.strip() for cell in line.split(separator)])
        for number, line in lines
        if line.strip()
    ]


def _conflicts(
    above: Sequence[str], front: Sequence[str], numbers: Mapping[int, Sequence[str]]
) -> list[tuple[bool, str]]:
    """What may be wrong with a table: its names on either side, and the cells of its lines."""
    size, names = len(numbers), above or front
    return [
        (size == 0, "expected a row of numbers for each class, got none; paste a table"),
        *(
            (
                not abs(_number(cell)) <= _LARGEST,
                f"line {line}, column {column}: expected a number of at most {_LARGEST:g}, "
                f"got {cell!r}",
            )
            for line, cells in numbers.items()
            for column, cell in enumerate(cells, 1 + bool(front))
        ),
        *(
            (
                len(cells) != size,
                f"line {line}: expected {size} numbers, one for each of the {size} rows, "
                f"got {len(cells)}",
            )
            for line, cells in numbers.items()
        ),
        (not 2 <= size <= MOST_CLASSES, f"expected 2 to {MOST_CLASSES} classes, got {size}"),
        (
            len(names) not in (0, size),
            f"expected {size} names above the {size} columns, got {len(names)}",
        ),
        (
            bool(front) and above not in ([], front),
            f"expected the same names above and in front, got {', '.join(above)} and "
            f"{', '.join(front)}",
        ),
        (
            "" in names or len({*names}) < len(names),
            f"expected {size} different names, got {', '.join(names)}",
        ),
    ]


def parse_probabilities(text: str, count: int) -> Tensor:
    """P(·|x) of ``count`` classes, float64 ``[K]``: numbers or fractions by spaces or commas.

    >>> parse_probabilities("1/2 0.25 0.25", 3)
    tensor([0.5000, 0.2500, 0.2500], dtype=torch.float64)
    """
    parts = re.findall(r"[^\s,;]+", text)
    found = list(map(_number, parts))
    for part, value in zip(parts, found, strict=True):
        if not 0.0 <= value <= 1.0:
            raise DataError(
                f"expected probabilities from 0 to 1, such as 0.25 or 1/4, got {part!r}"
            )
    if len(found) != count:
        raise DataError(f"expected {count} probabilities, one for each class, got {len(found)}")
    total = math.fsum(found)
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
        self.middle = round(math.log10(table.range))
        """The order of magnitude of the temperatures that matter."""
        # Theorem 1 wants rewards in 0..R; no target depends on a constant.
        self._moved = table.rewards - min(float(table.rewards.min()), 0.0)

    def scores(self, rule: Rule, tau: float, p: Tensor) -> Tensor:
        """What a rule maximises at P(·|x) ``[..., K]``, linear in P; the same shape."""
        if rule == "raml":
            return q_prime(p, self.table.rewards, tau)
        return p if rule == "ml" else p @ self.table.rewards.T

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
    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """Over four decades of τ: the mean reward of each rule, and `bounds` by their fields."""
        taus = [10 ** (self.middle - 2 + step / 15) for step in range(61)]
        constant = {rule: self.mean_reward(rule, 1.0) for rule in ("bayes", "ml")}
        rows = self.bounds(taus)
        return {
            "raml": [(tau, self.mean_reward("raml", tau)) for tau in taus],
            **{rule: [(tau, reward) for tau in taus] for rule, reward in constant.items()},
            **{name: [(row.tau, getattr(row, name)) for row in rows] for name in TheoryRow._fields},
        }

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
        leads = scores.T.unsqueeze(2) - scores  # [K, 2 or 3, K]
        is_same = (leads.abs() <= 1e-12 * scores.abs().max()).all(1).tril(-1).any(1)
        return {one: leads[one] for one in (~is_same).nonzero().flatten().tolist()}

    def _between(self, shares: Tensor | Shares) -> Tensor:
        """P ``[..., K]`` where the chosen classes share their mass, ``shares [..., 2 or 3]``."""
        shares = torch.as_tensor(shares, dtype=torch.float64)
        p = self.p.expand(*shares.shape[:-1], -1).clone()
        p[..., self.chosen] = self.mass * shares
        return p


def _shape(leads: Tensor) -> tuple[list[Shares], float, Shares]:
    """Where a decision is behind no other: corners, share of the whole and centre of mass.

    ``leads [2 or 3, …]`` are linear between the corners; the triangle or line is cut at the zero
    of each. A line is cut as a polygon that goes there and back.
    """
    size = len(leads)
    corners = np.eye(size)
    for slopes in leads.T.numpy():
        now = (corners @ slopes)[:, None]
        if (now < 0.0).any():
            following = [*range(1, len(corners)), 0]
            then, there = now[following], corners[following]
            is_cut = (now < 0.0) != (then < 0.0)
            # The same bits from either end, so that a line has two ends.
            cuts = (now * there - then * corners) / np.where(is_cut, now - then, 1.0)
            corners = np.stack([corners, cuts], 1)[np.hstack([now >= 0.0, is_cut])]
    ring: list[Shares] = list(dict.fromkeys(map(tuple, corners.tolist())))
    # Lines or triangles that share the first corner, [simplices, size, size].
    simplices = np.array(
        [ring[:1] + ring[i : i + size - 1] for i in range(1, len(ring) - size + 2)]
    )
    areas = np.abs(np.linalg.det(simplices.reshape(-1, size, size)))
    total = float(areas.sum())
    centre = areas @ simplices.mean(1) / total if total else ()
    return ring, total, tuple(centre)
