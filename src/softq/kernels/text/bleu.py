"""Sentence BLEU from clipped n-gram matches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from softq.kernels.jit import jit
from softq.kernels.semiring import fast_exp
from softq.kernels.text.words import Array

# Rules for orders without matches; see SentenceBLEU.
SMOOTHING = {"none": 0, "nltk3": 1, "mteval": 2, "sacrebleu": 3}
_NONE, _NLTK3, _MTEVAL = 0, 1, 2


class Formula(NamedTuple):
    """How BLEU follows from matches and lengths."""

    rule: int
    brevity: bool
    effective: bool  # take the mean over orders of which the candidate has n-grams
    logs: Array  # logarithms of 0..longest candidate; 0 for 0


@jit
def bleu_of_counts(counts: Any, lengths: Any, ref_lengths: Any, formula: Any, out: Any) -> None:
    """Fill ``out [N]`` with BLEU from the clipped matches ``counts [N, order]``; 0 if missing."""
    rule, brevity, effective, logs = formula
    order = counts.shape[1]
    for i in range(len(out)):
        out[i] = -np.inf
        length, ref_length = np.int64(lengths[i]), ref_lengths[i]
        if length <= 0 or ref_length < 0:
            continue
        penalty = 1.0 - ref_length / length if brevity and length < ref_length else 0.0
        if order == 4 and counts[i, 3] > 0:  # so are the others: every rule is the plain formula
            total = (
                logs[counts[i, 0]] + logs[counts[i, 1]] + logs[counts[i, 2]] + logs[counts[i, 3]]
            )
            total -= logs[length] + logs[length - 1] + logs[length - 2] + logs[length - 3]
            out[i] = min(0.25 * total + penalty, 0.0)
            continue
        present = min(order, length)  # orders of which the candidate has any n-gram
        incomplete = present < order and not effective
        if rule != _MTEVAL and (counts[i, 0] == 0 or (incomplete and rule != _NLTK3)):
            continue
        total, halvings = 0.0, 0
        # By NLTK's rule an order without n-grams is one n-gram that fails, by mteval's nothing.
        for n in range(order if incomplete and rule == _NLTK3 else present):
            step = logs[counts[i, n]] - logs[max(length - n, 0)]
            if counts[i, n] == 0:
                halvings += 1
                step -= halvings * 0.6931471805599453 if rule != _NONE else np.inf
            total += step
        out[i] = min(total / (present if effective else order) + penalty, 0.0)
    for i in range(len(out)):  # apart, so that it vectorises
        out[i] = fast_exp(out[i])
