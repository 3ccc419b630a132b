"""Features of words and of arcs between them: strings to numbers that kernels can read."""

from softq.features.arc_templates import ARC_TEMPLATES, RELATION_TEMPLATES
from softq.features.arcs import ArcCodes, ArcIndex, TaggedWords, given_columns
from softq.features.attributes import AttributeIndex
from softq.features.matrix import FeatureMatrix
from softq.features.template_index import TemplateIndex
from softq.features.templates import FINKEL, default_templates

__all__ = [
    "ARC_TEMPLATES",
    "FINKEL",
    "RELATION_TEMPLATES",
    "ArcCodes",
    "ArcIndex",
    "AttributeIndex",
    "FeatureMatrix",
    "TaggedWords",
    "TemplateIndex",
    "default_templates",
    "given_columns",
]
