"""Metrics for TensorBoard, where it is installed (``pip install 'softq[tensorboard]'``)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_CURVES = 100  # of cells one by one; a larger sweep gets the mean and the extremes


class EventWriter:
    """Writes the numbers of each epoch; without TensorBoard or a folder it writes nothing."""

    def __init__(self, folder: Path | None, cells: Sequence[str], epoch: int) -> None:
        self._cells = cells
        self._writer: Any = None
        if folder is not None and importlib.util.find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            # what was written after the checkpoint that the run goes on from is hidden
            self._writer = SummaryWriter(str(folder), purge_step=epoch + 1 if epoch else None)

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, epoch: int, measured: Mapping[str, Sequence[float]]) -> None:
        """Add the numbers of one epoch, a list with one number per cell for each name."""
        if self._writer is None:
            return
        for name, values in measured.items():
            for curve, value in self._curves(name, values).items():
                self._writer.add_scalar(curve, value, epoch)
        self._writer.flush()

    def _curves(self, name: str, values: Sequence[float]) -> dict[str, float]:
        if len(values) == 1:
            return {name: values[0]}
        if len(values) <= MOST_CURVES:
            return {f"{name}/{cell}": value for cell, value in zip(self._cells, values, strict=True)}
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return {}
        return {f"{name}/mean": sum(finite) / len(finite), f"{name}/least": min(finite), f"{name}/most": max(finite)}
