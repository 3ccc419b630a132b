"""Features of words and of arcs between them: strings to numbers that kernels can read."""

from softq.linear.features.arcs import ArcCodes, ArcIndex, given_columns, lacks_tags
from softq.linear.features.attributes import AttributeIndex
from softq.linear.features.matrix import FeatureIndex, FeatureMatrix
from softq.linear.features.template_index import TemplateIndex
from softq.linear.features.templates import (
    ARC_TEMPLATES,
    FINKEL,
    RELATION_TEMPLATES,
    default_templates,
)

__all__ = [
    "ARC_TEMPLATES",
    "FINKEL",
    "RELATION_TEMPLATES",
    "ArcCodes",
    "ArcIndex",
    "AttributeIndex",
    "FeatureIndex",
    "FeatureMatrix",
    "TemplateIndex",
    "default_templates",
    "given_columns",
    "lacks_tags",
]
