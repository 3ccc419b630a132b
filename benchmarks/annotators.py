"""What models of annotators find, and how fast.

``made``: classes of made annotators whose tables are known. The share of items whose class is found
by vote, by EM with one coin or with tables (Dawid and Skene), by crowd-kit if it is installed, and
by the Bayes rule that knows the tables, over a few seeds.

``crowd_kit``: Dawid and Skene's EM beside crowd-kit's on the same labels: time, and the largest
difference of a probability. The two differ in two things. crowd-kit starts EM from the shares of
votes, softq from votes with 0.001 added to each class. crowd-kit replaces expected counts below
1e-10, softq adds ``smoothing`` to each, here 1e-10 too. So they take different paths to one end.

    pip install --no-deps crowd-kit    # and pandas, attrs, nltk, scikit-learn, transformers, pyarrow
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from softq.annotators import estimate_classes
from timing import by_turns

Array = np.ndarray[Any, Any]
Row = dict[str, object]

CROWDS = [(3, 5), (3, 20), (4, 8), (5, 10), (8, 5), (8, 12), (8, 20)]
"""Classes and annotators."""
VOTE, COIN, TABLES, PEER_COIN, PEER_TABLES, BAYES = (
    "vote",
    "one coin",
    "Dawid-Skene",
    "crowd-kit's one coin",
    "crowd-kit's Dawid-Skene",
    "Bayes rule",
)


class Section(NamedTuple):
    """A table of results, and what stands in the JSON object."""

    title: str
    rows: list[Row]
    skipped: str | None = None


class Crowd(NamedTuple):
    """Items, their right classes, and what annotators gave: -1 for nothing."""

    truth: Array  # [n]
    labels: Array  # [n, m]
    prior: Array  # [K]
    tables: Array  # [m, K, K]


def make_crowd(classes: int, annotators: int, items: int, seed: int) -> Crowd:
    """Annotators who are right 35 to 85 % of the time, have wrong classes of their own, and give 70 % of the items a class."""
    random = np.random.default_rng(seed)
    prior = random.dirichlet(np.full(classes, 5.0))
    right = random.uniform(0.35, 0.85, (annotators, 1))
    right = np.clip(right + random.normal(0, 0.1, (annotators, classes)), 0.2, 0.95)
    tables = random.dirichlet(np.ones(classes), (annotators, classes)) + 0.02
    diagonal = np.arange(classes)
    tables[:, diagonal, diagonal] = 0.0
    tables *= (1 - right)[..., None] / tables.sum(-1, keepdims=True)
    tables[:, diagonal, diagonal] = right
    truth = random.choice(classes, items, p=prior)
    below = tables[np.arange(annotators), truth[:, None]].cumsum(-1)  # [n, m, K]
    labels = (random.random((items, annotators, 1)) > below).sum(-1).clip(max=classes - 1)
    silent = random.random(labels.shape) < 0.3
    silent[np.arange(items), random.integers(0, annotators, items)] = False
    return Crowd(truth, np.where(silent, -1, labels), prior, tables)


def vote(crowd: Crowd) -> Array:
    return np.stack([(crowd.labels == k).sum(1) for k in range(len(crowd.prior))], 1).argmax(1)


def bayes_rule(crowd: Crowd) -> Array:
    logs = np.log(crowd.tables)
    given = logs[np.arange(crowd.labels.shape[1]), :, crowd.labels]  # [n, m, K]
    known = (crowd.labels >= 0)[..., None]
    found: Array = (np.log(crowd.prior) + np.where(known, given, 0.0).sum(1)).argmax(1)
    return found


def with_nan(crowd: Crowd) -> Array:
    return np.where(crowd.labels < 0, np.nan, crowd.labels)


def em(crowd: Crowd, **options: Any) -> Array:
    """Probabilities ``[n, K]``."""
    return np.concatenate(estimate_classes(with_nan(crowd), **options).posteriors)


def crowd_kit() -> Any | str:
    """The module of crowd-kit's aggregators, or why there is none."""
    try:
        import crowdkit.aggregation
    except ImportError as error:
        return f"crowd-kit cannot be imported: {error}"
    return crowdkit.aggregation


