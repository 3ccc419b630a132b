"""Rewards r(y, y*). Those here split over the parts of an output, so that targets built from them are exact."""

from softq.rewards.parts import Attachment, ExactMatch, Matrix, PartReward, TokenAccuracy, TokenReward

__all__ = ["Attachment", "ExactMatch", "Matrix", "PartReward", "TokenAccuracy", "TokenReward"]
