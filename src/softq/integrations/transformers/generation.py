"""Texts that a model writes.

Samples to train on, its most probable text, and the choice of minimum Bayes risk.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softq.decode import mbr
from softq.errors import DependencyError, RewardError
from softq.integrations.transformers.arguments import CorpusMetric
from softq.integrations.transformers.candidates import TokenIds, strip_specials
from softq.neural.generation import evaluating
from softq.rewards import Reward
from softq.sentences import MISSING, Sentences
from softq.spaces import Candidates


class Text(NamedTuple):
    """A text that was written."""

    content: TokenIds
    """Without special tokens at its ends."""
    finished: bool
    """Whether the model ended it of its own accord.

    Not for want of room, nor at the last place, where some are made to.
    """


def texts_of(
    sequences: Tensor, first: int, most: int, specials: Collection[int], ends: Collection[int]
) -> list[Text]:
    """What was written from place ``first`` on, up to an end-of-text token, at most ``most`` tokens."""
    found = []
    for row in sequences[:, first:].tolist():
        stop = next((place for place, token in enumerate(row) if token in ends), len(row))
        found.append(Text(strip_specials(row[:stop], specials)[0], stop < min(len(row), most - 1)))
    return found


@dataclass(frozen=True)
class GenerationSettings:
    """How a `Writer` generates.

    Attributes:
        max_new_tokens: longest text.
        beams: of the search for the most probable text; 1: greedy.
        temperature: of samples.
        top_p: of samples: from the smallest set of tokens whose probability is at least this.
        mbr_samples: samples of which evaluation chooses the one of highest expected reward; 0:
            none.

    """

    max_new_tokens: int
    beams: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    mbr_samples: int = 0


class Writer:
    """Lets a model write, as its settings for training and evaluation say.

    Args:
        settings: how long, how many beams, how samples are drawn.
        causal: whether the model continues its input.
        specials: token ids that are no text.
        ends: those that end a text.
        pad: token id that fills rows up.

    """

    def __init__(
        self,
        settings: GenerationSettings,
        causal: bool,
        specials: Collection[int],
        ends: Collection[int],
        pad: int,
    ) -> None:
        self.settings, self.causal, self.specials, self.ends, self.pad = (
            settings,
            causal,
            specials,
            ends,
            pad,
        )

    def best(self, core: Any, inputs: Mapping[str, Any]) -> list[TokenIds]:
        """The most probable text for each input, as far as beam search finds it."""
        return [
            text.content
            for text in self._write(core, inputs, do_sample=False, num_beams=self.settings.beams)
        ]

    def samples(
        self, core: Any, inputs: Mapping[str, Any], size: int, *, finished: bool = False
    ) -> Candidates:
        """Texts ``[B, size]`` drawn from the model.

        An empty one is missing, and with ``finished`` one that was cut off.
        """
        drawn = {"do_sample": True, "num_beams": 1, "num_return_sequences": size, "top_k": 0}
        texts = self._write(
            core,
            inputs,
            **drawn,
            temperature=self.settings.temperature,
            top_p=self.settings.top_p,
        )
        packed = Sentences.pack(
            [[text.content for text in texts[i : i + size]] for i in range(0, len(texts), size)]
        )
        there = torch.tensor(
            [bool(text.content) and (text.finished or not finished) for text in texts]
        ).view(-1, size)
        return Candidates(packed.tokens, packed.lengths.masked_fill(~there, MISSING))

    def _write(self, core: Any, inputs: Mapping[str, Any], **how: Any) -> list[Text]:
        with evaluating(core):
            sequences = core.generate(
                **inputs, max_new_tokens=self.settings.max_new_tokens, pad_token_id=self.pad, **how
            )
        first = (
            inputs["input_ids"].shape[1] if self.causal else 1
        )  # an encoder-decoder's text begins with its start token
        return texts_of(sequences, first, self.settings.max_new_tokens, self.specials, self.ends)


class Written(NamedTuple):
    """What a model wrote for some rows in evaluation."""

    best: list[TokenIds]
    rewards: Tensor
    """Of the most probable texts, mean over references, float64 ``[B]``."""
    mbr_rewards: Tensor | None
    """Of the texts of minimum Bayes risk."""
    seconds: float
    """Of the search for the most probable texts."""
    mbr_seconds: float
    """Of that search, the draws and the choice among them; 0 without draws."""


def write_and_score(
    writer: Writer,
    core: Any,
    inputs: Mapping[str, Any],
    references: Sequence[Sequence[TokenIds]],
    reward: Reward,
) -> Written:
    """Most probable texts and, if they are asked for, texts of minimum Bayes risk, with their rewards; special tokens do not count."""
    contents = [[strip_specials(text, writer.specials)[0] for text in row] for row in references]
    start = time.perf_counter()
    best = writer.best(core, inputs)
    seconds = time.perf_counter() - start
    rewards = mean_rewards(best, contents, reward)
    size = writer.settings.mbr_samples
    if not size:
        return Written(best, rewards, None, seconds, 0.0)
    start = time.perf_counter()
    chosen = least_risk(writer, core, inputs, best, size, reward)
    mbr_seconds = (
        seconds + time.perf_counter() - start
    )  # the most probable text is among its choices
    return Written(best, rewards, mean_rewards(chosen, contents, reward), seconds, mbr_seconds)


def least_risk(
    writer: Writer,
    core: Any,
    inputs: Mapping[str, Any],
    best: Sequence[TokenIds],
    size: int,
    reward: Reward,
) -> list[TokenIds]:
    """Of ``size`` samples and the most probable text of each input, the one of the highest expected reward if any sample might be right."""
    if not reward.pairwise:
        raise RewardError(
            f"minimum Bayes risk needs a reward of two texts, and {reward!r} takes all references"
            " together: draw no samples"
        )
    drawn = writer.samples(core, inputs, size)
    # the most probable text stands in where nothing but empty texts was drawn
    choices = Candidates(*Sentences.pack([[text] for text in best])).beside(drawn)
    evidence = Candidates(
        drawn.tokens,
        torch.where(drawn.present.any(1, keepdim=True), drawn.lengths, drawn.lengths.clamp(min=0)),
    )
    return [list(text) for text in mbr(choices, reward, evidence=evidence).sentences.unpack()]


def mean_rewards(
    texts: Sequence[TokenIds], references: Sequence[Sequence[TokenIds]], reward: Reward
) -> Tensor:
    """Reward of each text, mean over its references, float64 ``[B]``."""
    refs = Sentences.pack([list(row) for row in references])
    values = reward(*Sentences.pack([[text] for text in texts]), *refs).squeeze(
        1
    )  # [B, R], or [B, 1] for all together
    if not reward.pairwise:
        return values.squeeze(1)
    return (values * refs.present).sum(1) / refs.present.sum(1)


def corpus_score(
    metric: CorpusMetric, texts: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """BLEU or chrF of all texts together, by sacreBLEU, in 0..100; nothing if none is asked for."""
    if metric == "none":
        return {}
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise DependencyError(
            "corpus metrics are sacreBLEU's: pip install 'softq[transformers]', or set"
            " corpus_metric none"
        ) from error
    widest = max(map(len, references))
    # one list for each place; a row with fewer references says its last again, which changes no
    # count
    streams = [[row[min(place, len(row) - 1)] for row in references] for place in range(widest)]
    scorer = BLEU() if metric == "bleu" else CHRF()
    return {metric: float(scorer.corpus_score(list(texts), streams).score)}
