"""Neural models: modules, their training on candidates, and trained translators and captioners."""

from softq.neural.modules import (
    AttentionalTranslator,
    ImageCaptioner,
    Perceptron,
    PerceptronGrid,
    SequenceModel,
    TransformerTranslator,
)
from softq.neural.text_generator import TextGenerator

__all__ = [
    "AttentionalTranslator",
    "ImageCaptioner",
    "Perceptron",
    "PerceptronGrid",
    "SequenceModel",
    "TextGenerator",
    "TransformerTranslator",
]
