"""Metrics for TensorBoard, where it is installed (``pip install 'softq[tensorboard]'``)."""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softq.lab.run import explain_write_errors

MOST_CURVES = 100  # one per cell; a larger sweep gets the mean and the extremes


class EventWriter:
    """Writes the metrics of each epoch; without TensorBoard or a folder it writes nothing.

    Records are appended one by one: torch's `SummaryWriter` hands them to a thread, which a full
    disk ends with a traceback.
    """

    def __init__(self, folder: Path | None, cells: Sequence[str], epoch: int) -> None:
        self._cells = cells
        self._path: Path | None = None
        if folder is None or importlib.util.find_spec("tensorboard") is None:
            return
        # files are read in the order of their names
        self._path = folder / f"events.out.tfevents.{time.time_ns()}"
        self._protocol: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
        self._records: Any = importlib.import_module("tensorboard.summary.writer.record_writer")
        session = self._protocol.SessionLog
        self._append(file_version="brain.Event:2")
        # hides what was written after the checkpoint that the run resumes from
        self._append(step=epoch + 1, session_log=session(status=session.START))

    def write(self, epoch: int, measured: Mapping[str, Sequence[float]]) -> None:
        """Add the metrics of one epoch, a list with one number per cell for each name."""
        curves = [
            {"tag": tag, "simple_value": value}
            for name, values in measured.items()
            for tag, value in self._curves(name, values).items()
        ]
        self._append(step=epoch, summary={"value": curves})

    def _append(self, **event: Any) -> None:
        if self._path is None:
            return
        record = io.BytesIO()
        self._records.RecordWriter(record).write(
            self._protocol.Event(wall_time=time.time(), **event).SerializeToString()
        )
        with explain_write_errors(self._path.parent), self._path.open("ab") as file:
            file.write(record.getvalue())

    def _curves(self, name: str, values: Sequence[float]) -> dict[str, float]:
        if len(values) == 1:
            return {name: values[0]}
        if len(values) <= MOST_CURVES:
            return {f"{name}/{cell}": x for cell, x in zip(self._cells, values, strict=True)}
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return {}
        mean = sum(finite) / len(finite)
        return {f"{name}/mean": mean, f"{name}/least": min(finite), f"{name}/most": max(finite)}
