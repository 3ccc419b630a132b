"""How sure a number is: paired bootstrap over examples, confidence intervals over seeds.

A metric is a function of sums over examples: of the rewards earned (average reward), of true and
false positives (F1), of matches and lengths (corpus BLEU). So an evaluation keeps one row of
*statistics* per example, and resampling examples is resampling rows.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from softq.errors import ShapeError

_CHUNK = 32  # resamples at a time


LEVEL = 0.95  # of confidence, where nothing else is said


class Interval(NamedTuple):
    """An estimate between the ends of its confidence interval.

    The ends are NaN where there is none.
    """

    value: float
    low: float = math.nan
    high: float = math.nan


class PairedTest(NamedTuple):
    """How much better a system is than another on the same examples, and how often chance alone would show so much.

    Attributes:
        gain: the difference with its percentile interval.
        p_value: two-sided, 2 (c + 1) / (n + 1), at most 1, where c of n resampled test sets show no difference or one of the other sign;
            the 1 counts the test set itself, so that it is never 0. 1 where there is no difference, NaN where a resample has no value.

    """

    gain: Interval
    p_value: float


def mean_of_first(sums: Tensor) -> Tensor:
    """The plainest metric: statistics are (score, 1), and the metric is the mean score."""
    return sums[..., 0] / sums[..., 1]


def paired_bootstrap(
    systems: Tensor,
    baseline: Tensor,
    metric: Callable[[Tensor], Tensor] = mean_of_first,
    *,
    resamples: int = 1000,
    level: float = LEVEL,
    generator: torch.Generator,
) -> list[Interval]:
    """How much better each system is than the baseline on the same examples, with a percentile interval.

    Every system is judged on the same resampled test sets. Repetitions (seeds) of a system are averaged within a resample, so
    the interval speaks of other test sets drawn from the same source, for these trained models.

    Args:
        systems: statistics ``[systems, repetitions, examples, D]``.
        baseline: statistics ``[repetitions, examples, D]``; it may have another number of repetitions.
        metric: from sums over examples ``[..., D]`` to values ``[...]``.
        resamples: how many test sets to draw.
        level: of confidence.
        generator: randomness.

    See `paired_test` for p-values. From the same generator, both draw the same test sets.

    >>> right = torch.tensor([[[1.0, 1.0]] * 90 + [[0.0, 1.0]] * 10])
    >>> wrong = right.roll(5, 1)
    >>> paired_bootstrap(right[None], wrong, generator=torch.Generator().manual_seed(0))[0].value
    0.0

    """
    return [
        test.gain
        for test in paired_test(
            systems, baseline, metric, resamples=resamples, level=level, generator=generator
        )
    ]


def paired_test(
    systems: Tensor,
    baseline: Tensor,
    metric: Callable[[Tensor], Tensor] = mean_of_first,
    *,
    resamples: int = 1000,
    level: float = LEVEL,
    generator: torch.Generator,
) -> list[PairedTest]:
    """`paired_bootstrap` with p-values.

    How sure it is that a system and the baseline differ, and in this direction.

    Arguments are the same. Of a difference that was chosen as the largest of many, the p-value says
    too much.

    >>> right = torch.tensor([[[1.0, 1.0]] * 90 + [[0.0, 1.0]] * 10])
    >>> worse = torch.tensor([[[1.0, 1.0]] * 70 + [[0.0, 1.0]] * 30])
    >>> test = paired_test(right[None], worse, generator=torch.Generator().manual_seed(0))[0]
    >>> print(f"{test.gain.value:.1f} {test.p_value:.3f}")
    0.2 0.002

    """
    if (
        systems.dim() != 4
        or baseline.dim() != 3
        or systems.shape[2:] != baseline.shape[1:]
        or 0 in (*systems.shape, *baseline.shape)
    ):
        raise ShapeError(
            "statistics must be [systems, repetitions, examples, D] and [repetitions, examples, D]"
            f" of the same examples and not empty, got {list(systems.shape)} and"
            f" {list(baseline.shape)}"
        )
    count, repetitions, examples, width = systems.shape
    rows = (
        torch.cat([systems.flatten(0, 1), baseline]).double().transpose(0, 1).reshape(examples, -1)
    )

    def differences(sums: Tensor) -> Tensor:  # [B, all systems and repetitions, D] -> [B, systems]
        values = metric(sums)
        ours, theirs = values[:, : count * repetitions], values[:, count * repetitions :]
        return ours.view(-1, count, repetitions).mean(-1) - theirs.mean(-1, keepdim=True)

    estimates = differences(rows.sum(0).view(1, -1, width))[0]
    drawn = []
    for first in range(0, resamples, _CHUNK):
        times = min(_CHUNK, resamples - first)
        picks = (torch.randint(examples, (examples,), generator=generator) for _ in range(times))
        weights = torch.stack(
            [torch.bincount(pick, minlength=examples) for pick in picks]
        )  # how often each example was drawn
        drawn.append(differences((weights.double() @ rows).view(times, -1, width)))
    tail = (1.0 - level) / 2.0
    found = torch.cat(drawn)  # [resamples, systems]
    low, high = found.quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64), 0)
    others = (found * estimates.sign() <= 0).sum(0)
    values = (
        (2 * (others.double() + 1) / (resamples + 1))
        .clamp_max(1)
        .where(found.isfinite().all(0), math.nan)
    )
    gains = [
        Interval(*numbers)
        for numbers in zip(estimates.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
    return [PairedTest(gain, value) for gain, value in zip(gains, values.tolist(), strict=True)]


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean of independent repetitions with Student's t interval; a single value has no interval.

    >>> low, high = mean_interval([1.0, 2.0, 3.0])[1:]
    >>> print(f"{low:.3f} {high:.3f}")
    -0.484 4.484
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean)
    half = _student_t(level, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def _student_t(level: float, freedom: int) -> float:
    """Half-width t with P(|T| ≤ t) = level, T being Student's with so many (whole) degrees of freedom.

    >>> round(_student_t(0.95, 4), 4)
    2.7764
    """
    # θ = atan(t/√ν) runs over a bounded range, so that bisection needs no first guess
    angles, step = range(1 << 53), math.pi / (1 << 54)
    found = bisect_left(angles, level, key=lambda angle: _central_mass(angle * step, freedom))
    return math.sqrt(freedom) * math.tan(found * step)


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
