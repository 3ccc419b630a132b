"""What samplers have in common: which words they may write, and references made ready for a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Protocol

import numpy as np
import torch

from softq.distributions import Candidates
from softq.errors import OutputError, SamplerError
from softq.kernels.jit import as_array
from softq.sentences import References, Sentences, as_references

Array = np.ndarray[Any, Any]


class Sampler(Protocol):
    """Makes candidates from references."""

    def __call__(self, refs: References, *, generator: torch.Generator | None = None) -> Candidates:
        """Candidates for each example of the references."""
        ...


def vocabulary_size(vocab: int | Sized) -> int:
    """Number of words from itself or from the words."""
    size = vocab if isinstance(vocab, int) and not isinstance(vocab, bool) else len(vocab) if isinstance(vocab, Sized) else -1
    if not 1 <= size < 2**31:
        raise SamplerError(f"vocab must be the number of words or a collection of them, got {vocab!r}")
    return size


def replacement_words(vocab: int, specials: Iterable[int]) -> Array:
    """Numbers 0..vocab-1 without the specials, which samplers never write."""
    forbidden = sorted(set(specials))
    bad = [word for word in forbidden if isinstance(word, bool) or not isinstance(word, int) or not 0 <= word < vocab]
    if bad:
        raise SamplerError(f"specials must be word numbers in 0..{vocab - 1}, got {bad[0]!r}")
    words = np.setdiff1d(np.arange(vocab), np.array(forbidden, dtype=np.int64))
    if not len(words):
        raise SamplerError(f"all {vocab} words are specials, which leaves none to write")
    return words


def check_count(name: str, value: int) -> int:
    """A whole number from 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SamplerError(f"{name} must be a whole number from 1, got {value!r}")
    return value


def ready_references(refs: References, vocab: int, pad: int, *, allow_empty: bool = False) -> Sentences:
    """References on the CPU, contiguous and filled up with the padding; a copy, so that a kernel may rely on it."""
    found = as_references(refs, vocab=vocab)
    tokens, lengths = as_array(found.tokens), as_array(found.lengths)
    if not allow_empty and not lengths.all():
        b, r = np.argwhere(lengths == 0)[0].tolist()
        raise OutputError(f"reference {r} of example {b} is empty, which leaves nothing to change; remove it from the data")
    filled = np.where(np.arange(tokens.shape[2]) < lengths[..., None], tokens, np.array(pad, dtype=tokens.dtype))
    return Sentences(torch.from_numpy(filled), torch.from_numpy(lengths))
