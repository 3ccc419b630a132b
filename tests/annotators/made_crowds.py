"""Annotators of classes with tables that are known, and the Bayes rule that knows them."""

from typing import NamedTuple

import numpy as np


class MadeCrowd(NamedTuple):
    """Items with their classes, what annotators gave (-1: nothing), and what made it."""

    truth: np.ndarray  # [n]
    labels: np.ndarray  # [n, m]
    prior: np.ndarray  # [K]
    tables: np.ndarray  # [m, K, K]: annotator, right class, class given

    def bayes_rule(self):
        """Argmax of log P(y) + Σ_a log π_a(l_a | y)."""
        scores = np.tile(np.log(self.prior), (len(self.truth), 1))
        for a, column in enumerate(self.labels.T):
            known = column >= 0
            scores[known] += np.log(self.tables[a][:, column[known]]).T
        return scores.argmax(1)

    def vote(self):
        """The class most often given, of several the first."""
        size = len(self.prior)
        return np.stack([(self.labels == k).sum(1) for k in range(size)], 1).argmax(1)


def made_crowd(seed, classes, annotators, items=2000, *, missing=0.3, one_coin=False):
    """Annotators who are right 35 to 85 % of the time, and confuse some classes more than others."""
    rng = np.random.default_rng(seed)
    prior = rng.dirichlet(np.full(classes, 5.0))
    tables = np.empty((annotators, classes, classes))
    for table in tables:
        right = rng.uniform(0.35, 0.85)
        for k, row in enumerate(table):
            own = right if one_coin else np.clip(right + rng.normal(0, 0.1), 0.2, 0.95)
            spread = (
                np.ones(classes - 1) if one_coin else rng.dirichlet(np.ones(classes - 1)) + 0.02
            )
            row[np.arange(classes) != k] = (1 - own) * spread / spread.sum()
            row[k] = own
    truth = rng.choice(classes, items, p=prior)
    chance = rng.random((items, annotators, 1))
    cumulative = tables[np.arange(annotators), truth[:, None]].cumsum(-1)  # [n, m, K]
    labels = np.minimum((chance > cumulative).sum(-1), classes - 1)
    silent = rng.random(labels.shape) < missing
    silent[np.arange(items), rng.integers(0, annotators, items)] = False
    return MadeCrowd(truth, np.where(silent, -1, labels), prior, tables)
