"""Tables of the parsing experiment; None where the results hold nothing to show."""

from __future__ import annotations

from collections.abc import Sequence

from softq.lab.report.page import Column, Table, Value
from softq.lab.report.paper import (
    PARSING_BEST_TAU,
    PARSING_EXACT_MATCH_ML,
    PARSING_EXACT_MATCH_RAML,
    PARSING_ML,
    PARSING_RAML,
    ParsingScores,
)
from softq.lab.report.parsing_results import ParsingResults, ParsingSystem, ParsingVariant
from softq.lab.report.systems import bare, of_tau, percent
from softq.metrics import Interval

_BAYES = "Bayes rule"
_KL_OF_MIXTURES = (
    " Of a sentence with several trees, RAML’s target is a mixture with a component for each tree, and its KL the mean of "
    "KL(component ‖ model), which is never below KL(mixture ‖ model)."
)


def temperatures(results: ParsingResults, variant: ParsingVariant) -> Table | None:
    """The paper's Table 3 with ours beside it."""
    if not variant.systems:
        return None
    rows: list[Sequence[Value]] = []
    for system in variant.systems:
        paper = _papers(system)
        rows.append(
            (
                variant.marked(system),
                bare(system.percent("dev_uas")),
                paper and paper.dev_uas,
                bare(system.percent("test_uas")),
                paper and paper.test_uas,
                _points(results.gain(system, "uas")),
                papers_gain(system.tau) if system.objective == "RAML" else None,
                *(bare(system.percent(f"test_{name}")) for name in ("las", "exact_match")),
            )
        )
    bayes = results.bayes_of(variant)
    if bayes is not None:
        rows.append(
            (
                _BAYES,
                None,
                None,
                100 * bayes["uas"],
                *[None] * 3,
                *(100 * bayes[name] for name in ("las", "exact_match")),
            )
        )
    several = (
        " Where there are several seeds, scores are means, and under them the range."
        if _several_seeds(variant)
        else ""
    )
    return Table(
        name="temperatures",
        caption="ML and each temperature, at what else was best on the development part"
        + variant.which,
        columns=[
            Column("Model"),
            Column("Dev UAS, %", ".2f"),
            Column(f"Dev UAS, {_paper(results)}", ".1f"),
            Column("Test UAS, %", ".2f"),
            Column(f"Test UAS, {_paper(results)}", ".1f"),
            Column("Gain over ML in UAS", "+.2f"),
            Column(f"Gain, {_paper(results)}", "+.1f"),
            Column("Test LAS, %", ".2f"),
            Column("Test exact match, %", ".2f"),
        ],
        rows=rows,
        note="“Best” is the temperature of an objective with the highest UAS on the development part. Gains are in points, with 95 % "
        f"intervals of a paired bootstrap over test sentences. Exact match is the share of sentences with every head right.{several}"
        + (
            " The Bayes rule has the most heads right that the words allow."
            if bayes is not None
            else ""
        )
        + f" Columns “paper” are its Table 3, on the Penn Treebank{_corpus(results)}",
    )


def metrics(results: ParsingResults, variant: ParsingVariant) -> Table | None:
    """The parsing columns of the paper's Table 6: ML and what is best on the development part, by two metrics."""
    chosen = [variant.ml, *map(variant.best_of, variant.objectives)]
    shown = [system for system in chosen if system is not None]
    if len(shown) < 2:
        return None
    rows: list[Sequence[Value]] = []
    for system in shown:
        judged = results.judged.get(system.name)
        uas, exact = _papers_at_best(system)
        rows.append(
            (
                system.label,
                bare(system.percent("test_uas")) if judged is None else percent(judged.uas),
                uas,
                _points(results.gain(system, "uas")),
                bare(system.percent("test_exact_match"))
                if judged is None
                else percent(judged.exact_match),
                exact,
                _points(results.gain(system, "exact_match")),
            )
        )
    return Table(
        name="metrics",
        caption="ML and the best temperature under two metrics, on the test part" + variant.which,
        columns=[
            Column("Model"),
            Column("UAS, %", ".2f"),
            Column(f"UAS, {_paper(results)}", ".1f"),
            Column("Gain in UAS", "+.2f"),
            Column("Exact match, %", ".2f"),
            Column(f"Exact match, {_paper(results)}", ".1f"),
            Column("Gain in exact match", "+.2f"),
        ],
        rows=rows,
        note="With 95 % intervals of a bootstrap over test sentences, of gains over ML in pairs. Columns “paper” are the parsing columns "
        f"of its Table 6, RAML at τ = {PARSING_BEST_TAU.value:g}, on the Penn Treebank{_corpus(results)}",
    )


