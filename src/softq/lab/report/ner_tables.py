"""Tables of the named-entity experiment; None where the results hold nothing to show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from softq.annotators.reliability import AnnotatorRow
from softq.lab.report.ner_results import Judged, NerResults, NerSystem, method_of
from softq.lab.report.page import Column, Table, Value
from softq.lab.report.paper import (
    NER_BEST_TAU,
    NER_EXACT_MATCH_ML,
    NER_EXACT_MATCH_RAML,
    NER_ML,
    NER_RAML,
    NerScores,
)
from softq.lab.report.systems import Variant, bare, of_tau, percent
from softq.lab.tasks.ner_recipe import NerRecipe
from softq.lab.worlds.entities import ANNOTATORS
from softq.metrics import Interval

MOST_ANNOTATORS, ENDS = 30, 10  # more than so many: the first and the last
_NO_PAPER = (None, None, None, None)


def temperatures(results: NerResults, variant: Variant[NerRecipe]) -> Table | None:
    """The paper's Table 2 with ours beside it."""
    if not variant.systems:
        return None
    rows: list[Sequence[Value]] = []
    for system in variant.systems:
        paper: NerScores | tuple[None, ...] = (
            NER_ML if system.objective == "ML" else of_tau(NER_RAML, system.tau)
        ) or _NO_PAPER
        judged = results.judged.get(system.name)
        ours = [
            system.percent(name)
            for name in ("dev_token_accuracy", "dev_f1", "test_token_accuracy", "test_f1")
        ]
        scores = [value for pair in zip(map(bare, ours), paper, strict=True) for value in pair]
        rows.append(
            (
                variant.marked(system),
                *scores,
                bare(system.percent("test_exact_match")),
                _papers_exact_match(system),
                *_gains(judged),
                system.recipe.optimizer.c2,
            )
        )
    titles = ("Dev accuracy", "Dev F1", "Test accuracy", "Test F1", "Exact match")
    corpus = (
        "the same corpus"
        if results.is_papers_corpus
        else "which is another corpus: compare differences between rows, not heights"
    )
    return Table(
        name="temperatures",
        caption="ML and each temperature at the c2 that was best on the development part"
        + variant.which,
        columns=[
            Column("Model"),
            *(
                column
                for title in titles
                for column in (Column(f"{title}, %", ".2f"), Column(f"{title}, paper", ".1f"))
            ),
            Column("Gain over ML in F1", "+.2f"),
            Column("Gain in accuracy", "+.2f"),
            Column("c2", "g"),
        ],
        rows=rows,
        note="“Best” is the temperature of an objective with the highest F1 on the development part. Gains are on the test part, in "
        "points, with 95 % intervals of a paired bootstrap over its sentences. Columns “paper” are Tables 2 and 6 of the paper, on "
        f"CoNLL-2003, {corpus}.",
    )


def training(variant: Variant[NerRecipe]) -> Table | None:
    """How far the optimizer got with each model of `temperatures`."""
    systems = [system for system in variant.systems if "iterations" in system.scores]
    if not systems:
        return None
    names = ("iterations", "cross_entropy", "kl", "gradient_norm", "parameters")
    rows: list[Sequence[Value]] = [
        (
            system.label,
            system.recipe.optimizer.c2,
            *(system.value(name) for name in names),
            "yes" if system.scores["converged"].value == 1 else "no",
        )
        for system in systems
    ]
    return Table(
        name="training",
        caption="How far training went" + variant.which,
        columns=[
            Column("Model"),
            Column("c2", "g"),
            Column("Iterations", ",.0f"),
            Column("Cross-entropy", ".4f"),
            Column("KL to the target", ".4f"),
            Column("Gradient norm, relative", ".1e"),
            Column("Weights", ",.0f"),
            Column("Converged"),
        ],
        rows=rows,
        note="Cross-entropy and KL are in nats per training sentence; the gradient’s norm is relative to the first one.",
    )


def methods(results: NerResults) -> Table | None:
    """What each method got from the development part, and what that is worth."""
    rows: list[Sequence[Value]] = []
    world, baseline = results.kind == "world", results.baseline
    taken = [one.grids for one in results.chosen()]
    for one in results.chosen():
        system = one.system
        judged = results.judged.get(system.name)
        rows.append(
            (
                ", ".join(one.grids)
                + (f", {system.objective}" if taken.count(one.grids) > 1 else ""),
                method_of(system)
                + (
                    f" ({results.baseline_name.removeprefix('the ')})" if system is baseline else ""
                ),
                system.tau,
                system.recipe.annotations.entity_weight,
                system.recipe.optimizer.c2,
                bare(percent(system.scores["dev"])),
                bare(percent(system.scores["test"])),
                None if judged is None or judged.f1_gain is None else percent(judged.f1_gain),
                *(
                    bare(system.percent(f"test_{name}"))
                    for name in ("precision", "recall", "token_accuracy")
                ),
                *([results.of_bayes(system)] if world else []),
            )
        )
    if not rows:
        return None
    if world and results.bayes:
        bayes = next(iter(results.bayes.values()))
        scores = [100 * bayes[name] for name in ("f1", "precision", "recall", "token_accuracy")]
        rows.append(
            ("Bayes rule", None, None, None, None, None, scores[0], None, *scores[1:], 100.0)
        )
    return Table(
        name="methods",
        caption="Each method at what was best on the development part",
        columns=[
            Column("Grid"),
            Column("Method"),
            Column("τ", "g"),
            Column("Entity weight", "g"),
            Column("c2", "g"),
            Column("Dev F1, %", ".2f"),
            Column("Test F1, %", ".2f"),
            Column(f"Gain over {results.baseline_name}", "+.2f"),
            Column("Precision, %", ".2f"),
            Column("Recall, %", ".2f"),
            Column("Token accuracy, %", ".2f"),
            *([Column("% of the Bayes rule", ".2f")] if world else []),
        ],
        rows=rows,
        note=f"Gains over {results.baseline_name} (by development F1) are in test F1, in points, with 95 % intervals of a paired "
        "bootstrap over test sentences. The entity weight is the reward of a right entity label where a right O earns 1."
        + (
            " The Bayes rule has the most labels right that the words allow; the last column is token accuracy in percent of its own."
            if world
            else ""
        ),
    )


