"""What decisions cost.

RewardClassifier at its defaults beside probabilities of other classifiers and the decision of least
expected cost.

Four sets that come with scikit-learn, each with a table of costs, and three that come with empulse
(where it is installed), whose costs differ from row to row: churn of television subscribers, bank
clients to call, and loans. Every contender sees the same folds, and the figure is the mean cost of
its decisions on held-out rows, whose costs are known when it decides. A difference is taken fold by
fold, and its standard error is that of the mean over folds; as training rows are shared between
folds, it is too small rather than too large.

``--sets`` measures some of them alone, ``--rows`` at most so many rows of each, at equal distances.
"""

# ruff: noqa: N803, N806 -- scikit-learn calls the inputs X

from __future__ import annotations

import argparse
import csv
import gzip
import importlib.util
import json
import math
import time
import warnings
from collections.abc import Callable
from importlib.resources import files
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
Decide = Callable[[Array, Array, Array, Array, Array], Array]
"""Takes training rows, their classes, the costs of each [n, predicted, right], new rows and costs.

Returns the classes it decides for.
"""

OURS, LINEAR, LOGISTIC, THRESHOLD, BOOSTING, CSLOGIT, CSTHRESHOLD = (
    "RewardClassifier",
    "RewardClassifier, linear",
    "logistic regression",
    "tuned threshold",
    "gradient boosting",
    "empulse CSLogit",
    "empulse CSThreshold",
)
SIMPLE = [LOGISTIC, THRESHOLD, CSLOGIT, CSTHRESHOLD]  # the best is what RewardClassifier is held to
OF_EMPULSE = (CSLOGIT, CSTHRESHOLD)
HAS_EMPULSE = importlib.util.find_spec("empulse") is not None
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
    if HAS_EMPULSE:
        found |= {"churn": churn(), "calls": calls(), "loans": loans()}
    return found


def column_file(name: str, delimiter: str = ",") -> dict[str, list[str]]:
    """The columns of a file that comes with empulse."""
    path = str(files("empulse") / "datasets" / "data" / f"{name}.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
        header, *rows = csv.reader(text, delimiter=delimiter)
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def numbers(column: list[str]) -> Array:
    """Missing values are 0, and more than 4 is 4."""
    return np.array([float(value.strip(" >") or 0.0) for value in column])


def by_row(false_alarm: Array, miss: Array, hit: Array | float = 0.0) -> Array:
    """Costs ``[n, predicted, right]``; to leave a negative alone costs nothing."""
    costs = np.zeros((len(miss), 2, 2))
    costs[:, 1, 0], costs[:, 0, 1], costs[:, 1, 1] = false_alarm, miss, hit
    return costs


def churn() -> tuple[Array, Array, Array]:
    """Subscribers who leave; costs as computed by Correa Bahnsen et al. (2015)."""
    table = {
        name: numbers(column) for name, column in column_file("churn_tv_subscriptions").items()
    }
    X = np.stack([table[f"x{i}"] for i in range(1, 47)], 1)
    return X, table["target"].astype(int), by_row(table["C_FP"], table["C_FN"], table["C_TP"])


def calls() -> tuple[Array, Array, Array]:
    """Clients to call (Moro et al. 2014): a call costs 1, a missed deposit its yearly interest."""
    table = column_file("bankmarketing", ";")
    kept = numbers(table["balance"]) > 0
    columns = [numbers(table[name]) for name in ("age", "balance", "previous")]
    for name in ("job", "marital", "education", "default", "housing", "loan", "poutcome"):
        values = np.array(table[name])
        columns += [(values == value).astype(float) for value in sorted(set(values))[1:]]
    balance = numbers(table["balance"])[kept]
    costs = by_row(np.ones(len(balance)), np.maximum(0.02463333 * 0.25 * balance, 1.0), 1.0)
    return np.stack(columns, 1)[kept], (np.array(table["y"]) == "yes").astype(int)[kept], costs


def loans() -> tuple[Array, Array, Array]:
    """Borrowers who pay late (Petrides et al. 2020), with the costs of Correa Bahnsen et al. (2014).

    A default loses 75 % of the loan; a client who is refused takes the profit of the loan along,
    and an average one takes the place. Interest 4.79 %, cost of funds 2.94 %, 24 months.
    """
    table = column_file("vub_credit_scoring")
    late = numbers(table["Default_45"]).astype(int)
    amount = numbers(table["Loan_amount"])
    amount -= amount.min()
    left_out = ("ID", "Days_late", "Expected_loss", "Expected_profit", "Default_45")
    names = [name for name in table if name not in left_out and not name.startswith("Test_set")]
    rate, funds, months = 0.0479 / 12, 0.0294 / 12, 24
    payment = amount * rate / (1 - (1 + rate) ** -months)
    profit = payment * (1 - (1 + funds) ** -months) / funds - amount
    share = late.mean()
    refused = profit - (1 - share) * profit.mean() + share * 0.75 * amount.mean()
    costs = by_row(np.maximum(refused, 0.0), 0.75 * amount)
    return np.stack([numbers(table[name]) for name in names], 1), late, costs


def ours(**options: Any) -> Decide:
    """RewardClassifier on the table of costs, or on P(y|x) where rows have costs of their own."""

    def decide(X: Array, y: Array, costs: Array, new: Array, new_costs: Array) -> Array:
        model = softq.RewardClassifier(random_state=0, **options)
        if (costs == costs[:1]).all():
            return model.set_params(cost=costs[0]).fit(X, y).predict(new)
        return model.set_params(objective="ml").fit(X, y).predict(new, rewards=-new_costs)

    return decide


def logistic() -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))


