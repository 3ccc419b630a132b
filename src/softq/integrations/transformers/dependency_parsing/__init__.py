"""Parsers: an encoder of Transformers under a distribution over trees, with exact ML, RAML and SQDML."""

from softq.integrations.transformers.dependency_parsing.losses import TreeLosses
from softq.integrations.transformers.dependency_parsing.model import (
    DependencyConfig,
    DependencyModel,
    DependencyOutput,
)
from softq.integrations.transformers.dependency_parsing.rows import DependencyCollator

__all__ = [
    "DependencyCollator",
    "DependencyConfig",
    "DependencyModel",
    "DependencyOutput",
    "TreeLosses",
]
