"""Neural models: modules, their training on candidates, and trained translators and captioners."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softq.neural.modules import (
        AttentionalTranslator,
        ImageCaptioner,
        Perceptron,
        PerceptronGrid,
        SequenceModel,
        TransformerTranslator,
    )
    from softq.neural.text_generator import TextGenerator

__all__ = [
    "AttentionalTranslator",
    "ImageCaptioner",
    "Perceptron",
    "PerceptronGrid",
    "SequenceModel",
    "TextGenerator",
    "TransformerTranslator",
]


def __getattr__(name: str) -> Any:
    """A name when it is asked for: recipes need `softq.neural.recipe` alone, and no torch."""
    if name not in __all__:
        raise AttributeError(f"module 'softq.neural' has no attribute {name!r}")
    place = "text_generator" if name == "TextGenerator" else "modules"
    return getattr(import_module(f"softq.neural.{place}"), name)
