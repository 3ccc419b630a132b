"""Parsing text with a trained `DependencyModel`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from softq.integrations.transformers.dependency_parsing.model import (
    DependencyModel,
    DependencyOutput,
)
from softq.integrations.transformers.words.prediction import Offsets, WordPredictor
from softq.options import TreeDecoding


class ParsedSentence(NamedTuple):
    """A sentence with its predicted tree.

    Attributes:
        words: what was parsed.
        offsets: first character of each word in its text, and the one after its last; None where
            words were given.
        heads: the number of each word's head, from 1; 0 is the root.
        relations: of each word to its head; empty where the parser knows none.
        confidences: the marginal probability of each head.

    """

    words: list[str]
    offsets: list[tuple[int, int]] | None
    heads: list[int]
    relations: list[str]
    confidences: list[float]


class TreePredictor(WordPredictor):
    """Parses texts, or lists of words.

    Args:
        model: trained, with PEFT adapters or without.
        tokenizer: a fast one.
        settings: ``batch_size``, ``max_length`` and ``stride``, see `WordPredictor`.

    Running text is cut into words by `softq.formats.words.split_words`; a text is one sentence,
    however long.

    """

    model_type = DependencyModel

    def predict(
        self, sentences: Sequence[str | Sequence[str]], decoding: TreeDecoding = "mode"
    ) -> list[ParsedSentence]:
        """Trees of texts or lists of words, in their order.

        By default the most probable tree (``"mode"``); ``"mbr"``, the one of the most right heads
        to be expected.
        """
        return self.predictions(sentences, decoding=decoding)

    def of_batch(
        self, output: DependencyOutput, sizes: Sequence[int], **options: Any
    ) -> Iterator[tuple[list[int], list[int], list[float]]]:
        """Heads, ids of relations, and probabilities of heads of each sentence."""
        scores, lengths = output.scores, output.lengths
        heads, relations = self.core.decode(scores, lengths, **options)
        marginals = self.core.distribution(scores, lengths).marginals[..., 1:]
        sure = marginals.gather(1, heads.clamp(min=0).unsqueeze(1)).squeeze(1)
        for size, *row in zip(
            sizes, heads.tolist(), relations.tolist(), sure.tolist(), strict=True
        ):
            yield row[0][:size], row[1][:size], row[2][:size]

    def of_sentence(
        self, words: list[str], text: str | None, offsets: Offsets, found: Any
    ) -> ParsedSentence:
        """A tree, from what `of_batch` found."""
        heads, ids, confidences = found
        names = self.core.config.relations
        relations = [names[number] for number in ids] if names else []
        return ParsedSentence(words, offsets, heads, relations, confidences)
