"""`softq theory --references`: a target as a function of its temperature, as a table and a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import typer

from softq.cli.shared import make_table, print_json, print_line, results_console
from softq.cli.theory_command import TheoryOptions
from softq.errors import DataError, TemperatureError
from softq.formats.text import number_words, read_references
from softq.rewards import NegativeHamming, Reward, named_reward
from softq.samplers import NgramReplacement
from softq.sentences import Sentences
from softq.temperature import CandidateCurve, HammingCurve, TemperatureCurve, TemperaturePoint

_BAR = 14  # characters for a mass of one
_DRAWN = {
    "expected_reward": "expected reward",
    "reference_mass": "mass on the references",
    "entropy": "entropy (nats)",
    "expected_edits": "edits to the nearest reference",
}


_COLUMNS: dict[str, Callable[[TemperaturePoint], str]] = {
    "tau": lambda point: f"{point.tau:g}",
    "E[r]": lambda point: f"{point.expected_reward:.4f}",
    "entropy": lambda point: f"{point.entropy:.2f}",
    "E[edits]": lambda point: f"{point.expected_edits:.3f}",
    "ESS": lambda point: (
        f"{point.effective_sample_size:.1f}"
        if math.isfinite(point.effective_sample_size)
        else "exact"
    ),
    "q(references)": lambda point: f"{point.reference_mass:.4f}",
    "": lambda point: "█" * round(_BAR * point.reference_mass),
}
_STYLE: dict[Any, Any] = {  # readable on light and dark pages
    "font.size": 9,
    "axes.titlesize": 9,
    "figure.titlesize": 9,
    "lines.marker": "o",
    "lines.markersize": 3,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "savefig.transparent": True,
    "svg.hashsalt": "softq",
} | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), "#808080"
)


def show(path: Path, taus: list[float], options: TheoryOptions, *, as_json: bool) -> None:
    """Compute the curve of the references in a file, and print, draw and suggest."""
    masses = options.mass or [0.1, 0.5, 0.9]
    for mass in masses:
        if not 0.0 < mass < 1.0:
            raise TemperatureError(f"--mass must lie between 0 and 1, got {mass:g}")
    numbers, words = number_words(read_references(path, options.examples))
    scorer = named_reward(options.reward, words)
    curve, about = _curve(Sentences.pack(numbers), scorer, len(words), options)
    points = curve.curve(taus)
    suggestions = [(mass, _suggest(curve, mass)) for mass in masses]
    if options.plot is not None:
        _draw(points, f"{options.objective}, {scorer.signature}", options.plot)
    facts = {
        "references": path.name,
        "examples": len(numbers),
        "words": len(words),
        "reward": scorer.signature,
        "objective": options.objective,
        **about,
    }
    if as_json:
        found = [
            {"mass": mass, "tau": tau if isinstance(tau, float) else None}
            for mass, tau in suggestions
        ]
        print_json("theory", facts | {"rows": list(map(_as_json, points)), "suggestions": found})
        return
    source = ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in about.items())
    title = (
        f"{options.objective.upper()} with {scorer.signature}, {len(numbers)} examples of {path.name},"
        f" {len(words)} words ({source})"
    )
    console = results_console()
    print_line(console, title)
    rows = map(_row, points)
    console.print(make_table(list(_COLUMNS), rows, left=(len(_COLUMNS) - 1,)))
    for mass, tau in suggestions:
        if isinstance(tau, float):
            tau = f"tau = {tau:.4g} leaves {mass:g} of the mass on the references"
        print_line(console, tau)
    if options.plot is not None:
        typer.echo(f"wrote {options.plot}")


def _as_json(point: TemperaturePoint) -> dict[str, float | None]:
    return {
        name: value if math.isfinite(value) else None for name, value in point._asdict().items()
    }


def _row(point: TemperaturePoint) -> list[str]:
    return [of(point) for of in _COLUMNS.values()]


def _curve(
    refs: Sentences, reward: Reward, vocab: int, options: TheoryOptions
) -> tuple[TemperatureCurve, dict[str, object]]:
    """The curve, and what to say about where it comes from."""
    if isinstance(reward, NegativeHamming):
        if vocab < 2:
            raise DataError(
                "the Hamming distance needs references of at least two different words, got"
                f" {vocab}"
            )
        if options.objective == "sqdml" and refs.tokens.shape[1] > 1:
            raise DataError(
                "the exact Hamming curve is RAML's; for SQDML with several references choose"
                " another reward"
            )
        return HammingCurve(vocab, refs.lengths[refs.present], rescale=True), {
            "estimator": "exact",
            "temperature": "tau / (1 + log(words - 1))",
        }
    most = int(refs.present.sum(1).max())
    sampler = NgramReplacement(vocab, max_n=options.max_n, size=max(options.size, most + 1))
    cands = sampler(refs, generator=torch.Generator().manual_seed(options.seed))
    return CandidateCurve(cands, refs, reward, objective=options.objective), {
        "estimator": "set",
        "size": sampler.size,
        "max_n": options.max_n,
        "seed": options.seed,
    }


def _suggest(curve: TemperatureCurve, mass: float) -> float | str:
    """The temperature, or why there is none."""
    try:
        return curve.suggest(mass)
    except TemperatureError as error:
        return str(error)


def _draw(points: list[TemperaturePoint], title: str, path: Path) -> None:
    """Four curves over the temperature."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DataError("--plot needs matplotlib: pip install softq[plot]") from error
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        taus = [point.tau for point in points]
        panels = figure.subplots(2, 2, sharex=True).flat
        for panel, (field, name) in zip(panels, _DRAWN.items(), strict=True):
            panel.plot(taus, [getattr(point, field) for point in points])
            panel.set(xscale="log", xlabel="tau", title=name)
        figure.suptitle(title)
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise DataError(f"cannot draw {path}: {error}") from error