def annotators(results: NerResults) -> Table | None:
    """How reliable the annotators seem; in the built-in world, beside how they were made."""
    rows = sorted(results.annotators, key=lambda row: (-row.weight, row.name))
    if not rows:
        return None
    if results.kind == "world":
        return _known_annotators(rows)
    shown, note = rows, ""
    if len(rows) > MOST_ANNOTATORS:
        shown = [*rows[:ENDS], *rows[-ENDS:]]
        note = f" Of {len(rows)} annotators, the {ENDS} that weigh most and the {ENDS} that weigh least; the numbers of the figure are of all."
    return Table(
        name="annotators",
        caption="How reliable the annotators seem",
        columns=[Column("Annotator"), Column("Tokens", ",d"), *_ESTIMATES],
        rows=[(row.name, row.tokens, *_estimates(row)) for row in shown],
        note=f"Estimated by EM without the truth ({_model(results)}), token by token. The weight is the log-odds of the mean of recall and "
        f"specificity.{note}",
    )


def _known_annotators(rows: Sequence[AnnotatorRow]) -> Table:
    known = {annotator.name: annotator for annotator in ANNOTATORS}
    table: list[Sequence[Value]] = []
    for row in rows:
        made = known[row.name]
        right = (1 - made.miss) * (1 - made.wrong_type) * (1 - made.wrong_boundary)
        rates = (made.miss, made.wrong_type, made.wrong_boundary, made.spurious)
        table.append((row.name, *(100 * rate for rate in rates), 100 * right, *_estimates(row)))
    order = _rank_correlation([float(values[5]) for values in table], [row.weight for row in rows])  # type: ignore[arg-type]
    return Table(
        name="annotators",
        caption="How the annotators were made, and how reliable they seem",
        columns=[
            Column("Annotator"),
            Column("Missed, %", "g"),
            Column("Wrong type, %", "g"),
            Column("Wrong boundary, %", "g"),
            Column("Spurious, %", "g"),
            Column("Right entities, %", ".1f"),
            *_ESTIMATES,
        ],
        rows=table,
        note="The first five columns are known: shares of entities, of marked entities (type and boundary) and of other words, and the "
        "share of entities that come out right. The others are estimated from the annotators’ labels alone, token by token. "
        f"Rank correlation of right entities and weight: {order:.3f}.",
    )


def kinds(results: NerResults) -> Table | None:
    """Scores of each type of entity."""
    system = next((system for system in results.systems if system.name == results.kinds_of), None)
    if system is None:
        return None
    return Table(
        name="types",
        caption=f"{results.name_of(system)} on the test part, by type of entity",
        columns=[
            Column("Type"),
            Column("Precision, %", ".2f"),
            Column("Recall, %", ".2f"),
            Column("F1, %", ".2f"),
            Column("Predicted", ",d"),
            Column("True", ",d"),
        ],
        rows=[
            (
                kind,
                100 * found.precision,
                100 * found.recall,
                100 * found.f1,
                found.predicted,
                found.gold,
            )
            for kind, found in results.kinds.items()
        ],
        note="The model that is best on the development part"
        + (", at its first seed." if len(system.seeds) > 1 else "."),
    )


# --- shared ---------------------------------------------------------------------------------------------

_ESTIMATES = (
    Column("Accuracy, %", ".2f"),
    Column("Precision, %", ".2f"),
    Column("Recall, %", ".2f"),
    Column("Weight", ".3f"),
)


def _estimates(row: AnnotatorRow) -> tuple[float, ...]:
    return 100 * row.accuracy, 100 * row.precision, 100 * row.recall, row.weight


def _model(results: NerResults) -> str:
    return {"one-coin": "one coin each", "dawid-skene": "Dawid and Skene"}[results.annotator_model]


def _gains(judged: Judged | None) -> tuple[Interval | None, Interval | None]:
    if judged is None or judged.f1_gain is None or judged.accuracy_gain is None:
        return None, None
    return percent(judged.f1_gain), percent(judged.accuracy_gain)


def _papers_exact_match(system: NerSystem) -> float | None:
    if system.objective == "ML":
        return NER_EXACT_MATCH_ML.value
    return NER_EXACT_MATCH_RAML.value if of_tau({NER_BEST_TAU.value: True}, system.tau) else None


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, of numbers of which few are equal."""
    ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(first) > 1 else 1.0
