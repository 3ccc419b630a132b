"""Rewards of labelled segments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from softq.errors import RewardError, ShapeError
from softq.rewards.base import both_present
from softq.rewards.parts import PartReward
from softq.sentences import Sentences


class SegmentAccuracy(PartReward):
    """Number of segments with the right begin, end and label: the natural reward of `SemiMarkov`.

    Args:
        weights: what a right segment of each label earns, ``[K]``; 1 if not given. With less for a
            label that stands for "outside", entities count more.

    >>> outputs, lengths = Sentences.pack([[[2, 5, 0], [3, 5, 0]]])  # length · 2 + label, or 0
    >>> refs, ref_lengths = Sentences.pack([[[2, 5, 0]]])
    >>> SegmentAccuracy([0.5, 2.0])(outputs, lengths, refs, ref_lengths).squeeze()
    tensor([2.5000, 2.0000], dtype=torch.float64)

    """

    parts = "segments"

    def __init__(self, weights: Tensor | Sequence[float] | None = None) -> None:
        self.weights = None if weights is None else torch.as_tensor(weights).detach().double()
        if self.weights is None:
            return
        if self.weights.dim() != 1 or not len(self.weights):
            raise ShapeError(f"weights must have shape [K], got {list(self.weights.shape)}")
        if not bool(self.weights.isfinite().all()):
            raise RewardError(f"weights must be finite, got {self.weights.tolist()}")

    @property
    def signature(self) -> str:
        if self.weights is None:
            return "segment-accuracy"
        digest = hashlib.sha256(self.weights.cpu().numpy().tobytes()).hexdigest()[:8]
        return f"segment-accuracy:{len(self.weights)}:{digest}"

    @property
    def bound(self) -> float:
        if self.weights is None:
            return 1.0
        return float(self.weights.clamp(min=0.0).max() - self.weights.clamp(max=0.0).min())

    def on_parts(self, reference: Tensor) -> Tensor:
        if self.weights is None:
            return reference
        if reference.shape[-1] != len(self.weights):
            raise ShapeError(
                f"the weights are for {len(self.weights)} labels, the output space has "
                f"{reference.shape[-1]}"
            )
        return reference * self.weights.to(reference)

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        width = min(candidates.tokens.shape[2], references.tokens.shape[2])
        shared = torch.minimum(candidates.lengths.unsqueeze(2), references.lengths.unsqueeze(1))
        real = torch.arange(width, device=shared.device) < shared.unsqueeze(3)  # [B, S, R, width]
        found = candidates.tokens[..., :width].unsqueeze(2)
        right = references.tokens[..., :width].unsqueeze(1)
        hits = (real & (found == right) & (right > 0)).double()
        if self.weights is not None:
            hits = hits * self.weights.to(right.device)[right % len(self.weights)]
        return hits.sum(-1).masked_fill(~both_present(candidates, references), 0.0)

    def __repr__(self) -> str:
        return f"SegmentAccuracy({'' if self.weights is None else self.weights.tolist()})"
