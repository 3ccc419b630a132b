"""Figures of the parsing experiment, each with its numbers and its words; None where the results hold nothing to draw."""

from __future__ import annotations

from collections.abc import Sequence

from softq.lab.report.curves import GREY, Panel, figure_of_temperatures, flat, learning_of
from softq.lab.report.figures import Look, Series
from softq.lab.report.page import Figure
from softq.lab.report.paper import PARSING_RAML
from softq.lab.report.parsing_results import ParsingResults, ParsingSystem, ParsingVariant
from softq.lab.report.parsing_tables import papers_gain
from softq.lab.report.systems import percent
from softq.metrics import Interval

_LOOKS = {"RAML": Look("orange", "s", weight=2.2), "SQDML": Look("blue", "o", "--")}
_ML, _BAYES, _PAPER = Look("green", "", "-."), Look("ink", "", ":"), Look(GREY, "D", "--")


def temperatures(results: ParsingResults, variant: ParsingVariant) -> Figure | None:
    """UAS and exact match against τ, and the gain over ML beside the paper's Table 3."""
    curves = {
        objective: [system for system in variant.tuned if system.objective == objective]
        for objective in variant.objectives
    }
    curves = {objective: systems for objective, systems in curves.items() if len(systems) > 1}
    if not curves:
        return None
    bayes = results.bayes_of(variant)
    panels = [
        Panel("Development UAS", _scores(results, variant, curves, "dev_uas")),
        Panel(
            "Test UAS",
            _scores(results, variant, curves, "test_uas", None if bayes is None else bayes["uas"]),
        ),
        Panel(
            "Test exact match",
            _scores(
                results,
                variant,
                curves,
                "test_exact_match",
                None if bayes is None else bayes["exact_match"],
            ),
        ),
        Panel("Gain over ML in test UAS", _gains(results, variant, curves), "points"),
    ]
    several = any(len(system.seeds) > 1 for system in variant.systems)
    return figure_of_temperatures(
        "uas-by-temperature",
        f"Parsing against temperature{variant.which}, the paper’s Table 3",
        "UAS and exact match, each point at what else was best on the development part; flat lines are ML"
        + (
            " and the Bayes rule, which has the most heads right that the words allow."
            if bayes is not None
            else "."
        )
        + (
            " Bands on the test part are 95 % intervals of a bootstrap over its sentences, of gains in pairs."
            if results.judged
            else ""
        )
        + (" The band on the development part is the range over seeds." if several else "")
        + " In grey, the paper’s gain over its own ML, on the Penn Treebank.",
        f"{' and '.join(curves)} against temperature{variant.which}",
        [panel for panel in panels if panel.series],
    )


def learning(results: ParsingResults) -> Figure | None:
    """Training loss and development UAS by epoch, of the models that the tables show."""
    return learning_of(
        "parsing", "UAS", results.runs, [system for system, _ in results.pairs()], results.name_of
    )


def _scores(
    results: ParsingResults,
    variant: ParsingVariant,
    curves: dict[str, list[ParsingSystem]],
    score: str,
    bayes: float | None = None,
) -> list[Series]:
    """Curves of a measure, with ML and the Bayes rule as flat lines."""
    found = []
    for objective, systems in curves.items():
        points = [
            (system.tau or 0.0, shown)
            for system in systems
            if (shown := _shown(results, system, score)) is not None
        ]
        if points:
            found.append(Series(objective, _LOOKS[objective], points))
    ml = None if variant.ml is None else variant.ml.percent(score)
    places = _places(found)
    if found and ml is not None:
        found.append(flat("ML", _ML, ml.value, places))
    if found and bayes is not None:
        found.append(flat("Bayes rule", _BAYES, 100 * bayes, places))
    return found


def _shown(results: ParsingResults, system: ParsingSystem, score: str) -> Interval | None:
    """A score in percent: on the test part with its bootstrap interval, else as it was measured."""
    judged = results.judged.get(system.name)
    if judged is not None and score in ("test_uas", "test_exact_match"):
        return percent(judged.uas if score == "test_uas" else judged.exact_match)
    return system.percent(score)


def _gains(
    results: ParsingResults, variant: ParsingVariant, curves: dict[str, list[ParsingSystem]]
) -> list[Series]:
    """Gains over ML in test UAS, in points, ours and the paper's."""
    ml = None if variant.ml is None else variant.ml.percent("test_uas")
    if ml is None:
        return []
    found = []
    for objective, systems in curves.items():
        points: list[tuple[float, float | Interval]] = []
        for system in systems:
            gain, score = results.gain(system, "uas"), system.percent("test_uas")
            if gain is not None:
                points.append((system.tau or 0.0, percent(gain)))
            elif score is not None:
                points.append((system.tau or 0.0, score.value - ml.value))
        if points:
            found.append(Series(objective, _LOOKS[objective], points))
    papers = Series(
        "RAML, paper (PTB)", _PAPER, [(tau, papers_gain(tau) or 0.0) for tau in PARSING_RAML]
    )
    return [*found, flat("ML", _ML, 0.0, _places([*found, papers])), papers] if found else []


def _places(series: Sequence[Series]) -> list[tuple[float, float | Interval]]:
    """The points of all curves from left to right, for lines that go as far as all of them."""
    return sorted((point for one in series for point in one.points), key=lambda point: point[0])
