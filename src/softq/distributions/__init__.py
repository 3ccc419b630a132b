"""Distributions over structured outputs. Each class docstring is a card: set, parts, output, cost, equation."""

from softq.distributions.base import Distribution
from softq.distributions.candidates import Candidates
from softq.distributions.categorical import Categorical
from softq.distributions.chain import Chain
from softq.distributions.labels import Independent, LabelSequence
from softq.distributions.trees import DependencyTree, ProjectiveTree, SpanningTree

__all__ = [
    "Candidates",
    "Categorical",
    "Chain",
    "DependencyTree",
    "Distribution",
    "Independent",
    "LabelSequence",
    "ProjectiveTree",
    "SpanningTree",
]
