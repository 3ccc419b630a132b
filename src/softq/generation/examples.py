"""Training data of models of sentences: inputs and references as numbers, from which batches are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError
from softq.sentences import MISSING, Sentences
from softq.train.torch_learner import generator_for

Array = np.ndarray[Any, Any]

_WINDOW = 50  # batches whose examples are sorted by length together


class Ragged:
    """Sentences one behind the other in one array.

    >>> sentences = Ragged([[5, 6], [7], []])
    >>> tokens, lengths = sentences.padded(np.array([1, 0]))
    >>> tokens.tolist(), lengths.tolist()
    ([[7, 0], [5, 6]], [1, 2])
    """

    def __init__(self, sentences: Sequence[Sequence[int]]) -> None:
        self.lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.words = np.fromiter((word for sentence in sentences for word in sentence), np.int64, int(self.starts[-1]))

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, numbers: Array) -> tuple[Array, Array]:
        """These sentences ``[B, L]`` with 0 behind their ends, and their lengths; -1 is a sentence that is missing."""
        lengths = np.where(numbers >= 0, self.lengths[numbers], MISSING)
        places = np.arange(max(int(lengths.max(initial=0)), 0))
        real = places < lengths[:, None]
        tokens = np.zeros(real.shape, np.int64)
        tokens[real] = self.words[(self.starts[numbers][:, None] + places)[real]]
        return tokens, lengths


class Examples:
    """Inputs with one or several references each, as numbers without START and END.

    >>> examples = Examples([[5, 6], [7]], [[[8]], [[9, 4], [4]]])
    >>> source, references = examples.take(torch.tensor([1]))
    >>> source.tokens.tolist(), references.unpack()
    ([[7]], [[[9, 4], [4]]])
    """

    def __init__(self, sources: Sequence[Sequence[int]], references: Sequence[Sequence[Sequence[int]]]) -> None:
        if len(sources) != len(references):
            raise DataError(f"expected references for each of {len(sources)} inputs, got {len(references)}")
        self.sources = Ragged(sources)
        self.references = Ragged([sentence for several in references for sentence in several])
        self.counts = np.fromiter(map(len, references), np.int64, len(references))
        if len(references) and not self.counts.all():
            raise DataError(f"every input needs a reference, input {int(np.argmin(self.counts))} has none")
        self._first = np.concatenate([[0], np.cumsum(self.counts)])

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def words(self) -> int:
        """Of all references, ends of sentences included."""
        return len(self.references.words) + len(self.references)

    def take(self, numbers: Tensor) -> tuple[Sentences, Sentences]:
        """Inputs ``[B, N]`` and references ``[B, R, M]`` of some examples."""
        chosen = numbers.numpy()
        places = np.arange(int(self.counts[chosen].max(initial=1)))
        present = places < self.counts[chosen][:, None]
        rows = np.where(present, self._first[chosen][:, None] + places, -1)
        tokens, lengths = self.references.padded(rows.reshape(-1))
        source = Sentences(*map(torch.from_numpy, self.sources.padded(chosen)))
        return source, Sentences(torch.from_numpy(tokens).view(*rows.shape, tokens.shape[1]), torch.from_numpy(lengths).view(rows.shape))

    def batches(self, size: int, seed: int, epoch: int) -> list[Tensor]:
        """Every example once, in batches of like lengths in an order of the epoch's own.

        Examples are shuffled and then sorted by length within windows of many batches, so that little of a batch is padding and yet
        every epoch has other batches.
        """
        generator = generator_for(seed, epoch)
        order = torch.randperm(len(self), generator=generator).numpy()
        longest = np.maximum.reduceat(self.references.lengths, self._first[:-1])
        pieces: list[Tensor] = []
        for begin in range(0, len(order), size * _WINDOW):
            window = order[begin : begin + size * _WINDOW]
            ranked = window[np.lexsort((self.sources.lengths[window], longest[window]))]
            pieces += torch.split(torch.from_numpy(ranked), size)
        # the one that is not full stays last
        full = [piece for piece in pieces if len(piece) == size]
        rest = [piece for piece in pieces if len(piece) < size]
        return [full[i] for i in torch.randperm(len(full), generator=generator).tolist()] + rest
