"""Rewards by the names that users write: options of commands, keys of recipes, arguments, pages.

Whatever takes a reward by its name reads it here, so that a name means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from softq.errors import RewardError
from softq.options import RewardName as RewardName
from softq.options import check_choice
from softq.rewards.base import Reward
from softq.rewards.bleu import SentenceBLEU
from softq.rewards.overlap import ChrF, NegativeEditDistance, RougeL
from softq.rewards.parts import ExactMatch, NegativeHamming, TokenAccuracy


class _NamedReward(NamedTuple):
    """What stands behind a name."""

    factory: type[Reward]  # what it says of itself holds here too: which parts it splits over
    title: str


REWARDS: dict[str, _NamedReward] = {
    RewardName.bleu: _NamedReward(SentenceBLEU, "sentence BLEU"),
    RewardName.chrf: _NamedReward(ChrF, "chrF"),
    RewardName.rouge_l: _NamedReward(RougeL, "ROUGE-L"),
    RewardName.edit: _NamedReward(NegativeEditDistance, "minus edit distance"),
    RewardName.hamming: _NamedReward(NegativeHamming, "minus Hamming distance"),
    RewardName.accuracy: _NamedReward(TokenAccuracy, "words in their place"),
    RewardName.exact: _NamedReward(ExactMatch, "exact match"),
}

SHORT_NAMES = {"rouge": RewardName.rouge_l}
"""What some commands write instead."""


def named_reward(name: str, words: Sequence[str] | None = None) -> Reward:
    """The reward of a name, on token ids.

    Args:
        name: one of `REWARDS`.
        words: the text of each token id, with which chrF spells a sentence; without them it takes
            each token for one character.

    >>> named_reward("rouge-l").signature
    'rouge-l:beta=1.0'

    """
    check_choice("reward", name, REWARDS, RewardError)
    return ChrF(words) if name == RewardName.chrf else REWARDS[name].factory()
