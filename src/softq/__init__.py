"""softq: train structured predictors toward the metric they are evaluated with.

Maximum likelihood, reward augmented maximum likelihood (RAML) and softmax Q-distribution maximum
likelihood (SQDML), exact on classes, label chains, segmentations and dependency trees, and by
sampled candidates on sentences.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softq import decode, neural, nn, rewards, samplers, spaces, temperature, theory
    from softq.errors import SoftqError
    from softq.kernels import backend
    from softq.linear import CRFTagger, DependencyParser, RewardClassifier
    from softq.objectives import cross_entropy, kl
    from softq.sentences import Sentences
    from softq.spaces import (
        Candidates,
        Categorical,
        Chain,
        Distribution,
        Independent,
        ProjectiveTree,
        SemiMarkov,
        Space,
        SpanningTree,
        left_align,
        pack_segments,
        segment_scores,
        unpack_segments,
    )
    from softq.targets import Target, label_smoothing, ml, raml, softmax_margin, sqdml

try:
    __version__ = version("softq")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

_NAMES = {
    "Candidates": "spaces",
    "Categorical": "spaces",
    "Chain": "spaces",
    "CRFTagger": "linear",
    "DependencyParser": "linear",
    "Distribution": "spaces",
    "Independent": "spaces",
    "ProjectiveTree": "spaces",
    "RewardClassifier": "linear",
    "SemiMarkov": "spaces",
    "Sentences": "sentences",
    "SoftqError": "errors",
    "Space": "spaces",
    "SpanningTree": "spaces",
    "Target": "targets",
    "backend": "kernels",
    "cross_entropy": "objectives",
    "kl": "objectives",
    "label_smoothing": "targets",
    "left_align": "spaces",
    "ml": "targets",
    "pack_segments": "spaces",
    "raml": "targets",
    "segment_scores": "spaces",
    "softmax_margin": "targets",
    "sqdml": "targets",
    "unpack_segments": "spaces",
}


def __getattr__(name: str) -> Any:
    """A public name or module, imported when it is asked for: torch takes seconds to import."""
    if name in _NAMES:
        globals()[name] = getattr(import_module(f"softq.{_NAMES[name]}"), name)
        return globals()[name]
    if not name.startswith("_") and find_spec(f"softq.{name}") is not None:
        return import_module(f"softq.{name}")
    raise AttributeError(f"module 'softq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "CRFTagger",
    "Candidates",
    "Categorical",
    "Chain",
    "DependencyParser",
    "Distribution",
    "Independent",
    "ProjectiveTree",
    "SemiMarkov",
    "Sentences",
    "SoftqError",
    "Space",
    "SpanningTree",
    "Target",
    "backend",
    "cross_entropy",
    "decode",
    "kl",
    "label_smoothing",
    "left_align",
    "ml",
    "neural",
    "nn",
    "pack_segments",
    "raml",
    "rewards",
    "samplers",
    "segment_scores",
    "softmax_margin",
    "spaces",
    "sqdml",
    "temperature",
    "theory",
    "unpack_segments",
]
if find_spec("sklearn") is not None:  # else `from softq import *` would ask for it and fail
    __all__ += ["RewardClassifier"]
