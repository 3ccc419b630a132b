"""Calibration and conformal sets of the estimators, without tables of probabilities in between."""

# ruff: noqa: N803 -- scikit-learn calls the inputs X

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from softq.calibration import CalibrationScores, batch_of, calibration_scores
from softq.conformal import ConformalSets, OutputSet, Score, SequenceSets, Unit, coverage
from softq.errors import EstimatorError
from softq.linear.saved_model import SavedEstimator
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
    sets: ConformalSets | SequenceSets

    @classmethod
    def calibrate(
        cls,
        estimator: Estimator,
        X: Any,
        y: Any = None,
        alpha: float = 0.1,
        *,
        score: Score | None = None,
        unit: Unit | Literal["sequence"] = "token",
        most: int = 64,
    ) -> EstimatorSets:
        """Learn the thresholds from data that the estimator was not trained on.

        Args:
            estimator: a fitted `CRFTagger`, `DependencyParser` or `RewardClassifier`.
            X: inputs, as in its ``fit``.
            y: one right output for each.
            alpha: largest share of misses.
            score: see `softq.conformal.ConformalSets`; None: ``"lac"``, and ``"adaptive"`` of whole
                sequences.
            unit: what is guaranteed, see there; ``"sequence"``: sets of whole label sequences or
                trees (`softq.conformal.SequenceSets`), each of which holds the right one with
                probability at least 1 - alpha.
            most: most sequences or trees in such a set.

        >>> from softq import CRFTagger
        >>> X, y = [["Ann", "met", "Bob"]] * 40, [["PER", "O", "PER"]] * 40
        >>> tagger = CRFTagger().fit(X[:20], y[:20])
        >>> sets = EstimatorSets.calibrate(tagger, X[20:], y[20:], alpha=0.1)
        >>> sets.predict([["Ann", "met", "Bob"]])
        [[['PER'], ['O'], ['PER']]]
        >>> whole = EstimatorSets.calibrate(tagger, X[20:], y[20:], alpha=0.1, unit="sequence")
        >>> whole.predict([["Ann", "met", "Bob"]])[0].outputs
        [['PER', 'O', 'PER']]

        """
        if unit != "sequence":
            table, right = estimator.output_probabilities(X), estimator.output_ids(X, y)
            return cls(
                estimator,
                ConformalSets.calibrate(table, right, alpha, score=score or "lac", unit=unit),
            )
        of_sequences = _of_sequences(estimator)
        batches = list(of_sequences.output_distributions(X))
        right = of_sequences.whole_outputs(X, y)
        outputs = [batch_of(right, numbers, model) for numbers, model in batches]
        models = (model for _, model in batches)
        rule = SequenceSets.calibrate(models, outputs, alpha, score=score or "adaptive", most=most)
        return cls(estimator, rule)

    def predict(self, X: Any) -> list[Any]:
        """The set of each row, token or word: a list of labels, or of heads (0 is the root).

        With ``unit="sequence"`` the set of each sentence, an `softq.conformal.OutputSet`.
        """
        found = self._found(X)
        names = getattr(self.estimator, "classes_", None)

        def named(places: Any) -> list[Any]:
            return list(places) if names is None else [names[k] for k in places]

        def of(table: Any) -> Any:
            if isinstance(table, OutputSet):
                return table._replace(
                    outputs=[*map(_of_sequences(self.estimator).named, table.outputs)]
                )
            return [named(np.flatnonzero(row).tolist()) for row in table]

        return of(found) if isinstance(found, np.ndarray) else [of(table) for table in found]

    def coverage(self, X: Any, y: Any = None, *, unit: Unit = "token") -> Interval:
        """Share of right outputs that the sets hold (`softq.conformal.coverage`)."""
        if isinstance(self.sets, ConformalSets):
            right = self.estimator.output_ids(X, y)
        else:
            right = _of_sequences(self.estimator).whole_outputs(X, y)
        return coverage(self._found(X), right, unit=unit)

    def _found(self, X: Any) -> Any:
        if isinstance(self.sets, ConformalSets):
            return self.sets.predict(self.estimator.output_probabilities(X))
        found: dict[int, OutputSet] = {}
        for numbers, model in _of_sequences(self.estimator).output_distributions(X):
            found |= zip(numbers.tolist(), self.sets.predict([model]), strict=True)
        return [found[number] for number in sorted(found)]


def _of_sequences(estimator: Any) -> SavedEstimator:
    if not isinstance(estimator, SavedEstimator):
        raise EstimatorError(
            f"unit='sequence' is for taggers and parsers, got a {type(estimator).__name__}, whose"
            " outputs are classes: take unit='token'"
        )
    return estimator
