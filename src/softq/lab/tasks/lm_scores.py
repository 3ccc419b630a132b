"""Scores of texts that a model of 🤗 Transformers writes.

The reward it was trained for, BLEU, chrF, and how long it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from softq.errors import DependencyError
from softq.formats.tokens import tokenize, without_marks
from softq.integrations.transformers.generation import (
    TextModel,
    Writing,
    corpus_score,
    mean_rewards,
)
from softq.integrations.transformers.rewards import with_sources
from softq.lab.tasks.lm_data import Rows
from softq.metrics import TRANSLATION_METRICS, TRANSLATION_STATISTICS, translation_statistics
from softq.rewards import Reward

_SENTENCES = TRANSLATION_STATISTICS.index("sentences")


def _mean_of(column: int) -> Callable[[Tensor], Tensor]:
    return lambda sums: sums[..., column] / sums[..., _SENTENCES].clamp_min(1)


LM_METRICS: dict[str, Callable[[Tensor], Tensor]] = {
    "reward": _mean_of(len(TRANSLATION_STATISTICS)),
    "chrf": _mean_of(len(TRANSLATION_STATISTICS) + 1),
    **{name: metric for name, metric in TRANSLATION_METRICS.items() if name != "average_reward"},
    "word_bleu": TRANSLATION_METRICS["average_reward"],
}
"""Functions of sums of `Scores.rows`.

``reward`` is the run's own, mean over references; ``chrf`` likewise that of sentences. The others
are those of `TRANSLATION_METRICS` on words, with ``word_bleu`` for what is called the average
reward there: sentence BLEU against one reference at a time.
"""


@dataclass(frozen=True)
class TextScores:
    """Scores of texts.

    Attributes:
        texts: what was written.
        rows: statistics of each, ``[N, 16]``, float64: those of
            `softq.metrics.translation_statistics`, reward, chrF.
        corpus: sacreBLEU's ``bleu`` and ``chrf`` in 0..100; empty where it is not installed.
        seconds: that it took to write all texts.
        compared: whether there are references; if not, only the reward is known.

    """

    texts: list[str]
    rows: Tensor
    corpus: dict[str, float]
    seconds: float
    compared: bool = True

    def as_dict(self) -> dict[str, float]:
        """All numbers: by the names of `LM_METRICS`, of sacreBLEU, and the seconds."""
        sums = self.rows.sum(0)
        return {
            **{
                name: float(metric(sums))
                for name, metric in LM_METRICS.items()
                if self.compared or name == "reward"
            },
            **{f"sacrebleu_{name}": value for name, value in self.corpus.items()},
            "seconds": self.seconds,
        }


def score(
    model: TextModel,
    rows: Rows,
    how: Writing,
    reward: str | Reward,
    judge: TextModel | None = None,
    tell: Callable[[int], None] | None = None,
) -> TextScores:
    """Let a model write for sources and judge the texts by references.

    Rewards on tokens are on those of ``judge``, if it is given: two models are compared in the
    tokens of one. Rows without references have a reward alone, which must need none.
    """
    began = time.perf_counter()
    texts = model.write([row["source"] for row in rows], how, tell)
    seconds = time.perf_counter() - began
    references = [row.get("references", []) for row in rows]
    own = _rewards(judge or model, texts, rows, reward)
    if not all(references):
        counts = torch.zeros(len(rows), len(TRANSLATION_STATISTICS) + 2, dtype=torch.float64)
        counts[:, _SENTENCES], counts[:, len(TRANSLATION_STATISTICS)] = 1.0, own
        return TextScores(texts, counts, {}, seconds, compared=False)
    words = translation_statistics(
        [_words(text) for text in texts],
        [[_words(text) for text in several] for several in references],
    )
    extra = [own, _rewards(judge or model, texts, rows, "chrf")]
    try:
        corpus = corpus_score("bleu", texts, references) | corpus_score("chrf", texts, references)
    except DependencyError:
        corpus = {}
    return TextScores(texts, torch.cat([words, torch.stack(extra, 1)], 1), corpus, seconds)


def _words(text: str) -> list[str]:
    return without_marks(tokenize(text))


def _rewards(judge: TextModel, texts: Sequence[str], rows: Rows, reward: str | Reward) -> Tensor:
    wanted = [[judge.token_ids(text) for text in row.get("references", ())] for row in rows]
    found = judge.reward(reward) if isinstance(reward, str) else reward
    found = with_sources(found, judge.source_ids([row["source"] for row in rows]))
    return mean_rewards([judge.token_ids(text) for text in texts], wanted, found)
