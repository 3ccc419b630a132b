"""BLEU of single sentences.

The reward of the paper's captions and translations (§4.1.2, C, D.2.4).
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from softq.checks import check_count
from softq.errors import RewardError, ShapeError
from softq.kernels.text.pairs import bleu_from_matches, ngram_matches, sentence_bleu
from softq.options import Smoothing as Smoothing
from softq.options import check_choice
from softq.rewards.base import Reward, check_pair
from softq.sentences import MISSING, Sentences


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

    _name: ClassVar[str]
    bound = 1.0

    def __init__(
        self,
        max_order: int = 4,
        smoothing: Smoothing = "nltk3",
        *,
        brevity_penalty: bool = True,
        effective_order: bool = False,
    ) -> None:
        check_choice("smoothing", smoothing, get_args(Smoothing), RewardError)
        self.max_order = check_count("max_order", max_order, RewardError)
        self.smoothing, self.effective_order = smoothing, effective_order
        self.brevity_penalty = brevity_penalty

    @property
    def signature(self) -> str:
        bp, effective = (
            "on" if switch else "off" for switch in (self.brevity_penalty, self.effective_order)
        )
        switches = f"bp={bp}:effective-order={effective}"
        return f"{self._name}:order={self.max_order}:smoothing={self.smoothing}:{switches}"

    def statistics(
        self, candidates: Tensor, lengths: Tensor, references: Tensor, ref_lengths: Tensor
    ) -> BLEUStatistics:
        """What the reward is computed from; arguments as for calling it.

        With each reference, or, if the reward is not ``pairwise``, with all of them together.
        """
        cands, refs = check_pair(candidates, lengths, references, ref_lengths)
        matches = ngram_matches(*cands, *refs, self.max_order, union=not self.pairwise)
        lengths, ref_lengths = cands.lengths.unsqueeze(2), refs.lengths.unsqueeze(1)
        if not self.pairwise:
            ref_lengths = pad(ref_lengths, (0, 1), value=MISSING)  # also where there is no other
            # Distance first, then length: one number that sorts as the pair does.
            rank = (ref_lengths - lengths).abs() * (refs.tokens.shape[2] + 1) + ref_lengths
            rank = rank.masked_fill(ref_lengths == MISSING, torch.iinfo(torch.int64).max)
            closest = rank.argmin(2, keepdim=True)
            ref_lengths = ref_lengths.expand(rank.shape).gather(2, closest)
        shape = matches.shape[:3]
        return BLEUStatistics(matches, lengths.expand(shape), ref_lengths.expand(shape))

    def from_statistics(self, statistics: BLEUStatistics) -> Tensor:
        """BLEU from its sufficient statistics, float64 ``[B, S, R]``."""
        if statistics.matches.shape != (*statistics.lengths.shape, self.max_order):
            expected = [*statistics.lengths.shape, self.max_order]
            raise ShapeError(
                f"matches of orders 1..{self.max_order} must have shape {expected}, "
                f"got {list(statistics.matches.shape)}"
            )
        return bleu_from_matches(
            *statistics, self.smoothing, self.brevity_penalty, self.effective_order
        )


class SentenceBLEU(_BLEU):
    """BLEU of each candidate against each reference on its own, in 0..1.

    exp( mean over n of log p_n ) times the brevity penalty exp(min(0, 1 - |y*|/|y|)), where p_n is
    the share of the candidate's n-grams that are in the reference, none counted more often than it
    is there. SQDML takes the mean of these values over references (the paper's footnote in §4.1.2);
    `MultiReferenceBLEU` is another thing.

    An order without a match would make it 0. What happens instead goes by name; the rules agree on
    long sentences and differ at the edges. In all of them the k-th order without a match counts as
    p_n = 1/(2^k l_n), l_n the number of n-grams:

    - ``"nltk3"``: NLTK's ``method3``, "NIST geometric smoothing", the rule of the paper. 0 if no
      word matches; an order of which the candidate has no n-gram counts as one n-gram that fails (a
      perfect sentence of three words gets 0.841).
    - ``"mteval"``: mteval-v13a. Smooths also when no word matches; an order without n-grams counts
      as p_n = 1.
    - ``"sacrebleu"``: sacreBLEU's ``exp``. 0 if no word matches or if there is no n-gram of some
      order.
    - ``"none"``: no smoothing: 0 if any order has no match.

    An empty candidate earns 0 under each rule.

    Args:
        max_order: longest n-grams.
        smoothing: the rule for orders without a match.
        brevity_penalty: whether short candidates lose.
        effective_order: take the mean over the orders of which the candidate has n-grams, so that a
            perfect short sentence gets 1.

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3, 4, 5], [1, 2, 9, 4, 5]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3, 4, 5]]])
    >>> SentenceBLEU()(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([1.0000, 0.3021], dtype=torch.float64)

    """

    _name = "sentence-bleu"

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        pair = *candidates, *references
        return sentence_bleu(
            *pair, self.max_order, self.smoothing, self.brevity_penalty, self.effective_order
        )


class MultiReferenceBLEU(_BLEU):
    """BLEU of each candidate against all references of its example together, in 0..1.

    There is one value per candidate, ``[B, S, 1]``.

    An n-gram counts up to the most often that any one reference has it, and the brevity penalty
    takes the reference length closest to the candidate's (the shorter of two), as in corpus BLEU
    with several references. There is no value for a single reference, so it serves SQDML but not
    RAML. Options as for `SentenceBLEU`.

    >>> candidates, lengths = Sentences.pack([[[1, 2, 3, 4, 5]]])
    >>> refs, ref_lengths = Sentences.pack([[[1, 2, 3, 4, 9], [8, 2, 3, 4, 5]]])
    >>> SentenceBLEU()(candidates, lengths, refs, ref_lengths).squeeze()
    tensor([0.6687, 0.6687], dtype=torch.float64)
    >>> MultiReferenceBLEU()(candidates, lengths, refs, ref_lengths)
    tensor([[[1.]]], dtype=torch.float64)
    """

    _name = "multi-reference-bleu"
    pairwise = False

    def score(self, candidates: Sentences, references: Sentences) -> Tensor:
        return self.from_statistics(self.statistics(*candidates, *references))
