"""Texts to predictions of their words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from transformers import AutoTokenizer

from softq.checks import check_count
from softq.errors import DataError
from softq.formats.words import place_words, split_words
from softq.integrations.transformers.loading import loading, quiet
from softq.integrations.transformers.words.encoder import WordModel, core_of
from softq.neural.generation import evaluating

Offsets = list[tuple[int, int]] | None


class WordPredictor(ABC):
    """Predicts for texts, or lists of words; a subclass says what.

    Args:
        model: trained, with PEFT adapters or without.
        tokenizer: a fast one.
        batch_size: sentences at once.
        max_length: most subwords that are read at once; None: as many as the encoder can.
        stride: subwords that windows of a longer sentence share; None: a quarter.

    Running text is cut into words by `softq.formats.words.split_words`; a text is one sentence,
    however long.

    """

    model_type: ClassVar[type[WordModel]]

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        batch_size: int = 32,
        max_length: int | None = None,
        stride: int | None = None,
    ) -> None:
        self.model, self.core = model, core_of(model, self.model_type)
        self.batch_size = check_count("batch_size", batch_size, DataError)
        self._collator = self.core.collator(tokenizer, max_length=max_length, stride=stride)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **settings: Any) -> Self:
        """A model and its tokenizer, from a folder that their Trainer has saved."""
        with loading(str(folder)), quiet():
            model = cls.model_type.from_pretrained(str(folder))
            tokenizer = AutoTokenizer.from_pretrained(str(folder))
        return cls(model, tokenizer, **settings)

    @abstractmethod
    def of_batch(self, output: Any, sizes: Sequence[int], **options: Any) -> Iterable[Any]:
        """What is predicted for each sentence, of so many words, as `of_sentence` takes it."""

    @abstractmethod
    def of_sentence(self, words: list[str], text: str | None, offsets: Offsets, found: Any) -> Any:
        """The prediction for a sentence of these words, and of this text if there was one."""

    def predictions(self, sentences: Sequence[str | Sequence[str]], **options: Any) -> list[Any]:
        """Of texts or lists of words, in their order."""
        if isinstance(sentences, str):
            raise DataError("expected a list of texts or of lists of words, got one text")
        words = [split_words(one) if isinstance(one, str) else list(one) for one in sentences]
        made: list[Any] = [None] * len(words)
        # sentences of like lengths, so that few are padded
        order = sorted(range(len(words)), key=lambda place: -len(words[place]))
        with evaluating(self.model):
            for start in range(0, len(order), self.batch_size):
                places = order[start : start + self.batch_size]
                batch = self._collator([{"tokens": words[place]} for place in places])
                device = self.core.device
                output = self.model(**{name: value.to(device) for name, value in batch.items()})
                sizes = [len(words[place]) for place in places]
                found = self.of_batch(output, sizes, **options)
                for place, one in zip(places, found, strict=True):
                    given = sentences[place]
                    text = given if isinstance(given, str) else None
                    offsets = None if text is None else place_words(text, words[place])
                    made[place] = self.of_sentence(words[place], text, offsets, one)
        return made
