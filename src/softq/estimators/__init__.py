"""Estimators with scikit-learn's interface. They need scikit-learn; nothing else in softq does."""

from softq.estimators.classifier import RewardClassifier

__all__ = ["RewardClassifier"]
