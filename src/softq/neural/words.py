"""Words as a neural tagger or parser reads them: a vocabulary of words and characters, and batches without padding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from softq.errors import DataError
from softq.formats.file_checks import string_list
from softq.formats.word_vectors import WordVectors

Array = np.ndarray[Any, Any]

UNKNOWN_WORD = 0  # the id of every word that the vocabulary has not
PADDING, UNKNOWN_CHARACTER = 0, 1
_FIRST, _LAST = 24, 24  # characters of a word that are looked at; longer ones lose their middle


@dataclass(frozen=True)
class WordVocabulary:
    """Words and characters with an embedding of their own.

    Attributes:
        words: the word of each id from 1 on; 0 is every other word.
        characters: the character of each id from 2 on; 0 is padding, 1 every other character.
        rare: ids of words from which the vector of unknown words is learnt; no part of the file.

    """

    words: tuple[str, ...]
    characters: tuple[str, ...]
    rare: tuple[int, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], vectors: WordVectors | None = None) -> Self:
        """The words and characters of sentences to train on, and the words of pretrained vectors.

        Words that occur once and have no vector are rare.

        >>> WordVocabulary.of([["it", "rains"], ["it", "snows"]])
        WordVocabulary(words=('it', 'rains', 'snows'), characters=('a', 'i', 'n', 'o', 'r', 's', 't', 'w'), rare=(2, 3))
        """
        counts = Counter(word for sentence in sentences for word in sentence)
        known = frozenset(() if vectors is None else vectors.words)
        words = tuple(sorted(known.union(counts)))
        rare = tuple(
            number
            for number, word in enumerate(words, start=1)
            if counts[word] == 1 and word not in known and word.lower() not in known
        )
        return cls(words, tuple(sorted(set("".join(counts)))), rare)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=1)}

    @cached_property
    def _letters(self) -> dict[str, int]:
        return {letter: number for number, letter in enumerate(self.characters, start=2)}

    def id(self, word: str) -> int:
        """Of a word as it is written, or else in lower case; 0 of an unknown one."""
        return self._ids.get(word) or self._ids.get(word.lower(), UNKNOWN_WORD)

    def encode(self, sentences: Sequence[Sequence[str]]) -> EncodedWords:
        """Sentences as numbers."""
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        numbers: dict[str, int] = {}
        forms = np.fromiter(
            (numbers.setdefault(word, len(numbers)) for one in sentences for word in one),
            np.int64,
            int(lengths.sum()),
        )
        ids = np.fromiter(map(self.id, numbers), np.int64, len(numbers))
        spelt = [self._spelling(word) for word in numbers]
        letters = np.full((len(spelt), max(map(len, spelt), default=1)), PADDING, np.int64)
        for row, spelling in zip(letters, spelt, strict=True):
            row[: len(spelling)] = spelling
        # a word without characters has one that is padding, for there must be a maximum
        sizes = np.fromiter((max(len(one), 1) for one in spelt), np.int64, len(spelt))
        return EncodedWords(lengths, forms, ids, letters, sizes)

    def _spelling(self, word: str) -> list[int]:
        if len(word) > _FIRST + _LAST:
            word = word[:_FIRST] + word[-_LAST:]
        return [self._letters.get(letter, UNKNOWN_CHARACTER) for letter in word]

    def vectors(self, vectors: WordVectors) -> tuple[Tensor, Tensor]:
        """Ids ``[M]`` of the words that have a pretrained vector, themselves or in lower case, and these ``[M, D]``.

        >>> ids, _ = WordVocabulary(("Rome", "rome", "sees"), ()).vectors(WordVectors(("rome",), np.ones((1, 2))))
        >>> ids
        tensor([1, 2])
        """
        rows = {word: row for row, word in enumerate(vectors.words)}
        found = [
            (number, rows.get(word, rows.get(word.lower(), -1)))
            for number, word in enumerate(self.words, start=1)
        ]
        ids, chosen = np.array([pair for pair in found if pair[1] >= 0], np.int64).reshape(-1, 2).T
        return torch.from_numpy(ids.copy()), torch.from_numpy(vectors.table[chosen])

    def notes(self) -> dict[str, Any]:
        """It as JSON can hold it."""
        return {"words": list(self.words), "characters": list(self.characters)}

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> Self:
        """The vocabulary of `notes`."""
        words = string_list("words", notes["words"])
        characters = string_list("characters", notes["characters"])
        for name, found in (("word", words), ("character", characters)):
            if len(set(found)) != len(found):
                raise DataError(f"expected each {name} of a vocabulary once, got one twice")
        return cls(words, characters)


class Packing(NamedTuple):
    """Where the T tokens of B sentences are in a `PackedSequence`.

    First the first tokens of all sentences, longest sentence first, then their second ones, and so
    on: an encoder of such a sequence sees no padding.

    Attributes:
        lengths: of the sentences, ``[B]``.
        width: of a padded batch, n.
        steps: how many sentences reach each position, ``[longest]``; on the CPU, where a
            `PackedSequence` wants it.
        row: the sentence of each token, ``[T]``.
        place: of each token in a padded ``[B, n]``, flattened; ``[T]``.

    """

    lengths: Tensor
    width: int
    steps: Tensor
    row: Tensor
    place: Tensor

    @classmethod
    def of(cls, lengths: Array | Sequence[int], width: int | None = None) -> Self:
        """Of sentences of these lengths, in any order.

        >>> Packing.of([1, 3]).place.tolist(), Packing.of([1, 3]).steps.tolist()
        ([3, 0, 4, 5], [2, 1, 1])
        """
        sizes = np.asarray(lengths, np.int64)
        if not len(sizes) or sizes.min() < 1:
            raise DataError("expected sentences of one word or more, got an empty one, or none")
        longest = int(sizes.max())
        width = longest if width is None else width
        order = np.argsort(-sizes, kind="stable")
        step, sentence = np.nonzero(np.arange(longest)[:, None] < sizes[order])
        row = order[sentence]
        steps = np.bincount(step, minlength=longest)
        return cls(
            torch.from_numpy(sizes),
            width,
            torch.from_numpy(steps),
            torch.from_numpy(row),
            torch.from_numpy(row * width + step),
        )

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        return self._replace(
            lengths=self.lengths.to(device), row=self.row.to(device), place=self.place.to(device)
        )

    def packed(self, tokens: Tensor) -> PackedSequence:
        """Vectors of tokens ``[T, D]`` as an LSTM takes them."""
        return PackedSequence(tokens, self.steps)

    def padded(self, tokens: Tensor) -> Tensor:
        """Vectors of tokens ``[T, *]`` as ``[B, n, *]``, 0 on padding."""
        count = len(self.lengths)
        found = tokens.new_zeros(count * self.width, *tokens.shape[1:])
        return found.index_copy(0, self.place, tokens).view(count, self.width, *tokens.shape[1:])


class WordBatch(NamedTuple):
    """B sentences with T words, U of them different.

    Attributes:
        packing: where the words are.
        words: their ids, ``[T]``.
        forms: which of the different words each is, ``[T]``.
        letters: ids of the characters of the different words, ``[U, L]``, 0 on padding.
        sizes: how many characters they have, ``[U]``.

    """

    packing: Packing
    words: Tensor
    forms: Tensor
    letters: Tensor
    sizes: Tensor

    @property
    def lengths(self) -> Tensor:
        """Words of each sentence, ``[B]``."""
        return self.packing.lengths

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        packing, *tensors = self
        return type(self)(packing.to(device), *(tensor.to(device) for tensor in tensors))


class EncodedWords(NamedTuple):
    """All sentences as numbers.

    Attributes:
        lengths: of the sentences, ``[N]``.
        forms: the words of all of them, one sentence behind the other, as numbers of F different
            ones.
        ids: of the different words, ``[F]``.
        letters: of the different words, ``[F, L]``.
        sizes: how many characters they have, ``[F]``.

    """

    lengths: Array
    forms: Array
    ids: Array
    letters: Array
    sizes: Array

    def tokens(self, sentences: Array, packing: Packing) -> Array:
        """The places of the tokens of packed sentences among the tokens of all."""
        starts = (np.cumsum(self.lengths) - self.lengths)[sentences]
        row = packing.row.numpy()
        found: Array = starts[row] + packing.place.numpy() - row * packing.width
        return found

    def batch(self, sentences: Array | Sequence[int], width: int | None = None) -> WordBatch:
        """These sentences.

        >>> encoded = WordVocabulary.of([["it", "rains"]]).encode([["it", "rains"], ["So", "it", "snows"]])
        >>> batch = encoded.batch([0, 1])
        >>> batch.words.tolist(), batch.letters.shape  # So, it | it, rains | snows
        ([0, 1, 1, 2, 0], torch.Size([4, 5]))
        """
        chosen = np.asarray(sentences, np.int64)
        packing = Packing.of(self.lengths[chosen], width)
        tokens = self.tokens(chosen, packing)
        used, forms = np.unique(self.forms[tokens], return_inverse=True)
        sizes = self.sizes[used]
        letters = self.letters[used, : max(int(sizes.max(initial=1)), 1)]
        tensors = (self.ids[used][forms], forms, letters, sizes)
        return WordBatch(packing, *(torch.from_numpy(np.ascontiguousarray(t)) for t in tensors))


def like_lengths(
    lengths: Array, size: int, random: np.random.Generator, *, words: int = 0
) -> list[Array]:
    """Numbers of sentences in batches of about ``size`` of about one length.

    With ``words``, batches have about so many words instead. Chance decides among sentences of
    nearly one length; batches come from the longest on.

    >>> lengths = np.array([9, 1, 8, 2, 2])
    >>> [sorted(batch.tolist()) for batch in like_lengths(lengths, 2, np.random.default_rng(0))]
    [[0, 2], [3, 4], [1]]
    >>> [sorted(batch.tolist()) for batch in like_lengths(lengths, 0, np.random.default_rng(0), words=9)]
    [[0], [1, 2, 3, 4]]
    """
    order = np.argsort(-(lengths + 0.9 * random.random(len(lengths))), kind="stable")
    if not words:
        return np.array_split(order, -(-len(order) // size))
    so_far = lengths[order].cumsum()
    count = max(round(int(so_far[-1]) / words), 1)
    batch = (so_far - 1) * count // so_far[-1]
    return np.split(order, np.flatnonzero(np.diff(batch)) + 1)
