"""A feature CRF against python-crfsuite, and the speed of everything around it.

Both sides get the same features. CRFsuite's time is that of its own log, one L-BFGS iteration with
its update; softq's is given with the update and without it (loss and gradient alone). With
``--data`` also: training on real corpora from file to saved model with its peak of memory, the same
optimum as CRFsuite's on the built-in features, extraction of features and tagging from raw tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from softq.formats.conll import Sentence, read_conll
from softq.linear.features import AttributeIndex, FeatureMatrix, TemplateIndex
from softq.linear.lbfgs import LBFGS
from softq.linear.tagger_training import CRFObjective, CRFSettings
from softq.linear.tagging import References, Tagger
from softq.metrics import SpanScores, span_statistics

SENTENCES, MEAN_LENGTH, FEATURES, LABELS, VOCABULARY = 5_000, 15, 60, 9, 300_000
BARS = {
    "iteration": 8.0,  # times python-crfsuite's
    "extraction": 300_000.0,  # tokens per second
    "tagging": 60_000.0,
    "broad_twitter": (60.0, 3 * 2**30),  # seconds and bytes of a whole training
    "wnut17": (30.0, 3 * 2**30),
    "objective": 1e-3,  # relative difference of the optima
    "f1": 0.003,
}
CORPORA = ("broad_twitter", "wnut17")
C2 = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=options.json, quiet=options.json, width=120)
    found: dict[str, Any] = {
        "benchmark": "ner",
        "threads": torch.get_num_threads(),
        "platform": platform.machine(),
    }
    found["iteration"] = bench_iteration(options.rounds)
    _show(
        console, "One pass over 5,000 sentences, 60 features a token, 9 labels", found["iteration"]
    )
    if options.data is not None:
        for corpus in CORPORA:
            found[corpus] = bench_corpus(options.data / corpus)
            _show(console, f"{corpus}, built-in features, c2 = {C2}", found[corpus])
    if options.json:
        print(json.dumps(found))
    else:
        console.print_json(json.dumps(found))


def _show(console: Console, title: str, numbers: dict[str, Any]) -> None:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in numbers.items():
        table.add_row(name.replace("_", " "), value if isinstance(value, str) else f"{value:,.4g}")
    console.print(table)


# --- one iteration --------------------------------------------------------------------------------------


def bench_iteration(rounds: int) -> dict[str, Any]:
    """Milliseconds of an iteration on features that are drawn at random, as frequent as words are (Zipf)."""
    words, labels = draw_corpus(np.random.default_rng(0))
    _, matrix = AttributeIndex.fit(words)
    names = tuple(f"L{k}" for k in range(LABELS))
    references = References(
        [np.array([sequence]) for sequence in labels], [np.ones(1)] * len(labels)
    )
    objective = CRFSettings(labels=names, c2=C2, all_transitions=False).whole(matrix, references)
    theirs = crfsuite_iterations(
        words, [[names[k] for k in sequence] for sequence in labels], rounds + 3
    )
    search = LBFGS(
        torch.zeros(objective.layout.size), objective, tolerance=1e-12, memory=6
    )  # CRFsuite remembers 6 steps
    gradient = torch.empty_like(search.point)
    evaluations, iterations = [], []
    for _ in range(rounds + 3):
        began = time.perf_counter()
        objective(search.point, gradient)
        evaluations.append(time.perf_counter() - began)
        began = time.perf_counter()
        search.iterate()
        iterations.append(time.perf_counter() - began)
    found: dict[str, Any] = {
        "tokens": matrix.tokens,
        "features": matrix.size,
        "parameters": objective.layout.size,
        "loss_and_gradient_ms": 1e3 * median(evaluations[3:]),
        "iteration_ms": 1e3 * median(iterations[3:]),
    }
    if theirs:
        found["crfsuite_iteration_ms"] = 1e3 * median(theirs[3:])
        found["times_crfsuite"] = found["crfsuite_iteration_ms"] / found["loss_and_gradient_ms"]
        found["times_crfsuite_with_update"] = found["crfsuite_iteration_ms"] / found["iteration_ms"]
        found["bar"] = _verdict(
            found["times_crfsuite_with_update"] >= BARS["iteration"], f"{BARS['iteration']:g} times"
        )
    return found


def draw_corpus(rng: np.random.Generator) -> tuple[list[list[list[str]]], list[list[int]]]:
    """Sentences of tokens of feature names, and label ids."""
    lengths = 1 + rng.poisson(MEAN_LENGTH - 1, SENTENCES)
    names = np.array([f"f{i}" for i in range(VOCABULARY)], dtype=object)
    ranks = (np.exp(rng.random((int(lengths.sum()), FEATURES)) * np.log(VOCABULARY))).astype(
        np.int64
    ) - 1
    tokens = [row.tolist() for row in names[ranks]]
    weights = rng.normal(0, 1, (VOCABULARY, LABELS)).astype(np.float32)
    best = np.array([weights[row].sum(0) for row in ranks]) + rng.gumbel(size=(len(ranks), LABELS))
    ends = np.cumsum(lengths)
    spans = list(zip(ends - lengths, ends, strict=True))
    return [tokens[a:b] for a, b in spans], [best[a:b].argmax(1).tolist() for a, b in spans]


def crfsuite_iterations(words: Any, labels: Any, count: int) -> list[float]:
    """Seconds of python-crfsuite's iterations by its own log; [] where it is not installed."""
    try:
        import pycrfsuite
    except ImportError:
        return []
    trainer = _crfsuite(pycrfsuite, words, labels, {"max_iterations": count})
    return [iteration["time"] for iteration in trainer.logparser.iterations]


