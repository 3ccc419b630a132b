"""Estimators with scikit-learn's interface. `RewardClassifier` needs scikit-learn.

`CRFTagger` and `DependencyParser` can do without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from softq.errors import DependencyError

if TYPE_CHECKING:
    from softq.linear.classifier import RewardClassifier
    from softq.linear.entity_weights import tune_entity_weight
    from softq.linear.parser import DependencyParser
    from softq.linear.tagger import CRFTagger, entity_f1_scorer


def __getattr__(name: str) -> Any:
    # when they are asked for: scikit-learn is slow to import, and commands that read sentences as
    # estimators do need none of it
    module = {
        "CRFTagger": "tagger",
        "entity_f1_scorer": "tagger",
        "DependencyParser": "parser",
        "tune_entity_weight": "entity_weights",
    }.get(name)
    if module is not None:
        return getattr(import_module(f"softq.linear.{module}"), name)
    if name != "RewardClassifier":
        raise AttributeError(f"module 'softq.linear' has no attribute {name!r}")
    try:
        from softq.linear.classifier import RewardClassifier
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "sklearn":
            raise
        raise DependencyError(
            "softq.RewardClassifier needs scikit-learn, which is not installed: pip install"
            " 'softq[sklearn]'"
        ) from error
    return RewardClassifier


__all__ = [
    "CRFTagger",
    "DependencyParser",
    "RewardClassifier",
    "entity_f1_scorer",
    "tune_entity_weight",
]
