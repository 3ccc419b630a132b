"""Statistics of every example of a split, as a run keeps them.

What sweeps and reports compute metrics and intervals from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from softq.errors import DataError, ShapeError

Metric = Callable[[Tensor], Tensor]
"""From sums of statistics over examples ``[..., D]`` to values ``[...]``."""


@dataclass(frozen=True)
class Ratio:
    """The metric that divides the sum of one column of statistics by the sum of others.

    Attributes:
        columns: The names of all columns.
        part: The column that is divided.
        wholes: The columns whose sum it is divided by.
        factor: The ratio is multiplied by this: 2 makes F1 of matches, predictions and references.
        empty: The value where the sum of ``wholes`` is 0.

    >>> Ratio(("right", "words"), "right", "words")(torch.tensor([3.0, 4.0]))
    tensor(0.7500)

    """

    columns: tuple[str, ...]
    part: str
    wholes: tuple[str, ...] | str
    factor: float = 1.0
    empty: float = 0.0

    def __call__(self, sums: Tensor) -> Tensor:
        """The value from sums over examples ``[..., D]``, whose first columns are enough."""
        wholes = (self.wholes,) if isinstance(self.wholes, str) else self.wholes
        whole = torch.stack([sums[..., self.columns.index(name)] for name in wholes]).sum(0)
        ratio = self.factor * sums[..., self.columns.index(self.part)] / whole.clamp_min(1)
        return ratio.where(whole > 0, self.empty) if self.empty else ratio


def check_pairs(
    references: Sequence[Any],
    predictions: Sequence[Any],
    what: str,
    sizes: Callable[[Any], int] | None = None,
) -> None:
    """Raise an error unless there is a prediction of the right size for each reference.

    Args:
        references: What is right.
        predictions: What is scored.
        what: What errors call a prediction.
        sizes: The size that the prediction for a reference must have; by default any.

    """
    if len(references) != len(predictions):
        raise ShapeError(
            f"expected {what} for each of {len(references)} sentences, got {len(predictions)}"
        )
    for number, (reference, prediction) in enumerate(zip(references, predictions, strict=True)):
        if sizes is not None and sizes(reference) != len(prediction):
            raise ShapeError(
                f"sentence {getattr(reference, 'sent_id', '') or number}: expected {what} for "
                f"{sizes(reference)} words, got {len(prediction)}"
            )


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
                f"expected {split} counts of shapes [rows, statistics] (float64) and [models,"
                f" examples] (integers), got {list(rows.shape)} {rows.dtype} and"
                f" {list(index.shape)} {index.dtype}"
            )
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < len(rows):
            raise DataError(
                f"expected {split} counts that refer to rows 0..{len(rows) - 1}, got"
                f" {int(index.min())}..{int(index.max())}"
            )
        return cls(rows, index)


def smallest_type(size: int) -> torch.dtype:
    """The smallest integer type that counts to ``size - 1``."""
    return next(kind for kind in _INDEX_TYPES if size <= torch.iinfo(kind).max + 1)