def _crfsuite(
    pycrfsuite: Any, words: Any, labels: Any, parameters: dict[str, Any], model: str = os.devnull
) -> Any:
    trainer = pycrfsuite.Trainer(verbose=False, params={"c1": 0.0, "c2": C2, **parameters})
    for sentence, sequence in zip(words, labels, strict=True):
        trainer.append(pycrfsuite.ItemSequence(sentence), sequence)
    trainer.train(model)
    return trainer


# --- corpora --------------------------------------------------------------------------------------------


def bench_corpus(folder: Path) -> dict[str, Any]:
    """Training, optimum, extraction and tagging on a corpus of ``train.conll`` and ``dev.conll``."""
    train, dev = (read_conll(folder / f"{part}.conll").sentences for part in ("train", "dev"))
    found: dict[str, Any] = bench_training(folder)
    words = [sentence.tokens for sentence in train]
    index, matrix = TemplateIndex.fit(words)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        index.transform(words)
        seconds.append(time.perf_counter() - began)
    found["features_per_token"] = len(matrix.indices) / matrix.tokens
    found["extraction_tokens_per_second"] = matrix.tokens / median(seconds)
    found["extraction_bar"] = _verdict(
        found["extraction_tokens_per_second"] >= BARS["extraction"],
        f"{BARS['extraction']:,.0f} tokens/s",
    )
    tagger, objective = fit_ml(index, matrix, train)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        tagger.decode(index.transform(words))
        seconds.append(time.perf_counter() - began)
    found["tagging_tokens_per_second"] = matrix.tokens / median(seconds)
    found["tagging_bar"] = _verdict(
        found["tagging_tokens_per_second"] >= BARS["tagging"], f"{BARS['tagging']:,.0f} tokens/s"
    )
    return found | compare_optima(index, matrix, train, dev, tagger, objective)


