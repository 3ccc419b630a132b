"""Neural models: taggers and parsers; modules of other models, their training on candidates, trained translators and captioners."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softq.neural.modules import (
        AttentionalTranslator,
        ImageCaptioner,
        Perceptron,
        PerceptronGrid,
        SequenceModel,
        TransformerTranslator,
    )
    from softq.neural.parser import BiaffineParser, TreeVocabulary
    from softq.neural.tagger import SequenceTagger
    from softq.neural.text_generator import TextGenerator
    from softq.neural.words import WordVocabulary

__all__ = [
    "AttentionalTranslator",
    "BiaffineParser",
    "ImageCaptioner",
    "Perceptron",
    "PerceptronGrid",
    "SequenceModel",
    "SequenceTagger",
    "TextGenerator",
    "TransformerTranslator",
    "TreeVocabulary",
    "WordVocabulary",
]
_PLACES = {
    "BiaffineParser": "parser",
    "TreeVocabulary": "parser",
    "SequenceTagger": "tagger",
    "TextGenerator": "text_generator",
    "WordVocabulary": "words",
}


def __getattr__(name: str) -> Any:
    """A name when it is asked for: recipes need `softq.neural.recipe` alone, and no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'softq.neural' has no attribute {name!r}")
    return getattr(import_module(f"softq.neural.{_PLACES.get(name, 'modules')}"), name)
