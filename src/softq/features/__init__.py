"""Features of words: strings to columns of a sparse matrix."""

from softq.features.attributes import AttributeIndex
from softq.features.matrix import FeatureMatrix
from softq.features.template_index import TemplateIndex
from softq.features.templates import FINKEL, default_templates

__all__ = ["FINKEL", "AttributeIndex", "FeatureMatrix", "TemplateIndex", "default_templates"]
