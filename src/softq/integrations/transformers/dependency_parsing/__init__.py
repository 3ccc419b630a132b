"""Parsers: an encoder of Transformers under a distribution over trees, with exact ML, RAML and SQDML."""

from softq.integrations.transformers.dependency_parsing.arguments import DependencyArguments
from softq.integrations.transformers.dependency_parsing.losses import TreeLosses
from softq.integrations.transformers.dependency_parsing.model import (
    DependencyConfig,
    DependencyModel,
    DependencyOutput,
)
from softq.integrations.transformers.dependency_parsing.prediction import (
    ParsedSentence,
    TreePredictor,
)
from softq.integrations.transformers.dependency_parsing.rows import DependencyCollator
from softq.integrations.transformers.dependency_parsing.trainer import DependencyTrainer

__all__ = [
    "DependencyArguments",
    "DependencyCollator",
    "DependencyConfig",
    "DependencyModel",
    "DependencyOutput",
    "DependencyTrainer",
    "ParsedSentence",
    "TreeLosses",
    "TreePredictor",
]
