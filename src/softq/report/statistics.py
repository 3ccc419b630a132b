"""Means with confidence intervals over repetitions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

LEVEL = 0.95  # of every interval in a report


class Interval(NamedTuple):
    """An estimate between the ends of its confidence interval; the ends are NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean of independent repetitions with Student's t interval; a single value has no interval.

    >>> low, high = mean_interval([1.0, 2.0, 3.0])[1:]
    >>> print(f"{low:.3f} {high:.3f}")
    -0.484 4.484
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean)
    half = student_t(level, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def student_t(level: float, freedom: int) -> float:
    """Half-width t with P(|T| ≤ t) = level, T being Student's with so many (whole) degrees of freedom.

    >>> round(student_t(0.95, 4), 4)
    2.7764
    """
    low, high = 0.0, math.pi / 2  # θ = atan(t/√ν) runs over a bounded range, so that bisection needs no first guess
    for _ in range(100):
        middle = (low + high) / 2
        if _central_mass(middle, freedom) < level:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _central_mass(angle: float, freedom: int) -> float:
    """P(|T| ≤ √ν tan θ) for whole ν, a finite sum because ∫ cos^{ν-1} has one."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    # ν odd: cos + 2/3 cos³ + …, ν even: 1 + 1/2 cos² + …, up to cos^{ν-2}
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * cosine**2
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
