"""Estimators with scikit-learn's interface. They need scikit-learn; nothing else in softq does."""

from softq.errors import DependencyError

try:
    from softq.estimators.classifier import RewardClassifier
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "sklearn":
        raise
    raise DependencyError("softq.RewardClassifier needs scikit-learn, which is not installed: pip install 'softq[sklearn]'") from error

__all__ = ["RewardClassifier"]
