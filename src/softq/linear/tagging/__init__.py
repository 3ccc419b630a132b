"""Taggers with string features: their targets, objective and training, for the estimator and the experiment alike."""

from softq.errors import ConvergenceWarning
from softq.linear.tagging.fit import AdaGrad, CRFSettings
from softq.linear.tagging.model import Decoding, Tagger
from softq.linear.tagging.objective import CRFObjective, Layout, seen_layout
from softq.linear.tagging.target import (
    Constraints,
    CorpusTarget,
    Forbidden,
    References,
    corpus_target,
    entity_reward,
)

__all__ = [
    "AdaGrad",
    "CRFObjective",
    "CRFSettings",
    "Constraints",
    "ConvergenceWarning",
    "CorpusTarget",
    "Decoding",
    "Forbidden",
    "Layout",
    "References",
    "Tagger",
    "corpus_target",
    "entity_reward",
    "seen_layout",
]
