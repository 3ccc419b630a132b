"""softq: train structured predictors toward the metric they are judged by.

Maximum likelihood, reward augmented maximum likelihood (RAML) and softmax Q-distribution maximum likelihood
(SQDML), exact on classes, label chains and dependency trees, and by sampled candidates on sentences.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softq import decode, importance, models, rewards, samplers, temperature, theory
    from softq.distributions import Candidates, Categorical, Chain, Distribution, Independent, ProjectiveTree, SpanningTree
    from softq.errors import SoftqError
    from softq.estimators import CRFTagger, DependencyParser, RewardClassifier
    from softq.kernels import backend
    from softq.objectives import cross_entropy, kl
    from softq.sampled import SampledTarget
    from softq.sentences import Sentences
    from softq.targets import Target, ml, raml, sqdml

try:
    __version__ = version("softq")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

_NAMES = {
    "distributions": ("Candidates", "Categorical", "Chain", "Distribution", "Independent", "ProjectiveTree", "SpanningTree"),
    "errors": ("SoftqError",),
    "estimators": ("CRFTagger", "DependencyParser", "RewardClassifier"),
    "kernels": ("backend",),
    "objectives": ("cross_entropy", "kl"),
    "sampled": ("SampledTarget",),
    "sentences": ("Sentences",),
    "targets": ("Target", "ml", "raml", "sqdml"),
}


def __getattr__(name: str) -> Any:
    """A public name, or a module, imported when it is asked for: torch takes seconds, and help and most errors need none of it."""
    for home, names in _NAMES.items():
        if name in names:
            globals()[name] = getattr(import_module(f"softq.{home}"), name)
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
    "SampledTarget",
    "Sentences",
    "SoftqError",
    "SpanningTree",
    "Target",
    "backend",
    "cross_entropy",
    "decode",
    "importance",
    "kl",
    "ml",
    "models",
    "raml",
    "rewards",
    "samplers",
    "sqdml",
    "temperature",
    "theory",
]
if find_spec("sklearn") is not None:  # else `from softq import *` would ask for it and fail
    __all__ += ["RewardClassifier"]
