"""Training data of models of sentences.

Inputs (token ids or vectors) and references as token ids, put together into batches.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class Ragged:
    """Sentences one behind the other in one array.

    >>> found = Ragged([[5, 6], [7], []]).take(np.array([1, 0]))
    >>> found.tokens.tolist(), found.lengths.tolist()
    ([[7, 0], [5, 6]], [1, 2])
    """

    def __init__(self, sentences: Sequence[Sequence[int] | Array]) -> None:
        self.lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.tokens = np.fromiter(
            (token for sentence in sentences for token in sentence), np.int64, int(self.starts[-1])
        )

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Array:
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def take(self, index: Array, *, rounded: bool = False) -> Sentences:
        """These sentences ``[B, L]`` with 0 behind their ends, and their lengths.

        Index -1 is a sentence that is missing.

        ``rounded`` gives widths that most batches share (`round_width`).
        """
        lengths = np.where(index >= 0, self.lengths[index], MISSING)
        width = max(int(lengths.max(initial=0)), 0)
        places = np.arange(round_width(width) if rounded else width)
        real = places < lengths[:, None]
        tokens = np.zeros(real.shape, np.int64)
        tokens[real] = self.tokens[(self.starts[index][:, None] + places)[real]]
        return Sentences(torch.from_numpy(tokens), torch.from_numpy(lengths))

    def repeat(self, counts: Array) -> Ragged:
        """Each sentence as often as ``counts [N]`` says."""
        return Ragged([self[index] for index in np.repeat(np.arange(len(self)), counts).tolist()])

    def arrays(self) -> list[Array]:
        """All that it holds."""
        return [self.lengths, self.tokens]


class Vectors:
    """Inputs that are vectors, such as features of images.

    Rows of a table ``[M, D]`` of floats, which may be memory-mapped.

    Args:
        table: the vectors.
        rows: which row each of N inputs is, ``[N]``; several may be the same. None: each row is
            one.

    >>> vectors = Vectors(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 1, 0]))
    >>> len(vectors), vectors.take(np.array([0, 2]))[0].tolist()
    (3, [[3.0, 4.0], [1.0, 2.0]])
    >>> Vectors(np.array([[0.1]], np.float16)).take(np.array([0]))[0]
    tensor([[0.1000]])

    """

    def __init__(self, table: Array, rows: Array | None = None) -> None:
        self.table = table
        self.rows = np.arange(len(table)) if rows is None else rows
        self.lengths = np.zeros(len(self.rows), np.int64)  # all alike, when batches are made

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: Array, *, rounded: bool = False) -> Inputs:
        """These vectors, float32 ``[B, D]``; their width is always the same, ``rounded`` or not."""
        found = self.table[self.rows[index]]
        if found.dtype == np.float16:  # which torch converts several times as fast as numpy
            return (torch.from_numpy(found).float(),)
        return (torch.from_numpy(np.asarray(found, np.float32)),)

    def repeat(self, counts: Array) -> Vectors:
        """Each vector as often as ``counts [N]`` says."""
        return Vectors(self.table, np.repeat(self.rows, counts))

    def arrays(self) -> list[Array]:
        """All that it holds."""
        return [self.rows, self.table]


class Examples:
    """Inputs with one or several references each, as token ids without START and END.

    Args:
        inputs: sentences, or `Vectors`.
        references: of each input, one or more sentences.

    >>> examples = Examples([[5, 6], [7]], [[[8]], [[9, 4], [4]]])
    >>> examples.take_inputs(torch.tensor([1]))[0].tolist(), examples.take_references(torch.tensor([1])).unpack()
    ([[7]], [[[9, 4], [4]]])
    >>> len(examples.one_by_one())
    3

    """

    def __init__(
        self,
        inputs: Sequence[Sequence[int]] | Ragged | Vectors,
        references: Sequence[Sequence[Sequence[int] | Array]],
    ) -> None:
        if len(inputs) != len(references):
            raise DataError(
                f"expected references for each of {len(inputs)} inputs, got {len(references)}"
            )
        self.inputs = inputs if isinstance(inputs, Ragged | Vectors) else Ragged(inputs)
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
        """The tokens of all references, ends of sentences included."""
        return len(self.references.tokens) + len(self.references)

    def one_by_one(self) -> Examples:
        """The same with an example for every reference."""
        references = [[self.references[index]] for index in range(len(self.references))]
        return Examples(self.inputs.repeat(self.counts), references)

    def take_inputs(self, index: Tensor, *, rounded: bool = False) -> Inputs:
        """Inputs of some examples.

        Sentences ``[B, N]``, of a width that most batches share if ``rounded``; or vectors ``[B,
        D]``.
        """
        return self.inputs.take(index.numpy(), rounded=rounded)

    def take_references(self, index: Tensor) -> Sentences:
        """References ``[B, R, M]`` of some examples."""
        counts, first = self.counts[index.numpy()], self._first[index.numpy()]
        places = np.arange(int(counts.max(initial=1)))
        rows = np.where(places < counts[:, None], first[:, None] + places, -1)
        tokens, lengths = self.references.take(rows.reshape(-1))
        return Sentences(tokens.view(*rows.shape, tokens.shape[1]), lengths.view(rows.shape))

    def arrays(self) -> list[Array]:
        """All that it holds."""
        return [self.counts, *self.inputs.arrays(), *self.references.arrays()]

    def batches(self, size: int, seed: int, epoch: int) -> list[Tensor]:
        """Every example once, in batches of similar lengths in an order of the epoch's own.

        Examples are shuffled and then sorted by length within windows of many batches, so that
        little of a batch is padding and yet every epoch has other batches.
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
    """Up to a multiple of 2, of 4 beyond 16, of 8 beyond 32.

    A sixth of it is padding at most, and shapes are few.

    >>> [round_width(width) for width in (0, 1, 7, 17, 33)]
    [2, 2, 8, 20, 40]
    """
    multiple = 2 if width <= 16 else 4 if width <= 32 else 8
    return max(-(-width // multiple), 1) * multiple
