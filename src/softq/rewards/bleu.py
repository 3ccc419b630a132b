"""BLEU of single sentences: the reward of the paper's captioning and translation experiments (§4.1.2, Appendix C and D.2.4)."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from softq.errors import RewardError, ShapeError
from softq.kernels.jit import as_array
from softq.kernels.overlap import bleu_from_matches, ngram_matches, sentence_bleu
from softq.rewards.base import Reward, check_pair
from softq.sentences import MISSING, Sentences

Smoothing = Literal["nltk3", "mteval", "sacrebleu", "none"]


class BLEUStatistics(NamedTuple):
    """All that BLEU asks of a candidate and a reference."""

    matches: Tensor
    """Clipped n-gram matches of orders 1..max_order, int32 ``[B, S, R, max_order]``."""
    lengths: Tensor
    """Candidate lengths l_1; the number of n-grams is max(0, l_1 - n + 1). ``[B, S, R]``."""
    ref_lengths: Tensor
    """Reference lengths, ``[B, S, R]``."""


class _BLEU(Reward):
    """Options and formula common to BLEU against one reference and against several."""

    _name: str

    def __init__(
        self, max_order: int = 4, smoothing: Smoothing = "nltk3", *, brevity_penalty: bool = True, effective_order: bool = False
    ) -> None:
        if isinstance(max_order, bool) or not isinstance(max_order, int) or max_order < 1:
            raise RewardError(f"max_order must be a whole number from 1, got {max_order!r}")
        if smoothing not in get_args(Smoothing):
            raise RewardError(f"smoothing must be one of {', '.join(get_args(Smoothing))}, got {smoothing!r}")
        self.max_order = max_order
        self.smoothing = smoothing
        self.brevity_penalty = brevity_penalty
        self.effective_order = effective_order

    @property
    def signature(self) -> str:
        switches = f"bp={'on' if self.brevity_penalty else 'off'}:effective-order={'on' if self.effective_order else 'off'}"
        return f"{self._name}:order={self.max_order}:smoothing={self.smoothing}:{switches}"

    @property
    def bound(self) -> float:
        return 1.0

    def from_statistics(self, statistics: BLEUStatistics) -> Tensor:
        """BLEU from its sufficient statistics, float64 ``[B, S, R]``."""
        if statistics.matches.shape != (*statistics.lengths.shape, self.max_order):
            expected = [*statistics.lengths.shape, self.max_order]
            raise ShapeError(f"matches of orders 1..{self.max_order} must have shape {expected}, got {list(statistics.matches.shape)}")
        matches, lengths, ref_lengths = (as_array(part) for part in statistics)
        flat = matches.reshape(-1, self.max_order), lengths.reshape(-1), ref_lengths.reshape(-1)
        values = bleu_from_matches(*flat, self.smoothing, self.brevity_penalty, self.effective_order)
        return torch.from_numpy(values).reshape(statistics.lengths.shape).to(statistics.matches.device)


class SentenceBLEU(_BLEU):
    """BLEU of each candidate against each reference on its own, in 0..1.

    exp( mean over n of log p_n ) times the brevity penalty exp(min(0, 1 - |y*|/|y|)), where p_n is the share of the candidate's
    n-grams that are in the reference, none counted more often than it is there. SQDML takes the mean of these values over
    references (the paper's footnote in §4.1.2); `MultiReferenceBLEU` is another thing.

    An order without a match would make it 0. What happens instead goes by name; the rules agree on long
    sentences and differ at the edges. In all of them the k-th order without a match counts as p_n = 1/(2^k l_n), l_n the number of n-grams:

    - ``"nltk3"``: NLTK's ``method3``, "NIST geometric smoothing", the rule of the paper. 0 if no word matches; an order of which the
      candidate has no n-gram counts as one n-gram that fails (a perfect sentence of three words gets 0.841).
    - ``"mteval"``: mteval-v13a. Smooths also when no word matches; an order without n-grams counts as p_n = 1.
    - ``"sacrebleu"``: sacreBLEU's ``exp``. 0 if no word matches or if there is no n-gram of some order.
    - ``"none"``: no smoothing: 0 if any order has no match.

    An empty candidate earns 0 under each rule.

    Args:
        max_order: longest n-grams.
        smoothing: the rule for orders without a match.
        brevity_penalty: whether short candidates lose.
        effective_order: take the mean over the orders of which the candidate has n-grams, so that a perfect short sentence gets 1.

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3, 4, 5], [1, 2, 9, 4, 5]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3, 4, 5]]])
    >>> SentenceBLEU()(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([1.0000, 0.3021], dtype=torch.float64)

    """

    _name = "sentence-bleu"

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        pair = *candidates, *references
        return sentence_bleu(*pair, self.max_order, self.smoothing, self.brevity_penalty, self.effective_order)

    def statistics(self, candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor) -> BLEUStatistics:
        """Sufficient statistics of each candidate with each reference; arguments as for calling the reward."""
        cands, refs = check_pair(candidates, lengths, references, ref_lengths)
        matches = ngram_matches(*cands, *refs, self.max_order, union=False)
        shape = matches.shape[:3]
        return BLEUStatistics(matches, cands.lengths.unsqueeze(2).expand(shape), refs.lengths.unsqueeze(1).expand(shape))


class MultiReferenceBLEU(_BLEU):
    """BLEU of each candidate against all references of its example together, in 0..1: one value per candidate, ``[B, S, 1]``.

    An n-gram counts up to the most often that any one reference has it, and the brevity penalty takes the reference
    length closest to the candidate's (the shorter of two), as in corpus BLEU with several references. There is no value for a single
    reference, so it serves SQDML but not RAML. Options as for `SentenceBLEU`.

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3, 4, 5]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3, 4, 9], [8, 2, 3, 4, 5]]])
    >>> SentenceBLEU()(candidates, lengths, refs, ref_lengths).squeeze(), MultiReferenceBLEU()(candidates, lengths, refs, ref_lengths)
    (tensor([0.6687, 0.6687], dtype=torch.float64), tensor([[[1.]]], dtype=torch.float64))
    """

    _name = "multi-reference-bleu"
    pairwise = False

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        return self.from_statistics(self.statistics(*candidates, *references))

    def statistics(self, candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor) -> BLEUStatistics:
        """Sufficient statistics with all references together; arguments as for calling the reward."""
        cands, refs = check_pair(candidates, lengths, references, ref_lengths)
        if not refs.tokens.shape[1]:  # no reference is one that is missing
            refs = Sentences(refs.tokens.new_zeros(len(refs.tokens), 1, 0), refs.lengths.new_full((len(refs.tokens), 1), MISSING))
        matches = ngram_matches(*cands, *refs, self.max_order, union=True)
        # Distance first, then length: one number that sorts as the pair does.
        rank = (refs.lengths.unsqueeze(1) - cands.lengths.unsqueeze(2)).abs() * (refs.tokens.shape[2] + 1) + refs.lengths.unsqueeze(1)
        closest = rank.masked_fill(~refs.present.unsqueeze(1), torch.iinfo(torch.int64).max).argmin(2)
        return BLEUStatistics(matches, cands.lengths.unsqueeze(2), refs.lengths.gather(1, closest).unsqueeze(2))
