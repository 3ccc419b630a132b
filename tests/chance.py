"""Comparisons of counts with probabilities, with a written failure rate."""

from statistics import NormalDist

import numpy as np
from scipy.stats import chisquare

CHANCE = 1e-9  # how often each comparison with a probability fails by chance
FAR = NormalDist().inv_cdf(1 - CHANCE / 2)  # standard errors that chance reaches as rarely


def agrees(counted, probabilities, total):
    """Chi-square of counts, those with an expected count below 5 taken together."""
    frequent = [key for key, p in probabilities.items() if p * total >= 5]
    observed = [counted[key] for key in frequent]
    expected = [probabilities[key] * total for key in frequent]
    rest = total - sum(expected)
    if rest > 1e-6:
        observed, expected = [*observed, total - sum(observed)], [*expected, rest]
    # scaled by no more than rounding
    return chisquare(observed, np.array(expected) * total / sum(expected)).pvalue > CHANCE
