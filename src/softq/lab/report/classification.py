"""The paper's four-class experiment (§4.1.1, Appendix B) as a section of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from softq.lab.report import classification_figures as figures
from softq.lab.report.classification_results import (
    Best,
    Cell,
    ClassificationResults,
    Comparison,
    Sweep,
    at,
)
from softq.lab.report.page import Column, Figure, Section, Table, Value
from softq.lab.report.paper import (
    CLASSIFICATION_BEST_TAU,
    CLASSIFICATION_LARGEST_TAU,
    CLASSIFICATION_REPETITIONS,
    CLASSIFICATION_SETUP,
)
from softq.metrics import Interval
from softq.targets import ObjectiveName

__all__ = ["Cell", "ClassificationResults", "Comparison", "section"]

AGREEMENT_TAUS = (0.5, 1.0, 1.5, 2.0, 2.4, 3.0)

TUNED: tuple[ObjectiveName, ...] = ("raml", "sqdml")  # those with a temperature


def section(results: ClassificationResults) -> Section:
    """Everything the report says of the experiment, in the order of the paper."""
    parts: list[Table | Figure | None] = [
        _best_table(results),
        figures.short_range(results),
        _agreement_table(results),
        figures.scaled(results, "short"),
        figures.wide_range(results),
        figures.scaled(results, "wide"),
        _largest_table(results),
        figures.regions(results),
        figures.gap(results),
        _comparison_table(results),
    ]
    provenance = {
        "Recipe": results.recipe_hash,
        "Reward": results.signature,
        "Seeds": ", ".join(str(seed) for seed in sorted({cell.seed for cell in results.cells})),
        "Scale": results.scale,
        "Training time": f"{results.seconds:,.0f} seconds of training steps",
        "Device": results.device,
        "softq": results.version,
        "Report written": results.date,
    }
    return Section(
        title="Cost-sensitive classification in four classes",
        intro=[*_problem(results), *_findings(results)],
        parts=[part for part in parts if part is not None],
        differences=[*_data_differences(results), *results.differences],
        provenance={key: value for key, value in provenance.items() if value},
    )


# --- words ----------------------------------------------------------------------------------------------


def _problem(results: ClassificationResults) -> list[str]:
    setup, repetitions = results.setup, results.repetitions()
    return [
        "An input is a point of a square, and each corner stands for a class: the nearer the corner, the likelier the class. A right "
        "answer earns 7.39, 4.95, 3.32 or 3.00 by its class, a wrong one nothing (§4.1.1 of the paper). Maximum likelihood (ML) ignores "
        "these rewards, the Bayes rule earns the most that any decision can, and RAML and SQDML aim at it with a temperature τ.",
        f"Small networks were trained on {setup.inputs:,} inputs with {setup.outputs_per_input} outputs each, for at most "
        f"{setup.epochs} epochs, {'once' if repetitions == '1' else f'{repetitions} times'} for each objective and temperature. "
        "The rewards below belong to the epoch that was best on the validation set.",
    ]


def _findings(results: ClassificationResults) -> list[str]:
    said = []
    ml = results.ml("test")
    if ml is not None:
        said.append(
            f"ML earns {ml.value:.4f} on the test set, {results.of_bayes(ml.value):.1f} % of what the Bayes rule earns there"
        )
    for objective in TUNED:
        best = results.best(objective)
        if best is not None:
            earned = best.test.value
            name = _label(objective, best.temperature_scaled)
            said.append(
                f"{name} at its best τ = {best.tau:g} earns {earned:.4f} ({results.of_bayes(earned):.1f} %)"
            )
    return ["; ".join(said) + "."] if said else []


def _data_differences(results: ClassificationResults) -> list[str]:
    names = (
        "Training inputs",
        "Outputs per training input",
        "Validation pairs",
        "Test pairs",
        "Units of the hidden layers",
        "Learning rate",
        "Momentum",
        "Epochs at most",
    )
    rows = [
        (name, _plainly(ours), _plainly(theirs))
        for name, ours, theirs in zip(names, results.setup, CLASSIFICATION_SETUP, strict=True)
    ]
    rows.append(("Repetitions", results.repetitions(), str(CLASSIFICATION_REPETITIONS)))
    wide = [
        cell.tau for cell in results.cells if cell.sweep.startswith("wide") and cell.tau is not None
    ]
    if wide:
        rows.append(
            ("Largest temperature", _plainly(max(wide)), _plainly(CLASSIFICATION_LARGEST_TAU))
        )
    told = [
        f"{name}: {ours} here, {theirs} in the paper."
        for name, ours, theirs in rows
        if ours != theirs
    ]
    return [
        *told,
        "The data are drawn anew from the same distribution: the paper’s own draw is not published.",
    ]


def _plainly(value: Any) -> str:
    if isinstance(value, tuple):
        return " and ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _label(objective: ObjectiveName, temperature_scaled: bool) -> str:
    return objective.upper() + (", scaled" if temperature_scaled else "")


# --- tables ---------------------------------------------------------------------------------------------


def _best_table(results: ClassificationResults) -> Table | None:
    rows: list[Sequence[Value]] = []
    ml_dev, ml_test = results.ml("dev"), results.ml("test")
    if ml_dev is not None and ml_test is not None:
        rows.append(("ML", None, None, ml_dev, ml_test, results.of_bayes(ml_test.value), None))
    for objective in TUNED:
        best = results.best(objective)
        if best is not None:
            label, paper = (
                _label(objective, best.temperature_scaled),
                CLASSIFICATION_BEST_TAU[objective].value,
            )
            rows.append(
                (
                    label,
                    best.tau,
                    paper,
                    best.dev,
                    best.test,
                    results.of_bayes(best.test.value),
                    _against_ml(results, objective, best),
                )
            )
    if not rows:
        return None
    rows.append(("Bayes rule", None, None, results.bayes_dev, results.bayes_test, 100.0, None))
    return Table(
        name="best-temperature",
        caption="Each objective at the temperature that was best on the validation set",
        columns=[
            Column("Objective"),
            Column("Best τ", "g"),
            Column("Best τ in the paper", "g"),
            Column("Validation reward", ".4f"),
            Column("Test reward", ".4f"),
            Column("% of the Bayes rule", ".2f"),
            Column("Gain over ML on test", "+.4f"),
        ],
        rows=rows,
        note="Rewards are means over seeds with 95 % intervals (Student’s t); the gain’s interval is a paired bootstrap over the "
        f"test set. The paper’s best τ: {CLASSIFICATION_BEST_TAU['raml'].source}; it prints no rewards for this experiment, only curves.",
    )


def _against_ml(
    results: ClassificationResults, objective: ObjectiveName, best: Best
) -> Interval | None:
    wanted = (objective, best.temperature_scaled)
    for one in results.comparisons:
        if (one.objective, one.temperature_scaled) == wanted and math.isclose(
            one.tau, best.tau, rel_tol=1e-9
        ):
            return Interval(one.difference, one.low, one.high)
    return None


def _comparison_table(results: ClassificationResults) -> Table | None:
    if not results.comparisons:
        return None
    rows: list[Sequence[Value]] = [
        (
            f"{one.objective.upper()} τ = {one.tau:,g}{', scaled' if one.temperature_scaled else ''}",
            Interval(one.difference, one.low, one.high),
        )
        for one in results.comparisons
    ]
    return Table(
        name="gain-over-ml",
        caption="Gain over ML in test reward",
        columns=[Column("Model"), Column("Gain", "+.4f")],
        rows=rows,
        note="95 % intervals of a paired bootstrap over the test set.",
    )


def _agreement_table(results: ClassificationResults) -> Table | None:
    pairs: list[tuple[str, Interval, float]] = []
    ml = results.ml("test")
    if ml is not None:
        pairs.append(("ML", ml, results.population.reward_ml))
    curve = results.rewards("short", "raml", "test")
    for tau in AGREEMENT_TAUS:
        trained, exact = at(curve, tau), results.exact(tau)
        if trained is not None and exact is not None:
            pairs.append((f"RAML τ = {tau:g}", trained, exact.reward_raml))
    if not pairs:
        return None
    best = results.population.reward_bayes
    rows: list[Sequence[Value]] = [
        (
            label,
            trained,
            exact,
            100 * (trained.value / exact - 1),
            results.of_bayes(trained.value),
            100 * exact / best,
        )
        for label, trained, exact in pairs
    ]
    rows.append(
        (
            "Bayes rule",
            results.bayes_test,
            best,
            100 * (results.bayes_test / best - 1),
            100.0,
            100.0,
        )
    )
    return Table(
        name="population-agreement",
        caption="Trained networks and the exact values of the population",
        columns=[
            Column("Model"),
            Column("Test reward", ".4f"),
            Column("Exact reward", ".4f"),
            Column("Difference, %", "+.2f"),
            Column("Test, % of Bayes", ".2f"),
            Column("Exact, % of Bayes", ".2f"),
        ],
        rows=rows,
        note="Exact rewards are expectations over all inputs and outputs, of the Bayes rule, of ML and of RAML’s Q′ (softq theory). "
        "The draw of the test set moves all its rewards together, the Bayes rule’s too; in percent of the Bayes rule this cancels.",
    )


def _largest_table(results: ClassificationResults) -> Table | None:
    sweeps: tuple[Sweep, ...] = ("wide", "wide-scaled")
    curves = {
        (objective, sweep): results.rewards(sweep, objective, "test")
        for objective in TUNED
        for sweep in sweeps
    }
    taus = [points[-1][0] for points in curves.values() if points]
    if not taus:
        return None
    largest = max(taus)
    exact = results.exact(largest)
    rows: list[Sequence[Value]] = []
    for (objective, sweep), points in curves.items():
        test = at(points, largest)
        if test is not None:
            population = (
                None
                if exact is None
                else exact.reward_raml
                if objective == "raml"
                else exact.reward_sqdml
            )
            kind = "scaled by τ" if sweep == "wide-scaled" else "plain"
            rows.append(
                (f"{objective.upper()}, {kind}", test, population, results.of_bayes(test.value))
            )
    return Table(
        name="largest-temperature",
        caption=f"At τ = {largest:,g}, with plain logits and with logits scaled by the temperature",
        columns=[
            Column("Model"),
            Column("Test reward", ".4f"),
            Column("Exact reward", ".4f"),
            Column("% of the Bayes rule", ".2f"),
        ],
        rows=rows,
        note="The target’s log-odds are r/τ. Plain logits must learn numbers that small; divided by τ, with the loss multiplied by τ², "
        "they need not.",
    )
