"""What a section says of a sweep over a corpus: what it was trained on and judged by, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from softq.lab.report.page import Part, Section, show
from softq.lab.report.systems import R, SweepResults, System, Variant, bare_settings, percent
from softq.metrics import Interval


def section_of(
    results: SweepResults[R],
    title: str,
    intro: Sequence[str],
    parts: Sequence[Part | None],
    differences: Sequence[str],
) -> Section:
    """The section of a sweep; what there is nothing to show of is left out, and what is wrong with the numbers is said."""
    return Section(
        title=title,
        intro=[*intro, *_warnings(results)],
        parts=[part for part in parts if part is not None],
        command=results.command,
        recipe=results.recipe_text,
        differences=differences,
        provenance=results.provenance(),
    )


def file_words(results: SweepResults[R], part: str) -> str:
    """The file of a part ("train", "dev", "test") and how many sentences or images it has, where that is known."""
    name = Path(getattr(results.recipe.data, part)).name
    return (
        f"{name} ({counted(results.sentences[part], results.unit)})"
        if part in results.sentences
        else name
    )


def counted(count: int, unit: str) -> str:
    """So many of a kind.

    >>> counted(1, "sentence"), counted(2000, "image")
    ('1 sentence', '2,000 images')
    """
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def judging_words(
    results: SweepResults[R],
    metric: str,
    *,
    world: tuple[str, str] | None,
    without_dev: str = "the training file itself",
) -> str:
    """What settings were chosen by, and what the final numbers are of.

    Args:
        results: of the sweep.
        metric: that settings are chosen by.
        world: the development and test parts in words where nothing is read from files.
        without_dev: what settings are chosen by where there is no development file.

    """
    data, sizes = results.recipe.data, results.sentences
    if world is not None:
        choice, final = world
    elif data.halve_dev:
        halves = [f" ({sizes[part]:,})" if part in sizes else "" for part in ("dev", "test")]
        choice, final = (
            f"every other {results.unit} of {Path(data.dev).name}{halves[0]}",
            f"the remaining ones{halves[1]}",
        )
    else:
        choice = file_words(results, "dev") if data.dev else without_dev
        final = (
            file_words(results, "test")
            if data.test
            else "the development file again"
            if data.dev
            else "the training file again"
        )
    return f"Settings were chosen by {metric} on the development part, {choice}; the final numbers are of the test part, {final}."


def temperature_finding(variant: Variant[R], metric: str, gain: Interval | None) -> str:
    """ML and the best temperature on the test part; ``gain`` is of the best over ML."""
    said = (
        [f"ML has a test {metric} of {score_words(variant.ml)}"] if variant.ml is not None else []
    )
    best = variant.best
    if best is not None:
        added = gain_words(gain) if variant.ml is not None else ""
        said.append(
            f"{best.objective} at τ = {best.tau:g}, its best on the development part, has {score_words(best)}{added}"
        )
    which = f"With {bare_settings(variant.settings)}: " if variant.settings else ""
    return which + "; ".join(said) + "."


def score_words(system: System[R]) -> str:
    """The metric on the test part."""
    return f"{show(percent(system.scores['test']), '.2f')} %"


def gain_words(gain: Interval | None) -> str:
    """A gain behind what it is of, "" where it is not known."""
    if gain is None:
        return ""
    value, low, high = (show(end, "+.2f") for end in percent(gain))
    return f", {value} points ({low} to {high})"


def _warnings(results: SweepResults[R]) -> list[str]:
    """Which models have not converged, and that the data are gone, if they are."""
    said = []
    late = [
        results.name_of(system)
        for system, _ in results.pairs()
        if system.value("converged") not in (None, 1.0)
    ]
    if late:
        which = "This model" if len(late) == 1 else "These models"
        said.append(
            f"{which} stopped before training had converged, so the numbers are not the optimum’s: {'; '.join(late)}."
        )
    if results.missing:
        said.append(
            f"The data cannot be read here ({results.missing}), so intervals and whatever else needs it are left out."
        )
    return said
