"""What the named-entity experiment shows beside the common tables.

How reliable annotators seem, and scores by type of entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from softq.annotators.reliability import AnnotatorRow
from softq.formats.file_checks import undamaged
from softq.lab.report.content import Column, Figure, Part, Table, Value
from softq.lab.report.drawing import Canvas, plain
from softq.lab.report.results import Results, System
from softq.lab.run import RESULT
from softq.lab.worlds.entities import ANNOTATORS, Annotator

MOST_ANNOTATORS, ENDS = 30, 10  # of more than so many, the table has the first and the last
_LARGEST_MARK = 90.0  # square points
_CROWDED = 0.08  # annotators whose recall and precision differ by less
MODELS: dict[str, str] = {
    "one-coin": "one coin each",
    "dawid-skene": "Dawid and Skene",
    "sequential": "labels that depend on the annotator’s previous one",
}
_NAMES = {"dawid-skene": "Dawid–Skene", "sequential": "sequential model"}
_TIES = {
    "entity": "ties to the entity",
    "outside": "ties to O",
    "first": "ties to the first annotator",
    "random": "ties by chance",
}
_WEIGHTS = {
    "uniform": "",
    "one-coin": ", one-coin weights",
    "dawid-skene": ", Dawid–Skene weights",
}


def label(recipe: Any) -> str:
    """How a recipe uses its annotators, in words; "" where there is nobody to tell apart."""
    data, options = recipe.data, recipe.annotations
    if options.annotator_model != "none":
        ml = recipe.objective.name == "ml"
        what = "the estimated truth" if ml else "the annotators’ log-probabilities"
        return f"{what} ({_NAMES[options.annotator_model]} and tagger)"
    if data.train and not data.annotator_columns():
        return ""
    if options.references == "vote":
        return f"the vote, {_TIES[options.ties]}"
    if options.references in _NAMES:
        return f"the most likely labels by EM ({_NAMES[options.references]})"
    weights = _WEIGHTS[options.weights]
    if weights and options.sharpness != 1:
        weights += f"^{options.sharpness:g}"
    tuned = options.type_credit and recipe.objective.tau is not None
    credit = f", type credit {options.type_credit:g}" if tuned else ""
    return f"all annotators{weights}{credit}"


def baseline(results: Results) -> tuple[System, str] | None:
    """ML on the vote that is best on the development set; where there is no vote, the best ML.

    None without annotators.
    """
    if not label(results.recipe):
        return None
    found = [one for _, one in results.chosen if one.objective == "ML"]
    votes = [one for one in found if one.recipe.annotations.references == "vote"]
    if not found:
        return None
    best = max(votes or found, key=lambda one: one.dev)
    return best, "the best vote" if votes else "the best ML"


def extras(results: Results) -> list[Part | None]:
    """The parts of this experiment alone."""
    model = next(
        (one.models[0] for _, one in results.chosen if one.models[0].facts.get("annotators")), None
    )
    parts: list[Part | None] = []
    if model is not None:
        with undamaged(str(model.run / RESULT)):
            rows = [AnnotatorRow(**row) for row in model.facts["annotators"]]  # type: ignore[arg-type]
            rows.sort(key=lambda row: (-row.weight, row.name))
            known = {annotator.name: annotator for annotator in ANNOTATORS}
            made = [] if results.recipe.data.train else [known[row.name] for row in rows]
        how = MODELS.get(model.facts.get("annotator_model", ""), "")
        table = _known_table(rows, made) if made else annotators_table(rows, how)
        parts = [table, annotators_figure(rows, how)]
    return [*parts, _types(results)]


_ESTIMATES = (
    Column("Accuracy, %", ".2f"),
    Column("Precision, %", ".2f"),
    Column("Recall, %", ".2f"),
    Column("Weight", ".3f"),
)


def _estimates(row: AnnotatorRow) -> tuple[float, ...]:
    return 100 * row.accuracy, 100 * row.precision, 100 * row.recall, row.weight


def annotators_table(
    rows: Sequence[AnnotatorRow], model: str, most: int = MOST_ANNOTATORS
) -> Table:
    """How reliable annotators seem; of more than ``most``, the first and the last."""
    shown, note = rows, ""
    if len(rows) > most:
        shown = [*rows[:ENDS], *rows[-ENDS:]]
        note = (
            f" Of {len(rows)} annotators, the {ENDS} that weigh most and the {ENDS} that weigh"
            " least; the figure’s numbers have all."
        )
    return Table(
        name="annotators",
        caption="How reliable the annotators seem",
        columns=[Column("Annotator"), Column("Tokens", ",d"), *_ESTIMATES],
        rows=[(row.name, row.tokens, *_estimates(row)) for row in shown],
        note=(
            f"Estimated by EM without the truth ({model}), token by token. The weight is the"
            f" log-odds of the mean of recall and specificity.{note}"
        ),
    )


def _known_table(rows: Sequence[AnnotatorRow], made: Sequence[Annotator]) -> Table:
    """The built-in world knows how its annotators err."""
    right = [(1 - one.miss) * (1 - one.wrong_type) * (1 - one.wrong_boundary) for one in made]
    known = (
        (one.miss, one.wrong_type, one.wrong_boundary, one.spurious, share)
        for one, share in zip(made, right, strict=True)
    )
    table: list[Sequence[Value]] = [
        (row.name, *(100 * rate for rate in rates), *_estimates(row))
        for row, rates in zip(rows, known, strict=True)
    ]
    first, second = (np.argsort(np.argsort(one)) for one in (right, [row.weight for row in rows]))
    order = float(np.corrcoef(first, second)[0, 1]) if len(rows) > 1 else 1.0
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
        note=(
            "The first five columns are known: shares of entities, of marked entities (type and"
            " boundary) and of other words, and the share of entities with the right label. The"
            " others are estimated from the annotators’ labels alone, token by token. Rank"
            f" correlation of right entities and weight: {order:.3f}."
        ),
    )


def annotators_figure(rows: Sequence[AnnotatorRow], model: str) -> Figure | None:
    """Every annotator by estimated precision and recall."""
    if len(rows) < 2:
        return None

    def draw(canvas: Canvas) -> None:
        (panel,) = canvas.panels(1, height=3.1 if canvas.phone else 3.6, columns=1, head=0.1)
        panel.scatter(
            [100 * row.recall for row in rows],
            [100 * row.precision for row in rows],
            s=[_LARGEST_MARK * row.weight / rows[0].weight for row in rows],
            color=canvas.colour("blue"),
            alpha=0.75,
            linewidth=0,
        )
        panel.set_xlabel("recall, %")
        panel.set_ylabel("precision, %")
        named: list[AnnotatorRow] = []
        for row in rows if len(rows) <= MOST_ANNOTATORS else []:
            # where dots crowd, only the heaviest has its name beside it
            if all(
                abs(row.recall - other.recall) > _CROWDED
                or abs(row.precision - other.precision) > _CROWDED / 2
                for other in named
            ):
                named.append(row)
                panel.annotate(
                    plain(row.name),
                    (100 * row.recall, 100 * row.precision),
                    xytext=(5, 3),
                    textcoords="offset points",
                    size=7.5,
                )

    told = "; ".join(
        f"{row.name} (weight {row.weight:.2f}) has recall {100 * row.recall:.1f} % and precision"
        f" {100 * row.precision:.1f} %"
        for row in (rows[0], rows[-1])
    )
    return Figure(
        name="all-annotators",
        title="Annotators, as estimated without the truth",
        caption=(
            "Share of an annotator’s entity labels that are right, against the share of the"
            " entities’ tokens that got the right label, both in expectation over the estimated"
            " truth. Larger dots weigh more."
        ),
        alt=(
            f"{len(rows)} annotators by estimated recall and precision. The heaviest and the"
            f" lightest: {told}."
        ),
        draw=draw,
        numbers=annotators_table(rows, model, most=len(rows)),
    )


def _types(results: Results) -> Table | None:
    """Scores of each type of entity, of the model that is best on the development set."""
    best = results.best
    first = best.models[0]
    with undamaged(str(first.run / RESULT)):
        rows = [
            (
                kind,
                *(100 * found[name] for name in ("precision", "recall", "f1")),
                found["predicted"],
                found["gold"],
            )
            for kind, found in first.facts.get("types", {}).items()
        ]
    if not rows:
        return None
    return Table(
        name="types",
        caption=f"{results.name_of(best)} on the test set, by type of entity",
        columns=[
            Column("Type"),
            *(Column(f"{title}, %", ".2f") for title in ("Precision", "Recall", "F1")),
            *(Column(title, ",d") for title in ("Predicted", "True")),
        ],
        rows=rows,
        note="The model that is best on the development set, at its first seed.",
    )