def training(variant: ParsingVariant) -> Table | None:
    """How each model of `temperatures` was trained, and on what."""
    if not any("cross_entropy" in system.scores for system in variant.systems):
        return None
    by_epochs = all(system.recipe.optimizer.method == "adagrad" for system in variant.systems)
    names = ("cross_entropy", "kl", "relation_loss", "sentences", "lifted", "skipped", "parameters")
    rows: list[Sequence[Value]] = [
        (
            system.label,
            system.recipe.optimizer.learning_rate if by_epochs else system.recipe.optimizer.c2,
            system.value("epoch" if by_epochs else "iterations"),
            *(system.value(name) for name in names),
        )
        for system in variant.systems
    ]
    return Table(
        name="training",
        caption="How training went" + variant.which,
        columns=[
            Column("Model"),
            Column("Learning rate" if by_epochs else "c2", "g"),
            Column("Best epoch" if by_epochs else "Iterations", ",g"),
            Column("Cross-entropy", ".4f"),
            Column("KL to the target", ".4f"),
            Column("Loss of relations", ".4f"),
            Column("Sentences", ",g"),
            Column("Trees lifted", ",g"),
            Column("Sentences left out", ",g"),
            Column("Weights", ",.0f"),
        ],
        rows=rows,
        note="Cross-entropy and KL are in nats per training sentence, the loss of relations in nats per word. Trees are lifted and "
        "sentences left out because arcs cross."
        + (_KL_OF_MIXTURES if _has_mixtures(variant) else ""),
    )


# --- the paper's ----------------------------------------------------------------------------------------


def papers_gain(tau: float | None) -> float | None:
    """What RAML gains over ML in test UAS at a temperature in the paper, in points; it prints one digit.

    >>> papers_gain(0.3)
    0.4
    """
    row: ParsingScores | None = of_tau(PARSING_RAML, tau)
    return None if row is None else round(row.test_uas - PARSING_ML.test_uas, 1)


def _papers(system: ParsingSystem) -> ParsingScores | None:
    found: ParsingScores | None = PARSING_ML if system.objective == "ML" else None
    return of_tau(PARSING_RAML, system.tau) if system.objective == "RAML" else found


def _papers_at_best(system: ParsingSystem) -> tuple[float | None, float | None]:
    """UAS and exact match of Table 6, whatever temperature is best here."""
    if system.objective == "ML":
        return PARSING_ML.test_uas, PARSING_EXACT_MATCH_ML.value
    if system.objective == "RAML":
        return PARSING_RAML[PARSING_BEST_TAU.value].test_uas, PARSING_EXACT_MATCH_RAML.value
    return None, None


def _paper(results: ParsingResults) -> str:
    return "paper" if results.is_papers_corpus else "paper (PTB)"


def _corpus(results: ParsingResults) -> str:
    return (
        "."
        if results.is_papers_corpus
        else ", which is another corpus: compare differences between rows, not heights."
    )


# --- shared ---------------------------------------------------------------------------------------------


def _points(gain: Interval | None) -> Interval | None:
    return None if gain is None else percent(gain)


def _has_mixtures(variant: ParsingVariant) -> bool:
    """Whether there is RAML of several annotators' trees."""
    return any(
        system.objective == "RAML" and (data.references if data.train else data.annotators > 1)
        for system in variant.systems
        for data in [system.recipe.data]
    )


def _several_seeds(variant: ParsingVariant) -> bool:
    return any(len(system.seeds) > 1 for system in variant.systems)
