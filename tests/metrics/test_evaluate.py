"""How sure a number is.

The bootstrap against a plain loop and the normal law, intervals against scipy.
"""

import math

import numpy as np
import pytest
import scipy.stats
import torch

from softq.errors import ShapeError
from softq.metrics import (
    Interval,
    mean_interval,
    mean_of_first,
    paired_bootstrap,
    paired_test,
)
from softq.metrics.intervals import _student_t


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def scores(*shape, seed=0):
    """Statistics (score, 1) of random scores."""
    drawn = torch.randn(*shape, generator=generator(seed), dtype=torch.float64)
    return torch.stack([drawn, torch.ones_like(drawn)], -1)


def f1(sums):
    """From (true positives, predicted, right)."""
    return 2 * sums[..., 0] / (sums[..., 1] + sums[..., 2])


def test_the_bootstrap_is_the_plain_loop():
    examples, resamples = 60, 70
    right = torch.randint(1, 4, (examples,), generator=generator(1))
    systems = torch.stack(
        [
            torch.randint(4, (2, 3, examples), generator=generator(2)),
            torch.randint(1, 4, (2, 3, examples), generator=generator(3)),
        ],
        -1,
    )
    systems = torch.cat([systems, right.expand(2, 3, -1).unsqueeze(-1)], -1).double()
    systems[..., 0] = systems.min(-1).values  # no more hits than guesses
    baseline = systems[0, :2].flip(1)
    found = paired_bootstrap(
        systems, baseline, f1, resamples=resamples, level=0.8, generator=generator(4)
    )
    picks = torch.randint(examples, (resamples, examples), generator=generator(4)).numpy()

    def difference(system, chosen):
        def value(rows):
            return np.mean(
                [
                    2 * rep[chosen, 0].sum() / (rep[chosen, 1].sum() + rep[chosen, 2].sum())
                    for rep in rows.numpy()
                ]
            )

        return value(systems[system]) - value(baseline)

    for system in range(2):
        drawn = [difference(system, chosen) for chosen in picks]
        expected = [difference(system, np.arange(examples)), *np.quantile(drawn, [0.1, 0.9])]
        assert found[system] == pytest.approx(expected, abs=1e-12)
        test = paired_test(
            systems, baseline, f1, resamples=resamples, level=0.8, generator=generator(4)
        )[system]
        assert test.gain == found[system]
        against = sum(one * expected[0] <= 0 for one in drawn)
        assert test.p_value == pytest.approx(min(1, 2 * (against + 1) / (resamples + 1)))


def test_a_system_does_not_differ_from_itself():
    same = scores(3, 50)
    assert paired_bootstrap(same.unsqueeze(0), same, generator=generator()) == [
        Interval(0.0, 0.0, 0.0)
    ]
    shifted = same.clone()
    shifted[..., 0] += 0.25  # pairs differ by a constant, however much the examples differ
    assert paired_bootstrap(shifted.unsqueeze(0), same, generator=generator())[0] == pytest.approx(
        (0.25, 0.25, 0.25)
    )


def test_no_difference_and_a_sure_one():
    same = scores(1, 50)
    assert paired_test(same.unsqueeze(0), same, generator=generator())[0].p_value == 1.0
    for shift in (
        0.25,
        -0.25,
    ):  # every resample shows it, and a hundred resamples say no more than that
        shifted = same.clone()
        shifted[..., 0] += shift
        assert paired_test(shifted.unsqueeze(0), same, resamples=99, generator=generator())[
            0
        ].p_value == pytest.approx(0.02)
    nothing = same.clone()
    nothing[:, 1:, 1] = 0  # most resamples have an example of it, and some have none
    (test,) = paired_test(nothing.unsqueeze(0), same, generator=generator())
    assert math.isnan(test.p_value)


def test_p_values_are_the_normal_ones_for_large_samples():
    ours, theirs = scores(1, 2000, seed=1), scores(1, 2000, seed=2)
    difference = (ours - theirs)[0, :, 0]
    error = difference.std().item() / math.sqrt(2000)
    for sure in (0.5, 1.0, 1.8):  # the difference in standard errors
        shifted = ours.clone()
        shifted[..., 0] += sure * error - difference.mean()
        (test,) = paired_test(shifted.unsqueeze(0), theirs, resamples=4000, generator=generator())
        # a share of 4000 draws is off by 0.008 at most, twice that for both sides; 0.06 is four
        # times that
        assert test.p_value == pytest.approx(2 * scipy.stats.norm.sf(sure), abs=0.06)


