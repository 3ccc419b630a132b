"""Tagging text with a trained `TokenClassificationModel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from softq.formats.tags import spans
from softq.integrations.transformers.token_classification.model import (
    TokenClassificationModel,
    TokenClassificationOutput,
)
from softq.integrations.transformers.words.prediction import Offsets, WordPredictor
from softq.spaces import Chain, Distribution


class Entity(NamedTuple):
    """An entity of a sentence.

    Attributes:
        kind: its type, such as ``PER``.
        start: its first word.
        end: the word after its last.
        text: its words, or the characters of the text from the first to the last.
        confidence: the probability that all its words have the labels that were predicted.

    """

    kind: str
    start: int
    end: int
    text: str
    confidence: float


class TaggedSentence(NamedTuple):
    """A sentence with its predicted labels.

    Attributes:
        words: what was tagged.
        offsets: first character of each word in its text, and the one after its last; None where
            words were given.
        labels: of the words.
        confidences: the probability of each of these labels.
        entities: from left to right; none where labels are no tags of entities.

    """

    words: list[str]
    offsets: list[tuple[int, int]] | None
    labels: list[str]
    confidences: list[float]
    entities: list[Entity]


class WordTagger(WordPredictor):
    """Tags texts, or lists of words.

    Args:
        model: trained, with PEFT adapters or without.
        tokenizer: a fast one.
        settings: ``batch_size``, ``max_length`` and ``stride``, see `WordPredictor`.

    Running text is cut into words by `softq.formats.words.split_words`; a text is one sentence,
    however long.

    """

    model_type = TokenClassificationModel

    def predict(self, sentences: Sequence[str | Sequence[str]]) -> list[TaggedSentence]:
        """Labels and entities of texts or lists of words, in their order."""
        return self.predictions(sentences)

    def of_batch(
        self, output: TokenClassificationOutput, sizes: Sequence[int], **options: Any
    ) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Label ids of each sentence, P(y_t), and P(y_t+1 | y_t)."""
        p = self.core.predicted(output.logits, output.lengths)
        best = p.mode()
        marginals = p.marginals.gather(-1, best.unsqueeze(-1)).squeeze(-1)
        steps = _neighbours(p, best) / marginals[:, :-1].clamp(min=torch.finfo(p.dtype).tiny)
        for row, size in enumerate(sizes):
            yield best[row, :size].tolist(), marginals[row, :size], steps[row, : max(size - 1, 0)]

    def of_sentence(
        self, words: list[str], text: str | None, offsets: Offsets, found: Any
    ) -> TaggedSentence:
        """Labels and entities, from what `of_batch` found."""
        ids, confidences, steps = found
        names, scheme = self.core.config.labels, self.core.config.scheme
        labels = [names[number] for number in ids]
        entities = []
        for kind, start, end in spans(labels, scheme) if scheme else ():
            # P(y_s … y_e) = P(y_s) Π P(y_t+1 | y_t)
            confidence = float(confidences[start] * steps[start : end - 1].prod())
            if offsets is None or text is None:
                shown = " ".join(words[start:end])
            else:
                shown = text[offsets[start][0] : offsets[end - 1][1]]
            entities.append(Entity(kind, start, end, shown, confidence))
        return TaggedSentence(words, offsets, labels, confidences.tolist(), entities)


def _neighbours(p: Distribution, best: Tensor) -> Tensor:
    """Probability of the pairs of neighbours in these labels, ``[B, n-1]``."""
    if isinstance(p, Chain):
        pairs = p.pair_marginals
        rows = pairs.gather(
            -2, best[:, :-1, None, None].expand(*pairs.shape[:2], 1, pairs.shape[3])
        )
        return rows.squeeze(-2).gather(-1, best[:, 1:].unsqueeze(-1)).squeeze(-1)
    each = p.marginals.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    return each[:, :-1] * each[:, 1:]
