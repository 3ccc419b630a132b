"""Rewards r(y, y*).

Those that split over the parts of an output give exact targets, the others weigh candidates.
"""

from softq.rewards.annotators import Annotators
from softq.rewards.base import Precomputed, Reward
from softq.rewards.bleu import BLEUStatistics, MultiReferenceBLEU, SentenceBLEU
from softq.rewards.function import FromFunction
from softq.rewards.names import named_reward
from softq.rewards.overlap import ChrF, NegativeEditDistance, RougeL
from softq.rewards.parts import (
    Attachment,
    ExactMatch,
    Matrix,
    NegativeHamming,
    PartReward,
    TokenAccuracy,
    TokenReward,
)
from softq.rewards.segments import SegmentAccuracy
from softq.rewards.spans import SpanF1

__all__ = [
    "Annotators",
    "Attachment",
    "BLEUStatistics",
    "ChrF",
    "ExactMatch",
    "FromFunction",
    "Matrix",
    "MultiReferenceBLEU",
    "NegativeEditDistance",
    "NegativeHamming",
    "PartReward",
    "Precomputed",
    "Reward",
    "RougeL",
    "SegmentAccuracy",
    "SentenceBLEU",
    "SpanF1",
    "TokenAccuracy",
    "TokenReward",
    "named_reward",
]
