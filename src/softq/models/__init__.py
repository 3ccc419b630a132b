"""Models that return distributions."""

from softq.models.perceptron import Perceptron, PerceptronGrid

__all__ = ["Perceptron", "PerceptronGrid"]
