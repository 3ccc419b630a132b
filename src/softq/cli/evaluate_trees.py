"""What `softq evaluate` does with trees: scores of a parser, or of trees that are there already."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

import softq
from softq.cli import comparison
from softq.cli.model_files import DecodingName
from softq.cli.predict_trees import FileParser
from softq.cli.progress import progress_bars
from softq.cli.shared import results_console
from softq.errors import DataError
from softq.formats.conllu import TreeSentence, read_conllu
from softq.metrics import (
    ATTACHMENT_METRICS,
    AlignedScores,
    KindScores,
    align_score,
    attachment_statistics,
)
from softq.metrics.attachment import universal

_AT_A_TIME = 1000  # sentences
_TITLES = {
    "uas": "UAS",
    "las": "LAS",
    "las_subtypes": "LAS with subtypes",
    "clas": "CLAS",
    "exact_match": "exact match",
    "labelled_exact_match": "labelled exact match",
}
_ROOT = "root"
_ARC_LENGTHS = (1, 2, 5, 10, 20)  # the longest of each class but the last
_SENTENCE_LENGTHS = (5, 10, 20, 30, 40)


@dataclass(frozen=True)
class TreeScores:
    """Scores of predicted trees in 0..1.

    Attributes:
        rows: statistics of each sentence, as of `softq.metrics.attachment_statistics`.
        overall: by the names of `softq.metrics.ATTACHMENT_METRICS`; NaN where relations are missing.
        relations: head and relation, by the relation up to its first ``:``; empty where they are missing.
        arc_lengths: heads, by the distance of head and dependent.
        sentence_lengths: UAS, LAS and exact match by the number of words, with the numbers of sentences and words.

    """

    rows: Tensor
    overall: dict[str, float]
    relations: dict[str, KindScores]
    arc_lengths: dict[str, KindScores]
    sentence_lengths: dict[str, dict[str, float]]

    @classmethod
    def of(
        cls,
        gold: Sequence[TreeSentence],
        heads: Sequence[Sequence[int]],
        relations: Sequence[Sequence[str]] | None,
    ) -> TreeScores:
        """Judge heads and relations of the same words; None where one side has no relations."""
        rows = attachment_statistics(gold, heads, relations)
        true_heads = [head for sentence in gold for head in sentence.heads]
        places = [place for sentence in gold for place in range(1, len(sentence.forms) + 1)]
        guessed_heads = [head for tree in heads for head in tree]
        by_relation: dict[str, KindScores] = {}
        if relations is not None:
            true = [universal(name) for sentence in gold for name in sentence.relations]
            guessed = [universal(name) for names in relations for name in names]
            both = zip(true, guessed, true_heads, guessed_heads, strict=True)
            attached = [
                name
                for name, guess, head, guessed_head in both
                if name == guess and head == guessed_head
            ]
            by_relation = _by_class(true, guessed, attached, sorted({*true, *guessed}))
        arcs = [
            [_arc_class(head, place) for head, place in zip(side, places, strict=True)]
            for side in (true_heads, guessed_heads)
        ]
        right = [
            kind
            for kind, head, guess in zip(arcs[0], true_heads, guessed_heads, strict=True)
            if head == guess
        ]
        overall = {name: float(metric(rows.sum(0))) for name, metric in ATTACHMENT_METRICS.items()}
        by_arc = _by_class(arcs[0], arcs[1], right, (_ROOT, *_classes(_ARC_LENGTHS)))
        return cls(rows, overall, by_relation, by_arc, _by_length(gold, rows))


@cache
def _classes(ends: tuple[int, ...]) -> tuple[str, ...]:
    """Names of classes of numbers from 1, by the last number of each class but the last.

    >>> _classes((1, 2, 5))
    ('1', '2', '3-5', '6+')
    """
    starts = (1, *(end + 1 for end in ends))
    return (
        *(
            f"{start}" if start == end else f"{start}-{end}"
            for start, end in zip(starts, ends, strict=False)
        ),
        f"{starts[-1]}+",
    )


def _class_of(number: int, ends: tuple[int, ...]) -> str:
    return _classes(ends)[sum(number > end for end in ends)]


def _arc_class(head: int, dependent: int) -> str:
    return _class_of(abs(head - dependent), _ARC_LENGTHS) if head else _ROOT


def _by_class(
    true: Iterable[Hashable],
    guessed: Iterable[Hashable],
    right: Iterable[Hashable],
    names: Sequence[str],
) -> dict[str, KindScores]:
    """Scores of each class that occurs, from the classes of gold arcs, of predicted ones, and of those that are both."""
    gold, predicted, both = Counter(true), Counter(guessed), Counter(right)
    found = {}
    for name in names:
        sizes = predicted[name], gold[name]
        if any(sizes):
            precision, recall, f1 = (both[name] / max(1, size) for size in (*sizes, sum(sizes) / 2))
            found[name] = KindScores(precision, recall, f1, *sizes)
    return found


def _by_length(gold: Sequence[TreeSentence], rows: Tensor) -> dict[str, dict[str, float]]:
    kinds = [_class_of(len(sentence.forms), _SENTENCE_LENGTHS) for sentence in gold]
    found = {}
    for name in _classes(_SENTENCE_LENGTHS):
        members = [number for number, kind in enumerate(kinds) if kind == name]
        if members:
            sums = rows[members].sum(0)
            scores = {
                metric: float(ATTACHMENT_METRICS[metric](sums))
                for metric in ("uas", "las", "exact_match")
            }
            found[name] = {"sentences": len(members), "words": int(sums[0]), **scores}
    return found


def evaluate_parser(
    model: Path, file: Path, against: Path | None, decoding: DecodingName | None, *, as_json: bool
) -> None:
    """Score a parser on a file of trees, and a second one beside it."""
    parsers = [FileParser.load(path, decoding) for path in (model, against) if path is not None]
    gold = _read_gold(file)
    found, *others = (_score_model(parser, gold, str(file)) for parser in parsers)
    compared = (
        comparison.compare(found.rows, others[0].rows, ATTACHMENT_METRICS) if others else None
    )
    if as_json:
        facts = _facts(gold, found, {"model": str(model), "file": str(file)})
        if compared is not None:
            facts["against"] = comparison.as_json(compared, str(against))
        typer.echo(json.dumps(facts))
        return
    console = results_console()
    _show(file, gold, found, console)
    if compared is not None:
        comparison.show_difference(
            found.overall, compared, _TITLES, f"{model}", f"{against}", console
        )


def evaluate_trees(predictions: Path, file: Path, *, as_json: bool) -> None:
    """Score the trees of one file by those of another, as the shared task of CoNLL 2018 does where the words are not the same."""
    gold, system = _read_gold(file), _read_gold(predictions)
    paths = {"model": None, "file": str(file), "predictions": str(predictions)}
    console = results_console()
    if [sentence.forms for sentence in gold] == [sentence.forms for sentence in system]:
        labelled = _labelled(gold) and _labelled(system)
        relations = [sentence.relations for sentence in system] if labelled else None
        found = TreeScores.of(gold, [sentence.heads for sentence in system], relations)
        if as_json:
            typer.echo(json.dumps(_facts(gold, found, paths)))
        else:
            _show(file, gold, found, console)
        return
    try:
        aligned = align_score(gold, system)
    except DataError as error:
        raise DataError(f"{file} and {predictions}: {error}") from None
    if as_json:
        typer.echo(json.dumps(_aligned_facts(gold, system, aligned, paths)))
    else:
        _show_aligned(gold, system, aligned, (file, predictions), console)


def _read_gold(path: Path) -> list[TreeSentence]:
    sentences = read_conllu(path, trees=None)
    for sentence in sentences:
        if not sentence.heads:
            raise DataError(
                f"{_place(path, sentence)}: expected a sentence with its tree, got _ as the HEAD of every word"
            )
    bare = next((sentence for sentence in sentences if not sentence.relations), None)
    if bare is not None and _labelled(sentences):
        raise DataError(
            f"{_place(path, bare)}: expected relations in all sentences or in none, got _ as the DEPREL of every word, and others with them"
        )
    return sentences


def _place(path: Path, sentence: TreeSentence) -> str:
    return f"{path}, line {sentence.line}{f' (sentence {sentence.sent_id})' if sentence.sent_id else ''}"


def _labelled(sentences: Sequence[TreeSentence]) -> bool:
    """Whether sentences have relations, of which all have some or none has."""
    return any(sentence.relations for sentence in sentences)


def _score_model(model: FileParser, gold: list[TreeSentence], where: str) -> TreeScores:
    model.check(gold, where)
    found = []
    with progress_bars() as watch:
        watcher = watch(where, unit="sentences")
        watcher.begin(len(gold), 0)
        for first in range(0, len(gold), _AT_A_TIME):
            some = gold[first : first + _AT_A_TIME]
            found += model.parse(some)
            watcher.advance(len(some), "")
    labelled = _labelled(gold) and bool(model.parser.relations)
    return TreeScores.of(
        gold,
        [parse.heads for parse in found],
        [parse.relations for parse in found] if labelled else None,
    )


def _number(value: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(value) else value


def _facts(
    gold: Sequence[TreeSentence], found: TreeScores, paths: dict[str, str | None]
) -> dict[str, Any]:
    facts: dict[str, Any] = {"command": "evaluate", "softq": softq.__version__, **paths}
    facts |= {"sentences": len(gold), "words": sum(len(sentence.forms) for sentence in gold)}
    facts |= {name: _number(score) for name, score in found.overall.items()}
    for name, table in (("relations", found.relations), ("arc_lengths", found.arc_lengths)):
        facts[name] = {kind: row._asdict() for kind, row in table.items()}
    facts["sentence_lengths"] = {
        kind: {name: _number(x) for name, x in row.items()}
        for kind, row in found.sentence_lengths.items()
    }
    return facts


def _aligned_facts(
    gold: Sequence[TreeSentence],
    system: Sequence[TreeSentence],
    aligned: AlignedScores,
    paths: dict[str, str | None],
) -> dict[str, Any]:
    facts: dict[str, Any] = {"command": "evaluate", "softq": softq.__version__, **paths}
    facts |= {"sentences": len(gold), "words": sum(len(sentence.forms) for sentence in gold)}
    facts |= {
        "predicted_sentences": len(system),
        "predicted_words": sum(len(sentence.forms) for sentence in system),
    }
    scores = {name: getattr(aligned, name) for name in ("words", "uas", "las", "clas")}
    facts |= {name: scores[name] and scores[name].f1 for name in ("uas", "las", "clas")}
    facts["aligned"] = {name: row and row._asdict() for name, row in scores.items()}
    return facts


def _shown(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _table(*titles: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column(titles[0])
    for title in titles[1:]:
        table.add_column(title, justify="right")
    return table


def _show(path: Path, gold: Sequence[TreeSentence], found: TreeScores, console: Console) -> None:
    words = sum(len(sentence.forms) for sentence in gold)
    console.print(
        f"{path}: {len(gold):,} sentences, {words:,} words",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    table = _table("", "score")
    for name, score in found.overall.items():
        if not math.isnan(score):
            table.add_row(_TITLES[name], _shown(score))
    console.print(table)
    for title, rows in (
        ("head and relation, by relation", found.relations),
        ("head, by length of the arc", found.arc_lengths),
    ):
        if rows:
            table = _table(title, "precision", "recall", "F1", "predicted", "true")
            for kind, row in rows.items():
                table.add_row(
                    escape(kind), *map(_shown, row[:3]), *(f"{count:,}" for count in row[3:])
                )
            console.print(table)
    table = _table("words of the sentence", "UAS", "LAS", "exact match", "sentences", "words")
    for kind, lengths in found.sentence_lengths.items():
        scores = (_shown(lengths[name]) for name in ("uas", "las", "exact_match"))
        table.add_row(kind, *scores, *(f"{lengths[name]:,}" for name in ("sentences", "words")))
    console.print(table)


def _show_aligned(
    gold: Sequence[TreeSentence],
    system: Sequence[TreeSentence],
    aligned: AlignedScores,
    paths: tuple[Path, Path],
    console: Console,
) -> None:
    for path, sentences in zip(paths, (gold, system), strict=True):
        words = sum(len(sentence.forms) for sentence in sentences)
        console.print(
            f"{path}: {len(sentences):,} sentences, {words:,} words",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    table = _table("words differ: those that align", "precision", "recall", "F1")
    for name in ("words", "uas", "las", "clas"):
        row = getattr(aligned, name)
        if row is not None:
            table.add_row(_TITLES.get(name, name), *map(_shown, row))
    console.print(table)
