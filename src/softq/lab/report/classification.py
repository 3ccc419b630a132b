"""What the four-class experiment (§4.1.1, Appendix B) shows beside the common tables.

Exact values, decision regions, the gap and its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softq.formats.file_checks import undamaged
from softq.kernels import perceptrons
from softq.lab.report.content import Column, Figure, Part, Table, bare
from softq.lab.report.drawing import Canvas, Look, Series, number_axis
from softq.lab.report.results import Results, System, Variant
from softq.lab.run import BEST, RunFolder
from softq.lab.tasks.base import best_models
from softq.metrics import Interval
from softq.theory import TheoryTable, bayes_rule, four_class_problem, theory_table

AGREEMENT_TAUS = (0.5, 1.0, 1.5, 2.0, 2.4, 3.0)
# inputs along each side, for rewards to about 1e-5 in tables and 1e-4 in curves
FINE_GRID, COARSE_GRID, REGION_GRID = 1000, 400, 160
# temperatures that no grid has, to draw exact curves through
BETWEEN = (4.0, 6.0, 9.0, 13.0, 20.0, 30.0, 45.0, 65.0, 100.0, 150.0)
SMALLEST_GAP = 1e-12  # below it, KL(Q‖Q') is rounding error of float64


def extras(results: Results) -> list[Part | None]:
    """The parts of this experiment alone."""
    return [_population_table(results), _regions(results), _gap(results)]


# --- exact values ---------------------------------------------------------------------------------------


def population(results: Results) -> TheoryTable:
    """Exact rewards, gap and bounds at the temperatures of a sweep, and between them."""
    return _population(tuple(sorted({one.tau for one in results.systems if one.tau is not None})))


@lru_cache(maxsize=4)
def _population(taus: tuple[float, ...]) -> TheoryTable:
    fine = theory_table(
        four_class_problem(FINE_GRID), [tau for tau in taus if tau in AGREEMENT_TAUS]
    )
    others = [tau for tau in taus if tau not in AGREEMENT_TAUS]
    if max(taus, default=0.0) > BETWEEN[0]:
        others += [tau for tau in BETWEEN if tau not in taus]
    coarse = theory_table(four_class_problem(COARSE_GRID), others)
    return fine._replace(rows=sorted(fine.rows + coarse.rows, key=lambda row: row.tau))


def exact_curves(results: Results, variant: Variant, key: str) -> list[Series]:
    """Rewards of the whole population within the range of a variant."""
    taus = [one.tau for one in variant.tuned if one.tau is not None]
    table = population(results)
    rows = [row for row in table.rows if taus and min(taus) <= row.tau <= max(taus)]
    curves = {
        "SQDML, exact": ("blue", [row.reward_sqdml for row in rows]),
        "RAML, exact": ("orange", [row.reward_raml for row in rows]),
        "ML, exact": ("green", [table.reward_ml for _ in rows]),
    }
    return [
        Series(
            label,
            Look(colour),
            list(zip([row.tau for row in rows], values, strict=True)),
            exact=True,
        )
        for label, (colour, values) in curves.items()
        if len(rows) > 1
    ]


def _population_table(results: Results) -> Table:
    """Trained networks beside exact values.

    ML, a few temperatures of RAML, and the largest of all.
    """
    table = population(results)
    rewards: dict[tuple[str, float | None], float] = {("ML", None): table.reward_ml}
    for row in table.rows:
        rewards["RAML", row.tau], rewards["SQDML", row.tau] = row.reward_raml, row.reward_sqdml
    largest = max((one.tau for one in results.systems if one.tau is not None), default=None)
    ml = [one for one in results.systems if one.objective == "ML"][:1]
    few = [
        one
        for one in results.systems
        if one.tau in AGREEMENT_TAUS and one.objective == "RAML" and not one.models[0].scaled
    ]
    shown = [
        *ml,
        *sorted(few, key=lambda one: one.tau or 0.0),
        *(one for one in results.systems if one.tau == largest and one not in few and one.tau),
    ]
    bayes = results.bayes.get("test_reward")
    best = table.reward_bayes
    pairs = [(one.label, one.scores["test"], rewards[one.objective, one.tau]) for one in shown]
    if bayes is not None:
        pairs.append(("Bayes rule", Interval(bayes), best))
    return Table.of(
        "population-agreement",
        "Trained networks and the exact values of the population",
        [
            {
                Column("Model"): name,
                Column("Test reward", ".4f"): bare(test),
                Column("Exact reward", ".4f"): right,
                Column("Difference, %", "+.2f"): 100 * (test.value / right - 1),
                Column("Test, % of Bayes", ".2f"): 100 * test.value / bayes if bayes else None,
                Column("Exact, % of Bayes", ".2f"): 100 * right / best,
            }
            for name, test, right in pairs
        ],
        "Exact rewards are expectations over all inputs and outputs, of the Bayes rule, of ML, of"
        " RAML’s Q′ and of SQDML’s Q (softq theory). The draw of the test set moves all its rewards"
        " together; in percent of the Bayes rule this cancels. At large τ the target’s log-odds r/τ"
        " are too small for plain logits to learn; “scaled” divides logits by τ and multiplies the"
        " loss by τ².",
    )


# --- decision regions -----------------------------------------------------------------------------------


def _regions(results: Results) -> Figure | None:
    """Figure 4 of the paper: the class decided at each point, of one network each."""
    problem = four_class_problem(REGION_GRID)
    square = (REGION_GRID, REGION_GRID)
    bayes = bayes_rule(problem.p, problem.rewards).view(square).numpy()
    found = {"Bayes rule": bayes}
    for title, system in _shown_regions(results).items():
        first = system.models[0]
        sizes, inputs = system.recipe.model.sizes, problem.inputs.float()
        with undamaged(str(first.run / BEST)):
            network = best_models(RunFolder(first.run))["networks"][[first.number]]
            decided = perceptrons.decisions(network, sizes=sizes, inputs=inputs)
        found[title] = decided[0].view(square).numpy()
    if len(found) < 2:
        return None
    shares = {title: 100 * float(np.mean(one == bayes)) for title, one in found.items()}
    classes = range(int(max(one.max() for one in found.values())) + 1)
    told = "; ".join(f"{title} {share:.1f} %" for title, share in shares.items())
    return Figure(
        name="decision-regions",
        title="Decision regions, the paper’s Figure 4",
        caption=(
            "The class decided at each point of the square, x₀ to the right and x₁ upwards. Each"
            " map is of one network, that of the first seed; percentages say how much of the square"
            " it decides as the Bayes rule does."
        ),
        alt=(
            "Maps of the square, coloured by the class decided at each point. Decided as by the"
            f" Bayes rule: {told}."
        ),
        draw=partial(_draw_regions, found, shares),
        numbers=Table(
            name="decision-regions",
            caption="Share of the square, in percent, of one network each",
            columns=[
                Column("Model"),
                Column("As the Bayes rule", ".2f"),
                *(Column(f"Class {label}", ".2f") for label in classes),
            ],
            rows=[
                (
                    title,
                    shares[title],
                    *(100 * float(np.mean(one == label)) for label in classes),
                )
                for title, one in found.items()
            ],
            folded=True,
        ),
    )


def _draw_regions(
    found: Mapping[str, NDArray[np.integer[Any]]], shares: Mapping[str, float], canvas: Canvas
) -> None:
    axes = canvas.panels(
        len(found), height=2.05 if canvas.phone else 2.55, columns=4, phone_columns=2, head=0.1
    )
    for number, (panel, title) in enumerate(zip(axes, found, strict=True)):
        note = f"{shares[title]:.1f} % as Bayes" if number else "the best there is"
        canvas.region_map(panel, found[title], f"{title}\n{note}")


def _shown_regions(results: Results) -> dict[str, System]:
    """As in Figure 4: ML, then RAML and SQDML at τ = 0.5, at the best τ of each and at the largest.

    Plain logits alone.
    """
    plain = [one for one in results.systems if not one.models[0].scaled]
    shown = {one.label: one for one in plain if one.objective == "ML"}
    for objective in ("RAML", "SQDML"):
        best = [variant.best_of(objective) for variant in results.variants]
        ours = sorted(
            (one for one in plain if one.objective == objective), key=lambda one: one.tau or 0.0
        )
        first = next((one for one in best if one in ours), None)
        for one in ours:
            if one is first or one is ours[-1] or one.tau == 0.5:
                shown[one.label + (" (best)" if one is first else "")] = one
    return shown


# --- the gap between RAML and SQDML -------------------------------------------------------------------


def _gap(results: Results) -> Figure | None:
    """KL(Q‖Q') against τ, exact, with Theorem 1's bound and the sharper ones."""
    rows = sorted({row.tau: row for row in population(results).rows}.values())
    if sum(row.kl > SMALLEST_GAP for row in rows) < 2:
        return None
    lines = [
        ("Theorem 1, 2R/τ", "theorem1", Look("green", "", "-.")),
        ("min(R/τ, R²/2τ²)", "closed_form", Look("brown", "", ":")),
        ("min(R/τ, R²/8τ²)", "hoeffding", Look("purple", "", (0, (5, 1.5, 1, 1.5, 1, 1.5)))),
        ("mean KL", "mean_kl", Look("blue", "", "--")),
        ("KL(Q‖Q′), exact", "kl", Look("orange", weight=2.2)),
    ]
    curves = [
        [(row.tau, float(getattr(row, name))) for row in rows if getattr(row, name) > SMALLEST_GAP]
        for _, name, _ in lines
    ]
    series = [
        Series(label, look, points) for (label, _, look), points in zip(lines, curves, strict=True)
    ]

    def draw(canvas: Canvas) -> None:
        (panel,) = canvas.panels(1, height=3.3 if canvas.phone else 3.6, columns=1, head=0.6)
        number_axis(panel, "τ", logarithmic=True)
        panel.set_yscale("log")
        canvas.lines(panel, series)
        panel.set_ylabel("nats")
        canvas.legend(panel, columns=5)

    exact = curves[-1]
    (before, high), (after, low) = exact[-2:]
    slope = math.log(low / high) / math.log(after / before)
    return Figure(
        name="gap-and-bounds",
        title="The gap between RAML and SQDML, and its bounds",
        caption=(
            "KL(Q‖Q′) of the population, exact, below four upper bounds: the mean over Y of"
            " KL(Q‖q(·|Y)), its two closed forms, and Theorem 1. R is the range of the rewards. The"
            " sharper bounds close like 1/τ², Theorem 1 like 1/τ. Values below 10⁻¹² are left out."
        ),
        alt=(
            "KL divergence of Q and Q′ against temperature, both logarithmic. It falls from"
            f" {exact[0][1]:.2g} at τ {exact[0][0]:,g} to {low:.1e} at τ {after:,g}, at last with"
            f" slope {slope:.1f}. All bounds lie above it."
        ),
        draw=draw,
        numbers=Table(
            name="gap",
            caption="KL(Q‖Q′) and its bounds",
            columns=[Column("τ", ",g"), *(Column(label, ".4g") for label, _, _ in reversed(lines))],
            rows=[
                (row.tau, *(getattr(row, name) for _, name, _ in reversed(lines))) for row in rows
            ],
            folded=True,
        ),
    )
