"""How sure models are, and what decoding trades: the curves that runs have stored (`Curves`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple, cast

from softq.lab.report.content import Column, Figure, Part, Table, Value, bare
from softq.lab.report.drawing import Canvas, Look, Series, plain
from softq.lab.report.experiment import mean_and_range
from softq.lab.report.figures import RUN_LOOKS
from softq.lab.report.results import ModelResult
from softq.lab.run import Curves, PrecisionRecall, SetsRow, WeightPoint
from softq.metrics import Interval

Spread = Callable[[Sequence[float]], Interval]
When = Literal["before", "after"]
_WHEN: Mapping[When, str] = {"before": "As trained", "after": "After temperature scaling"}
_FEW = 10  # predictions of a bin that is not drawn
_SPLITS = (
    "the test set; of a run without one, on every other sentence of the development set, whose others"
    " take its place"
)
_CHOSEN = Look("ink", "*", "", weight=8.0)
_IDEAL = Look("muted", "", ":", weight=1.2)


class Curved(NamedTuple):
    """Models that differ in their seed alone, with their name; curves are drawn of the first."""

    label: str
    models: Sequence[ModelResult]

    @property
    def every(self) -> list[Curves]:
        """The curves of those that have some."""
        return [model.curves for model in self.models if model.curves is not None]

    @property
    def curves(self) -> Curves:
        """Those of the first."""
        return self.every[0]

    def mean(self, spread: Spread, value: Callable[[Curves], float | None]) -> Value:
        """A value of the curves over seeds."""
        known = [found for curves in self.every if (found := value(curves)) is not None]
        return bare(spread(known)) if known else None


def parts(given: Sequence[Curved], spread: Spread = mean_and_range) -> list[Part]:
    """Tables and figures of the models that have curves; [] where none has."""
    shown = [one for one in given if one.every]
    if not shown:
        return []
    found: list[Part] = [calibration_table(shown, spread), reliability(shown)]
    if any(one.curves["sets"] for one in shown):
        found.append(sets_table(shown, spread))
    weighed = [one for one in shown if "precision_recall" in one.curves]
    if weighed:
        found += [weights_table(weighed, spread), precision_recall(weighed)]
    return found


def _choices(shown: Sequence[Curved]) -> str:
    """What these models choose, in words."""
    return " and ".join(dict.fromkeys(one.curves["choices"] for one in shown))


# --- calibration ----------------------------------------------------------------------------------


def calibration_table(shown: Sequence[Curved], spread: Spread) -> Table:
    """Expected calibration error and Brier score before and after temperature scaling."""
    error, brier = "Calibration error, %", "Brier score"
    rows: list[dict[Column, Value]] = [
        {
            Column("Model"): one.label,
            Column("Temperature", ".3f"): one.mean(spread, lambda of: of["temperature"]),
            Column(f"{error}, before", ".2f"): one.mean(
                spread, lambda of: 100 * of["before"]["error"]
            ),
            Column(f"{error}, after", ".2f"): one.mean(
                spread, lambda of: 100 * of["after"]["error"]
            ),
            Column(f"{brier}, before", ".4f"): one.mean(spread, lambda of: of["before"]["brier"]),
            Column(f"{brier}, after", ".4f"): one.mean(spread, lambda of: of["after"]["brier"]),
        }
        for one in shown
    ]
    return Table.of(
        "calibration",
        f"How sure models are of {_choices(shown)}, before and after temperature scaling",
        rows,
        f"On {_SPLITS}. One temperature divides all scores, fitted to the development set. The"
        " expected calibration error is the mean distance of confidence and accuracy in 15 bins of"
        " equal width; the lower, the better.",
    )


def reliability(shown: Sequence[Curved]) -> Figure:
    """Accuracy against confidence, before and after temperature scaling."""
    drawn = shown[: len(RUN_LOOKS)]
    looks = list(zip(drawn, RUN_LOOKS, strict=False))
    panels = [
        (title, [_reliable(one, look, when) for one, look in looks])
        for when, title in _WHEN.items()
    ]
    rows: list[Sequence[Value]] = [
        (one.label, title, 100 * row["confidence"], 100 * row["accuracy"], row["predictions"])
        for one in shown
        for when, title in _WHEN.items()
        for row in one.curves[when]["bins"]
    ]
    columns = [Column("Model"), Column("Scores")]
    columns += [Column(f"{name}, %", ".1f") for name in ("Confidence", "Accuracy")]
    errors = (
        f"{one.label} from {100 * one.curves['before']['error']:.1f} to"
        f" {100 * one.curves['after']['error']:.1f} %"
        for one in drawn
    )
    return Figure(
        "reliability",
        "Reliability diagram",
        f"Share of {_choices(shown)} that are right against the model’s confidence, the probability"
        f" of its choice, on the test set; points with fewer than {_FEW} predictions are left out."
        " Below the diagonal a model is too sure, above it not sure enough." + _of_most(shown),
        f"Expected calibration error before and after temperature scaling: {'; '.join(errors)}.",
        partial(_draw, panels, ("confidence, %", "accuracy, %"), True),
        Table(
            "reliability",
            "The points of this figure",
            [*columns, Column("Predictions", ",d")],
            rows,
            folded=True,
        ),
    )


def _reliable(one: Curved, look: Look, when: When) -> Series:
    bins = [row for row in one.curves[when]["bins"] if row["predictions"] >= _FEW]
    return Series(
        one.label, look, [(100 * row["confidence"], 100 * row["accuracy"]) for row in bins]
    )


def _of_most(shown: Sequence[Curved]) -> str:
    left_out = len(shown) - len(RUN_LOOKS)
    return f" The last {left_out} models are in the numbers alone." if left_out > 0 else ""


def _draw(
    panels: Sequence[tuple[str, Sequence[Series]]],
    axes: tuple[str, str],
    diagonal: bool,
    canvas: Canvas,
) -> None:
    every = [one for _, series in panels for one in series]
    is_long = max(len(one.label) for one in every) > 22
    columns = 1 if is_long and canvas.phone else 2 if is_long or canvas.phone else 4
    rows = -(-(len({one.label for one in every}) + diagonal) // columns)
    height = 2.9 if canvas.phone else 3.6
    drawn = canvas.panels(len(panels), height=height, columns=2, head=0.15 + 0.18 * rows)
    for panel, (title, series) in zip(drawn, panels, strict=True):
        ideal = [Series("perfectly calibrated", _IDEAL, [(0.0, 0.0), (100.0, 100.0)])] * diagonal
        canvas.lines(panel, [*ideal, *(one for one in series if one.points)])
        panel.set(xlabel=axes[0], ylabel=axes[1])
        if diagonal:
            panel.set(xlim=(0, 102), ylim=(0, 102))
        panel.set_title(plain(title))
    canvas.legend(*drawn, columns=columns, phone_columns=columns)


# --- sets with a guarantee ------------------------------------------------------------------------


def sets_table(shown: Sequence[Curved], spread: Spread) -> Table:
    """Coverage and mean size of conformal sets at each level."""
    rows: list[dict[Column, Value]] = []
    for one in shown:
        for row in one.curves["sets"]:
            units = one.curves["choices"] if row["unit"] == "token" else "whole sentences"
            covered, size = partial(_covered, row), partial(_size, row)
            rows.append(
                {
                    Column("Model"): one.label,
                    Column("Asked for"): f"{100 * row['level']:g} % of {units}",
                    Column("Covered, %", ".2f"): one.mean(spread, covered),
                    Column("Mean size of a set", ".2f"): one.mean(spread, size),
                }
            )
    return Table.of(
        "sets",
        f"Sets of {_choices(shown)} with a guarantee",
        rows,
        f"Split conformal prediction: thresholds from the development set, coverage on {_SPLITS}."
        " The guarantee holds for sentences of the same kind; a development set of n sentences"
        " leaves a coverage that varies by about sqrt(0.09 / n).",
    )


def _covered(row: SetsRow, curves: Curves) -> float | None:
    found = _like(row, curves)
    return None if found is None else 100 * found["coverage"]


def _size(row: SetsRow, curves: Curves) -> float | None:
    found = _like(row, curves)
    return None if found is None else found["size"]


def _like(row: SetsRow, curves: Curves) -> SetsRow | None:
    """The row of another seed for the same level and unit."""
    key = row["level"], row["unit"]
    return next((one for one in curves["sets"] if (one["level"], one["unit"]) == key), None)


# --- precision against recall ---------------------------------------------------------------------


def weights_table(shown: Sequence[Curved], spread: Spread) -> Table:
    """What the entity weight of the best F1 on dev has on the test set."""

    def value(name: str, curves: Curves) -> float | None:
        if "precision_recall" not in curves:
            return None
        found = cast(Mapping[str, float | None], curves["precision_recall"]["chosen"])[name]
        return found if found is None or name == "weight" else 100 * found

    titles = {
        "weight": Column("Entity weight", "g"),
        "dev_f1": Column("Dev F1", ".2f"),
        "precision": Column("Precision", ".2f"),
        "recall": Column("Recall", ".2f"),
        "f1": Column("F1", ".2f"),
    }
    return Table.of(
        "entity-weights",
        "Entity weight at decoding, chosen on the development set",
        [
            {Column("Model"): one.label}
            | {title: one.mean(spread, partial(value, name)) for name, title in titles.items()}
            for one in shown
        ],
        "The labels of the highest expected reward, where a right entity label earns the weight and"
        " a right O earns 1; on the test set, in percent. softq predict and softq evaluate take it"
        " as --entity-weight.",
    )


def precision_recall(shown: Sequence[Curved]) -> Figure:
    """Precision against recall of each model over the entity weights of decoding."""
    drawn = shown[: len(RUN_LOOKS)]
    series = [
        Series(one.label, look, _points(one.curves["precision_recall"]["points"]))
        for one, look in zip(drawn, RUN_LOOKS, strict=False)
    ]
    chosen = [one.curves["precision_recall"]["chosen"] for one in drawn]
    marks = [Series("weight chosen on dev", _CHOSEN, _points([point])) for point in chosen]
    told = (
        f"{one.label} at weight {point['weight']:g}: precision {100 * (point['precision'] or 0):.1f},"
        f" recall {100 * (point['recall'] or 0):.1f}"
        for one, point in zip(drawn, chosen, strict=True)
    )
    weights = [row["weight"] for one in shown for row in one.curves["precision_recall"]["points"]]
    scores = [Column(name, ".2f") for name in ("Precision", "Recall", "F1", "Dev F1")]
    return Figure(
        "precision-recall",
        "Precision against recall",
        "Entities of the test set by the entity weight of decoding, from"
        f" {min(weights, default=1):g} (few entities, most of them right) to"
        f" {max(weights, default=1):g} (many, of which fewer are right); nothing is trained"
        " again. Stars are the weights of the best F1 on the development set." + _of_most(shown),
        f"Chosen on the development set: {'; '.join(told)}.",
        partial(_draw, [("", [*series, *marks])], ("recall, %", "precision, %"), False),
        Table(
            "precision-recall",
            "The points of this figure",
            [Column("Model"), Column("Entity weight", "g"), *scores, Column("On dev")],
            [row for one in shown for row in _weight_rows(one)],
            folded=True,
        ),
    )


def _weight_rows(one: Curved) -> list[Sequence[Value]]:
    """What a model has at each entity weight, in percent."""
    found: PrecisionRecall = one.curves["precision_recall"]
    rows: list[Sequence[Value]] = []
    for point in found["points"]:
        values = (point["precision"], point["recall"], point["f1"], point["dev_f1"])
        shares = [None if value is None else 100 * value for value in values]
        chosen = "chosen" if point == found["chosen"] else None
        rows.append((one.label, point["weight"], *shares, chosen))
    return rows


def _points(points: Sequence[WeightPoint]) -> list[tuple[float, float]]:
    return [
        (100 * (one["recall"] or 0.0), 100 * (one["precision"] or 0.0))
        for one in points
        if one["precision"] or one["recall"]  # else nothing is predicted, or nothing right
    ]
