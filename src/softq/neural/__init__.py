"""Neural models, and what trains models of sentences on candidates: targets, steps, learners."""

from softq.neural.modules import (
    AttentionalTranslator,
    ImageCaptioner,
    Perceptron,
    PerceptronGrid,
    SequenceModel,
    TransformerTranslator,
)

__all__ = [
    "AttentionalTranslator",
    "ImageCaptioner",
    "Perceptron",
    "PerceptronGrid",
    "SequenceModel",
    "TransformerTranslator",
]
