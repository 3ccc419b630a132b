"""Models that return distributions, or log-probabilities of candidates."""

from softq.neural.modules.captioner import ImageCaptioner
from softq.neural.modules.perceptron import Perceptron, PerceptronGrid
from softq.neural.modules.sequence import SequenceModel
from softq.neural.modules.transformer import TransformerTranslator
from softq.neural.modules.translator import AttentionalTranslator

__all__ = [
    "AttentionalTranslator",
    "ImageCaptioner",
    "Perceptron",
    "PerceptronGrid",
    "SequenceModel",
    "TransformerTranslator",
]
