"""Entity weights at decoding: one trained tagger, and the weight of the best F1 on development data.

A tagger (`softq.CRFTagger`) is trained on train.conll. Every second sentence of dev.conll chooses
the weight (`softq.linear.tune_entity_weight`); the others are scored, decoded as the tagger is and
with this weight. Gains have 95 % intervals (paired bootstrap over sentences).

    python benchmarks/entity_weight.py [--data ../shared/data]
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from softq import CRFTagger
from softq.formats.conll import Corpus, read_conll
from softq.linear import tune_entity_weight
from softq.metrics import SPAN_METRICS, paired_test, span_statistics

Row = dict[str, Any]
DATA = os.environ.get("SOFTQ_DATA", "../shared/data")
CORPORA = ("broad_twitter", "wnut17")
OBJECTIVES: tuple[dict[str, Any], ...] = (
    {"objective": "ml"},
    {"objective": "raml", "tau": 0.1},
    {"objective": "raml", "tau": 0.2},
)
SCHEME = "bio"


def part(corpus: Corpus, start: int, step: int, most: int | None) -> tuple[Any, Any]:
    """Words and labels of some of the sentences."""
    chosen = corpus.sentences[start::step][:most]
    return [one.tokens for one in chosen], [one.labels[0] for one in chosen]


def measure(data: Path, name: str, model: dict[str, Any], options: argparse.Namespace) -> Row:
    train, dev = (read_conll(data / name / f"{split}.conll") for split in ("train", "dev"))
    tagger = CRFTagger(c2=options.c2, scheme=SCHEME, **model)
    tagger.fit(*part(train, 0, 1, options.sentences))
    choice = tune_entity_weight(tagger, *part(dev, 0, 2, options.sentences))
    words, gold = part(dev, 1, 2, options.sentences)
    weight = choice.best.weight
    plain, weighted = (
        span_statistics(gold, found, SCHEME).rows
        for found in (tagger.predict(words), tagger.predict(words, entity_weight=weight))
    )
    generator = torch.Generator().manual_seed(0)
    f1 = SPAN_METRICS["f1"]
    (test,) = paired_test(weighted[None, None], plain[None], f1, generator=generator)
    row: Row = {"corpus": name, "objective": model["objective"], "tau": model.get("tau")}
    for title, rows in (("plain", plain), ("weighted", weighted)):
        for metric in ("precision", "recall", "f1"):
            row[f"{title} {metric}"] = round(100 * float(SPAN_METRICS[metric](rows.sum(0))), 1)
    gain = [round(100 * value, 1) for value in test.gain[:3]]
    return row | {"weight": weight, "gain": gain[0], "from": gain[1], "to": gain[2]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(DATA), help="folder of the corpora")
    parser.add_argument("--sentences", type=int, help="at most so many of each part")
    parser.add_argument("--c2", type=float, default=1.0, help="penalty of the taggers")
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    here = [name for name in CORPORA if (options.data / name).is_dir()]
    missing = [name for name in CORPORA if name not in here]
    rows = [measure(options.data, name, model, options) for name in here for model in OBJECTIVES]
    if not options.json:
        note = f"not in {options.data}: {', '.join(missing)}" if missing else None
        table = Table(title="F1 by the weight of entities in decoding, %", box=box.SIMPLE)
        table.caption = note
        for column in rows[0] if rows else ():
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(*("" if value is None else str(value) for value in row.values()))
        Console(width=140).print(table)
    print(
        json.dumps(
            {"benchmark": "entity_weight", "c2": options.c2, "missing": missing, "rows": rows}
        )
    )


if __name__ == "__main__":
    main()
