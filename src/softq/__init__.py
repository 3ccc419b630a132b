"""softq: train structured predictors toward the metric they are judged by.

Maximum likelihood, reward augmented maximum likelihood (RAML) and softmax Q-distribution maximum likelihood
(SQDML), exact on classes, label chains and dependency trees, and by sampled candidates on sentences.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from softq import decode, importance, models, rewards, samplers, temperature, theory
from softq.distributions import Candidates, Categorical, Chain, Distribution, Independent, ProjectiveTree, SpanningTree
from softq.errors import SoftqError
from softq.kernels import backend
from softq.objectives import cross_entropy, kl
from softq.sampled import SampledTarget
from softq.sentences import Sentences
from softq.targets import Target, ml, raml, sqdml

if TYPE_CHECKING:
    from softq.estimators import CRFTagger, DependencyParser, RewardClassifier

try:
    __version__ = version("softq")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"


def __getattr__(name: str) -> Any:
    if name in (
        "CRFTagger",
        "DependencyParser",
        "RewardClassifier",
    ):  # when they are asked for: scikit-learn is an extra, and slow to import
        from softq import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'softq' has no attribute {name!r}")


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
