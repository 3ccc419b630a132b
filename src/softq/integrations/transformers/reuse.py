"""Samples that several steps in succession are trained on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import Sampler

from softq.integrations.transformers.candidates import Row
from softq.spaces import Candidates


class Drawn(NamedTuple):
    """Samples of the model for the rows of a batch."""

    texts: Candidates
    """``[B, S]``; ``log_proposal`` are log-probabilities at sampling time, where they are needed."""
    exact: Tensor
    """Bool ``[B, S]``: ended by the model itself."""
    fresh: bool
    """Whether they are the samples of this step's model."""


class ReusedSamples:
    """What was made of the samples for the last batches, until it has been used often enough.

    Args:
        times: how often it is used.
        batches: of one optimizer step.

    """

    def __init__(self, times: int, batches: int) -> None:
        self.times, self.batches = times, batches
        self._found: OrderedDict[tuple[Any, ...], tuple[Any, int]] = OrderedDict()

    def find(self, rows: Sequence[Row]) -> Any:
        """What was kept for these rows; None if there is nothing or it is used up."""
        value, left = self._found.pop(_key(rows), (None, 0))
        if left > 1:
            self._found[_key(rows)] = value, left - 1
        return value

    def keep(self, rows: Sequence[Row], value: Any) -> None:
        """For as many uses as are still to come."""
        if self.times == 1:
            return
        self._found[_key(rows)] = value, self.times - 1
        while len(self._found) > self.batches:
            self._found.popitem(last=False)


def _key(rows: Sequence[Row]) -> tuple[Any, ...]:
    return tuple((*row.source, -1, *(tuple(text) for text in row.references)) for row in rows)


class RepeatedBatches(Sampler[int]):
    """The numbers of another sampler, each ``size`` of them ``times`` times in succession.

    Those at the end that are less than ``size`` come once.

    >>> list(RepeatedBatches([5, 6, 7, 8, 9], 2, 2))
    [5, 6, 5, 6, 7, 8, 7, 8, 9]

    """

    def __init__(self, sampler: Any, size: int, times: int) -> None:
        self.sampler, self.size, self.times = sampler, size, times

    def __iter__(self) -> Iterator[int]:
        """The numbers of rows."""
        found: list[int] = []
        for number in self.sampler:
            found.append(number)
            if len(found) == self.size:
                yield from found * self.times
                found = []
        yield from found

    def __len__(self) -> int:
        """How many there are."""
        whole, rest = divmod(len(self.sampler), self.size)
        return whole * self.size * self.times + rest
