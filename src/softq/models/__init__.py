"""Models that return distributions, or log-probabilities of candidates."""

from softq.models.captioner import ImageCaptioner
from softq.models.perceptron import Perceptron, PerceptronGrid
from softq.models.sequence import SequenceModel
from softq.models.transformer import TransformerTranslator
from softq.models.translator import AttentionalTranslator

__all__ = ["AttentionalTranslator", "ImageCaptioner", "Perceptron", "PerceptronGrid", "SequenceModel", "TransformerTranslator"]
