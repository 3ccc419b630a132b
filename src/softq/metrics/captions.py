"""Scores of captions, of which each image has several references.

Average and maximum reward, BLEU, ROUGE-L, CIDEr-D; their agreement.

As with translations, one row of statistics per caption is all that is kept, and every score is a
function of sums of rows. Scores are in 0..1 but for CIDEr-D, which is in 0..10 as in the COCO
evaluation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.kernels.text.pairs import common_subsequence
from softq.metrics.counts import Metric, Ratio
from softq.metrics.translations import (
    ORDERS,
    TRANSLATION_STATISTICS,
    Words,
    average_reward,
    corpus_bleu,
    in_chunks,
    length_ratio,
    sentence_bleu,
    translation_match,
    translation_statistics,
    word_ids,
)
from softq.rewards import SentenceBLEU
from softq.sentences import Sentences

CAPTION_STATISTICS = (*TRANSLATION_STATISTICS, "max_reward", "rouge_l", "cider_d")
_CHUNK = 256  # images at a time: a long caption among them pads the others

_ROUGE_BETA = 1.2  # recall counts this many times as much as precision
_CIDER_SIGMA = 6.0  # words by which lengths may differ before it costs much
_CIDER_FACTOR = 10.0

Array = np.ndarray[Any, Any]
Numbers = list[int]


def caption_statistics(
    hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]
) -> Tensor:
    """A row for each of N captions with the references of its image, ``[N, 17]``, float64, columns as in `CAPTION_STATISTICS`.

    The first 14 columns are those of `softq.metrics.translation_statistics`, so metrics of translations take these rows, too.
    ``max_reward`` is the best `softq.rewards.SentenceBLEU` against one reference. ``rouge_l`` is the F-measure (β = 1.2) of the highest
    precision and the highest recall that the longest common subsequence with a reference has. ``cider_d`` is CIDEr-D (Vedantam, Zitnick
    and Parikh 2015; n = 1..4, σ = 6): n-grams are weighed by how few images have them in a reference, so **its value depends on all
    images that are given**. For scores of a part, choose from the rows of the whole. Both are as in the COCO evaluation.

    Args:
        hypotheses: words of each caption; "<unk>" among them stands for none in particular and is never right.
        references: words of one or more captions of each image.

    >>> references = [[["a", "red", "ball"], ["a", "ball"]], [["two", "dogs", "run"]]]
    >>> rows = caption_statistics([["a", "red", "ball"], ["dogs", "play"]], references)
    >>> max_reward(rows[:1].sum(0)), rouge_l(rows[:1].sum(0))  # short of 1, for it has no 4-gram
    (tensor(0.8409, dtype=torch.float64), tensor(1., dtype=torch.float64))

    """
    plain = translation_statistics(hypotheses, references)
    overlaps = in_chunks(_overlaps, hypotheses, references, 2)
    consensus = torch.from_numpy(_cider_d(*word_ids(hypotheses, references)))
    return torch.cat([plain, overlaps, consensus[:, None]], 1)


def _overlaps(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> Tensor:
    """Maximum reward and ROUGE-L of each, ``[B, 2]``."""
    guesses, truths = word_ids(hypotheses, references)
    refs, ours = Sentences.pack(truths), Sentences.pack([[words] for words in guesses])
    rewards = SentenceBLEU(ORDERS)(*ours, *refs)[:, 0].amax(1)  # 0 where a reference is missing
    common = common_subsequence(*ours, *refs)[:, 0].double()  # [B, R], likewise
    precision = common.amax(1) / ours.lengths[:, 0].clamp_min(1)
    recall = (common / refs.lengths.clamp_min(1)).amax(1)
    weight = _ROUGE_BETA**2
    f_measure = (1 + weight) * precision * recall / (recall + weight * precision)
    return torch.stack([rewards, f_measure.nan_to_num(0.0)], 1)  # 0/0 where nothing is common


def reference_agreement(references: Sequence[Sequence[Words]]) -> float:
    """How far the references of an image agree.

    The mean reward of one of them against another, in 0..1; the paper's 10.09 (§4.1.2).

    The reward is `softq.rewards.SentenceBLEU`, which is not symmetric: every ordered pair of an
    image's references counts. Images are averaged with equal weights, those with a single reference
    are left out; NaN where no image has several.

    >>> reference_agreement([[["a", "b", "c", "d"], ["a", "b", "c", "d"]], [["alone"]]])
    1.0

    """
    several = [own for own in references if len(own) > 1]
    total = 0.0
    for first in range(0, len(several), _CHUNK):
        refs = Sentences.pack(word_ids([], several[first : first + _CHUNK])[1])
        count = refs.present.sum(1)
        same = torch.eye(refs.lengths.shape[1], dtype=torch.bool)
        rewards = SentenceBLEU(ORDERS)(*refs, *refs).masked_fill(same, 0)  # 0 where one is missing
        total += float((rewards.sum((1, 2)) / (count * (count - 1))).sum())
    return total / len(several) if several else math.nan


# --- CIDEr-D --------------------------------------------------------------------------------------------


def _cider_d(guesses: Sequence[Numbers], truths: Sequence[Sequence[Numbers]]) -> Array:
    """CIDEr-D of each of N captions, ``[N]``.

    Σ_n 1/4 · 10/R Σ_r exp(-(|c| - |r|)²/2σ²) · min(g_n(c), g_n(r)) · g_n(r) / (‖g_n(c)‖ ‖g_n(r)‖)
    with references r = 1..R and n-grams g_n weighed by count and log(N / images that have the
    n-gram in a reference); one that no reference has counts as if one had it.
    """
    images = len(guesses)
    sentences = [*guesses, *itertools.chain.from_iterable(truths)]
    counts = np.array([len(several) for several in truths], dtype=np.int64)
    owner = np.concatenate(
        [np.arange(images), np.repeat(np.arange(images), counts)]
    )  # image of each sentence
    lengths = np.array([len(words) for words in sentences], dtype=np.int64)
    tokens = np.fromiter(itertools.chain.from_iterable(sentences), np.int64, int(lengths.sum()))
    within = np.repeat(np.arange(len(sentences)), lengths)  # sentence of each word
    gaps = lengths[owner] - lengths  # the first sentences are the captions of all images
    closeness = np.exp(-(gaps**2) / (2 * _CIDER_SIGMA**2))
    total = np.zeros(len(sentences))
    grams = np.zeros(len(tokens), dtype=np.int64)
    for order in range(1, ORDERS + 1):
        grams = _longer(grams[: max(len(tokens) - order + 1, 0)], tokens[order - 1 :])
        inside = within[: len(grams)] == within[order - 1 :]
        total += _cosines(grams[inside], within[: len(grams)][inside], owner, images)
    of_references = (total * closeness)[images:]
    return np.bincount(owner[images:], of_references, images) / counts * (_CIDER_FACTOR / ORDERS)


def _longer(grams: Array, following: Array) -> Array:
    """Numbers 0..G-1 of n-grams with one more word each; equal ones have equal numbers."""
    size = int(following.max(initial=0)) + 1
    return np.unique(grams * size + following, return_inverse=True)[1].astype(np.int64)


def _cosines(grams: Array, sentence: Array, owner: Array, images: int) -> Array:
    """Clipped cosine of every sentence with the caption of its image, from n-grams of one order and the sentences they stand in."""
    size = int(grams.max(initial=0)) + 1
    keys, times = np.unique(sentence * size + grams, return_counts=True)
    sentence, grams = keys // size, keys % size
    true = sentence >= images  # the captions to be judged come first
    documents = np.bincount(
        np.unique(owner[sentence[true]] * size + grams[true]) % size, minlength=size
    )
    weights = times * np.log(max(images, 1) / np.maximum(documents, 1))[grams]
    norms = np.sqrt(np.bincount(sentence, weights**2, len(owner)))
    caption, own = keys[~true], weights[~true]  # keys of captions are sorted, by image and n-gram
    wanted = owner[sentence] * size + grams
    place = np.minimum(np.searchsorted(caption, wanted), max(len(caption) - 1, 0))
    theirs = (
        np.where(caption[place] == wanted, own[place], 0.0)
        if len(caption)
        else np.zeros(len(wanted))
    )
    products = np.bincount(sentence, np.minimum(theirs, weights) * weights, len(owner))
    scale = norms * norms[owner]
    found: Array = np.divide(products, scale, out=np.zeros(len(owner)), where=scale > 0)
    return found


# --- metrics --------------------------------------------------------------------------------------------


max_reward = Ratio(CAPTION_STATISTICS, "max_reward", "sentences")
"""Mean over captions of the best sentence BLEU against one reference."""
rouge_l = Ratio(CAPTION_STATISTICS, "rouge_l", "sentences")
"""Mean over captions of ROUGE-L against all references."""
cider_d = Ratio(CAPTION_STATISTICS, "cider_d", "sentences")
"""Mean over captions of CIDEr-D, in 0..10."""

CAPTION_METRICS: dict[str, Metric] = {
    "average_reward": average_reward,
    "max_reward": max_reward,
    "corpus_bleu": corpus_bleu,
    "rouge_l": rouge_l,
    "cider_d": cider_d,
    "sentence_bleu": sentence_bleu,
    "exact_match": translation_match,
    "length_ratio": length_ratio,
}
"""All of them, by the names that runs and reports have for them."""
