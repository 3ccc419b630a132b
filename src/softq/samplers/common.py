"""What samplers have in common: the words they may write, and the way to a kernel and back."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Protocol

import numpy as np
import torch

from softq.errors import OutputError, SamplerError
from softq.kernels.jit import as_array
from softq.kernels.text.sets import Rows
from softq.kernels.text.words import Array
from softq.sentences import References, as_references
from softq.spaces import Candidates


class Sampler(Protocol):
    """Makes candidates from references."""

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates for each example of the references."""
        ...


def read_vocabulary(vocab: int | Sized, specials: Iterable[int]) -> tuple[int, Array]:
    """Number of token ids, and those that samplers write: all but the specials.

    ``vocab`` is the number of words or the words themselves.
    """
    size = len(vocab) if isinstance(vocab, Sized) else vocab
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
        raise SamplerError(
            f"vocab must be the number of words or a collection of them, got {vocab!r}"
        )
    forbidden = sorted(set(specials))
    for word in forbidden:
        if isinstance(word, bool) or not isinstance(word, int) or not 0 <= word < size:
            raise SamplerError(f"specials must be word numbers in 0..{size - 1}, got {word!r}")
    words = np.setdiff1d(np.arange(size), np.array(forbidden, dtype=np.int64))
    if not len(words):
        raise SamplerError(f"all {size} words are specials, which leaves none to write")
    return size, words


def ready_references(refs: References, vocab: int, pad: int, *, allow_empty: bool = False) -> Rows:
    """References filled up with the padding, missing ones last.

    A copy, so that a kernel may rely on it.
    """
    found = as_references(refs, vocab=vocab)
    tokens, lengths = as_array(found.tokens), as_array(found.lengths)
    if not allow_empty and not lengths.all():
        b, r = np.argwhere(lengths == 0)[0].tolist()
        raise OutputError(
            f"reference {r} of example {b} is empty, which leaves nothing to change; "
            "remove it from the data"
        )
    if (lengths < 0).any():
        order = np.argsort(lengths < 0, axis=1, kind="stable")
        lengths = np.take_along_axis(lengths, order, 1)
        tokens = np.take_along_axis(tokens, order[..., None], 1)
    real = np.arange(tokens.shape[2]) < lengths[..., None]
    filled = np.where(real, tokens, np.array(pad, dtype=tokens.dtype))
    return Rows(filled.reshape(lengths.size, tokens.shape[2]), lengths)


def unpack_example(rows: Rows, b: int) -> list[list[int]]:
    """The sentences of example b as lists."""
    first = b * rows.lengths.shape[1]
    lengths = enumerate(rows.lengths[b].tolist(), first)
    return [rows.tokens[row, :length].tolist() for row, length in lengths if length >= 0]


def as_tensors(rows: Rows, *beside: Array) -> list[torch.Tensor]:
    """What a kernel made: tokens ``[B, S, L]``, lengths ``[B, S]``, and arrays of its own."""
    tokens = rows.tokens.reshape(*rows.lengths.shape, rows.tokens.shape[1])
    return [torch.from_numpy(part) for part in (tokens, rows.lengths, *beside)]
