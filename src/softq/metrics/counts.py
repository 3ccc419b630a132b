"""Statistics of every example of a split, as a run keeps them: what sweeps and reports compute metrics and intervals from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor

from softq.errors import DataError

Metric = Callable[[Tensor], Tensor]
"""From sums of statistics over examples ``[..., D]`` to values ``[...]``."""

_INDEX_TYPES = (torch.uint8, torch.int16, torch.int32)


class ExampleCounts(NamedTuple):
    """Statistics ``[models, examples, D]`` of examples under one or several models, many of whose rows are alike.

    Attributes:
        rows: ``[U, D]`` float64, the distinct rows.
        row_of: ``[models, examples]``, the row of each example, in the smallest integer type that holds U.

    >>> counts = ExampleCounts.of(torch.tensor([[[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]]]))
    >>> counts.row_of
    tensor([[1, 0, 1]], dtype=torch.uint8)
    >>> counts.model(0).sum(0)
    tensor([2., 3.], dtype=torch.float64)

    """

    rows: Tensor
    row_of: Tensor

    @classmethod
    def of(cls, statistics: Tensor) -> Self:
        """The counts of statistics ``[models, examples, D]``."""
        flat = statistics.detach().double().cpu().flatten(0, 1)
        rows, index = torch.unique(flat, dim=0, return_inverse=True)
        return cls(rows, index.view(statistics.shape[:2]).to(smallest_type(len(rows))))

    def model(self, number: int) -> Tensor:
        """Statistics ``[examples, D]`` of one of the models, float64."""
        return self.rows[self.row_of[number].long()]

    def sums(self) -> Tensor:
        """Sums over examples for each model, ``[models, D]``: what metrics are functions of."""
        return torch.stack([self.model(number).sum(0) for number in range(len(self.row_of))])

    def tensors(self, split: str) -> dict[str, Tensor]:
        """Both tensors by the names that a file has them under."""
        return {f"{split}.rows": self.rows, f"{split}.index": self.row_of}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], split: str) -> Self | None:
        """The counts of a split in a file of `tensors`, None where it has none of this split."""
        rows, index = tensors.get(f"{split}.rows"), tensors.get(f"{split}.index")
        if rows is None or index is None:
            return None
        if (
            rows.dtype != torch.float64
            or rows.ndim != 2
            or index.dtype not in _INDEX_TYPES
            or index.ndim != 2
        ):
            raise DataError(
                f"expected {split} counts of shapes [rows, statistics] (float64) and [models, examples] (integers), "
                f"got {list(rows.shape)} {rows.dtype} and {list(index.shape)} {index.dtype}"
            )
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(rows):
            raise DataError(
                f"expected {split} counts that refer to rows 0..{len(rows) - 1}, got {int(index.min())}..{int(index.max())}"
            )
        return cls(rows, index)


def smallest_type(size: int) -> torch.dtype:
    """The smallest integer type that counts to ``size - 1``."""
    return next(kind for kind in _INDEX_TYPES if size <= torch.iinfo(kind).max + 1)
