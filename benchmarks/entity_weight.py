"""Ways to more entities: weights at decoding, whole segments, the F1 of sentences, beside ML.

Taggers (`softq.CRFTagger`) are trained on a corpus and scored on its development file, decoded as
they are and with an entity weight. One half of the development sentences chooses the weight of the
other half (as `softq.linear.tune_entity_weight`
chooses), so that all of them are scored and none has
chosen its own weight. Gains have 95 % intervals (paired bootstrap over sentences).

    python benchmarks/entity_weight.py [--data ../shared/data] [--corpora wnut17] [--figure FILE.svg]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

import softq
from softq import CRFTagger
from softq.annotators.truth import Posterior
from softq.formats.annotations import read_annotations
from softq.lab.report.drawing import Canvas, Look, Series, coloured, draw_svg, number_axis
from softq.linear.entity_weights import WEIGHTS
from softq.linear.tagger_input import TokenSentences, reward_for
from softq.linear.tagging import written
from softq.linear.training import epochs_of
from softq.metrics import SPAN_METRICS, paired_test, span_statistics
from softq.rewards import SpanF1
from softq.samplers import k_best

Row = dict[str, Any]
Data = tuple[list[Any], list[Any]]
DATA = os.environ.get("SOFTQ_DATA", "../shared/data")
SCHEME = "bio"
CANDIDATES = 16
SPACES = {"chain": "labels", "sentences": "sentences (k best)", "segments": "segments"}
SILENT = ("w02", "w03", "w04", "w05")  # annotators of crowd_news: see docs/tagging.md
ML: Row = {"space": "chain", "objective": "ml"}
GOLD: tuple[Row, ...] = (
    ML,
    {"space": "segments", "objective": "ml"},
    {"space": "segments", "objective": "sqdml", "tau": 0.1},
    {"space": "segments", "objective": "sqdml", "tau": 0.2},
    {"space": "sentences", "objective": "sqdml", "tau": 0.1},
    {"space": "sentences", "objective": "sqdml", "tau": 0.2},
    {"space": "chain", "objective": "raml", "tau": 0.1},
    {"space": "chain", "objective": "raml", "tau": 0.2},
)
CROWD: tuple[Row, ...] = (
    ML,
    {"space": "chain", "objective": "sqdml", "tau": 0.3},
    {"space": "chain", "objective": "sqdml", "tau": 0.3, "entity_weight": 2.5},
    {"space": "segments", "objective": "ml"},
    {"space": "segments", "objective": "sqdml", "tau": 0.3},
    {"space": "segments", "objective": "sqdml", "tau": 0.3, "entity_weight": 2.5},
)
CORPORA = {
    "broad_twitter": ("broad_twitter", "train.conll", "dev.conll", (), GOLD),
    "wnut17": ("wnut17", "train.conll", "dev.conll", (), GOLD),
    "crowd_news": ("crowd_news", "train.conll.gz", "dev.conll.gz", (), CROWD),
    "crowd_news without four": ("crowd_news", "train.conll.gz", "dev.conll.gz", SILENT, CROWD),
}


def read(path: Path, without: tuple[str, ...], most: int | None) -> Data:
    """Words and labels, of several annotators where the file has them."""
    corpus = read_annotations(path)
    sentences = (corpus.without(without) if without else corpus).sentences[:most]
    y = [one.references if one.annotators else one.labels[0] for one in sentences]
    return [one.tokens for one in sentences], y


def trained(train: Data, model: Row, c2: float) -> CRFTagger:
    """A tagger trained on labels, on segments, or toward the F1 of whole sentences."""
    options = {name: value for name, value in model.items() if name != "space"}
    if model["space"] == "sentences":
        return toward_sentences(train, options, c2)
    return CRFTagger(c2=c2, scheme=SCHEME, space=model["space"], **options).fit(*train)


def toward_sentences(train: Data, options: Row, c2: float) -> CRFTagger:
    """SQDML toward `softq.rewards.SpanF1` on the k best and the references.

    The k best of a sentence are those of an ML tagger of the other half of the sentences. Of the
    target on candidates training needs the labels and neighbours that it expects.
    """
    words, gold = train
    lengths = np.array([len(sentence) for sentence in words], np.int64)
    places = np.split(np.arange(lengths.sum()), np.cumsum(lengths)[:-1])
    labels = tuple(sorted({label for sentence in gold for label in sentence}))
    refs = [torch.tensor([labels.index(label) for label in sentence]) for sentence in gold]
    unary = np.zeros((int(lengths.sum()), len(labels)))
    pairs, entropy = np.zeros((len(words), len(labels), len(labels))), np.zeros(len(words))
    for half in (0, 1):
        tagger = CRFTagger(c2=c2).fit(words[1 - half :: 2], gold[1 - half :: 2])
        if tagger.classes_ != list(labels):
            raise SystemExit("expected every label in both halves: take more sentences")
        for batch, chain in tagger.tagger_.chains(tagger.features(words[half::2])):
            chosen = 2 * batch + half
            true = pad_sequence([refs[i] for i in chosen], batch_first=True)
            cands, true = k_best(chain, true, CANDIDATES)
            target = softq.sqdml(cands, true, options["tau"], SpanF1(labels, SCHEME))
            each = one_hot(target.outputs.tokens, len(labels)).double()  # [B, S, n, K]
            shares = target.weights[..., None, None]
            for row, i in enumerate(chosen):
                found = each[row, :, : lengths[i]]
                unary[places[i]] = (shares[row] * found).sum(0)
                pairs[i] = (shares[row] * (found[:, :-1].mT @ found[:, 1:])).sum(0)
            entropy[chosen] = target.entropy()
    tagger = CRFTagger(c2=c2, scheme=SCHEME)
    index, matrix, kind = TokenSentences.read(words).number(None, None)
    toward = Posterior(unary, pairs, entropy, np.zeros(len(words)), lengths)
    settings = tagger.settings(labels, SCHEME)
    fit = tagger.start(settings, index, lambda batch: matrix, toward, lambda epoch: [])
    for _ in epochs_of(fit, 1):
        pass
    tagger.keep(fit, kind, SCHEME)
    return tagger


def counts(tagger: CRFTagger, dev: Data) -> dict[float | None, Any]:
    """Counts of each sentence, as the tagger decodes (None) and with each weight."""
    model, (words, gold) = tagger.tagger_, dev
    rewards = {w: reward_for(None, w, model.labels, model.segments) for w in WEIGHTS}
    found: dict[float | None, Any] = {w: [[] for _ in words] for w in (None, *WEIGHTS)}
    features = tagger.features(words)
    for batch, p in model.chains(features):
        lengths = torch.from_numpy(features.lengths[batch])
        for weight, labels in found.items():
            best = p.mode() if weight is None else p.mbr(rewards[weight])
            for i, one in zip(
                batch, written(best, lengths, model.labels, model.segments), strict=True
            ):
                labels[i] = one
    return {w: span_statistics(gold, labels, SCHEME).rows for w, labels in found.items()}


def measure(name: str, model: Row, train: Data, dev: Data, options: argparse.Namespace) -> Row:
    """Scores of one training, and the counts of its predictions by sentence."""
    start = time.perf_counter()
    tagger = trained(train, model, options.c2)
    seconds = time.perf_counter() - start
    tables = counts(tagger, dev)
    plain = tables.pop(None)
    weighted, chosen = plain.clone(), []
    for half in (0, 1):  # of the other one
        best = max(WEIGHTS, key=lambda w: (f1(tables[w][1 - half :: 2]), -abs(math.log(w))))
        chosen.append(best)
        weighted[half::2] = tables[best][half::2]
    row: Row = {"corpus": name, **model, "plain f1": 100 * f1(plain)}
    row |= {"weights": chosen, "seconds": seconds}
    for metric in ("precision", "recall", "f1"):
        row[metric] = 100 * float(SPAN_METRICS[metric](weighted.sum(0)))
    row["gain"] = gain(weighted, plain)
    row["curve"] = {str(weight): scores(table) for weight, table in tables.items()}
    return row | {"rows": (plain, weighted)}


def f1(rows: Any) -> float:
    return float(SPAN_METRICS["f1"](rows.sum(0)))


def scores(rows: Any) -> list[float]:
    """Recall, precision and F1 of a weight on all development sentences, for the figure."""
    return [100 * float(SPAN_METRICS[name](rows.sum(0))) for name in ("recall", "precision", "f1")]


def gain(rows: Any, baseline: Any) -> list[float]:
    """Points of F1 over a baseline, with the ends of the interval."""
    generator = torch.Generator().manual_seed(0)
    metric = SPAN_METRICS["f1"]
    (test,) = paired_test(rows[None, None], baseline[None], metric, generator=generator)
    return [100 * value for value in test.gain[:3]]


def measured(options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """A row for each training on each corpus that is there, and the names of the others."""
    found: list[Row] = []
    missing = []
    for name in options.corpora.split(","):
        folder, *files, without, models = CORPORA[name]
        if not (options.data / folder).is_dir():
            missing.append(name)
            continue
        train, dev = (
            read(options.data / folder / file, without, options.sentences) for file in files
        )
        ml: Any = None
        for model in models:
            row = measure(name, model, train, dev, options)
            plain, weighted = row.pop("rows")
            ml = plain if model is ML else ml
            row |= {"plain over ml": gain(plain, ml), "over ml": gain(weighted, ml)}
            found.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return found, missing


def shown(value: Any) -> str:
    """A cell of the table."""
    if isinstance(value, list) and len(value) == 3:
        return f"{value[0]:+.1f} [{value[1]:+.1f}, {value[2]:+.1f}]"
    if isinstance(value, list):
        return " ".join(f"{one:g}" for one in value)
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def label(row: Row) -> str:
    """What a training is called."""
    weight = f", entity weight {row['entity_weight']:g}" if "entity_weight" in row else ""
    tau = f" τ = {row['tau']:g}" if "tau" in row else ""
    return f"{SPACES[row['space']]}: {row['objective'].upper()}{tau}{weight}"


def draw(rows: list[Row], path: Path) -> None:
    """F1 against the weight at decoding, a panel for each corpus."""
    corpora = list(dict.fromkeys(row["corpus"] for row in rows))
    looks = [Look(colour, marker) for colour in ("blue", "orange", "green") for marker in "os^"]
    names = list(dict.fromkeys(label(row) for row in rows))

    def panels(canvas: Canvas) -> None:
        axes = canvas.panels(len(corpora), height=2.4, columns=2, head=0.9)
        for name, panel in zip(corpora, axes, strict=True):
            number_axis(panel, "entity weight at decoding", logarithmic=True)
            panel.set_title(name)
            panel.set_ylabel("F1 of entities, %")
            for row in rows:
                if row["corpus"] == name:
                    points = [(float(weight), found[2]) for weight, found in row["curve"].items()]
                    look = looks[names.index(label(row)) % len(looks)]
                    canvas.lines(panel, [Series(label(row), look, points)])
        canvas.legend(*axes, columns=3, phone_columns=1)

    path.write_text(coloured(draw_svg(panels, "entity-weight", phone=False)[0], dark=False))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(DATA), help="folder of the corpora")
    parser.add_argument(
        "--corpora", default=",".join(CORPORA), help=f"some of {', '.join(CORPORA)}"
    )
    parser.add_argument("--sentences", type=int, help="at most so many of each part")
    parser.add_argument("--c2", type=float, default=1.0, help="penalty of the taggers")
    parser.add_argument("--results", nargs="*", type=Path, help="files of JSON to show instead")
    parser.add_argument("--figure", type=Path, help="write F1 by weight there (.svg)")
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    if options.results:
        read = [json.loads(path.read_text().splitlines()[-1]) for path in options.results]
        rows, missing = [row for one in read for row in one["rows"]], []
    else:
        rows, missing = measured(options)
    if not options.json:
        table = Table(title="F1 by the weight of entities in decoding, %", box=box.SIMPLE)
        table.caption = f"not in {options.data}: {', '.join(missing)}" if missing else None
        columns = (
            "plain f1",
            "plain over ml",
            "weights",
            "precision",
            "recall",
            "f1",
            "gain",
            "over ml",
        )
        for column in ("corpus", "training", *columns):
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(row["corpus"], label(row), *(shown(row[name]) for name in columns))
        Console(width=200).print(table)
    if options.figure:
        draw(rows, options.figure)
    print(
        json.dumps(
            {"benchmark": "entity_weight", "c2": options.c2, "missing": missing, "rows": rows}
        )
    )


if __name__ == "__main__":
    main()
