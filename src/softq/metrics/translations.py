"""Scores of translations.

Corpus BLEU as multi-bleu.perl counts it, sentence BLEU, the average reward, whole sentences;
sacreBLEU's.

Every score but sacreBLEU's is a function of sums over sentences, so one row of statistics per
sentence is all that is kept, and `softq.metrics.paired_bootstrap` takes the rows with any of the
metrics here. Scores are in 0..1; a ratio of nothing to nothing is 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from softq.errors import DependencyError, ShapeError
from softq.formats.vocabulary import UNKNOWN_WORD
from softq.metrics.counts import Metric, Ratio, check_pairs
from softq.rewards import MultiReferenceBLEU, SentenceBLEU
from softq.sentences import Sentences

ORDERS = 4
"""The longest n-grams of every BLEU here."""

TRANSLATION_STATISTICS = (
    *(f"match_{order}" for order in range(1, ORDERS + 1)),
    *(f"total_{order}" for order in range(1, ORDERS + 1)),
    "length",
    "reference_length",
    "sentence_bleu",
    "reward",
    "exact",
    "sentences",
)
_AT = {name: column for column, name in enumerate(TRANSLATION_STATISTICS)}
_CHUNK = 256  # sentences at a time: a long one among them pads the others

Words = Sequence[str]


def translation_statistics(
    hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]
) -> Tensor:
    """A row for each of N hypotheses with its references, ``[N, 14]``, float64, columns as in `TRANSLATION_STATISTICS`.

    Matches are clipped by the most often that any one reference has an n-gram, and the reference length is the closest one (the
    shorter of two), as in multi-bleu.perl. ``sentence_bleu`` is `softq.rewards.MultiReferenceBLEU`, and ``reward`` the mean over
    references of `softq.rewards.SentenceBLEU`, which is what SQDML is trained for; with one reference they are the same. ``exact``
    is 1 if the hypothesis is one of its references.

    Args:
        hypotheses: words of each; "<unk>" among them stands for none in particular and is never right, whatever a reference has.
        references: of each hypothesis one or more.

    >>> rows = translation_statistics([["a", "b", "c", "d"]], [[["a", "b", "x", "d"], ["b", "c", "d"]]])
    >>> row = dict(zip(TRANSLATION_STATISTICS, rows[0].tolist()))
    >>> row["match_2"], row["total_2"], row["reference_length"]
    (3.0, 3.0, 4.0)

    """
    return in_chunks(_statistics, hypotheses, references, len(TRANSLATION_STATISTICS))


def in_chunks(
    count: Callable[[Sequence[Words], Sequence[Sequence[Words]]], Tensor],
    hypotheses: Sequence[Words],
    references: Sequence[Sequence[Words]],
    width: int,
) -> Tensor:
    """Statistics ``[N, width]`` that ``count`` computes of a few hypotheses with their references at a time."""
    _check(hypotheses, references)
    parts = [
        count(hypotheses[first : first + _CHUNK], references[first : first + _CHUNK])
        for first in range(0, len(hypotheses), _CHUNK)
    ]
    return torch.cat([torch.zeros(0, width, dtype=torch.float64), *parts])


def _check(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> None:
    check_pairs(references, hypotheses, "a hypothesis")
    for number, several in enumerate(references):
        if not several:
            raise ShapeError(
                f"expected at least one reference for each hypothesis, got none for number {number}"
            )


def word_ids(
    hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]
) -> tuple[list[list[int]], list[list[list[int]]]]:
    """The same words as ids, equal for equal words.

    0 is "<unk>" in a hypothesis, which no reference has.

    >>> word_ids([["a", "<unk>"]], [[["b", "a"], ["<unk>"]]])
    ([[2, 0]], [[[1, 2], [3]]])
    """
    ids: dict[str, int] = {}
    truths = [
        [[ids.setdefault(word, len(ids) + 1) for word in words] for words in several]
        for several in references
    ]
    guesses = [
        [0 if word == UNKNOWN_WORD else ids.setdefault(word, len(ids) + 1) for word in words]
        for words in hypotheses
    ]
    return guesses, truths


def _statistics(hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]) -> Tensor:
    guessed, true = word_ids(hypotheses, references)
    guesses, refs = Sentences.pack([[words] for words in guessed]), Sentences.pack(true)
    together = MultiReferenceBLEU(ORDERS)
    counts = together.statistics(*guesses, *refs)
    matches, lengths, closest = (part[:, 0, 0].double() for part in counts)  # [B, 4], [B], [B]
    totals = (lengths[:, None] - torch.arange(ORDERS)).clamp_min(0)
    rewards = SentenceBLEU(ORDERS)(*guesses, *refs)[:, 0].masked_fill(~refs.present, 0)
    exact = [
        any(list(words) == list(sentence) for sentence in several) and UNKNOWN_WORD not in words
        for words, several in zip(hypotheses, references, strict=True)
    ]
    columns = (
        lengths,
        closest,
        together.from_statistics(counts)[:, 0, 0],
        rewards.sum(1) / refs.present.sum(1),
        torch.tensor(exact, dtype=torch.float64),
        torch.ones_like(lengths),
    )
    return torch.cat([matches, totals, torch.stack(columns, 1)], 1)


def reference_rewards(
    hypotheses: Sequence[Words], references: Sequence[Sequence[Words]]
) -> list[list[float]]:
    """Sentence BLEU of each hypothesis against each of its references alone.

    >>> reference_rewards([["a", "cat", "sits"]], [[["a", "cat", "sits"], ["no", "dog"]]])[0][1]
    0.0
    """
    pairs = [
        (words, one)
        for words, several in zip(hypotheses, references, strict=True)
        for one in several
    ]
    rewards = translation_statistics([words for words, _ in pairs], [[one] for _, one in pairs])[
        :, _AT["reward"]
    ].tolist()
    ends = list(itertools.accumulate((len(several) for several in references), initial=0))
    return [rewards[begin:end] for begin, end in itertools.pairwise(ends)]


# --- metrics ------------------------------------------------------------------------------------


def corpus_bleu(sums: Tensor) -> Tensor:
    """BLEU of the whole corpus without smoothing, as by multi-bleu.perl, from sums of rows ``[..., 14]``.

    exp( mean over n = 1..4 of log p_n ) times exp(min(0, 1 - R/C)): p_n is the share of all hypotheses' n-grams that match, C and R are
    the lengths of hypotheses and closest references. 0 if an order has no match.
    """
    matches, totals = sums[..., :ORDERS], sums[..., ORDERS : 2 * ORDERS]
    precisions = (matches / totals.clamp_min(1)).log().mean(-1)  # log 0 = -inf, and exp(-inf) = 0
    length, reference = sums[..., _AT["length"]], sums[..., _AT["reference_length"]]
    brevity = (1 - reference / length.clamp_min(1)).clamp_max(0)
    return (precisions + brevity).exp()


sentence_bleu = Ratio(TRANSLATION_STATISTICS, "sentence_bleu", "sentences")
"""Mean over sentences of BLEU against all references together."""
average_reward = Ratio(TRANSLATION_STATISTICS, "reward", "sentences")
"""Mean over sentences, and over the references of each, of sentence BLEU against one."""
translation_match = Ratio(TRANSLATION_STATISTICS, "exact", "sentences")
"""Share of sentences that are one of their references."""
length_ratio = Ratio(TRANSLATION_STATISTICS, "length", "reference_length")
"""Words of hypotheses for each word of the closest references."""

TRANSLATION_METRICS: dict[str, Metric] = {
    "sentence_bleu": sentence_bleu,
    "corpus_bleu": corpus_bleu,
    "average_reward": average_reward,
    "exact_match": translation_match,
    "length_ratio": length_ratio,
}
"""All of them, by the names that runs and reports have for them."""


# --- sacreBLEU ------------------------------------------------------------------------------------------


class SacreBLEU(NamedTuple):
    """BLEU in 0..100 by sacreBLEU, and the signature that says how it was counted."""

    score: float
    signature: str


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> SacreBLEU:
    """Corpus BLEU by sacreBLEU with its own tokenisation (13a).

    Comparable across papers, whatever words a model works with.

    Args:
        hypotheses: detokenised text of each.
        references: of each hypothesis one or more, detokenised; hypotheses may differ in how many.

    Raises DependencyError without sacreBLEU.

    >>> found = sacre_bleu(["The cat is here."], [["The cat is here.", "A cat is here."]])
    >>> print(f"{found.score:.1f} {found.signature.split('|version')[0]}")
    100.0 nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp

    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise DependencyError(
            "this score needs sacreBLEU, which is not installed: pip install 'softq[translation]'"
        ) from error
    _check(hypotheses, references)
    if not hypotheses:
        raise ShapeError("expected at least one hypothesis, got none")
    metric = BLEU()
    score = metric.corpus_score(
        list(hypotheses), [list(stream) for stream in itertools.zip_longest(*references)]
    )
    return SacreBLEU(score.score, str(metric.get_signature()))
