"""Batches of rows: the subwords that an encoder reads, and what a model is trained toward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from softq.errors import DataError, ModelError
from softq.integrations.text_rows import plain
from softq.integrations.transformers.tokens import padded_inputs
from softq.integrations.transformers.words.subwords import Subwords, WordTokenizer

TARGETS = "softq_targets"


class WordCollator(ABC):
    """Makes batches of rows that have ``tokens``, a list of words.

    A subclass reads the rest of a row (`read`), and makes tensors of it (`targets`).

    Args:
        tokenizer: a fast one.
        max_length: most subwords that the model reads at once.
        stride: subwords that windows of a longer sentence share; None: a quarter.

    """

    columns: str
    """What says what is right, as errors name it."""

    def __init__(
        self, tokenizer: Any, *, max_length: int | None = None, stride: int | None = None
    ) -> None:
        self.words = WordTokenizer(tokenizer, max_length=max_length, stride=stride)
        self._pad = tokenizer.pad_token_id
        if self._pad is None:
            raise ModelError("the tokenizer has no padding token: set tokenizer.pad_token")

    @abstractmethod
    def read(self, row: Mapping[str, Any], count: int) -> Any:
        """What is known of the ``count`` words of a row; None if nothing is."""

    @abstractmethod
    def targets(self, known: Sequence[Any], width: int) -> dict[str, Any]:
        """The same of the rows of a batch as tensors, padded to ``width`` words.

        ``labels [B, n]`` are -100 but for words of which something is known: by them Trainer counts
        words. `TARGETS` are what losses read.
        """

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """What a model reads of these rows, and what it is trained toward.

        The first entry is as long as there are rows, by which Trainer counts them.
        """
        if not rows:
            raise DataError("expected one row or more, got none")
        raw = [place for place, row in enumerate(rows) if "tokens" in row]
        found: dict[int, Subwords] = dict(
            zip(raw, self.words([words_of(rows[place]) for place in raw]), strict=True)
        )
        known: list[Any] = []
        for place, row in enumerate(rows):
            if place in found:
                known.append(self.read(row, len(found[place].words)))
            else:
                found[place], labels = self.tokenised(row)
                known.append(labels)
        batch = self.inputs([found[place] for place in range(len(rows))])
        labelled = [labels for labels in known if labels is not None]
        if labelled and len(labelled) < len(rows):
            raise DataError(
                f"expected labels in all rows of a batch or in none, got {len(labelled)} of"
                f" {len(rows)} with {self.columns}"
            )
        return batch | self.targets(labelled, batch["words"].shape[1]) if labelled else batch

    def known(self, row: Any) -> Any:
        """What is known of the words of a row, without a look at the words."""
        if "tokens" in row:
            return self.read(row, len(words_of(row)))
        return self.tokenised(row)[1]

    def tokenised(self, row: Mapping[str, Any]) -> tuple[Subwords, Any]:
        """A row without words."""
        raise DataError(
            f"a row needs 'tokens', a list of words, and {self.columns}; got {sorted(row)}"
        )

    def inputs(self, sentences: Sequence[Subwords]) -> dict[str, Any]:
        """What a model reads of sentences."""
        lengths = [len(sentence.words) for sentence in sentences]
        words = torch.full((len(sentences), max(lengths), 3), -1)
        windows: list[list[int]] = []
        for row, sentence in enumerate(sentences):
            places = torch.tensor(sentence.words, dtype=torch.int64).view(-1, 3)
            places[:, 0] += (places[:, 0] >= 0) * len(windows)
            words[row, : len(places)] = places
            windows += sentence.windows
        return {
            "lengths": torch.tensor(lengths),
            "words": words,
            **padded_inputs(windows, self._pad),
        }


def words_of(row: Mapping[str, Any]) -> list[str]:
    """The words of a row."""
    words = plain(row["tokens"])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DataError(f"'tokens' of a row must be a list of words, got {words!r}")
    return words
