"""What `softq evaluate` does with translations: scores of a translator, or of text that is there already."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

import softq
from softq.cli import comparison
from softq.cli.predict_sentences import FileTranslator, Searching
from softq.cli.progress import progress_bars
from softq.cli.shared import results_console
from softq.errors import DataError, DependencyError
from softq.formats.bitext import Bitext, read_bitext
from softq.formats.text import read_lines
from softq.formats.tokens import tokenize, without_marks
from softq.lab.tasks.lm_data import is_jsonl, read_rows
from softq.metrics import TRANSLATION_METRICS, SacreBLEU, sacre_bleu, translation_statistics
from softq.neural.perplexity import perplexity

_AT_A_TIME = 1000  # sentences
_TITLES = {
    "sentence_bleu": "sentence BLEU",
    "corpus_bleu": "corpus BLEU",
    "average_reward": "average reward",
    "exact_match": "exact match",
    "length_ratio": "length ratio",
}

PlainWords = Callable[[str], list[str]]


class TokenizerName(StrEnum):
    """What counts as a word of text that is scored."""

    unicode = "unicode"
    space = "space"


TokenizerOption = Annotated[
    TokenizerName | None,
    typer.Option(
        help="Of --predictions that are text: words end at punctuation (unicode), or at white space alone, for text that is split already "
        "(space).  [default: unicode]",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class TextScores:
    """Scores of translations.

    Attributes:
        rows: statistics of each sentence, as of `softq.metrics.translation_statistics`.
        overall: by the names of `softq.metrics.TRANSLATION_METRICS`, in 0..1.
        sacre: sacreBLEU's score in 0..100 with its signature, None where it is not installed.
        perplexity: of the references, None where there is no model.

    """

    rows: Tensor
    overall: dict[str, float]
    sacre: SacreBLEU | None
    perplexity: float | None = None

    @classmethod
    def of(
        cls,
        words: Sequence[Sequence[str]],
        texts: Sequence[str],
        references: Sequence[Sequence[str]],
        plain: PlainWords,
        perplexity: float | None = None,
    ) -> TextScores:
        """Judge translations, as words and as text, by references as text, of which ``plain`` makes words."""
        rows = translation_statistics(
            words, [[plain(text) for text in several] for several in references]
        )
        overall = {name: float(metric(rows.sum(0))) for name, metric in TRANSLATION_METRICS.items()}
        try:
            sacre = sacre_bleu(texts, references)
        except DependencyError:
            sacre = None
        return cls(rows, overall, sacre, perplexity)


def evaluate_translator(
    model: Path, files: Sequence[Path], against: Path | None, searching: Searching, *, as_json: bool
) -> None:
    """Score a translator on sentences with references, and a second one beside it."""
    models = [FileTranslator.load(path, searching) for path in (model, against) if path is not None]
    gold = read_bitext(*files)
    comparison.check_same_words(
        [model.path for model in models],
        [model.model.vocabulary.plain for model in models],
        gold,
        gold.references,
        "translate with softq predict, and score with softq evaluate --predictions A REF --against B",
    )
    found, *others = (_score_model(one, gold) for one in models)
    facts = {"model": str(model), "files": list(map(str, files)), "decoding": models[0].decoding}
    _tell(
        found,
        others[0] if others else None,
        gold.references,
        facts,
        (model, against),
        as_json=as_json,
    )


def evaluate_text(
    predictions: Path,
    files: Sequence[Path],
    against: Path | None,
    tokenizer: TokenizerName | None,
    *,
    as_json: bool,
) -> None:
    """Score lines of text by lines of one or several files of references, and other lines beside them."""
    references = _read_references(files, predictions)
    plain: PlainWords = (
        str.split
        if tokenizer is TokenizerName.space
        else lambda text: without_marks(tokenize(text))
    )
    scored = []
    for path in (predictions, against):
        if path is not None:
            texts = _read_predictions(path, files[0], len(references))
            scored.append(
                TextScores.of(
                    [guessed_words(text, plain) for text in texts], texts, references, plain
                )
            )
    found, *others = scored
    facts = {"model": None, "files": list(map(str, files)), "predictions": str(predictions)}
    _tell(
        found,
        others[0] if others else None,
        references,
        facts,
        (predictions, against),
        as_json=as_json,
    )


def guessed_words(text: str, plain: PlainWords) -> list[str]:
    """Words of a prediction, in which what is not known is one word, whatever its spelling would be split into."""
    first, *others = text.split("<unk>")
    return plain(first) + [word for stretch in others for word in ("<unk>", *plain(stretch))]


def _read_references(files: Sequence[Path], predictions: Path) -> list[list[str]]:
    """References of each line; tabs separate those of one line, or it is an object with them, and files may add more."""
    columns = []
    for path in files:
        if is_jsonl(path):
            columns.append([row["references"] for row in read_rows(path)])
            continue
        lines = [[text.strip() for text in line.split("\t")] for line in read_lines(path)]
        empty = next(
            (number for number, several in enumerate(lines, start=1) if not all(several)), None
        )
        if empty is not None:
            raise DataError(
                f"{path}, line {empty}: expected a reference for a line of {predictions}, got an empty one"
            )
        columns.append(lines)
    if not columns[0]:
        raise DataError(f"{files[0]} is empty: expected a reference per line")
    for path, lines in zip(files, columns, strict=True):
        if len(lines) != len(columns[0]):
            raise DataError(
                f"expected files whose lines belong together, got {files[0]} with {len(columns[0])} lines and {path} with {len(lines)}"
            )
    return [[text for several in rows for text in several] for rows in zip(*columns, strict=True)]


def _read_predictions(path: Path, first: Path, count: int) -> list[str]:
    texts = [line.strip() for line in read_lines(path)]
    if len(texts) != count:
        raise DataError(
            f"expected files whose lines belong together, got {path} with {len(texts)} lines and {first} with {count}"
        )
    return texts


def _score_model(model: FileTranslator, gold: Bitext) -> TextScores:
    found = []
    with progress_bars() as watch:
        watcher = watch(gold.name, unit="sentences")
        watcher.begin(len(gold), 0)
        for first in range(0, len(gold), _AT_A_TIME):
            some = gold.sources[first : first + _AT_A_TIME]
            found += model.translate(some)
            watcher.advance(len(some), "")
    words, texts = [one.words for one in found], [one.text for one in found]
    translator = model.model
    examples = translator.examples(gold.sources, gold.references)
    return TextScores.of(
        words,
        texts,
        gold.references,
        translator.vocabulary.plain,
        perplexity(translator.model, examples),
    )


def _tell(
    found: TextScores,
    other: TextScores | None,
    references: Sequence[Sequence[str]],
    facts: dict[str, Any],
    names: tuple[Path, Path | None],
    *,
    as_json: bool,
) -> None:
    compared = (
        comparison.compare(found.rows, other.rows, TRANSLATION_METRICS)
        if other is not None
        else None
    )
    counts = {"sentences": len(references), "references": sum(map(len, references))}
    if as_json:
        told: dict[str, Any] = {
            "command": "evaluate",
            "softq": softq.__version__,
            **facts,
            **counts,
            **found.overall,
        }
        told |= {"perplexity": found.perplexity, "sacrebleu": _as_json(found.sacre)}
        if compared is not None and other is not None:
            told["against"] = comparison.as_json(compared, str(names[1])) | {
                "sacrebleu": _as_json(other.sacre)
            }
        typer.echo(json.dumps(told))
        return
    console = results_console()
    heading = f"{', '.join(facts['files'])}: {counts['sentences']:,} sentences, {counts['references']:,} references"
    console.print(heading, markup=False, highlight=False, soft_wrap=True)
    _show(found, console)
    if compared is not None:
        comparison.show_difference(
            found.overall, compared, _TITLES, str(names[0]), str(names[1]), console
        )
        if other is not None and other.sacre is not None:
            console.print(
                f"sacreBLEU of {names[1]}: {other.sacre.score:.2f}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def _as_json(sacre: SacreBLEU | None) -> dict[str, Any] | None:
    return None if sacre is None else sacre._asdict()


def _show(found: TextScores, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("")
    table.add_column("score", justify="right")
    for name, score in found.overall.items():
        table.add_row(_TITLES[name], f"{score:.4f}")
    if found.perplexity is not None:
        table.add_row("perplexity of the references", f"{found.perplexity:.3f}")
    if found.sacre is not None:
        table.add_row("sacreBLEU (0 to 100)", f"{found.sacre.score:.2f}")
    console.print(table)
    told = (
        "sacreBLEU is not installed: pip install 'softq[translation]'"
        if found.sacre is None
        else f"sacreBLEU {found.sacre.signature}"
    )
    console.print(told, markup=False, highlight=False, soft_wrap=True)
