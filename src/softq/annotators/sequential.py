"""The truth behind annotations without a tagger: a Markov chain and the annotators' tables.

Variational EM. The E-step is a chain whose transitions are the truth's and whose emissions are the
evidence of the annotators; the M-step counts what it expects:

    q(y) ∝ P(y) · exp( temper · Σ_a Σ_t E[log π_a(l_at | y_t, l_a,t-1)] )

That is the formula of all targets, with the annotators' tables as the reward and the truth's chain
as the prior (see `softq.targets`). ``temper`` below 1 says that annotators err together: their
labels are worth less than as many independent ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softq.annotators.crowd import Crowd
from softq.annotators.tables import AnnotatorTables, TablePriors
from softq.annotators.truth import MarkovPrior, Posterior, TruthScores
from softq.formats.tags import Scheme

_SETTLED = 1e-4  # mean change of a token's probabilities below which EM ends


class SequentialFit:
    """What variational EM finds.

    Attributes:
        tables: of the annotators.
        prior: of the truth.
        posterior: of the truth.
        objective: log Z of the E-steps, per iteration.

    >>> from softq.formats.conll import Sentence
    >>> rows = (("B-PER", "I-PER", "O"), ("B-PER", "O", "O"), ("B-PER", "I-PER", "O"))
    >>> crowd = Crowd.read([Sentence(("Ann", "Lee", "ran"), rows, ("1", "2", "3"))], previous=True)
    >>> SequentialFit(crowd, "bio").best()
    [('B-PER', 'I-PER', 'O')]

    """

    def __init__(
        self,
        crowd: Crowd,
        scheme: Scheme | None,
        *,
        temper: float = 0.85,
        priors: TablePriors | None = None,
        iterations: int = 30,
    ) -> None:
        """Fit tables and prior to the crowd's labels."""
        self.crowd, self.temper = crowd, temper
        self.tables, self.prior = AnnotatorTables(crowd, priors), MarkovPrior(crowd.labels, scheme)
        self.objective: list[float] = []
        before = np.full((len(crowd.patterns), len(crowd.labels)), 1.0 / len(crowd.labels))
        for _ in range(max(iterations, 1)):
            self.posterior = Posterior.of(self.scores())
            self.tables.update(self.posterior.labels)
            self.prior.update(self.posterior, crowd.starts)
            self.objective.append(float(self.posterior.log_z.sum()))
            change = float(np.abs(self.posterior.labels - before).sum(1).mean())
            if change < _SETTLED:
                break
            before = self.posterior.labels

    def scores(self) -> TruthScores:
        """Of the true label sequences, as the tables are."""
        return self.prior.scores(self.temper * self.tables.evidence(), self.crowd.lengths)

    def best(self) -> Sequence[tuple[str, ...]]:
        """The most probable label sequence of each sentence."""
        return self.scores().decode(self.crowd.labels)
