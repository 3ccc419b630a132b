"""The truth behind labels without a tagger: a Markov chain, and what is known of each token.

Variational EM. The E-step is a chain with the transitions of the truth and, as emissions, the
evidence, such as that of annotators; the M-step counts what it expects:

    q(y) ∝ P(y) · exp( temper · Σ_a Σ_t E[log π_a(l_at | y_t, l_a,t-1)] )

That is the formula of all targets, with the annotators' tables as the reward and the truth's chain
as the prior (see `softq.targets`). ``temper`` below 1 says that annotators err together: their
labels are worth less than as many independent ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softq.annotators.truth import Evidence, MarkovPrior, Posterior, TruthScores
from softq.errors import DataError
from softq.formats.tags import Scheme

_SETTLED = 1e-4  # mean change of a token's probabilities below which EM ends


class SequentialFit:
    """What variational EM finds.

    Attributes:
        evidence: what was given, with what it has learnt.
        prior: of the truth.
        posterior: of the truth.
        objective: log Z of the E-steps, per iteration.

    >>> from softq.annotators.crowd import Crowd
    >>> from softq.annotators.tables import AnnotatorTables
    >>> from softq.formats.conll import Sentence
    >>> rows = (("B-PER", "I-PER", "O"), ("B-PER", "O", "O"), ("B-PER", "I-PER", "O"))
    >>> crowd = Crowd.read([Sentence(("Ann", "Lee", "ran"), rows, ("1", "2", "3"))], previous=True)
    >>> SequentialFit(AnnotatorTables(crowd), crowd.labels, crowd.lengths, "bio").best()
    [('B-PER', 'I-PER', 'O')]

    """

    def __init__(
        self,
        evidence: Evidence,
        labels: Sequence[str],
        lengths: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]],
        scheme: Scheme | None,
        *,
        temper: float = 0.85,
        iterations: int = 30,
    ) -> None:
        """Fit what the evidence can learn, and the prior.

        Args:
            evidence: of annotators, or of labels that are known in part.
            labels: names of the K labels.
            lengths: tokens of each sentence.
            scheme: what label sequences must keep to; None: nothing.
            temper: power of the evidence.
            iterations: at most so many.

        """
        self.evidence, self.temper, self._labels = evidence, temper, labels
        self._lengths = np.asarray(lengths, np.int64)
        self.prior = MarkovPrior(labels, scheme)
        self.objective: list[float] = []
        before = np.full(evidence.evidence().shape, 1.0 / len(labels))
        starts = (np.cumsum(self._lengths) - self._lengths)[self._lengths > 0]
        for _ in range(max(iterations, 1)):
            self.posterior = Posterior.of(self.scores)
            impossible = np.flatnonzero(self.posterior.log_z == -np.inf)
            if len(impossible):
                raise DataError(
                    f"sentence {impossible[0]} (counted from 0): expected labels that can be part"
                    f" of a sequence that keeps to the tag scheme {scheme}, got some that cannot"
                )
            self.evidence.update(self.posterior.labels)
            self.prior.update(self.posterior, starts)
            self.objective.append(float(self.posterior.log_z.sum()))
            change = float(np.abs(self.posterior.labels - before).sum(1).mean())
            if change < _SETTLED:
                break
            before = self.posterior.labels

    @property
    def scores(self) -> TruthScores:
        """Of the true label sequences, by what has been learnt."""
        return self.prior.scores(self.temper * self.evidence.evidence(), self._lengths)

    def best(self) -> Sequence[tuple[str, ...]]:
        """The most probable label sequence of each sentence."""
        return self.scores.decode(self._labels)
