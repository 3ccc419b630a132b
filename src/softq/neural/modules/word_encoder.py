"""Vectors of words: each word's own, and what a convolution finds in its characters."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from softq.neural.words import PADDING, UNKNOWN_WORD, WordBatch

_AS_UNKNOWN = 0.5  # how often training sees a rare word as an unknown one


class WordEncoder(nn.Module):
    """Words and characters to vectors (Ma and Hovy 2016).

    The convolution has width 3, and looks at a word and nothing beside it: its maximum is over the
    word's own characters. Half of the time training takes a rare word for an unknown one, which is
    how the vector of these is learnt.

    Args:
        words: how many have a vector of their own.
        characters: likewise.
        word_size: of a word's vector.
        character_size: of a character's vector.
        filters: of the convolution.
        dropout: share of a character's vector that is dropped in training.
        rare: ids of words, see `softq.neural.words.WordVocabulary`.

    """

    rare: Tensor

    def __init__(
        self,
        words: int,
        characters: int,
        *,
        word_size: int = 100,
        character_size: int = 30,
        filters: int = 30,
        dropout: float = 0.5,
        rare: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.size = word_size + filters
        self.words = nn.Embedding(words + 1, word_size)
        self.characters = nn.Embedding(characters + 2, character_size, padding_idx=PADDING)
        self.spelling = nn.Conv1d(character_size, filters, kernel_size=3, padding=1)
        self.drop = nn.Dropout(dropout)
        is_rare = torch.zeros(words + 1, dtype=torch.bool)
        is_rare[list(rare)] = True
        self.register_buffer("rare", is_rare, persistent=False)

    def forward(self, batch: WordBatch) -> Tensor:
        """The vectors of the words of a batch, ``[T, word_size + filters]``."""
        return torch.cat([self.of_words(batch.words), self.of_letters(batch)], -1)

    def of_words(self, ids: Tensor) -> Tensor:
        """The words' own vectors, ``[T, word_size]``."""
        if self.training:
            chance = torch.rand(ids.shape, device=ids.device)
            ids = ids.masked_fill(self.rare[ids] & (chance < _AS_UNKNOWN), UNKNOWN_WORD)
        vectors: Tensor = self.words(ids)
        return vectors

    def of_letters(self, batch: WordBatch) -> Tensor:
        """What the convolution finds in each word, ``[T, filters]``; different ones are read once."""
        letters = self.drop(self.characters(batch.letters)).transpose(1, 2)  # [U, size, L]
        padding = torch.arange(letters.shape[-1], device=letters.device) >= batch.sizes.unsqueeze(1)
        found: Tensor = self.spelling(letters).masked_fill(padding.unsqueeze(1), -math.inf)
        # the gradient of an embedding is summed in one order on a GPU
        return functional.embedding(batch.forms, found.amax(-1))

    @torch.no_grad()
    def take_vectors(self, ids: Tensor, vectors: Tensor) -> None:
        """Let these words begin with pretrained vectors ``[M, word_size]``."""
        self.words.weight[ids.to(self.words.weight.device)] = vectors.to(self.words.weight)


def begin(module: nn.Module, generator: torch.Generator) -> None:
    """First parameters after Ma and Hovy (2016), by a generator.

    Embeddings are uniform in ±√(3/size), matrices Glorot's, biases 0, and 1 of the forget gates of
    LSTMs.
    """
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Embedding):
                bound = math.sqrt(3 / part.embedding_dim)
                part.weight.uniform_(-bound, bound, generator=generator)
                if part.padding_idx is not None:
                    part.weight[part.padding_idx] = 0
            elif isinstance(part, (nn.Linear, nn.Conv1d)):
                nn.init.xavier_uniform_(part.weight, generator=generator)
                if part.bias is not None:
                    part.bias.zero_()
            elif isinstance(part, nn.LSTM):
                for name, parameter in part.named_parameters():
                    if name.startswith("weight"):
                        nn.init.xavier_uniform_(parameter, generator=generator)
                    else:
                        parameter.zero_()
                        if name.startswith("bias_ih"):  # the gates are input, forget, cell, output
                            parameter[part.hidden_size : 2 * part.hidden_size] = 1
