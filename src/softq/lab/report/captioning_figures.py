"""Figures of the captioning experiment, each with its numbers and its words; None where the results hold nothing to draw."""

from __future__ import annotations

from softq.lab.report import paper
from softq.lab.report.captioning_results import (
    PAPERS,
    CaptioningResults,
    CaptioningVariant,
    share_of_ceiling,
)
from softq.lab.report.curves import (
    BOUND,
    LOOKS,
    Panel,
    curves_of,
    figure_of_temperatures,
    flat,
    learning_of,
    places,
    scores_of,
)
from softq.lab.report.figures import Series
from softq.lab.report.page import Figure
from softq.lab.report.sentence_tables import several_seeds
from softq.lab.report.systems import percent

_BANDS = " Bands are the range over seeds."


def temperatures(results: CaptioningResults, variant: CaptioningVariant) -> Figure | None:
    """Average reward and corpus BLEU against τ, and the paper's average reward beside them."""
    curves = curves_of(variant)
    if not curves:
        return None
    panels = [
        Panel("Development average reward", scores_of(variant, curves, "dev_average_reward")),
        Panel("Test average reward", scores_of(variant, curves, "test_average_reward")),
        Panel("Test corpus BLEU", scores_of(variant, curves, "test_corpus_bleu")),
    ]
    panels = [panel for panel in panels if panel.series]
    if not panels:
        return None
    return figure_of_temperatures(
        "reward-by-temperature",
        f"Average reward against temperature{variant.which}, the paper’s Table 1",
        "Average reward and corpus BLEU, each point at what else was best on the development part; flat lines are ML."
        + (_BANDS if several_seeds(variant) else "")
        + " The last panel is the paper’s, on MSCOCO.",
        f"{' and '.join(curves)} against temperature{variant.which}",
        [*panels, Panel("The paper’s average reward, MSCOCO", _papers_curves())],
    )


def _papers_curves() -> list[Series]:
    found = [
        Series(
            objective,
            LOOKS[objective],
            [(tau, scores.average_reward) for tau, scores in table.items()],
        )
        for objective, table in PAPERS.items()
    ]
    return [*found, flat("ML", LOOKS["ML"], paper.CAPTIONING_ML.average_reward, places(found[:1]))]


def expected(variant: CaptioningVariant) -> Figure | None:
    """The exact expected reward against τ, and its share of the ceiling; of the built-in world alone."""
    curves = curves_of(variant)
    ceiling = next(
        (
            value
            for system in variant.systems
            if (value := system.value("test_ceiling")) is not None
        ),
        None,
    )
    if not curves or ceiling is None:
        return None
    shares = [
        Series(
            objective,
            LOOKS[objective],
            [
                (system.tau or 0.0, percent(share))
                for system in systems
                if (share := share_of_ceiling(system))
            ],
        )
        for objective, systems in curves.items()
    ]
    ml = None if variant.ml is None else share_of_ceiling(variant.ml)
    lines = {} if ml is None else {"ML": (LOOKS["ML"], 100 * ml.value)}
    shares += [
        flat(label, look, value, places(shares))
        for label, (look, value) in {**lines, "Ceiling": (BOUND, 100.0)}.items()
    ]
    return figure_of_temperatures(
        "expected-reward-by-temperature",
        f"Expected reward against temperature, below its ceiling{variant.which}",
        "The reward to be expected of captions, exact over all that may be said of a scene. The ceiling is the mean expected reward of the "
        "consensus captions, each the best of all that people say of its scene."
        + (_BANDS if several_seeds(variant) else ""),
        f"{' and '.join(curves)} against temperature{variant.which}",
        [
            Panel(
                "Expected reward on the test part",
                scores_of(variant, curves, "test_expected_reward", {"Ceiling": (BOUND, ceiling)}),
            ),
            Panel("Share of the ceiling", shares),
        ],
    )


def learning(results: CaptioningResults) -> Figure | None:
    """Training loss and development reward by epoch, of the models that the tables compare."""
    return learning_of(
        "captioning",
        "average reward",
        results.runs,
        [system for system, _ in results.chosen()],
        results.name_of,
    )
