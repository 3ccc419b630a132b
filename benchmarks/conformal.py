"""Conformal sets and calibration on real corpora: coverage, sizes of sets, errors before and after.

A tagger (`softq.CRFTagger`) or parser (`softq.DependencyParser`) is trained on a part of train. Of
the development set, a random half of the sentences fits the temperature and the thresholds, and the
other half measures; the rows are means over several splits. Coverage of tokens is the share of all
tokens whose set holds the right label or head, coverage of sentences the share of sentences in
which every set does.

Sets of whole label sequences or trees (``unit="sequence"``) hold the k best until the threshold, and
at most ``--most``; where more would belong to one, it is unbounded and holds every output.

The bar: the mean coverage lies within 1.5 points of what was asked for. Per token it is asked for
by ``unit="token"``, per sentence by ``unit="sentence"`` and ``unit="sequence"``.

    python benchmarks/conformal.py [--data ../shared/data]
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from softq import CRFTagger, DependencyParser
from softq.calibration import calibration_scores
from softq.conformal import ConformalSets, Score, Unit, coverage, mean_set_size, unbounded_share
from softq.errors import DataWarning
from softq.formats.conll import read_conll
from softq.formats.conllu import read_conllu
from softq.linear.uncertainty import EstimatorSets

Array = np.ndarray[Any, Any]
Row = dict[str, Any]
DATA = os.environ.get("SOFTQ_DATA", "../shared/data")
LEVELS = (0.9, 0.95)
BAR = 1.5  # points


class Corpus(NamedTuple):
    """A model trained on a part of train, and the development set."""

    estimator: Any
    inputs: list[Any]
    outputs: list[Any]
    trained_on: int
    seconds: float


def tagged(folder: str) -> Callable[[Path, int], Corpus]:
    def load(data: Path, most: int) -> Corpus:
        train, dev = (
            read_conll(data / folder / f"{part}.conll").sentences for part in ("train", "dev")
        )
        train = train[:most]
        began = time.perf_counter()
        tagger = CRFTagger().fit(
            [list(one.tokens) for one in train], [list(one.labels[0]) for one in train]
        )
        seconds = time.perf_counter() - began
        labels = [list(one.labels[0]) for one in dev]
        return Corpus(tagger, [list(one.tokens) for one in dev], labels, len(train), seconds)

    return load


def ewt(data: Path, most: int) -> Corpus:
    train, dev = (
        read_conllu(data / "ud_english_ewt" / f"en_ewt-ud-{part}.conllu.gz")
        for part in ("train", "dev")
    )
    train = train[:most]
    began = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):  # some trees are lifted
        parser = DependencyParser(epochs=3, random_state=0).fit(train)
    seconds = time.perf_counter() - began
    return Corpus(parser, list(dev), [list(one.heads) for one in dev], len(train), seconds)


CORPORA: dict[str, Callable[[Path, int], Corpus]] = {
    "broad_twitter": tagged("broad_twitter"),
    "wnut17": tagged("wnut17"),
    "ewt": ewt,
}


def measure(corpus: Corpus, splits: int, most: int) -> dict[str, Any]:
    """Means over splits of the development set."""
    estimator, inputs, outputs = corpus.estimator, corpus.inputs, corpus.outputs
    right = estimator.output_ids(inputs, outputs)
    plain = estimator.output_probabilities(inputs)
    calibrated: list[Row] = []
    sets: dict[tuple[float, Unit], list[Row]] = {}
    whole: dict[tuple[float, Score], list[Row]] = {}
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(inputs))
        first, second = order[: len(inputs) // 2], order[len(inputs) // 2 :]

        def of(values: Any, places: Array) -> list[Any]:
            return [values[i] for i in places]

        began = time.perf_counter()
        with warnings.catch_warnings(action="ignore", category=DataWarning):
            estimator.calibrate(of(inputs, first), of(outputs, first))
        seconds = time.perf_counter() - began
        after = estimator.output_probabilities(of(inputs, second))
        held_out = of(right, second)
        before_scores = calibration_scores(of(plain, second), held_out)
        after_scores = calibration_scores(after, held_out)
        calibrated.append(
            {"temperature": estimator.temperature_, "seconds": seconds}
            | {
                f"{name}_before": getattr(before_scores, name)
                for name in ("error", "error_mass", "brier")
            }
            | {
                f"{name}_after": getattr(after_scores, name)
                for name in ("error", "error_mass", "brier")
            }
        )
        first_probabilities = estimator.output_probabilities(of(inputs, first))
        for level in LEVELS:
            for unit in ("token", "sentence"):
                rule = ConformalSets.calibrate(
                    first_probabilities, of(right, first), 1 - level, unit=unit
                )
                found = rule.predict(after)
                sets.setdefault((level, unit), []).append(
                    {
                        "tokens": coverage(found, held_out).value,
                        "sentences": coverage(found, held_out, unit="sentence").value,
                        "size": mean_set_size(found),
                        "threshold": rule.threshold(),
                    }
                )
        for score in ("adaptive", "lac"):
            for level, row in sequences(corpus, first, second, score, most).items():
                whole.setdefault((level, score), []).append(row)
    return {
        "trained_on": corpus.trained_on,
        "training_seconds": corpus.seconds,
        "dev_sentences": len(inputs),
        "options": float(np.mean([table.shape[1] for table in plain])),
        "unknown_outputs": float(np.mean(np.concatenate(right) < 0)),
        "calibration": means(calibrated),
        "sets": [
            {"level": level, "unit": unit} | means(rows) for (level, unit), rows in sets.items()
        ],
        "sequences": [
            {"level": level, "score": score} | means(rows) for (level, score), rows in whole.items()
        ],
    }


def sequences(
    corpus: Corpus, first: Array, second: Array, score: Score, most: int
) -> dict[float, Row]:
    """Sets of whole outputs at each level: coverage, size of bounded ones, share of the others."""
    estimator, rows = corpus.estimator, {}
    inputs, outputs = (
        [[values[i] for i in places] for places in (first, second)]
        for values in (corpus.inputs, corpus.outputs)
    )
    rule = EstimatorSets.calibrate(
        estimator, inputs[0], outputs[0], 1 - LEVELS[0], score=score, unit="sequence", most=most
    )
    right = [list(one) for one in outputs[1]]
    for level in LEVELS:
        rule = rule._replace(sets=rule.sets._replace(alpha=1 - level))
        began = time.perf_counter()
        found = rule.predict(inputs[1])
        sizes = sorted(len(one.outputs) if one.bounded else most + 1 for one in found)
        rows[level] = {
            "sentences": coverage(found, right, unit="sentence").value,
            "size": mean_set_size(found),
            "median": sizes[len(sizes) // 2],
            "unbounded": unbounded_share(found),
            "threshold": rule.sets.threshold(),
            "seconds": time.perf_counter() - began,
        }
    return rows


def means(rows: list[Row]) -> Row:
    """Means of columns, and the standard deviation over splits of each coverage."""
    found: Row = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    for name in ("tokens", "sentences"):
        if name in rows[0]:
            found[f"{name}_deviation"] = float(np.std([row[name] for row in rows]))
    return found


def show(found: dict[str, Any], most: int) -> None:
    errors = Table(title="Temperature scaling, held-out half of dev", box=box.SIMPLE)
    for column in (
        "corpus",
        "T",
        "ECE before",
        "after",
        "equal mass before",
        "after",
        "Brier before",
        "after",
    ):
        errors.add_column(column, justify="right")
    whole = Table(title="Sets of whole sequences or trees, held-out half of dev", box=box.SIMPLE)
    for column in (
        "corpus",
        "asked for",
        "score",
        "sentences",
        "mean size",
        "median",
        "unbounded",
        "bar",
    ):
        whole.add_column(column, justify="right")
    sets = Table(title="Conformal sets (LAC), held-out half of dev", box=box.SIMPLE)
    for column in ("corpus", "asked for", "tokens", "sentences", "mean size", "bar"):
        sets.add_column(column, justify="right")
    for name, one in found.items():
        row = one["calibration"]
        cells = [
            f"{row[f'{what}_{when}']:.4f}"
            for what in ("error", "error_mass", "brier")
            for when in ("before", "after")
        ]
        errors.add_row(name, f"{row['temperature']:.3f}", *cells)
        for row in one["sets"]:
            sets.add_row(
                name,
                f"{row['level']:.0%} per {row['unit']}",
                f"{row['tokens']:.2%} ± {row['tokens_deviation']:.2%}",
                f"{row['sentences']:.2%} ± {row['sentences_deviation']:.2%}",
                f"{row['size']:.3f}",
                row["bar"],
            )
        for row in one["sequences"]:
            whole.add_row(
                name,
                f"{row['level']:.0%}",
                row["score"],
                f"{row['sentences']:.2%} ± {row['sentences_deviation']:.2%}",
                f"{row['size']:.2f}",
                f"{row['median']:.1f}" if row["median"] <= most else "all",
                f"{row['unbounded']:.1%}",
                row["bar"],
            )
    console = Console(width=120)
    console.print(errors)
    console.print(sets)
    console.print(whole)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(DATA))
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=[*CORPORA])
    parser.add_argument("--sentences", type=int, default=4000, help="most training sentences")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--most", type=int, default=64, help="outputs of a whole set, at most")
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in options.corpora:
        corpus = CORPORA[name](options.data, options.sentences)
        found[name] = measure(corpus, options.splits, options.most)
        for row in [*found[name]["sets"], *found[name]["sequences"]]:
            points = 100 * abs(row[f"{row.get('unit', 'sentence')}s"] - row["level"])
            row["bar"] = f"{'met' if points <= BAR else 'missed'} ({points:.2f} points)"
    if not options.json:
        show(found, options.most)
    print(
        json.dumps(
            {
                "benchmark": "conformal",
                "threads": 1,
                "sentences": options.sentences,
                "splits": options.splits,
                "most": options.most,
                "bar_points": BAR,
                "corpora": found,
            }
        )
    )


if __name__ == "__main__":
    main()
