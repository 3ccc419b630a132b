"""Scores of neural taggers and parsers on real corpora, beside the feature models of the same data.

Trains with ``softq train … --model neural`` through the library's own functions, for several seeds,
and prints the development scores of each system: mean, Student's t interval over seeds, and the gain
over the feature model above (else the first system) with a paired bootstrap over sentences. What was trained is kept
in the folder of the runs: started again, the script goes on where it was.

    SOFTQ_DATA=../shared/data python benchmarks/neural_scores.py --data wnut17 --out runs/scores

The development file chooses the epoch and is scored, but for crowd_news, whose even sentences choose
and whose odd ones are scored. Vectors are those of ``glove`` in the same folder, where it is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from softq.lab.processes import find_workers
from softq.lab.recipe import build, parse_flags
from softq.lab.run import RunFolder
from softq.lab.tasks import TASKS, train_cells
from softq.metrics.intervals import Interval, mean_interval, paired_bootstrap

NEURAL = ["--model", "neural"]
RAML = ["--objective", "raml", "--tau", "0.1"]
SQDML = ["--objective", "sqdml", "--tau", "0.3", "--entity-weight", "2.5", "--type-credit", "0.3"]
SQDML += ["--weights", "dawid-skene", "--sharpness", "2"]
TRUTH = ["--annotator-model", "sequential", "--loop-c2", "1"]
LINEAR = ["--c2", "1"]  # of the penalties of docs/tagging.md the best on both corpora of tweets


class Corpus(NamedTuple):
    """Files of a task, and the systems that are compared; ``linear`` ones have one seed."""

    task: str
    folder: str
    files: Mapping[str, str]
    flags: Sequence[str]
    split: str
    systems: Mapping[str, Sequence[str]]
    metrics: Sequence[str]


TWEETS = {
    "feature CRF, ML": LINEAR,
    "neural, ML": NEURAL,
    "neural, RAML τ = 0.1": [*NEURAL, *RAML],
    "neural, RAML τ = 0.2": [*NEURAL, "--objective", "raml", "--tau", "0.2"],
}
CROWD = {
    "feature CRF, SQDML": [*LINEAR, *SQDML],
    "neural, SQDML": [*NEURAL, *SQDML],
    "feature CRF, truth of the sequential model": [*LINEAR, *TRUTH],
    "neural, truth of the sequential model": [*NEURAL, *TRUTH],
}
TREES = {
    "neural, ML": NEURAL,
    "neural, RAML τ = 0.2": [*NEURAL, "--objective", "raml", "--tau", "0.2"],
    "neural, RAML τ = 0.3": [*NEURAL, "--objective", "raml", "--tau", "0.3"],
}
PLAIN = {"train": "train.conll", "dev": "dev.conll"}
PACKED = {"train": "train.conll.gz", "dev": "dev.conll.gz"}
EWT = {"train": "en_ewt-ud-train.conllu.gz", "dev": "en_ewt-ud-dev.conllu.gz"}
CORPORA = {
    "wnut17": Corpus("ner", "wnut17", PLAIN, [], "dev", TWEETS, ["f1"]),
    "broad_twitter": Corpus("ner", "broad_twitter", PLAIN, [], "dev", TWEETS, ["f1"]),
    "crowd_news": Corpus(
        "ner",
        "crowd_news",
        PACKED,
        ["--annotators", "all", "--halve-dev"],
        "test",
        CROWD,
        ["f1"],
    ),
    "ewt": Corpus("parsing", "ud_english_ewt", EWT, [], "dev", TREES, ["uas", "las"]),
}


def train(
    corpus: Corpus, flags: Sequence[str], data: Path, out: Path, seed: int
) -> tuple[dict[str, float], torch.Tensor]:
    """The scores of a run, and its counts ``[examples, D]``; a finished one is read."""
    task = TASKS[corpus.task]
    named = [
        text
        for split, file in corpus.files.items()
        for text in (f"--{split}", str(data / corpus.folder / file))
    ]
    given = [*named, *corpus.flags, *flags, "--seed", str(seed)]
    recipe = build(task.recipe_type, parse_flags(task.recipe_type, given))
    result = train_cells(
        task, [recipe], out, resume=True, workers=find_workers(recipe.training.device)
    )
    (row,) = result["cells"]
    scores = {name: float(row[f"{corpus.split}_{name}"]) for name in corpus.metrics}
    return scores, RunFolder(out).test_counts().model(0)  # of dev, where there is no test


def compare(
    corpus: Corpus, data: Path, out: Path, seeds: int, more: Sequence[str]
) -> list[dict[str, Any]]:
    """A row for each system."""
    vectors, rows, first = data / "glove/glove.6B.100d.npy", [], None
    for name, flags in corpus.systems.items():
        neural = "neural" in flags
        own = [*flags, *more] if neural else list(flags)
        if neural and vectors.exists():
            own += ["--vectors", str(vectors)]
        found = [
            train(corpus, own, data, out / f"{name.replace(' ', '_')}-{seed}", seed)
            for seed in range(seeds if neural else 1)
        ]
        counts = torch.stack([counts for _, counts in found])
        metric = TASKS[corpus.task].metrics[corpus.metrics[0]]
        if first is None or not neural:  # neural models follow the feature model of their target
            first = counts
        generator = torch.Generator().manual_seed(0)
        (gain,) = paired_bootstrap(counts[None], first, metric, generator=generator)
        intervals = {
            metric: mean_interval([100 * scores[metric] for scores, _ in found])
            for metric in corpus.metrics
        }
        rows.append({"system": name, "seeds": len(found), **intervals})
        rows[-1]["gain"] = Interval(*(100 * value for value in gain))
    return rows


def as_json(value: Any) -> Any:
    """An interval as a list; JSON has no NaN."""
    if not isinstance(value, Interval):
        return value
    return [end if math.isfinite(end) else None for end in value]


def show(name: str, corpus: Corpus, rows: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table("system", "seeds", title=f"{name}, {corpus.split}, in percent", box=box.SIMPLE)
    for title in (*corpus.metrics, "gain, 95 % interval"):
        table.add_column(title, justify="right")
    for row in rows:
        cells = [row["system"], str(row["seeds"])]
        for metric in corpus.metrics:
            half = row[metric].high - row[metric].value
            spread = f" ± {half:.1f}" if row["seeds"] > 1 else ""
            cells.append(f"{row[metric].value:.2f}{spread}")
        gain = row["gain"]
        cells.append(f"{gain.value:+.1f} [{gain.low:+.1f}, {gain.high:+.1f}]")
        table.add_row(*cells)
    console.print(table)


def main() -> None:
    make = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    make.add_argument("--data", choices=[*CORPORA], action="append", help="these corpora alone")
    make.add_argument("--out", type=Path, default=Path("runs/neural-scores"), help="for the runs")
    make.add_argument("--seeds", type=int, default=3)
    make.add_argument("--json", action="store_true", help="print the JSON object alone")
    make.add_argument("flags", nargs="*", help="of neural models, behind --, such as --epochs 20")
    options = make.parse_args()
    data, found = Path(os.environ.get("SOFTQ_DATA", "../shared/data")), {}
    console = Console(quiet=options.json, width=120)
    for name in options.data or CORPORA:
        corpus = CORPORA[name]
        rows = compare(corpus, data, options.out / name, options.seeds, options.flags)
        show(name, corpus, rows, console)
        found[name] = [{key: as_json(value) for key, value in row.items()} for row in rows]
    print(json.dumps({"benchmark": "neural_scores", "torch": torch.__version__, **found}))


if __name__ == "__main__":
    main()