def frame(crowd: Crowd) -> Any:
    import pandas

    items, who = np.nonzero(crowd.labels >= 0)
    return pandas.DataFrame({"task": items, "worker": who, "label": crowd.labels[items, who]})


def peer_probabilities(aggregator: Any, table: Any) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses options that pandas will drop
        found = aggregator.fit(table).probas_
    ordered: Array = found.sort_index()[sorted(found.columns)].to_numpy()
    return ordered


def made(options: argparse.Namespace) -> Section:
    """Accuracy of the class that is found."""
    peer = crowd_kit()
    deciders: dict[str, Callable[[Crowd], Array]] = {
        VOTE: vote,
        COIN: lambda crowd: em(crowd, model="one-coin").argmax(1),
        TABLES: lambda crowd: em(crowd).argmax(1),
    }
    if not isinstance(peer, str):
        for name, kind in ((PEER_COIN, peer.OneCoinDawidSkene), (PEER_TABLES, peer.DawidSkene)):
            deciders[name] = lambda crowd, kind=kind: peer_probabilities(  # type: ignore[misc]
                kind(n_iter=100), frame(crowd)
            ).argmax(1)
    deciders[BAYES] = bayes_rule
    rows: list[Row] = []
    for classes, annotators in CROWDS:
        found: dict[str, list[float]] = {name: [] for name in deciders}
        for seed in range(options.seeds):
            crowd = make_crowd(classes, annotators, options.items, seed)
            for name, decide in deciders.items():
                found[name].append(float((decide(crowd) == crowd.truth).mean()))
        below = np.subtract(found[BAYES], found[TABLES])
        rows.append(
            {"classes": classes, "annotators": annotators}
            | {name: round(100 * float(np.mean(values)), 2) for name, values in found.items()}
            | {
                "below the Bayes rule": round(100 * float(below.mean()), 2),
                "at most": round(100 * float(below.max()), 2),
            }
        )
    return Section(
        f"Right classes in %, {options.items} items, mean of {options.seeds} seeds; how far"
        " Dawid-Skene is below the Bayes rule, mean and largest of a seed",
        rows,
        peer if isinstance(peer, str) else None,
    )


def beside_crowd_kit(options: argparse.Namespace) -> Section:
    """Time, and the difference of probabilities after as many iterations."""
    title = (
        "Dawid-Skene beside crowd-kit's: milliseconds, and the largest difference of a probability"
    )
    peer = crowd_kit()
    if isinstance(peer, str):
        return Section(title, [], peer)
    rows: list[Row] = []
    for classes, annotators in CROWDS:
        crowd = make_crowd(classes, annotators, options.items, seed=0)
        table = frame(crowd)
        for iterations in (1, 20, 200):

            def ours(crowd: Crowd = crowd, iterations: int = iterations) -> Array:
                return em(crowd, smoothing=1e-10, iterations=iterations, tolerance=-np.inf)

            def theirs(table: Any = table, iterations: int = iterations) -> Array:
                return peer_probabilities(peer.DawidSkene(iterations, tol=-np.inf), table)

            times = by_turns({"softq": ours, "crowd-kit": theirs}, rounds=3, warmup=1)
            rows.append(
                {"classes": classes, "annotators": annotators, "iterations": iterations}
                | {name: round(value, 1) for name, value in times.items()}
                | {"difference": float(f"{np.abs(ours() - theirs()).max():.1e}")}
            )
    return Section(title, rows)


SECTIONS: dict[str, Callable[[argparse.Namespace], Section]] = {
    "made": made,
    "crowd_kit": beside_crowd_kit,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=[*SECTIONS])
    parser.add_argument("--items", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: SECTIONS[name](options) for name in options.sections}
    if not options.json:
        for section in found.values():
            show(section)
    print(
        json.dumps(
            {
                "benchmark": "annotators",
                "threads": 1,
                "items": options.items,
                "seeds": options.seeds,
                **{
                    name: {"rows": section.rows, "skipped": section.skipped}
                    for name, section in found.items()
                },
            }
        )
    )


def show(section: Section) -> None:
    table = Table(title=section.title, box=box.SIMPLE, caption=section.skipped)
    for column in section.rows[0] if section.rows else ():
        table.add_column(column, justify="right")
    for row in section.rows:
        table.add_row(*map(str, row.values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
