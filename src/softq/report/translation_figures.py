"""Figures of the translation experiment, each with its numbers and its words; None where the results hold nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from softq.evaluate import Interval
from softq.report.curves import GREY, Panel, figure_of_temperatures, flat, learning_of
from softq.report.figures import Look, Series
from softq.report.page import Figure
from softq.report.systems import percent
from softq.report.translation_results import (
    METHODS,
    TABLES,
    TranslationResults,
    TranslationSystem,
    TranslationVariant,
    methods_of,
    papers_gains,
)

_LOOKS = {"RAML": Look("orange", "s", weight=2.2), "SQDML": Look("blue", "o", "--")}
_ML, _BAYES, _PAPER = Look("green", "", "-."), Look("ink", "", ":"), Look(GREY, "D", "--")

Curves = Mapping[str, Sequence[TranslationSystem]]


def temperatures(results: TranslationResults, variant: TranslationVariant) -> Figure | None:
    """Sentence and corpus BLEU against τ, and the gain over ML beside the paper's."""
    curves = {objective: [system for system in variant.tuned if system.objective == objective] for objective in variant.objectives}
    curves = {objective: systems for objective, systems in curves.items() if len(systems) > 1}
    if not curves:
        return None
    method, bayes = methods_of(variant), results.bayes_of(variant) or {}
    panels = [
        Panel("Development sentence BLEU", _scores(variant, curves, "dev_sentence_bleu")),
        Panel("Test sentence BLEU", _scores(variant, curves, "test_sentence_bleu", bayes.get("sentence_bleu"))),
        Panel("Test corpus BLEU", _scores(variant, curves, "test_corpus_bleu", bayes.get("corpus_bleu"))),
        Panel("Gain over ML in test corpus BLEU", _gains(variant, curves, "RAML" in curves), "points"),
    ]
    panels = [panel for panel in panels if panel.series]
    if not panels:
        return None
    several = any(len(system.seeds) > 1 for system in variant.systems)
    title = METHODS.get(method, "")
    return figure_of_temperatures(
        "bleu-by-temperature",
        f"Translation against temperature{title and f', {title}'}{variant.which}"
        + (f", the paper’s Table {TABLES[method]}" if method in TABLES else ""),
        "BLEU of sentences and of the corpus, each point at what else was best on the development part; flat lines are "
        + ("ML and the Bayes rule, which writes the right translation of the highest expected reward." if bayes else "ML.")
        + (" Bands are the range over seeds." if several else "")
        + (" In grey, the paper’s gain over its own ML, on IWSLT 2014 German–English." if method in TABLES else ""),
        f"{' and '.join(curves)} against temperature{variant.which}",
        panels,
    )


def learning(results: TranslationResults) -> Figure | None:
    """Training loss and development sentence BLEU by epoch, of the models that the tables compare."""
    return learning_of("translation", "sentence BLEU", results.runs, [system for system, _ in results.chosen()], results.name_of)


def _scores(variant: TranslationVariant, curves: Curves, score: str, bayes: float | None = None) -> list[Series]:
    """Curves of a measure, with ML and the Bayes rule as flat lines."""
    found = []
    for objective, systems in curves.items():
        points = [(system.tau or 0.0, percent(system.scores[score])) for system in systems if score in system.scores]
        if points:
            found.append(Series(objective, _LOOKS[objective], points))
    ml = None if variant.ml is None else variant.ml.percent(score)
    places = _places(found)
    if found and ml is not None:
        found.append(flat("ML", _ML, ml.value, places))
    if found and bayes is not None:
        found.append(flat("Bayes rule", _BAYES, 100 * bayes, places))
    return found


def _gains(variant: TranslationVariant, curves: Curves, with_paper: bool) -> list[Series]:
    """Gains over ML in test corpus BLEU, in points, ours and the paper's."""
    ml = None if variant.ml is None else variant.ml.percent("test_corpus_bleu")
    if ml is None:
        return []
    found = []
    for objective, systems in curves.items():
        scores = [(system.tau or 0.0, system.percent("test_corpus_bleu")) for system in systems]
        points = [(tau, score.value - ml.value) for tau, score in scores if score is not None]
        if points:
            found.append(Series(objective, _LOOKS[objective], points))
    gains = papers_gains(methods_of(variant)) if with_paper else {}
    papers = [Series("RAML, paper (IWSLT)", _PAPER, list(gains.items()))] if gains else []
    return [*found, flat("ML", _ML, 0.0, _places([*found, *papers])), *papers] if found else []


def _places(series: Sequence[Series]) -> list[tuple[float, float | Interval]]:
    """The points of all curves from left to right, for lines that go as far as all of them."""
    return sorted((point for one in series for point in one.points), key=lambda point: point[0])
