"""The models that can be decoded, and what all decoding of a batch of sources shares."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from softq.errors import LengthError, ScoreError, ShapeError

_STEPS_BETWEEN_LOOKS = 4  # on a GPU, where every look at what is finished waits for the device


class AutoregressiveModel(Protocol):
    """A model P(y|x) = Π_t P(y_t | y_<t, x), such as `softq.neural.modules.SequenceModel`.

    What it keeps of the sources (memory) is a tuple of tensors with B rows. What it keeps of
    hypotheses (state) is a tuple of tensors with B·K rows, of which row b·K + k belongs to source
    b. Decoding selects rows of both and looks no further into them.
    """

    start_token: int
    """Token id before the first token of every sentence."""
    end_token: int
    """Token id that ends a sentence. It has a probability, but is not part of the sentence."""
    pad_token: int
    """Token id that fills up a sentence in a batch of longer ones."""

    def start(self, memory: tuple[Tensor, ...], copies: int) -> tuple[Tensor, ...]:
        """State of ``copies`` hypotheses of each source before their first token."""
        ...

    def next_log_probs(
        self, memory: tuple[Tensor, ...], state: tuple[Tensor, ...], tokens: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Log-probabilities ``[B·K, V]`` of the next token, and the state after ``tokens [B·K]``.

        The first tokens are ``start_token``. What comes back for a hypothesis that has read
        ``end_token`` is not used, but must not be NaN.
        """
        ...


class Finished:
    """Results of sources that leave a batch one after the other, in the end in its order."""

    def __init__(self) -> None:
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, sources: Tensor, *results: Tensor) -> None:
        """Results, each ``[A, ...]``, of the sources at these places ``[A]`` of the batch."""
        self._parts.append((sources, *results))

    def in_order(self) -> tuple[Tensor, ...]:
        """All results, each ``[B, ...]``."""
        sources, *results = (torch.cat(parts) for parts in zip(*self._parts, strict=True))
        order = sources.argsort()
        return tuple(result[order] for result in results)


def rows_to_keep(unfinished: Tensor, step: int) -> Tensor | None:
    """Rows of the ``unfinished [A]`` sources if at most half are unfinished; None: keep all.

    A further step of a finished source changes nothing, so one may look rarely. Selecting rows of
    the memory is a copy, so sources leave together: on average no row is copied more than once.
    """
    if unfinished.is_cuda and (step + 1) % _STEPS_BETWEEN_LOOKS:
        return None
    if 2 * int(unfinished.sum()) > len(unfinished):
        return None
    return unfinished.nonzero().squeeze(1)


def select_rows(parts: tuple[Tensor, ...], rows: Tensor) -> tuple[Tensor, ...]:
    """Rows ``[M]`` of each part."""
    return tuple(part.index_select(0, rows) for part in parts)


def length_limits(max_length: int | Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, int]:
    """The most tokens of each source's sentences, ``[B]``, and the largest of these limits."""
    batch, device = len(memory[0]), memory[0].device
    expected = f"max_length must be a whole number or an int64 tensor [{batch}]"
    if isinstance(max_length, Tensor):
        if max_length.dtype not in (torch.int64, torch.int32) or max_length.shape != (batch,):
            raise ShapeError(f"{expected}, got {max_length.dtype} {list(max_length.shape)}")
        limits = max_length.to(device, torch.int64)
    elif isinstance(max_length, int) and not isinstance(max_length, bool):
        limits = torch.full((batch,), max_length, device=device)
    else:
        raise ShapeError(f"{expected}, got {max_length!r}")
    low, high = (int(end) for end in limits.aminmax()) if batch else (0, 0)
    if low < 0:
        raise LengthError(f"max_length must not be negative, got {low}")
    return limits, high


def check_log_probs(log_model: Tensor) -> None:
    """No log-probability ``[B, S]`` of a sentence is NaN, as it is after any NaN from the model."""
    bad = torch.isnan(log_model).any(1)
    if bool(bad.any()):
        raise ScoreError(
            "the model must give log-probabilities, "
            f"got NaN for source {int(bad.nonzero()[0])} of the batch"
        )
