"""Training data of models of sentences: inputs, sentences or vectors, and references as numbers, from which batches are put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softq.errors import DataError
from softq.lab.torch_learner import generator_for
from softq.neural.modules.sequence import Inputs
from softq.sentences import MISSING, Sentences

Array = np.ndarray[Any, Any]

_WINDOW = 50  # batches whose examples are sorted by length together
_BYTES = 1 << 26  # of vectors that are hashed at a time


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
        self.words = np.fromiter(
            (word for sentence in sentences for word in sentence), np.int64, int(self.starts[-1])
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def padded(self, numbers: Array, *, rounded: bool = False) -> tuple[Array, Array]:
        """These sentences ``[B, L]`` with 0 behind their ends, and their lengths; -1 is a sentence that is missing.

        ``rounded`` gives widths that few batches do not share (`round_width`).
        """
        lengths = np.where(numbers >= 0, self.lengths[numbers], MISSING)
        width = max(int(lengths.max(initial=0)), 0)
        places = np.arange(round_width(width) if rounded else width)
        real = places < lengths[:, None]
        tokens = np.zeros(real.shape, np.int64)
        tokens[real] = self.words[(self.starts[numbers][:, None] + places)[real]]
        return tokens, lengths

    def take(self, numbers: Array, *, rounded: bool = False) -> Sentences:
        """The same as tensors."""
        return Sentences(*map(torch.from_numpy, self.padded(numbers, rounded=rounded)))

    def contents(self) -> Iterator[bytes]:
        """All of it, to be hashed."""
        yield self.lengths.tobytes()
        yield self.words.tobytes()


class Vectors:
    """Inputs that are vectors, such as features of images: rows of a table ``[M, D]`` of floats, which may be on the disk.

    Args:
        table: the vectors.
        rows: which row each of N inputs is, ``[N]``; several may be the same. None: each row is one.

    >>> vectors = Vectors(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 1, 0]))
    >>> len(vectors), vectors.take(np.array([0, 2]))[0].tolist()
    (3, [[3.0, 4.0], [1.0, 2.0]])
    >>> Vectors(np.array([[0.1]], np.float16)).take(np.array([0]))[0]
    tensor([[0.1000]])

    """

    def __init__(self, table: Array, rows: Array | None = None) -> None:
        self.table = table
        self.rows = np.arange(len(table)) if rows is None else rows
        self.lengths = np.zeros(
            len(self.rows), np.int64
        )  # all alike, when batches are put together

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, numbers: Array, *, rounded: bool = False) -> Inputs:
        """These vectors, float32 ``[B, D]``; their width is always the same, ``rounded`` or not."""
        found = self.table[self.rows[numbers]]
        if (
            found.dtype == np.float16
        ):  # torch turns these into float32 several times as fast as numpy
            return (torch.from_numpy(found).float(),)
        return (torch.from_numpy(np.asarray(found, np.float32)),)

    def contents(self) -> Iterator[bytes]:
        """All of it, to be hashed."""
        yield self.rows.tobytes()
        at_a_time = max(1, _BYTES // max(1, self.table.itemsize * self.table.shape[1]))
        for begin in range(0, len(self.table), at_a_time):
            yield self.table[begin : begin + at_a_time].tobytes()


class Examples:
    """Inputs with one or several references each, as numbers without START and END.

    Args:
        inputs: sentences, or `Vectors`.
        references: of each input, one or more sentences.

    >>> examples = Examples([[5, 6], [7]], [[[8]], [[9, 4], [4]]])
    >>> examples.take_inputs(torch.tensor([1]))[0].tolist(), examples.take_references(torch.tensor([1])).unpack()
    ([[7]], [[[9, 4], [4]]])

    """

    def __init__(
        self,
        inputs: Sequence[Sequence[int]] | Vectors,
        references: Sequence[Sequence[Sequence[int]]],
    ) -> None:
        if len(inputs) != len(references):
            raise DataError(
                f"expected references for each of {len(inputs)} inputs, got {len(references)}"
            )
        self.inputs = inputs if isinstance(inputs, Vectors) else Ragged(inputs)
        self.references = Ragged([sentence for several in references for sentence in several])
        self.counts = np.fromiter(map(len, references), np.int64, len(references))
        if len(references) and not self.counts.all():
            raise DataError(
                f"every input needs a reference, input {int(np.argmin(self.counts))} has none"
            )
        self._first = np.concatenate([[0], np.cumsum(self.counts)])

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def words(self) -> int:
        """Of all references, ends of sentences included."""
        return len(self.references.words) + len(self.references)

    def take_inputs(self, numbers: Tensor, *, rounded: bool = False) -> Inputs:
        """Inputs of some examples: sentences ``[B, N]``, of a width that few batches do not share if ``rounded``; or vectors ``[B, D]``."""
        return self.inputs.take(numbers.numpy(), rounded=rounded)

    def take_references(self, numbers: Tensor) -> Sentences:
        """References ``[B, R, M]`` of some examples."""
        chosen = numbers.numpy()
        places = np.arange(int(self.counts[chosen].max(initial=1)))
        present = places < self.counts[chosen][:, None]
        rows = np.where(present, self._first[chosen][:, None] + places, -1)
        tokens, lengths = self.references.padded(rows.reshape(-1))
        return Sentences(
            torch.from_numpy(tokens).view(*rows.shape, tokens.shape[1]),
            torch.from_numpy(lengths).view(rows.shape),
        )

    def contents(self) -> Iterator[bytes]:
        """All of it, to be hashed."""
        yield self.counts.tobytes()
        yield from self.inputs.contents()
        yield from self.references.contents()

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
            ranked = window[np.lexsort((self.inputs.lengths[window], longest[window]))]
            pieces += torch.split(torch.from_numpy(ranked), size)
        # the one that is not full stays last
        full = [piece for piece in pieces if len(piece) == size]
        rest = [piece for piece in pieces if len(piece) < size]
        return [full[i] for i in torch.randperm(len(full), generator=generator).tolist()] + rest


def round_width(width: int) -> int:
    """Up to a multiple of 2, of 4 beyond 16, of 8 beyond 32: a sixth of it is padding at most, and shapes are few.

    >>> [round_width(width) for width in (0, 1, 7, 17, 33)]
    [2, 2, 8, 20, 40]
    """
    multiple = 2 if width <= 16 else 4 if width <= 32 else 8
    return max(-(-width // multiple), 1) * multiple
