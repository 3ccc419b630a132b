"""Two models on the same file: differences of their scores with intervals and p-values, as JSON and as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from softq.errors import DataError
from softq.formats.bitext import Bitext
from softq.formats.captions import Captions
from softq.metrics import PairedTest, paired_test

Compared = dict[str, tuple[float, PairedTest]]
"""For each metric the second model's score, and the first one's advantage."""


def compare(
    ours: Tensor, others: Tensor, metrics: Mapping[str, Callable[[Tensor], Tensor]]
) -> Compared:
    """By statistics of the same sentences ``[N, D]``; metrics that one of the models has no value of are left out."""
    compared = {}
    for name, metric in metrics.items():
        score = float(metric(others.sum(0)))
        if not math.isnan(score + float(metric(ours.sum(0)))):
            generator = torch.Generator().manual_seed(0)  # the same draws for all metrics
            (test,) = paired_test(ours[None, None], others[None], metric, generator=generator)
            if not math.isnan(test.p_value):  # a draw may hold nothing that the metric counts
                compared[name] = score, test
    return compared


def as_json(compared: Compared, against: str) -> dict[str, Any]:
    """The second model, its scores, and the differences."""
    return {"model": against} | {
        name: {"score": score, "difference": test.gain._asdict() | {"p_value": test.p_value}}
        for name, (score, test) in compared.items()
    }


def show_difference(
    scores: Mapping[str, float],
    compared: Compared,
    titles: Mapping[str, str],
    model: str,
    against: str,
    console: Console,
) -> None:
    """The same as a table; ``titles`` are those of metrics not called by their name."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    for title in (escape(model), escape(against), "difference"):
        table.add_column(title, justify="right")
    table.add_column("95 % interval")
    table.add_column("p", justify="right")
    for name, (other, (gap, p_value)) in compared.items():
        interval = f"\\[{gap.low:+.4f}, {gap.high:+.4f}]"
        table.add_row(
            titles.get(name, name),
            f"{scores[name]:.4f}",
            f"{other:.4f}",
            f"{gap.value:+.4f}",
            interval,
            f"{p_value:.3f}",
        )
    console.print(table)
    console.print(
        "Intervals and p-values (two-sided) are of a paired bootstrap over the sentences of the file.",
        highlight=False,
    )


def check_same_words(
    models: Sequence[Path],
    plains: Sequence[Callable[[str], list[str]]],
    gold: Bitext | Captions,
    references: list[list[str]],
    hint: str,
) -> None:
    """An error if models count the words of references differently (``plains``), which makes their scores incomparable."""
    for number, several in enumerate(references):
        for text in several:
            if any(plain(text) != plains[0](text) for plain in plains[1:]):
                raise DataError(
                    f"{gold.place(number)}: {models[0]} and {models[1]} count words differently (tokenizer, lowercase): {hint}"
                )
