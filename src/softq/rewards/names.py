"""Rewards by the names that commands and arguments have for them."""

from __future__ import annotations

from collections.abc import Sequence

from softq.errors import RewardError
from softq.rewards.base import Reward
from softq.rewards.bleu import SentenceBLEU
from softq.rewards.overlap import ChrF, NegativeEditDistance, RougeL
from softq.rewards.parts import ExactMatch, NegativeHamming, TokenAccuracy

REWARD_NAMES: dict[str, type[Reward]] = {
    "bleu": SentenceBLEU,
    "chrf": ChrF,
    "rouge-l": RougeL,
    "edit": NegativeEditDistance,
    "hamming": NegativeHamming,
    "accuracy": TokenAccuracy,
    "exact": ExactMatch,
}
"""What `named_reward` knows."""


def named_reward(name: str, words: Sequence[str] | None = None) -> Reward:
    """The reward of a name, on token numbers; chrF spells them with these words, or takes each for one character.

    >>> named_reward("rouge-l").signature
    'rouge-l:beta=1.0'
    """
    if name not in REWARD_NAMES:
        raise RewardError(f"reward must be one of {', '.join(REWARD_NAMES)}, got {name!r}")
    return ChrF(words) if name == "chrf" else REWARD_NAMES[name]()
