"""Tagging text with a trained `TokenClassificationModel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from transformers import AutoTokenizer

from softq.checks import check_count
from softq.errors import DataError, ModelError
from softq.formats.tags import spans
from softq.formats.words import place_words, split_words
from softq.integrations.transformers.loading import loading, quiet
from softq.integrations.transformers.token_classification.model import TokenClassificationModel
from softq.integrations.transformers.token_classification.rows import TokenClassificationCollator
from softq.neural.generation import evaluating
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


class WordTagger:
    """Tags texts, or lists of words.

    Args:
        model: trained, with PEFT adapters or without.
        tokenizer: a fast one.
        batch_size: sentences at once.
        max_length: most subwords that are read at once; None: as many as the encoder can.
        stride: subwords that windows of a longer sentence share; None: a quarter.

    Running text is cut into words by `softq.formats.words.split_words`; a text is one sentence,
    however long.

    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        self.model, self.core = model, core_of(model)
        self.batch_size = check_count("batch_size", batch_size, DataError)
        self._collator = collator_for(self.core, tokenizer, max_length, stride)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **settings: Any) -> Self:
        """A model and its tokenizer, from a folder that `TokenClassificationTrainer` has saved."""
        with loading(str(folder)), quiet():
            model = TokenClassificationModel.from_pretrained(str(folder))
            tokenizer = AutoTokenizer.from_pretrained(str(folder))
        return cls(model, tokenizer, **settings)

    def predict(self, sentences: Sequence[str | Sequence[str]]) -> list[TaggedSentence]:
        """Labels and entities of texts or lists of words, in their order."""
        if isinstance(sentences, str):
            raise DataError("expected a list of texts or of lists of words, got one text")
        words = [split_words(one) if isinstance(one, str) else list(one) for one in sentences]
        found: list[TaggedSentence] = [TaggedSentence([], None, [], [], [])] * len(words)
        # sentences of like lengths, so that few are padded
        order = sorted(range(len(words)), key=lambda place: -len(words[place]))
        with evaluating(self.model):
            for start in range(0, len(order), self.batch_size):
                places = order[start : start + self.batch_size]
                tagged = self._batch([words[place] for place in places])
                for place, (labels, confidences, steps) in zip(places, tagged, strict=True):
                    found[place] = self._sentence(
                        sentences[place], words[place], labels, confidences, steps
                    )
        return found

    def _batch(self, words: Sequence[Sequence[str]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Label ids of each sentence, P(y_t), and P(y_t+1 | y_t)."""
        batch = self._collator([{"tokens": one} for one in words])
        device = self.core.device
        output = self.model(**{name: value.to(device) for name, value in batch.items()})
        p = self.core.predicted(output.logits, output.lengths)
        best = p.mode()
        marginals = p.marginals.gather(-1, best.unsqueeze(-1)).squeeze(-1)
        steps = _neighbours(p, best) / marginals[:, :-1].clamp(min=torch.finfo(p.dtype).tiny)
        for row, one in enumerate(words):
            size = len(one)
            yield best[row, :size].tolist(), marginals[row, :size], steps[row, : max(size - 1, 0)]

    def _sentence(
        self, given: Any, words: list[str], ids: list[int], confidences: Tensor, steps: Tensor
    ) -> TaggedSentence:
        names, scheme = self.core.config.labels, self.core.config.scheme
        labels = [names[number] for number in ids]
        text = given if isinstance(given, str) else None
        offsets = None if text is None else place_words(text, words)
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


def core_of(model: Any) -> TokenClassificationModel:
    """The tagger inside an adapter."""
    core = model.get_base_model() if hasattr(model, "peft_config") else model
    if not isinstance(core, TokenClassificationModel):
        raise ModelError(
            f"expected a TokenClassificationModel, got {type(core).__name__}: make one with"
            " TokenClassificationModel.from_encoder(encoder, labels)"
        )
    return core


def collator_for(
    core: TokenClassificationModel, tokenizer: Any, max_length: int | None, stride: int | None
) -> TokenClassificationCollator:
    """Batches for a model."""
    limits = [limit for limit in (max_length, core.max_subwords) if limit is not None]
    return TokenClassificationCollator(
        tokenizer,
        core.config.labels,
        pooling=core.config.pooling,
        max_length=min(limits, default=None),
        stride=stride,
    )
