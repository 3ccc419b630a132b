"""Rewards that are known already."""

from __future__ import annotations

from torch import Tensor

from softq.rewards.base import Reward, RewardWrapper
from softq.sentences import Sentences


class Precomputed(RewardWrapper):
    """A reward whose values for one set of candidates are known: a new temperature needs no others.

    >>> from softq.rewards import SentenceBLEU
    >>> cands, refs = Sentences.pack([[[1, 2], [1, 3]]]), Sentences.pack([[[1, 2]]])
    >>> known = Precomputed(SentenceBLEU(), SentenceBLEU()(*cands, *refs))
    >>> known.score(cands, refs).shape, known.signature == SentenceBLEU().signature
    (torch.Size([1, 2, 1]), True)
    """

    def __init__(self, reward: Reward, values: Tensor) -> None:
        super().__init__(reward)
        self._values = values

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        return self._values