_TRAIN_AND_TELL = """
import resource, sys
from softq.cli import app
try:
    app(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def bench_training(folder: Path) -> dict[str, Any]:
    """Seconds and bytes of ``softq train ner``, from the file to the saved model, in a process of its own, start-up included."""
    with tempfile.TemporaryDirectory() as out:
        files = ["--train", str(folder / "train.conll"), "--dev", str(folder / "dev.conll")]
        command = [
            sys.executable,
            "-c",
            _TRAIN_AND_TELL,
            "train",
            "ner",
            *files,
            "--c2",
            str(C2),
            "--out",
            f"{out}/run",
        ]
        began = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - began
    peak = int(done.stderr.splitlines()[-1]) * 1024
    most_seconds, most_bytes = BARS[folder.name]
    bar = f"{most_seconds:g} s and {most_bytes / 2**30:g} GiB"
    return {
        "training_seconds": seconds,
        "training_peak_gib": peak / 2**30,
        "training_bar": _verdict(seconds <= most_seconds and peak <= most_bytes, bar),
    }


def fit_ml(
    index: TemplateIndex, matrix: FeatureMatrix, train: list[Sentence]
) -> tuple[Tagger, float]:
    """A tagger trained by ML with CRFsuite's parameters, and its objective."""
    names = tuple(sorted({label for sentence in train for label in sentence.labels[0]}))
    number = {name: k for k, name in enumerate(names)}
    references = References(
        [np.array([[number[label] for label in sentence.labels[0]]]) for sentence in train],
        [np.ones(1)] * len(train),
    )
    objective: CRFObjective = CRFSettings(labels=names, c2=C2, all_transitions=False).whole(
        matrix, references
    )
    search = LBFGS(torch.zeros(objective.layout.size), objective, tolerance=2e-5)
    while search.status == "going":
        search.iterate()
    return Tagger(index, names, *objective.layout.unpack(search.point), None), search.value


def compare_optima(
    index: TemplateIndex,
    matrix: FeatureMatrix,
    train: list[Sentence],
    dev: list[Sentence],
    tagger: Tagger,
    objective: float,
) -> dict[str, Any]:
    """The same problem by python-crfsuite, to convergence.

    Objective, and F1 on the development part.
    """
    gold = [sentence.labels[0] for sentence in dev]
    matrix_dev = index.transform([sentence.tokens for sentence in dev])
    ours = SpanScores.of(span_statistics(gold, tagger.decode(matrix_dev), "bio")).f1
    found: dict[str, Any] = {"objective": objective, "dev_f1": ours}
    try:
        import pycrfsuite
    except ImportError:
        return found
    names = index.names()
    with tempfile.TemporaryDirectory() as out:
        model = f"{out}/model"
        settings = {"max_iterations": 2000, "epsilon": 1e-5, "delta": 1e-7}
        labels = [sentence.labels[0] for sentence in train]
        trainer = _crfsuite(pycrfsuite, list(_named(matrix, names)), labels, settings, model)
        crf = pycrfsuite.Tagger()
        crf.open(model)
        theirs = SpanScores.of(
            span_statistics(
                gold,
                [crf.tag(pycrfsuite.ItemSequence(x)) for x in _named(matrix_dev, names)],
                "bio",
            )
        ).f1
        crf.close()
    last = trainer.logparser.iterations[-1]
    apart = abs(objective - last["loss"]) / last["loss"]
    return found | {
        "crfsuite_objective": last["loss"],
        "crfsuite_dev_f1": theirs,
        "objective_apart": apart,
        "f1_apart": abs(ours - theirs),
        "optimum_bar": _verdict(
            apart <= BARS["objective"] and abs(ours - theirs) <= BARS["f1"],
            "0.1 % of the objective, 0.3 of F1",
        ),
        "crfsuite_iterations": len(trainer.logparser.iterations),
    }


def _named(matrix: FeatureMatrix, names: list[str]) -> Any:
    """Sentences of tokens of feature names."""
    starts = np.concatenate([[0], np.cumsum(matrix.lengths)])
    for first, last in pairwise(starts):
        yield [
            [names[i] for i in matrix.indices[matrix.offsets[t] : matrix.offsets[t + 1]]]
            for t in range(first, last)
        ]


def _verdict(reached: bool, bar: str) -> str:
    return f"{'reached' if reached else 'missed'} ({bar})"


if __name__ == "__main__":
    main()
