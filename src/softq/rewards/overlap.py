"""Rewards from what candidate and reference have in common: ROUGE-L, chrF, and edit distance."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from softq.errors import RewardError
from softq.kernels.edits import common_subsequence, edit_distance
from softq.kernels.jit import as_array
from softq.kernels.overlap import ngram_matches
from softq.rewards.base import Reward, as_float
from softq.sentences import Sentences, check_tokens


class NegativeEditDistance(Reward):
    """Minus the Levenshtein distance: insertions, deletions and substitutions at one each (Norouzi et al. 2016).

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3], [1, 3]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3, 4]]])
    >>> NegativeEditDistance()(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([-1., -2.], dtype=torch.float64)
    """

    @property
    def signature(self) -> str:
        return "negative-edit-distance"

    @property
    def bound(self) -> float:
        return math.inf

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        return 0.0 - as_float(edit_distance(*candidates, *references))


class RougeL(Reward):
    """ROUGE-L: F-measure of the longest common subsequence, in 0..1, as rouge-score computes it on given tokens (no stemming).

    Args:
        beta: weight of recall against precision; 1 in rouge-score, 1.2 in the tools of image captioning.

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3, 4], [1, 4]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3, 4]]])
    >>> RougeL()(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([1.0000, 0.6667], dtype=torch.float64)

    """

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = _check_beta(beta)

    @property
    def signature(self) -> str:
        return f"rouge-l:beta={self.beta}"

    @property
    def bound(self) -> float:
        return 1.0

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        common = as_float(common_subsequence(*candidates, *references))
        precision = common / candidates.lengths.clamp(min=1).unsqueeze(2)
        recall = common / references.lengths.clamp(min=1).unsqueeze(1)
        return _f_measure(precision, recall, self.beta)


class ChrF(Reward):
    """chrF: F-measure of character n-grams, in 0..1 (sacreBLEU gives it in 0..100).

    Precision and recall are means over the orders of which both sides have n-grams (sacreBLEU's effective order).

    Args:
        vocab: the text of each token number. Candidate and reference are put together from it, without white space,
            as chrF wants it. If not given, each token is taken for one character.
        order: longest character n-grams.
        beta: weight of recall against precision.

    >>> reward = ChrF(["the", "cat", "cats", "sat"])
    >>> candidates, lengths = Sentences.pack([[[0, 1, 3], [0, 2, 3]]])
    >>> refs, ref_lengths = Sentences.pack([[[0, 1, 3]]])
    >>> reward(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([1.0000, 0.7478], dtype=torch.float64)

    """

    def __init__(self, vocab: Sequence[str] | None = None, *, order: int = 6, beta: float = 2.0) -> None:
        if isinstance(order, bool) or not isinstance(order, int) or order < 1:
            raise RewardError(f"order must be a whole number from 1, got {order!r}")
        self.order = order
        self.beta = _check_beta(beta)
        self.vocab_size = None if vocab is None else len(vocab)
        pieces = ["".join(piece.split()) for piece in vocab or []]
        self._offsets = np.cumsum([0, *map(len, pieces)])
        self._characters = np.array([ord(c) for piece in pieces for c in piece], dtype=np.int64)
        self._digest = hashlib.sha256("\0".join(pieces).encode()).hexdigest()[:8]

    @property
    def signature(self) -> str:
        text = "tokens" if self.vocab_size is None else f"vocab:{self.vocab_size}:{self._digest}"
        return f"chrf:order={self.order}:beta={self.beta}:{text}"

    @property
    def bound(self) -> float:
        return 1.0

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        if self.vocab_size is not None:
            candidates, references = self._spell("candidates", candidates), self._spell("references", references)
        matches = as_float(ngram_matches(*candidates, *references, self.order, union=False))
        order = torch.arange(self.order, device=matches.device)
        have = (candidates.lengths.unsqueeze(2) - order).clamp(min=0).unsqueeze(2)  # n-grams of each order: [B, S, 1, N]
        want = (references.lengths.unsqueeze(2) - order).clamp(min=0).unsqueeze(1)  # [B, 1, R, N]
        both = (have > 0) & (want > 0)
        orders = both.sum(-1).clamp(min=1)
        precision = (matches / have.clamp(min=1)).sum(-1) / orders
        recall = (matches / want.clamp(min=1)).sum(-1) / orders
        return _f_measure(precision, recall, self.beta)

    def _spell(self, name: str, sentences: Sentences) -> Sentences:
        """The same sentences as character codes."""
        check_tokens(name, sentences, self.vocab_size)
        tokens, lengths = as_array(sentences.tokens), as_array(sentences.lengths)
        sizes = np.diff(self._offsets)
        real = np.arange(tokens.shape[-1]) < lengths[..., None]
        words = tokens[real]  # all sentences end to end
        widths = np.where(real, sizes[np.where(real, tokens, 0)] if len(sizes) else 0, 0).sum(-1)
        counts = sizes[words]
        starts = np.repeat(self._offsets[words] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        text = self._characters[np.arange(len(starts)) + starts]
        out = np.zeros((*tokens.shape[:-1], int(widths.max(initial=0))), dtype=np.int64)
        out[np.arange(out.shape[-1]) < widths[..., None]] = text
        device = sentences.tokens.device
        kept = np.where(lengths < 0, lengths, widths)
        return Sentences(torch.from_numpy(out).to(device), torch.from_numpy(kept).to(device))


def _f_measure(precision: Tensor, recall: Tensor, beta: float) -> Tensor:
    """(1 + β²) P R / (β² P + R), and 0 where both are 0."""
    bottom = beta**2 * precision + recall
    return ((1.0 + beta**2) * precision * recall / bottom).masked_fill(bottom == 0, 0.0)


def _check_beta(beta: float) -> float:
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not 0.0 < beta < math.inf:
        raise RewardError(f"beta must be a positive number, got {beta!r}")
    return float(beta)
