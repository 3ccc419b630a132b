"""softq: train structured predictors toward the metric they are judged by.

Maximum likelihood, reward augmented maximum likelihood (RAML) and softmax Q-distribution maximum likelihood
(SQDML), exact on classes, label chains and dependency trees, and by sampled candidates on sentences.
"""

from importlib.metadata import PackageNotFoundError, version

from softq import importance, rewards, samplers, temperature, theory
from softq.distributions import Candidates, Categorical, Chain, Distribution, Independent, ProjectiveTree, SpanningTree
from softq.errors import SoftqError
from softq.kernels import backend
from softq.objectives import cross_entropy, kl
from softq.sampled import SampledTarget
from softq.sentences import Sentences
from softq.targets import Target, ml, raml, sqdml

try:
    __version__ = version("softq")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

__all__ = [
    "Candidates",
    "Categorical",
    "Chain",
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
    "importance",
    "kl",
    "ml",
    "raml",
    "rewards",
    "samplers",
    "sqdml",
    "temperature",
    "theory",
]