def least_expected_cost(classifier: Callable[[], Any]) -> Decide:
    def decide(X: Array, y: Array, costs: Array, new: Array, new_costs: Array) -> Array:
        p = classifier().fit(X, y).predict_proba(new)
        return np.einsum("nkj,nj->nk", new_costs, p).argmin(1)

    return decide


def of_empulse(make: Callable[[], Any], *, knows_new_costs: bool) -> Decide:
    def named(costs: Array) -> dict[str, Array]:
        return {
            f"{name}_cost": costs[:, predicted, right]
            for name, predicted, right in (("tp", 1, 1), ("fp", 1, 0), ("fn", 0, 1), ("tn", 0, 0))
        }

    def decide(X: Array, y: Array, costs: Array, new: Array, new_costs: Array) -> Array:
        scaler = StandardScaler().fit(X)
        model = make().fit(scaler.transform(X), y, **named(costs))
        known = named(new_costs) if knows_new_costs else {}
        return np.asarray(model.predict(scaler.transform(new), **known)).astype(int)

    return decide


def cslogit() -> Any:
    from empulse.models import CSLogitClassifier

    return CSLogitClassifier()


def csthreshold() -> Any:
    from empulse.models import CSThresholdClassifier

    return CSThresholdClassifier(LogisticRegression(max_iter=5000))


def tuned_threshold(X: Array, y: Array, costs: Array, new: Array, new_costs: Array) -> Array:
    table = costs[0]
    earned = make_scorer(lambda right, decided: -table[decided, right].mean())
    return (
        TunedThresholdClassifierCV(logistic(), scoring=earned, cv=5, random_state=0)
        .fit(X, y)
        .predict(new)
    )


CONTENDERS: dict[str, Decide] = {
    LOGISTIC: least_expected_cost(logistic),
    THRESHOLD: tuned_threshold,
    BOOSTING: least_expected_cost(lambda: HistGradientBoostingClassifier(random_state=0)),
    CSLOGIT: of_empulse(cslogit, knows_new_costs=False),
    CSTHRESHOLD: of_empulse(csthreshold, knows_new_costs=True),
    LINEAR: ours(hidden=(), alpha=1.0, objective="ml"),
    OURS: ours(),
}


def spread(values: Array) -> float:
    """Standard error of their mean."""
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def measure(
    name: str, problem: tuple[Array, Array, Array], options: argparse.Namespace
) -> list[dict[str, object]]:
    """Rows of the table for one set, RewardClassifier's with the difference from the better simple contender."""
    X, y, costs = problem
    splits = list(
        RepeatedStratifiedKFold(
            n_splits=options.folds, n_repeats=options.repeats, random_state=0
        ).split(X, y)
    )
    same, two = costs.ndim == 2, costs.shape[-1] == 2
    costs = np.broadcast_to(costs, (len(y), *costs.shape[-2:]))
    contenders = {
        who: decide
        for who, decide in CONTENDERS.items()
        if (who != THRESHOLD or (same and two))
        and (who != OURS or not options.fixed)
        and (who not in OF_EMPULSE or (HAS_EMPULSE and two and not same))
    }
    cost: dict[str, list[float]] = {who: [] for who in contenders}
    seconds = dict.fromkeys(contenders, 0.0)
    for train, test in track(
        splits, name, console=Console(stderr=True), transient=True, disable=options.json
    ):
        for who, decide in contenders.items():
            start = time.perf_counter()
            decided = decide(X[train], y[train], costs[train], X[test], costs[test])
            seconds[who] += time.perf_counter() - start
            cost[who].append(float(costs[test, decided, y[test]].mean()))
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
    for row in rows:
        if row["classifier"] not in (OURS, LINEAR):
            continue
        difference = values[str(row["classifier"])] - values[best]
        more, error = round(float(difference.mean()), 4), round(spread(difference), 4)
        row |= {
            "against": best,
            "difference": more,
            "difference_error": error,
            "times": round(seconds[str(row["classifier"])] / seconds[best], 2),
            "below": more < 0.0,
            "within": more <= error,
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--sets", nargs="+", help="breast cancer, digits, churn, …; all if not given"
    )
    parser.add_argument("--rows", type=int, default=10_000, help="at most, of each set")
    parser.add_argument(
        "--fixed",
        action="store_true",
        help="leave out RewardClassifier at its defaults, which tunes",
    )
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    rows = []
    for name, problem in problems().items():
        if options.sets and name not in options.sets:
            continue
        X, y, costs = problem
        kept = slice(None, None, -(-len(y) // options.rows))
        problem = X[kept], y[kept], costs if costs.ndim == 2 else costs[kept]
        rows += measure(name, problem, options)
    if not options.json:
        show(rows)
    ends = [row for row in rows if row["classifier"] == (LINEAR if options.fixed else OURS)]
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
    for column in ("set", "classifier", "cost", "seconds a fit", "difference", "times as long"):
        table.add_column(column, justify="left" if column in ("set", "classifier") else "right")
    for row in rows:
        cost = f"{row['cost']:.4f} ± {row['standard_error']:.4f}"
        difference = (
            f"{row['difference']:+.4f} ± {row['difference_error']:.4f}"
            if "difference" in row
            else ""
        )
        last = row is rows[-1] or row["set"] != rows[rows.index(row) + 1]["set"]
        table.add_row(
            str(row["set"]),
            str(row["classifier"]),
            cost,
            f"{row['seconds']:.2f}",
            difference,
            f"{row['times']:.2f}" if "times" in row else "",
            end_section=last,
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
