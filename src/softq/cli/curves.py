"""`softq theory --references`: a target as a function of its temperature, as a table and a picture."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import torch
import typer
from rich import box
from rich.table import Table

import softq
from softq.cli.shared import results_console
from softq.errors import DataError, TemperatureError
from softq.formats.text import number_words, read_references
from softq.rewards import NegativeHamming, Reward, named_reward
from softq.rewards.names import RewardName
from softq.samplers import NgramReplacement
from softq.sentences import Sentences
from softq.temperature import CandidateCurve, HammingCurve, TemperatureCurve, TemperaturePoint

_BAR = 14  # characters for a mass of one


class Objective(StrEnum):
    """Objectives that have a temperature."""

    raml = "raml"
    sqdml = "sqdml"


def show(
    path: Path,
    reward: RewardName,
    objective: Objective,
    taus: list[float],
    masses: list[float],
    size: int,
    max_n: int,
    examples: int,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Compute the curve of the references in a file, and print, draw and suggest."""
    for mass in masses:
        if not 0.0 < mass < 1.0:
            raise TemperatureError(f"--mass must lie between 0 and 1, got {mass:g}")
    numbers, words = number_words(read_references(path, examples))
    refs = Sentences.pack(numbers)
    scorer = named_reward(reward.value, words)
    curve, about = _curve(refs, scorer, objective, len(words), size, max_n, seed)
    points = curve.curve(taus)
    suggestions = [(mass, _suggest(curve, mass)) for mass in masses]
    if plot is not None:
        draw(points, f"{objective.value}, {scorer.signature}", plot)
    if as_json:
        rows = [
            {
                name: value if math.isfinite(value) else None
                for name, value in point._asdict().items()
            }
            for point in points
        ]
        facts = {
            "command": "theory",
            "softq": softq.__version__,
            "references": path.name,
            "examples": len(numbers),
            "words": len(words),
        }
        found = [
            {"mass": mass, "tau": tau if isinstance(tau, float) else None}
            for mass, tau in suggestions
        ]
        typer.echo(
            json.dumps(
                {
                    **facts,
                    "reward": scorer.signature,
                    "objective": objective.value,
                    **about,
                    "rows": rows,
                    "suggestions": found,
                }
            )
        )
        return
    source = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in about.items())
    title = (
        f"{objective.value.upper()} with {scorer.signature}, {len(numbers)} examples of"
        f" {path.name}, {len(words)} words ({source})"
    )
    _print(points, suggestions, title)
    if plot is not None:
        typer.echo(f"wrote {plot}")


def _curve(
    refs: Sentences,
    reward: Reward,
    objective: Objective,
    vocab: int,
    size: int,
    max_n: int,
    seed: int,
) -> tuple[TemperatureCurve, dict[str, object]]:
    """The curve, and what to say about where it comes from."""
    if isinstance(reward, NegativeHamming):
        if vocab < 2:
            raise DataError(
                "the Hamming distance needs references of at least two different words, got"
                f" {vocab}"
            )
        if objective == Objective.sqdml and refs.tokens.shape[1] > 1:
            raise DataError(
                "the exact Hamming curve is RAML's; for SQDML with several references choose"
                " another reward"
            )
        return HammingCurve(vocab, refs.lengths[refs.present], rescale=True), {
            "estimator": "exact",
            "temperature": "tau / (1 + log(words - 1))",
        }
    most = int(refs.present.sum(1).max())
    sampler = NgramReplacement(vocab, max_n=max_n, size=max(size, most + 1))
    cands = sampler(refs, generator=torch.Generator().manual_seed(seed))
    kind: Literal["raml", "sqdml"] = "raml" if objective == Objective.raml else "sqdml"
    about = {"estimator": "set", "size": sampler.size, "max_n": max_n, "seed": seed}
    return CandidateCurve(cands, refs, reward, objective=kind), about


def _suggest(curve: TemperatureCurve, mass: float) -> float | str:
    """The temperature, or why there is none."""
    try:
        return curve.suggest(mass)
    except TemperatureError as error:
        return str(error)


def _print(
    points: list[TemperaturePoint], suggestions: list[tuple[float, float | str]], title: str
) -> None:
    console = results_console()
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left")
    for column in ("tau", "E\\[r]", "entropy", "E\\[edits]", "ESS", "q(references)"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("")
    for point in points:
        worth = (
            f"{point.effective_sample_size:.1f}"
            if math.isfinite(point.effective_sample_size)
            else "exact"
        )
        figures = (
            f"{point.expected_reward:.4f}",
            f"{point.entropy:.2f}",
            f"{point.expected_edits:.3f}",
            worth,
            f"{point.reference_mass:.4f}",
        )
        table.add_row(f"{point.tau:g}", *figures, "█" * round(_BAR * point.reference_mass))
    console.print(table)
    for mass, tau in suggestions:
        text = (
            f"tau = {tau:.4g} leaves {mass:g} of the mass on the references"
            if isinstance(tau, float)
            else tau
        )
        console.print(text, highlight=False, soft_wrap=True)


def draw(points: list[TemperaturePoint], title: str, path: Path) -> None:
    """Four curves over the temperature, readable on light and dark pages."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DataError("--plot needs matplotlib: pip install softq[plot]") from error
    colours = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    settings: dict[Any, Any] = {
        "font.size": 9,
        "svg.hashsalt": "softq",
        **dict.fromkeys(colours, "#808080"),
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        panels = figure.subplots(2, 2, sharex=True).flat
        taus = [point.tau for point in points]
        fields = ("expected_reward", "reference_mass", "entropy", "expected_edits")
        names = (
            "expected reward",
            "mass on the references",
            "entropy (nats)",
            "edits to the nearest reference",
        )
        for panel, field, name in zip(panels, fields, names, strict=True):
            panel.plot(taus, [getattr(point, field) for point in points], marker="o", markersize=3)
            panel.set_xscale("log")
            panel.set_title(name, fontsize=9)
            panel.set_xlabel("tau")
            panel.grid(alpha=0.25)
        figure.suptitle(title, fontsize=9)
        try:
            figure.savefig(path, transparent=True)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot draw {path}: {error}") from error
