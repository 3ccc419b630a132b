"""Cells and tables that sections on models of sentences share."""

from __future__ import annotations

from collections.abc import Mapping

from softq.lab.report.page import Column, Table, Value
from softq.lab.report.sentence_results import SentenceResults
from softq.lab.report.systems import R, System, Variant, bare, percent
from softq.metrics import Interval


def points(score: Interval | None) -> Value:
    """A share in percent, a dash where there is none."""
    return None if score is None else bare(percent(score))


def gain_over_ml(
    results: SentenceResults[R], variant: Variant[R], system: System[R], metric: str
) -> Value:
    """In points: with its interval where there is one, else the plain difference."""
    test = results.gain(system, metric)
    if test is not None:
        return percent(test.gain)
    return (
        None
        if variant.ml is None or system is variant.ml
        else difference(system, variant.ml, metric)
    )


def difference(system: System[R], other: System[R], metric: str) -> float | None:
    """Of two systems on the test part, in points."""
    ours, theirs = (one.value(f"test_{metric}") for one in (system, other))
    return None if ours is None or theirs is None else 100 * (ours - theirs)


def paper_title(results: SentenceResults[R]) -> str:
    """What columns of the paper's numbers are called, which are of another corpus as a rule."""
    return "paper" if results.is_papers_corpus else f"paper ({results.papers_corpus.split()[0]})"


def other_corpus(results: SentenceResults[R]) -> str:
    """The end of a sentence on such columns."""
    other = f", on {results.papers_corpus}, which is another corpus: compare differences between rows, not heights."
    return "." if results.is_papers_corpus else other


def seeds_note(variant: Variant[R]) -> str:
    """What is under the scores of a table, "" where it is nothing."""
    return (
        " Where there are several seeds, scores are means, and under them the range."
        if several_seeds(variant)
        else ""
    )


def several_seeds(variant: Variant[R]) -> bool:
    """Whether scores are means over seeds."""
    return any(len(system.seeds) > 1 for system in variant.systems)


def measured(variant: Variant[R], name: str) -> bool:
    """Whether any system of a variant has this score."""
    return any(name in system.scores for system in variant.systems)


def training_table(variant: Variant[R], titles: Mapping[str, Column], note: str) -> Table | None:
    """What else was measured of each model of a variant, under titles by the names of measures; None where it is nothing."""
    shown = {name: column for name, column in titles.items() if measured(variant, name)}
    if shown.keys() <= {"epoch"}:
        return None
    return Table(
        name="training",
        caption="How training went, and other scores on the test part" + variant.which,
        columns=[Column("Model"), *shown.values()],
        rows=[
            (system.label, *(system.value(name) for name in shown)) for system in variant.systems
        ],
        note=note,
    )
