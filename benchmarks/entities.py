"""Ways to more entities: weights at decoding, whole segments, the F1 of sentences, beside ML.

Taggers (`softq.CRFTagger`) are trained on a corpus and scored on its development file, decoded as
they are and with an entity weight. One half of the development sentences chooses the weight of the
other half (as `softq.linear.tune_entity_weight` chooses), so that all of them are scored and none
has chosen its own weight. Gains have 95 % intervals (paired bootstrap over sentences).

    python benchmarks/entities.py [--data ../shared/data] [--corpora wnut17] [--figure FILE.svg]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from functools import cached_property
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
from softq.formats.tags import every_tag
from softq.lab.report.drawing import Canvas, Look, Series, coloured, draw_svg, number_axis
from softq.linear.entity_weights import WEIGHTS
from softq.linear.tagger_input import Annotations, TokenSentences, reward_for
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
COLUMNS = ("plain f1", "plain over ml", "weights", "precision", "recall", "f1", "gain", "over ml")
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


class Corpus:
    """Sentences to train on and to score on, with features that all trainings share."""

    def __init__(self, train: Data, dev: Data, c2: float) -> None:
        self.gold, self.c2 = dev[1], c2
        self.annotations = Annotations.read(train[1], [len(words) for words in train[0]])
        self.labels = every_tag(self.annotations.labels, SCHEME)
        self.references = self.annotations.references(self.labels)
        self.index, self.matrix, self.kind = TokenSentences.read(train[0]).number(None, None)
        self.features = TokenSentences.read(dev[0]).features(self.index, self.kind)

    def fit(
        self, references: Any, half: int | None = None, *, space: str = "chain", **options: Any
    ) -> CRFTagger:
        """A tagger trained toward references of all sentences, or of every second one."""
        tagger = CRFTagger(c2=self.c2, scheme=SCHEME, space=space, **options)
        matrix = self.matrix
        if half is not None:
            numbers = np.arange(half, len(matrix.lengths), 2)
            matrix, references = matrix.take(numbers), references.take(numbers)
        settings = tagger.settings(self.labels, SCHEME)
        fit = tagger.start(settings, self.index, lambda _: matrix, references, lambda _: [])
        for _ in epochs_of(fit, 1):
            pass
        tagger.keep(fit, self.kind, SCHEME)
        return tagger

    @cached_property
    def best(self) -> list[tuple[Any, Any, Any]]:
        """The k best and the references of batches of sentences, with their numbers.

        The k best of a sentence are those of an ML tagger of the other half of the sentences.
        """
        found = []
        refs = [torch.from_numpy(labels[0]) for labels in self.references.labels]
        for half in (0, 1):
            numbers = np.arange(half, len(refs), 2)
            tagger = self.fit(self.references, 1 - half).tagger_
            for batch, chain in tagger.chains(self.matrix.take(numbers)):
                true = pad_sequence([refs[i] for i in numbers[batch]], batch_first=True)
                found.append((numbers[batch], *k_best(chain, true, CANDIDATES)))
        return found

    def sentence_targets(self, tau: float) -> Posterior:
        """SQDML toward `softq.rewards.SpanF1` on the k best and the references.

        Of the target on candidates training needs the labels and neighbours that it expects.
        """
        lengths, size = self.matrix.lengths, len(self.labels)
        ends = np.cumsum(lengths)
        unary, pairs = np.zeros((int(ends[-1]), size)), np.zeros((len(lengths), size, size))
        entropy = np.zeros(len(lengths))
        for numbers, cands, true in self.best:
            target = softq.sqdml(cands, true, tau, SpanF1(self.labels, SCHEME))
            each = one_hot(target.outputs.tokens, size).double()  # [B, S, n, K]
            shares = target.weights[..., None, None]
            for row, i in enumerate(numbers):
                found = each[row, :, : lengths[i]]
                unary[ends[i] - lengths[i] : ends[i]] = (shares[row] * found).sum(0)
                pairs[i] = (shares[row] * (found[:, :-1].mT @ found[:, 1:])).sum(0)
            entropy[numbers] = target.entropy()
        return Posterior(unary, pairs, entropy, np.zeros(len(lengths)), lengths)

    def trained(self, model: Row) -> CRFTagger:
        """A tagger trained on labels, on segments, or toward the F1 of whole sentences."""
        if model["space"] == "sentences":
            return self.fit(self.sentence_targets(model["tau"]))
        return self.fit(self.references, **model)

    def counts(self, tagger: CRFTagger) -> dict[float | None, Any]:
        """Counts of each sentence, as the tagger decodes (None) and with each weight."""
        model = tagger.tagger_
        rewards = {w: reward_for(None, w, model.labels, model.segments) for w in WEIGHTS}
        found: dict[float | None, Any] = {w: [[] for _ in self.gold] for w in (None, *WEIGHTS)}
        for batch, p in model.chains(self.features):
            lengths = torch.from_numpy(self.features.lengths[batch])
            for weight, labels in found.items():
                best = p.mode() if weight is None else p.mbr(rewards[weight])
                names = written(best, lengths, model.labels, model.segments)
                for i, one in zip(batch, names, strict=True):
                    labels[i] = one
        return {w: span_statistics(self.gold, labels, SCHEME).rows for w, labels in found.items()}


def measure(name: str, model: Row, corpus: Corpus) -> Row:
    """Scores of one training, and the counts of its predictions by sentence."""
    start = time.perf_counter()
    tagger = corpus.trained(model)
    seconds = time.perf_counter() - start
    tables = corpus.counts(tagger)
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
        folder, train_file, dev_file, without, models = CORPORA[name]
        if not (options.data / folder).is_dir():
            missing.append(name)
            continue
        train = read(options.data / folder / train_file, without, options.sentences)
        dev = read(options.data / folder / dev_file, (), options.sentences)
        corpus, ml = Corpus(train, dev, options.c2), torch.empty(0)
        for model in models:
            row = measure(name, model, corpus)
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
    colours = {"chain": "blue", "segments": "orange", "sentences": "green"}
    names = list(dict.fromkeys((row["space"], label(row)) for row in rows))
    looks = {}
    for space, colour in colours.items():
        own = [name for of, name in names if of == space]
        looks |= {name: Look(colour, marker) for name, marker in zip(own, "os^vD", strict=False)}

    def panels(canvas: Canvas) -> None:
        axes = canvas.panels(len(corpora), height=2.4, columns=2, head=0.9)
        for name, panel in zip(corpora, axes, strict=True):
            number_axis(panel, "entity weight at decoding", logarithmic=True)
            panel.set_title(name)
            panel.set_ylabel("F1 of entities, %")
            for row in rows:
                if row["corpus"] == name:
                    points = [(float(weight), found[2]) for weight, found in row["curve"].items()]
                    canvas.lines(panel, [Series(label(row), looks[label(row)], points)])
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
    parser.add_argument("--markdown", action="store_true", help="print the table as in docs/")
    parser.add_argument("--json", action="store_true", help="print the JSON object alone")
    options = parser.parse_args()
    if options.results:
        read = [json.loads(path.read_text().splitlines()[-1]) for path in options.results]
        rows, missing = [row for one in read for row in one["rows"]], []
    else:
        rows, missing = measured(options)
    if not options.json:
        table = Table(title="F1 by the weight of entities in decoding, %")
        table.box = box.MARKDOWN if options.markdown else box.SIMPLE
        table.caption = f"not in {options.data}: {', '.join(missing)}" if missing else None
        for column in ("corpus", "training", *COLUMNS):
            table.add_column(column, justify="right" if column in COLUMNS else "left")
        for row in rows:
            table.add_row(row["corpus"], label(row), *(shown(row[name]) for name in COLUMNS))
        Console(width=200).print(table)
    if options.figure:
        draw(rows, options.figure)
    print(json.dumps({"benchmark": "entities", "c2": options.c2, "missing": missing, "rows": rows}))


if __name__ == "__main__":
    main()
