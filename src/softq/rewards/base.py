"""What every reward offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from softq.checks import first_true
from softq.errors import RewardError, ShapeError
from softq.sentences import Sentences, aligned, check_sentences, check_tokens


class Reward(ABC):
    """r(y, y*): how good output y is where y* is right. Higher is better.

    Called on token sequences, it scores every candidate of an example against every reference of
    that example.
    """

    pairwise: ClassVar[bool] = True
    """Whether there is one value per reference, or one for all references together."""
    uses_references: ClassVar[bool] = True
    """Whether references matter; if not, there is one value, which counts against each."""

    @property
    @abstractmethod
    def signature(self) -> str:
        """Short text that identifies the reward beside every number it gave."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """R of Theorem 1, the largest difference between two rewards, or ``math.inf``.

        Of a `PartReward` it is that of one part: n tokens have n times as much.
        """

    @abstractmethod
    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        """Rewards of checked sentences: candidates ``[B, S, L]``, references ``[B, R, M]``.

        Float64 ``[B, S, R]``.
        """

    def __call__(
        self, candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor
    ) -> Tensor:
        """Reward of every candidate against every reference of its example.

        Args:
            candidates: integer tokens ``[B, S, L]``.
            lengths: ``[B, S]``; -1 marks a candidate that is missing.
            references: integer tokens ``[B, R, M]``.
            ref_lengths: ``[B, R]``; -1 marks a reference that is missing.

        Returns:
            float64 ``[B, S, R]`` (``[B, S, 1]`` if not ``pairwise``) in natural units, 0 where
            either is missing.

        """
        return self.checked_score(*check_pair(candidates, lengths, references, ref_lengths))

    def checked_score(self, candidates: Sentences, references: Sentences) -> Tensor:
        """The same of checked sentences: `score`, if it is what it should be, detached."""
        found = self.score(candidates, references)
        want = (*candidates.lengths.shape, references.lengths.shape[1] if self.pairwise else 1)
        if not isinstance(found, Tensor) or found.shape != want:
            got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise RewardError(
                f"{type(self).__name__}.score must return a tensor of shape {list(want)}, "
                f"[B, S, R], got {got}"
            )
        if (place := first_true(~found.isfinite())) is not None:
            raise RewardError(
                f"the reward {self.signature!r} must return finite numbers, got "
                f"{float(found[place])} for example {place[0]}, candidate {place[1]}, "
                f"reference {place[2]}"
            )
        return found.detach().double()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.signature})"


class RewardWrapper(Reward):
    """A reward made of another, with its signature, bound and shape unless it overrides them."""

    def __init__(self, reward: Reward) -> None:
        self.reward = reward

    @property
    def pairwise(self) -> bool:  # type: ignore[override]  # that of the reward inside
        """Whether there is one value per reference."""
        return self.reward.pairwise

    @property
    def uses_references(self) -> bool:  # type: ignore[override]
        """Whether references matter."""
        return self.reward.uses_references

    @property
    def signature(self) -> str:
        """That of the reward."""
        return self.reward.signature

    @property
    def bound(self) -> float:
        """That of the reward."""
        return self.reward.bound


class _Described(Reward):
    """What is known of a reward, without its function."""

    signature, bound = "", 0.0

    def __init__(self, reward: Reward) -> None:
        for name in ("signature", "bound", "pairwise", "uses_references"):
            setattr(self, name, getattr(reward, name))

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        raise NotImplementedError


class Precomputed(RewardWrapper):
    """A reward whose values for one set of candidates are known: a new temperature needs no others.

    >>> from softq.rewards import SentenceBLEU
    >>> cands, refs = Sentences.pack([[[1, 2], [1, 3]]]), Sentences.pack([[[1, 2]]])
    >>> known = Precomputed(SentenceBLEU(), SentenceBLEU()(*cands, *refs))
    >>> known.score(cands, refs).shape, known.signature == SentenceBLEU().signature
    (torch.Size([1, 2, 1]), True)
    """

    def __init__(self, reward: Reward, values: Tensor) -> None:
        # not the reward itself: values can go to other processes where a function could not
        super().__init__(_Described(reward))
        self._values = values

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        return self._values


def check_pair(
    candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor
) -> tuple[Sentences, Sentences]:
    """Candidates and references that fit together, of one type and on one device."""
    cands = check_sentences("candidates", Sentences(candidates, lengths))
    refs = check_sentences("references", Sentences(references, ref_lengths))
    if candidates.dim() != 3 or references.dim() != 3 or len(candidates) != len(references):
        raise ShapeError(
            "candidates and references must have shapes [B, S, L] and [B, R, M] with one B, "
            f"got {list(candidates.shape)} and {list(references.shape)}"
        )
    check_tokens("references", refs)
    return aligned(cands, refs)


def both_present(candidates: Sentences, references: Sentences) -> Tensor:
    """Bool ``[B, S, R]``: neither the candidate nor the reference is missing."""
    return candidates.present.unsqueeze(2) & references.present.unsqueeze(1)
