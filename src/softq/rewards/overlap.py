"""Rewards from what candidate and reference have in common: ROUGE-L, chrF, and edit distance."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from softq.checks import check_count
from softq.errors import RewardError
from softq.kernels.jit import as_array
from softq.kernels.text.pairs import common_subsequence, edit_distance, ngram_matches
from softq.rewards.base import Reward
from softq.sentences import Sentences, check_tokens


class NegativeEditDistance(Reward):
    """Minus the Levenshtein distance: insertions, deletions and substitutions at one each.

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3], [1, 3]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3, 4]]])
    >>> NegativeEditDistance()(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([-1., -2.], dtype=torch.float64)
    """

    signature = "negative-edit-distance"
    bound = math.inf

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        return 0.0 - edit_distance(*candidates, *references).double()


class RougeL(Reward):
    """ROUGE-L: F-measure of the longest common subsequence, in 0..1.

    As rouge-score computes it on given tokens, without stemming.

    Args:
        beta: weight of recall against precision; 1 in rouge-score, 1.2 in the tools of image
            captioning.

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3, 4], [1, 4]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3, 4]]])
    >>> RougeL()(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([1.0000, 0.6667], dtype=torch.float64)

    """

    bound = 1.0

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = _check_beta(beta)

    @property
    def signature(self) -> str:
        return f"rouge-l:beta={self.beta}"

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        common = common_subsequence(*candidates, *references).double()
        precision = common / candidates.lengths.clamp(min=1).unsqueeze(2)
        recall = common / references.lengths.clamp(min=1).unsqueeze(1)
        return _f_measure(precision, recall, self.beta)


class ChrF(Reward):
    """chrF: F-measure of character n-grams, in 0..1 (sacreBLEU gives it in 0..100).

    Precision and recall are means over the orders of which both sides have n-grams (sacreBLEU's
    effective order).

    Args:
        vocab: the text of each token number. Candidate and reference are put together from it,
            without white space, as chrF wants it. If not given, each token is taken for one
            character.
        order: longest character n-grams.
        beta: weight of recall against precision.

    >>> reward = ChrF(["the", "cat", "cats", "sat"])
    >>> candidates, lengths = Sentences.pack([[[0, 1, 3], [0, 2, 3]]])
    >>> refs, ref_lengths = Sentences.pack([[[0, 1, 3]]])
    >>> reward(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([1.0000, 0.7478], dtype=torch.float64)

    """

    bound = 1.0

    def __init__(
        self, vocab: Sequence[str] | None = None, *, order: int = 6, beta: float = 2.0
    ) -> None:
        self.order = check_count("order", order, RewardError)
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

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        if self.vocab_size is not None:
            candidates = self._spell("candidates", candidates)
            references = self._spell("references", references)
        matches = ngram_matches(*candidates, *references, self.order, union=False).double()
        order = torch.arange(self.order, device=matches.device)
        # The number of n-grams of each order.
        have = (candidates.lengths.unsqueeze(2) - order).clamp(min=0).unsqueeze(2)  # [B, S, 1, N]
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
        real = np.arange(tokens.shape[-1]) < lengths[..., None]
        words = tokens[real]  # all sentences end to end
        sizes = np.diff(self._offsets)[words]
        ends = np.concatenate([[0], np.cumsum(sizes)])  # of the characters of each word
        starts = np.repeat(self._offsets[words] - ends[:-1], sizes)
        text = self._characters[np.arange(len(starts)) + starts]
        # Up to the end of each sentence, less up to the end of the one before.
        widths = np.diff(ends[real.sum(-1).cumsum()], prepend=0).reshape(lengths.shape)
        out = np.zeros((*lengths.shape, int(widths.max(initial=0))), dtype=np.int64)
        out[np.arange(out.shape[-1]) < widths[..., None]] = text
        made = torch.from_numpy(out), torch.from_numpy(np.where(lengths < 0, lengths, widths))
        return Sentences(*(part.to(sentences.tokens.device) for part in made))


def _f_measure(precision: Tensor, recall: Tensor, beta: float) -> Tensor:
    """(1 + β²) P R / (β² P + R), and 0 where both are 0."""
    bottom = beta**2 * precision + recall
    return ((1.0 + beta**2) * precision * recall / bottom).masked_fill(bottom == 0, 0.0)


def _check_beta(beta: float) -> float:
    if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not 0.0 < beta < math.inf:
        raise RewardError(f"beta must be a positive number, got {beta!r}")
    return float(beta)
