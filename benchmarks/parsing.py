"""Training and running a log-linear parser.

Seconds of a pass by ML and by RAML, of a whole training, and sentences per second.

Without ``--data`` everything is measured on the built-in world. With it, ``DATA/ud_english_ewt``
must hold the English Web Treebank, and its development part is what accuracy is measured on.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from softq.formats.conllu import TreeSentence, read_conllu
from softq.lab.worlds import TreeWorld
from softq.linear.features import ArcIndex
from softq.linear.parser_training import Descent, EncodedTreebank, ParserSettings
from softq.linear.parsing import Trees
from softq.metrics import attachment_statistics, las, uas

BARS = {
    "pass_seconds": 25.0,
    "training_seconds": 360.0,
    "training_gib": 4.0,
    "sentences_per_second": 400.0,
    "raml_times_ml": 1.5,
    "uas": 0.87,
}
BATCH, RATE, RELATION_RATE = 32, 0.1, 0.2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--passes", type=int, default=4, help="of each objective; the figure is the median"
    )
    parser.add_argument("--tau", type=float, nargs="+", default=[0.2, 0.9])
    parser.add_argument("--sentences", type=int, default=5000, help="of the built-in world")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=options.json, quiet=options.json, width=120)
    found: dict[str, Any] = {
        "benchmark": "parsing",
        "threads": torch.get_num_threads(),
        "platform": platform.machine(),
    }
    with tempfile.TemporaryDirectory() as folder:
        files = find_files(options.data, options.sentences, Path(folder))
        train, dev = map(read_conllu, files)
        found |= {
            "corpus": "ud_english_ewt" if options.data else "built-in world",
            "words": sum(len(s.forms) for s in train),
        }
        found |= bench_passes(train, options.passes, options.tau)
        found |= bench_training(files, Path(folder) / "run")
        found |= bench_parsing(Path(folder) / "run", dev)
    found |= {
        f"{name}_bar": _verdict(found[name], name)
        for name in BARS
        if options.data and name in found
    }
    table = Table(
        title=f"{found['corpus']}, {found['words']:,} words to train on",
        box=box.SIMPLE_HEAD,
        title_justify="left",
    )
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in found.items():
        table.add_row(name.replace("_", " "), value if isinstance(value, str) else f"{value:,.4g}")
    console.print(table)
    if options.json:
        print(json.dumps(found))
    else:
        console.print_json(json.dumps(found))


def find_files(data: Path | None, sentences: int, folder: Path) -> tuple[Path, Path]:
    """Training and development files; those of the built-in world are made."""
    if data is not None:
        return (
            data / "ud_english_ewt/en_ewt-ud-train.conllu.gz",
            data / "ud_english_ewt/en_ewt-ud-dev.conllu.gz",
        )
    world, made = TreeWorld(), []
    for seed, count in enumerate((sentences, sentences // 5)):
        made.append(folder / f"{seed}.conllu.gz")
        made[-1].write_bytes(
            gzip.compress(
                "".join(
                    s.text(s.heads, s.relations) for s in world.sample(count, seed=seed)
                ).encode()
            )
        )
    return made[0], made[1]


def bench_passes(train: list[TreeSentence], passes: int, taus: list[float]) -> dict[str, Any]:
    """Seconds of a pass over the data, trees and relations together, the objectives taking turns.

    The first pass is left out.
    """
    index = ArcIndex.fit(train)
    trees = Trees.single([s.heads for s in train], [s.relations for s in train])
    bank = EncodedTreebank(index, index.encode(train), trees, trees.projectivised())
    objectives = {
        "ml": ParserSettings(),
        **{f"raml {tau:g}": ParserSettings("raml", tau) for tau in taus},
    }
    descents = {
        name: Descent(bank, settings, RATE, RELATION_RATE) for name, settings in objectives.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in objectives}
    rng = np.random.default_rng(0)
    for _ in range(passes + 1):
        order = rng.permutation(len(train))
        for name, descent in descents.items():
            began = time.perf_counter()
            for first in range(0, len(order), BATCH):
                descent.step(order[first : first + BATCH])
            seconds[name].append(time.perf_counter() - began)
    found = {name: median(each[1:]) for name, each in seconds.items()}
    slowest = max(found[name] for name in found if name != "ml")
    ratios = {
        f"{name.replace(' ', '_')}_pass_seconds": value
        for name, value in found.items()
        if name != "ml"
    }
    return {"pass_seconds": found["ml"], **ratios, "raml_times_ml": slowest / found["ml"]}


_TRAIN_AND_TELL = """
import resource, sys
from softq.cli import app
try:
    app(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


def bench_training(files: tuple[Path, Path], out: Path) -> dict[str, Any]:
    """Seconds and memory of ``softq train parsing``, from the file to the saved model, in a process of its own, start-up included."""
    command = [
        "train",
        "parsing",
        "--train",
        str(files[0]),
        "--dev",
        str(files[1]),
        "--out",
        str(out),
    ]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN_AND_TELL, *command],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - began
    return {"training_seconds": seconds, "training_gib": int(done.stderr.splitlines()[-1]) / 2**20}


def bench_parsing(run: Path, dev: list[TreeSentence]) -> dict[str, Any]:
    """Sentences per second, from strings to trees with relations, and how many of them are right."""
    from softq import DependencyParser

    parser = DependencyParser.load(run).parser_
    found: dict[str, Any] = {}
    for decoding in ("mode", "mbr"):
        parses, seconds = parser.parse(dev, decoding), []
        for _ in range(5):
            began = time.perf_counter()
            parses = parser.parse(dev, decoding)
            seconds.append(time.perf_counter() - began)
        sums = attachment_statistics(
            dev, [p.heads for p in parses], [p.relations for p in parses]
        ).sum(0)
        suffix = "" if decoding == "mode" else "_mbr"
        found |= {
            f"sentences_per_second{suffix}": len(dev) / median(seconds),
            f"uas{suffix}": float(uas(sums)),
            f"las{suffix}": float(las(sums)),
        }
    return found


def _verdict(value: float, name: str) -> str:
    bar = BARS[name]
    reached = value >= bar if name in ("uas", "sentences_per_second") else value <= bar
    return (
        f"{'reached' if reached else 'missed'}"
        f" ({'at least' if name in ('uas', 'sentences_per_second') else 'at most'} {bar:g})"
    )


if __name__ == "__main__":
    main()
