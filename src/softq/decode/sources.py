"""What all decoding needs: a model that says the next word, limits of lengths, and sources that are done at different times."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from softq.errors import LengthError, ModelError, ScoreError, ShapeError

_STEPS_BETWEEN_LOOKS = 4  # on a GPU, where every look at who is done waits for the device


class NextWords(Protocol):
    """A model of sentences given a source, word by word, such as `softq.models.SequenceModel`.

    What it keeps of the sources (memory) is a tuple of tensors with B rows, what it keeps of unfinished sentences (state) one of tensors
    with B·K rows, of which row b·K + k belongs to source b. Decoding selects rows of both and looks no further into them.
    """

    def start(self, memory: tuple[Tensor, ...], copies: int) -> tuple[Tensor, ...]:
        """State of ``copies`` sentences of each source before their first word."""
        ...

    def next_log_probs(self, memory: tuple[Tensor, ...], state: tuple[Tensor, ...], words: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Log-probabilities ``[B·K, V]`` of what follows ``words [B·K]`` (at first START), and the state after them.

        They are -inf for PAD and START, which no sentence holds.
        """
        ...


class Done:
    """Results of sources that left a batch one after the other, in the end in the order of the batch."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, sources: Tensor, *results: Tensor) -> None:
        """Results, each ``[A, ...]``, of the sources with these numbers ``[A]``."""
        self._parts.append((sources, *results))

    def in_order(self) -> tuple[Tensor, ...]:
        """All results, each ``[B, ...]``."""
        sources, *results = (torch.cat(parts) for parts in zip(*self._parts, strict=True))
        order = sources.argsort()
        return tuple(result[order] for result in results)


def go_on_with(running: Tensor, step: int) -> Tensor | None:
    """Numbers of the sources that are ``running [A]`` where at least half are not, to go on with them alone; else None, for all.

    To go on with a source that is done changes nothing, so one may look rarely; to select rows of the memory is a copy, so they leave
    together, and no row is copied more than once on average.
    """
    if running.is_cuda and (step + 1) % _STEPS_BETWEEN_LOOKS:
        return None
    if 2 * int(running.sum()) > len(running):
        return None
    return running.nonzero().squeeze(1)


def select_rows(parts: tuple[Tensor, ...], rows: Tensor) -> tuple[Tensor, ...]:
    """Rows ``[M]`` of each part."""
    return tuple(part.index_select(0, rows) for part in parts)


def length_limits(max_length: int | Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, int]:
    """The most words of a sentence of each source, ``[B]`` on the memory's device, and the largest of these."""
    batch, device = len(memory[0]), memory[0].device
    if isinstance(max_length, Tensor):
        if max_length.dtype not in (torch.int64, torch.int32) or max_length.shape != (batch,):
            raise ShapeError(
                f"max_length must be a whole number or an int64 tensor [{batch}], got {max_length.dtype} {list(max_length.shape)}"
            )
        limits = max_length.to(device, torch.int64)
    elif isinstance(max_length, int) and not isinstance(max_length, bool):
        limits = torch.full((batch,), max_length, device=device)
    else:
        raise ShapeError(f"max_length must be a whole number or an int64 tensor [{batch}], got {max_length!r}")
    low, high = (int(end) for end in limits.aminmax()) if batch else (0, 0)
    if low < 0:
        raise LengthError(f"max_length must not be negative, got {low}")
    return limits, high


def check_size(size: int) -> int:
    """A number of sentences is a whole number from 1."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ModelError(f"size must be a whole number from 1, got {size!r}")
    return size


def check_log_probs(log_model: Tensor) -> None:
    """No sum of log-probabilities ``[B, S]`` is NaN, as all that follow a NaN from the model are."""
    bad = torch.isnan(log_model).any(1)
    if bool(bad.any()):
        raise ScoreError(f"the model must give log-probabilities, got NaN for source {int(bad.nonzero()[0])} of the batch")
