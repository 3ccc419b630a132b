"""Choosing the settings of a model of annotators without the truth.

Some annotators of some sentences are hidden, the model is fitted to the others, and the settings
are the better, the likelier it finds what was hidden.
"""

from __future__ import annotations

from collections.abc import Callable

from softq.annotators.crowd import Crowd
from softq.annotators.tables import AnnotatorTables
from softq.annotators.truth import TruthScores, predictive
from softq.errors import DataError

Fit = Callable[[Crowd], tuple[TruthScores, AnnotatorTables]]
"""Fits a crowd: the scores of the true label sequences, and the annotators' tables."""


def hidden_likelihood(crowd: Crowd, fit: Fit, *, share: float = 0.2, seed: int = 0) -> float:
    """Mean log-probability of labels that were hidden from a fit.

    The labels that an annotator gave to a sentence are hidden together, and one annotator of each
    sentence at least stays. What they are predicted from is the truth that the others make likely
    and the annotator's own table.

    Args:
        crowd: labels of annotators.
        fit: fits what is left of it.
        share: of the pairs of annotators and sentences that are hidden, between 0 and 1.
        seed: decides which.

    >>> from softq.annotators.sequential import SequentialFit
    >>> from softq.formats.conll import Sentence
    >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
    >>> crowd = Crowd.read([Sentence(("Ann", "ran"), rows, ("1", "2", "3"))] * 20)
    >>> def fitted(temper):
    ...     def fit(rest):
    ...         tables = AnnotatorTables(rest)
    ...         found = SequentialFit(tables, rest.labels, rest.lengths, "bio", temper=temper)
    ...         return found.scores(), tables
    ...     return fit
    >>> max((0.01, 1.0), key=lambda temper: hidden_likelihood(crowd, fitted(temper)))
    1.0

    """
    if not 0 < share < 1:
        raise DataError(f"share must be between 0 and 1, got {share:g}")
    rest, hidden = crowd.hide(share, seed)
    if not len(hidden.label):
        raise DataError(
            "settings are compared by labels that are hidden: expected sentences with several"
            f" annotators, so that a share of {share:g} can be, got none to hide"
        )
    scores, tables = fit(rest)
    return predictive(scores, tables.likelihood(hidden)) / hidden.label_count