def test_p_values_below_a_level_come_as_often_as_it_says():
    found = [
        paired_test(
            scores(1, 1, 100, seed=2 * seed),
            scores(1, 100, seed=2 * seed + 1),
            resamples=300,
            generator=generator(seed),
        )[0]
        for seed in range(300)
    ]
    small = sum(test.p_value <= 0.1 for test in found) / 300
    # of 100 examples about 0.11 as above for intervals; 0.018 is the standard error, and four of
    # them fail once in 15,000
    assert abs(small - 0.11) < 0.072


def test_the_interval_is_the_normal_one_for_large_samples():
    ours, theirs = scores(1, 2000, seed=1), scores(1, 2000, seed=2)
    difference = (ours - theirs)[0, :, 0]
    ((value, low, high),) = paired_bootstrap(
        ours.unsqueeze(0), theirs, resamples=4000, level=0.9, generator=generator()
    )
    half = scipy.stats.norm.ppf(0.95) * difference.std().item() / math.sqrt(2000)
    assert value == pytest.approx(difference.mean().item())
    # an end is a quantile of 4000 draws: off by 0.033 standard errors, or 2 % of half; 10 % are
    # five times that (once in a million)
    assert (low, high) == pytest.approx((value - half, value + half), abs=0.1 * half)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    hits = 0
    for seed in range(300):
        ours, theirs = scores(1, 100, seed=2 * seed), scores(1, 100, seed=2 * seed + 1)
        ((_, low, high),) = paired_bootstrap(
            ours.unsqueeze(0), theirs, resamples=300, level=0.9, generator=generator(seed)
        )
        hits += low <= 0.0 <= high
    # a percentile interval of 100 examples covers about 0.89; 0.018 is the standard error, and four
    # of them fail once in 15,000
    assert abs(hits / 300 - 0.89) < 0.072


def test_resamples_are_shared_and_follow_the_generator():
    systems, baseline = scores(2, 1, 40), scores(1, 40, seed=5)
    both = paired_bootstrap(systems, baseline, generator=generator(7))
    alone = [
        paired_bootstrap(system.unsqueeze(0), baseline, generator=generator(7))[0]
        for system in systems
    ]
    assert both == [pytest.approx(interval) for interval in alone]
    assert both[0] != paired_bootstrap(systems, baseline, generator=generator(8))[0]


@pytest.mark.parametrize(
    ("systems", "baseline"),
    [
        ((40, 2), (1, 40, 2)),
        ((1, 1, 40, 2), (40, 2)),
        ((1, 1, 40, 2), (1, 41, 2)),
        ((1, 1, 40, 2), (1, 40, 3)),
        ((1, 1, 0, 2), (1, 0, 2)),
    ],
)
def test_statistics_that_do_not_fit(systems, baseline):
    with pytest.raises(ShapeError):
        paired_bootstrap(torch.ones(systems), torch.ones(baseline), generator=generator())


def test_the_mean_of_the_first():
    assert mean_of_first(torch.tensor([[3.0, 2.0], [1.0, 4.0]])).tolist() == [1.5, 0.25]


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 101])
def test_student_t_is_scipys(level, freedom):
    assert _student_t(level, freedom) == pytest.approx(
        scipy.stats.t.ppf((1 + level) / 2, freedom), rel=1e-9
    )


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_the_interval_over_seeds_is_scipys(count):
    values = torch.randn(count, generator=generator(count)).tolist()
    interval = mean_interval(values, 0.95)
    low, high = scipy.stats.t.interval(0.95, count - 1, np.mean(values), scipy.stats.sem(values))
    assert interval == pytest.approx((np.mean(values), low, high))


def test_a_single_value_has_no_interval():
    value, low, high = mean_interval([2.5])
    assert value == 2.5
    assert math.isnan(low)
    assert math.isnan(high)
