"""Estimators with scikit-learn's interface. `RewardClassifier` needs scikit-learn; `CRFTagger` can do without it."""

from typing import TYPE_CHECKING, Any

from softq.errors import DependencyError
from softq.estimators.tagger import CRFTagger

if TYPE_CHECKING:
    from softq.estimators.classifier import RewardClassifier


def __getattr__(name: str) -> Any:
    if name != "RewardClassifier":
        raise AttributeError(f"module 'softq.estimators' has no attribute {name!r}")
    try:
        from softq.estimators.classifier import RewardClassifier
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sklearn":
            raise
        raise DependencyError("softq.RewardClassifier needs scikit-learn, which is not installed: pip install 'softq[sklearn]'") from error
    return RewardClassifier


__all__ = ["CRFTagger", "RewardClassifier"]
