"""What decisions cost.

RewardClassifier at its defaults beside probabilities of other classifiers and the decision of least
expected cost.

Four sets that come with scikit-learn, each with a table of costs. Every contender sees the same
folds, and the figure is the mean cost of its decisions on held-out rows. A difference is taken fold
by fold, and its standard error is that of the mean over folds; as training rows are shared between
folds, it is too small rather than too large.
"""

# ruff: noqa: N803, N806 -- scikit-learn calls the inputs X

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import make_scorer
from sklearn.model_selection import RepeatedStratifiedKFold, TunedThresholdClassifierCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import softq

Array = np.ndarray[Any, Any]
Decide = Callable[[Array, Array, Array, Array], Array]
"""Takes training rows, their classes, the costs [predicted, right] and new rows.

Returns the classes it decides for.
"""

OURS, LOGISTIC, THRESHOLD, BOOSTING = (
    "RewardClassifier",
    "logistic regression",
    "tuned threshold",
    "gradient boosting",
)
SIMPLE = [LOGISTIC, THRESHOLD]  # the better of them is what RewardClassifier is held against
TEN_TO_ONE = np.array([[0.0, 10.0], [1.0, 0.0]])  # class 1 is the one that must not be missed


def problems() -> dict[str, tuple[Array, Array, Array]]:
    """Inputs, classes from 0 on and costs [predicted, right]."""
    X, benign = load_breast_cancer(return_X_y=True)
    found = {"breast cancer": (X, 1 - benign, TEN_TO_ONE)}
    X, y = make_classification(1000, 20, n_informative=5, weights=[0.9], flip_y=0.1, random_state=0)
    found["noisy"] = X, y, TEN_TO_ONE
    X, y = make_classification(1000, 20, n_informative=6, n_classes=4, flip_y=0.1, random_state=0)
    steps = np.arange(4.0)
    found["four classes"] = X, y, (steps[:, None] - steps) ** 2
    X, y = load_digits(return_X_y=True)
    costs = 1.0 - np.eye(10)
    costs[:8, 8] = costs[9:, 8] = 10.0
    found["digits"] = X, y, costs
    return found


def ours(X: Array, y: Array, costs: Array, new: Array) -> Array:
    return softq.RewardClassifier(cost=costs, random_state=0).fit(X, y).predict(new)


def logistic() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))


def least_expected_cost(classifier: Callable[[], Any]) -> Decide:
    def decide(X: Array, y: Array, costs: Array, new: Array) -> Array:
        return (classifier().fit(X, y).predict_proba(new) @ costs.T).argmin(1)

    return decide


def tuned_threshold(X: Array, y: Array, costs: Array, new: Array) -> Array:
    earned = make_scorer(lambda right, decided: -costs[decided, right].mean())
    return (
        TunedThresholdClassifierCV(logistic(), scoring=earned, cv=5, random_state=0)
        .fit(X, y)
        .predict(new)
    )


CONTENDERS: dict[str, Decide] = {
    LOGISTIC: least_expected_cost(logistic),
    THRESHOLD: tuned_threshold,
    BOOSTING: least_expected_cost(lambda: HistGradientBoostingClassifier(random_state=0)),
    OURS: ours,
}


def spread(values: Array) -> float:
    """Standard error of their mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def measure(
    name: str, problem: tuple[Array, Array, Array], folds: int, repeats: int, quiet: bool
) -> list[dict[str, object]]:
    """Rows of the table for one set, RewardClassifier's with the difference from the better simple contender."""
    X, y, costs = problem
    splits = list(
        RepeatedStratifiedKFold(n_splits=folds, n_repeats=repeats, random_state=0).split(X, y)
    )
    contenders = {
        who: decide for who, decide in CONTENDERS.items() if who != THRESHOLD or len(costs) == 2
    }
    cost: dict[str, list[float]] = {who: [] for who in contenders}
    seconds = dict.fromkeys(contenders, 0.0)
    for train, test in track(
        splits, name, console=Console(stderr=True), transient=True, disable=quiet
    ):
        for who, decide in contenders.items():
            start = time.perf_counter()
            decided = decide(X[train], y[train], costs, X[test])
            seconds[who] += time.perf_counter() - start
            cost[who].append(float(costs[decided, y[test]].mean()))
    values = {who: np.array(found) for who, found in cost.items()}
    rows: list[dict[str, object]] = [
        {
            "set": name,
            "classifier": who,
            "cost": round(float(found.mean()), 4),
            "standard_error": round(spread(found), 4),
            "seconds": round(seconds[who] / len(splits), 3),
        }
        for who, found in values.items()
    ]
    best = min((who for who in SIMPLE if who in values), key=lambda who: float(values[who].mean()))
    difference = values[OURS] - values[best]
    more, error = round(float(difference.mean()), 4), round(spread(difference), 4)
    rows[-1] |= {
        "against": best,
        "difference": more,
        "difference_error": error,
        "below": more < 0.0,
        "within": more <= error,
    }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    rows = []
    for name, problem in problems().items():
        rows += measure(name, problem, options.folds, options.repeats, options.json)
    if not options.json:
        show(rows)
    ends = [row for row in rows if row["classifier"] == OURS]
    answers = {
        "sets_within": sum(bool(row["within"]) for row in ends),
        "sets_below": sum(bool(row["below"]) for row in ends),
    }
    print(
        json.dumps(
            {
                "benchmark": "classifier",
                "folds": options.folds,
                "repeats": options.repeats,
                **answers,
                "rows": rows,
            }
        )
    )


def show(rows: list[dict[str, object]]) -> None:
    table = Table(
        title="Mean cost of a decision on held-out rows, ± standard error over folds",
        box=box.SIMPLE,
    )
    for column in ("set", "classifier", "cost", "seconds a fit", "difference"):
        table.add_column(column, justify="left" if column in ("set", "classifier") else "right")
    for row in rows:
        cost = f"{row['cost']:.4f} ± {row['standard_error']:.4f}"
        difference = (
            f"{row['difference']:+.4f} ± {row['difference_error']:.4f}"
            if "difference" in row
            else ""
        )
        last = row["classifier"] == OURS
        table.add_row(
            str(row["set"]),
            str(row["classifier"]),
            cost,
            f"{row['seconds']:.2f}",
            difference,
            end_section=last,
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
