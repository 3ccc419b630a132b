"""Taggers with string features.

Their targets, objective and training, for the estimator and the experiment alike.
"""

from softq.linear.tagging.fit import BatchFit, CRFSettings, SearchFit
from softq.linear.tagging.model import Tagger
from softq.linear.tagging.objective import CRFObjective, Layout, seen_layout
from softq.linear.tagging.target import (
    CorpusTarget,
    Forbidden,
    References,
    corpus_target,
    entity_reward,
)
from softq.options import Constraints
from softq.options import LabelDecoding as Decoding

__all__ = [
    "BatchFit",
    "CRFObjective",
    "CRFSettings",
    "Constraints",
    "CorpusTarget",
    "Decoding",
    "Forbidden",
    "Layout",
    "References",
    "SearchFit",
    "Tagger",
    "corpus_target",
    "entity_reward",
    "seen_layout",
]
