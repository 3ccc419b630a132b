"""Choosing the settings of a model of annotators without true labels.

The labels of some annotators in some sentences are hidden, and the model is fitted to the others.
The better the settings, the likelier the hidden labels are under the fitted model.
"""

from __future__ import annotations

from collections.abc import Callable

from softq.annotators.crowd import Crowd
from softq.annotators.tables import AnnotatorTables, TablePriors
from softq.annotators.truth import TruthScores, predictive
from softq.errors import DataError


def hidden_likelihood(
    crowd: Crowd,
    fit: Callable[[AnnotatorTables], TruthScores],
    priors: TablePriors | None = None,
    *,
    share: float = 0.2,
    seed: int = 0,
) -> float:
    """Mean log-probability of labels that were hidden from a fit.

    The labels that an annotator gave to a sentence are hidden together, and every sentence keeps at
    least one annotator. They are predicted from the truth that the other labels make likely and
    from the annotator's own table.

    Args:
        crowd: labels of annotators.
        fit: fits tables of what is left of it, and returns the scores of the true labels.
        priors: of the tables.
        share: share of the pairs of annotators and sentences to hide, between 0 and 1.
        seed: seed of the choice of these pairs.

    >>> from softq.annotators.sequential import SequentialFit
    >>> from softq.formats.conll import Sentence
    >>> rows = (("B-PER", "O"), ("B-PER", "O"), ("O", "O"))
    >>> crowd = Crowd.read([Sentence(("Ann", "ran"), rows, ("1", "2", "3"))] * 20)
    >>> def hidden(temper):
    ...     def fit(tables):
    ...         known = tables.crowd
    ...         return SequentialFit(tables, known.labels, known.lengths, "bio", temper=temper).scores
    ...     return hidden_likelihood(crowd, fit)
    >>> max((0.01, 1.0), key=hidden)
    1.0

    """
    if not 0 < share < 1:
        raise DataError(f"share must be between 0 and 1, got {share:g}")
    rest, hidden = crowd.hide(share, seed)
    if not len(hidden.label):
        raise DataError(
            "settings are compared by hidden labels: expected sentences with several annotators, of"
            f" whom a share of {share:g} can be hidden, got none to hide"
        )
    tables = AnnotatorTables(rest, priors)
    return predictive(fit(tables), tables.likelihood(hidden)) / hidden.label_count
