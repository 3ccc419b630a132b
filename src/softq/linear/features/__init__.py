"""Features of words and of arcs between them: strings to numbers that kernels can read."""

from softq.linear.features.arc_templates import ARC_TEMPLATES, RELATION_TEMPLATES
from softq.linear.features.arcs import ArcCodes, ArcIndex, TaggedWords, given_columns
from softq.linear.features.attributes import AttributeIndex
from softq.linear.features.matrix import FeatureMatrix
from softq.linear.features.template_index import TemplateIndex
from softq.linear.features.templates import FINKEL, default_templates

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
