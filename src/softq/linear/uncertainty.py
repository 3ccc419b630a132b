"""Calibration and conformal sets of the estimators, without tables of probabilities in between."""

# ruff: noqa: N803 -- scikit-learn calls the inputs X

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from softq.calibration import CalibrationScores, calibration_scores
from softq.conformal import ConformalSets, Score, Unit, coverage
from softq.metrics import Interval


class Estimator(Protocol):
    """What `CRFTagger`, `DependencyParser` and `RewardClassifier` have in common."""

    def output_ids(self, X: Any, y: Any) -> Any:
        """Right outputs as the model numbers them."""

    def output_probabilities(self, X: Any) -> Any:
        """Probabilities of the outputs."""


def calibration_of(estimator: Estimator, X: Any, y: Any = None) -> CalibrationScores:
    """How good the probabilities of a fitted estimator are on data it was not trained on.

    Args:
        estimator: a `CRFTagger`, `DependencyParser` or `RewardClassifier`.
        X: inputs, as in its ``fit``.
        y: one right output for each.

    """
    return calibration_scores(estimator.output_probabilities(X), estimator.output_ids(X, y))


class EstimatorSets(NamedTuple):
    """An estimator that predicts sets with a guaranteed coverage.

    Attributes:
        estimator: The fitted estimator.
        sets: The thresholds and what they guarantee.

    """

    estimator: Estimator
    sets: ConformalSets

    @classmethod
    def calibrate(
        cls,
        estimator: Estimator,
        X: Any,
        y: Any = None,
        alpha: float = 0.1,
        *,
        score: Score = "lac",
        unit: Unit = "token",
    ) -> EstimatorSets:
        """Learn the thresholds from data that the estimator was not trained on.

        Args:
            estimator: a fitted `CRFTagger`, `DependencyParser` or `RewardClassifier`.
            X: inputs, as in its ``fit``.
            y: one right output for each.
            alpha: largest share of misses.
            score: see `softq.conformal.ConformalSets`.
            unit: what is guaranteed, see there.

        >>> from softq import CRFTagger
        >>> X, y = [["Ann", "met", "Bob"]] * 40, [["PER", "O", "PER"]] * 40
        >>> tagger = CRFTagger().fit(X[:20], y[:20])
        >>> sets = EstimatorSets.calibrate(tagger, X[20:], y[20:], alpha=0.1)
        >>> sets.predict([["Ann", "met", "Bob"]])
        [[['PER'], ['O'], ['PER']]]

        """
        probabilities, right = estimator.output_probabilities(X), estimator.output_ids(X, y)
        return cls(
            estimator,
            ConformalSets.calibrate(probabilities, right, alpha, score=score, unit=unit),
        )

    def predict(self, X: Any) -> list[Any]:
        """The set of each row, token or word: a list of labels, or of heads (0 is the root)."""
        found = self._found(X)
        names = getattr(self.estimator, "classes_", None)

        def of(table: Any) -> list[Any]:
            rows = [np.flatnonzero(row).tolist() for row in table]
            return rows if names is None else [[names[k] for k in row] for row in rows]

        return of(found) if isinstance(found, np.ndarray) else [of(table) for table in found]

    def coverage(self, X: Any, y: Any = None, *, unit: Unit = "token") -> Interval:
        """Share of right outputs that the sets hold (`softq.conformal.coverage`)."""
        return coverage(self._found(X), self.estimator.output_ids(X, y), unit=unit)

    def _found(self, X: Any) -> Any:
        return self.sets.predict(self.estimator.output_probabilities(X))
