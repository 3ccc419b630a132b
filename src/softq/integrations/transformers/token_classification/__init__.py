"""Taggers of words: an encoder of Transformers under a chain, with exact ML, RAML and SQDML."""

from softq.integrations.transformers.token_classification.arguments import (
    TokenClassificationArguments,
)
from softq.integrations.transformers.token_classification.model import (
    TokenClassificationConfig,
    TokenClassificationModel,
    TokenClassificationOutput,
)
from softq.integrations.transformers.token_classification.prediction import (
    Entity,
    TaggedSentence,
    WordTagger,
)
from softq.integrations.transformers.token_classification.rows import TokenClassificationCollator
from softq.integrations.transformers.token_classification.trainer import TokenClassificationTrainer

__all__ = [
    "Entity",
    "TaggedSentence",
    "TokenClassificationArguments",
    "TokenClassificationCollator",
    "TokenClassificationConfig",
    "TokenClassificationModel",
    "TokenClassificationOutput",
    "TokenClassificationTrainer",
    "WordTagger",
]
