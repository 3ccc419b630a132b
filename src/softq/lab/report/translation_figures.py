"""Figures of the translation experiment, each with its numbers and its words; None where the results hold nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from softq.lab.report.curves import (
    BOUND,
    GREY,
    LOOKS,
    Panel,
    curves_of,
    figure_of_temperatures,
    flat,
    gains_of,
    learning_of,
    places,
    scores_of,
)
from softq.lab.report.figures import Look, Series
from softq.lab.report.page import Figure
from softq.lab.report.translation_results import (
    METHODS,
    TABLES,
    TranslationResults,
    TranslationSystem,
    TranslationVariant,
    methods_of,
    papers_gains,
)

_PAPER = Look(GREY, "D", "--")


def temperatures(results: TranslationResults, variant: TranslationVariant) -> Figure | None:
    """Sentence and corpus BLEU against τ, and the gain over ML beside the paper's."""
    curves = curves_of(variant)
    if not curves:
        return None
    method, bayes = methods_of(variant), results.bayes_of(variant) or {}

    def bound(name: str) -> dict[str, tuple[Look, float]]:
        return {"Bayes rule": (BOUND, bayes[name])} if name in bayes else {}

    panels = [
        Panel("Development sentence BLEU", scores_of(variant, curves, "dev_sentence_bleu")),
        Panel(
            "Test sentence BLEU",
            scores_of(variant, curves, "test_sentence_bleu", bound("sentence_bleu")),
        ),
        Panel(
            "Test corpus BLEU", scores_of(variant, curves, "test_corpus_bleu", bound("corpus_bleu"))
        ),
        Panel("Gain over ML in test corpus BLEU", _gains(variant, curves), "points"),
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
        + (
            "ML and the Bayes rule, which writes the right translation of the highest expected reward."
            if bayes
            else "ML."
        )
        + (" Bands are the range over seeds." if several else "")
        + (
            " In grey, the paper’s gain over its own ML, on IWSLT 2014 German–English."
            if method in TABLES
            else ""
        ),
        f"{' and '.join(curves)} against temperature{variant.which}",
        panels,
    )


def learning(results: TranslationResults) -> Figure | None:
    """Training loss and development sentence BLEU by epoch, of the models that the tables compare."""
    return learning_of(
        "translation",
        "sentence BLEU",
        results.runs,
        [system for system, _ in results.chosen()],
        results.name_of,
    )


def _gains(
    variant: TranslationVariant, curves: Mapping[str, Sequence[TranslationSystem]]
) -> list[Series]:
    """Gains over ML in test corpus BLEU, in points, ours and the paper's."""
    found = gains_of(variant, curves, "test_corpus_bleu")
    papers = papers_gains(methods_of(variant)) if "RAML" in curves else {}
    theirs = [Series("RAML, paper (IWSLT)", _PAPER, list(papers.items()))] if papers else []
    return (
        [*found, flat("ML", LOOKS["ML"], 0.0, places([*found, *theirs])), *theirs] if found else []
    )
