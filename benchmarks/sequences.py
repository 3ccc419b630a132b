"""What the benchmarks of models of sentences share.

The real training loop with its speed and its waits, and repeated calls.
"""

from __future__ import annotations

import itertools
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from softq.lab.loop import Evaluation
from softq.lab.processes import Workers
from softq.lab.recipe import Objective
from softq.neural.examples import Examples
from softq.neural.learner import SequenceLearner
from softq.neural.modules.sequence import SequenceModel
from softq.neural.recipe import CandidateSettings, Optimizer, SequenceTraining
from timing import synchronize


def sentences(count: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    found: list[list[int]] = torch.randint(
        4, vocab, (count, length), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    return found


class NoJudge:
    """Nothing is evaluated here."""

    def score(self, model: SequenceModel) -> float:
        """No score."""
        return 0.0

    def judge(self, model: SequenceModel) -> Evaluation:
        """No counts and no measures."""
        return Evaluation({}, [{}])

    def notes(self, model: SequenceModel) -> dict[str, Tensor]:
        """No notes."""
        return {}


class Marked:
    """Steps whose begin and end on the GPU are noted."""

    def __init__(self, steps: Any) -> None:
        self._steps, self.graphs = steps, steps.graphs
        self.events: list[tuple[Any, Any]] = []

    def __call__(self, *arguments: Any) -> Tensor:
        """A step."""
        if not self.graphs:
            return self._steps(*arguments)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        total = self._steps(*arguments)
        end.record()
        self.events.append((begin, end))
        return total

    def idle(self) -> float:
        """Share of the time between steps."""
        gaps = [
            before[1].elapsed_time(after[0]) for before, after in itertools.pairwise(self.events)
        ]
        return sum(gaps) / self.events[0][0].elapsed_time(self.events[-1][1])


def training(
    work: str,
    model: SequenceModel,
    data: Examples,
    objective: Objective,
    candidates: CandidateSettings,
    *,
    inputs: int,
    words: int,
    steps: int,
    rounds: int,
    device: torch.device,
    precision: Any,
) -> dict[str, Any]:
    """Words a second of the real loop (``words`` of each step), the share of time in which the GPU waits, and the memory it takes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    learner = SequenceLearner(
        model,
        data,
        data,
        NoJudge(),
        objective=objective,
        candidates=candidates,
        optimizer=Optimizer(),
        training=SequenceTraining(batch_size=inputs, precision=precision),
        workers=Workers(device),
    )
    learner.train(0, 0, min(5, steps), [True])
    marked = learner._steps = Marked(learner._steps)
    speeds, idle = [], []
    for epoch in range(1, rounds + 1):
        marked.events.clear()
        start = time.perf_counter()
        learner.train(epoch, 0, steps, [True])
        synchronize()
        speeds.append(words * steps / (time.perf_counter() - start))
        if device.type == "cuda":
            idle.append(marked.idle())
    return {
        "work": work,
        "steps": steps,
        "words_per_second": round(statistics.median(speeds)),
        "idle": round(statistics.median(idle), 4) if idle else None,
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if idle else None,
    }


def repeated_seconds(call: Callable[[], object], times: int, rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        synchronize()
        start = time.perf_counter()
        for _ in range(times):
            call()
        synchronize()
        yield time.perf_counter() - start


def machine_name(device: str) -> str:
    return (
        torch.cuda.get_device_name()
        if device == "cuda"
        else platform.processor() or platform.machine()
    )


def show(rows: list[dict[str, Any]], title: str) -> None:
    table = Table(title=title, box=box.SIMPLE)
    for column in ("work", "words/s", "sentences/s", "bar", "× plain loop", "GPU idle", "memory"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        table.add_row(
            row["work"],
            f"{row['words_per_second']:,}" if "words_per_second" in row else "",
            f"{row['sentences_per_second']:,}" if "sentences_per_second" in row else "",
            f"{row['bar']:,.0f}" if row.get("bar") else "",
            f"{row['times_plain']:.1f}" if "times_plain" in row else "",
            "" if row.get("idle") is None else f"{row['idle']:.1%}",
            "" if row.get("peak_gib") is None else f"{row['peak_gib']:.1f} GiB",
        )
    Console(width=120).print(table)
