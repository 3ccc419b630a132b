"""Output spaces: a set of outputs, its parts, and the Gibbs distribution on it."""

from softq.spaces.base import Component, Space
from softq.spaces.candidates import Candidates
from softq.spaces.chain import Chain
from softq.spaces.classes import Categorical
from softq.spaces.distribution import Distribution, left_align
from softq.spaces.labels import Independent, LabelSequence
from softq.spaces.segments import (
    Segment,
    SemiMarkov,
    pack_segments,
    segment_scores,
    unpack_segments,
)
from softq.spaces.topk import TopK
from softq.spaces.trees import DependencyTree, ProjectiveTree, SpanningTree

__all__ = [
    "Candidates",
    "Categorical",
    "Chain",
    "Component",
    "DependencyTree",
    "Distribution",
    "Independent",
    "LabelSequence",
    "ProjectiveTree",
    "Segment",
    "SemiMarkov",
    "Space",
    "SpanningTree",
    "TopK",
    "left_align",
    "pack_segments",
    "segment_scores",
    "unpack_segments",
]
